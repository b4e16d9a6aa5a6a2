"""One processor, step by step: the persistence component, without asking, reading or running.

Contract     `processor_steps` is a generator of effects; who drives it does what each says and
             sends back the answer. Spark with a broker behind a socket is one driver, a test that
             crashes between any two effects another.
             Ask(request)   send it to the broker                      <- its reply
             Run(…)         read the ranges, run the function          <- Outcome
             Idle(…)        there is nothing to do                     <- milliseconds that the next
                            look may wait; for a source, who drives it waits by itself
             An unhandled failure, of an ask or a run, ends it: who drives it throws nothing in,
             but begins a new one, whose Start is the recovery (recovery.py).
The steps    of the specification: 1-3 Ask(TakeSnapshot), on the first attempt only; 4 the read of
             Run, 4a Ask(ChooseInput), on the first attempt of an alts only; 5-6 Run; 7-8
             Ask(CommitStep); 9 the loop.
Which range  of a pipe, fork or sink: what is there; of a join: as many as all inputs have; of an
             alts: of the next input that has something, round robin. Never more messages than the
             bound, nor more bytes: of those about, by what an entry of the stream takes by then.
Not here     what the broker decides (snapshot.py, commit.py), back-off and threads (spark/).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec

from penstock.graph.requests import (
    AT_MOST_ONCE_MAX,
    ChooseInput,
    CommitStep,
    Committed,
    Look,
    Looked,
    NarrowStep,
    Output,
    Range,
    Reply,
    Request,
    Start,
    Started,
    Tailer,
    Taken,
    TakeSnapshot,
    Topology,
)

#: A range that failed this often is halved.
TRIES_MAX = 2


class Ask(msgspec.Struct, frozen=True):
    request: Request


class Run(msgspec.Struct, frozen=True):
    """One attempt."""

    started: Started
    processor_id: str  # what messages are hashed with
    step: int
    step_hash: bytes
    ranges: list[Range]
    tailers: list[Tailer]
    position: bytes | None = None  # of a source


class Idle(msgspec.Struct, frozen=True):
    tailers: list[Tailer]


class Outcome(msgspec.Struct, frozen=True):
    """What an attempt gave. Nothing of it is visible before it is committed."""

    outputs: list[Output] = []
    errors: Output | None = None
    nil: int = 0
    staging: int | None = None
    skipped: int = 0
    position: bytes | None = None  # of a source
    #: Of a source: it has nothing more for now. One that yields, if nothing but None, has.
    exhausted: bool = False


Effect = Ask | Run | Idle
Answer = Reply | Outcome | int


def processor_steps(
    topology: Topology,
    *,
    step_max: int,
    step_bytes: int | None = None,
    known: int | None = None,
    narrows: bool = True,
    first_max: int | None = None,
) -> Generator[Effect, Answer, None]:
    """`step_max`, `step_bytes`: messages of one step, and what they take of each stream. `known`:
    the processor's number, of a runner that had it before. With `narrows` a range that keeps
    failing is halved. `first_max`: messages of the first step: nothing is stored of what
    at_least_once has under way, so its runner narrows by itself."""
    started = yield Ask(Start(topology, known))
    assert isinstance(started, Started), _unexpected(started)
    if topology.kind == "source":
        yield from _source_steps(topology, started)
        return
    machine = _Machine(topology, started, step_max, step_bytes, first_max)
    yield from machine.recover(narrows=narrows)
    while True:
        yield from machine.step()


def plan_ranges(
    kind: str,
    tailers: Sequence[Tailer],
    step_max: int,
    last_chosen: str | None,
    step_bytes: int | None = None,
) -> list[Range]:
    """The next step's ranges, of all inputs; all of them empty: there is nothing to do."""
    counts = [min(step_max, each.available, _fitting(each, step_bytes)) for each in tailers]
    if kind == "join":
        counts = [min(counts)] * len(tailers)
    elif kind == "alts":
        chosen = _next_input(tailers, last_chosen)
        counts = [n * (t is chosen) for n, t in zip(counts, tailers, strict=True)]
    return [
        Range(t.alias, t.position, t.position + n) for n, t in zip(counts, tailers, strict=True)
    ]


def _fitting(tailer: Tailer, step_bytes: int | None) -> int:
    """At least one: a message that is larger goes alone."""
    if step_bytes is None or not tailer.mean_bytes:
        return tailer.available
    return max(1, int(step_bytes / tailer.mean_bytes))


def _next_input(tailers: Sequence[Tailer], last_chosen: str | None) -> Tailer | None:
    names = [tailer.alias for tailer in tailers]
    at = names.index(last_chosen) + 1 if last_chosen in names else 0
    turn = [*tailers[at:], *tailers[:at]]
    return next((tailer for tailer in turn if tailer.available), None)


