"""A processor's loop against a broker in memory, with attempts that are not Spark's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import FencedError, NotFoundError, UnavailableError
from penstock.graph import Graph
from penstock.graph.machine import Outcome, Run
from penstock.graph.model import Processor
from penstock.graph.outputs import pack
from penstock.graph.requests import (
    DropProcessor,
    Graphs,
    Input,
    ProcessorStatus,
    Reply,
    Request,
    ResetProcessor,
    Semantics,
    ShowGraphs,
    Start,
    Topology,
    decode_request,
    encode_request,
)
from penstock.spark import graphcall, graphloop
from penstock.spark.graphboard import Board
from penstock.spark.graphloop import Attempts, Loop, ask_status
from penstock.spark.graphsource import Feeds


@pytest.fixture
def db(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[penstock.Database]:
    monkeypatch.setattr(graphloop, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(graphloop, "BLOCK_MS", 5)
    with penstock.open(f"memory://{request.node.name}") as db:
        yield db


def declared(semantics: Semantics = "exactly_once") -> Graph:
    graph = Graph("g", semantics=semantics)
    for name in ("first", "second"):
        graph.pipe(f"{name}-in", f"{name}-out", name=name)(lambda message: message.data)
    return graph


class Copies:
    """What a pipe that copies offsets would do; `before` may fail it."""

    def __init__(self, before: Callable[[Run], None]) -> None:
        self._before = before

    def run(self, attempt: Run) -> Outcome:
        self._before(attempt)
        (found,) = attempt.ranges
        entries: list[Any] = [
            (b"", b"%d" % n, n.to_bytes(16, "big")) for n in range(found.start, found.end)
        ]
        name = attempt.processor_id.removeprefix("g/")
        return Outcome(outputs=[pack(f"{name}-out", entries)])


def run(
    db: penstock.Database,
    board: Board,
    graph: Graph,
    before: Callable[[Run], None],
    feeds: Feeds | None = None,
) -> None:
    """All loops, until the graph is idle; `feeds`: of its source."""

    def attempts(processor: Processor) -> Callable[[], Attempts]:
        if processor.topology.kind == "source":
            assert feeds is not None
            return feeds.begin
        return lambda: Copies(before)

    threads = [
        threading.Thread(target=Loop(processor, db.graphs, board, attempts(processor), 4).run)
        for processor in graph.processors
    ]
    for thread in threads:
        thread.start()
    while not board.is_over:
        board.await_change(0.05)
        board.settle(lambda: ask_status(db.graphs, "g"))
    for thread in threads:
        thread.join()
    board.raise_error()


def written(db: penstock.Database, name: str) -> list[bytes]:
    return [m.data for m in db.stream(f"{name}-out").read(0, 100) if m is not None]


def shown(db: penstock.Database, name: str) -> ProcessorStatus:
    found = db.graphs.ask(ShowGraphs("g"))
    assert isinstance(found, Graphs)
    return next(each for each in found.graphs[0].processors if each.processor == name)


@pytest.mark.parametrize("semantics", ["exactly_once", "at_least_once"])
def test_a_range_that_keeps_failing_is_halved_until_what_fails_is_alone(
    db: penstock.Database, semantics: Semantics
) -> None:
    db.stream("first-in").write_many([b"x"] * 8)
    db.stream("second-in").write(b"x")
    tried: list[tuple[int, int]] = []

    def poison(attempt: Run) -> None:
        (found,) = attempt.ranges
        if attempt.processor_id == "g/second":
            return
        tried.append((found.start, found.end))
        if found.start <= 5 < found.end:
            raise OSError("the fifth")

    graph = declared(semantics)
    with pytest.raises(UnavailableError, match="g/first cannot go on: OSError: the fifth"):
        run(db, Board(graph.topologies), graph, poison)
    assert written(db, "first") == [b"%d" % n for n in range(5)]
    assert tried[:7] == [(0, 4), (4, 8), (4, 8), (4, 6), (4, 5), (5, 8), (5, 8)]
    assert len(tried[7:]) >= graphloop.STUCK_TRIES
    assert set(tried[7:]) == {(5, 6)}
    assert shown(db, "first").failure == "OSError: the fifth"
    assert written(db, "second") == [b"0"]


def test_a_failure_is_shown_until_it_is_over(db: penstock.Database) -> None:
    db.stream("first-in").write(b"x")
    seen: list[str | None] = []

    def twice(attempt: Run) -> None:
        seen.append(shown(db, "first").failure)
        if len(seen) < 3:
            raise OSError(f"no {len(seen)}")

    graph = declared()
    run(db, Board(graph.topologies), graph, twice)
    assert seen == [None, "OSError: no 1", "OSError: no 2"]
    assert shown(db, "first").failure is None
    assert written(db, "first") == [b"0"]


def test_a_runner_that_lost_the_first_processor_ends(db: penstock.Database) -> None:
    graph = declared()
    db.stream("first-in").write(b"x")

    def overtaken(attempt: Run) -> None:
        db.graphs.ask(Start(graph.topologies[0]))

    with pytest.raises(FencedError, match="g/first was taken over by another runner"):
        run(db, Board(graph.topologies), graph, overtaken)
    assert written(db, "first") == []


def test_a_range_that_grows_while_it_fails_is_halved_as_well(db: penstock.Database) -> None:
    """Of at_least_once: nothing is stored of the range, so a new try takes what has come since."""
    graph = declared("at_least_once")
    db.stream("first-in").write_many([b"x"] * 2)
    tried: list[tuple[int, int]] = []

    def poison(attempt: Run) -> None:
        (found,) = attempt.ranges
        tried.append((found.start, found.end))
        if len(tried) == 1:
            db.stream("first-in").write_many([b"x"] * 2)
        if len(tried) < 5:
            raise OSError("not yet")

    run(db, Board(graph.topologies), graph, poison)
    assert tried == [(0, 2), (0, 4), (0, 2), (0, 1), (0, 1), (1, 4)]
    assert written(db, "first") == [b"%d" % n for n in range(4)]


def test_a_step_is_bounded_by_what_entries_take_by_then(db: penstock.Database) -> None:
    """The stream was empty when the processor began, and its entries turn out to be large."""
    graph = declared()
    board = Board(graph.topologies)
    raw = db.stream("first-in")
    large = [SystemClock().entropy(1000) for _ in range(8)]
    tried: list[tuple[int, int]] = []

    def grows(attempt: Run) -> None:
        (found,) = attempt.ranges
        tried.append((found.start, found.end))
        if found.start == 0:
            raw.write_many(large)
        if found.end == 9:
            board.end()

    loop = Loop(graph.processors[0], db.graphs, board, lambda: Copies(grows), 100, 4000)
    thread = threading.Thread(target=loop.run)
    thread.start()
    raw.write(b"small")
    thread.join()
    board.raise_error()
    assert tried[0] == (0, 1)
    assert max(end - start for start, end in tried) in (3, 4)


class Wire:
    """A door that is a socket away."""

    def __init__(self, db: penstock.Database) -> None:
        self._db = db
        self.largest = 0

    def ask(self, request: Request) -> Reply:
        told = encode_request(request)
        self.largest = max(self.largest, len(told))
        return self._db.graphs.ask(decode_request(told))


def test_whatever_an_error_says_can_be_noted(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphcall, "MESSAGE_CHARS_MAX", 40)
    # A traceback with a lone surrogate is more than a process that reports to another can tell.
    monkeypatch.setattr(logging.getLogger("penstock"), "disabled", True)

    class OddError(Exception):
        def __str__(self) -> str:
            raise ValueError

    graph = declared()
    door, board = Wire(db), Board(graph.topologies)
    db.stream("first-in").write(b"x")
    errors = iter([OSError("\udcff"), OSError("x" * 5000), OddError()])
    seen: list[str] = []

    def odd(attempt: Run) -> None:
        seen.append(str(shown(db, "first").failure))
        if (error := next(errors, None)) is not None:
            raise error
        board.end()

    Loop(graph.processors[0], door, board, lambda: Copies(odd), 4).run()
    board.raise_error()
    assert seen == [
        "None",
        "OSError: \\udcff",
        f"OSError: {'x' * 40}… (5,000 characters)",
        "OddError: (its text cannot be shown: ValueError)",
    ]
    assert door.largest < 5000


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphloop, "SOURCE_SECONDS", 0.001)


@pytest.mark.usefixtures("soon")
def test_a_graph_is_idle_while_a_source_is_asked_whether_there_is_more(
    db: penstock.Database,
) -> None:
    """That may take long; and of two such sources one would always be asked."""
    graph = Graph("g")
    again, more = threading.Event(), threading.Event()

    @graph.source("out")
    def feed(position: int | None) -> Iterator[Any]:
        if position is not None:
            again.set()
            more.wait()
        yield b"x", (position or 0) + 1

    (processor,) = graph.processors
    board = Board(graph.topologies)
    feeds = Feeds(processor, db.bulk, board)
    thread = threading.Thread(target=Loop(processor, db.graphs, board, feeds.begin, 4).run)
    thread.start()
    try:
        assert again.wait(60)
        board.settle(lambda: ask_status(db.graphs, "g"))
        assert board.is_over
    finally:
        more.set()  # too late: the run is over, and this is for the next one
        board.end()
        thread.join()
        feeds.close()
    board.raise_error()
    assert [m.data for m in db.stream("out").read(0, 9) if m is not None] == [b"x"]


@pytest.mark.usefixtures("soon")
def test_a_source_that_exits_is_tried_again_and_the_others_go_on(db: penstock.Database) -> None:
    graph = declared()
    calls: list[int | None] = []

    @graph.source("first-in")
    def feed(position: int | None) -> Iterator[Any]:
        calls.append(position)
        if len(calls) < 3:
            raise SystemExit(3)
        if position is None:
            yield b"x", 1

    board = Board(graph.topologies)
    feeds = Feeds(graph.processors[-1], db.bulk, board)
    run(db, board, graph, lambda attempt: None, feeds)
    assert calls[:3] == [None, None, None]
    assert written(db, "first") == [b"0"]
    feeds.close()


class Silent:
    """A door behind which nobody says whose graph it is."""

    def __init__(self, db: penstock.Database) -> None:
        self._db = db
        self.error: Exception | None = None

    def ask(self, request: Request) -> Reply:
        if isinstance(request, ShowGraphs) and self.error is not None:
            raise self.error
        return self._db.graphs.ask(request)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnavailableError("the broker is gone"), "nobody says whose it is"),
        (NotFoundError("there is no graph 'g'"), "was dropped or renamed"),
    ],
)
def test_a_runner_that_cannot_ask_who_took_the_graph_ends_fenced(
    db: penstock.Database, error: Exception, told: str
) -> None:
    graph = declared()
    db.stream("first-in").write(b"x")
    door, board = Silent(db), Board(graph.topologies)

    def overtaken(attempt: Run) -> None:
        db.graphs.ask(Start(graph.topologies[0]))
        door.error = error

    Loop(graph.processors[0], door, board, lambda: Copies(overtaken), 4).run()
    with pytest.raises(FencedError, match=told):
        board.raise_error()


def test_the_owner_takes_back_what_another_one_took(db: penstock.Database) -> None:
    graph = declared()
    db.stream("second-in").write_many([b"x"] * 3)
    taken: list[bool] = []

    def half_overtaken(attempt: Run) -> None:
        if not taken:
            taken.append(True)
            db.graphs.ask(Start(graph.topologies[1]))

    run(db, Board(graph.topologies), graph, half_overtaken)
    assert written(db, "second") == [b"0", b"1", b"2"]
    assert shown(db, "second").epoch == 3


@pytest.mark.parametrize("times", [1, 3])  # an answer that was lost has it asked again
@pytest.mark.parametrize("name", ["first", "second"])
def test_a_processor_that_is_reset_while_it_runs_begins_anew(
    db: penstock.Database, name: str, times: int
) -> None:
    graph = declared()
    for stream in ("first-in", "second-in"):
        db.stream(stream).write_many([b"x"] * 2)
    failures: list[str | None] = []

    def reset(attempt: Run) -> None:
        if attempt.processor_id == f"g/{name}":
            failures.append(shown(db, name).failure)
            if len(failures) == 1:
                for _ in range(times):
                    db.graphs.ask(ResetProcessor("g", name, "first"))

    run(db, Board(graph.topologies), graph, reset)
    assert failures[0] is None
    assert written(db, "first") == written(db, "second") == [b"0", b"1"]
    assert shown(db, name).epoch == 3


def test_a_runner_whose_graph_was_changed_says_how(db: penstock.Database) -> None:
    graph = declared()
    db.stream("first-in").write(b"x")

    def drops(attempt: Run) -> None:
        db.graphs.ask(DropProcessor("g", "first"))

    with pytest.raises(FencedError, match="g/first was dropped or renamed while it ran"):
        run(db, Board(graph.topologies), graph, drops)


def test_one_that_cannot_start_does_not_keep_the_others_from_it(db: penstock.Database) -> None:
    db.graphs.ask(Start(Topology("g", "first", "pipe", [Input("elsewhere", "elsewhere")], ["x"])))
    db.stream("second-in").write(b"x")
    graph = declared()
    with pytest.raises(UnavailableError, match="g/first cannot go on"):
        run(db, Board(graph.topologies), graph, lambda attempt: None)
    assert written(db, "second") == [b"0"]
