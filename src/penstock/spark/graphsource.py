"""A source's step: what its generator yields next, with the position behind it.

Contract     `Feed.run(attempt)` takes what comes within STEP_SECONDS of the first yield, at most
             step_max outputs or some megabytes. `exhausted` says that the generator has ended;
             after that the function is called again, with the last committed position, and goes
             on with what has come since; one without positions is not. A new Feed, after a failure,
             calls it again too; the old one is let go of first.
Positions    Outputs commit with the position of their yield, so each yield has its own: where one
             has several outputs, it yields a list. A source without positions begins anew each
             time, at least once.
Errors       An output that is none is a handled error. What the generator raises is not; but what
             it yielded before goes out first. A SystemExit is a failure like others: it is not for
             a function to end the process that runs the graph.
Where        In the driver, in a thread of its own (graphpull.py), the same one for all calls: its
             state is in this process.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.client.bulk import Bulk
from penstock.errors import InvalidError
from penstock.graph.hashes import source_hash
from penstock.graph.machine import Outcome, Run
from penstock.graph.message import Stop
from penstock.graph.model import Processor
from penstock.graph.outputs import decode_position, encode_position, pack
from penstock.graph.requests import Output, Topology
from penstock.spark.graphboard import Board
from penstock.spark.graphcall import Entry, described, returned
from penstock.spark.graphjob import StepError, why
from penstock.spark.graphlay import Laying
from penstock.spark.graphpull import Puller

_log = logging.getLogger("penstock")

STEP_SECONDS = 0.1
STEP_MAX = 10_000
STEP_BYTES = 2 << 20
#: How often, and with what pauses, it is looked whether an old generator has ended.
OLD_TRIES = 50
OLD_SECONDS = 0.1
#: Of a batch that is staged.
_BATCH_BYTES = 4 << 20


class Feed:
    def __init__(
        self,
        processor: Processor,
        bulk: Bulk,
        puller: Puller,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` raises when the run is over."""
        self._processor = processor
        self._topology = processor.topology
        self._bulk = bulk
        self._puller = puller
        self._check = check
        self._step_max = processor.step_max or STEP_MAX
        self._begun = False
        self._last: bytes | None = None
        self._failure: Exception | None = None
        self._exhausted = False

    def run(self, attempt: Run) -> Outcome:
        if self._failure is not None:
            raise self._failure
        if self._exhausted:
            return self._told()
        puller = self._puller
        if not self._begun:
            self._last, self._begun = attempt.position, True
            puller.begin(lambda: self._begin(attempt.position))
        gathered = _Gathered(self._topology, attempt.step, self._bulk)
        puller.gather(lambda value: self._take(value, gathered), STEP_SECONDS, self._check)
        if puller.over and puller.failure is not None:
            failure = _failure_of(puller.failure)
            if not gathered.count:
                raise failure
            self._failure = failure
        elif puller.over:
            self._begun, self._exhausted = False, True
            if not gathered.count:
                return self._told()
        return gathered.outcome(self._topology.outputs[0], self._topology.errors)

    def let_go(self) -> None:
        """Of the generator."""
        self._puller.let_go()

    def _told(self) -> Outcome:
        # Once; one that has positions is asked again later, whether there is more.
        self._exhausted = not self._processor.wants_position
        return Outcome(exhausted=True)

    def _begin(self, position: bytes | None) -> Iterator[Any]:
        function = self._processor.function
        named = {}
        if self._processor.wants_position:
            named = {"position": decode_position(position)}
        made = function(*named.values())
        if not inspect.isgenerator(made) and not isinstance(made, Iterator | list | tuple):
            raise InvalidError(
                f"{self._topology.id}: a source yields its outputs, and this one returned "
                f"{type(made).__name__}"
            )
        return iter(made)

    def _take(self, value: Any, gathered: _Gathered) -> bool:
        """-> whether the step is full"""
        gathered.add(*self._placed(value))
        return gathered.count >= self._step_max or gathered.bytes >= STEP_BYTES

    def _placed(self, value: Any) -> tuple[Any, bytes | None]:
        if not self._processor.wants_position:
            return value, None
        if not isinstance(value, tuple) or len(value) != 2:
            raise InvalidError(
                f"{self._topology.id}: a source that takes a position yields (output, position)"
            )
        output, position = value
        encoded = encode_position(position)
        if encoded == self._last:
            raise InvalidError(
                f"{self._topology.id}: position {position!r} was yielded twice in a row",
                hint="yield the outputs of one position together, as a list",
            )
        self._last = encoded
        return output, encoded


