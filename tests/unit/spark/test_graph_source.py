"""A source's steps: what its generator yields goes out as it comes, whatever comes after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import InvalidError
from penstock.graph import Graph
from penstock.graph.machine import Ask, Effect, Idle, Outcome, Run, processor_steps
from penstock.graph.model import Processor
from penstock.graph.requests import Committed, Started
from penstock.spark import graphlay, graphsource
from penstock.spark.graphboard import Board, Ended
from penstock.spark.graphjob import StepError
from penstock.spark.graphpull import Puller
from penstock.spark.graphsource import Feed, Feeds


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[penstock.Database]:
    with penstock.open(f"memory://{request.node.name}") as db:
        yield db


def declared(function: Callable[..., Any], **options: Any) -> Processor:
    graph = Graph("g", errors="errors")
    graph.source("out", name="feed", **options)(function)
    return graph.processors[0]


class Runner:
    """A source and its feed, effect by effect, against a broker in memory."""

    def __init__(self, db: penstock.Database, function: Callable[..., Any], **options: Any) -> None:
        processor = declared(function, **options)
        self._db = db
        self.feed = Feed(processor, db.bulk, Puller("feed"))
        self._steps = processor_steps(processor.topology, step_max=10)
        self.effect: Effect = self._ask(next(self._steps))

    def _ask(self, effect: Effect) -> Effect:
        assert isinstance(effect, Ask)
        reply = self._db.graphs.ask(effect.request)
        assert isinstance(reply, Started | Committed)
        return self._steps.send(reply)

    def step(self) -> Outcome:
        """Run, and commit it unless the source has nothing more."""
        if isinstance(self.effect, Idle):
            self.effect = self._steps.send(0)
        assert isinstance(self.effect, Run)
        outcome = self.feed.run(self.effect)
        self.effect = self._steps.send(outcome)
        if isinstance(self.effect, Ask):
            self.effect = self._ask(self.effect)
        return outcome

    def run(self) -> None:
        while not isinstance(self.effect, Idle):
            self.step()


def data(db: penstock.Database, name: str = "out") -> list[bytes]:
    return [m.data for m in db.stream(name).read(0, 1000) if m is not None]


def test_what_came_does_not_wait_for_what_comes_next(db: penstock.Database) -> None:
    more = threading.Event()

    def feed(position: Any) -> Iterator[Any]:
        yield b"one", 1
        assert more.wait(60)
        yield b"two", 2

    runner = Runner(db, feed)
    runner.step()
    assert data(db) == [b"one"]
    more.set()
    runner.run()
    assert data(db) == [b"one", b"two"]


def test_a_generator_that_waits_for_ever_does_not_keep_a_run_from_ending(
    db: penstock.Database,
) -> None:
    never = threading.Event()
    waits = threading.Event()

    class OverError(Exception):
        pass

    def feed() -> Iterator[bytes]:
        waits.set()
        never.wait()
        yield b"too late"

    def check() -> None:
        if waits.is_set():
            raise OverError

    runner = Runner(db, feed)
    puller = Puller("feed")
    feed_ = Feed(declared(feed), db.bulk, puller, check=check)
    assert isinstance(runner.effect, Run)
    with pytest.raises(OverError):
        feed_.run(runner.effect)
    puller.close()
    assert puller.is_busy
    never.set()  # it yields at last, into nothing
    assert puller._thread is not None
    puller._thread.join(60)
    assert not puller.is_busy
    assert not puller._thread.is_alive()


def test_a_generator_goes_on_when_its_step_is_committed(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphsource, "STEP_SECONDS", 60.0)
    begun: list[int] = []
    ended = threading.Event()

    def feed() -> Iterator[bytes]:
        try:
            for n in range(100):
                begun.append(n)
                yield b"%d" % n
        finally:
            ended.set()

    runner = Runner(db, feed, step_max=3)
    runner.step()
    assert data(db) == [b"0", b"1", b"2"]
    assert begun == [0, 1, 2]
    runner.feed.let_go()
    assert ended.wait(60)
    assert begun == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("no"), ValueError),
        (Graph.Stop("no"), Graph.Stop),
        # Not those themselves: they would end the process of whoever runs the graph.
        (SystemExit("no"), StepError),
        (KeyboardInterrupt("no"), StepError),
    ],
)
def test_what_a_generator_raises_comes_behind_what_it_yielded(
    db: penstock.Database, error: BaseException, raised: type[Exception]
) -> None:
    def feed() -> Iterator[bytes]:
        yield b"one"
        raise error

    runner = Runner(db, feed)
    runner.step()
    assert data(db) == [b"one"]
    with pytest.raises(raised, match="no"):
        runner.step()


def test_a_source_that_exits_at_once_fails_its_step_alone(db: penstock.Database) -> None:
    def feed() -> Iterator[bytes]:
        raise SystemExit(3)

    with pytest.raises(StepError, match="SystemExit: 3"):
        Runner(db, feed).step()


def test_a_generator_whose_yield_is_refused_is_closed_in_its_thread(db: penstock.Database) -> None:
    """What it holds (a lock, a connection) is needed when the function is called again."""
    held = threading.Lock()
    ended: list[threading.Thread] = []
    began: list[threading.Thread] = []

    def feed(position: int | None) -> Iterator[Any]:
        assert held.acquire(blocking=False)
        began.append(threading.current_thread())
        try:
            yield b"one", (position or 0) + 1
            yield b"two", 1 if position is None else 3
        finally:
            ended.append(threading.current_thread())
            held.release()

    runner = Runner(db, feed, step_max=1)
    assert isinstance(runner.effect, Run)
    processor = declared(feed, step_max=1)
    feeds = Feeds(processor, db.bulk, Board([processor.topology]))
    runner.feed = feeds.begin()
    runner.step()
    with pytest.raises(InvalidError, match="was yielded twice in a row"):
        runner.step()
    assert ended == began
    runner.feed = feeds.begin()
    runner.step()
    runner.step()
    assert data(db) == [b"one", b"one", b"two"]
    assert len(set(began)) == 1
    feeds.close()


def test_a_function_that_is_no_source_is_told(db: penstock.Database) -> None:
    with pytest.raises(InvalidError, match="this one returned int"):
        Runner(db, lambda: 7).step()
    with pytest.raises(InvalidError, match="yields \\(output, position\\)"):
        Runner(db, lambda position: [b"x"]).step()


@pytest.mark.parametrize("together", [True, False])
def test_large_outputs_are_staged(db: penstock.Database, together: bool) -> None:
    """More than a commit takes: in one list, or one by one where two make a step."""
    entropy = SystemClock().entropy  # nothing of it can be compressed
    large = [entropy(size) for size in (graphsource.STEP_BYTES - 100, 3 << 20, 5)]

    def feed(position: int | None) -> Iterator[Any]:
        if together:
            if position is None:
                yield large, 1
            return
        for n in range(position or 0, 3):
            yield large[n], n + 1

    runner = Runner(db, feed)
    runner.run()
    assert data(db) == large


def test_errors_are_staged_beside_small_outputs(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphlay, "INLINE_BYTES", 100)
    monkeypatch.setattr(graphsource, "STEP_SECONDS", 60.0)

    def feed() -> Iterator[Any]:
        yield b"small"
        yield "text is no output"

    runner = Runner(db, feed)
    first = runner.step()
    assert first.staging is not None
    assert data(db) == [b"small"]
    assert b"an output is bytes or a Message, not str" in data(db, "errors")[0]


@pytest.mark.parametrize("count", [0, 3])
def test_a_source_that_yields_nothing_but_none_is_not_at_its_end(
    db: penstock.Database, count: int
) -> None:
    def feed() -> Iterator[Any]:
        for _ in range(count):
            yield None

    runner = Runner(db, feed, step_max=1)
    for _ in range(count):
        assert not runner.step().exhausted
        assert isinstance(runner.effect, Run)
    assert runner.step().exhausted
    assert isinstance(runner.effect, Idle)


def test_a_source_with_positions_is_asked_again_after_its_end(db: penstock.Database) -> None:
    there = [b"one"]

    def feed(position: int | None) -> Iterator[Any]:
        for n in range(position or 0, len(there)):
            yield there[n], n + 1

    runner = Runner(db, feed)
    runner.run()
    there.append(b"two")
    runner.step()
    assert data(db) == there


def test_a_source_without_positions_is_asked_once(db: penstock.Database) -> None:
    calls: list[int] = []

    def feed() -> Iterator[Any]:
        calls.append(1)
        yield b"one"

    runner = Runner(db, feed)
    runner.run()
    for _ in range(3):
        assert runner.step().exhausted
    assert calls == [1]
    assert data(db) == [b"one"]


def test_all_calls_of_a_source_are_in_one_thread(db: penstock.Database) -> None:
    """What it keeps may belong to a thread: a connection of sqlite3 does."""
    threads: list[threading.Thread] = []

    def feed(position: int | None) -> Iterator[Any]:
        threads.append(threading.current_thread())
        yield b"one", (position or 0) + 1
        threads.append(threading.current_thread())
        if len(threads) == 6:
            raise ValueError("no")

    runner = Runner(db, feed, step_max=1)
    assert isinstance(runner.effect, Run)
    processor = declared(feed)
    feeds = Feeds(processor, db.bulk, Board([processor.topology]))
    for _ in range(2):  # it ends, and is asked again
        runner.feed = feeds.begin()
        while not runner.step().exhausted:
            pass
    runner.feed = feeds.begin()
    runner.step()
    with pytest.raises(ValueError, match="no"):
        runner.step()
    runner.feed = feeds.begin()  # after a failure
    runner.step()
    assert len(threads) > 6
    assert len(set(threads)) == 1
    feeds.close()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_a_new_feed_begins_when_the_old_generator_has_ended(db: penstock.Database) -> None:
    """After a failure of something else, of a commit for one."""
    alive: list[int] = []

    def feed() -> Iterator[Any]:
        alive.append(1)
        try:
            yield b"one"
            yield b"two"
        finally:
            alive.pop()

    runner = Runner(db, feed)
    assert isinstance(runner.effect, Run)
    processor = declared(feed, step_max=1)
    feeds = Feeds(processor, db.bulk, Board([processor.topology]))
    for _ in range(3):
        found = feeds.begin()
        assert alive == []
        found.run(runner.effect)
        assert alive == [1]
    feeds.close()


def test_a_new_feed_does_not_wait_for_ever_for_an_old_generator_that_does(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphsource, "OLD_SECONDS", 0.001)
    waits = threading.Event()

    def feed() -> Iterator[Any]:
        yield b"one"
        waits.wait()

    runner = Runner(db, feed)
    assert isinstance(runner.effect, Run)
    processor = declared(feed)
    board = Board([processor.topology])
    feeds = Feeds(processor, db.bulk, board)
    for _ in range(2):
        assert feeds.begin().run(runner.effect).outputs
    assert "g/feed: begins anew while it still waits" in caplog.text
    board.end()
    with pytest.raises(Ended):  # no pause of its own keeps the run from ending
        feeds.begin()
    waits.set()
