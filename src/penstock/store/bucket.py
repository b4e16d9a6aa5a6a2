"""A store in a bucket (or in memory): SlateDB with its WAL.

Contract     See port.py. A commit is durable when SlateDB's WAL object is written. SlateDB shows
             a write before that, so all reads ask for durable rows only.
Fencing      SlateDB writes WAL objects with put-if-absent: a fenced writer's flush fails, so it
             cannot acknowledge. Reads check the manifest's writer epoch, at most a second old.
Owners       Each opening ends with a row that names its owner, before anything can be committed.
             SlateDB raises the epoch at the beginning of an opening, which may fail afterwards, so
             a newer epoch alone says nothing. `after` is still ours if that row is: then nobody
             else finished an opening since. The row is read by a reader, which fences nobody, and
             once more if the epoch was raised by others before we had ours: whoever finished in
             between makes this opening a FencedError.
Chain        One row per commit, beside the head row, in the commit itself. Opening demands that
             they are dense and linked, from the oldest that the head row speaks of: a WAL object
             that is missing or empty in the middle is otherwise read as "nothing there". Rows
             that SlateDB has in SSTs are pruned, but for the newest of those.
Tables       Measured before SlateDB opens them (tables.py), also when a handle was lost over one
             that was cut meanwhile and the location is opened again.
Limit        If the newest WAL objects vanish from the bucket, nothing that is left speaks of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

import xxhash

from penstock.clock import Clock
from penstock.codec.chain import (
    NO_HASH,
    ChainRecord,
    chain_hash,
    decode_chain,
    encode_batch,
    encode_chain,
)
from penstock.codec.keys import CHAIN_HEAD, chain_key, prefix_end
from penstock.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
)
from penstock.store.port import Head, Row, Writes
from penstock.store.slate import (
    COMMON,
    Place,
    SlateRows,
    make_settings,
    read_row,
    tables_of,
    writer_epoch,
)
from penstock.store.tables import Require

#: An epoch that was read this long ago still counts.
EPOCH_SECONDS = 1.0
#: A row that every opening writes, to see whether it owns the epoch, and to say whose it is.
_OPENED = chain_key(0)
#: How many chain rows one commit prunes at most.
PRUNE_ROWS = 100
CLOSE_SECONDS = 30.0


class BucketStore:
    def __init__(
        self, rows: SlateRows, epoch: int, head: ChainRecord, *, seq: int, clock: Clock
    ) -> None:
        self.epoch = epoch
        self._rows = rows
        self._head = head
        self._clock = clock
        self._oldest = max(head.oldest, 1)
        #: (sequence number, n) of the commits whose chain rows are there, those before this opening
        #: as one.
        self._rows_of: deque[tuple[int, int]] = deque([(seq, head.n)] if head.n else [])
        self._in_ssts = 0  # commits up to this one are in SSTs
        self._verified_at = -EPOCH_SECONDS
        self._closed = False

    @classmethod
    async def open(
        cls,
        place: Place,
        *,
        clock: Clock,
        after: int | None = None,
        create: bool = True,
        owner: bytes = b"",
        require_tables: Require | None = None,
    ) -> BucketStore:
        before = await writer_epoch(place)
        if not create and before == 0:
            place.release()
            raise NotFoundError("there is no Penstock location", hint="check the location")
        # An opening may fail after it raised the epoch: who finished the last one?
        if after is not None and before != after:
            opened = await read_row(place, _OPENED) if before > after else None
            if not _is_opened_by(opened, owner):
                place.release()
                raise FencedError(f"another process took over epoch {after}")
        if require_tables is not None:
            try:
                await require_tables(partial(tables_of, place))
            except BaseException:
                place.release()
                raise
        try:
            return await cls._open(place, before, clock=clock, after=after, owner=owner)
        except FencedError as error:
            if await writer_epoch(place) > before + 1:
                raise
            # SlateDB met a WAL object where it wanted to write its own, and nobody else is there.
            raise CorruptError("a WAL object is missing: later ones are there") from error

    @classmethod
    async def _open(
        cls, place: Place, before: int, *, clock: Clock, after: int | None, owner: bytes
    ) -> BucketStore:
        rows = await SlateRows.open(place, make_settings(COMMON), durable_only=True)
        try:
            value = await rows.get(CHAIN_HEAD)
            head = decode_chain(value) if value is not None else ChainRecord(0, 0, NO_HASH, NO_HASH)
            await _verify_chain(rows, head)
            epoch, _ = await rows.manifest()
            others = after is not None and epoch > before + 1
            if others and not _is_opened_by(await rows.get(_OPENED), owner):
                raise FencedError(f"another process took over epoch {after}")
            # The epoch that was read is ours only if nobody came in between: this row becomes
            # durable only then.
            opened = ChainRecord(0, clock.wall_ms(), NO_HASH, _owner_hash(owner))
            seq = await rows.write([(_OPENED, encode_chain(opened))])
            await rows.flush_wal()
        except BaseException:
            rows.forget()
            raise
        return cls(rows, epoch, head, seq=seq, clock=clock)

    def head(self) -> Head:
        return Head(self._head.n, self._head.hash, self._head.time_ms)

    async def get(self, key: bytes) -> bytes | None:
        return await self._rows.get(key)

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        return await self._rows.floor(key, low=low)

    def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        return self._rows.scan(low, high, reverse=reverse, batch_rows=batch_rows)

    async def commit(
        self,
        n: int,
        writes: Writes,
        *,
        time_ms: int,
        epoch: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self._check()
        if epoch != self.epoch:
            raise FencedError(f"this store belongs to epoch {self.epoch}, not {epoch}")
        if n != self._head.n + 1:
            raise InvalidError(f"commit {n} does not follow commit {self._head.n}")
        body = encode_batch(writes)
        previous = self._head.hash
        pruned = range(self._oldest, min(self._in_ssts, self._oldest + PRUNE_ROWS))
        oldest = max(self._oldest, pruned.stop)
        digest = chain_hash(previous, n, time_ms, body)
        chain = ChainRecord(n, time_ms, previous, digest, oldest)
        record = encode_chain(chain)
        rows = [*writes, (CHAIN_HEAD, record), (chain_key(n), record)]
        told = None if meanwhile is None else asyncio.get_running_loop().call_soon(meanwhile)
        seq = await self._rows.write([*rows, *((chain_key(old), None) for old in pruned)])
        await self._rows.flush_wal()
        if told is not None:
            told.cancel()  # a bucket in memory may not let the loop go on in between
        self._head, self._oldest = chain, oldest
        self._rows_of.append((seq, n))
        await self.verify()  # also learns what may be pruned; asks the bucket once a second

    async def verify(self) -> None:
        self._check()
        now = self._clock.monotonic()
        if now - self._verified_at < EPOCH_SECONDS:
            return
        epoch, last_seq = await self._rows.manifest()
        if epoch != self.epoch:
            raise FencedError(f"another process opened the store, epoch {epoch}")
        self._verified_at = now
        while self._rows_of and self._rows_of[0][0] <= last_seq:
            self._in_ssts = self._rows_of.popleft()[1]

    async def checkpoint(self, *, lifetime_ms: int) -> str:
        await self._rows.flush_memtable()
        return await self._rows.create_checkpoint(lifetime_ms=lifetime_ms)

    async def renew_checkpoint(self, checkpoint_id: str, *, lifetime_ms: int) -> None:
        await self._rows.renew_checkpoint(checkpoint_id, lifetime_ms=lifetime_ms)

    async def drop_checkpoint(self, checkpoint_id: str) -> None:
        await self._rows.drop_checkpoint(checkpoint_id)

    def _check(self) -> None:
        if self._closed:
            raise InvalidError("the store is closed")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._rows.close(wal=True)
        except (TimeoutError, PenstockError):
            pass  # fenced or out of reach: everything acknowledged is in the WAL
        finally:
            self._rows.forget()

    async def abandon(self) -> None:
        self._closed = True
        self._rows.forget()


def _owner_hash(owner: bytes) -> bytes:
    return xxhash.xxh3_128_digest(owner) if owner else NO_HASH


def _is_opened_by(value: bytes | None, owner: bytes) -> bool:
    """Whether this is the row of an opening of this owner. Without a name nobody is the same."""
    return bool(owner) and value is not None and decode_chain(value).hash == _owner_hash(owner)


async def _verify_chain(rows: SlateRows, head: ChainRecord) -> None:
    """Demand every commit from the oldest that was not pruned, linked, up to the head."""
    last: ChainRecord | None = None
    async for batch in rows.scan(chain_key(1), prefix_end(CHAIN_HEAD)):
        for _, value in batch:
            record = decode_chain(value)
            expected = last.n + 1 if last else head.oldest
            if record.n != expected or (last and record.previous != last.hash):
                raise CorruptError(
                    f"commit {expected} is missing or was replaced: the next one that is there is "
                    f"{record.n}. A WAL object may be lost"
                )
            last = record
    if last != (head if head.n else None):
        raise CorruptError(
            f"the chain ends at commit {last.n if last else 0}, the head row says {head.n}"
        )
