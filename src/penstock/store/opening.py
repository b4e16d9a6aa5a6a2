"""Opening a folder: the steps before there is a store, and letting go of them when they fail.

Contract     `Opening` claims, checks, opens SlateDB, replays the journal and begins a new one. Its
             jobs run on the disk thread, and a job that hangs there may come back long after the
             caller gave up. So what it got is kept here and not in the caller: the thread's last
             job releases it. And no step begins, no claim fences and no manifest is written once
             the opening was given up.
Order        Claim the epoch, look after SlateDB's manifests, open SlateDB (which fences its engine
             too), read the journal, replay, begin a journal, and look at the epoch again: whoever
             was overtaken on the way says so before the store is used. Where folders cannot be
             synchronous there is a manifest that survives a power cut before anything is
             acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.codec.chain import ChainRecord, decode_batch, decode_chain, encode_chain
from penstock.codec.keys import CHAIN_HEAD
from penstock.errors import CorruptError, FencedError, InvalidError, UnavailableError
from penstock.store import disk, guard
from penstock.store.arenas import give_back
from penstock.store.diskthread import DiskThread
from penstock.store.epoch import Epoch, claim
from penstock.store.journal import Journal
from penstock.store.recovery import Recovered, recover
from penstock.store.slate import COMMON, Place, SlateRows, make_settings, tables_of
from penstock.store.tables import require_in_folder

R = TypeVar("R")

#: Replay hands SlateDB batches of about this size.
REPLAY_BYTES = 4 << 20

_FENCES = "garbage_collector_options.wal_fence_options"
#: SlateDB's log is off, yet each opening puts an empty object there, for fencing. Nobody needs
#: those, as manifests and our epochs fence; they would stay for good.
FENCES: dict[str, Any] = {
    f"{_FENCES}.dry_run": False,
    f"{_FENCES}.interval": "10s",
    f"{_FENCES}.min_age": "300s",
}
#: A compaction reads so far ahead in each table that it merges. The default, four times two
#: mebibytes, hides how long a bucket takes to answer; a folder has nothing to hide. With it and
#: tables of 64 MiB, reading ten million entries right after a kill took 354 to 559 MiB, with this
#: and 32 MiB 317 to 368 (bench/measure_log.py's phases, six runs each in turns).
COMPACTION: dict[str, Any] = {
    "compactor_options.worker.max_fetch_tasks": 1,
    "compactor_options.worker.bytes_to_fetch": 512 << 10,
}


class Opening:
    def __init__(self, folder: Path, *, clock: Clock, sync: bool) -> None:
        self.folder = folder
        self.sync = sync
        self.synced = False  # SlateDB's own files are durable when written
        self.thread = DiskThread("penstock-journal")
        self.rows: SlateRows | None = None
        self.collector: guard.Collector
        self.journal: Journal | None = None
        self.head: ChainRecord | None = None
        self.recovered = Recovered(None)
        self._clock = clock
        self._epoch: Epoch | None = None
        self._given_up = threading.Event()

    async def run(self, *, after: int | None, owner: bytes) -> tuple[SlateRows, Journal]:
        folder = self.folder
        self.synced = await self._step(partial(_prepare_folder, folder, sync=self.sync))
        epoch = await self._step(partial(self._claim, after, owner))
        fenced = 0
        if not self.synced:
            fenced = await self._step(
                partial(guard.distrust, folder, epoch=epoch.number, check=self._require_ours)
            )
        await self._step(partial(guard.check, folder))
        await self._step(epoch.check)
        found = await self._step(partial(guard.newest, folder))
        place = Place.folder(folder / "store")
        # Before it is opened: the engine may read a table that was cut, again and again, and then
        # nothing answers in time. And once more afterwards, for opening writes a manifest.
        try:
            await require_in_folder(folder / "store", partial(tables_of, place), run=self._step)
        except BaseException:
            place.release()
            raise
        self.rows = rows = await SlateRows.open(
            place, _settings(slow_sync=not self.synced), durable_only=False
        )
        await _check_epoch(rows, fenced)
        # The engine has written its first manifest: whoever was overtaken meets that one.
        self.collector = await self._step(partial(guard.Collector, folder, epoch.number, found))
        await require_in_folder(folder / "store", rows.tables, run=self._step)
        stored = await _stored_head(rows)
        self.recovered = await self._step(partial(recover, folder / "journal", stored))
        # Whoever takes over from here on reads the journal later than we did, and opens SlateDB
        # later too, which ends our replay. Before that, it may have missed what we are about to
        # replay: a late record, whose number it gives to a commit of its own.
        await self._step(epoch.check)
        self.head = await _replay(rows, self.recovered) or stored
        if self.recovered.records:
            # SlateDB has the bodies now, and the allocator would keep what they took: reading right
            # after a kill with a full journal needed 430 to 474 MiB with it, 362 to 414 without.
            self.recovered = self.recovered.without_bodies()
            await self._step(give_back)
        if not self.synced:
            # Before a journal that may cover what SlateDB has: that must survive a power cut.
            await self._step(partial(watch_once, folder, epoch.number, sync=True, synced=False))
        journal = await self._step(partial(self._begin_journal, epoch, stored))
        await self._step(epoch.check)
        return rows, journal

    def _claim(self, after: int | None, owner: bytes) -> Epoch:
        self._epoch = claim(
            self.folder / "journal",
            sync=self.sync,
            after=after,
            owner=owner,
            given_up=self._given_up.is_set,
        )
        return self._epoch

    def _begin_journal(self, epoch: Epoch, stored: ChainRecord | None) -> Journal:
        # Who was overtaken makes no head; the journal looks again before it removes segments.
        epoch.check()
        self.journal = Journal(
            self.folder / "journal",
            epoch,
            store_id=self.recovered.store_id or self._clock.entropy(16),
            start=self.head,
            stored=stored,
            inherited=self.recovered.segments,
            entropy=self._clock.entropy,
            sync=self.sync,
        )
        return self.journal

    async def _step(self, job: Callable[[], R]) -> R:
        def unless_given_up() -> R:
            self._require_wanted()
            return job()

        return await self.thread.run(unless_given_up)

    def _require_ours(self) -> None:
        """Before every try to write a manifest: a newcomer may have gone on from there."""
        self._require_wanted()
        assert self._epoch is not None, "it was claimed"
        self._epoch.check()

    def _require_wanted(self) -> None:
        if self._given_up.is_set():
            raise UnavailableError(f"{self.folder}: the opening was given up")

    # -- when it failed

    def give_up(self, error: BaseException) -> bool:
        """Let go of everything, now or when the disk answers. Raises what to say instead.

        True when SlateDB saw a newer writer though nobody took the folder: an opening that was
        overtaken before ours may still have opened SlateDB after us. That one is gone when we
        come again; if it is not, the epochs in SlateDB's files are damaged.
        """
        self._given_up.set()
        if self.rows is not None:
            self.rows.forget()
        self.thread.finish(self._release)
        if not isinstance(error, FencedError) or self._epoch is None:
            return False
        self._epoch.check()  # really fenced: raises
        return True

    def _release(self) -> None:
        """The thread's last job: by now every earlier one has come back."""
        if self.journal is not None:
            self.journal.release()
        elif self._epoch is not None:
            self._epoch.release()


