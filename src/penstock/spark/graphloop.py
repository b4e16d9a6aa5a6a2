"""One processor of a run: it drives the steps, and starts anew after a failure.

Contract     `Loop.run` returns when the run is over. An unhandled failure is noted in the store,
             where the status shows it, and after a pause the processor is started again, which is
             the recovery. The pause doubles while the very same range fails; a range that fails
             twice is narrowed at the next start (graph/machine.py), so that a message that fails
             always ends up alone. Of at_least_once nothing is stored that could be narrowed: this
             runner does it, with the bound of its next step. Other processors go on meanwhile.
Fenced       Another runner took the processor over, or somebody changed it. Then the whole run ends
             with FencedError, unless this runner is the graph's owner (graphboard.py): then it
             starts the processor again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.errors import FencedError, InvalidError, NotFoundError, PenstockError
from penstock.graph.machine import TRIES_MAX, Ask, Idle, Outcome, Run, processor_steps
from penstock.graph.model import Processor
from penstock.graph.requests import (
    Committed,
    GraphStatus,
    Look,
    NoteFailure,
    Range,
    Reply,
    Request,
    ShowGraphs,
    Started,
)
from penstock.graph.requests import Graphs as FoundGraphs
from penstock.spark.graphboard import Board, Ended
from penstock.spark.graphcall import message_of
from penstock.spark.graphjob import StepError

_log = logging.getLogger("penstock")

#: How long a look waits for entries.
BLOCK_MS = 250
#: How long a source that has ended is left alone.
SOURCE_SECONDS = 1.0
#: Between two tries of the same range, at first and at most.
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 30.0
#: Failures of a range that cannot be narrowed, after which it counts as stuck.
STUCK_TRIES = 5


class Door(Protocol):
    def ask(self, request: Request) -> Reply: ...


class Attempts(Protocol):
    """Who runs the function: Job, FrameJob, Feed."""

    def run(self, attempt: Run) -> Outcome: ...


class Loop:
    def __init__(
        self,
        processor: Processor,
        door: Door,
        board: Board,
        attempts: Callable[[], Attempts],
        step_max: int,
        step_bytes: int | None = None,
    ) -> None:
        self._processor = processor
        self._topology = processor.topology
        self._door = door
        self._board = board
        self._attempts = attempts
        self._step_max = step_max
        self._step_bytes = step_bytes
        self._started: Started | None = None
        #: The range that is under way, and how often it failed in a row.
        self._range: tuple[int, list[Range]] | None = None
        self._failures = 0
        #: Where it begins, and how often it was tried from there, however long it was.
        self._begins: tuple[int, list[int]] | None = None
        self._tries = 0

    def run(self) -> None:
        try:
            self._board.await_turn(self._topology.processor)
            while True:
                try:
                    self._drive()
                except Exception as error:
                    self._board.check()  # what fails when all is being ended says nothing
                    self._failed(error)
        except Ended:
            return
        except BaseException as error:
            self._board.fail(error)

    def _drive(self) -> None:
        topology, name = self._topology, self._topology.processor
        attempts = self._attempts()
        known = None if self._started is None else self._started.processor
        steps = processor_steps(
            topology,
            step_max=self._step_max,
            step_bytes=self._step_bytes,
            known=known,
            first_max=self._narrowed(),
        )
        effect = next(steps)
        while True:
            answer: Reply | Outcome | int
            match effect:
                case Ask(request=Look() as request):
                    self._board.check()
                    answer = self._door.ask(request)
                case Ask(request=request):
                    self._board.unpark(name)
                    answer = self._door.ask(request)
                    self._learn(answer)
                case Run():
                    # One that is parked stays so while its function looks for more, which may take
                    # long: what that yields is under way when it is committed.
                    if topology.kind == "source":
                        self._board.check()
                    else:
                        self._board.unpark(name)
                    self._begin(effect)
                    answer = attempts.run(effect)
                case Idle():
                    self._board.park(name)
                    if topology.kind == "source":
                        self._board.pause(SOURCE_SECONDS)
                    answer = BLOCK_MS
            effect = steps.send(answer)

    def _learn(self, answer: Reply) -> None:
        if isinstance(answer, Started):
            self._started = answer
            self._board.started(self._topology.processor, answer.epoch)
        elif isinstance(answer, Committed):
            self._range, self._failures = None, 0
            self._begins, self._tries = None, 0
            self._board.unstick(self._topology.processor)

    def _begin(self, attempt: Run) -> None:
        under_way = (attempt.step, attempt.ranges)
        if under_way != self._range:
            self._range, self._failures = under_way, 0
        begins = (attempt.step, [each.start for each in attempt.ranges])
        if begins != self._begins:
            self._begins, self._tries = begins, 0
        self._tries += 1

    # -- failures

    def _failed(self, error: Exception) -> None:
        topology = self._topology
        if isinstance(error, FencedError) and (lost := self._lost()) is not None:
            raise FencedError(
                f"{lost}: {error}",
                hint="one runner of a graph at a time; this one has ended, and nothing is lost",
            ) from error
        self._board.tried(topology.processor)
        self._failures += 1
        seconds = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2 ** (self._failures - 1))
        text = _text(error)
        known = isinstance(error, PenstockError | StepError)
        _log.warning(
            "%s: %s; again in %g s", topology.id, text, seconds, exc_info=None if known else error
        )
        self._note(text, seconds)
        if self._failures >= STUCK_TRIES and not self._can_narrow():
            self._board.stick(topology.processor, text)
        self._board.pause(seconds)

    def _can_narrow(self) -> bool:
        return self._longest() > 1

    def _narrowed(self) -> int | None:
        """How many messages the next step has at most, where the last one keeps failing."""
        if self._topology.semantics != "at_least_once" or self._tries < TRIES_MAX:
            return None
        return max(1, self._longest() // 2)

    def _longest(self) -> int:
        ranges = [] if self._range is None else self._range[1]
        return max((each.end - each.start for each in ranges), default=0)

    def _note(self, text: str, seconds: float) -> None:
        if self._started is None:
            return
        note = NoteFailure(self._started.processor, self._started.epoch, text, int(seconds * 1000))
        try:
            self._door.ask(note)
        except PenstockError as error:
            # The store cannot be reached, or somebody took over: the next start says so.
            _log.debug("%s: the failure was not noted: %s", self._topology.id, error)

    def _lost(self) -> str | None:
        """Why the graph is not this runner's any more; None: it is."""
        try:
            return self._board.lost(ask_status(self._door, self._topology.graph))
        except NotFoundError:
            return self._board.lost(GraphStatus(self._topology.graph, []))
        except PenstockError as error:
            # Nobody says that the graph is this runner's: then it is not, and the run ends fenced.
            return f"{self._topology.id} was fenced, and nobody says whose it is ({error})"


def ask_status(door: Door, graph: str) -> GraphStatus:
    found = door.ask(ShowGraphs(graph))
    assert isinstance(found, FoundGraphs), "the status of graphs"
    return found.graphs[0]


def _text(error: Exception) -> str:
    """For people: the error, and the kind of it where it is none of ours."""
    text = message_of(error)
    if isinstance(error, PenstockError):
        return f"{text} ({error.hint})" if isinstance(error, InvalidError) else text
    return text if isinstance(error, StepError) else f"{type(error).__name__}: {text}"
