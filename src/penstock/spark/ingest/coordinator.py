"""The coordinator: from the receiving of a message to its acknowledgement.

Contract     One of them runs in one process of a source, on Spark's driver. `run(once=True)`
             returns when nothing is claimable and all that it took is published, exported and
             acknowledged; without `once` it goes on until `stop`. Either way nothing stays behind
             that others would have to wait for: what was not loaded is released.
Cycle        receive - open or acquire the shards that messages name - gather - load a batch
             (loader.py) - export (delta.py) - acknowledge what is terminal
Batches      A batch is loaded when it has `max_files` or `batch_bytes`; when no message came for
             `linger` seconds; or a commit timeout after its first file, whatever comes.
Failures     are counted in the shard's row, by the broker. A file that failed is tried again here,
             after a pause, until it is loaded or has failed for good, and its message is kept. A
             store that is away is no failure of its files: they are released, with the reason, and
             tried again, after longer and longer pauses, then left to the queue; under `once`, left
             at once. Files that may not be read, of a store that is there, have failed.
Export       Whoever publishes may be killed before its export, so all export for all: before they
             acknowledge, every commit timeout, and at both ends of a run.
Invariants   C1  a message is acknowledged only after every shard that it names is durably terminal,
                 and all that was published is in the table
             C2  what another process works on is dropped, not acknowledged
Not here     Leases and heartbeats (keeper.py), states of messages here (source/local.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.errors import FencedError, UnavailableError
from penstock.source.coordinate import Course, course_of
from penstock.source.local import Local, Through, Work
from penstock.source.queueport import Queue, Received, limits_of
from penstock.source.requests import EOF, Ask, Failure, Move, Shard, ShardOpen, SourceInfo
from penstock.source.visibility import last_seconds, lease_seconds
from penstock.spark.ingest.announced import Named, open_shard, read_messages, unresolved
from penstock.spark.ingest.delta import DeltaTarget, app_id
from penstock.spark.ingest.keeper import Keeper
from penstock.spark.ingest.loader import Loaded, Loader
from penstock.spark.ingest.options import Settings
from penstock.spark.ingest.pieces import PieceResult
from penstock.spark.ingest.report import Report
from penstock.spark.ingest.shared import Shared
from penstock.spark.ingest.storedschema import StoredSchema
from penstock.words import counted

_log = logging.getLogger("penstock")

#: Messages that one call receives.
RECEIVE_MAX = 1000
#: Messages that are known again when they come again.
_SEEN_MAX = 100_000
#: Questions to stores that are under way at once.
_LOOKS = 16
_RETRY_SECONDS_MAX = 60.0
_PAUSE_SECONDS = 0.5
#: The first pause when a store is away, at least.
_AWAY_SECONDS = 0.1


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
        self._queue = queue
        self._clock = clock
        self._progress = progress
        self._stop = threading.Event()
        self._never = threading.Event()
        self._pool = ThreadPoolExecutor(_LOOKS, thread_name_prefix="penstock-look")
        self._local = Local()
        self._inline: dict[str, bytes] = {}
        #: Messages that came, the latest ones.
        self._seen: dict[str, None] = {}
        #: What each message that is held names.
        self._named: dict[str, list[ShardOpen]] = {}
        #: Shards whose files failed: when to try them again.
        self._later: dict[str, tuple[float, Shard]] = {}
        #: Shards whose store is away: how often it was in a row.
        self._waits: dict[str, int] = {}
        #: Shards that a run which is to end has left to the next one.
        self._left: set[str] = set()
        self._once = False
        #: When the batch that is gathered must be loaded.
        self._due: float | None = None
        #: Since when the queue has not answered.
        self._away: float | None = None
        self.report = Report()
        self._shared = Shared(
            source, token, stale_ms=settings.stale_ms, ask=ask, clock=clock, pause=self._pause
        )
        limits = limits_of(queue)
        timeout = settings.commit_timeout
        self._keeper = Keeper(
            queue,
            self._shared.beat,
            clock=clock,
            lease_seconds=lease_seconds(timeout, limits),
            last_seconds=last_seconds(timeout),
            beat_seconds=timeout / 2,
        )
        self.target = DeltaTarget(settings.table, app_id(source), clock, self._pause)
        self.schema = StoredSchema(source, ask=self._shared.ask, accept=self.target.check)
        self.loader = Loader(
            settings,
            source,
            token,
            ask=self._shared.ask,
            spark=spark,
            pool=self._pool,
            clock=clock,
            staged=self._keeper.stage,
            sent=self._sent,
            resumed=self._resumed,
            schema=self.schema,
        )

    def stop(self) -> None:
        """End after the batch that is under way. From any thread."""
        self._stop.set()

    def run(self, *, once: bool) -> Report:
        self._once = once
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
            if self._is_due(came):
                self._load()
                self._export_rest()
            elif once and came == 0 and self._local.idle:
                self._export_rest()
                return
            if self._clock.monotonic() >= clear_at:
                self._export_rest()
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

    def _is_due(self, came: int | None) -> bool:
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

    def _receive(self, wait: float) -> int | None:
        """-> how many came; None: the queue did not answer"""
        # No more than another batch beside the one in hand: what lies here nobody else can load.
        in_hand = len(self._local.working()) - len(self._later)
        room = min(RECEIVE_MAX, self._local.room, 2 * self._settings.max_files - in_hand)
        if room <= 0:
            if not self._ready():  # all of it waits to be tried again
                self._pause(wait)
            return 0
        try:
            received = self._queue.receive(room, wait)
        except UnavailableError as error:
            now = self._clock.monotonic()
            self._away = now if self._away is None else self._away
            if now - self._away >= 2 * self._settings.commit_timeout:
                raise
            _log.warning("the queue is away: %s", error)
            self._pause(_PAUSE_SECONDS)
            return None
        self._away = None
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
            self._shared.fail_announcements(found.bad)
            self._count(failed=len(found.bad))
            for bad in found.bad:
                _log.warning("message %s could not be read: %s", bad.announced_by, bad.error)
        if self._settings.identity == "version":
            self._name_left_over(found.named)
        # Of two messages with one id the first one is the data.
        self._inline = found.inline | self._inline
        shards = self._shared.open([each for named in found.named for each in named.shards])
        acknowledge: list[Received] = []
        drop: list[Received] = []
        failed: dict[str, Shard] = {}
        for named in found.named:
            self._named[named.received.id] = named.shards
            mine = [shards[each.id] for each in named.shards]
            if self._is_new(named.received):
                self._count(duplicates=sum(self._is_duplicate(named.received, m) for m in mine))
                failed |= {each.id: each for each in mine if each.phase == "failed"}
            through = self._local.add(named.received, mine)
            acknowledge += through.acknowledge
            drop += through.drop
        if failed:
            some = next(iter(failed.values()))
            _log.warning(
                "%s announced again, and had failed: penstock ingest again lets one be loaded; "
                "%s: %s",
                *(counted(len(failed), "file"), some.uri, some.error),
            )
        self._own()
        self._through(Through(acknowledge, drop))

    def _name_left_over(self, messages: Sequence[Named]) -> None:
        """Who had a message before may have been killed while its file could not be found: that
        shard is part of the message, too, until it has ended."""
        asked = {
            shard.id: (message, shard)
            for message in messages
            if message.received.attempts > 1
            for shard in unresolved(message)
        }
        for left in self._shared.known(list(asked)):
            if left.phase == "open":
                message, shard = asked[left.id]
                message.shards.append(shard)

    def _is_new(self, received: Received) -> bool:
        """Not one that came to this run before: a lease may end before its acknowledgement."""
        known = received.id in self._seen
        self._seen[received.id] = None
        while len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return not known

    def _is_duplicate(self, received: Received, shard: Shard) -> bool:
        here = self._local.messages_of(shard.id)
        return shard.phase == "eof" or any(each.id != received.id for each in here)

    def _through(self, through: Through) -> None:
        """Acknowledge what is done; leave to others what is theirs."""
        for received in (*through.acknowledge, *through.drop):
            for shard in self._named.pop(received.id, ()):
                if not self._local.messages_of(shard.id):
                    self._inline.pop(shard.id, None)
        if through.acknowledge:
            # First: an announcement that comes again is what tells others of rows left behind.
            self._export_rest()
            # Before the call: a lease that is extended after its acknowledgement is an error.
            self._keeper.drop(through.acknowledge)
            self._acknowledge(through.acknowledge)
        self._keeper.drop(through.drop)

    def _acknowledge(self, received: Sequence[Received]) -> None:
        try:
            kept = self._queue.acknowledge(received)
        except (UnavailableError, FencedError) as error:
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
        _log.info("loading %s", counted(len(shards), "file"))
        loaded = self.loader.load(shards, self._inline)
        by_id = {each.id: each for each in shards}
        self._settle(loaded, by_id)

    def _settle(self, loaded: Loaded, shards: dict[str, Shard]) -> None:
        ended = [move.id for move in loaded.moves if move.end == EOF]
        on = [
            msgspec.structs.replace(shards[move.id], position=move.end, etag=move.version)
            for move in loaded.moves
            if move.end != EOF
        ]
        self._count(
            files=len(ended),
            rows=sum(move.rows for move in loaded.moves),
            bytes=loaded.bytes,
            splits=loaded.splits,
            publishes=loaded.publishes,
        )
        again = [*on, *(shards[each] for each in loaded.again)]
        self._local.again(again)
        self._keeper.resume(
            received for each in again for received in self._local.messages_of(each.id)
        )
        if loaded.resolved:
            self._resolve(loaded.resolved, shards)
        away = {each: result for each, result in loaded.failures.items() if result.away}
        self._waits = {
            each: n for each, n in self._waits.items() if each not in shards or each in away
        }
        self._left -= shards.keys()  # some of them may have come again
        self._wait_for(away, shards)
        self._count_left()
        self._fail({each: result for each, result in loaded.failures.items() if each not in away})
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

    def _resumed(self, moves: Sequence[Move]) -> None:
        """Not published after all, and read again at once."""
        ids = [move.id for move in moves]
        self._local.resume(ids)
        self._keeper.resume(received for each in ids for received in self._local.messages_of(each))

    def _end(self, ids: Sequence[str]) -> None:
        self._through(self._local.end(ids))

    def _fail(self, failed: Mapping[str, PieceResult]) -> None:
        """Count what went wrong with these shards; who has not failed for good is tried again."""
        if not failed:
            return
        failures = [Failure(shard, result.error, result.final) for shard, result in failed.items()]
        for each in failures:
            _log.warning("%s failed: %s", each.id, each.error)
        told = self._shared.fail(failures)
        now = self._clock.monotonic()
        ended, lost = [], set(failed)
        for shard in told:
            if shard.phase != "open":
                ended.append(shard.id)
            elif shard.token == "":
                pause = self._settings.retry_delay * 2 ** min(shard.failures - 1, 16)
                self._later[shard.id] = (now + min(pause, _RETRY_SECONDS_MAX), shard)
            else:
                continue
            lost.discard(shard.id)
        self._count(failed=sum(1 for shard in told if shard.phase == "failed"))
        self._end(ended)
        # Somebody else has them by now: let them be.
        self._through(self._local.drop(lost))

    def _wait_for(self, away: Mapping[str, PieceResult], shards: Mapping[str, Shard]) -> None:
        """Their store is away: let others try, and try again later."""
        if not away:
            return
        some = next(iter(away.values()))
        _log.warning("%d files cannot be read now: %s", len(away), some.error)
        self._let_go(list(away), {each: result.error for each, result in away.items()})
        now = self._clock.monotonic()
        left = []
        for each in away:
            tries = self._waits[each] = self._waits.get(each, 0) + 1
            pause = max(self._settings.retry_delay, _AWAY_SECONDS) * 2 ** min(tries - 1, 16)
            if self._once or pause > _RETRY_SECONDS_MAX:
                left.append(each)
                del self._waits[each]
            else:
                self._later[each] = (now + pause, shards[each])
        # What is held for long fills this process, and others could be loaded meanwhile.
        self._through(self._local.drop(left))
        if self._once:
            self._left.update(left)

    def _count_left(self) -> None:
        self._count(left=len(self._left | self._waits.keys()) - self.report.left)

    def _retry(self) -> None:
        """Open again what failed a while ago."""
        now = self._clock.monotonic()
        due = [shard for at, shard in self._later.values() if at <= now]
        if not due:
            return
        for shard in due:
            del self._later[shard.id]
        opened = self._shared.open([_reopened(shard) for shard in due])
        self._again(opened.values())
        self._own()

    def _again(self, shards: Iterable[Shard]) -> None:
        by_course: dict[Course, list[Shard]] = {course: [] for course in Course}
        for shard in shards:
            by_course[course_of(shard)].append(shard)
        read, done = by_course.pop(Course.READ), by_course.pop(Course.DONE)
        others = [shard for each in by_course.values() for shard in each]
        for shard in (*done, *others):
            self._waits.pop(shard.id, None)
        self._count_left()
        self._local.again(read)
        self._end([shard.id for shard in done])
        self._through(self._local.drop([shard.id for shard in others]))

    def _resolve(self, resolved: dict[str, str], shards: dict[str, Shard]) -> None:
        """Files whose version is known at last: their messages wait for another shard now."""
        for old, version in resolved.items():
            new = open_shard(shards[old].uri, version, shards[old].announced_by, "version")
            for received in self._local.messages_of(old):
                # With all that it names: another one may keep it from being acknowledged.
                named = [each for each in self._named[received.id] if each.id != old] + [new]
                self._named[received.id] = named
                self._through(self._local.add(received, self._shared.open(named).values()))
        if self._shared.end([shards[old] for old in resolved]):
            self._end(list(resolved))
        else:
            self._through(self._local.drop(list(resolved)))

    # -- the table

    def _export_rest(self) -> None:
        """What is published and not exported, by whom it may be. Of several who do it one wins."""
        if self._shared.behind():
            self._export()

    def _export(self) -> None:
        shared = self._shared
        self.target.export(shared.publishes, shared.schema, shared.mark, shared.exported)

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

    def _release(self) -> None:
        """What was not loaded."""
        self._let_go([each.id for each in self._local.working()])

    def _let_go(self, mine: Sequence[str], reasons: Mapping[str, str] | None = None) -> None:
        try:
            self._shared.release(mine, reasons or {})
        except UnavailableError as error:
            _log.warning("%d files could not be released: %s", len(mine), error)

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
