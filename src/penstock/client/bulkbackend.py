"""What a handle asks of a broker in bulk, in this process or behind a socket.

Contract     The methods of `broker.bulk.Bulk`, which is one of the two; `RemoteBulk` is the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.broker.bulk import Checkpoint, FoundRows, LogSize, Wanted
from penstock.broker.progress import Progress, Report
from penstock.codec.keys import Kind
from penstock.codec.node import Body, node_value
from penstock.log.catalogue import LogName
from penstock.log.columns import Counts
from penstock.log.staging import LEASE_MS, PayloadRow

Argument = str | bytes | int


class BulkBackend(Protocol):
    async def begin(self, *, key: bytes | None = None, lease_ms: int = LEASE_MS) -> int: ...

    async def stage(
        self,
        staging_id: int,
        writer: int,
        n: int,
        bodies: Sequence[Body],
        payloads: Sequence[PayloadRow] = (),
    ) -> int: ...

    async def reserve(
        self, staging_id: int, writer: int, count: int, to: Sequence[str] = ()
    ) -> tuple[range, int]: ...

    async def renew(self, staging_id: int) -> None: ...

    async def drop(self, staging_id: int) -> bool: ...

    async def link(
        self,
        staging_id: int,
        target: LogName | None,
        writers: Sequence[int],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range: ...

    async def checkpoint(self, lifetime_ms: int, queue: LogName | None = None) -> Checkpoint: ...

    async def renew_checkpoint(self, checkpoint_id: str, lifetime_ms: int) -> None: ...

    async def drop_checkpoint(self, checkpoint_id: str) -> None: ...

    async def log_size(self, name: LogName | None) -> LogSize: ...

    async def read(
        self, name: LogName | None, low: int, high: int, wanted: Wanted
    ) -> FoundRows: ...

    async def seek_time(self, name: LogName | None, time_ms: int) -> int: ...

    async def report(self, report: Report) -> None: ...

    async def progress(self) -> list[Progress]: ...


class Asking(Protocol):
    """What of a Remote is used here."""

    async def ask(self, *request: Argument) -> Any: ...


class RemoteBulk:
    def __init__(self, remote: Asking) -> None:
        self._ask = remote.ask

    async def begin(self, *, key: bytes | None = None, lease_ms: int = LEASE_MS) -> int:
        named = () if key is None else ("KEY", key)
        return int(await self._ask("PENSTOCK.STAGE", "BEGIN", *named, "LEASE", lease_ms))

    async def stage(
        self,
        staging_id: int,
        writer: int,
        n: int,
        bodies: Sequence[Body],
        payloads: Sequence[PayloadRow] = (),
    ) -> int:
        words: list[Argument] = [node_value(body, 0, 0) for body in bodies]
        if payloads:
            words += ["PAYLOADS", *(word for row in payloads for word in row)]
        place = (staging_id, writer, n, len(bodies))
        return int(await self._ask("PENSTOCK.STAGE", "PUT", *place, *words))

    async def reserve(
        self, staging_id: int, writer: int, count: int, to: Sequence[str] = ()
    ) -> tuple[range, int]:
        named = ("TO", *to) if to else ()
        first, end, now_ms = await self._ask(
            "PENSTOCK.STAGE", "RESERVE", staging_id, writer, count, *named
        )
        return range(first, end), now_ms

    async def renew(self, staging_id: int) -> None:
        await self._ask("PENSTOCK.STAGE", "RENEW", staging_id)

    async def drop(self, staging_id: int) -> bool:
        return bool(await self._ask("PENSTOCK.STAGE", "DROP", staging_id))

    async def link(
        self,
        staging_id: int,
        target: LogName | None,
        writers: Sequence[int],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range:
        words: list[Argument] = ["PENSTOCK.LINK", staging_id, *_target(target), "WRITERS", *writers]
        if producer is not None and sequence is not None:
            words += ["PRODUCER", producer, sequence]
        first, end = await self._ask(*words)
        return range(first, end)

    async def checkpoint(self, lifetime_ms: int, queue: LogName | None = None) -> Checkpoint:
        named = () if queue is None else ("QUEUE", queue.name)
        made = await self._ask("PENSTOCK.CHECKPOINT", "MAKE", lifetime_ms, *named)
        return Checkpoint(made[b"id"].decode(), made[b"location"].decode())

    async def renew_checkpoint(self, checkpoint_id: str, lifetime_ms: int) -> None:
        await self._ask("PENSTOCK.CHECKPOINT", "RENEW", checkpoint_id, lifetime_ms)

    async def drop_checkpoint(self, checkpoint_id: str) -> None:
        await self._ask("PENSTOCK.CHECKPOINT", "DROP", checkpoint_id)

    async def log_size(self, name: LogName | None) -> LogSize:
        return LogSize(*await self._ask("PENSTOCK.SIZE", *_target(name)))

    async def read(self, name: LogName | None, low: int, high: int, wanted: Wanted) -> FoundRows:
        batches, *counts = await self._ask(
            "PENSTOCK.READ", low, high, msgspec.json.encode(wanted), *_target(name)
        )
        return FoundRows(batches, Counts(*counts))

    async def seek_time(self, name: LogName | None, time_ms: int) -> int:
        return int(await self._ask("PENSTOCK.SEEK", time_ms, *_target(name)))

    async def report(self, report: Report) -> None:
        await self._ask("PENSTOCK.REPORT", msgspec.json.encode(report))

    async def progress(self) -> list[Progress]:
        return msgspec.json.decode(await self._ask("PENSTOCK.PROGRESS"), type=list[Progress])


def _target(name: LogName | None) -> tuple[Argument, ...]:
    if name is None:
        return ("MESSAGES",)
    return ("TOPIC" if name.kind is Kind.TOPIC else "STREAM", name.name)