class _Machine:
    def __init__(
        self,
        topology: Topology,
        started: Started,
        step_max: int,
        step_bytes: int | None,
        first_max: int | None,
    ) -> None:
        self._topology = topology
        self._started = started
        self._tail = started.tail
        self._step = started.step
        self._tailers = started.tailers
        self._last_chosen = started.last_chosen
        self._step_max = step_max
        if topology.semantics == "at_most_once":
            self._step_max = min(step_max, AT_MOST_ONCE_MAX)
        self._step_bytes = step_bytes
        self._next_max = self._step_max if first_max is None else min(first_max, self._step_max)

    def recover(self, *, narrows: bool) -> Generator[Effect, Answer, None]:
        """Go on with the step that was begun and not delivered."""
        pending = self._started.pending
        if pending is None:
            return
        ranges, step_hash, chosen = pending.ranges, pending.step_hash, pending.chosen
        if self._topology.kind == "alts" and chosen is None:
            # The choice was not made when it failed, so any input will do now.
            ranges = yield from self._available()
            step_hash = yield from self._choose(ranges)
        elif narrows and self._started.tries > TRIES_MAX and (count := _longest(ranges)) > 1:
            taken = yield from self._take(
                NarrowStep(self._started.processor, self._started.epoch, self._tail, count // 2)
            )
            ranges, step_hash = taken.ranges, taken.step_hash
        yield from self._attempt(pending.processor_id, ranges, step_hash)

    def step(self) -> Generator[Effect, Answer, None]:
        topology = self._topology
        ranges = yield from self._available()
        starts = ranges
        if topology.kind == "alts":
            starts = [Range(each.alias, each.start, each.start) for each in ranges]
        taken = yield from self._take(
            TakeSnapshot(self._started.processor, self._started.epoch, self._tail, starts)
        )
        step_hash = taken.step_hash
        if topology.kind == "alts":
            step_hash = yield from self._choose(ranges)
        yield from self._attempt(topology.id, ranges, step_hash)

    def _available(self) -> Generator[Effect, Answer, list[Range]]:
        """What the next step reads; waits until there is something."""
        block_ms = 0
        looked = False
        while True:
            ranges = plan_ranges(
                self._topology.kind,
                self._tailers,
                self._next_max,
                self._last_chosen,
                self._step_bytes,
            )
            if _longest(ranges) and (looked or self._topology.on_evicted != "skip"):
                return ranges
            if looked:
                answer = yield Idle(self._tailers)
                assert isinstance(answer, int), "milliseconds"
                block_ms = answer
            reply = yield Ask(Look(self._started.processor, self._started.epoch, block_ms))
            assert isinstance(reply, Looked), _unexpected(reply)
            self._tailers = reply.tailers
            looked = True

    def _choose(self, ranges: list[Range]) -> Generator[Effect, Answer, bytes]:
        (chosen,) = (each for each in ranges if each.end > each.start)
        taken = yield from self._take(
            ChooseInput(
                self._started.processor, self._started.epoch, self._tail, chosen.alias, chosen.end
            )
        )
        return taken.step_hash

    def _take(
        self, request: TakeSnapshot | ChooseInput | NarrowStep
    ) -> Generator[Effect, Answer, Taken]:
        taken = yield Ask(request)
        assert isinstance(taken, Taken), _unexpected(taken)
        self._tail = taken.tail
        return taken

    def _attempt(
        self, processor_id: str, ranges: list[Range], step_hash: bytes
    ) -> Generator[Effect, Answer, None]:
        started = self._started
        outcome = yield Run(started, processor_id, self._step, step_hash, ranges, self._tailers)
        assert isinstance(outcome, Outcome), "an attempt gives an outcome"
        committed = yield Ask(
            CommitStep(
                started.processor, started.epoch, self._tail, ranges, step_hash, outcome.outputs,
                outcome.errors, outcome.nil, outcome.staging, None, outcome.skipped,
            )
        )  # fmt: skip
        assert isinstance(committed, Committed), _unexpected(committed)
        self._tail, self._step = committed.tail, committed.step
        self._tailers = committed.tailers
        self._next_max = self._step_max
        if self._topology.kind == "alts":
            self._last_chosen = next(each.alias for each in ranges if each.end > each.start)


def _source_steps(topology: Topology, started: Started) -> Generator[Effect, Answer, None]:
    tail, step, position = started.tail, started.step, started.position
    while True:
        outcome = yield Run(started, topology.id, step, b"", [], [], position)
        assert isinstance(outcome, Outcome), "an attempt gives an outcome"
        if outcome.exhausted:
            answer = yield Idle([])
            assert isinstance(answer, int), "milliseconds"
            continue
        committed = yield Ask(
            CommitStep(
                started.processor, started.epoch, tail, [], b"", outcome.outputs, outcome.errors,
                outcome.nil, outcome.staging, outcome.position,
            )
        )  # fmt: skip
        assert isinstance(committed, Committed), _unexpected(committed)
        tail, step = committed.tail, committed.step
        position = position if outcome.position is None else outcome.position


def _longest(ranges: Sequence[Range]) -> int:
    return max((each.end - each.start for each in ranges), default=0)


def _unexpected(reply: object) -> str:
    return f"not the reply to what was asked: {reply!r}"
