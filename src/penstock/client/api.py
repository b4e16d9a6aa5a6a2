"""The Python API, once: `penstock.aio` shows these classes, database.py makes them block.

Contract     Each call is a plain function that checks and prepares its arguments where it is called
             (a wrong one is an InvalidError and changes nothing; entries become columns in the
             caller's thread) and gives a coroutine that does the rest. Durations are seconds,
             `math.inf` is for ever. After `close` every call is an InvalidError.
Lost broker  When the process that serves the location ends, another one takes over. Reads, and
             writes with producer and sequence, go on by themselves; any other call under way is an
             UnavailableError (it may or may not have happened), and the next one works again.
Not here     Streams (stream.py), queues (queue.py), topics (topic.py), who serves (link.py), how a
             call gets to the loop (thread.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeVar

import pyarrow as pa

from penstock.client.bulk import AsyncBulk
from penstock.client.graphs import AsyncGraphs
from penstock.client.handles import AsyncHandle, Runner
from penstock.client.link import (
    BulkErrand,
    Errand,
    GraphErrand,
    QueueErrand,
    SourceErrand,
    TopicErrand,
)
from penstock.client.publish import URI, Publish, Published, item_of, items_of
from penstock.client.queue import AsyncQueue, queue_options
from penstock.client.queuebackend import QueueBackend
from penstock.client.session import Session
from penstock.client.sources import AsyncSources
from penstock.client.stream import AsyncStream
from penstock.client.thread import Work
from penstock.client.topic import AsyncTopic
from penstock.errors import InvalidError
from penstock.queue.backoff import Backoff
from penstock.queue.state import queue_name

R = TypeVar("R")


class AsyncDatabase(AsyncHandle):
    """An open location. Use `penstock.aio.open`; close it, or use it as a context manager."""

    def __init__(self, session: Session, runner: Runner) -> None:
        self.location = session.location
        self._session = session
        self._runner = runner

    def _require(self) -> None:
        self._session.require()

    def _run(self, errand: Errand[R], *, again: bool = False, block_ms: int | None = 0) -> Work[R]:
        self._require()
        return self._runner(self._session.link.run(errand, again=again, block_ms=block_ms))

    def stream(self, name: str) -> AsyncStream:
        """A handle on a stream. Nothing is created before the first write."""
        self._require()
        return AsyncStream(self, name)

    def streams(self, pattern: str = "*") -> Work[list[str]]:
        """The names that match, in order; `*`, `?` and `[…]` as in Redis' KEYS."""
        if not isinstance(pattern, str):
            raise InvalidError(f"a pattern is text, not {type(pattern).__name__}")
        return self._run(lambda broker, _: broker.names(pattern), again=True)

    # -- queues

    def _run_queues(
        self, errand: QueueErrand[R], *, again: bool = False, block_ms: int | None = 0
    ) -> Work[R]:
        self._require()
        return self._runner(self._session.link.run_queues(errand, again=again, block_ms=block_ms))

    def queue(self, name: str) -> AsyncQueue:
        """A handle on a queue. Nothing is created: `create_queue` does that."""
        self._require()
        return AsyncQueue(self, name)

    def queues(self, pattern: str = "*") -> Work[list[str]]:
        """The names that match, in order; `*`, `?` and `[…]` as in Redis' KEYS."""
        if not isinstance(pattern, str):
            raise InvalidError(f"a pattern is text, not {type(pattern).__name__}")
        return self._run_queues(lambda queues, _: queues.names(pattern), again=True)

    def create_queue(
        self,
        name: str,
        *,
        filter: str | None = None,
        priority: str | None = None,
        lease: float = 30,
        max_lease: float = 43_200,
        max_attempts: int = 5,
        backoff: float | Backoff | None = None,
        done_retention: float = 604_800,
        start: Literal["first", "new"] = "new",
    ) -> Work[AsyncQueue]:
        """Make a queue, and a handle on it. One with the very same settings is left as it is; with
        others it is a ConflictError.

        `filter` and `priority` are SQL over headers; without a filter it takes every message that
        is not addressed to another queue. `start="first"` takes in what was published before.
        `backoff` is seconds between attempts, a penstock.Backoff, or None for the default.
        """
        queue = self.queue(name)
        if start not in ("first", "new"):
            raise InvalidError(f"start is 'first' or 'new', not {start!r}")
        options = queue_options(
            filter=filter,
            priority=priority,
            lease=lease,
            max_lease=max_lease,
            max_attempts=max_attempts,
            backoff=backoff,
            done_retention=done_retention,
        )

        async def create(queues: QueueBackend, _: int | None) -> AsyncQueue:
            await queues.create(queue._name, start=start, **options)
            return queue

        return self._run_queues(create)

    def delete_queue(self, name: str) -> Work[bool]:
        """Remove a queue and what is in it. -> whether it was there"""
        known = queue_name(name)
        return self._run_queues(lambda queues, _: queues.delete(known))

    def publish(
        self,
        payload: bytes | URI,
        headers: Mapping[str, str] | None = None,
        *,
        to: str | None = None,
        delay: float = 0,
        retention: float = 0,
        dedup_id: str | None = None,
        created_at: datetime | None = None,
        visible_at: datetime | None = None,
    ) -> Work[int]:
        """Publish a message to the queues whose filters take it, or to one; returns its id when it
        is durable.

        It can be claimed after `delay` seconds, or from `visible_at` on, and is gone after
        `retention` seconds (0: never). Within 300 seconds a message with the same `dedup_id` is the
        same one: its id is returned and nothing is published.
        """
        self._require()
        message = Publish(payload, headers, to, delay, retention, dedup_id, created_at, visible_at)
        item = item_of(message)

        async def publish(queues: QueueBackend, _: int | None) -> int:
            return (await queues.publish([item]))[0]

        return self._run_queues(publish, again=dedup_id is not None)

    def publish_many(
        self, messages: Iterable[Published] | pa.RecordBatch | pa.Table
    ) -> Work[list[int]]:
        """Publish messages in one go; returns their ids when they are durable.

        Messages are payloads, or (payload, headers), or penstock.Publish, or an Arrow batch with
        the column payload and, where they are needed, headers, to, delay, retention, dedup_id. A
        batch of some megabytes is published in parts, in order.
        """
        self._require()
        items = items_of(messages)
        if not items:
            return self._runner(_nothing())
        again = all(item.dedup_id is not None for item in items)
        return self._run_queues(lambda queues, _: queues.publish(items), again=again)

    def configure(self, *, reclaim: Literal["done", "retention"]) -> Work[None]:
        """When payload and metadata of a message go: once every queue that took it is "done" with
        it, or only with its "retention"."""
        if reclaim not in ("done", "retention"):
            raise InvalidError(f"reclaim is 'done' or 'retention', not {reclaim!r}")
        return self._run_queues(lambda queues, _: queues.configure(reclaim=reclaim))

    # -- topics

    def _run_topics(
        self, errand: TopicErrand[R], *, again: bool = False, block_ms: int | None = 0
    ) -> Work[R]:
        self._require()
        return self._runner(self._session.link.run_topics(errand, again=again, block_ms=block_ms))

    def topic(self, name: str, slots: int | None = None) -> AsyncTopic:
        """A handle on a topic. Nothing is created before the first push or tail; `slots` is how
        many parts it is shared out in then (32), and must be as it is for one that exists."""
        self._require()
        return AsyncTopic(self, name, slots)

    def topics(self, pattern: str = "*") -> Work[list[str]]:
        """The names that match, in order; `*`, `?` and `[…]` as in Redis' KEYS."""
        if not isinstance(pattern, str):
            raise InvalidError(f"a pattern is text, not {type(pattern).__name__}")
        return self._run_topics(lambda topics, _: topics.names(pattern), again=True)

    @property
    def bulk(self) -> AsyncBulk:
        """What Spark's processes use: staging, checkpoints. Not for applications."""
        return AsyncBulk(self)

    def _run_bulk(self, errand: BulkErrand[R]) -> Work[R]:
        self._require()
        return self._runner(self._session.link.run_bulk(errand, again=True))

    @property
    def sources(self) -> AsyncSources:
        """What the runners of sources use. Not for applications."""
        return AsyncSources(self)

    def _run_sources(self, errand: SourceErrand[R]) -> Work[R]:
        self._require()
        return self._runner(self._session.link.run_sources(errand, again=True))

    @property
    def graphs(self) -> AsyncGraphs:
        """What the runners of graphs use. Not for applications."""
        return AsyncGraphs(self)

    def _run_graphs(self, errand: GraphErrand[R], block_ms: int) -> Work[R]:
        self._require()
        return self._runner(self._session.link.run_graphs(errand, again=True, block_ms=block_ms))

    async def close(self) -> None:
        """Finish what is under way and release the location; a second close does nothing."""
        if self._session.begin_close():
            try:
                await self._runner(self._session.finish())
            finally:
                self._session.thread.stop()

    def __repr__(self) -> str:
        closed = " closed" if self._session.closed else ""
        return f"<penstock.{type(self).__name__} {self.location!r}{closed}>"


async def _nothing() -> list[int]:
    return []
