"""The coordinator: from the receiving of a message to its acknowledgement.

Contract     One of them runs in one process of a source, on Spark's driver. `run(once=True)`
             returns when nothing is claimable and all that it took is published, exported and
             acknowledged; without `once` it goes on until `stop`. Either way nothing stays behind
             that others would have to wait for: what was not loaded is released.
Cycle        receive - open or acquire the shards that messages name - gather - load a batch
             (loader.py) - acknowledge what is terminal - export (delta.py)
Batches      A batch is loaded when it has `max_files` or `batch_bytes`; when no message came for
             `linger` seconds; or a commit timeout after its first file, whatever comes.
Failures     are counted in the shard's row, by the broker. A file that failed is tried again here,
             after a pause, until it is loaded or has failed for good, and its message is kept.
Invariants   C1  a message is acknowledged only after every shard that it names is durably terminal
             C2  what another process works on is dropped, not acknowledged
Not here     Leases and heartbeats (keeper.py), states of messages here (source/local.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.source.coordinate import Course, course_of, takeovers
from penstock.source.local import Local, Through, Work
from penstock.source.queueport import Queue, Received, limits_of
from penstock.source.requests import (
    EOF,
    AcquireShards,
    Ask,
    Beat,
    Beaten,
    FailAnnouncements,
    FailShards,
    Failure,
    GetSchema,
    ListPublishes,
    MarkExported,
    Move,
    OpenShards,
    Publish,
    ReleaseShards,
    Shard,
    ShardOpen,
    SourceInfo,
)
from penstock.source.visibility import last_seconds, lease_seconds
from penstock.spark.ingest.announced import open_shard, read_messages
from penstock.spark.ingest.delta import DeltaTarget, app_id
from penstock.spark.ingest.keeper import Keeper
from penstock.spark.ingest.loader import Loaded, Loader
from penstock.spark.ingest.options import Settings
from penstock.spark.ingest.report import Report

_log = logging.getLogger("penstock")

R = TypeVar("R")

#: Messages that one call receives, shards that one request names.
RECEIVE_MAX = 1000
_REQUEST_MAX = 5000
#: Questions to stores that are under way at once.
_LOOKS = 16
_RETRY_SECONDS_MAX = 60.0
_PAUSE_SECONDS = 0.5


class Coordinator:
    def __init__(
        self,
        settings: Settings,
        source: SourceInfo,
        queue: Queue,
        *,
        ask: Callable[[Ask[Any]], Any],
        spark: Any,
        clock: Clock,
        token: str,
        progress: Callable[[Report], None] | None = None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._queue = queue
        self._asked = ask
        self._clock = clock
        self._token = token
        self._progress = progress
        self._stop = threading.Event()
        self._never = threading.Event()
        self._pool = ThreadPoolExecutor(_LOOKS, thread_name_prefix="penstock-look")
        self._local = Local()
        self._inline: dict[str, bytes] = {}
        #: What each message that is held names.
        self._named: dict[str, list[ShardOpen]] = {}
        #: Shards whose files failed: when to try them again.
        self._later: dict[str, tuple[float, Shard]] = {}
        #: When the batch that is gathered must be loaded.
        self._due: float | None = None
        self._exported = source.exported
        self._published = 0
        self.report = Report()
        limits = limits_of(queue)
        timeout = settings.commit_timeout
        self._keeper = Keeper(
            queue,
            self._beat,
            clock=clock,
            lease_seconds=lease_seconds(timeout, limits),
            last_seconds=last_seconds(timeout),
            beat_seconds=timeout / 2,
        )
        self.target = DeltaTarget(settings.table, app_id(source), clock, self._pause)
        self.loader = Loader(
            settings,
            source,
            token,
            ask=self._ask,
            spark=spark,
            pool=self._pool,
            clock=clock,
            staged=self._keeper.stage,
            sent=self._sent,
            accept=self.target.check,
        )

    def stop(self) -> None:
        """End after the batch that is under way. From any thread."""
        self._stop.set()

    def run(self, *, once: bool) -> Report:
        self._keeper.start()
        try:
            self._cleanup()
            self._export()
            self._loop(once)
            return self.report
        finally:
            try:
                self._release()
            finally:
                self._keeper.stop()
                self._pool.shutdown()

    def _loop(self, once: bool) -> None:
        clear_at = self._clock.monotonic() + self._settings.commit_timeout
        while not self._stop.is_set():
            self._keeper.check()
            self._retry()
            came = self._receive(self._wait_seconds(once))
            if self._is_due(came, once):
                self._load()
                self._export()
            elif once and not came and self._local.idle:
                return
            if self._clock.monotonic() >= clear_at:
                self._cleanup()
                clear_at = self._clock.monotonic() + self._settings.commit_timeout

    # -- when

    def _wait_seconds(self, once: bool) -> float:
        """How long to wait for messages: until something else is to be done."""
        now = self._clock.monotonic()
        times = [at for at, _ in self._later.values()]
        if self._ready():
            return 0.0 if once else min(self._settings.linger, max(0.0, self._batch_due(now) - now))
        if times:
            return min(self._settings.linger, max(0.0, min(times) - now)) or 0.01
        return 0.0 if once else self._settings.linger

    def _is_due(self, came: int, once: bool) -> bool:
        if not self._ready():
            self._due = None
            return False
        now = self._clock.monotonic()
        due = self._batch_due(now)
        full = self._ready() >= self._settings.max_files or not self._local.room
        return full or not came or now >= due

    def _batch_due(self, now: float) -> float:
        if self._due is None:
            self._due = now + self._settings.commit_timeout
        return self._due

    def _ready(self) -> int:
        return len(self._local.working(Work.READY))

    # -- messages

    def _receive(self, wait: float) -> int:
        """-> how many came"""
        room = min(RECEIVE_MAX, self._local.room)
        if not room:
            return 0
        try:
            received = self._queue.receive(room, wait)
        except UnavailableError as error:
            _log.warning("the queue is away: %s", error)
            self._pause(_PAUSE_SECONDS)
            return 0
        if received:
            self._take_in(received)
        return len(received)

    def _take_in(self, received: Sequence[Received]) -> None:
        self._keeper.hold(received)
        found = read_messages(
            received,
            identity=self._settings.identity,
            inline=self._settings.inline,
            pool=self._pool,
        )
        if found.bad:
            self._ask(FailAnnouncements(self._source.id, found.bad))
            self._count(failed=len(found.bad))
            for bad in found.bad:
                _log.warning("message %s could not be read: %s", bad.announced_by, bad.error)
        # Of two messages with one id the first one is the data.
        self._inline = found.inline | self._inline
        shards = self._open([each for named in found.named for each in named.shards])
        acknowledge: list[Received] = []
        drop: list[Received] = []
        for named in found.named:
            self._named[named.received.id] = named.shards
            mine = [shards[each.id] for each in named.shards]
            self._count(duplicates=sum(self._is_duplicate(named.received, each) for each in mine))
            through = self._local.add(named.received, mine)
            acknowledge += through.acknowledge
            drop += through.drop
        self._own()
        self._through(Through(acknowledge, drop))

    def _is_duplicate(self, received: Received, shard: Shard) -> bool:
        here = self._local.messages_of(shard.id)
        return shard.phase == "eof" or any(each.id != received.id for each in here)

    def _open(self, wanted: Iterable[ShardOpen]) -> dict[str, Shard]:
        """Each under its id, as it is after opening and, where its owner is gone, acquiring."""
        distinct = list({each.id: each for each in wanted}.values())
        shards: dict[str, Shard] = {}
        for part in _parts(distinct):
            opened = self._ask(
                OpenShards(self._source.id, self._token, self._settings.stale_ms, part)
            )
            shards |= {each.id: each for each in opened.shards}
        for taken in _parts(takeovers(shards.values())):
            acquired = self._ask(
                AcquireShards(self._source.id, self._token, self._settings.stale_ms, taken)
            )
            shards |= {each.id: each for each in acquired.shards}
        return shards

    def _through(self, through: Through) -> None:
        """Acknowledge what is done; leave to others what is theirs."""
        for received in (*through.acknowledge, *through.drop):
            for shard in self._named.pop(received.id, ()):
                if not self._local.messages_of(shard.id):
                    self._inline.pop(shard.id, None)
        if through.acknowledge:
            # Before the call: a lease that is extended after its acknowledgement is an error.
            self._keeper.drop(through.acknowledge)
            self._acknowledge(through.acknowledge)
        self._keeper.drop(through.drop)

    def _acknowledge(self, received: Sequence[Received]) -> None:
        try:
            kept = self._queue.acknowledge(received)
        except UnavailableError as error:
            # Its shards are terminal: when it comes again, it is acknowledged at once.
            _log.warning("%d messages could not be acknowledged: %s", len(received), error)
            return
        late = len(received) - sum(kept)
        if late:
            _log.info("%d messages were acknowledged too late, and come again", late)

    # -- batches

    def _load(self) -> None:
        self._due = None
        shards = self._local.take(self._settings.max_files)
        lost = self._keeper.lost()
        gone = [each.id for each in shards if each.id in lost]
        shards = [each for each in shards if each.id not in lost]
        self._through(self._local.drop(gone))
        if not shards:
            return
        _log.info("loading %d files", len(shards))
        loaded = self.loader.load(shards, self._inline)
        by_id = {each.id: each for each in shards}
        self._settle(loaded, by_id)

    def _settle(self, loaded: Loaded, shards: dict[str, Shard]) -> None:
        ended = [move.id for move in loaded.moves if move.end == EOF]
        on = [
            msgspec.structs.replace(shards[move.id], position=move.end)
            for move in loaded.moves
            if move.end != EOF
        ]
        self._count(
            files=len(ended),
            rows=sum(move.rows for move in loaded.moves),
            bytes=loaded.bytes,
            splits=loaded.splits,
            publishes=1 if loaded.moves else 0,
        )
        again = [*on, *(shards[each] for each in loaded.again)]
        self._local.again(again)
        self._keeper.resume(
            received for each in again for received in self._local.messages_of(each.id)
        )
        if loaded.resolved:
            self._resolve(loaded.resolved, shards)
        if loaded.failures:
            self._fail(loaded, shards)
        self._end(ended)
        self._through(self._local.drop(loaded.lost))
        self._own()

    def _sent(self, moves: Sequence[Move]) -> None:
        """They are read and about to be published: the last that their messages are kept for."""
        ended = {move.id for move in moves if move.end == EOF}
        self._local.sent(ended)
        going_on = {
            received.id
            for shard in self._local.working()
            if shard.id not in ended
            for received in self._local.messages_of(shard.id)
        }
        self._keeper.finish(
            received
            for shard in ended
            for received in self._local.messages_of(shard)
            if received.id not in going_on
        )

    def _end(self, ids: Sequence[str]) -> None:
        self._through(self._local.end(ids))

    def _fail(self, loaded: Loaded, shards: dict[str, Shard]) -> None:
        failures = [
            Failure(shard, result.error, result.final) for shard, result in loaded.failures.items()
        ]
        for each in failures:
            _log.warning("%s failed: %s", each.id, each.error)
        told: list[Shard] = []
        for part in _parts(failures):
            told += self._ask(FailShards(self._source.id, self._token, part)).shards
        now = self._clock.monotonic()
        ended, lost = [], set(loaded.failures)
        for shard in told:
            if shard.phase != "open":
                ended.append(shard.id)
            elif shard.token == "":
                pause = self._settings.retry_delay * 2 ** (shard.failures - 1)
                self._later[shard.id] = (now + min(pause, _RETRY_SECONDS_MAX), shard)
            else:
                continue
            lost.discard(shard.id)
        self._count(failed=sum(1 for shard in told if shard.phase == "failed"))
        self._end(ended)
        # Somebody else has them by now: let them be.
        self._through(self._local.drop(lost))

    def _retry(self) -> None:
        """Open again what failed a while ago."""
        now = self._clock.monotonic()
        due = [shard for at, shard in self._later.values() if at <= now]
        if not due:
            return
        for shard in due:
            del self._later[shard.id]
        opened = self._open([_reopened(shard) for shard in due])
        self._again(opened.values())
        self._own()

    def _again(self, shards: Iterable[Shard]) -> None:
        for shard in shards:
            match course_of(shard):
                case Course.READ:
                    self._local.again([shard])
                case Course.DONE:
                    self._end([shard.id])
                case Course.ACQUIRE | Course.DROP:
                    self._through(self._local.drop([shard.id]))

    def _resolve(self, resolved: dict[str, str], shards: dict[str, Shard]) -> None:
        """Files whose version is known at last: their messages wait for another shard now."""
        for old, version in resolved.items():
            new = open_shard(shards[old].uri, version, shards[old].announced_by, "version")
            for received in self._local.messages_of(old):
                # With all that it names: another one may keep it from being acknowledged.
                named = [each for each in self._named[received.id] if each.id != old] + [new]
                self._named[received.id] = named
                self._through(self._local.add(received, self._open(named).values()))
        moves = [Move(old, shards[old].position, EOF, 0) for old in resolved]
        self._ask(
            Publish(
                self._source.id,
                self._token,
                self._clock.entropy(16).hex(),
                None,
                self._ask(GetSchema(self._source.id)).version,
                [],
                moves,
            )
        )
        self._end(list(resolved))

    # -- the table

    def _export(self) -> None:
        self.target.export(self._publishes, self._schema, self._mark, self._exported)

    def _publishes(self, after: int, limit: int) -> Any:
        return self._ask(ListPublishes(self._source.id, after, limit)).rows

    def _schema(self) -> str:
        return str(self._ask(GetSchema(self._source.id)).schema)

    def _mark(self, sequence: int) -> None:
        if sequence > self._exported:
            self._ask(MarkExported(self._source.id, sequence))
            self._exported = sequence

    def _cleanup(self) -> None:
        try:
            self.loader.clear_stale()
        except UnavailableError as error:
            # Nothing depends on it; whoever comes next tries again.
            _log.warning("left splits could not be removed: %s", error)

    # -- signs of life, and the end

    def _own(self) -> None:
        later = self._later.keys()
        self._keeper.own(each.id for each in self._local.working() if each.id not in later)

    def _beat(self, shards: list[str], stagings: list[int]) -> Beaten:
        lost: list[str] = []
        beaten = Beaten([], [])
        for part in _parts(shards) or [[]]:
            beaten = self._asked(Beat(self._source.id, self._token, part, stagings))
            lost += beaten.lost
        return Beaten(lost, beaten.lost_stagings)

    def _release(self) -> None:
        """What was not loaded: others need not wait until it is stale."""
        mine = [each.id for each in self._local.working()]
        try:
            for part in _parts(mine):
                self._asked(ReleaseShards(self._source.id, self._token, part))
        except UnavailableError as error:
            _log.warning("%d files could not be released: %s", len(mine), error)

    def _ask(self, request: Ask[R]) -> R:
        """Again and again while the broker is away: every request may be repeated. After twice the
        commit timeout others may have what is in hand here, so there is no sense in going on."""
        until = self._clock.monotonic() + 2 * self._settings.commit_timeout
        while True:
            try:
                return self._asked(request)  # type: ignore[no-any-return]
            except UnavailableError:
                if self._clock.monotonic() >= until:
                    raise
                self._pause(_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        # Not on the event of stop(): what is under way is brought to its end.
        self._never.wait(seconds)

    def _count(self, **more: int) -> None:
        if not any(more.values()):
            return
        changes = {name: getattr(self.report, name) + count for name, count in more.items()}
        self.report = msgspec.structs.replace(self.report, **changes)
        if self._progress is not None:
            self._progress(self.report)


def _reopened(shard: Shard) -> ShardOpen:
    assert shard.kind != "announcement", "those are failed for good"
    return ShardOpen(shard.id, shard.uri, shard.etag, shard.announced_by, shard.kind)


T = TypeVar("T")


def _parts(items: Sequence[T]) -> list[list[T]]:
    return [list(items[at : at + _REQUEST_MAX]) for at in range(0, len(items), _REQUEST_MAX)]
