"""The Python handle: `penstock.open(location)`.

Contract     The names of the public API. Synchronous; every call may be made from any thread. Each
             one is its namesake of api.py, run on the handle's own loop and waited for: there is no
             second definition, and the types are those of the first.
Not here     Arguments and what a call does (api.py, queue.py), queues (blockingqueue.py), who
             serves (link.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from penstock.broker.broker import Broker
from penstock.client.api import AsyncDatabase
from penstock.client.blocking import Blocking, blocking, blocking_as
from penstock.client.blockingqueue import Queue
from penstock.client.blockingtopic import Topic
from penstock.client.bulk import Bulk
from penstock.client.graphs import Graphs
from penstock.client.queue import AsyncQueue
from penstock.client.session import DEADLINE_SECONDS, Serving, Session, prepare
from penstock.client.sources import Sources
from penstock.client.stream import AsyncGroup, AsyncStream
from penstock.client.thread import LoopThread, Work
from penstock.errors import InvalidError
from penstock.store.folder import Durability

R = TypeVar("R")


class Group(Blocking[AsyncGroup]):
    """Consumers of one stream that share its entries."""

    def __init__(self, inner: AsyncGroup, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.name = inner.name

    create = blocking(AsyncGroup.create)
    set = blocking(AsyncGroup.set)
    info = blocking(AsyncGroup.info)
    pending = blocking(AsyncGroup.pending)
    destroy = blocking(AsyncGroup.destroy)


class Stream(Blocking[AsyncStream]):
    """An append-only log with offsets 0, 1, 2, … that never change."""

    def __init__(self, inner: AsyncStream, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.name = inner.name

    write = blocking(AsyncStream.write)
    write_many = blocking(AsyncStream.write_many)
    read = blocking(AsyncStream.read)
    to_arrow = blocking(AsyncStream.to_arrow)
    info = blocking(AsyncStream.info)
    read_group = blocking(AsyncStream.read_group)
    ack = blocking(AsyncStream.ack)
    groups = blocking(AsyncStream.groups)
    evict = blocking(AsyncStream.evict)
    configure = blocking(AsyncStream.configure)
    delete = blocking(AsyncStream.delete)

    def group(self, name: str) -> Group:
        """A handle on a group of this stream. Nothing is created."""
        return Group(self._inner.group(name), self._thread)


def _queue(database: Database, found: AsyncQueue) -> Queue:
    return Queue(found, database._thread)


class Database(Blocking[AsyncDatabase]):
    """An open location. Use `penstock.open`; close it, or use it as a context manager."""

    def __init__(self, session: Session) -> None:
        super().__init__(AsyncDatabase(session, _as_it_is), session.thread)
        self.location = session.location
        self._session = session

    def stream(self, name: str) -> Stream:
        """A handle on a stream. Nothing is created before the first write."""
        return Stream(self._inner.stream(name), self._thread)

    streams = blocking(AsyncDatabase.streams)

    def queue(self, name: str) -> Queue:
        """A handle on a queue. Nothing is created: `create_queue` does that."""
        return Queue(self._inner.queue(name), self._thread)

    create_queue = blocking_as(AsyncDatabase.create_queue, _queue)
    delete_queue = blocking(AsyncDatabase.delete_queue)
    queues = blocking(AsyncDatabase.queues)
    publish = blocking(AsyncDatabase.publish)
    publish_many = blocking(AsyncDatabase.publish_many)
    configure = blocking(AsyncDatabase.configure)

    def topic(self, name: str, slots: int | None = None) -> Topic:
        """A handle on a topic. Nothing is created before the first push or tail; `slots` is how
        many parts it is shared out in then (32), and must be as it is for one that exists."""
        return Topic(self._inner.topic(name, slots), self._thread)

    topics = blocking(AsyncDatabase.topics)

    @property
    def bulk(self) -> Bulk:
        """What Spark's processes use: staging, checkpoints. Not for applications."""
        return Bulk(self._inner.bulk, self._thread)

    @property
    def sources(self) -> Sources:
        """What the runners of sources use. Not for applications."""
        return Sources(self._inner.sources, self._thread)

    @property
    def graphs(self) -> Graphs:
        """What the runners of graphs use. Not for applications."""
        return Graphs(self._inner.graphs, self._thread)

    def close(self) -> None:
        """Finish what is under way and release the location; a second close does nothing."""
        self._session.close()

    def _require(self) -> Broker:
        """The broker, where it is in this process: for tests and tools of this project."""
        broker = self._session.link.broker
        if broker is None:
            raise InvalidError(f"{self.location} is not served by this process")
        return broker


def _as_it_is(work: Work[R], /) -> Work[R]:
    return work


def open(  # the public name; the builtin is not used in this file
    location: str | Path,
    *,
    durability: Durability = "power",
    deadline: float = DEADLINE_SECONDS,
    broker: Serving = "auto",
) -> Database:
    """Open a location: a folder, s3://bucket/prefix, memory://name, or penstock://host:port.

    The first process that opens a folder serves it, the others connect to it, and when it ends one
    of them takes its place. With `broker="outside"` this process never serves: where nobody does, a
    process of its own is started, which ends when it is not used. A bucket is served by `penstock
    serve`, or opened by one process alone.

    `durability="os"` skips the waiting for the disk: acknowledged data survives a killed process
    but not a power cut. `deadline` is how many seconds a call takes at most before it is an
    UnavailableError.
    """
    session = prepare(location, durability=durability, deadline=deadline, broker=broker)
    try:
        session.thread.call(session.link.open())
    except BaseException:
        session.thread.stop()
        raise
    session.opened()
    return Database(session)
