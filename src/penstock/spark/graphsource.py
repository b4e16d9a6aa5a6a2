"""A source's step: what its generator yields next, with the position behind it.

Contract     `Feed.run(attempt)` takes what comes within STEP_SECONDS of the first yield, at most
             step_max outputs or some megabytes. An empty outcome says that the generator has ended;
             after that the function is called again, with the last committed position, and goes
             on with what has come since; one without positions is not. A new Feed, after a failure,
             calls it again too.
Positions    Outputs commit with the position of their yield, so each yield has its own: where one
             has several outputs, it yields a list. A source without positions begins anew each
             time, at least once.
Errors       An output that is none is a handled error. What the generator raises is not; but what
             it yielded before goes out first.
Where        In the driver: it is one thread of code, and its state is in this process.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import InvalidError
from penstock.graph.hashes import source_hash
from penstock.graph.machine import Outcome, Run
from penstock.graph.message import Stop
from penstock.graph.model import Processor
from penstock.graph.outputs import decode_position, encode_position, pack
from penstock.graph.requests import Topology
from penstock.log.batch import Entry
from penstock.spark.graphcall import described, returned

_log = logging.getLogger("penstock")

STEP_SECONDS = 0.1
STEP_MAX = 10_000
STEP_BYTES = 2 << 20

_NOTHING = object()


class Feed:
    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._topology = processor.topology
        self._step_max = processor.step_max or STEP_MAX
        self._yields: Iterator[Any] | None = None
        self._last: bytes | None = None
        self._failure: BaseException | None = None
        self._exhausted = False
        self._clock = SystemClock()

    def run(self, attempt: Run) -> Outcome:
        if self._failure is not None:
            raise self._failure
        if self._exhausted:
            # Told once; one that has positions is asked again later, whether there is more.
            self._exhausted = not self._processor.wants_position
            return Outcome()
        if self._yields is None:
            self._yields = self._begin(attempt.position)
            self._last = attempt.position
        gathered = _Gathered(self._topology, attempt.step)
        begun: float | None = None
        while gathered.count < self._step_max and gathered.bytes < STEP_BYTES:
            try:
                value = next(self._yields, _NOTHING)
                if value is _NOTHING:
                    self._yields, self._exhausted = None, True
                    break
                self._take(value, gathered)
            except BaseException as error:
                if not gathered.count:
                    raise
                self._failure = error
                break
            begun = begun or self._clock.monotonic()
            if self._clock.monotonic() > begun + STEP_SECONDS:
                break
        return gathered.outcome(self._topology.outputs[0], self._topology.errors)

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

    def _take(self, value: Any, gathered: _Gathered) -> None:
        if not self._processor.wants_position:
            gathered.add(value, None)
            return
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
        gathered.add(output, encoded)


class _Gathered:
    def __init__(self, topology: Topology, step: int) -> None:
        self._topology = topology
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
            return
        for (tag, data), found in zip(pairs, hashes, strict=False):
            self._entries.append((tag, data, found))
            self.bytes += len(data)
        self._nil += not pairs

    def outcome(self, output: str, errors: str | None) -> Outcome:
        failed = self._errors if errors is not None else []
        return Outcome(
            outputs=[pack(output, self._entries)] if self._entries else [],
            errors=pack(errors, failed) if errors is not None and failed else None,
            nil=self._nil + len(self._errors) - len(failed),
            position=self._position,
        )
