"""A store in a folder: SlateDB with its WAL off, behind a journal of our own.

Contract     See port.py. A commit is durable when its journal record is (journal.py), before
             SlateDB has it; reads see it only after that. Survives kill -9 and power loss
             (durability="power"), or kill -9 alone (durability="os", for tests).
Order        write record, fdatasync, look at the epoch, acknowledge. SlateDB gets the commit a
             moment later, many small ones as one batch, and before any read that could miss it: a
             read of rows that no waiting commit wrote goes first.
             Whoever takes over: opening.py.
Coverage     A segment is let go when SlateDB has written everything in it to objects and these
             are durable: synchronous by inode flags, or by syncfs where the file system has none.
Threads      The journal belongs to one daemon thread. A disk that hangs hangs that thread, not
             the event loop; the caller's deadline ends the wait. (A read looks at the epoch's name
             on the loop: the kernel has that at hand, except on network file systems that hang.)
             Who still waits for SlateDB when the store is abandoned gets an UnavailableError, never
             a CancelledError.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from penstock.clock import Clock
from penstock.codec.chain import (
    NO_HASH,
    ChainRecord,
    chain_hash,
    encode_batch,
    encode_chain,
)
from penstock.codec.keys import CHAIN_HEAD
from penstock.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.store import disk, guard
from penstock.store.journal import Journal
from penstock.store.opening import Opening, watch_once
from penstock.store.port import Head, RefusedError, Row, Writes
from penstock.store.slate import SlateRows

Durability = Literal["power", "os"]

#: Commits wait to be given to SlateDB together until they have this size, or for so long.
APPLY_BYTES = 128 << 10
APPLY_SECONDS = 0.02
#: With this much waiting, a commit waits for SlateDB.
WAITING_BYTES = 8 << 20
#: A read looks among up to so many waiting rows for those that it must not miss.
LOOKED_MAX = 4096
#: More segments than this waiting to be covered: ask SlateDB to flush now.
FULL_SEGMENTS = 6
#: How often SlateDB alone may be fenced while it is opened, before that counts as damage.
OPENINGS = 2
#: How long a close waits for SlateDB to flush; the journal keeps what it did not.
CLOSE_SECONDS = 30.0
#: How soon a new manifest is known, at the latest.
WATCH_SECONDS = 0.25
#: Where folders cannot be made synchronous, the file system is synced this often.
SYNC_SECONDS = 10.0
#: How often manifests are looked for that are not needed any more.
COLLECT_SECONDS = 10.0


def require_location(folder: Path) -> None:
    """Raise unless there is a store in this folder."""
    if not folder.exists():
        raise NotFoundError(f"{folder}: there is no such folder", hint="check the path")
    if not (folder / "journal").is_dir():
        raise NotFoundError(f"{folder} is not a Penstock location", hint="check the path")


class FolderStore:
    def __init__(
        self,
        folder: Path,
        rows: SlateRows,
        journal: Journal,
        opening: Opening,
        *,
        clock: Clock,
    ) -> None:
        thread, uncovered = opening.thread, opening.recovered.records
        self.epoch = journal.epoch.number
        self._folder = folder
        self._rows = rows
        self._journal = journal
        self._head = opening.head or ChainRecord(0, 0, NO_HASH, NO_HASH)
        self._clock = clock
        self._sync = opening.sync
        self._synced = opening.synced
        self._thread = thread
        thread.chore = journal.mark
        #: Hashes, 16 bytes each, of the commits up to the head that may not be in objects yet.
        self._uncovered = bytearray().join(record.chain.hash for record in uncovered)
        #: What is acknowledged and not given to SlateDB yet, and what it is being given.
        self._waiting: dict[bytes, bytes | None] = {}
        self._under_way: dict[bytes, bytes | None] = {}
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        #: SlateDB's one write under way; the next begins when it is done.
        self._applying: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._applying.set_result(None)
        self._keeper: asyncio.Task[None] | None = None
        self._syncer: asyncio.Task[None] | None = None
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        self._collector = opening.collector
        self._gatherer = asyncio.get_running_loop().create_task(self._collect_often())
        self._closed = False
        if not self._synced:
            self._syncer = asyncio.get_running_loop().create_task(self._sync_often())
        if uncovered:
            self._keep()

    # -- opening

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        clock: Clock,
        durability: Durability = "power",
        create: bool = True,
        after: int | None = None,
        owner: bytes = b"",
    ) -> FolderStore:
        if durability not in ("power", "os"):
            raise InvalidError(f"durability is 'power' or 'os', not {durability!r}")
        if not create:
            require_location(folder)
        sync = durability == "power"
        if not sync:
            warnings.warn(
                f"{folder}: durability='os': a power cut loses acknowledged data",
                RuntimeWarning,
                stacklevel=2,
            )
        try:
            return await cls._open(folder, clock=clock, sync=sync, after=after, owner=owner)
        except OSError as error:
            raise UnavailableError(f"{folder}: {error.strerror or error}") from error

    @classmethod
    async def _open(
        cls, folder: Path, *, clock: Clock, sync: bool, after: int | None, owner: bytes
    ) -> FolderStore:
        for _ in range(OPENINGS):
            opening = Opening(folder, clock=clock, sync=sync)
            try:
                rows, journal = await opening.run(after=after, owner=owner)
                return cls(folder, rows, journal, opening, clock=clock)
            except BaseException as error:
                if not opening.give_up(error):
                    raise
                fenced = error
        raise CorruptError(f"{folder}: the store's epochs are damaged") from fenced

    # -- reads

    def head(self) -> Head:
        return Head(self._head.n, self._head.hash, self._head.time_ms)

    async def get(self, key: bytes) -> bytes | None:
        self._check()
        self._raise_failure()
        for late in (self._waiting, self._under_way):
            if key in late:
                return late[key]
        with self._judging():
            return await self._rows.get(key)

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        self._check()
        self._raise_failure()
        latest = max(self._late(low, key + b"\0"), default=b"")
        with self._judging():
            row = await self._rows.floor(key, low=low)
        if latest and latest >= (low if row is None else row[0]):
            await self._applied()  # it hides, changes or deletes what was found
            with self._judging():
                row = await self._rows.floor(key, low=low)
        return row

    async def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        self._check()
        self._raise_failure()
        if self._late(low, high):
            await self._applied()
        scan = self._rows.scan(low, high, reverse=reverse, batch_rows=batch_rows)
        with self._judging():
            async for rows in scan:
                yield rows

    def _late(self, low: bytes, high: bytes) -> list[bytes]:
        """The keys low <= key < high that SlateDB may not have yet; `high` alone where it is not
        worth looking."""
        late = (self._waiting, self._under_way)
        if sum(map(len, late)) > LOOKED_MAX:
            return [high]
        return [key for rows in late for key in rows if low <= key < high]

    async def verify(self) -> None:
        self._check()
        self._journal.epoch.check()

    # -- the commit

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
        chain = ChainRecord(n, time_ms, previous, chain_hash(previous, n, time_ms, body))
        self._raise_failure()  # the store failed since: say so before anything is written
        try:
            # Not before: whoever has the interpreter's lock holds up what this thread has to do.
            syncing = None if meanwhile is None else self._thread.teller(meanwhile)
            await self._thread.run(partial(self._journal.append, chain, body, syncing))
        except RefusedError:
            self._keep()  # segments that are covered by now would make room
            raise
        if self._closed:
            raise UnavailableError("the store was closed while it committed")
        self._head = chain
        self._uncovered += chain.hash
        self._waiting.update(writes)
        self._waiting[CHAIN_HEAD] = encode_chain(chain)
        self._waiting_bytes += len(body)
        if self._waiting_bytes >= WAITING_BYTES:
            await self._applied()
        elif self._waiting_bytes >= APPLY_BYTES:
            self._apply_soon(0)
        else:
            self._apply_soon(APPLY_SECONDS)
        if self._journal.wants_care:
            self._keep()

    # -- giving commits to SlateDB

    def _apply_soon(self, seconds: float) -> None:
        if self._timer is not None and seconds:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._apply)

    def _apply(self) -> None:
        """Begin to give what waits to SlateDB, unless it is still busy with what came before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting or not self._applying.done() or self._closed:
            return
        if self._applying.cancelled() or self._applying.exception() is not None:
            return  # a batch is missing there: nothing may follow it
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        self._under_way = waiting
        self._applying = asyncio.ensure_future(self._write(waiting, self._head.n))
        self._applying.add_done_callback(self._look_at)

    async def _write(self, rows: dict[bytes, bytes | None], n: int) -> None:
        await self._rows.write(rows.items(), seqnum=n)

    def _look_at(self, applied: asyncio.Future[None]) -> None:
        """What came meanwhile goes next. A failure is raised to the next call."""
        if not applied.cancelled() and applied.exception() is None:
            if applied is self._applying:  # else a reader began the next one before we were called
                self._under_way = {}
            self._apply()

    async def _applied(self) -> None:
        """Wait until SlateDB has every acknowledged commit. Giving up the wait stops nothing."""
        self._check()
        while self._waiting or not self._applying.done():
            self._apply()
            await asyncio.wait([self._applying])  # which stays as it is when the wait is cancelled
            self._raise_failure()
            if self._closed:
                raise UnavailableError("the store was closed meanwhile")
        self._raise_failure()

    def _raise_failure(self) -> None:
        """What the last write to SlateDB raised. A cancelled one never cancels who waits for it."""
        if not self._applying.done():
            return  # another one is on its way by now
        if self._applying.cancelled():
            raise UnavailableError("the store was closed meanwhile")
        if self._applying.exception() is not None:
            with self._judging():
                self._applying.result()  # whose traceback does not grow with each who is told

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Around SlateDB: what it calls fenced is so only if the journal's epoch is lost."""
        try:
            yield
        except FencedError as error:
            # Whoever takes over takes the journal's epoch first. An opening that came too late for
            # that may still have opened SlateDB: then the location is ours, and opens again.
            self._journal.epoch.check()
            raise UnavailableError(f"SlateDB was opened by somebody else: {error}") from error

    # -- letting go of what SlateDB has

    def _keep(self) -> None:
        if not self._closed and (self._keeper is None or self._keeper.done()):
            self._keeper = asyncio.get_running_loop().create_task(self._care())

    async def _care(self) -> None:
        """Have a spare segment, release covered ones. A failure shows in the commit it hinders."""
        with contextlib.suppress(OSError, PenstockError):
            await self._thread.run(self._journal.prepare)
        # Also when there was no room for a spare one: what is covered becomes spare.
        with contextlib.suppress(OSError, PenstockError):
            if self._journal.waiting() >= FULL_SEGMENTS or self._journal.inherits():
                await self._rows.flush_memtable()
            covered = self._covered()
            if covered is not None:
                # Without synchronous folders this syncs; the next opening trusts what it covered.
                await self._thread.run(self._watch_once)
                n, digest = covered
                await self._thread.run(partial(self._journal.cover, n, digest))
                del self._uncovered[: 16 * (n - self._first_uncovered() + 1)]

    def _first_uncovered(self) -> int:
        return self._head.n - len(self._uncovered) // 16 + 1

    def _covered(self) -> tuple[int, bytes] | None:
        """The newest commit that SlateDB has in objects, as (n, hash), if it moved on."""
        first = self._first_uncovered()
        n = min(self._rows.durable_seq(), self._head.n)
        if n < first:
            return None
        end = (n - first + 1) * 16
        return n, bytes(self._uncovered[end - 16 : end])

    async def _watch(self) -> None:
        """Know SlateDB's manifests soon after it writes them, and only when they are durable."""
        while True:
            with contextlib.suppress(OSError):
                await self._thread.run(self._watch_once)
            await self._clock.sleep(WATCH_SECONDS if self._synced else SYNC_SECONDS)

    def _watch_once(self) -> None:
        watch_once(self._folder, self.epoch, sync=self._sync, synced=self._synced)

    async def _sync_often(self) -> None:
        """Without synchronous folders, garbage collection must not run ahead of what is durable."""
        while True:
            await self._clock.sleep(SYNC_SECONDS)
            with contextlib.suppress(OSError):
                await self._thread.run(partial(disk.sync_file_system, self._folder))

    async def _collect_often(self) -> None:
        while True:
            with contextlib.suppress(OSError, PenstockError):
                await self._collect()
            await self._clock.sleep(COLLECT_SECONDS)

    async def _collect(self) -> None:
        """Not when overtaken: what is trusted is our successor's business."""
        trusted = await self._thread.run(partial(guard.trusted, self._folder))
        pinned = await self._rows.pinned_manifests(trusted)

        def look() -> None:
            self._journal.epoch.check()
            self._collector.look(trusted, pinned)

        await self._thread.run(look)

    def _hand_over(self) -> None:
        with contextlib.suppress(OSError):  # then what we wrote stays
            self._collector.hand_over(sync=self._sync)

    # -- checkpoints

    async def checkpoint(self, *, lifetime_ms: int) -> str:
        await self._applied()
        # A checkpoint is the state of the last manifest: without a flush it misses commits.
        with self._judging():
            await self._rows.flush_memtable()
            checkpoint_id = await self._rows.create_checkpoint(lifetime_ms=lifetime_ms)
        await self._keep_manifest()
        return checkpoint_id

    async def renew_checkpoint(self, checkpoint_id: str, *, lifetime_ms: int) -> None:
        with self._judging():
            await self._rows.renew_checkpoint(checkpoint_id, lifetime_ms=lifetime_ms)
        await self._keep_manifest()

    async def _keep_manifest(self) -> None:
        """A checkpoint is in a manifest alone: no later opening may go back before that one."""
        if not self._synced:
            try:
                await self._thread.run(self._watch_once)
            except OSError as error:
                raise UnavailableError(f"{self._folder}: {error.strerror}") from error

    async def drop_checkpoint(self, checkpoint_id: str) -> None:
        with self._judging():
            await self._rows.drop_checkpoint(checkpoint_id)

    # -- the end

    def _check(self) -> None:
        if self._closed:
            raise InvalidError("the store is closed")

    async def close(self) -> None:
        if self._closed:
            return
        self._watcher.cancel()
        self._gatherer.cancel()
        if self._syncer is not None:
            self._syncer.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._applied()
                self._closed = True
                if self._keeper is not None:
                    await self._keeper
                await self._rows.close(wal=False)
                await self._thread.run(self._watch_once)
                await self._thread.run(self._hand_over)
                await self._thread.run(partial(self._journal.close, self._head.n, self._head.hash))
        except (OSError, TimeoutError, PenstockError):
            # Fenced, or the disk is full or gone: everything acknowledged is in the journal.
            pass
        finally:
            self._closed = True
            self._rows.forget()
            self._thread.finish(self._journal.release)

    async def abandon(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (
            self._keeper,
            self._syncer,
            self._watcher,
            self._gatherer,
            self._applying,
        ):
            if task is not None:
                task.cancel()
        self._rows.forget()
        # The thread may hang in the disk; it lets go of the files when it can, never before: a file
        # descriptor that is closed too early could become somebody else's file.
        self._thread.finish(self._journal.release)
