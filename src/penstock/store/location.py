"""Locations: which store a string names.

./data, ../data, ~/data        a folder; a tilde in front is the home of the user
file:///data                   a folder, percent-encoded, with an absolute path
s3://bucket/prefix             a bucket (credentials and endpoint from the AWS_* variables);
                               s3a, gs and az likewise
memory://name                  SlateDB in memory; lives as long as the process

A string that looks like a URL and is none of these is refused: taken for a path it would create a
folder that nobody asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.clock import Clock
from penstock.errors import InvalidError, NotFoundError, UnavailableError
from penstock.store.bucket import BucketStore
from penstock.store.folder import Durability, FolderStore
from penstock.store.port import Store
from penstock.store.reach import reach
from penstock.store.slate import Place, writer_epoch
from penstock.store.tables import Require, require_in_bucket

#: Everything of a store in a bucket lies under this name, beside payloads and tables.
STORE = "store"
SCHEMES = ("file", "s3", "s3a", "gs", "az", "memory")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/*)")
_HINT = (
    f"a folder (./… if its name looks like a scheme), or {', '.join(f'{s}://…' for s in SCHEMES)}"
)


def _scheme_of(location: str) -> str:
    """One of SCHEMES, or nothing for the path of a folder."""
    if not location or "\0" in location:
        raise InvalidError(f"{location!r} is not a location", hint=_HINT)
    found = _SCHEME.match(location)
    if found is None:
        return ""
    scheme, slashes = found.groups()
    if scheme in SCHEMES and len(slashes) >= 2:
        return scheme
    if scheme.lower() in SCHEMES or slashes:
        raise InvalidError(f"{location!r} is not a location", hint=_HINT)
    return ""  # a:b is a name like any other


def folder_of(location: str) -> Path | None:
    """The folder that a location names, or None when it names something else."""
    match _scheme_of(location):
        case "":
            if not location.startswith("~"):
                return _absolute(Path(location))
            try:
                return _absolute(Path(location).expanduser())
            except RuntimeError as error:  # there is no such user
                raise InvalidError(
                    f"{location}: {error}", hint="write ./~… for a folder of that name"
                ) from None
        case "file":
            parts = urlsplit(location)
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise InvalidError(
                    f"{location}: file:// takes an absolute path", hint="as in file:///data"
                )
            if parts.query or parts.fragment:
                raise InvalidError(
                    f"{location}: a path with ? or #", hint="write %3F and %23, or the path itself"
                )
            return _absolute(Path(unquote(parts.path)))
    return None


def _absolute(path: Path) -> Path:
    """Without `..`, which the engine takes for a name and would make a folder of; and behind a link
    it is not what its text says."""
    return Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()


def check_durability(durability: str) -> None:
    if durability not in ("power", "os"):
        raise InvalidError(f"durability is 'power' or 'os', not {durability!r}")


@contextlib.contextmanager
def nothing_written() -> Iterator[None]:
    """Around an opening or a check: an error must not raise doubts about a write."""
    try:
        yield
    except UnavailableError as error:
        if error.hint == UnavailableError.hint:
            error.hint = "retry later"
        raise


async def open_store(
    location: str,
    *,
    clock: Clock,
    durability: Durability = "power",
    create: bool = True,
    after: int | None = None,
    owner: bytes = b"",
) -> Store:
    """Open the store of a location; fences whoever had it open.

    Without `create` the location must exist. With `after`, only if that epoch is still the newest,
    or if the newer ones were claimed by the same `owner`, whose openings failed.
    """
    check_durability(durability)
    folder = folder_of(location)
    with nothing_written():
        if folder is not None:
            return await FolderStore.open(
                folder,
                clock=clock,
                durability=durability,
                create=create,
                after=after,
                owner=owner,
            )
        await reach_bucket(location)
        place = bucket_place(location)
        try:
            return await BucketStore.open(
                place,
                clock=clock,
                after=after,
                create=create,
                owner=owner,
                require_tables=bucket_tables(location),
            )
        except OSError as error:
            raise UnavailableError(f"{location}: {error}") from error
        except NotFoundError as error:
            raise NotFoundError(f"{location}: {error}", hint=error.hint) from None


def bucket_place(location: str) -> Place:
    """Where SlateDB is, of a location that is no folder."""
    if location.startswith("memory://"):
        return Place(location, STORE)
    bucket, prefix = bucket_of(location)
    return Place(bucket, f"{prefix}{STORE}")


def bucket_tables(location: str) -> Require | None:
    """Who looks after its tables; nobody in memory, where none is cut."""
    if location.startswith("memory://"):
        return None
    bucket, prefix = bucket_of(location)
    return partial(require_in_bucket, bucket, f"{prefix}{STORE}")


async def reach_bucket(location: str) -> None:
    """Ask before SlateDB does, which waits for ever (reach.py)."""
    if not location.startswith("memory://"):
        bucket, prefix = bucket_of(location)
        await reach(location, bucket, f"{prefix}{STORE}")


async def require_bucket(location: str) -> None:
    """Raise unless there is a store in this bucket; nobody is disturbed by the question."""
    await reach_bucket(location)
    place = bucket_place(location)
    try:
        if await writer_epoch(place) == 0:
            raise NotFoundError(
                f"{location}: there is no Penstock location", hint="check the location"
            )
    finally:
        place.release()


def bucket_of(location: str) -> tuple[str, str]:
    """-> the bucket's URL, and what every name in it begins with"""
    scheme, _, rest = location.partition("://")
    bucket, _, prefix = rest.rstrip("/").partition("/")
    if not bucket:
        raise InvalidError(f"{location!r} names no bucket", hint=f"{scheme}://bucket/prefix")
    if not {"", ".", ".."}.isdisjoint(prefix.strip("/").split("/") if prefix else ()):
        raise InvalidError(
            f"{location!r}: a prefix with an empty part, or with . or ..",
            hint="objects have names and no folders that one could go up from",
        )
    return f"{scheme}://{bucket}", f"{prefix}/" if prefix else ""
