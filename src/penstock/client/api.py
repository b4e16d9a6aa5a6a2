"""The Python API, once: `penstock.aio` shows these classes, database.py makes them block.

Contract     Each call is a plain function that checks and prepares its arguments where it is called
             (a wrong one is an InvalidError and changes nothing; entries become columns in the
             caller's thread) and gives a coroutine that does the rest. Durations are seconds,
             `math.inf` is for ever. After `close` every call is an InvalidError.
Lost broker  When the process that serves the location ends, another one takes over. Reads, and
             writes with producer and sequence, go on by themselves; any other call under way is an
             UnavailableError (it may or may not have happened), and the next one works again.
Not here     Queues (queue.py), topics (topic.py), who serves (link.py), how a call gets to the loop
             (thread.py), limits of what is stored (log/, stream/, queue/, topic/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar

import pyarrow as pa

from penstock.broker.answers import StreamInfo
from penstock.client.backend import Backend
from penstock.client.bulk import AsyncBulk
from penstock.client.checks import (
    ack_ranges,
    check_bool,
    check_int,
    check_optional_int,
    check_producer,
    check_start,
    listed,
    milliseconds,
    producer_id,
)
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
from penstock.client.thread import Work
from penstock.client.topic import AsyncTopic
from penstock.errors import InvalidError
from penstock.log.batch import Entry, build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.read import Message
from penstock.queue.backoff import Backoff
from penstock.queue.state import queue_name
from penstock.stream.deliver import Start
from penstock.stream.group import group_name
from penstock.stream.groups import GroupInfo, Pending

R = TypeVar("R")

#: How many pending entries one look at a group shows, unless more are asked for.
PENDING_DEFAULT = 1000


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


class AsyncStream(AsyncHandle):
    """An append-only log with offsets 0, 1, 2, … that never change."""

    def __init__(self, database: AsyncDatabase, name: str) -> None:
        self._name = stream_name(name)
        self._database = database
        self._closed = False
        self.name = name

    def _run(self, errand: Errand[R], *, again: bool = False, block_ms: int | None = 0) -> Work[R]:
        self._require()
        return self._database._run(errand, again=again, block_ms=block_ms)

    def _run_in_row(self, errand: Errand[R], producer: bytes) -> Work[R]:
        self._require()
        database, row = self._database, (self._name, producer)
        return database._runner(database._session.link.run_in_row(errand, row))

    def _require(self) -> None:
        if self._closed:
            raise InvalidError(f"the handle on stream {self.name!r} is closed")
        self._database._require()

    # -- writing

    def write(self, data: bytes, tag: str | bytes = "", meta: bytes | None = None) -> Work[int]:
        """Append one entry; returns its offset when it is durable."""
        self._require()
        bodies = build_bodies([(tag, data) if meta is None else (tag, data, meta)])
        name = self._name

        async def offset(broker: Backend, _: int | None) -> int:
            return (await broker.write(name, bodies)).start

        return self._run(offset)

    def write_many(
        self,
        entries: Sequence[Entry] | pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Work[range]:
        """Append entries as one: all of them or none. Returns their offsets when they are durable.

        Entries are data, or (tag, data), or (tag, data, meta), or an Arrow batch with the columns
        data, tag and meta. `backlog` evicts older entries so that at least that many remain. With
        `producer` and `sequence` a repetition returns the first answer and appends nothing.
        """
        self._require()
        check_optional_int("backlog", backlog)
        by = None if producer is None else producer_id(producer)
        check_producer(by, sequence)
        bodies = build_bodies(listed(entries))

        def write(broker: Backend, _: int | None) -> Awaitable[range]:
            return broker.write(self._name, bodies, backlog=backlog, producer=by, sequence=sequence)

        return self._run(write) if by is None else self._run_in_row(write, by)

    # -- reading

    def read(
        self, offset: int, count: int = 1, *, block: float = 0, reverse: bool = False
    ) -> Work[list[Message | None]]:
        """Up to `count` entries from `offset` on; None stands for an entry that was evicted.

        Where there is nothing yet, `block` waits so many seconds for the first entry.
        """
        check_int("offset", offset)
        check_int("count", count)
        check_bool("reverse", reverse)
        if reverse and block:
            raise InvalidError("a read in reverse does not wait", hint="leave block out")
        name = self._name

        async def found(broker: Backend, left_ms: int | None) -> list[Message | None]:
            answer = await broker.read(name, offset, count, reverse=reverse, block_ms=left_ms)
            return answer.messages

        return self._run(found, again=True, block_ms=milliseconds("block", block))

    def to_arrow(self, offset: int = 0, count: int | None = None) -> Work[pa.Table]:
        """The same entries as columns: offset, time, tag, data, meta. Evicted and compacted ones
        are left out."""
        check_int("offset", offset)
        check_optional_int("count", count)

        async def living(broker: Backend, _: int | None) -> pa.Table:
            table = await broker.to_arrow(self._name, offset, count)
            data = table.column("data")
            return table.filter(data.is_valid()) if data.null_count else table

        return self._run(living, again=True)

    def info(self) -> Work[StreamInfo]:
        """first, last and length; a stream that was never written has first 0 and last -1."""
        return self._run(lambda broker, _: broker.info(self._name), again=True)

    # -- groups

    def read_group(
        self,
        group: str,
        count: int = 1,
        *,
        block: float = 0,
        retry: float | None = None,
        expire: float | None = None,
        start: Start = "first",
    ) -> Work[list[Message]]:
        """Up to `count` entries that no other member of the group gets.

        `retry`: entries that are not acknowledged come again after so many seconds, until `expire`
        seconds after their first delivery. A group that is not there yet begins at `start`.
        """
        member = group_name(group)
        check_int("count", count)
        begin = check_start("start", start)
        retry_ms = None if retry is None else milliseconds("retry", retry)
        if retry is not None and retry_ms is None:
            raise InvalidError("retry is finite", hint="leave it out: nothing comes again")
        if expire is not None and retry is None:
            raise InvalidError("expire goes with retry")
        expire_ms = None if expire is None else milliseconds("expire", expire)
        if expire_ms == 0:
            raise InvalidError("expire is more than 0 seconds", hint="leave it out for never")
        name = self._name

        async def found(broker: Backend, left_ms: int | None) -> list[Message]:
            answer = await broker.read_group(
                name,
                member,
                count,
                block_ms=left_ms,
                retry_ms=retry_ms,
                expire_ms=expire_ms,
                start=begin,
            )
            return [message for message in answer.messages if message is not None]

        # Without retry an answer that was lost is lost for good: the caller must hear of it.
        return self._run(found, again=retry is not None, block_ms=milliseconds("block", block))

    def ack(self, group: str, *offsets: int | range) -> Work[int]:
        """Acknowledge entries of a group. -> how many of them were pending"""
        member, pairs = group_name(group), ack_ranges(offsets)
        return self._run(lambda broker, _: broker.ack(self._name, member, pairs))

    def group(self, name: str) -> AsyncGroup:
        """A handle on a group of this stream. Nothing is created."""
        self._require()
        return AsyncGroup(self, name)

    def groups(self) -> Work[list[GroupInfo]]:
        """All groups of this stream."""
        return self._run(lambda broker, _: broker.groups(self._name), again=True)

    # -- the stream itself

    def evict(self, *, up_to: int | None = None, keep: int | None = None) -> Work[int]:
        """Remove entries up to an offset, inclusive, or all but the newest. -> how many went"""
        check_optional_int("up_to", up_to)
        check_optional_int("keep", keep)
        if (up_to is None) == (keep is None):
            raise InvalidError("evict takes one of up_to and keep")
        return self._run(lambda broker, _: broker.evict(self._name, up_to=up_to, keep=keep))

    def configure(
        self,
        *,
        max_count: int | None = None,
        max_bytes: int | None = None,
        max_age: float | None = None,
        compact: bool = False,
    ) -> Work[None]:
        """Set what the stream keeps, all of it: what is left out is without a limit.

        `compact` keeps the last entry of each tag.
        """
        for what, limit in (("max_count", max_count), ("max_bytes", max_bytes)):
            if limit is not None:
                check_int(what, limit, least=1)
        check_bool("compact", compact)
        max_age_ms = None if max_age is None else milliseconds("max_age", max_age)
        if max_age_ms == 0:
            raise InvalidError("max_age is more than 0 seconds", hint="leave it out for no limit")
        return self._run(
            lambda broker, _: broker.configure(
                self._name,
                max_count=max_count,
                max_bytes=max_bytes,
                max_age_ms=max_age_ms,
                compact=compact,
            )
        )

    def delete(self) -> Work[bool]:
        """Remove the stream and its groups. -> whether it was there"""
        return self._run(lambda broker, _: broker.delete(self._name))

    async def close(self) -> None:
        """Give up this handle; the stream and the location stay open."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self.name!r} of {self._database.location!r}>"


