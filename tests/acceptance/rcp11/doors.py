"""Stream operations in neutral terms, so that one test speaks through every door.

Contract     `Door` is what a test uses. Three of them: `RespDoor` (resp_door.py) is stock redis-py
             against `penstock serve`; `PythonDoor` (python_door.py) is `penstock.open`, once where
             this process serves the folder and once where another one does.
Terms        Times are milliseconds, as on the wire. `block_ms` is 0 to not wait and None for ever.
             Tags and data are bytes. Errors are those of `penstock`, whatever the door.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, NamedTuple, Protocol, TypeVar

R = TypeVar("R")

#: How long anything may take before a test gives up on it. Nothing is measured by it.
PATIENCE_SECONDS = 30.0
PATIENCE_MS = int(PATIENCE_SECONDS * 1000)
#: Longer than any test: a retry after this time never comes.
NEVER_MS = 3_600_000

Start = int | Literal["first", "new"]


class Entry(NamedTuple):
    offset: int
    tag: bytes
    data: bytes


class FullEntry(NamedTuple):
    offset: int
    tag: bytes
    data: bytes
    time_ms: int
    meta: bytes | None


class Edges(NamedTuple):
    first: int
    last: int


class Config(NamedTuple):
    max_count: int | None = None
    max_bytes: int | None = None
    max_age_ms: int | None = None
    compact: bool = False


class Info(NamedTuple):
    first: int
    last: int
    length: int
    bytes: int
    created_ms: int | None
    groups: int
    config: Config


class Group(NamedTuple):
    name: str
    last_offset: int
    ack_offset: int
    pending: int
    expired: int
    skipped: int
    max_pending: int
    dead: str | None


class Pending(NamedTuple):
    offset: int
    retry_ms: int
    expire_ms: int | None
    deliveries: int


class Door(Protocol):
    kind: str

    def write(self, name: str, tag: bytes, data: bytes) -> int: ...

    def write_many(
        self,
        name: str,
        entries: Sequence[tuple[bytes, ...]],
        *,
        backlog: int | None = None,
        producer: tuple[str, int] | None = None,
    ) -> range:
        """Entries are (tag, data), or all of them (tag, data, meta)."""

    def read(
        self,
        name: str,
        offset: int,
        count: int,
        *,
        block_ms: int | None = 0,
        reverse: bool = False,
    ) -> list[Entry | None]: ...

    def read_full(self, name: str, offset: int, count: int) -> list[FullEntry | None]: ...

    def read_withinfo(
        self, name: str, offset: int, count: int, *, block_ms: int | None = 0
    ) -> tuple[Edges, list[Entry | None]]: ...

    def read_group(
        self,
        name: str,
        group: str,
        count: int,
        *,
        block_ms: int | None = 0,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
        start: Start | None = None,
    ) -> list[Entry]:
        """`start` None: nothing is said about it."""

    def ack(self, name: str, group: str, *offsets: int | range) -> int: ...

    def evict(self, name: str, *, up_to: int | None = None, keep: int | None = None) -> int: ...

    def group_create(
        self,
        name: str,
        group: str,
        *,
        start: Start | None = None,
        max_pending: int | None = None,
        dead: str | None = None,
    ) -> None: ...

    def group_set(self, name: str, group: str, offset: Start) -> None: ...

    def group_info(self, name: str, group: str) -> Group: ...

    def groups(self, name: str) -> list[Group]: ...

    def group_pending(self, name: str, group: str) -> list[Pending]: ...

    def group_destroy(self, name: str, group: str) -> bool: ...

    def configure(self, name: str, config: Config) -> None:
        """Set all of it."""

    def info(self, name: str) -> Info: ...

    def length(self, name: str) -> int: ...

    def keys(self, pattern: str) -> list[str]: ...

    def delete(self, name: str) -> bool: ...

    def waiting(self) -> int:
        """How many readers are blocked at this moment, on any stream. For tests alone."""

    def close(self) -> None: ...


# ---- what tests share -------------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; only what others do in their own time is waited for like this."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


def in_background(work: Callable[[], R]) -> Future[R]:
    """Run it in a thread; `future.result(PATIENCE_SECONDS)` gives what it returned."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def blocked(door: Door, work: Callable[[], R], *, surely: bool = True) -> Future[R]:
    """The same for a read that waits: returns once it does.

    Not `surely`: what it waits for comes by itself, and on a slow machine may be there already.
    """
    before = door.waiting()
    future = in_background(work)
    until(lambda: door.waiting() == before + 1 or future.done())
    # A reader is counted a few turns of the server's loop before it has looked for entries, and
    # where it looks decides what is new to it. Each of these takes the loop further than that.
    for _ in range(10):
        door.length("nobody")
    assert not (surely and future.done()), f"it did not wait: {future.result()!r}"
    return future


def numbered(count: int, start: int = 0) -> list[tuple[bytes, ...]]:
    """Entries that tell their number: tag t0..t9, data d<n>."""
    return [(b"t%d" % (n % 10), b"d%d" % n) for n in range(start, start + count)]


def expected(offsets: range) -> list[Entry]:
    """What a stream that holds `numbered` entries from 0 on has at these offsets."""
    return [Entry(n, b"t%d" % (n % 10), b"d%d" % n) for n in offsets]


def offsets_of(entries: Sequence[Entry | None]) -> list[int | None]:
    return [None if entry is None else entry.offset for entry in entries]
