"""How one-shot commands come to an open location.

Contract     They never serve themselves: a command that ends at once would leave the others without
             a broker. Where nobody serves, a process of its own is started and ends by itself
             (`broker="outside"`); a bucket, which only `penstock serve` or one process serves, is
             opened here. A command that only looks does not create a location.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import penstock
from penstock.client.database import Database
from penstock.store.folder import require_location
from penstock.store.location import folder_of


@contextmanager
def opened(location: str, *, create: bool = False) -> Iterator[Database]:
    folder = None if location.startswith("penstock://") else folder_of(location)
    if folder is not None and not create:
        require_location(folder)
    with penstock.open(location, broker="auto" if folder is None else "outside") as db:
        yield db
