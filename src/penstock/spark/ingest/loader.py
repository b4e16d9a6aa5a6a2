"""One batch: files in, splits out, published with the positions of their shards.

Contract     load(shards) reads each from its position on, in one Spark job, and publishes what was
             read in one commit. The answer says what became of every shard. Nothing of a file that
             could not be read, or that another process has by now, is in the table.
Order        begin a staging - write splits - delete what will not be published - publish. Whoever
             is killed in between leaves a staging that others revoke and clear away.
Crashes      A Python worker that dies takes its job with it. If Spark still works, the batch is
             halved until the file that kills it is alone, and that one has failed. So is a batch
             whose columns, or whose publish, are refused, if the table itself is fine.
Invariant    A split is deleted only while nobody can have published it: by who revoked its staging,
             or by its writer before the publish is sent. A refused publish may be the repetition
             of one that was accepted.
Not here     Which shards, when, and what is acknowledged (coordinator.py).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import InvalidError, PenstockError, UnavailableError
from penstock.source.requests import (
    BOF,
    EOF,
    Ask,
    Beat,
    BeginStaging,
    FinishStagings,
    Move,
    Publish,
    Refused,
    RevokeStagings,
    Shard,
    SourceInfo,
    Split,
)
from penstock.spark.ingest.announced import is_unresolved
from penstock.spark.ingest.delta import app_id
from penstock.spark.ingest.denied import Denials
from penstock.spark.ingest.files import Stat, compression_of, stat
from penstock.spark.ingest.options import Settings
from penstock.spark.ingest.pieces import Outcome, PieceResult, Plan, Work, failed, outcome, plan
from penstock.spark.ingest.readers import row_group_bytes
from penstock.spark.ingest.schema import merge_schemas, settle
from penstock.spark.ingest.sparkjob import TaskRunner, crashes, reason_of, run_job
from penstock.spark.ingest.storedschema import StoredSchema
from penstock.spark.ingest.tablefolder import remove, staging_folder
from penstock.spark.ingest.task import Job, TaskResult, pack_schema, unpack_schema

_log = logging.getLogger("penstock")

R = TypeVar("R")

#: Where Spark does not say how many tasks it runs at once.
_TASKS = 8
#: No task reads much more than this; memory does not depend on it.
TASK_BYTES = 256 * 2**20


class Loaded(msgspec.Struct, frozen=True):
    """What became of the shards of a batch; each is in one of these."""

    moves: list[Move] = []  # published
    failures: dict[str, PieceResult] = {}
    resolved: dict[str, str] = {}  # shard -> the version that its file turned out to have
    again: list[str] = []  # nothing is wrong with them, but nothing was published
    lost: list[str] = []  # to another process
    bytes: int = 0  # of the files that were read
    splits: int = 0
    publishes: int = 0

    def and_also(self, other: Loaded) -> Loaded:
        return Loaded(
            self.moves + other.moves,
            self.failures | other.failures,
            self.resolved | other.resolved,
            self.again + other.again,
            self.lost + other.lost,
            self.bytes + other.bytes,
            self.splits + other.splits,
            self.publishes + other.publishes,
        )


class Loader:
    def __init__(
        self,
        settings: Settings,
        source: SourceInfo,
        token: str,
        *,
        ask: Callable[[Ask[Any]], Any],
        spark: Any,
        pool: Executor,
        clock: Clock,
        staged: Callable[[list[int]], None],
        sent: Callable[[Sequence[Move]], None],
        resumed: Callable[[Sequence[Move]], None],
        schema: StoredSchema,
    ) -> None:
        self._settings = settings
        self._source = source
        self._token = token
        self._ask = ask
        self._spark = spark
        self._pool = pool
        self._clock = clock
        #: Told which stagings are to be kept alive, what is read and about to be published, and
        #: what of that is read again after all.
        self._staged = staged
        self._sent = sent
        self._resumed = resumed
        self._denials = Denials(pool)
        self._name = hashlib.blake2s(app_id(source).encode(), digest_size=6).hexdigest()
        self.schema = schema

    def _infer(self, planned: Plan) -> dict[int, PieceResult]:
        """The schema of the files of this batch; of one that has none it stays unknown.

        -> pieces whose store was away; with any of them it stays as it is"""
        runner = TaskRunner(planned.tasks, None, self._settings.reading)
        results = run_job(self._spark, runner)
        away = {piece.number: piece for each in results for piece in each.pieces}
        if not away:
            found = settle(merge_schemas(unpack_schema(each.schema) for each in results))
            self.schema.widen(found, evolve=self._settings.evolve)
        return away

    # -- a batch

    def load(self, shards: Sequence[Shard], inline: Mapping[str, bytes]) -> Loaded:
        works, failures, resolved = self._prepare(shards, inline)
        works, later = self._fill(works)
        done = Loaded(failures=failures, resolved=resolved, again=[work.id for work in later])
        return self._judge_denied(done.and_also(self._load(works)) if works else done, shards)

    def _judge_denied(self, loaded: Loaded, shards: Sequence[Shard]) -> Loaded:
        """A file that may not be read has failed, if its store is there."""
        failures = dict(loaded.failures)
        denied = {each.id: each.uri for each in shards if _is_denied(failures.get(each.id))}
        own = self._denials.of_files(set(denied.values()))
        for shard, uri in denied.items():
            if uri in own:
                failures[shard] = msgspec.structs.replace(failures[shard], away=False)
        return msgspec.structs.replace(loaded, failures=failures)

    def _fill(self, works: Sequence[Work]) -> tuple[list[Work], list[Work]]:
        """As many as a batch may hold, one at least; and the others."""
        total = 0
        for count, work in enumerate(works):
            total += min(work.size, self._settings.chunk_bytes) if work.divisible else work.size
            if count and total > self._settings.batch_bytes:
                return list(works[:count]), list(works[count:])
        return list(works), []

    def _prepare(
        self, shards: Sequence[Shard], inline: Mapping[str, bytes]
    ) -> tuple[list[Work], dict[str, PieceResult], dict[str, str]]:
        works: list[Work] = []
        failures: dict[str, PieceResult] = {}
        resolved: dict[str, str] = {}
        for shard, found in zip(
            shards, self._pool.map(lambda shard: self._look(shard, inline), shards), strict=True
        ):
            if isinstance(found, PenstockError):
                failures[shard.id] = failed(-1, found)
            elif isinstance(found, str):
                resolved[shard.id] = found
            else:
                works.append(found)
        return works, failures, resolved

    def _look(self, shard: Shard, inline: Mapping[str, bytes]) -> Work | PenstockError | str:
        """What is to be read of a shard. -> why not; or the version of one that had none"""
        if shard.kind == "inline":
            data = inline[shard.id]
            return Work(shard.id, shard.uri, shard.position, len(data), data=data)
        try:
            found = stat(shard.uri)
            self._denials.seen(shard.uri)
            if is_unresolved(shard):
                return found.version
            return self._work(shard, found)
        except PenstockError as error:
            return error

    def _work(self, shard: Shard, found: Stat) -> Work:
        large = found.size > self._settings.chunk_bytes or shard.position != BOF
        divisible = False
        groups: tuple[int, ...] = ()
        if self._settings.reading.format == "parquet" and large:
            groups = row_group_bytes(shard.uri)
            divisible = True
        elif self._settings.reading.format in ("json", "text"):
            divisible = large and compression_of(shard.uri) is None
        if shard.position != BOF and not divisible:
            raise InvalidError(
                f"{shard.uri} was loaded up to {shard.position} as another format; as "
                f"{self._settings.reading.format} it can only be read whole",
                hint="go on with the format that was begun with",
            )
        version = shard.etag if self._settings.identity == "version" else None
        if version is None and divisible:
            # Its parts are of one file, whatever it is called: the first one settles which.
            version = shard.etag if shard.position != BOF else None
            version = version or found.version
            if version != found.version:
                raise InvalidError(
                    f"{shard.uri} changed after a part of it was loaded: it is now version "
                    f"{found.version}, not {version}",
                    hint="penstock ingest again goes on where that part ends, in the new file",
                )
        work = Work(
            shard.id,
            shard.uri,
            shard.position,
            found.size,
            version,
            groups=groups,
            divisible=divisible,
        )
        if work.offset > (len(groups) if groups else found.size):
            raise InvalidError(
                f"{shard.uri} is shorter than what was loaded of it, up to {work.offset:,}",
                hint="announce the new file under another name",
            )
        return work

    def _load(self, works: Sequence[Work]) -> Loaded:
        planned = plan(
            works,
            tasks=self._spark_tasks(),
            chunk_bytes=self._settings.chunk_bytes,
            task_bytes=TASK_BYTES,
        )
        staging: int | None = None
        try:
            if self.schema.columns is None or self._settings.evolve:
                try:
                    away = self._infer(planned)
                except InvalidError as error:
                    return self._divide(works, error)
                if away:
                    return self._without(works, planned, away)
            key = self._clock.entropy(16).hex()
            begun = self._ask(
                BeginStaging(self._source.id, self._token, self._settings.stale_ms, key)
            )
            staging = begun.stagings[0].id
            self._staged([staging])
            results = run_job(self._spark, self._runner(planned, staging))
        except crashes() as error:
            if staging is not None:
                self.discard(staging)
            return self._halve(works, error)
        faults = [each.fault for each in results if each.fault]
        if faults:
            self.discard(staging)
            raise UnavailableError(
                f"the table cannot be written: {faults[0]}", hint="nothing of this batch was loaded"
            )
        return self._publish(works, staging, planned, results)

    def _runner(self, planned: Plan, staging: int) -> TaskRunner:
        columns = self.schema.columns if self.schema.columns is not None else pa.schema([])
        job = Job(
            self._settings.table,
            staging_folder(self._name, staging),
            self._settings.reading,
            pack_schema(columns),
        )
        return TaskRunner(planned.tasks, job, self._settings.reading)

    def _publish(
        self, works: Sequence[Work], staging: int, planned: Plan, results: Sequence[TaskResult]
    ) -> Loaded:
        found = outcome(
            works, planned, {r.number: self._judged(r) for each in results for r in each.pieces}
        )
        splits = self._splits(found, planned, results)
        if not found.moves:
            self.discard(staging)
            return Loaded(failures=found.failures)
        if self._ask(Beat(self._source.id, self._token, [], [staging])).lost_stagings:
            # Silent for too long. Others have cleared it away, perhaps before its last files came.
            self.discard(staging)
            return Loaded(failures=found.failures, again=[move.id for move in found.moves])
        self._sent(found.moves)
        if splits:
            folder = staging_folder(self._name, staging)
            remove(self._settings.table, folder, keep={split.path for split in splits})
        request = Publish(
            self._source.id,
            self._token,
            self._clock.entropy(16).hex(),
            staging,
            self.schema.version,
            splits,
            found.moves,
        )
        try:
            answer = self._ask(request)
        except InvalidError as error:
            self.discard(staging, published=True)
            self._resumed(found.moves)
            good = [work for work in works if work.id not in found.failures]
            return Loaded(failures=found.failures).and_also(self._divide(good, error))
        self._staged([])
        if isinstance(answer, Refused):
            self.discard(staging, published=True)
            return self._refused(answer, found)
        if not splits:
            # Published without any: the staging was revoked, and there may be files in it.
            self.discard(staging, published=True)
        return Loaded(
            moves=found.moves,
            failures=found.failures,
            bytes=_bytes(works, found.moves),
            splits=len(splits),
            publishes=1,
        )

    def _judged(self, result: PieceResult) -> PieceResult:
        """A file that is known by its name may change while it is read: then it is looked at again,
        and only one of which a part is loaded has failed."""
        if result.changed and self._settings.identity == "uri":
            return msgspec.structs.replace(result, final=False)
        return result

    def _splits(self, found: Outcome, planned: Plan, results: Sequence[TaskResult]) -> list[Split]:
        bad = {number for shard in found.failures for number in planned.pieces[shard]}
        return [
            named.split
            for each in results
            for named in each.splits
            # What shares a split was read to its end, and a part of a file shares none.
            if not bad.intersection(named.pieces)
        ]

    def _refused(self, answer: Refused, found: Outcome) -> Loaded:
        _log.warning(
            "a publish was refused (%s); %d files are read again",
            answer.reason,
            len(found.moves) - len(answer.losers),
        )
        if answer.reason == "schema":
            self.schema.refresh()
        lost = set(answer.losers)
        return Loaded(
            failures=found.failures,
            again=[move.id for move in found.moves if move.id not in lost],
            lost=[move.id for move in found.moves if move.id in lost],
        )

    # -- what is left over

    def discard(self, staging: int, *, published: bool = False) -> None:
        """Revoke, then delete, then forget; whoever finds it revoked does the rest. `published`: a
        publish of it was sent, so that only what is revoked may be deleted."""
        self._staged([])
        self._clear([staging])
        if not published:
            # Who was silent for too long finds it gone, and has written files since.
            remove(self._settings.table, staging_folder(self._name, staging))

    def clear_stale(self) -> None:
        """Delete what processes that are gone have left."""
        self._clear(None)

    def _clear(self, ids: list[int] | None) -> None:
        revoked = self._ask(RevokeStagings(self._source.id, self._token, ids)).stagings
        for each in revoked:
            remove(self._settings.table, staging_folder(self._name, each.id))
        if revoked:
            self._ask(FinishStagings(self._source.id, [each.id for each in revoked]))

    # -- Spark

    def _spark_tasks(self) -> int:
        try:
            return int(self._spark.sparkContext.defaultParallelism)
        except AttributeError:  # a session of Spark Connect does not tell
            return _TASKS

    def _halve(self, works: Sequence[Work], error: BaseException) -> Loaded:
        reason = reason_of(error)
        try:
            run_job(self._spark, TaskRunner([[]], None, self._settings.reading))
        except crashes():
            raise UnavailableError(
                f"Spark cannot run Python tasks: {reason}",
                hint="on a cluster every node needs penstock[spark], see docs/spark.md",
            ) from error
        return self._in_halves(works, PieceResult(-1, error=f"its task ended: {reason}"))

    # -- batches that cannot be loaded as they are

    def _divide(self, works: Sequence[Work], error: InvalidError) -> Loaded:
        """What is in these files was refused."""
        self.schema.check()  # raises what is no file's fault
        return self._in_halves(works, failed(-1, error))

    def _in_halves(self, works: Sequence[Work], why: PieceResult) -> Loaded:
        if len(works) == 1:
            return Loaded(failures={works[0].id: why})
        _log.warning("%d files are read in halves: %s", len(works), why.error)
        half = len(works) // 2
        return self._load(works[:half]).and_also(self._load(works[half:]))

    def _without(
        self, works: Sequence[Work], planned: Plan, away: Mapping[int, PieceResult]
    ) -> Loaded:
        """Those files of a batch that can be read."""
        failures = {
            work.id: away[number]
            for work in works
            for number in planned.pieces[work.id]
            if number in away
        }
        others = [work for work in works if work.id not in failures]
        done = Loaded(failures=failures)
        return done.and_also(self._load(others)) if others else done


def _is_denied(result: PieceResult | None) -> bool:
    return result is not None and result.denied


def _bytes(works: Sequence[Work], moves: Sequence[Move]) -> int:
    """How much of the files was read, as they are stored."""
    by_id = {work.id: work for work in works}
    total = 0
    for move in moves:
        work = by_id[move.id]
        end = None if move.end == EOF else int(move.end)
        if work.groups:
            total += sum(work.groups[work.offset : end])
        else:
            total += (work.size if end is None else end) - work.offset
    return total
