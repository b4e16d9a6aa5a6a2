"""The ticker: time that commits carry never runs backwards and never stands still."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import JUMP_MS, Clock, SystemClock, Ticker, perf_counter

START_MS = 1_800_000_000_000


class HandClock:
    """A clock that a test moves by hand: wall and monotonic time apart."""

    def __init__(self, wall_ms: int = START_MS) -> None:
        self.wall = wall_ms
        self.elapsed_ms = 0

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.elapsed_ms += ms

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000

    def entropy(self, size: int) -> bytes:
        return bytes(size)

    async def sleep(self, seconds: float) -> None:
        self.advance(int(seconds * 1000))


def test_a_ticker_follows_the_wall_clock() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=0)
    assert ticker.now_ms() == START_MS
    clock.advance(250)
    assert ticker.now_ms() == START_MS + 250
    assert ticker.jumps == []


def test_a_wall_clock_set_back_neither_turns_time_back_nor_stops_it() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=0)
    ticker.now_ms()
    clock.wall -= 86_400_000
    assert ticker.now_ms() == START_MS
    clock.advance(1500)
    assert ticker.now_ms() == START_MS + 1500


def test_time_goes_on_from_the_last_commit_of_an_earlier_process() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS + 60_000)
    assert ticker.now_ms() == START_MS + 60_000
    clock.advance(10)
    assert ticker.now_ms() == START_MS + 60_010


def test_steps_below_a_millisecond_are_not_lost_while_the_wall_clock_is_behind() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS + 60_000)
    fraction = 0.0
    clock.monotonic = lambda: fraction  # type: ignore[method-assign]
    for step in range(1, 11):
        fraction = step * 0.000_25
        ticker.now_ms()
    assert ticker.now_ms() == START_MS + 60_002


def test_steps_of_a_millisecond_and_a_half_do_not_slow_time_down() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS + 60_000)
    passed_ms = 0.0
    clock.monotonic = lambda: passed_ms / 1000  # type: ignore[method-assign]
    for step in range(1, 1001):
        passed_ms = step * 1.5
        ticker.now_ms()
    assert abs(ticker.now_ms() - (START_MS + 60_000 + 1500)) <= 1


def test_a_jump_forward_of_more_than_an_hour_is_followed_and_reported_once() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS)
    clock.wall += JUMP_MS + 1
    assert ticker.now_ms() == START_MS + JUMP_MS + 1
    clock.advance(5)
    ticker.now_ms()
    assert ticker.jumps == [(START_MS, START_MS + JUMP_MS + 1)]


def test_an_hour_exactly_is_no_jump() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS)
    clock.wall += JUMP_MS
    ticker.now_ms()
    assert ticker.jumps == []


def test_an_hour_that_really_passed_is_no_jump() -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS)
    clock.advance(10 * JUMP_MS)
    assert ticker.now_ms() == START_MS + 10 * JUMP_MS
    assert ticker.jumps == []


def test_the_first_time_of_a_new_location_is_no_jump() -> None:
    ticker = Ticker(HandClock(), last_ms=0)
    ticker.now_ms()
    assert ticker.jumps == []


@given(
    moves=st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(-10_000_000, 10_000_000)), max_size=30
    )
)
def test_whatever_the_wall_clock_does_time_advances_at_least_as_fast_as_time_passes(
    moves: list[tuple[int, int]],
) -> None:
    clock = HandClock()
    ticker = Ticker(clock, last_ms=START_MS)
    earlier = ticker.now_ms()
    for passed_ms, set_by_ms in moves:
        clock.advance(passed_ms)
        clock.wall += set_by_ms
        now = ticker.now_ms()
        # One millisecond of slack: seconds are floats.
        assert now >= earlier + passed_ms - 1
        assert now >= earlier
        assert now >= clock.wall
        earlier = now


async def test_the_system_clock_reads_the_machine() -> None:
    clock: Clock = SystemClock()
    before_ms = time.time_ns() // 1_000_000
    assert before_ms <= clock.wall_ms() <= time.time_ns() // 1_000_000
    earlier = clock.monotonic()
    await clock.sleep(0)
    assert clock.monotonic() >= earlier
    assert len(clock.entropy(16)) == 16
    assert clock.entropy(16) != clock.entropy(16)


def test_perf_counter_does_not_run_backwards() -> None:
    readings = [perf_counter() for _ in range(100)]
    assert readings == sorted(readings)
