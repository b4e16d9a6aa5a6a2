"""A broker over the memory store: its real wiring, a clock that the test sets, scripted faults."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.upkeep import Upkeep
from penstock.errors import FencedError
from penstock.store.memory import Faults, MemoryDisk, MemoryStore


class StepClock:
    """Wall and monotonic time as the test sets them; sleeping only yields."""

    def __init__(self) -> None:
        self.wall = 1_000_000
        self.mono = 0.0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.mono

    def entropy(self, size: int) -> bytes:
        return bytes(size)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def pass_ms(self, ms: int) -> None:
        self.wall += ms
        self.mono += ms / 1000


class BrokerWorld:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = StepClock()
        self.disk = MemoryDisk()
        self.faults = Faults()
        self.openings = 0
        monkeypatch.setattr("penstock.broker.broker.open_store", self._open_store)

    async def _open_store(self, location: str, **options: Any) -> MemoryStore:
        after = options["after"]
        if after is not None and self.disk.epoch != after:
            raise FencedError("taken over")
        self.openings += 1
        return await MemoryStore.open(self.disk, clock=self.clock, faults=self.faults)

    async def open(self, *, upkeep: bool = True) -> Broker:
        broker = await Broker.open("memory://unused", deadline=30, clock=self.clock)
        await self.settle()
        if not upkeep:
            await upkeep_of(broker).stop()
        return broker

    async def settle(self) -> None:
        """Let everything run that waits for nothing outside: no call of this store suspends."""
        for _ in range(200):
            await asyncio.sleep(0)

    async def pass_ms(self, broker: Broker, ms: int) -> None:
        """Time passes and the upkeep looks at the clock; it waits in real time otherwise."""
        self.clock.pass_ms(ms)
        upkeep_of(broker).remind([])
        await self.settle()


def upkeep_of(broker: Broker) -> Upkeep:
    assert broker._upkeep is not None
    return broker._upkeep