class AsyncGroup(AsyncHandle):
    """Consumers of one stream that share its entries."""

    def __init__(self, stream: AsyncStream, name: str) -> None:
        self._stream = stream
        self._group = group_name(name)
        self._closed = False
        self.name = name

    def _run(self, errand: Errand[R], *, again: bool = False) -> Work[R]:
        if self._closed:
            raise InvalidError(f"the handle on group {self.name!r} is closed")
        return self._stream._run(errand, again=again)

    def create(
        self, start: Start = "first", max_pending: int = 1000, dead: str | None = None
    ) -> Work[None]:
        """Make the group; entries that expire go to the stream `dead`, if that is given."""
        begin = check_start("start", start)
        check_int("max_pending", max_pending, least=1)
        target = None if dead is None else stream_name(dead)
        name, group = self._stream._name, self._group
        return self._run(
            lambda broker, _: broker.group_create(
                name, group, start=begin, max_pending=max_pending, dead=target
            )
        )

    def set(self, offset: Start) -> Work[None]:
        """Go on from there: entries from this offset on are new to the group."""
        at = check_start("offset", offset)
        name, group = self._stream._name, self._group
        return self._run(lambda broker, _: broker.group_set(name, group, at))

    def info(self) -> Work[GroupInfo]:
        """last_offset, ack_offset, pending, expired, skipped, max_pending, dead."""
        name, group = self._stream._name, self._group
        return self._run(lambda broker, _: broker.group_info(name, group), again=True)

    def pending(self, start: int = 0, count: int = PENDING_DEFAULT) -> Work[list[Pending]]:
        """What was delivered and not acknowledged, from an offset on."""
        check_int("start", start)
        check_int("count", count)
        name, group = self._stream._name, self._group
        return self._run(
            lambda broker, _: broker.group_pending(name, group, start, count), again=True
        )

    def destroy(self) -> Work[bool]:
        """Remove the group. -> whether it was there"""
        name, group = self._stream._name, self._group
        return self._run(lambda broker, _: broker.group_destroy(name, group))

    async def close(self) -> None:
        """Give up this handle; the group stays."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self.name!r} of {self._stream.name!r}>"