def watch_once(folder: Path, epoch: int, *, sync: bool, synced: bool) -> None:
    barrier = None if synced else partial(disk.sync_file_system, folder)
    guard.watch(folder, epoch=epoch, sync=sync, barrier=barrier)


def _prepare_folder(folder: Path, *, sync: bool) -> bool:
    """Make the folders; True when what SlateDB writes there needs no sync of ours."""
    if folder.exists() and not folder.is_dir():
        raise InvalidError(f"{folder} is a file", hint="name a folder")
    disk.make_folder(folder / "journal", sync=sync)
    (folder / "store").mkdir(exist_ok=True)
    if not sync:
        return True
    store = folder / "store"
    # Flags pass to new folders only: those of a copy, or of durability="os", have none.
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    flagged = all(disk.is_synchronous(path) for path in folders)
    synced = all([disk.make_synchronous(path) for path in folders])
    if not flagged or not synced:
        disk.sync_file_system(folder)  # what is there already was never synced
    disk.sync_folder(folder)
    disk.sync_name(folder)
    return synced


def _settings(*, slow_sync: bool) -> Any:
    """SlateDB's settings for a folder; with syncfs, garbage must outlive the pause between two."""
    layers = COMMON, {"wal_enabled": False}, FENCES, COMPACTION
    if not slow_sync:
        return make_settings(*layers)
    ages = {
        f"garbage_collector_options.{kind}_options.min_age": "60s"
        for kind in ("compacted", "compactions", "manifest")
    }
    return make_settings(*layers, ages)


async def _check_epoch(rows: SlateRows, fenced: int) -> None:
    epoch, _ = await rows.manifest()
    if epoch <= fenced:
        raise CorruptError(f"the store was opened with epoch {epoch}, {fenced} was there already")


async def _stored_head(rows: SlateRows) -> ChainRecord | None:
    """The newest commit that SlateDB itself has, by its head row and by its manifest."""
    value = await rows.get(CHAIN_HEAD)
    _, last_seq = await rows.manifest()
    stored = decode_chain(value) if value is not None else None
    if (stored.n if stored else 0) != last_seq:
        raise CorruptError(
            f"the store's manifest ends at commit {last_seq}, its head row at "
            f"{stored.n if stored else 0}"
        )
    return stored


async def _replay(rows: SlateRows, recovered: Recovered) -> ChainRecord | None:
    """Give SlateDB the commits that only the journal has; many commits make one batch."""
    pending: dict[bytes, bytes | None] = {}
    size = 0
    chain: ChainRecord | None = None
    for record in recovered.records:
        pending.update(decode_batch(record.body))
        size += len(record.body)
        chain = record.chain
        if size >= REPLAY_BYTES:
            pending[CHAIN_HEAD] = encode_chain(chain)
            await rows.write(pending.items(), seqnum=chain.n)
            pending, size = {}, 0
    if chain is not None and pending:
        pending[CHAIN_HEAD] = encode_chain(chain)
        await rows.write(pending.items(), seqnum=chain.n)
    return chain
