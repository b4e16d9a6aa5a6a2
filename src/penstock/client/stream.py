"""The Python API of streams, once: `penstock.aio` shows these classes, database.py makes them
block.

Contract     As api.py. A stream that was never written is empty, not an error. A write with
             producer and sequence may be sent again, and gives its first answer then; those of one
             producer go one after the other.
Not here     Entries as columns (log/batch.py), limits of what is stored (log/, stream/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from penstock.broker.answers import StreamInfo
from penstock.client.backend import Backend
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
from penstock.client.handles import AsyncHandle
from penstock.client.link import Errand
from penstock.client.thread import Work
from penstock.errors import InvalidError
from penstock.log.batch import Entry, build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.read import Message
from penstock.stream.deliver import Start
from penstock.stream.group import group_name
from penstock.stream.groups import GroupInfo, Pending

if TYPE_CHECKING:
    from penstock.client.api import AsyncDatabase

R = TypeVar("R")

#: How many pending entries one look at a group shows, unless more are asked for.
PENDING_DEFAULT = 1000


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
