"""The clock of a world: virtual time, a wall clock that jumps, entropy from the seed."""

from __future__ import annotations

import asyncio
from random import Random

from penstock.sim.loop import VirtualLoop

#: 2026-01-01, as good as any.
BEGIN_MS = 1_767_225_600_000


class SimClock:
    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        #: How far the wall clock was set, forward or back.
        self.skew_ms = 0

    def wall_ms(self) -> int:
        return BEGIN_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def entropy(self, size: int) -> bytes:
        return self._random.randbytes(size)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
