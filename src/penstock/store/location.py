"""Locations: which store a string names.

./data, /data, file:///data    a folder
s3://bucket/prefix             a bucket (credentials and endpoint from the AWS_* variables)
memory://name                  SlateDB in memory; lives as long as the process
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.clock import Clock
from penstock.errors import InvalidError, UnavailableError
from penstock.store.bucket import BucketStore
from penstock.store.folder import Durability, FolderStore
from penstock.store.port import Store
from penstock.store.slate import Place

#: Everything of a store in a bucket lies under this name, beside payloads and tables.
STORE = "store"


def folder_of(location: str) -> Path | None:
    """The folder that a location names, or None when it names something else."""
    if "\0" in location or not location:
        raise InvalidError(f"{location!r} is not a location", hint="a folder, s3://… or memory://…")
    if location.startswith("file://"):
        parts = urlsplit(location)
        if parts.netloc not in ("", "localhost"):
            raise InvalidError(f"{location}: file:// takes an absolute path, as in file:///data")
        return Path(unquote(parts.path)).absolute()
    return None if "://" in location else Path(location).absolute()


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
    folder = folder_of(location)
    if folder is not None:
        return await FolderStore.open(
            folder,
            clock=clock,
            durability=durability,
            create=create,
            after=after,
            owner=owner,
        )
    if durability not in ("power", "os"):
        raise InvalidError(f"durability is 'power' or 'os', not {durability!r}")
    scheme, _, rest = location.partition("://")
    bucket, _, prefix = rest.strip("/").partition("/")
    if scheme == "memory":
        return await BucketStore.open(
            Place(f"memory://{rest}", STORE), clock=clock, after=after, create=create, owner=owner
        )
    if scheme in ("s3", "s3a", "gs", "az") and bucket:
        path = f"{prefix}/{STORE}" if prefix else STORE
        try:
            return await BucketStore.open(
                Place(f"{scheme}://{bucket}", path),
                clock=clock,
                after=after,
                create=create,
                owner=owner,
            )
        except OSError as error:
            raise UnavailableError(f"{location}: {error}") from error
    raise InvalidError(f"{location!r} is not a location", hint="a folder, s3://… or memory://…")
