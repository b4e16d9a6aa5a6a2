"""The door of graphs, in process and over the wire: waiting and fencing as runners see them."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.client.api import AsyncDatabase
from penstock.errors import (
    ConflictError,
    FencedError,
    InvalidError,
    NotFoundError,
)
from penstock.graph.hashes import message_hashes
from penstock.graph.machine import Ask, Idle, Outcome, Run, processor_steps
from penstock.graph.outputs import encode_position, pack
from penstock.graph.requests import (
    Changed,
    ChooseInput,
    CommitStep,
    DropProcessor,
    Input,
    Look,
    NoteFailure,
    OpenGraph,
    Output,
    Range,
    RenameProcessor,
    Request,
    ResetProcessor,
    ShowGraphs,
    Start,
    Started,
    TakeSnapshot,
    Topology,
)
from penstock.log.batch import build_bodies

PIPE = Topology("g", "p", "pipe", [Input("raw", "raw")], ["out"], "errors")


class Runner:
    """A handle, and whether its broker is in this process."""

    def __init__(self, db: penstock.Database, outside: penstock.Database) -> None:
        self.db = db
        self.outside = outside
        self.ask = outside.graphs.ask

    def outcome(self, run: Run, *, staged: bool = False) -> Outcome:
        """Every message with an exclamation mark."""
        (each,), (tailer,) = run.ranges, run.tailers
        found = self.outside.stream(tailer.stream).read(each.start, each.end - each.start)
        hashes = message_hashes(run.processor_id, tailer.stream_id, range(each.start, each.end))
        entries = [
            ("t", message.data + b"!", digest)
            for message, digest in zip(found, hashes, strict=True)
            if message is not None
        ]
        if not staged:
            return Outcome([pack("out", entries)])
        bulk = self.outside.bulk
        staging = bulk.begin(key=b"job")
        for writer, part in enumerate((entries[:1], entries[1:])):
            if part:
                bulk.stage(staging, 7 - writer, 0, build_bodies(part))
        writers = [7, 6][: 1 + (len(entries) > 1)]
        return Outcome([Output("out", writers=writers)], staging=staging)

    def run(self, *, staged: bool = False, topology: Topology = PIPE) -> None:
        steps = processor_steps(topology, step_max=3)
        effect = next(steps)
        while not isinstance(effect, Idle):
            answer: Any
            if isinstance(effect, Ask):
                answer = self.ask(effect.request)
            else:
                answer = self.outcome(effect, staged=staged)
            effect = steps.send(answer)

    def start(self, topology: Topology = PIPE) -> Started:
        return self.ask(Start(topology))


@pytest.fixture(params=["in process", "over the socket"])
def runner(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Runner]:
    with penstock.open(tmp_path / "d") as db:
        if request.param == "in process":
            yield Runner(db, db)
            return
        with penstock.open(tmp_path / "d") as other:
            # The first handle serves; the second one is a client like any other process.
            assert other._session.link.broker is None
            yield Runner(db, other)


def data_of(db: penstock.Database, name: str) -> list[bytes | None]:
    return [None if found is None else found.data for found in db.stream(name).read(0, 1000)]


@pytest.mark.parametrize("staged", [False, True])
def test_a_pipe_runs_to_the_end_with_its_hashes_as_meta(runner: Runner, staged: bool) -> None:
    runner.db.stream("raw").write_many([b"%d" % n for n in range(8)])
    assert runner.ask(OpenGraph("g", [PIPE])).fresh == ["p"]
    runner.run(staged=staged)
    assert data_of(runner.db, "out") == [b"%d!" % n for n in range(8)]
    runner.db.stream("raw").write(b"8")
    runner.run(staged=staged)
    assert data_of(runner.db, "out") == [b"%d!" % n for n in range(9)]
    found = [message for message in runner.db.stream("out").read(0, 100) if message is not None]
    (graph,) = runner.ask(ShowGraphs("g")).graphs
    (status,) = graph.processors
    (tailer,) = status.tailers
    assert [message.meta for message in found] == message_hashes("g/p", tailer.stream_id, range(9))
    assert (tailer.position, tailer.available, status.epoch) == (9, 0, 2)
    assert (status.delivered, status.written, status.nil, status.pending) == (9, 9, 0, False)
    assert status.seen_ms is not None
    assert runner.ask(OpenGraph("g", [PIPE])).fresh == []


def test_a_broker_remembers_only_processors_that_there_are(runner: Runner) -> None:
    broker = runner.db._session.link.broker
    assert broker is not None
    seen = broker.graphs._seen
    for n in range(5, 15):
        for request in (Look(n, 1), TakeSnapshot(n, 1, 0, []), CommitStep(n, 1, 0, [], b"")):
            with pytest.raises(FencedError, match="was dropped"):
                runner.ask(request)
    assert not seen
    runner.start()
    assert len(seen) == 1
    runner.ask(DropProcessor("g", "p"))
    assert not seen


def test_a_runner_that_was_overtaken_gets_a_fenced_error_and_the_location_goes_on(
    runner: Runner,
) -> None:
    runner.db.stream("raw").write_many([b"a", b"b"])
    first = runner.start()
    second = runner.start()
    assert (first.processor, first.uid) == (second.processor, second.uid)
    ranges = [Range("raw", 0, 2)]
    for request in (
        TakeSnapshot(first.processor, first.epoch, first.tail, ranges),
        CommitStep(first.processor, first.epoch, first.tail, ranges, bytes(16)),
        Look(first.processor, first.epoch),
        NoteFailure(first.processor, first.epoch, "late"),
    ):
        with pytest.raises(FencedError, match=r"epoch is 1, the latest one 2"):
            runner.ask(request)
    with pytest.raises(FencedError, match="stands at record 0, not 5"):
        runner.ask(TakeSnapshot(second.processor, second.epoch, 5, ranges))
    # It is the runner that was fenced, not the broker: the same handle goes on.
    assert runner.outside.stream("raw").info().length == 2
    runner.ask(TakeSnapshot(second.processor, second.epoch, second.tail, ranges))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks again by himself: what waits must be woken."""
    monkeypatch.setattr("penstock.broker.graphs.VERIFY_SECONDS", 10_000.0)


