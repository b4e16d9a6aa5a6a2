"""Bulk requests: what Spark's processes ask of a broker beside streams and queues.

Contract     All of it runs on the broker's loop. A write: `begin` (all tasks of one job share a
             key), `stage` any number of times, one `link` that makes everything visible, once. A
             read: `checkpoint` pins the state of now, so that other processes may read the store
             themselves; it lapses unless it is renewed. `seek_time` turns a time into an offset.
Messages     Staged ones take their ids with `reserve`, which also tells the time that becomes their
             `received_at`. Linking leaves the router behind; it catches up by itself.
Not here     What a step decides (log/staging.py, log/link.py), what is told about reads
             (progress.py), wire formats (server/).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec
import pyarrow as pa

from penstock.broker.commit import Committer, Shown
from penstock.broker.pagekeeping import flush_queue
from penstock.broker.progress import PROGRESS_MAX, Progress, Report, Table
from penstock.codec.keys import Kind, Scope, once_key
from penstock.codec.node import Body
from penstock.codec.scalars import I64_MAX
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName, load_name, open_target
from penstock.log.columns import Counts, column_schema, columns
from penstock.log.link import link_step
from penstock.log.producer import check_produced
from penstock.log.seek import seek_time
from penstock.log.staging import (
    LEASE_MS,
    PayloadRow,
    begin_step,
    renew_step,
    reserve_step,
    revoke_step,
    stage_step,
)
from penstock.queue.messagecolumns import message_columns, message_schema
from penstock.queue.route import leave_step
from penstock.queue.state import load_queue, queue_name
from penstock.queue.taken import METADATA
from penstock.store.objects import Objects
from penstock.topic.push import make_step

#: A checkpoint that nobody renews is gone after at most so long.
CHECKPOINT_MS_MAX = 24 * 3600 * 1000
#: One answer of a read ends where it has so much data,
READ_BYTES = 8 << 20
#: or where it looked through so much for the rows that are wanted.
LOOK_BYTES = 64 << 20


class Checkpoint(msgspec.Struct, frozen=True):
    id: str
    location: str  # of the store: where who reads it finds it


class LogSize(msgspec.Struct, frozen=True):
    log_id: int
    first: int
    next: int
    stored_bytes: int
    #: When it was made: ids begin anew in another location, so an id alone does not name a log.
    made_ms: int = 0

    @property
    def mean_bytes(self) -> float:
        """What an entry takes."""
        return self.stored_bytes / max(1, self.next - self.first)


class Wanted(msgspec.Struct, frozen=True):
    """Which rows and columns of a log a read is about."""

    log_id: int | None = None  # this one, and none that has its name by now
    tags: list[bytes] | None = None
    time_low_ms: int | None = None
    time_high_ms: int | None = None
    headers: bool = False  # of a stream: meta
    text: bool = True  # of a stream: tags as text; else as the bytes that they are
    payload: bool = True  # of messages


class FoundRows(msgspec.Struct, frozen=True):
    batches: bytes  # an Arrow stream
    count: Counts


class Bulk:
    def __init__(
        self, committer: Committer, location: str = "", objects: Objects | None = None
    ) -> None:
        self._committer = committer
        self._location = location
        self._objects = objects
        self._table = Table()
        #: What was staged since this broker serves, by staging.
        self._staged_bytes: dict[int, int] = {}

    # -- writing

    async def begin(self, *, key: bytes | None = None, lease_ms: int = LEASE_MS) -> int:
        """-> a staging; with a key the one that others began with it and that is still open"""
        (staging_id,) = await self._committer.submit(begin_step(key=key, lease_ms=lease_ms))
        return int(staging_id)

    async def stage(
        self,
        staging_id: int,
        writer: int,
        n: int,
        bodies: Sequence[Body],
        payloads: Sequence[PayloadRow] = (),
    ) -> int:
        """-> how many nodes this writer has staged"""
        step = stage_step(staging_id, writer, n, bodies, payloads)
        (count,) = await self._committer.submit(step)
        size = sum(len(body.stored) for body in bodies) + sum(len(value) for _, value in payloads)
        self._staged_bytes[staging_id] = self._staged_bytes.pop(staging_id, 0) + size
        while len(self._staged_bytes) > PROGRESS_MAX:
            del self._staged_bytes[next(iter(self._staged_bytes))]
        return int(count)

    async def reserve(
        self, staging_id: int, writer: int, count: int, to: Sequence[str] = ()
    ) -> tuple[range, int]:
        """-> ids of messages, and the time of now; the queues in `to` must exist"""

        async def known(view: Shown) -> None:
            for name in to:
                await load_queue(view, queue_name(name))

        if to:
            await self._committer.read(known)
        ((ids, now_ms),) = await self._committer.submit(reserve_step(staging_id, writer, count))
        return ids, now_ms

    async def renew(self, staging_id: int) -> None:
        await self._committer.submit(renew_step(staging_id))

    async def drop(self, staging_id: int) -> bool:
        """Give up a staging that is open. -> whether it was"""
        (dropped,) = await self._committer.submit(revoke_step(staging_id, force=True))
        return bool(dropped)

    async def link(
        self,
        staging_id: int,
        target: LogName | None,
        writers: Sequence[int],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range:
        """Make what these writers staged visible, in their order: entries of a stream, messages of
        a topic, or (None) published ones. -> their offsets; for a sequence that was linked before,
        the first ones"""
        # For ever: a query may be stopped for months and begin by repeating its last batch.
        produced = check_produced(producer, sequence, I64_MAX)
        link = link_step(staging_id, [(target or METADATA, writers)], produced=produced)
        steps = [link]
        if target is None:
            steps = [leave_step(), link]
        elif target.kind == Kind.TOPIC and not await self._linked(staging_id):
            steps = [make_step(target), link]  # its references come behind (topickeeping.py)
        *_, (offsets,) = await self._committer.submit(*steps)
        self._table.wrote(
            (producer or b"").decode("utf-8", "backslashreplace") or f"staging {staging_id}",
            "messages" if target is None else f"{target.kind.name.lower()} {target.name.decode()}",
            sequence,
            len(offsets),
            self._staged_bytes.pop(staging_id, 0),
            self._committer.now_ms(),
        )
        return offsets  # type: ignore[no-any-return]

    async def _linked(self, staging_id: int) -> bool:
        """Whether it was linked before: then nothing is made for it again."""
        key = once_key(Scope.LINK, staging_id, b"")
        return await self._committer.read(lambda view: view.store.get(key)) is not None

    # -- reading

    async def checkpoint(self, lifetime_ms: int, queue: LogName | None = None) -> Checkpoint:
        """Pin the state of now for other processes; that of a queue without operations that would
        have to be applied first."""
        _check_lifetime(lifetime_ms)
        if queue is not None:
            await flush_queue(self._committer, queue)
        checkpoint_id = await self._committer.read(
            lambda view: view.store.checkpoint(lifetime_ms=lifetime_ms)
        )
        return Checkpoint(checkpoint_id, self._location)

    async def renew_checkpoint(self, checkpoint_id: str, lifetime_ms: int) -> None:
        _check_lifetime(lifetime_ms)
        await self._committer.read(
            lambda view: view.store.renew_checkpoint(checkpoint_id, lifetime_ms=lifetime_ms)
        )

    async def drop_checkpoint(self, checkpoint_id: str) -> None:
        await self._committer.read(lambda view: view.store.drop_checkpoint(checkpoint_id))

    async def log_size(self, name: LogName | None) -> LogSize:
        """Of a stream, or (None) of the published messages; all 0 where there is none yet."""

        async def query(view: Shown) -> LogSize:
            named = (await load_name(view, name or METADATA)).row
            state = None if named is None else await open_target(view, named.id)
            if named is None or state is None:
                return LogSize(0, 0, 0, 0)
            return LogSize(
                state.log_id, state.first, state.next, state.stored_bytes, named.created_at_ms
            )

        return await self._committer.read(query)

    async def read(self, name: LogName | None, low: int, high: int, wanted: Wanted) -> FoundRows:
        """Rows of a stream, or (None) messages, from `low` on; `count.end` says how far it came."""
        if not 0 <= low <= high:
            raise InvalidError(f"offsets {low} to {high} cannot be read")

        async def query(view: Shown) -> FoundRows:
            state = await open_target(view, name or METADATA)
            count = Counts(end=low)
            batches: list[pa.RecordBatch] = []
            if state is None or wanted.log_id not in (None, state.log_id):
                return FoundRows(
                    _stream_of([], pa.schema([])), Counts(evicted=high - low, end=high)
                )
            if name is None:
                schema = message_schema(headers=wanted.headers, payload=wanted.payload)
                found = message_columns(
                    view.store, low, high, headers=wanted.headers, payload=wanted.payload,
                    objects=self._objects, log=state, now_ms=view.now_ms, count=count,
                )  # fmt: skip
            else:
                schema = column_schema(meta=wanted.headers, text=wanted.text)
                found = columns(
                    view.store, state, low, high, count=count, tags=wanted.tags,
                    time_low_ms=wanted.time_low_ms, time_high_ms=wanted.time_high_ms,
                    meta=wanted.headers, text=wanted.text, look_bytes=LOOK_BYTES,
                )  # fmt: skip
            size = 0
            async with aclosing(found):  # type: ignore[type-var]
                async for batch in found:
                    batches.append(batch)
                    size += batch.nbytes
                    if size >= READ_BYTES:
                        break
            return FoundRows(_stream_of(batches, schema), count)

        return await self._committer.read(query)

    async def seek_time(self, name: LogName | None, time_ms: int) -> int:
        """-> the first offset that was written at this time or later; the next one if none was"""

        async def query(view: Shown) -> int:
            state = await open_target(view, name or METADATA)
            return 0 if state is None else await seek_time(view.store, state, time_ms)

        return await self._committer.read(query)

    # -- what is told

    async def report(self, report: Report) -> None:
        self._table.add(report, self._committer.now_ms())

    async def progress(self) -> list[Progress]:
        return self.told()

    def told(self) -> list[Progress]:
        """Of reads and writes, those that were told last at the end."""
        return self._table.progress()


def _stream_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _check_lifetime(lifetime_ms: int) -> None:
    if not 0 < lifetime_ms <= CHECKPOINT_MS_MAX:
        raise InvalidError(f"a checkpoint lives 1 to {CHECKPOINT_MS_MAX:,} ms, not {lifetime_ms:,}")
