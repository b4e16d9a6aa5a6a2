"""The only reader of time, identity and entropy.

Contract     Everything else receives `now_ms`, ids and random bytes as arguments, so that a test
             or the simulator can supply them. Times are epoch milliseconds (int). `Ticker` is the
             time that commits carry: it never runs backwards and never stands still while the wall
             clock is set back.
Not here     Deadlines of a commit are monotonic seconds and come from `Clock.monotonic`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Protocol

_log = logging.getLogger("penstock")

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


async def give_way() -> None:
    """Let everything else run first that is ready on this loop: between two pieces of long work."""
    await asyncio.sleep(0)


def perf_counter() -> float:
    """Seconds of the finest clock there is, for measuring; only differences mean anything."""
    return time.perf_counter()


class Ticker:
    """now = max(wall clock, last + monotonic elapsed), continued from the last commit's time."""

    def __init__(self, clock: Clock, last_ms: int) -> None:
        self._clock = clock
        # How long the store was closed is unknown, so the wall clock may be far ahead of it.
        self._anchor_ms = max(last_ms, clock.wall_ms())
        self._anchor_monotonic = clock.monotonic()
        #: Jumps forward of more than an hour since this ticker began: (from_ms, to_ms).
        self.jumps: list[tuple[int, int]] = []

    def now_ms(self) -> int:
        monotonic, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        # From an anchor that stays while the wall clock is behind: adding up elapsed times would
        # lose a fraction of a millisecond at each step.
        now_ms = self._anchor_ms + int((monotonic - self._anchor_monotonic) * 1000)
        if wall_ms <= now_ms:
            return now_ms
        if wall_ms - now_ms > JUMP_MS:
            self.jumps.append((now_ms, wall_ms))
            _log.warning("the clock jumped forward by %d s", (wall_ms - now_ms) // 1000)
        self._anchor_ms, self._anchor_monotonic = wall_ms, monotonic
        return wall_ms