@pytest.mark.usefixtures("patient")
def test_a_look_waits_until_there_is_something(runner: Runner) -> None:
    started = runner.start()
    assert runner.ask(Look(started.processor, started.epoch)).tailers[0].available == 0
    looks = Looks(runner, started)
    runner.db.stream("raw").write(b"x")
    (looked,) = looks.ended()
    assert looked.tailers[0].available == 1


@pytest.mark.usefixtures("patient")
def test_a_look_ends_when_its_runner_is_overtaken(runner: Runner) -> None:
    looks = Looks(runner, runner.start())
    runner.start()
    (error,) = looks.ended()
    assert isinstance(error, FencedError)


class Looks:
    """A look that waits, in a thread of its own."""

    def __init__(self, runner: Runner, started: Started) -> None:
        self._answers: list[Any] = []

        def look() -> None:
            try:
                self._answers.append(runner.ask(Look(started.processor, started.epoch, 200_000)))
            except FencedError as error:
                self._answers.append(error)

        self._thread = threading.Thread(target=look)
        self._thread.start()

    def ended(self) -> list[Any]:
        self._thread.join(100)
        assert not self._thread.is_alive()
        return self._answers


def commit_all(runner: Runner, started: Started) -> None:
    (tailer,) = runner.ask(Look(started.processor, started.epoch)).tailers
    ranges = [Range("raw", tailer.position, tailer.next)]
    taken = runner.ask(TakeSnapshot(started.processor, started.epoch, started.tail, ranges))
    runner.ask(
        CommitStep(started.processor, started.epoch, taken.tail, ranges, taken.step_hash, nil=1)
    )


