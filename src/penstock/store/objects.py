"""Objects beside the store: payloads that are too large for a row.

Contract     `put` returns when the object is durable; it is whole or not there. `get` raises
             CorruptError where one is missing. Names are numbers, so no user's string becomes a
             path. Folders: one file each under payloads/; buckets: one object each, by obstore.
Errors       UnavailableError for whatever the disk or the service says; retrying is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from penstock.errors import CorruptError, UnavailableError
from penstock.store.disk import TEMPORARY, replace_file, sync_folder
from penstock.store.location import bucket_of, folder_of
from penstock.store.reach import first_line

PAYLOADS = "payloads"


class Objects(Protocol):
    async def put(self, number: int, data: bytes) -> None: ...

    async def get(self, number: int) -> bytes: ...

    async def delete(self, number: int) -> None: ...

    async def numbers(self) -> list[int]: ...


class FolderObjects:
    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._folder = folder / PAYLOADS
        self._sync = sync

    async def put(self, number: int, data: bytes) -> None:
        await self._run(partial(self._put, number, data))

    def _put(self, number: int, data: bytes) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            if self._sync:
                sync_folder(self._folder.parent)
        replace_file(self._folder / str(number), data, sync=self._sync)

    async def get(self, number: int) -> bytes:
        path = self._folder / str(number)
        try:
            return await self._run(path.read_bytes)  # type: ignore[no-any-return]
        except FileNotFoundError:
            raise CorruptError(f"{path}: a payload is missing") from None

    async def delete(self, number: int) -> None:
        for name in (str(number), f"{number}{TEMPORARY}"):
            await self._run(partial((self._folder / name).unlink, missing_ok=True))

    async def numbers(self) -> list[int]:
        def found() -> list[int]:
            if not self._folder.is_dir():
                return []
            # Also what a put left behind that was killed: its message was never committed.
            names = {path.name.removesuffix(TEMPORARY) for path in self._folder.iterdir()}
            return sorted(int(name) for name in names if name.isdigit())

        return await self._run(found)  # type: ignore[no-any-return]

    async def _run(self, job: Any) -> Any:
        try:
            return await asyncio.to_thread(job)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnavailableError(f"{self._folder}: {error.strerror}") from error
        except RuntimeError as error:  # the interpreter ends, and begins no more jobs on threads
            raise UnavailableError(f"{self._folder}: {error}") from error


class BucketObjects:
    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix}{PAYLOADS}/"

    async def put(self, number: int, data: bytes) -> None:
        await self._run(obstore.put_async(self._store, f"{self._prefix}{number}", data))

    async def get(self, number: int) -> bytes:
        try:
            found = await self._run(obstore.get_async(self._store, f"{self._prefix}{number}"))
        except FileNotFoundError:
            raise CorruptError(f"{self._prefix}{number}: a payload is missing") from None
        return bytes(await self._run(found.bytes_async()))

    async def delete(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            await self._run(obstore.delete_async(self._store, f"{self._prefix}{number}"))

    async def numbers(self) -> list[int]:
        names: list[str] = []
        async for part in obstore.list(self._store, prefix=self._prefix):
            names += [entry["path"].rsplit("/", 1)[-1] for entry in part]
        return sorted(int(name) for name in names if name.isdigit())

    async def _run(self, call: Any) -> Any:
        try:
            return await call
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise UnavailableError(f"{self._prefix}: {first_line(error)}") from error


class MemoryObjects:
    """For memory:// and for simulated worlds: nothing here waits for anything."""

    def __init__(self) -> None:
        self.objects: dict[int, bytes] = {}

    async def put(self, number: int, data: bytes) -> None:
        self.objects[number] = data

    async def get(self, number: int) -> bytes:
        if number not in self.objects:
            raise CorruptError(f"payload {number} is missing")
        return self.objects[number]

    async def delete(self, number: int) -> None:
        self.objects.pop(number, None)

    async def numbers(self) -> list[int]:
        return sorted(self.objects)


#: As SlateDB's memory://, these live as long as the process.
_memory: dict[str, MemoryObjects] = {}


def open_objects(location: str, *, sync: bool = True) -> Objects:
    folder = folder_of(location)
    if folder is not None:
        return FolderObjects(folder, sync=sync)
    if location.startswith("memory://"):
        return _memory.setdefault(location, MemoryObjects())
    bucket, prefix = bucket_of(location)
    try:
        return BucketObjects(from_url(bucket), prefix)
    except BaseError as error:
        raise UnavailableError(f"{location}: {first_line(error)}") from error
