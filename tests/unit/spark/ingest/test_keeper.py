"""Signs of life: extended while it is read, once more at the end, then left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from penstock.clock import SystemClock
from penstock.errors import UnavailableError
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.queueport import Received
from penstock.source.requests import Beaten
from penstock.spark.ingest.keeper import Keeper
from unit.spark.ingest.world import MovingClock


class Watched(MemoryQueue):
    """Counts extensions, and fails those that it is told to. With `told_lease` it lets the caller
    believe that leases are short; its own are as long as a test wants, however busy the machine."""

    def __init__(self, lease: float, told_lease: float | None = None) -> None:
        self.clock = MovingClock()
        super().__init__(lease=lease, clock=self.clock)
        self._told_lease = told_lease
        self.extended: list[float] = []
        self.failures = 0
        self.told = threading.Condition()

    def extend(self, received: Received, seconds: float) -> float | None:
        with self.told:
            self.extended.append(seconds)
            self.told.notify_all()
            if self.failures:
                self.failures -= 1
                raise UnavailableError("the queue is away")
        deadline = super().extend(received, seconds if self._told_lease is None else self._lease)
        return deadline if self._told_lease is None else self.clock.monotonic() + self._told_lease

    def wait(self, count: int) -> None:
        with self.told:
            assert self.told.wait_for(lambda: len(self.extended) >= count, timeout=60)


@pytest.fixture
def start() -> Iterator[Callable[..., Keeper]]:
    started = []

    def start(queue: Watched, beat: Callable[..., Beaten], beat_seconds: float = 3600) -> Keeper:
        keeper = Keeper(
            queue,
            beat,
            clock=SystemClock(),
            lease_seconds=0.2,
            last_seconds=500.0,
            beat_seconds=beat_seconds,
        )
        keeper.start()
        started.append(keeper)
        return keeper

    yield start
    for keeper in started:
        keeper.stop()


def nothing(shards: list[str], stagings: list[int]) -> Beaten:
    return Beaten([], [])


def test_a_message_that_is_held_is_extended_again_and_again(
    start: Callable[..., Keeper],
) -> None:
    queue = Watched(lease=1000, told_lease=0.02)
    queue.send("a")
    keeper = start(queue, nothing)
    (received,) = queue.receive(1, 0)
    keeper.hold([msgspec.structs.replace(received, deadline=queue.clock.monotonic() + 0.02)])
    queue.wait(4)
    assert queue.extended[:4] == [0.2] * 4
    keeper.drop([received])
    keeper.stop()
    count = len(queue.extended)
    queue.clock.moved += 1001
    assert len(queue.receive(1, 0)) == 1  # left alone, it comes again
    assert len(queue.extended) == count


def test_the_last_extension_is_the_last(start: Callable[..., Keeper]) -> None:
    queue = Watched(lease=100)
    queue.send("a")
    keeper = start(queue, nothing)
    received = queue.receive(1, 0)
    keeper.hold(received)
    keeper.finish(received)
    queue.wait(1)
    assert queue.extended == [500.0]
    keeper.stop()
    assert queue.extended == [500.0]


def test_what_was_not_finished_after_all_is_extended_as_before(
    start: Callable[..., Keeper],
) -> None:
    queue = Watched(lease=100)
    queue.send("a")
    keeper = start(queue, nothing)
    received = queue.receive(1, 0)
    keeper.hold(received)
    keeper.finish(received)
    queue.wait(1)
    keeper.resume(received)
    keeper.finish(received)  # its lease is long enough: nothing is to be done
    keeper.check()
    assert queue.extended == [500.0]


def test_a_queue_that_is_away_is_asked_again(start: Callable[..., Keeper]) -> None:
    queue = Watched(lease=0.2)
    queue.failures = 1
    queue.send("a")
    keeper = start(queue, nothing)
    keeper.hold(queue.receive(1, 0))
    queue.wait(2)
    keeper.check()


def test_owned_shards_are_beaten_and_lost_ones_are_told(start: Callable[..., Keeper]) -> None:
    seen = threading.Event()
    asked: list[tuple[list[str], list[int]]] = []

    def beat(shards: list[str], stagings: list[int]) -> Beaten:
        asked.append((shards, stagings))
        if len(asked) == 1:
            raise UnavailableError("no broker")
        if len(asked) == 3:
            seen.set()
        return Beaten(["b"], [])

    keeper = start(Watched(lease=30), beat, 0.02)
    keeper.own(["b", "a"])
    keeper.stage([7])
    assert seen.wait(60)
    assert asked[-1] == (["a", "b"], [7])
    assert keeper.lost() == {"b"}
    keeper.own(["a"])
    assert keeper.lost() == set()


def test_what_ends_the_thread_ends_the_run(start: Callable[..., Keeper]) -> None:
    ended = threading.Event()

    def beat(shards: list[str], stagings: list[int]) -> Beaten:
        ended.set()
        raise AssertionError("a bug")

    keeper = start(Watched(lease=30), beat, 0.02)
    keeper.own(["a"])
    assert ended.wait(60)
    keeper.stop()
    with pytest.raises(AssertionError, match="a bug"):
        keeper.check()
