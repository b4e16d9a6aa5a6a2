"""What the processors of one run have in common: whether to go on, who waits, who owns the graph.

Contract     Each processor has a thread. It parks while it has nothing to do and unparks before it
             does anything; `unpark` is refused once the run ends. So when all are parked under the
             lock, nothing of this graph is under way, and a look at the positions is the truth.
Owner        The runner that started the graph's first processor last. Whoever finds itself fenced
             looks at that one alone: of two runners that began at the same moment and took
             processors from each other, one goes on with all of them and the other one ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.errors import UnavailableError
from penstock.graph.requests import GraphStatus, ProcessorStatus, Topology


class Ended(Exception):  # noqa: N818  # the end of a run, not an error
    """The run is over: a processor stops where it is."""


class Board:
    def __init__(self, topologies: Sequence[Topology]) -> None:
        self._graph, self._first = topologies[0].graph, topologies[0].processor
        self._lock = threading.Lock()
        self._names = {topology.processor for topology in topologies}
        self._busy = set(self._names)
        self._stuck: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._changed = threading.Event()
        self._first_tried = threading.Event()

    # -- processors

    def started(self, processor: str, epoch: int) -> None:
        self._epochs[processor] = epoch
        self.tried(processor)

    def tried(self, processor: str) -> None:
        """It was started, or cannot be."""
        if processor == self._first:
            self._first_tried.set()

    def await_turn(self, processor: str) -> None:
        """The first processor is started before the others."""
        if processor != self._first:
            while not self._first_tried.wait(0.1):
                self.check()

    def check(self) -> None:
        if self._over.is_set():
            raise Ended

    def park(self, processor: str) -> None:
        with self._lock:
            self._busy.discard(processor)
            self._stuck.pop(processor, None)
        self._changed.set()

    def unpark(self, processor: str) -> None:
        with self._lock:
            self.check()
            self._busy.add(processor)

    def stick(self, processor: str, why: str) -> None:
        """It does not get any further. It still counts as busy: its messages are not delivered."""
        with self._lock:
            self._stuck[processor] = why
        self._changed.set()

    def unstick(self, processor: str) -> None:
        with self._lock:
            self._stuck.pop(processor, None)

    def pause(self, seconds: float) -> None:
        """Between two tries; the end of the run ends it."""
        if self._over.wait(seconds):
            raise Ended

    def lost(self, status: GraphStatus) -> str | None:
        """Why the graph is not this runner's any more; None: it is."""
        first = next((each for each in status.processors if each.processor == self._first), None)
        name = f"{self._graph}/{self._first}"
        if first is None:
            return f"{name} was dropped or renamed while it ran"
        # A reset raises the epoch too, and takes the graph from nobody.
        if first.epoch - first.reset == self._epochs.get(self._first):
            return None
        return (
            f"{name} was reset while it ran"
            if first.reset
            else (f"{name} was taken over by another runner")
        )

    def fail(self, error: BaseException) -> None:
        """The run as a whole cannot go on."""
        with self._lock:
            self._error = self._error or error
        self.end()

    def end(self) -> None:
        self._over.set()
        self._changed.set()

    # -- the run

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def await_change(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()

    def settle(self, look: Callable[[], GraphStatus]) -> None:
        """End the run if it is idle: no processor has anything to do, or can do it."""
        with self._lock:
            if self._over.is_set() or self._busy - self._stuck.keys():
                return
            # Nobody unparks meanwhile, so nothing is written by this graph.
            status = look()
            if any(
                _has_work(each)
                for each in status.processors
                if each.processor in self._names and each.processor not in self._stuck
            ):
                return
            if self._stuck:
                name, why = next(iter(self._stuck.items()))
                self._error = self._error or UnavailableError(
                    f"{status.graph}/{name} cannot go on: {why}",
                    hint="nothing is lost: mend the cause and run the graph again; "
                    "penstock graph status shows where it stands",
                )
            self._over.set()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _has_work(status: ProcessorStatus) -> bool:
    available = [tailer.available for tailer in status.tailers]
    if not available:
        return False
    return (min if status.kind == "join" else max)(available) > 0