def test_a_runner_goes_on_when_its_broker_ends_and_another_takes_its_place(tmp_path: Path) -> None:
    """Between any two of its requests: the handle finds the next broker, which is itself."""
    for lost in range(1, 8):
        place = tmp_path / str(lost)
        serving = penstock.open(place)
        serving.stream("raw").write_many([b"%d" % n for n in range(5)])
        with penstock.open(place) as other:
            runner = Runner(serving, other)
            steps = processor_steps(PIPE, step_max=3)
            effect, requests = next(steps), 0
            while not isinstance(effect, Idle):
                answer: Any
                if isinstance(effect, Ask):
                    requests += 1
                    if requests == lost:
                        serving.close()
                    answer = runner.ask(effect.request)
                else:
                    answer = runner.outcome(effect, staged=True)
                effect = steps.send(answer)
            assert requests == 6
            assert data_of(other, "out") == [b"%d!" % n for n in range(5)]
        serving.close()


def test_failures_are_shown_until_the_next_commit(runner: Runner) -> None:
    runner.db.stream("raw").write(b"x")
    started = runner.start()
    runner.ask(NoteFailure(started.processor, started.epoch, "boom " * 2000, 1500))
    (graph,) = runner.ask(ShowGraphs()).graphs
    (status,) = graph.processors
    assert status.failure is not None
    assert status.failure.startswith("boom boom")
    assert len(status.failure) == 4000
    assert status.failed_ms is not None
    assert status.retry_ms == status.failed_ms + 1500
    commit_all(runner, started)
    ((status,),) = [graph.processors for graph in runner.ask(ShowGraphs()).graphs]
    assert (status.failure, status.failed_ms, status.retry_ms) == (None, None, None)


def test_what_is_stored_and_not_declared_is_refused_until_it_is_dropped_or_renamed(
    runner: Runner,
) -> None:
    runner.db.stream("raw").write(b"x")
    runner.run()
    other = Topology("g", "q", "pipe", [Input("raw", "raw")], ["out"])
    with pytest.raises(ConflictError, match="graph drop g p, or penstock graph rename g p NEW"):
        runner.ask(OpenGraph("g", [other]))
    with pytest.raises(InvalidError, match="none of graph 'g'"):
        runner.ask(OpenGraph("g", [Topology("h", "p", "pipe", [Input("a", "a")], ["b"])]))
    runner.ask(RenameProcessor("g", "p", "q"))
    assert runner.ask(OpenGraph("g", [other])).fresh == []
    with pytest.raises(ConflictError, match="was a pipe and is a sink"):
        runner.ask(OpenGraph("g", [Topology("g", "q", "sink", [Input("raw", "raw")], [])]))
    assert runner.start(other).tailers[0].position == 1  # it goes on where it stood
    runner.start()
    with pytest.raises(ConflictError, match="g/p already"):
        runner.ask(RenameProcessor("g", "q", "p"))
    runner.ask(DropProcessor("g", "q"))
    runner.ask(DropProcessor("g", "p"))
    with pytest.raises(NotFoundError, match="no processor g/p"):
        runner.ask(DropProcessor("g", "p"))
    with pytest.raises(NotFoundError, match="no graph 'g'"):
        runner.ask(ShowGraphs("g"))
    assert runner.ask(ShowGraphs()).graphs == []


def test_a_dropped_processor_fences_its_runner_and_comes_back_as_another(runner: Runner) -> None:
    started = runner.start()
    runner.ask(DropProcessor("g", "p"))
    with pytest.raises(FencedError, match="dropped"):
        runner.ask(Look(started.processor, started.epoch))
    with pytest.raises(ConflictError, match="g/p was dropped or renamed while it ran"):
        runner.ask(Start(PIPE, started.processor))
    again = runner.start()
    assert runner.ask(Start(PIPE, again.processor)).epoch == again.epoch + 1
    with pytest.raises(ConflictError, match="g/p was dropped or renamed while it ran"):
        runner.ask(Start(PIPE, started.processor))
    assert again.processor != started.processor
    assert again.uid != started.uid
    assert again.step == 0


def test_a_renamed_processor_fences_its_runner(runner: Runner) -> None:
    started = runner.start()
    runner.ask(RenameProcessor("g", "p", "q"))
    with pytest.raises(FencedError, match="g/q was started again"):
        runner.ask(Look(started.processor, started.epoch))
    with pytest.raises(ConflictError, match="g/p was dropped or renamed"):
        runner.ask(Start(PIPE, started.processor))