class Feeds:
    """Of one source: a feed, and a new one after each failure."""

    def __init__(
        self,
        processor: Processor,
        bulk: Bulk,
        board: Board,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self._processor = processor
        self._bulk = bulk
        self._board = board
        self._thread = thread
        self._puller = self._new_puller()

    def begin(self) -> Feed:
        """Two generators of one function at once would be a surprise, so the old one may end first;
        but one that waits may do so for ever: then it keeps its thread, and there is a new one."""
        self._puller.let_go()
        for _ in range(OLD_TRIES):
            if not self._puller.is_busy:
                break
            self._board.pause(OLD_SECONDS)
        else:
            _log.warning("%s: begins anew while it still waits", self._processor.topology.id)
            self._puller.close()
            self._puller = self._new_puller()
        return Feed(self._processor, self._bulk, self._puller, check=self._board.check)

    def close(self) -> None:
        self._puller.close()

    def _new_puller(self) -> Puller:
        return Puller(f"{self._processor.topology.id} yields", self._thread)


def _failure_of(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else StepError(why(error))


class _Gathered:
    def __init__(self, topology: Topology, step: int, bulk: Bulk) -> None:
        self._topology = topology
        self._laying = Laying(bulk)
        self._id = topology.id
        self._step = step
        self._entries: list[Entry] = []
        self._errors: list[Entry] = []
        self._nil = 0
        self._position: bytes | None = None
        self.count = self.bytes = 0

    def add(self, output: Any, position: bytes | None) -> None:
        # Without a position there is nothing that stays the same: the step and the place in it.
        place = position or encode_position([self._step, self.count])
        self.count += 1
        self._position = position or self._position
        try:
            pairs = returned(output)
            if isinstance(output, list | tuple):
                hashes = [source_hash(self._id, place, k) for k in range(len(pairs))]
            else:
                hashes = [source_hash(self._id, place)]
        except Stop:
            raise
        except Exception as error:
            found = source_hash(self._id, place)
            failure = described(self._topology.graph, self._topology.processor, [], error, found)
            _log.warning("%s: %s", self._topology.id, failure.text)
            self._errors.append(failure.entry)
            self.bytes += _size(failure.entry)
            return
        for (tag, data), found in zip(pairs, hashes, strict=False):
            entry = (tag, data, found)
            self._entries.append(entry)
            self.bytes += _size(entry)
        self._nil += not pairs

    def outcome(self, output: str, errors: str | None) -> Outcome:
        failed = self._errors if errors is not None else []
        return Outcome(
            outputs=[self._laid(output, self._entries)] if self._entries else [],
            errors=self._laid(errors, failed) if errors is not None and failed else None,
            nil=self._nil + len(self._errors) - len(failed),
            staging=self._laying.staging,
            position=self._position,
        )

    def _laid(self, stream: str, entries: Sequence[Entry]) -> Output:
        if self._laying.fits(sum(map(_size, entries))):
            return pack(stream, entries)
        return self._laying.stage(stream, _batches(entries))


def _size(entry: Entry) -> int:
    return sum(map(len, entry))


def _batches(entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
    start = size = 0
    for end, entry in enumerate(entries, 1):
        size += _size(entry)
        if size >= _BATCH_BYTES or end == len(entries):
            columns = zip(
                ("tag", "data", "meta"), zip(*entries[start:end], strict=True), strict=True
            )
            yield pa.record_batch({name: pa.array(cells, pa.binary()) for name, cells in columns})
            start, size = end, 0
