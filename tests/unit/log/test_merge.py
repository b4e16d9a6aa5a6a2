from __future__ import annotations

import pytest

from penstock.codec.keys import KeyType, key_type, node_key
from penstock.codec.node import FRAGMENT, HOLE, ZSTD, decode_header
from penstock.log.check import check_log
from penstock.log.chores import pending_merges
from penstock.log.evict import delete_step, evict_step
from penstock.log.holes import plan_holes
from penstock.log.merge import plan_merge
from penstock.log.place import KEPT_BYTES
from penstock.log.state import Fragment, LogState
from unit.log.driver import LogDriver, data_of, stream

S = stream("s")


async def with_closed_run() -> LogDriver:
    driver = await LogDriver.open()
    for i in range(10):
        driver.clock.ms += 1
        await driver.append(S, [(f"t{i}", b"%d" % i, b"m" if i == 3 else None)])
    await driver.append(S, [b"x"] * 1000)
    return driver


async def shown(driver: LogDriver) -> LogState:
    state = await driver.state(S)
    assert state is not None
    return state


@pytest.mark.parametrize("restart", [False, True])
async def test_a_merge_swaps_the_rows_of_a_run_in_one_commit(restart: bool) -> None:
    driver = await with_closed_run()
    if restart:
        driver.forget()
    before = await driver.read(S, 0, 2000)
    log_id = (await shown(driver)).log_id
    assert await driver.chore(("merge", log_id)) == 1
    written = driver.written[-1]
    node = written.pop(node_key(log_id, 0))
    assert node is not None
    assert not decode_header(node, "node").flags & FRAGMENT
    assert written == {node_key(log_id, i): None for i in range(1, 10)}
    assert await driver.read(S, 0, 2000) == before
    assert (await shown(driver)).closed == ()
    assert await check_log(driver.store) == []


async def test_a_merged_node_is_compressed_where_it_helps() -> None:
    driver = await LogDriver.open()
    for _ in range(10):
        await driver.append(S, [b"the same again and again"] * 100)
    await driver.chore(("merge", 1))
    value = await driver.store.get(node_key(1, 0))
    assert value is not None
    assert decode_header(value, "node").flags & ZSTD


async def test_a_run_that_was_evicted_in_part_is_not_merged_as_it_was() -> None:
    driver = await with_closed_run()
    state = await shown(driver)
    step = await plan_merge(driver.store, state)
    assert step is not None
    await driver.do(evict_step(S, up_to=4))
    assert await driver.do(step) is False
    assert driver.written[-1] == {}
    await driver.chore(("collect", None))
    await driver.chore(("merge", state.log_id))
    assert (await data_of(driver, S))[:11] == [None] * 5 + [b"5", b"6", b"7", b"8", b"9", b"x"]
    assert await check_log(driver.store) == []


async def test_a_run_that_was_punched_is_not_merged_as_it_was() -> None:
    driver = await with_closed_run()
    state = await shown(driver)
    merge = await plan_merge(driver.store, state)
    punch, _ = await plan_holes(driver.store, state, [3])
    assert merge is not None
    assert punch is not None
    await driver.do(punch)
    assert await driver.do(merge) is False
    await driver.chore(("merge", state.log_id))
    assert (await data_of(driver, S))[2:5] == [b"2", None, b"4"]


async def test_a_merge_of_a_deleted_log_does_nothing() -> None:
    driver = await with_closed_run()
    step = await plan_merge(driver.store, await shown(driver))
    assert step is not None
    await driver.do(delete_step(S))
    assert await driver.do(step) is False
    assert driver.written[-1] == {}


async def test_the_same_merge_twice_is_done_once() -> None:
    driver = await with_closed_run()
    step = await plan_merge(driver.store, await shown(driver))
    assert step is not None
    assert await driver.submit(step, step) == [True, False]
    assert await check_log(driver.store) == []


async def test_the_active_run_is_merged_only_when_asked_and_unchanged() -> None:
    driver = await LogDriver.open()
    for i in range(5):
        await driver.append(S, [b"%d" % i])
    assert await plan_merge(driver.store, await shown(driver)) is None
    late = await plan_merge(driver.store, await shown(driver), active=True)
    assert late is not None
    await driver.append(S, [b"5"])
    assert await driver.do(late) is False
    step = await plan_merge(driver.store, await shown(driver), active=True)
    assert step is not None
    assert await driver.do(step) is True
    await driver.append(S, [b"6"])
    assert await data_of(driver, S) == [b"%d" % i for i in range(7)]
    assert await check_log(driver.store) == []


async def test_a_run_of_dead_entries_becomes_a_hole() -> None:
    driver = await with_closed_run()
    punch, _ = await plan_holes(driver.store, await shown(driver), range(10))
    assert punch is not None
    await driver.do(punch)
    await driver.chore(("merge", 1))
    value = await driver.store.get(node_key(1, 0))
    assert value is not None
    header = decode_header(value, "node")
    assert (header.flags & HOLE, header.count) == (HOLE, 10)
    assert (await data_of(driver, S))[:11] == [None] * 10 + [b"x"]


async def test_closed_runs_are_found_again_after_a_restart() -> None:
    driver = await with_closed_run()
    for _ in range(100):
        await driver.append(S, [b"y"] * 1000)
    driver.forget()
    due, after = await pending_merges(driver.store, b"")
    assert [timer.what for timer in due] == [("merge", 1)]
    assert after is None
    await driver.chore(("merge", 1))
    assert await pending_merges(driver.store, b"") == ([], None)
    fragments = [
        key
        async for rows in driver.store.scan(b"", b"\xff")
        for key, value in rows
        if key_type(key) is KeyType.NODE and decode_header(value, "node").flags & FRAGMENT
    ]
    assert fragments == []


def unmerged(state: LogState) -> list[Fragment]:
    return [fragment for run in (*state.closed, state.run) for fragment in run.fragments]


async def test_bodies_that_wait_for_the_merge_are_kept_up_to_a_bound_and_reread_above() -> None:
    driver = await LogDriver.open()
    sent = [bytes([i]) * 200_000 for i in range(40)]
    for data in sent:
        await driver.append(S, [data])
    fragments = unmerged(await shown(driver))
    assert sum(fragment.stored_bytes for fragment in fragments) > KEPT_BYTES + 200_000
    kept = [fragment.body for fragment in fragments if fragment.body is not None]
    assert kept, "the usual merge reads nothing"
    assert sum(len(body.stored) for body in kept) < KEPT_BYTES + 201_000
    runs = [{f.body is None for f in run.fragments} for run in (await shown(driver)).closed]
    assert {True, False} in runs, "a run of both kinds is among them"
    assert await driver.chore(("merge", 1)) == len(runs)
    assert await data_of(driver, S) == sent
    assert await check_log(driver.store) == []
    await driver.append(S, [b"small"])
    assert unmerged(await shown(driver))[-1].body is not None, "there is room again"
