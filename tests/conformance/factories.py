"""The stores that the contract suite runs over: each factory makes places, a place opens handles.

Contract     A place is an empty location of its own. Every `open` on it is another handle over the
             same bytes, as another process would have it. `end` releases what the test left open.
Adding one   A name in `FACTORIES` and its case in `make_place`.
"""

from __future__ import annotations

import importlib
import itertools
import os
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError
from penstock.store.location import open_store
from penstock.store.memory import MemoryDisk, MemoryStore
from penstock.store.port import Store

BUCKET = "conformance"

#: Places of one process are told apart by number; the folder and the bucket are fresh per run.
_numbers = itertools.count(1)


class AheadClock(SystemClock):
    """The machine's clock, which a test can put forward instead of waiting."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.ahead_seconds * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_seconds


class Place:
    def __init__(self, open_handle: Callable[[Clock], Awaitable[Store]]) -> None:
        self.clock = AheadClock()
        self._open_handle = open_handle
        self._handles: list[Store] = []

    async def open(self) -> Store:
        handle = await self._open_handle(self.clock)
        self._handles.append(handle)
        return handle

    async def end(self) -> None:
        for handle in self._handles:
            # A clean close ends the engine's background work, which would slow down later tests.
            with suppress(PenstockError):
                await handle.close()
            await handle.abandon()


def _slate_place(location: str) -> Place:
    async def open_handle(clock: Clock) -> Store:
        store: Store = await open_store(location, clock=clock, create=True)
        return store

    return Place(open_handle)


def memory_place() -> Place:
    disk = MemoryDisk()

    async def open_handle(clock: Clock) -> Store:
        return await MemoryStore.open(disk, clock=clock)

    return Place(open_handle)


def slate_memory_place() -> Place:
    # The same name must mean the same bytes for every handle of this process.
    return _slate_place(f"memory://place-{next(_numbers)}")


def slate_folder_place(folder: Path) -> Place:
    return _slate_place(f"file://{folder / 'store'}")


def slate_bucket_place() -> Place:
    return _slate_place(f"s3://{BUCKET}/place-{next(_numbers)}")


@contextmanager
def bucket_server() -> Iterator[None]:
    """An S3 server on loopback with one empty bucket, and an environment that points at it."""
    server_module = importlib.import_module("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        # A profile or a proxy of the developer's machine must not lead elsewhere.
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("NO_PROXY", host)
        patch.setenv("AWS_ENDPOINT", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "conformance")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "conformance")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ALLOW_HTTP", "true")
        try:
            request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
            with urllib.request.urlopen(request) as response:
                assert response.status == 200
            yield
        finally:
            server.stop()


#: The kinds of store; each test of the suite runs once per name.
FACTORIES = ("memory", "slate-memory", "slate-folder", "slate-bucket")


@asynccontextmanager
async def make_place(name: str, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    match name:
        case "memory":
            place = memory_place()
        case "slate-memory":
            place = slate_memory_place()
        case "slate-folder":
            place = slate_folder_place(request.getfixturevalue("tmp_path"))
        case "slate-bucket":
            request.getfixturevalue("bucket")
            place = slate_bucket_place()
        case _:
            raise AssertionError(name)
    try:
        yield place
    finally:
        await place.end()
