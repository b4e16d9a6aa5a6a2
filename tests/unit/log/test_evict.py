from __future__ import annotations

import pytest

from penstock.codec.keys import KeyType, garbage_key, key_type, prefix, prefix_end
from penstock.errors import InvalidError
from penstock.log.check import check_log
from penstock.log.collect import COLLECT_ROWS, next_garbage, plan_collect
from penstock.log.evict import delete_step, evict_step, first_by_bytes, trim_step
from penstock.log.hold import hold_step
from penstock.log.seek import seek_time
from penstock.log.state import LogState
from unit.log.driver import LogDriver, data_of, stream

S = stream("s")


async def filled(count: int, batch: int) -> LogDriver:
    driver = await LogDriver.open()
    for start in range(0, count, batch):
        await driver.append(S, [b"%d" % i for i in range(start, start + batch)])
    return driver


async def shown(driver: LogDriver) -> LogState:
    state = await driver.state(S)
    assert state is not None
    return state


async def rows_of(driver: LogDriver, kind: KeyType) -> int:
    scan = driver.store.scan(prefix(kind), prefix_end(prefix(kind)))
    return sum([len(rows) async for rows in scan])


@pytest.mark.parametrize(
    ("options", "removed", "first"),
    [
        ({"up_to": 0}, 1, 1),
        ({"up_to": 1499}, 1500, 1500),
        ({"up_to": 2999}, 3000, 3000),
        ({"up_to": 10**9}, 3000, 3000),
        ({"keep": 1}, 2999, 2999),
        ({"keep": 0}, 3000, 3000),
        ({"keep": 10**9}, 0, 0),
        ({"up_to": -1}, 0, 0),
    ],
)
async def test_eviction_is_exact(options: dict[str, int], removed: int, first: int) -> None:
    driver = await filled(3000, 1000)
    assert await driver.do(evict_step(S, **options)) == removed
    assert (await shown(driver)).first == first
    expected = [None] * first + [b"%d" % i for i in range(first, 3000)]
    assert await data_of(driver, S) == expected
    await driver.chore(("collect", None))
    driver.forget()
    assert await data_of(driver, S) == expected
    assert await check_log(driver.store) == []


async def test_an_eviction_commits_two_small_rows_whatever_it_evicts() -> None:
    driver = await filled(50_000, 1000)
    await driver.do(evict_step(S, up_to=49_000))
    written = driver.written[-1]
    assert sorted(key_type(key).name for key in written) == ["GARBAGE", "LOG"]
    assert sum(len(value or b"") for value in written.values()) < 100


async def test_whole_nodes_are_dropped_and_the_one_over_the_edge_stays() -> None:
    driver = await filled(5000, 1000)
    await driver.do(evict_step(S, up_to=2500))
    await driver.chore(("collect", None))
    state = await shown(driver)
    assert (state.lowest, state.first) == (2000, 2501)
    assert await rows_of(driver, KeyType.NODE) == 3
    assert await rows_of(driver, KeyType.GARBAGE) == 0


async def test_collecting_removes_at_most_a_thousand_rows_per_commit() -> None:
    driver = await filled(2 * COLLECT_ROWS + 500, 1)
    await driver.do(evict_step(S, keep=0))
    before = len(driver.written)
    await driver.chore(("collect", None))
    deleted = [
        sum(value is None and key_type(key) is KeyType.NODE for key, value in writes.items())
        for writes in driver.written[before:]
    ]
    assert max(deleted) <= COLLECT_ROWS
    assert sum(deleted) == 2 * COLLECT_ROWS + 500
    assert await rows_of(driver, KeyType.NODE) == 0
    assert (await shown(driver)).stored_bytes == 0


async def test_evicting_again_before_collecting_is_one_range() -> None:
    driver = await filled(3000, 10)
    await driver.do(evict_step(S, up_to=99))
    await driver.do(evict_step(S, up_to=1999))
    assert await rows_of(driver, KeyType.GARBAGE) == 1
    await driver.chore(("collect", None))
    assert await rows_of(driver, KeyType.NODE) == 100
    assert await check_log(driver.store) == []


@pytest.mark.parametrize("up_to", [50, 1000])
async def test_an_eviction_between_plan_and_decision_is_collected_later(up_to: int) -> None:
    driver = await filled(3000, 100)
    await driver.do(evict_step(S, up_to=up_to))
    row = await next_garbage(driver.store)
    assert row is not None
    step = await plan_collect(driver.store, *row)
    await driver.do(evict_step(S, up_to=1999))
    await driver.do(step)
    assert await check_log(driver.store) == []
    await driver.chore(("collect", None))
    assert await rows_of(driver, KeyType.NODE) == 10
    assert (await shown(driver)).lowest == 2000


async def test_an_eviction_while_a_collection_is_planned_leaves_nothing_behind() -> None:
    driver = await filled(3000, 100)
    await driver.do(evict_step(S, up_to=999))
    row = await next_garbage(driver.store)
    assert row is not None
    await driver.do(evict_step(S, up_to=1999))
    await driver.do(await plan_collect(driver.store, *row))
    assert await check_log(driver.store) == []
    await driver.chore(("collect", None))
    assert await rows_of(driver, KeyType.NODE) == 10
    assert (await shown(driver)).lowest == 2000


