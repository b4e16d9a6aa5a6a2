"""The Python door: `penstock.open`, where this process serves the folder or another one does.

Contract     The public names only, but for `waiting_at`: how many readers are blocked is nothing
             that a user can ask, and a test that guesses it by sleeping is a test that flickers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import penstock
from acceptance.rcp11.doors import (
    Config,
    Edges,
    Entry,
    FullEntry,
    Group,
    Info,
    Pending,
    Start,
)
from penstock.client import session as sessions

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PythonDoor:
    def __init__(self, folder: Path, kind: str, waiting: Callable[[], int]) -> None:
        self.kind = kind
        self.db = penstock.open(folder)
        self.waiting = waiting

    # -- writing

    def write(self, name: str, tag: bytes, data: bytes) -> int:
        offset: int = self.db.stream(name).write(data, tag=tag)
        return offset

    def write_many(
        self,
        name: str,
        entries: Sequence[tuple[bytes, ...]],
        *,
        backlog: int | None = None,
        producer: tuple[str, int] | None = None,
    ) -> range:
        by, sequence = producer or (None, None)
        offsets: range = self.db.stream(name).write_many(
            entries, backlog=backlog, producer=by, sequence=sequence
        )
        return offsets

    # -- reading

    def read(
        self,
        name: str,
        offset: int,
        count: int,
        *,
        block_ms: int | None = 0,
        reverse: bool = False,
    ) -> list[Entry | None]:
        found = self.db.stream(name).read(offset, count, block=_seconds(block_ms), reverse=reverse)
        return [None if message is None else _entry(message) for message in found]

    def read_full(self, name: str, offset: int, count: int) -> list[FullEntry | None]:
        return [
            None
            if message is None
            else FullEntry(*_entry(message), _ms(message.time), message.meta)
            for message in self.db.stream(name).read(offset, count)
        ]

    def read_withinfo(
        self, name: str, offset: int, count: int, *, block_ms: int | None = 0
    ) -> tuple[Edges, list[Entry | None]]:
        """In Python the edges are asked for."""
        found = self.read(name, offset, count, block_ms=block_ms)
        info = self.info(name)
        return Edges(info.first, info.last), found

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
        options = _given(
            retry=None if retry_ms is None else retry_ms / 1000,
            expire=None if expire_ms is None else expire_ms / 1000,
            start=start,
        )
        found = self.db.stream(name).read_group(group, count, block=_seconds(block_ms), **options)
        return [_entry(message) for message in found]

    # -- groups

    def ack(self, name: str, group: str, *offsets: int | range) -> int:
        count: int = self.db.stream(name).ack(group, *offsets)
        return count

    def group_create(
        self,
        name: str,
        group: str,
        *,
        start: Start | None = None,
        max_pending: int | None = None,
        dead: str | None = None,
    ) -> None:
        options = _given(start=start, max_pending=max_pending, dead=dead)
        self.db.stream(name).group(group).create(**options)

    def group_set(self, name: str, group: str, offset: Start) -> None:
        self.db.stream(name).group(group).set(offset)

    def group_info(self, name: str, group: str) -> Group:
        return _group(self.db.stream(name).group(group).info())

    def groups(self, name: str) -> list[Group]:
        return [_group(found) for found in self.db.stream(name).groups()]

    def group_pending(self, name: str, group: str) -> list[Pending]:
        return [
            Pending(found.offset, found.retry_ms, found.expire_ms, found.deliveries)
            for found in self.db.stream(name).group(group).pending()
        ]

    def group_destroy(self, name: str, group: str) -> bool:
        existed: bool = self.db.stream(name).group(group).destroy()
        return existed

    # -- the stream itself

    def evict(self, name: str, *, up_to: int | None = None, keep: int | None = None) -> int:
        count: int = self.db.stream(name).evict(**_given(up_to=up_to, keep=keep))
        return count

    def configure(self, name: str, config: Config) -> None:
        self.db.stream(name).configure(
            max_count=config.max_count,
            max_bytes=config.max_bytes,
            max_age=None if config.max_age_ms is None else config.max_age_ms / 1000,
            compact=config.compact,
        )

    def info(self, name: str) -> Info:
        info = self.db.stream(name).info()
        config = Config(
            info.config.max_count,
            info.config.max_bytes,
            info.config.max_age_ms,
            info.config.compact,
        )
        return Info(
            info.first, info.last, info.length, info.bytes, info.created_ms, info.groups, config
        )

    def length(self, name: str) -> int:
        count: int = self.db.stream(name).info().length
        return count

    def keys(self, pattern: str) -> list[str]:
        names: list[str] = self.db.streams(pattern)
        return names

    def delete(self, name: str) -> bool:
        existed: bool = self.db.stream(name).delete()
        return existed

    def close(self) -> None:
        self.db.close()


def waiting_at(folder: Path) -> int:
    """How many readers are blocked at the broker of this folder, which is in this process."""
    session = next(s for s in sessions._sessions if s.location == str(folder))
    broker = session.link.broker
    assert broker is not None, "another process serves this folder"
    streams = broker.streams

    async def count() -> int:
        return len(streams._turns) + len(streams._waiters)

    return session.thread.call(count())


def _given(**options: object) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _seconds(block_ms: int | None) -> float:
    return math.inf if block_ms is None else block_ms / 1000


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _entry(message: Any) -> Entry:
    return Entry(message.offset, message.tag.encode("utf-8", "surrogateescape"), message.data)


def _group(found: Any) -> Group:
    return Group(
        found.name,
        found.last_offset,
        found.ack_offset,
        found.pending,
        found.expired,
        found.skipped,
        found.max_pending,
        found.dead,
    )
