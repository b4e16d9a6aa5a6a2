"""How one-shot commands come to an open location.

Contract     They never serve themselves: a command that ends at once would leave the others without
             a broker. Where nobody serves a folder, a process of its own is started and ends by
             itself (`broker="outside"`). A command that only looks does not create a location.
Buckets      A bucket has no election: whoever opens it stops its broker. So it is refused, unless
             the user said `penstock --take-over`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import penstock
from penstock.client.database import Database
from penstock.client.places import SCHEME
from penstock.errors import InvalidError, NotFoundError
from penstock.store.folder import require_location
from penstock.store.location import folder_of, require_bucket

#: What `penstock --take-over` said. A variable, not an argument: all commands come through here.
take_over: ContextVar[bool] = ContextVar("take_over", default=False)


def require_there(folder: Path) -> None:
    """Who meets this first has written nothing yet, or is in another folder than when he did."""
    try:
        require_location(folder)
    except NotFoundError as error:
        raise NotFoundError(
            str(error),
            hint="name another with --location or PENSTOCK_LOCATION; the first command that writes "
            "makes one",
        ) from None


@contextmanager
def opened(location: str, *, create: bool = False) -> Iterator[Database]:
    folder = None if location.startswith(SCHEME) else folder_of(location)
    in_bucket = folder is None and not location.startswith((SCHEME, "memory://"))
    if take_over.get() and not in_bucket:
        raise InvalidError(
            f"--take-over is for a bucket, and {location} is none", hint="leave it out"
        )
    if in_bucket:
        if not take_over.get():
            raise InvalidError(
                f"{location}: a command would take the bucket from its broker",
                hint=f"penstock serve {location}, then --location penstock://host:port; "
                "or penstock --take-over … where nobody serves it",
            )
        if not create:
            asyncio.run(require_bucket(location))
    if folder is not None and not create:
        require_there(folder)
    with penstock.open(location, broker="auto" if folder is None else "outside") as db:
        yield db
