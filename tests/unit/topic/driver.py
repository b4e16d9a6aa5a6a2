"""A topic behind a real broker over the memory store, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.topicanswers import Acked, Polled, Refs
from penstock.broker.topics import Topics
from penstock.topic.check import check_topics
from penstock.topic.item import prepare_push
from penstock.topic.state import topic_name
from unit.broker.driver import BrokerWorld

T = topic_name("t")


class Tailer:
    """A consumer that remembers what it was handed."""

    def __init__(self, topics: Topics, name: str) -> None:
        self._topics = topics
        self.name = name
        self.token = 0
        self.parts: list[Any] = []

    async def join(self, **options: Any) -> list[int]:
        joined = await self._topics.join(T, self.name, **options)
        self.token = joined.token
        return joined.slots

    async def poll(self, count: int = 100, **options: Any) -> list[tuple[int, bytes]]:
        """-> offsets and data"""
        polled: Polled = await self._topics.poll(T, self.name, self.token, count, **options)
        self.parts = polled.parts
        return [pair for part in polled.parts for pair in zip(part.offsets, part.data, strict=True)]

    def refs(self) -> list[Refs]:
        return [Refs(part.offsets, part.epochs, part.job) for part in self.parts]

    async def ack(self, **options: Any) -> Acked:
        """Everything of the last poll."""
        return await self._topics.ack(T, self.name, self.token, self.refs(), **options)


class TopicWorld:
    def __init__(self, world: BrokerWorld, broker: Broker) -> None:
        self.world = world
        self.broker = broker
        self.topics = broker.topics

    def tailer(self, name: str) -> Tailer:
        return Tailer(self.topics, name)

    async def joined(self, name: str, **options: Any) -> Tailer:
        tailer = self.tailer(name)
        await tailer.join(**options)
        return tailer

    async def push(self, count: int, keys: Sequence[str] = ()) -> range:
        """Data is the offset."""
        stats = await self.topics.stats(T) if await self.topics.names("t") else None
        first = 0 if stats is None else stats.next
        data = [b"%d" % offset for offset in range(first, first + count)]
        spread = [keys[i % len(keys)] for i in range(count)] if keys else None
        return await self.topics.push(T, prepare_push(data, spread))

    async def pass_ms(self, ms: int) -> None:
        await self.world.pass_ms(self.broker, ms)

    async def counters(self) -> dict[str, int]:
        stats = await self.topics.stats(T)
        fields = ("inserted", "routed", "emitted", "acked", "errored", "waiting", "running")
        found = {field: getattr(stats, field) for field in fields}
        begun = found["acked"] + found["errored"] + found["running"]
        assert found["inserted"] >= found["routed"] >= found["emitted"] >= begun
        return found

    async def check(self) -> None:
        async def query(view: Any) -> Any:
            return await check_topics(view.store)

        assert await self.broker.committer.read(query) == []
