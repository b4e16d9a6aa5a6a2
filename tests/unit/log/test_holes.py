from __future__ import annotations

import asyncio

import numpy as np
import pytest

from penstock.codec.keys import node_key
from penstock.codec.node import FRAGMENT, HOLE, VALIDITY, decode_header
from penstock.log.batch import build_bodies
from penstock.log.check import check_log
from penstock.log.evict import evict_step
from penstock.log.holes import PUNCH_BYTES, plan_holes
from penstock.log.link import link_step
from penstock.log.merge import plan_merge
from penstock.log.staging import begin_step, stage_step
from penstock.log.state import LogState
from unit.log.driver import LogDriver, data_of, stream

S = stream("s")


async def shown(driver: LogDriver) -> LogState:
    state = await driver.state(S)
    assert state is not None
    return state


async def punch(driver: LogDriver, offsets: list[int]) -> None:
    step, left = await plan_holes(driver.store, await shown(driver), offsets)
    assert left == []
    assert step is not None
    assert await driver.do(step) == ()


@pytest.mark.parametrize("count", [10, 900])
async def test_punched_entries_read_as_none_and_their_bytes_are_gone(count: int) -> None:
    driver = await LogDriver.open()
    await driver.append(S, [("secret-tag", b"secret-%d" % i, b"secret") for i in range(count)])
    await punch(driver, list(range(count - 1)))
    assert await data_of(driver, S) == [None] * (count - 1) + [b"secret-%d" % (count - 1)]
    value = await driver.store.get(node_key(1, 0))
    assert value is not None
    assert decode_header(value, "node").flags & VALIDITY
    if count == 10:
        assert value.count(b"secret-") == 2  # the living entry's tag and data
    assert await check_log(driver.store) == []
    driver.forget()
    assert (await shown(driver)).stored_bytes == len(value)


async def test_a_wholly_dead_node_becomes_a_hole_row() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [b"x"] * 1000)
    await punch(driver, list(range(1000)))
    value = await driver.store.get(node_key(1, 0))
    assert value is not None
    assert (decode_header(value, "node").flags & HOLE, len(value)) == (HOLE, 48)
    assert await data_of(driver, S) == [None] * 1000
    assert await driver.append(S, [b"y"]) == range(1000, 1001)


async def test_punching_dead_evicted_and_unknown_entries_does_nothing() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [b"x"] * 10)
    await punch(driver, [3])
    await driver.do(evict_step(S, up_to=1))
    assert await plan_holes(driver.store, await shown(driver), [0, 1, 3, 10, 99]) == (None, [])


async def test_a_node_that_changed_since_the_plan_is_planned_again() -> None:
    driver = await LogDriver.open()
    for i in range(10):
        await driver.append(S, [b"%d" % i])
    step, _ = await plan_holes(driver.store, await shown(driver), [2, 5])
    merge = await plan_merge(driver.store, await shown(driver), active=True)
    assert step is not None
    assert merge is not None
    await driver.do(merge)
    assert await driver.do(step) == (2, 5)
    await punch(driver, [2, 5])
    assert [i for i, data in enumerate(await data_of(driver, S)) if data is None] == [2, 5]


async def test_a_node_that_was_evicted_since_the_plan_is_left_alone() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [b"x"] * 10)
    step, _ = await plan_holes(driver.store, await shown(driver), [2])
    assert step is not None
    await driver.do(evict_step(S, up_to=9))
    assert await driver.do(step) == ()
    assert driver.written[-1] == {}


async def test_a_punched_fragment_stays_one_and_its_run_goes_on() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [b"a", b"b"])
    await punch(driver, [0])
    value = await driver.store.get(node_key(1, 0))
    assert value is not None
    assert decode_header(value, "node").flags & FRAGMENT
    await driver.append(S, [b"c"])
    assert len((await shown(driver)).run.fragments) == 2
    assert await data_of(driver, S) == [None, b"b", b"c"]


async def test_a_linked_node_can_be_punched_and_folded_afterwards() -> None:
    driver = await LogDriver.open()
    staging_id = await driver.do(begin_step())
    await driver.do(stage_step(staging_id, 0, 0, build_bodies([b"a", b"b"])))
    await driver.do(link_step(staging_id, [(S, [0])]))
    await punch(driver, [0])
    assert await data_of(driver, S) == [None, b"b"]
    await driver.chore(("staging", staging_id))
    assert await data_of(driver, S) == [None, b"b"]
    assert await check_log(driver.store) == []


async def test_a_large_punch_is_cut_into_steps() -> None:
    driver = await LogDriver.open()
    noise = np.random.default_rng(1).bytes(450_000)
    for _ in range(12):
        await driver.append(S, [noise, noise[::-1]])
    left = list(range(0, 24, 2))
    steps = 0
    while left:
        step, left = await plan_holes(driver.store, await shown(driver), left)
        assert step is not None
        await driver.do(step)
        size = sum(len(value or b"") for value in driver.written[-1].values())
        assert size < PUNCH_BYTES + 500_000
        steps += 1
    assert steps == 3
    assert [data is None for data in await data_of(driver, S)] == [True, False] * 12
    assert await check_log(driver.store) == []


class Compared(int):
    """An offset that counts how often it is compared."""

    count = 0

    def __lt__(self, other: int) -> bool:
        Compared.count += 1
        return int(self) < int(other)


async def test_the_work_grows_with_the_offsets_not_with_offsets_times_nodes() -> None:
    driver = await LogDriver.open()
    for _ in range(200):
        await driver.append(S, [b"x"] * 10)
    offsets = [Compared(offset) for offset in range(2000)]
    Compared.count = 0
    step, left = await plan_holes(driver.store, await shown(driver), offsets)
    assert step is not None
    assert left == []
    assert Compared.count < 10 * len(offsets)


async def test_others_have_their_turn_between_two_nodes() -> None:
    driver = await LogDriver.open()
    for _ in range(20):
        await driver.append(S, [b"x"] * 10)
    state = await shown(driver)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count())
    await plan_holes(driver.store, state, range(200))
    other.cancel()
    assert turns >= 20
