"""SlateDB behind plain calls: the only place that knows the engine and translates its errors.

Contract     `SlateRows` is an open database: get, floor, scan, write, flush, checkpoints. What
             makes a write durable is the business of folder.py (journal) and bucket.py (WAL).
             `SlateReader` is the same database as a checkpoint pinned it, for reading only: any
             number of processes may have one, and none of them disturbs the writer.
Errors       Transaction -> ConflictError, Closed(fenced) -> FencedError, Unavailable ->
             UnavailableError, Data -> CorruptError, Invalid and Closed(clean) -> InvalidError.
             Closed(panic) and Internal are bugs, or bytes that the engine did not check: they
             become StoppedError, because the handle is lost and nothing else is safe to say.
Traps        Unknown settings are ignored silently, so every setting is read back. Object paths
             are percent-encoded (twice), dots in them too, so a folder whose path is not plain
             is reached through /proc/self/fd. After a fork the runtime's threads are gone and
             every call hangs, so a handle refuses to work in another process than its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import slatedb.uniffi as engine

from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.store import fastbytes
from penstock.store.arenas import limit_arenas
from penstock.store.port import Row, StoppedError
from penstock.store.tables import Require

P = ParamSpec("P")
R = TypeVar("R")

fastbytes.install()

#: A scan fetches about this much at a time, however large its rows are.
SCAN_BYTES = 2 << 20
CACHE_BYTES = 32 << 20
#: Of a reader: indexes and filters of the tables it meets, mostly; scans leave their blocks out.
READER_CACHE_BYTES = 16 << 20
_READER_POLL_MS = 3_600_000
#: Some ten seconds, then UnavailableError: who runs readers runs them again.
_READER_RETRIES = 6
FORGET_SECONDS = 10.0
JUDGE_SECONDS = 10.0

_PLAIN = re.compile(r"[A-Za-z0-9/._ -]*")

COMMON: dict[str, Any] = {
    "manifest_poll_interval": "1s",
    # Memory: what is not yet in an SST. The default of 1 GiB would be the broker's footprint.
    "max_unflushed_bytes": 64 << 20,
    "l0_sst_size_bytes": 16 << 20,
    "l0_flush_parallelism": 2,
    # With the defaults a memtable flush blocks for seconds once level 0 holds 8 tables.
    "l0_max_ssts": 64,
    "l0_max_ssts_per_key": 64,
    "compactor_options.poll_interval": "100ms",
    "compactor_options.commit_compacted_interval": "100ms",
    "compactor_options.worker.compactions_poll_interval": "100ms",
    "compactor_options.max_concurrent_compactions": 1,
    "compactor_options.worker.max_concurrent_compactions": 1,
    "compactor_options.worker.max_subcompactions": 1,
    # What a compaction has made and not yet stored is in memory, up to a whole table.
    "compactor_options.worker.max_sst_size": 32 << 20,
    "garbage_collector_options.wal_options.interval": "5s",
    "garbage_collector_options.wal_options.min_age": "10s",
    "garbage_collector_options.compacted_options.interval": "10s",
    "garbage_collector_options.compacted_options.min_age": "15s",
    "garbage_collector_options.compactions_options.interval": "10s",
    "garbage_collector_options.compactions_options.min_age": "15s",
    "garbage_collector_options.manifest_options.interval": "15s",
    "garbage_collector_options.manifest_options.min_age": "30s",
}


def translate(error: Exception) -> PenstockError:
    """One of SlateDB's errors as one of ours."""
    text = str(getattr(error, "message", None) or error)
    match error:
        case engine.Error.Closed():
            if error.reason == engine.CloseReason.FENCED:
                return FencedError(f"another writer opened the store: {text}")
            if error.reason == engine.CloseReason.CLEAN:
                return InvalidError("the store is closed")
            return StoppedError(f"the store stopped: {text}")
        case engine.Error.Transaction():
            return ConflictError(text)
        case engine.Error.Unavailable():
            return UnavailableError(text)
        case engine.Error.Invalid():
            return InvalidError(text)
        case engine.Error.Data():
            return CorruptError(text)
        case _:
            return StoppedError(f"the store failed: {text}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (engine.Error, fastbytes.InternalError) as error:
        raise translate(error) from error


def _guarded(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    @functools.wraps(call)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        rows = args[0]
        assert isinstance(rows, _Reads)
        rows._check()
        with translated():
            return await call(*args, **kwargs)

    return guarded


def make_settings(*layers: dict[str, Any]) -> engine.Settings:
    settings = engine.Settings.default()
    wanted = {key: value for layer in layers for key, value in layer.items()}
    for key, value in wanted.items():
        settings.set(key, json.dumps(value))
    effective = json.loads(settings.to_json_string())
    for key, value in wanted.items():
        found = functools.reduce(lambda node, part: node[part], key.split("."), effective)
        assert found == value, f"SlateDB did not take the setting {key} = {value!r}: {found!r}"
    return settings


#: Object stores of memory://name live as long as the process, so that they can be reopened.
_memory: dict[str, engine.ObjectStore] = {}


class Place:
    """Where a database is: an object store and a path in it."""

    def __init__(self, url: str, path: str, *, descriptor: int | None = None) -> None:
        self.path = path
        self._descriptor = descriptor
        try:
            if url.startswith("memory:"):
                self.objects = _memory.get(url) or engine.ObjectStore.resolve("memory:///")
                _memory[url] = self.objects
            else:
                self.objects = engine.ObjectStore.resolve(url)
        except engine.Error as error:
            raise translate(error) from error

    @classmethod
    def folder(cls, folder: Path) -> Place:
        absolute = str(folder.absolute())
        if _PLAIN.fullmatch(absolute) and "//" not in absolute and ".." not in folder.parts:
            return cls("file:///", absolute[1:])
        if not os.path.isdir("/proc/self/fd"):
            raise InvalidError(f"{absolute}: the folder's name has characters that cannot be used")
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        return cls("file:///", f"proc/self/fd/{descriptor}", descriptor=descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


async def writer_epoch(place: Place) -> int:
    """The epoch of the newest writer, without becoming one."""
    with translated():
        manifest = await engine.AdminBuilder(place.path, place.objects).build().read_manifest(None)
    return manifest.writer_epoch if manifest is not None else 0


async def tables_of(place: Place) -> dict[str, int]:
    """The SSTs that the newest manifest names, and how many bytes each must have at least; none
    where there is no store yet."""
    with translated():
        manifest = await engine.AdminBuilder(place.path, place.objects).build().read_manifest(None)
    return {} if manifest is None else _tables(manifest)


async def read_row(place: Place, key: bytes) -> bytes | None:
    """One durable row, without becoming the writer and without leaving a checkpoint."""
    builder = engine.DbReaderBuilder(place.path, place.objects)
    builder.with_reader_mode(engine.ReaderMode.FOLLOW_LATEST())
    with translated():
        reader = await builder.build()
        try:
            value: bytes | None = await reader.get(key)
        finally:
            await reader.shutdown()
    return value


class _Reads:
    """What a writer's handle and a reader's have in common."""

    #: How far a scan reads ahead of who consumes it, and in how many pieces at a time.
    read_ahead_bytes = 1 << 20
    fetch_tasks = 1

    def __init__(self, place: Place, db: Any, *, durable_only: bool) -> None:
        self._place = place
        self._db = db
        self._admin = engine.AdminBuilder(place.path, place.objects).build()
        self._pid = os.getpid()
        self._closed = False
        self._durability = (
            engine.DurabilityLevel.REMOTE if durable_only else engine.DurabilityLevel.MEMORY
        )
        self._read_options = engine.ReadOptions(
            durability_filter=self._durability, dirty=False, cache_blocks=True
        )

    def _check(self) -> None:
        if self._closed:
            raise InvalidError("the store is closed")
        if os.getpid() != self._pid:
            raise InvalidError(
                "the store was opened by another process and does not survive a fork",
                hint="open it in the child",
            )

    def __reduce__(self) -> Any:
        raise InvalidError(
            "an open store cannot be pickled", hint="pickle its location, and open that"
        )

    @_guarded
    async def get(self, key: bytes) -> bytes | None:
        value: bytes | None = await self._db.get_with_options(key, self._read_options)
        return value

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        self._check()
        if low > key:
            return None
        with translated():
            rows = await fastbytes.next_rows(
                await self._scan(low, key, inclusive=True, reverse=True, read_ahead=256 << 10), 1
            )
        return rows[0] if rows else None

    async def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        self._check()
        if low >= high:
            return
        with translated():
            iterator = await self._scan(
                low, high, inclusive=False, reverse=reverse, read_ahead=self.read_ahead_bytes
            )
        count = min(8, batch_rows)
        while True:
            self._check()
            with translated():
                rows = await fastbytes.next_rows(iterator, count)
            if not rows:
                return
            yield rows
            size = sum(len(value) for _, value in rows) // len(rows) + 1
            count = max(1, min(batch_rows, SCAN_BYTES // size, count * 4))

    async def _scan(
        self, low: bytes, high: bytes, *, inclusive: bool, reverse: bool, read_ahead: int
    ) -> Any:
        order = engine.IterationOrder.DESCENDING if reverse else engine.IterationOrder.ASCENDING
        return await self._db.scan_with_options(
            engine.KeyRange(start=low, start_inclusive=True, end=high, end_inclusive=inclusive),
            engine.ScanOptions(
                durability_filter=self._durability,
                dirty=False,
                read_ahead_bytes=read_ahead,
                cache_blocks=False,
                max_fetch_tasks=self.fetch_tasks,
                order=order,
            ),
        )


class SlateRows(_Reads):
    """The writer's handle."""

    @classmethod
    async def open(
        cls, place: Place, settings: engine.Settings, *, durable_only: bool
    ) -> SlateRows:
        limit_arenas()
        builder = engine.DbBuilder(place.path, place.objects)
        builder.with_settings(settings)
        builder.with_db_cache(_make_cache(CACHE_BYTES), 0)
        try:
            with translated():
                return cls(place, await builder.build(), durable_only=durable_only)
        except InvalidError as error:
            # The place is not released: a failed opening may leave parts of the engine running, and
            # to those the number of a closed descriptor would be another folder.
            # Our settings are valid, so what the engine refuses is what it found.
            raise CorruptError(f"the store does not open: {error}") from error

    # -- writes

    @_guarded
    async def write(
        self, writes: Iterable[tuple[bytes, bytes | None]], *, seqnum: int | None = None
    ) -> int:
        """Into memory, as one atomic batch; not durable yet. -> its sequence number"""
        batch = engine.WriteBatch()
        fastbytes.fill_batch(batch, writes)
        options = engine.WriteOptions(seqnum=seqnum or 0)  # 0: the next one
        seq: int = (await self._db.write_with_options(batch, options)).seqnum()
        return seq

    @_guarded
    async def flush_wal(self) -> None:
        await self._db.flush_with_options(engine.FlushOptions(flush_type=engine.FlushType.WAL))

    @_guarded
    async def flush_memtable(self) -> None:
        await self._db.flush_with_options(
            engine.FlushOptions(flush_type=engine.FlushType.MEM_TABLE)
        )

    # -- positions

    def durable_seq(self) -> int:
        """Everything up to this sequence number is in objects. Raises when the handle is dead."""
        with translated():
            status = self._db.status()
            if status.close_reason == engine.CloseReason.FENCED:
                raise FencedError("another writer opened the store")
            seq: int = status.durable_seq
            return seq

    @_guarded
    async def manifest(self) -> tuple[int, int]:
        """-> (writer epoch, last sequence number in an SST), read from the store."""
        manifest = await self._admin.read_manifest(None)
        if manifest is None:
            raise CorruptError("the store's manifest is missing")
        return manifest.writer_epoch, manifest.last_l0_seq

    @_guarded
    async def tables(self) -> dict[str, int]:
        """The SSTs that the manifest names, and how many bytes each must have at least."""
        return _tables(await self._admin.read_manifest(None))

    # -- checkpoints

    @_guarded
    async def create_checkpoint(self, *, lifetime_ms: int) -> str:
        result = await self._admin.create_detached_checkpoint(
            engine.CheckpointOptions(lifetime_ms=lifetime_ms, source=None, name=None)
        )
        return str(result.id)

    @_guarded
    async def renew_checkpoint(self, checkpoint_id: str, *, lifetime_ms: int) -> None:
        await self._require_checkpoint(checkpoint_id)
        await self._admin.refresh_checkpoint(checkpoint_id, lifetime_ms)

    @_guarded
    async def drop_checkpoint(self, checkpoint_id: str) -> None:
        await self._require_checkpoint(checkpoint_id)
        await self._admin.delete_checkpoint(checkpoint_id)

    @_guarded
    async def pinned_manifests(self, trusted: int) -> set[int]:
        """The manifests that checkpoints refer to, by the newest manifest or by this one (0: the
        newest alone)."""
        numbers = (None, trusted) if trusted else (None,)
        found = [await self._admin.read_manifest(number) for number in numbers]
        return {
            kept.manifest_id
            for manifest in found
            if manifest is not None
            for kept in manifest.checkpoints
        }

    async def _require_checkpoint(self, checkpoint_id: str) -> None:
        if await _find_checkpoint(self._admin, checkpoint_id) is None:
            raise NotFoundError(f"there is no checkpoint {checkpoint_id}")

    # -- the end

    async def close(self, *, wal: bool) -> None:
        if not self._closed:
            kind = engine.FlushType.WAL if wal else engine.FlushType.MEM_TABLE
            with translated():
                await self._db.shutdown_with_options(engine.CloseOptions(flush_type=kind))
            self._closed = True
            self._place.release()

    def forget(self) -> None:
        """Drop the handle without flushing. Does not wait, and does nothing after a close."""
        if not self._closed:
            self._closed = True
            task = asyncio.get_running_loop().create_task(self._stop())
            _stopping.add(task)
            task.add_done_callback(_stopping.discard)

    async def _stop(self) -> None:
        """End the engine's background work, as far as it can be ended: what is left is fenced."""
        with contextlib.suppress(engine.Error, fastbytes.InternalError, TimeoutError):
            async with asyncio.timeout(FORGET_SECONDS):
                await self._db.shutdown_with_options(engine.CloseOptions(flush_type=None))
            # Only now: to the engine, the number of a closed descriptor would be another folder.
            self._place.release()


class SlateReader(_Reads):
    """The database as a checkpoint pinned it: the same rows for whoever reads at that checkpoint.

    An expired checkpoint is there until the writer's garbage collection takes it, and its tables
    with it, maybe while they are read. So whatever fails is asked once more: is it still there?
    """

    # Bulk reads: twice the speed of one piece at a time, from a folder (measured); from a bucket
    # each piece is a request.
    read_ahead_bytes = 4 << 20
    fetch_tasks = 2

    def __init__(
        self,
        place: Place,
        db: engine.DbReader,
        checkpoint: engine.Checkpoint,
        require: Require | None,
    ) -> None:
        super().__init__(place, db, durable_only=False)
        self._checkpoint = checkpoint
        self._require = require

    @classmethod
    async def open(
        cls, place: Place, checkpoint_id: str, require: Require | None = None
    ) -> SlateReader:
        builder = engine.DbReaderBuilder(place.path, place.objects)
        admin = engine.AdminBuilder(place.path, place.objects).build()
        builder.with_options(
            engine.ReaderOptions(
                # A pinned reader has nothing to follow and no checkpoint of its own to renew.
                manifest_poll_interval_ms=_READER_POLL_MS,
                checkpoint_lifetime_ms=3 * _READER_POLL_MS,
                max_memtable_bytes=1 << 20,
                # A checkpoint is made behind a flush: everything is in tables.
                skip_wal_replay=True,
                object_store_max_retries=_READER_RETRIES,
            )
        )
        builder.with_db_cache(_make_cache(READER_CACHE_BYTES), 0)
        with translated():
            found = await _find_checkpoint(admin, checkpoint_id)
            if found is None:
                place.release()
                raise _expired(checkpoint_id)
            builder.with_reader_mode(engine.ReaderMode.CHECKPOINT(found.id))
            try:
                return cls(place, await builder.build(), found, require)
            except engine.Error:  # dropped in between?
                if await _find_checkpoint(admin, checkpoint_id) is None:
                    raise _expired(checkpoint_id) from None
                raise

    async def require_tables(self) -> None:
        """Demand the SSTs of the checkpoint in full length."""
        self._check()
        if self._require is not None:
            await self._require(self._tables)

    async def _tables(self) -> dict[str, int]:
        with translated():
            manifest = await self._admin.read_manifest(self._checkpoint.manifest_id)
        if manifest is None:
            raise CorruptError(f"manifest {self._checkpoint.manifest_id} is missing")
        return _tables(manifest)

    async def get(self, key: bytes) -> bytes | None:
        try:
            return await super().get(key)
        except (CorruptError, UnavailableError) as error:
            raise await self.judged(error) from error

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        try:
            return await super().floor(key, low=low)
        except (CorruptError, UnavailableError) as error:
            raise await self.judged(error) from error

    async def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        scan = super().scan(low, high, reverse=reverse, batch_rows=batch_rows)
        try:
            async for rows in scan:
                yield rows
        except (CorruptError, UnavailableError) as error:
            raise await self.judged(error) from error

    async def judged(self, error: PenstockError) -> PenstockError:
        """What to raise: a table that is missing because the checkpoint is gone is not damage, and
        one that was cut is not a store that is slow."""
        try:
            async with asyncio.timeout(JUDGE_SECONDS):
                if await _find_checkpoint(self._admin, self._checkpoint.id) is None:
                    return _expired(self._checkpoint.id)
                if isinstance(error, UnavailableError):  # the end of a cut one is asked for again
                    await self.require_tables()
        except CorruptError as damage:
            return damage
        except (engine.Error, fastbytes.InternalError, TimeoutError, OSError, UnavailableError):
            pass  # what was raised first says more; this one would be asked for ever
        return error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            with translated():
                await self._db.shutdown()
            self._place.release()


def _expired(checkpoint_id: str) -> NotFoundError:
    return NotFoundError(
        f"the checkpoint {checkpoint_id} has expired",
        hint="begin the read anew, at a new checkpoint",
    )


async def _find_checkpoint(admin: engine.Admin, checkpoint_id: str) -> engine.Checkpoint | None:
    for found in await admin.list_checkpoints(None):
        if found.id == checkpoint_id:
            return found
    return None


def _make_cache(size: int) -> engine.DbCache:
    return engine.DbCache.new_foyer_cache(engine.FoyerCacheOptions(max_capacity=size, shards=4))


def _tables(manifest: engine.VersionedManifest) -> dict[str, int]:
    runs = [*manifest.compacted, *(run for part in manifest.segments for run in part.compacted)]
    views = [
        *manifest.l0,
        *(view for part in manifest.segments for view in part.l0),
        *(view for run in runs for view in run.sst_views),
    ]
    return {view.sst.id.value: _least_bytes(view.sst.info) for view in views}


def _least_bytes(info: engine.SsTableInfo) -> int:
    """An SST ends with its index, filter and statistics, and a footer behind them."""
    least: int = 1 + max(
        info.index_offset + info.index_len,
        info.filter_offset + info.filter_len,
        info.stats_offset + info.stats_len,
    )
    return least


#: Handles that are being dropped; a task that nobody holds may vanish.
_stopping: set[asyncio.Task[None]] = set()