async def test_a_damaged_garbage_row_does_not_block_the_others() -> None:
    driver = await filled(3000, 100)
    damaged = garbage_key(b"")
    head = driver.store.head()
    await driver.store.commit(
        head.n + 1, [(damaged, b"?")], time_ms=driver.clock.ms, epoch=driver.store.epoch
    )
    await driver.do(evict_step(S, up_to=1999))
    assert await rows_of(driver, KeyType.GARBAGE) == 2
    await driver.chore(("collect", None))
    assert await rows_of(driver, KeyType.NODE) == 10
    assert await driver.store.get(damaged) == b"?"


async def test_the_same_collection_twice_is_done_once() -> None:
    driver = await filled(3000, 100)
    await driver.do(evict_step(S, up_to=1999))
    row = await next_garbage(driver.store)
    assert row is not None
    step = await plan_collect(driver.store, *row)
    await driver.submit(step, step)
    assert (await shown(driver)).stored_bytes > 0
    assert await check_log(driver.store) == []


async def test_evicting_a_stream_that_does_not_exist_removes_nothing() -> None:
    driver = await LogDriver.open()
    assert await driver.do(evict_step(S, up_to=5)) == 0
    assert driver.written == [{}]


@pytest.mark.parametrize("options", [{}, {"up_to": 1, "keep": 1}, {"keep": -1}])
def test_wrong_eviction_options_are_invalid(options: dict[str, int]) -> None:
    with pytest.raises(InvalidError):
        evict_step(S, **options)


@pytest.mark.parametrize("options", [{}, {"count": 1, "before": 1}])
def test_wrong_trim_options_are_invalid(options: dict[str, int]) -> None:
    with pytest.raises(InvalidError):
        trim_step(S, **options)


async def test_trimming_stops_at_the_lowest_hold_and_eviction_does_not() -> None:
    driver = await filled(1000, 100)
    log_id = (await shown(driver)).log_id
    await driver.do(hold_step(log_id, b"tailer", 300))
    await driver.do(hold_step(log_id, b"other", 700))
    driver.forget()
    assert await driver.do(trim_step(S, count=0)) == 300
    assert await driver.do(trim_step(S, before=900)) == 0
    await driver.do(hold_step(log_id, b"tailer", None))
    assert await driver.do(trim_step(S, count=0)) == 400
    assert await driver.do(evict_step(S, keep=0)) == 300
    await driver.append(S, [b"more"])
    assert await driver.do(trim_step(S, count=0)) == 0


async def test_backlog_stops_at_a_hold() -> None:
    driver = await filled(3000, 1000)
    await driver.do(hold_step((await shown(driver)).log_id, b"h", 1500))
    await driver.append(S, [b"x"], backlog=0)
    assert (await shown(driver)).first == 1500


@pytest.mark.parametrize(("holder", "offset"), [(b"", 1), (b"h", -1), (b"h", 2**64)])
def test_wrong_holds_are_invalid(holder: bytes, offset: int) -> None:
    with pytest.raises(InvalidError):
        hold_step(1, holder, offset)


async def test_a_bound_in_bytes_is_kept_with_whole_nodes() -> None:
    driver = await filled(10_000, 1000)
    state = await shown(driver)
    assert await first_by_bytes(driver.store, state, state.stored_bytes) == 0
    first = await first_by_bytes(driver.store, state, state.stored_bytes // 2)
    await driver.do(trim_step(S, before=first))
    await driver.chore(("collect", None))
    after = await shown(driver)
    assert first % 1000 == 0
    assert after.stored_bytes <= state.stored_bytes // 2
    assert after.stored_bytes > state.stored_bytes // 2 - state.stored_bytes // 9
    assert await first_by_bytes(driver.store, after, 0) == 10_000


async def test_a_bound_in_age_is_exact_within_a_merged_node() -> None:
    driver = await LogDriver.open()
    for ms in range(100, 110):
        driver.clock.ms = ms
        await driver.append(S, [b"x", b"y"])
    state = await shown(driver)
    expected = {99: 0, 100: 0, 101: 2, 105: 10, 109: 18, 110: 20}
    for before_ms, first in expected.items():
        assert await seek_time(driver.store, state, before_ms) == first
    await driver.append(S, [b"z"] * 1000)
    await driver.chore(("merge", state.log_id))
    merged = await shown(driver)
    assert await rows_of(driver, KeyType.NODE) == 2
    for before_ms, first in list(expected.items())[:-1]:
        assert await seek_time(driver.store, merged, before_ms) == first


async def test_a_deleted_stream_is_gone_at_once_and_its_rows_later() -> None:
    driver = await filled(3000, 1)
    log_id = (await shown(driver)).log_id
    await driver.do(hold_step(log_id, b"h", 0))
    await driver.append(S, [b"x"], producer=b"p", sequence=1)
    assert await driver.do(delete_step(S)) is True
    assert await driver.state(S) is None
    assert await check_log(driver.store) == []
    assert await driver.do(delete_step(S)) is False
    await driver.chore(("collect", None))
    kinds = [KeyType.NODE, KeyType.HOLD, KeyType.ONCE, KeyType.LOG, KeyType.NAME, KeyType.GARBAGE]
    assert [await rows_of(driver, kind) for kind in kinds] == [0] * len(kinds)
