"""The state from rows: what a reader outside the one writer may meet between two reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.codec.keys import log_key, node_key
from penstock.errors import CorruptError
from penstock.log.evict import evict_step
from penstock.log.state import read_log
from unit.log.driver import LogDriver, stream

S = stream("s")


class Overtaken:
    """A store that is read by somebody slow: work goes on between the log row and the nodes."""

    def __init__(self, driver: LogDriver, *works: Callable[[], Awaitable[None]]) -> None:
        self._driver = driver
        self._works = list(works)
        self.looks = 0

    async def get(self, key: bytes) -> bytes | None:
        value = await self._driver.store.get(key)
        if key == log_key(1):
            self.looks += 1
            if self._works:
                await self._works.pop(0)()
        return value

    async def scan(self, low: bytes, high: bytes, **options: Any) -> AsyncIterator[Any]:
        async for rows in self._driver.store.scan(low, high, **options):
            yield rows


async def sample() -> LogDriver:
    driver = await LogDriver.open()
    await driver.append(S, [b"x"] * 5000)
    return driver


def evict(driver: LogDriver, up_to: int) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        await driver.do(evict_step(S, up_to=up_to))
        await driver.chore(("collect", None))

    return work


async def test_rows_that_were_collected_after_the_log_row_was_read_are_not_a_gap() -> None:
    driver = await sample()
    store: Any = Overtaken(driver, evict(driver, 2499))
    found = await read_log(store, 1)
    assert found is not None
    assert (found.first, found.lowest, found.next) == (2500, 2000, 5000)
    assert found == await read_log(driver.store, 1)
    assert store.looks == 3


async def test_a_state_whose_row_stays_the_same_is_read_once() -> None:
    store: Any = Overtaken(await sample())
    assert await read_log(store, 1) is not None
    assert store.looks == 2


@pytest.mark.parametrize("first", [0, 2000])
async def test_a_gap_under_a_row_that_stays_the_same_is_corruption(first: int) -> None:
    driver = await sample()
    n = driver.store.head().n + 1
    await driver.store.commit(n, [(node_key(1, first), None)], time_ms=0, epoch=driver.store.epoch)
    store: Any = Overtaken(driver)
    with pytest.raises(CorruptError, match=f"log 1: node {first + 1000} follows offset {first}"):
        await read_log(store, 1)
    assert store.looks == 2


async def test_a_log_that_was_wholly_evicted_meanwhile_keeps_its_end() -> None:
    driver = await sample()
    store: Any = Overtaken(driver, evict(driver, 4999))
    found = await read_log(store, 1)
    assert found is not None
    assert (found.first, found.next) == (5000, 5000)


async def test_an_eviction_at_every_look_is_not_a_gap() -> None:
    driver = await sample()
    store: Any = Overtaken(driver, *(evict(driver, up_to) for up_to in (1499, 2499, 3499)))
    found = await read_log(store, 1)
    assert found is not None
    assert (found.first, found.next) == (3500, 5000)
