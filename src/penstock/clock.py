"""The only reader of time, identity and entropy.

Contract     Everything else receives `now_ms`, ids and random bytes as arguments, so that a test
             or the simulator can supply them. Times are epoch milliseconds (int). `Ticker` is the
             time that commits carry: it never runs backwards and never stands still while the wall
             clock is set back.
Not here     Deadlines of a commit are monotonic seconds and come from `Clock.monotonic`.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Protocol

#: A forward jump of the wall clock by more than this is reported, not hidden.
JUMP_MS = 3_600_000


class Clock(Protocol):
    def wall_ms(self) -> int: ...
    def monotonic(self) -> float: ...
    def entropy(self, size: int) -> bytes: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of the machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def perf_counter() -> float:
    """Seconds of the finest clock there is, for measuring; only differences mean anything."""
    return time.perf_counter()


class Ticker:
    """now = max(wall clock, last + monotonic elapsed), continued from the last commit's time."""

    def __init__(self, clock: Clock, last_ms: int) -> None:
        self._clock = clock
        self._last_ms = last_ms
        self._last_monotonic = clock.monotonic()
        #: Jumps forward of more than an hour since this ticker began: (from_ms, to_ms).
        self.jumps: list[tuple[int, int]] = []

    def now_ms(self) -> int:
        monotonic = self._clock.monotonic()
        floor_ms = self._last_ms + int((monotonic - self._last_monotonic) * 1000)
        now_ms = max(self._clock.wall_ms(), floor_ms)
        if self._last_ms and now_ms - floor_ms > JUMP_MS:
            self.jumps.append((floor_ms, now_ms))
        if now_ms != self._last_ms:
            self._last_ms, self._last_monotonic = now_ms, monotonic
        return now_ms