def test_a_reset_moves_positions_as_it_says_and_fences_the_runner(runner: Runner) -> None:
    runner.db.stream("raw").write_many([b"%d" % n for n in range(5)])
    runner.run()
    step = runner.start().step
    for start, position in (("keep", 5), ("first", 0), ("new", 5)):
        started = runner.start()
        runner.ask(ResetProcessor("g", "p", start))  # type: ignore[arg-type]
        with pytest.raises(FencedError, match="g/p was reset"):
            runner.ask(Look(started.processor, started.epoch))
        ((status,),) = [graph.processors for graph in runner.ask(ShowGraphs()).graphs]
        assert status.reset
        started = runner.start()
        assert (started.tailers[0].position, started.step) == (position, step)


def test_a_source_goes_on_after_the_position_that_was_committed(runner: Runner) -> None:
    source = Topology("g", "s", "source", [], ["raw"])
    started = runner.start(source)
    assert (started.position, started.tailers) == (None, [])
    output = pack("raw", [("", b"one", bytes(16))])
    position = encode_position({"file": "a", "line": 1})
    request = CommitStep(
        started.processor, started.epoch, started.tail, [], b"", [output], position=position
    )
    committed = runner.ask(request)
    assert runner.ask(request) == committed  # sent again, as after a lost answer
    assert data_of(runner.db, "raw") == [b"one"]
    assert runner.start(source).position == position
    again = runner.start(source)
    with pytest.raises(InvalidError, match="is a source"):
        runner.ask(TakeSnapshot(again.processor, again.epoch, again.tail, []))
    runner.ask(ResetProcessor("g", "s"))
    assert runner.start(source).position == position
    runner.ask(ResetProcessor("g", "s", "first"))
    assert runner.start(source).position is None


BAD: list[tuple[str, str]] = [
    ("told in JSON", "no json"),
    ("told in JSON", '{"type": "unknown"}'),
    ("told in JSON", '{"type": "look", "processor": 1}'),
    ("told in JSON", '{"type": "look", "processor": 1, "epoch": 1, "other": 1}'),
    ("told in JSON", '{"type": "look", "processor": "x", "epoch": 1}'),
    ("graph name of 0 bytes", '{"type": "start", "topology": {"graph": "", "processor": "p", '
     '"kind": "pipe", "inputs": [{"alias": "a", "stream": "a"}], "outputs": ["b"]}}'),
    ("a pipe with 0 inputs", '{"type": "start", "topology": {"graph": "g", "processor": "p", '
     '"kind": "pipe", "inputs": [], "outputs": ["b"]}}'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "request_json"), BAD)
def test_what_is_no_request_is_invalid_over_the_wire(
    tmp_path: Path, text: str, request_json: str
) -> None:
    with (
        penstock.open(tmp_path / "d") as db,
        penstock.open(tmp_path / "d") as other,
    ):
        link = other._session.link

        async def send() -> Any:
            assert link._seat is not None
            return await link._seat.doors.bulk._ask("PENSTOCK.GRAPH", request_json)  # type: ignore[attr-defined]

        with pytest.raises(InvalidError, match=text):
            other._session.thread.call(send())
        assert db.graphs.ask(ShowGraphs()).graphs == []


NO_TEXT: list[Request] = [
    ShowGraphs("\udcff"),
    DropProcessor("g", "\udcff"),
    DropProcessor("\udcff", "p"),
    RenameProcessor("g", "\udcff", "q"),
    RenameProcessor("g", "p", "\udcff"),
    ResetProcessor("g", "\udcff"),
    OpenGraph("\udcff", []),
    OpenGraph("g", [Topology("g", "\udcff", "pipe", [Input("a", "a")], ["b"])]),
    Start(Topology("g", "\udcff", "pipe", [Input("a", "a")], ["b"])),
    Start(Topology("g", "p", "join", [Input("\udcff", "a"), Input("b", "b")], ["c"])),
    Start(Topology("g", "p", "pipe", [Input("a", "a")], ["b"], errors="\udcff")),
    Start(msgspec.structs.replace(PIPE, kind="odd")),
    Start(msgspec.structs.replace(PIPE, semantics="odd")),
    Start(msgspec.structs.replace(PIPE, on_evicted="odd")),
    OpenGraph("g", [msgspec.structs.replace(PIPE, kind="odd")]),
    TakeSnapshot(0, 1, 0, [Range("\udcff", 0, 1)]),
    ChooseInput(0, 1, 0, "\udcff", 1),
    CommitStep(0, 1, 0, [Range("raw", 0, 0)], bytes(16), [Output("\udcff", [b"x"])]),
    NoteFailure(0, 1, "\udcff"),
]


