"""Retention looks for the new edge of a stream without reading what lies below it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.log import evict
from penstock.log.hold import hold_step
from penstock.log.state import LogState
from penstock.store.port import Row, Store
from penstock.stream.config import StreamConfig
from penstock.stream.retain import plan_retain
from unit.log.driver import LogDriver, stream

S = stream("s")
NODES = 300


class Counting:
    """A store that counts the rows it gives."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.rows = 0

    async def get(self, key: bytes) -> bytes | None:
        self.rows += 1
        return await self._store.get(key)

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        self.rows += 1
        return await self._store.floor(key, low=low)

    async def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        async for rows in self._store.scan(low, high, reverse=reverse, batch_rows=batch_rows):
            self.rows += len(rows)
            yield rows


async def filled() -> tuple[LogDriver, LogState]:
    driver = await LogDriver.open()
    for _ in range(NODES):
        driver.clock.ms += 1000
        await driver.append(S, [b"x"] * 1000)
    state = await driver.state(S)
    assert state is not None
    return driver, state


async def looked(driver: LogDriver, state: LogState, config: StreamConfig) -> tuple[int, int]:
    """-> where the stream begins afterwards, and how many rows it took to find out"""
    store = Counting(driver.store)
    step, _ = await plan_retain(store, state, config, driver.clock.ms)  # type: ignore[arg-type]
    if step is not None:
        await driver.do(step)
    after = await driver.state(S)
    assert after is not None
    return after.first, store.rows


async def test_the_edge_of_an_age_is_found_by_its_headers() -> None:
    driver, state = await filled()
    first, rows = await looked(driver, state, StreamConfig(max_age_ms=10_000))
    assert first == (NODES - 11) * 1000
    assert rows < 20


@pytest.mark.parametrize("config", [StreamConfig(max_age_ms=10_000), StreamConfig(max_bytes=1)])
async def test_what_a_hold_keeps_is_not_read_at_every_look(config: StreamConfig) -> None:
    driver, state = await filled()
    await driver.do(hold_step(state.log_id, b"h", 0))
    held = await driver.state(S)
    assert held is not None
    first, rows = await looked(driver, held, config)
    assert first == 0
    assert rows < 20


async def test_one_look_reads_a_bounded_part_of_what_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, state = await filled()
    monkeypatch.setattr(evict, "LOOK_BYTES", state.stored_bytes // 10)
    first, rows = await looked(driver, state, StreamConfig(max_bytes=1))
    assert first == NODES * 1000 // 10
    assert rows < NODES // 5
