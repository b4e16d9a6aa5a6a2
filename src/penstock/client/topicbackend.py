"""What a handle asks of a broker about topics, in this process or behind a socket.

Contract     The methods of `broker.topics.Topics`, which is one of the two;
             `remote_topics.RemoteTopics` is the other. Durations are milliseconds; `wait_ms` is 0
             to not wait, None for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from penstock.broker.topicanswers import (
    Acked,
    Beaten,
    ConsumerInfo,
    Effect,
    Failure,
    Joined,
    Polled,
    Refs,
    Released,
    Replay,
    ShardInfo,
    TopicError,
    TopicInfo,
    TopicStats,
)
from penstock.log.catalogue import LogName
from penstock.topic.item import PreparedPush


class TopicBackend(Protocol):
    async def push(
        self, name: LogName, push: PreparedPush, *, create: bool = True, slots: int | None = None
    ) -> range: ...

    async def join(
        self, name: LogName, consumer: str, *, heartbeat_ms: int = 10_000, slots: int | None = None
    ) -> Joined: ...

    async def beat(self, name: LogName, consumer: str, token: int) -> Beaten: ...

    async def poll(
        self,
        name: LogName,
        consumer: str,
        token: int,
        count: int,
        *,
        wait_ms: int | None = 0,
        done: Sequence[Refs] = (),
    ) -> Polled: ...

    async def ack(
        self,
        name: LogName,
        consumer: str,
        token: int,
        done: Sequence[Refs] = (),
        *,
        failures: Sequence[Failure] = (),
        max_attempts: int = 1,
        tx: Sequence[Effect] = (),
    ) -> Acked: ...

    async def release(
        self, name: LogName, consumer: str, token: int, given: Sequence[Refs]
    ) -> Released: ...

    async def leave(self, name: LogName, consumer: str, token: int) -> bool: ...

    async def pause(self, name: LogName, *, wait_ms: int = 10_000) -> bool: ...

    async def play(self, name: LogName) -> None: ...

    async def rebalance(self, name: LogName) -> int: ...

    async def replay(
        self,
        name: LogName,
        start: int,
        end: int | None = None,
        *,
        unit: Literal["offset", "time"] = "offset",
    ) -> Replay: ...

    async def configure(
        self,
        name: LogName,
        *,
        max_count: int | None,
        max_bytes: int | None,
        max_age_ms: int | None,
    ) -> None: ...

    async def delete(self, name: LogName) -> bool: ...

    async def names(self, pattern: str = "*") -> list[str]: ...

    async def describe(self, name: LogName) -> TopicInfo: ...

    async def stats(self, name: LogName) -> TopicStats: ...

    async def consumers(self, name: LogName) -> list[ConsumerInfo]: ...

    async def shards(self, name: LogName) -> list[ShardInfo]: ...

    async def errors(
        self, name: LogName, start: int = 0, count: int = 1000, *, job: int = 0
    ) -> list[TopicError]: ...