@pytest.mark.parametrize("number", range(len(NO_TEXT)))
def test_what_cannot_be_told_is_invalid_here_and_over_the_socket(
    runner: Runner, number: int
) -> None:
    started = runner.start()
    request = NO_TEXT[number]
    if hasattr(request, "epoch"):
        request = msgspec.structs.replace(request, processor=started.processor)
    before = _stands(runner)
    with pytest.raises(InvalidError):
        runner.ask(request)
    assert _stands(runner) == before


def _stands(runner: Runner) -> list[Any]:
    found = [each for graph in runner.ask(ShowGraphs()).graphs for each in graph.processors]
    return [msgspec.structs.replace(each, seen_ms=None) for each in found]


def test_a_name_with_a_slash_is_no_name_of_a_processor(runner: Runner) -> None:
    runner.start()
    for request in (DropProcessor("g/p", ""), RenameProcessor("g", "p/", "x")):
        with pytest.raises(InvalidError):
            runner.ask(request)


def test_what_is_to_be_typed_is_quoted(runner: Runner) -> None:
    runner.start(Topology("my graph", "it's", "pipe", [Input("raw", "raw")], ["out"]))
    with pytest.raises(ConflictError) as found:
        runner.ask(OpenGraph("my graph", []))
    typed = str(found.value).partition("if that is meant: ")[2].partition(", or")[0]
    assert shlex.split(typed) == ["penstock", "graph", "drop", "my graph", "it's"]


def test_changes_whose_answer_was_lost_are_answered_as_the_first_time(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("p", "q", "r"):
        runner.start(msgspec.structs.replace(PIPE, processor=name))
    original = AsyncDatabase._run_graphs

    def forgetful(self: AsyncDatabase, errand: Any, block_ms: int) -> Any:
        async def twice(graphs: Any, left_ms: int | None) -> Any:
            await errand(graphs, left_ms)
            return await errand(graphs, left_ms)

        return original(self, twice, block_ms)

    requests: list[Request] = [
        RenameProcessor("g", "p", "new"), DropProcessor("g", "q"), ResetProcessor("g", "r"),
    ]  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(AsyncDatabase, "_run_graphs", forgetful)
        for request in requests:
            assert runner.ask(request) == Changed()
        for missing in (DropProcessor("g", "none"), RenameProcessor("g", "none", "other")):
            with pytest.raises(NotFoundError):
                runner.ask(missing)
    found = [each.processor for each in runner.ask(ShowGraphs("g")).graphs[0].processors]
    assert found == ["new", "r"]
    with pytest.raises(NotFoundError):
        runner.ask(DropProcessor("g", "q"))


def test_only_requests_about_graphs_are_asked(runner: Runner) -> None:
    with pytest.raises(InvalidError, match="no request about graphs"):
        runner.ask(PIPE)  # type: ignore[call-overload]
    with pytest.raises(InvalidError, match="cannot wait"):
        runner.ask(Look(1, 1, -5))


async def test_the_asynchronous_handle_asks_the_same(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path / "d") as db:
        first = await db.graphs.ask(Start(PIPE))
        second = await db.graphs.ask(Start(PIPE))
        assert (first.epoch, second.epoch) == (1, 2)
        with pytest.raises(FencedError, match="epoch is 1"):
            await db.graphs.ask(Look(first.processor, first.epoch, 1000))
    with pytest.raises(InvalidError, match="closed"):
        await db.graphs.ask(ShowGraphs())
