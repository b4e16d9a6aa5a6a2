"""One attempt of a step as a Spark job: cut into parts, run, put together again.

Contract     `Job.run(attempt)` gives the Outcome that is to be committed. Nothing of it is visible
             before that. An unhandled failure is a StepError that says why, in the words of the
             function where it was the function; what was staged by then is dropped.
Parts        As many as Spark has cores, of PART_ROWS messages or more: a task costs some
             milliseconds. A short step is one task.
How          An RDD of part numbers, and `collect`: a third of what a DataFrame's job costs at
             least, and rows do not cross the JVM (graphwork.py).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.errors import InvalidError, PenstockError
from penstock.graph.hashes import message_hash
from penstock.graph.machine import Outcome, Run
from penstock.graph.message import Message
from penstock.graph.model import Processor
from penstock.graph.requests import Output
from penstock.spark.graphcall import Failure, described
from penstock.spark.graphfile import travels_by_value
from penstock.spark.graphread import InputRange
from penstock.spark.graphrefuse import stage_errors
from penstock.spark.graphwork import SAMPLES, Done, Landed, Work
from penstock.spark.sinks import Delivery, TableSink, Target
from penstock.words import counted

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext

_log = logging.getLogger("penstock")

PART_ROWS = 5_000
#: However many cores there are not: more would be too much for the memory of a worker.
PART_ROWS_MAX = 250_000


class StepError(Exception):
    """An attempt failed, and was not handled."""


class Job:
    def __init__(
        self, context: SparkContext, bulk: Bulk, location: str, processor: Processor
    ) -> None:
        from pyspark import cloudpickle

        self._context = context
        self._bulk = bulk
        self._location = location
        self._topology = processor.topology
        self._wants_hash = processor.wants_hash
        function: Callable[..., Any] = processor.function
        self._target: Target | None = None
        if isinstance(processor.function, TableSink):
            function, self._target = processor.function.function, processor.function.target
        travels_by_value(function)
        try:
            dumps: Callable[[object], bytes] = cloudpickle.dumps
            self._function = dumps(function)
        except Exception as error:
            raise InvalidError(
                f"{self._topology.id}: its function cannot be sent to Spark's workers: {error}",
                hint="open connections and locks inside the function, not around it",
            ) from error

    def run(self, attempt: Run) -> Outcome:
        if self._target is not None:
            self._target.prepare()
        inputs = ranges_of(attempt)
        count = inputs[0].end - inputs[0].start
        edges = part_edges(count, self._context.defaultParallelism)
        topology = self._topology
        work = Work(
            location=self._location,
            paths=[path for path in sys.path if path],
            function=self._function,
            graph=topology.graph,
            processor=topology.processor,
            processor_id=attempt.processor_id,
            kind=topology.kind,
            takes_hash=self._wants_hash,
            inputs=inputs,
            edges=edges,
            outputs=topology.outputs,
            has_errors=topology.errors is not None,
            skips=topology.on_evicted == "skip",
            once=topology.semantics == "at_most_once",
            # Of this attempt alone: whoever tries again stages anew.
            key=b"graph " + SystemClock().entropy(16).hex().encode(),
            target=self._target,
        )
        parts = len(edges) - 1
        try:
            numbers = self._context.parallelize(range(parts), parts)
            found: list[Done] = numbers.mapPartitionsWithIndex(work).collect()
        except Exception as error:
            self._abandon(work.key)
            raise StepError(why(error)) from error
        stopped = next((done.stopped for done in found if done.stopped is not None), None)
        if stopped is not None:
            self._abandon(work.key)
            raise StepError(stopped)
        return self._put_together(attempt, inputs, found, work.key)

    def _put_together(
        self, attempt: Run, inputs: Sequence[InputRange], found: list[Done], key: bytes
    ) -> Outcome:
        topology = self._topology
        _log_failures(
            topology.id,
            [sample for done in found for sample in done.samples],
            sum(done.handled for done in found),
        )
        # Rows of a ready-made sink are no entries: those messages end here.
        ended = {row.offset for done in found for row in done.rows}
        refused = self._write(attempt, inputs, found)
        _log_failures(topology.id, refused, len(refused))
        outputs = [
            _output(stream, [done.outputs[i] for done in found])
            for i, stream in enumerate(topology.outputs)
        ]
        errors = None
        failed = [done.errors for done in found]
        stagings = {done.staging for done in found if done.staging is not None}
        if topology.errors is not None:
            if refused:
                staging, failed = stage_errors(self._bulk, key, failed, refused)
                stagings.add(staging)
            errors = _output(topology.errors, failed)
        if len(stagings) > 1:
            # The lease of the first one was over before its last task was done.
            raise StepError("what the first tasks had staged is gone")
        return Outcome(
            outputs=[output for output in outputs if output is not None],
            errors=errors,
            nil=sum(done.nil for done in found)
            + len(ended)
            - (0 if topology.errors is None else len(refused)),
            staging=next(iter(stagings), None),
            skipped=sum(done.skipped for done in found),
        )

    def _write(
        self, attempt: Run, inputs: Sequence[InputRange], found: list[Done]
    ) -> list[Failure]:
        """-> what a ready-made sink did not take"""
        if self._target is None:
            return []
        topology, (read,) = self._topology, inputs
        refused = self._target.write(
            Delivery(
                topology.id,
                f"penstock {attempt.started.uid} {read.stream_id}",
                read.end,
                [row for done in found for row in done.rows],
                read.start,
            )
        )
        return [
            described(
                topology.graph,
                topology.processor,
                [Message(b"", stream=read.stream, offset=offset)],
                error,
                message_hash(attempt.processor_id, [(read.stream_id, offset)]),
            )
            for offset, error in sorted(refused.items())
        ]

    def _abandon(self, key: bytes) -> None:
        """Else it would go when its lease is over."""
        with suppress(PenstockError):
            self._bulk.drop(self._bulk.begin(key=key))


def ranges_of(attempt: Run) -> list[InputRange]:
    """What is read: of an alts the chosen input alone."""
    tailers = {tailer.alias: tailer for tailer in attempt.tailers}
    return [
        InputRange(
            each.alias, tailers[each.alias].stream, tailers[each.alias].stream_id,
            each.start, each.end,
        )
        for each in attempt.ranges
        if each.end > each.start
    ]  # fmt: skip


def part_edges(count: int, cores: int) -> list[int]:
    parts = max(1, min(cores, count // PART_ROWS), -(-count // PART_ROWS_MAX))
    return [count * i // parts for i in range(parts + 1)]


def _output(stream: str, landed: Sequence[Landed]) -> Output | None:
    if not any(each.rows for each in landed):
        return None
    return Output(
        stream,
        [node for each in landed for node in each.nodes],
        [each.writer for each in landed if each.writer is not None],
    )


def _log_failures(processor_id: str, samples: Sequence[Failure], handled: int) -> None:
    for sample in samples[:SAMPLES]:
        _log.warning("%s: %s", processor_id, sample.text)
    if handled > SAMPLES:
        more = counted(handled - SAMPLES, "more message", "more messages")
        _log.warning("%s: %s failed", processor_id, more)


def why(error: BaseException) -> str:
    """Of a failed job, in a line: Spark's own words are pages."""
    text = str(error)
    if "Python worker exited unexpectedly" in text:
        return "a Python worker was killed or crashed"
    # The last line of a Python traceback that Spark quotes.
    quoted = re.findall(r"^(?:[\w.]*(?:Error|Exception|Exit|Interrupt))\b.*$", text, re.MULTILINE)
    if quoted:
        return str(quoted[-1]).strip()[:1000]
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:1000]
