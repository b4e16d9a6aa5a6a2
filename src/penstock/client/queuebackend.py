"""What a handle asks of a broker about queues, in this process or behind a socket.

Contract     The methods of `broker.queues.Queues`, which is one of the two;
             `remote_queues.RemoteQueues` is the other. Durations are milliseconds, except
             retentions, which are seconds; `wait_ms` is 0 to not wait, None for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

from penstock.broker.queueanswers import Page, QueueInfo, QueueMessage
from penstock.codec.attempts import Attempt
from penstock.log.catalogue import LogName
from penstock.queue.item import Item
from penstock.queue.lists import Redriven
from penstock.queue.stats import Stats


class QueueBackend(Protocol):
    async def create(
        self, name: LogName, *, start: Literal["first", "new"] = "new", **options: Any
    ) -> None: ...

    async def alter(self, name: LogName, **options: Any) -> None: ...

    async def delete(self, name: LogName) -> bool: ...

    async def names(self, pattern: str = "*") -> list[str]: ...

    async def describe(self, name: LogName) -> QueueInfo: ...

    async def stats(self, name: LogName) -> Stats: ...

    async def pause(self, name: LogName) -> None: ...

    async def play(self, name: LogName) -> None: ...

    async def purge(self, name: LogName, *, failed: bool = False) -> int: ...

    async def configure(self, *, reclaim: Literal["done", "retention"]) -> None: ...

    async def publish(self, items: Sequence[Item]) -> list[int]: ...

    async def claim(
        self,
        name: LogName,
        count: int,
        *,
        wait_ms: int | None = 0,
        lease_ms: int | None = None,
        consumer: str | None = None,
    ) -> list[QueueMessage]: ...

    async def peek(self, name: LogName, count: int) -> list[QueueMessage]: ...

    async def ack(self, name: LogName, receipts: Sequence[str]) -> list[bool]: ...

    async def fail(
        self,
        name: LogName,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> list[bool]: ...

    async def extend(self, name: LogName, receipts: Sequence[str], lease_ms: int) -> list[bool]: ...

    async def release(self, name: LogName, receipts: Sequence[str]) -> list[bool]: ...

    async def done(self, name: LogName, after: int = 0) -> Page: ...

    async def failed(self, name: LogName, after: int = 0) -> Page: ...

    async def attempts(self, name: LogName, message_id: int) -> tuple[Attempt, ...]: ...

    async def redrive(self, name: LogName, ids: Collection[int] | None = None) -> Redriven: ...
