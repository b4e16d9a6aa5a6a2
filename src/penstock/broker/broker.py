"""The broker of one location: the committer, the readers' cache, and the upkeep behind them.

Contract     All of it runs on one event loop. Requests are the methods of the views, `streams`,
             `queues` and `topics`, of `sources` and `graphs`, and of `bulk`.
Not here     Threads and blocking callers (client/), wire protocols (server/), what a request
             decides (log/ and the views).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.bulk import Bulk
from penstock.broker.commit import Committer, Opener
from penstock.broker.graphs import GraphRequests
from penstock.broker.keeping import Keeping
from penstock.broker.lock import FolderLock
from penstock.broker.pagekeeping import PageKeeping
from penstock.broker.queuekeeping import QueueKeeping
from penstock.broker.queues import Queues
from penstock.broker.sourcekeeping import SourceKeeping
from penstock.broker.sources import Sources
from penstock.broker.streams import Streams
from penstock.broker.topickeeping import TopicKeeping
from penstock.broker.topics import Topics
from penstock.broker.upkeep import Upkeep
from penstock.broker.waiters import Waiters
from penstock.clock import Clock, SystemClock
from penstock.errors import FencedError, PenstockError
from penstock.log.cache import NodeCache
from penstock.log.decision import StateKey
from penstock.store.folder import Durability
from penstock.store.location import check_durability, folder_of, open_store
from penstock.store.objects import MemoryObjects, Objects, open_objects
from penstock.store.port import Store


class Broker:
    def __init__(
        self,
        committer: Committer,
        streams: Streams,
        queues: Queues,
        topics: Topics,
        bulk: Bulk,
        upkeep: Upkeep,
        lock: FolderLock | None,
    ) -> None:
        self.committer = committer
        self.streams = streams
        self.queues = queues
        self.topics = topics
        self.bulk = bulk
        self.sources = Sources(committer)
        self.graphs = GraphRequests(committer)
        self._upkeep = upkeep
        self._lock = lock

    @classmethod
    async def open(
        cls,
        location: str,
        *,
        durability: Durability = "power",
        deadline: float,
        clock: Clock | None = None,
        lock: FolderLock | None = None,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> Broker:
        clock = clock or SystemClock()
        check_durability(durability)  # before the lock, which would leave a folder behind
        folder = folder_of(location)
        if folder is not None:
            location = str(folder)  # absolute: the process may change its directory
        if lock is None and folder is not None:
            lock = FolderLock(folder)
        owner = clock.entropy(16)

        async def opener(after: int | None) -> Store:
            return await open_store(
                location, clock=clock, durability=durability, after=after, owner=owner
            )

        try:
            return await cls.start(
                opener,
                clock,
                deadline=deadline,
                lock=lock,
                on_fenced=on_fenced,
                objects=open_objects(location, sync=durability == "power"),
                location=location,
            )
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    async def start(
        cls,
        opener: Opener,
        clock: Clock,
        *,
        deadline: float,
        lock: FolderLock | None = None,
        on_fenced: Callable[[], None] = lambda: None,
        objects: Objects | None = None,
        location: str = "",
    ) -> Broker:
        """The parts, wired. The simulator comes in here, with a store of its own."""
        cache = NodeCache()
        upkeep = Upkeep(clock)
        objects = objects or MemoryObjects()

        def opened() -> None:
            cache.clear()
            upkeep.look_again()
            streams.reopened()
            queues.reopened()
            topics.reopened()
            broker.graphs.reopened()

        def changed(states: dict[StateKey, Any]) -> None:
            streams.changed(states)
            queues.changed(states)
            topics.changed(states)
            broker.graphs.changed(states)
            keeping.changed(states)
            topic_keeping.changed(states)
            pages.changed(states)

        def finished(error: PenstockError) -> None:
            streams.finished(error)
            queues.finished(error)
            topics.finished(error)
            broker.graphs.finished(error)
            if isinstance(error, FencedError):
                on_fenced()

        committer = Committer(
            opener,
            clock,
            deadline=deadline,
            on_commit=cache.forget,
            on_timers=upkeep.remind,
            on_open=opened,
            on_states=changed,
            on_finish=finished,
        )
        streams = Streams(committer, cache, Waiters(), clock)
        queues = Queues(committer, cache, clock, objects)
        topics = Topics(committer, cache, clock, queues)
        keeping = Keeping(committer, cache, upkeep.remind)
        topic_keeping = TopicKeeping(committer, topics.signs, upkeep.remind)
        pages = PageKeeping(committer, upkeep.remind)
        upkeep.add(keeping.chores)
        upkeep.add(topic_keeping.chores)
        upkeep.add(pages.chores)
        upkeep.add(QueueKeeping(cache, clock, objects, queues.fresh, upkeep.remind).chores)
        upkeep.add(SourceKeeping(upkeep.remind).chores)
        bulk = Bulk(committer, location, objects)
        broker = cls(committer, streams, queues, topics, bulk, upkeep, lock)
        await committer.open()
        upkeep.start(committer)
        return broker

    @property
    def epoch(self) -> int:
        """Which writer of its location this is; later ones have higher numbers."""
        return self.committer.epoch

    # -- the end

    async def close(self) -> None:
        self.streams.stop_watching()
        try:
            await self._upkeep.stop()
            await self.committer.close()
        finally:
            if self._lock is not None:
                self._lock.release()
