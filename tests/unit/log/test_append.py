from __future__ import annotations

import numpy as np
import pytest

from penstock.codec.keys import KeyType, key_type, node_key
from penstock.codec.node import FRAGMENT, ZSTD, decode_header
from penstock.errors import InvalidError, NotFoundError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.check import check_log
from penstock.log.evict import delete_step, evict_step
from penstock.log.state import SETTLE_ROWS, LogState, read_log
from unit.log.driver import LogDriver, data_of, stream

CLICKS = stream("clicks")


async def shown(driver: LogDriver) -> LogState:
    state = await driver.state(CLICKS)
    assert state is not None
    return state


async def test_the_first_write_makes_the_stream_in_the_same_commit() -> None:
    driver = await LogDriver.open()
    assert await driver.append(CLICKS, [b"a", b"b"]) == range(0, 2)
    assert len(driver.written) == 1
    kinds = [key_type(key).name for key in driver.written[0]]
    assert kinds == ["IDS", "NAME", "LOG", "NODE"]


async def test_a_later_write_is_one_row() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"a"])
    assert await driver.append(CLICKS, [b"b"]) == range(1, 2)
    assert [key_type(key) for key in driver.written[-1]] == [KeyType.NODE]


async def test_two_first_writes_of_one_tick_share_the_stream() -> None:
    driver = await LogDriver.open()
    steps = [append_step(CLICKS, build_bodies([data])) for data in (b"a", b"b")]
    assert await driver.submit(*steps) == [range(0, 1), range(1, 2)]
    assert await data_of(driver, CLICKS) == [b"a", b"b"]
    assert await check_log(driver.store) == []


async def test_two_new_streams_of_one_tick_have_different_ids() -> None:
    driver = await LogDriver.open()
    names = [stream("a"), stream("b")]
    await driver.submit(*(append_step(name, build_bodies([name.name])) for name in names))
    assert [await data_of(driver, name) for name in names] == [[b"a"], [b"b"]]


async def test_writing_nothing_makes_nothing() -> None:
    driver = await LogDriver.open()
    assert await driver.append(CLICKS, []) == range(0)
    assert driver.written == [{}]
    await driver.append(CLICKS, [b"a"])
    assert await driver.append(CLICKS, []) == range(1, 1)
    assert driver.written[-1] == {}


async def test_an_id_that_does_not_exist_is_not_made() -> None:
    driver = await LogDriver.open()
    with pytest.raises(NotFoundError):
        await driver.do(append_step(7, build_bodies([b"a"])))


async def test_a_large_batch_on_an_empty_run_is_sealed_at_once() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"the same again and again"] * 1000)
    value = driver.written[0][node_key(1, 0)]
    assert value is not None
    assert decode_header(value, "node").flags & (FRAGMENT | ZSTD) == ZSTD
    assert (await shown(driver)).run.fragments == ()


async def test_small_batches_join_the_run_until_it_is_full() -> None:
    driver = await LogDriver.open()
    for _ in range(9):
        await driver.append(CLICKS, [b"x"] * 100)
    state = await shown(driver)
    assert (len(state.run.fragments), state.closed) == (9, ())
    await driver.append(CLICKS, [b"x"] * 100)
    state = await shown(driver)
    assert (state.run.fragments, [run.entries for run in state.closed]) == ((), [1000])
    assert [timer.what for timer in driver.timers] == [("merge", state.log_id)]


async def test_a_batch_that_does_not_fit_closes_the_run() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"x"] * 10)
    await driver.append(CLICKS, [b"y"] * 1000)
    state = await shown(driver)
    assert [run.entries for run in state.closed] == [10]
    assert state.run.fragments == ()
    value = driver.written[-1][node_key(state.log_id, 10)]
    assert value is not None
    assert not decode_header(value, "node").flags & FRAGMENT


async def test_the_run_is_bounded_in_bytes_too() -> None:
    driver = await LogDriver.open()
    for _ in range(6):
        await driver.append(CLICKS, [bytes(200_000)])
    state = await shown(driver)
    assert [run.entries for run in state.closed] == [5]
    assert state.run.entries == 1


async def test_no_offset_is_given_twice_when_all_entries_are_evicted_and_collected() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"x"] * 3)
    await driver.do(evict_step(CLICKS, keep=0))
    await driver.chore(("collect", None))
    driver.forget()
    assert await driver.append(CLICKS, [b"y"]) == range(3, 4)
    assert await check_log(driver.store) == []


async def test_a_deleted_stream_that_is_written_again_is_another_one() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"old"] * 3)
    steps = [delete_step(CLICKS), append_step(CLICKS, build_bodies([b"new"]))]
    assert await driver.submit(*steps) == [True, range(0, 1)]
    assert await data_of(driver, CLICKS) == [b"new"]
    assert (await shown(driver)).log_id == 2
    await driver.chore(("collect", None))
    assert await data_of(driver, CLICKS) == [b"new"]
    assert await check_log(driver.store) == []


async def test_an_opening_reads_a_bounded_number_of_nodes() -> None:
    driver = await LogDriver.open()
    for _ in range(3 * SETTLE_ROWS):
        await driver.append(CLICKS, [b"x"] * 500)
    state = await read_log(driver.store, 1)
    assert state is not None
    assert state.settled > 500 * 2 * SETTLE_ROWS - 1
    assert state.unsettled_rows <= SETTLE_ROWS
    assert state.stored_bytes == (await shown(driver)).stored_bytes


async def test_huge_entries_settle_at_once_so_that_an_opening_does_not_read_them() -> None:
    driver = await LogDriver.open()
    for seed in range(2):
        await driver.append(CLICKS, [np.random.default_rng(seed).bytes(5 << 20)])
    state = await read_log(driver.store, 1)
    assert state is not None
    assert (state.settled, state.unsettled_bytes) == (2, 0)


# ---- producers ----------------------------------------------------------------------------------


async def test_a_repeated_sequence_gets_the_first_answer_and_writes_nothing() -> None:
    driver = await LogDriver.open()
    first = await driver.append(CLICKS, [b"a", b"b"], producer=b"p", sequence=1)
    driver.forget()
    assert await driver.append(CLICKS, [b"a", b"b"], producer=b"p", sequence=1) == first
    assert driver.written[-1] == {}
    assert await data_of(driver, CLICKS) == [b"a", b"b"]


async def test_a_repetition_in_the_same_tick_gets_the_first_answer() -> None:
    driver = await LogDriver.open()
    step = append_step(CLICKS, build_bodies([b"a"]), producer=b"p", sequence=1)
    assert await driver.submit(step, step) == [range(0, 1), range(0, 1)]
    assert await data_of(driver, CLICKS) == [b"a"]


async def test_a_lower_sequence_is_invalid() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"a"], producer=b"p", sequence=5)
    with pytest.raises(InvalidError, match="sequence 4 is below 5"):
        await driver.append(CLICKS, [b"a"], producer=b"p", sequence=4)
    assert await driver.append(CLICKS, [b"b"], producer=b"other", sequence=4) == range(1, 2)


async def test_a_producer_is_forgotten_after_its_time() -> None:
    driver = await LogDriver.open()
    await driver.append(CLICKS, [b"a"], producer=b"p", sequence=5, once_ms=1000)
    driver.clock.ms += 1000
    assert await driver.append(CLICKS, [b"a"], producer=b"p", sequence=1) == range(1, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"producer": b"p"},
        {"sequence": 1},
        {"producer": b"", "sequence": 1},
        {"producer": b"p" * 256, "sequence": 1},
        {"producer": b"p", "sequence": -1},
        {"producer": b"p", "sequence": 2**64},
        {"backlog": -1},
    ],
)
def test_wrong_options_are_invalid(options: dict[str, object]) -> None:
    with pytest.raises(InvalidError):
        append_step(CLICKS, [], **options)  # type: ignore[arg-type]


# ---- backlog ------------------------------------------------------------------------------------


async def test_backlog_keeps_at_least_that_many_and_not_a_node_more() -> None:
    driver = await LogDriver.open()
    for _ in range(40):
        await driver.append(CLICKS, [b"x"] * 100, backlog=500)
        length = (await shown(driver)).length
        assert length >= min(500, (await shown(driver)).next)
        assert length < 500 + 1000
    assert (await shown(driver)).first > 0


async def test_backlog_does_not_write_an_edge_with_every_append() -> None:
    driver = await LogDriver.open()
    for _ in range(30):
        await driver.append(CLICKS, [b"x"] * 100, backlog=0)
    edges = [w for w in driver.written if any(key_type(k) is KeyType.GARBAGE for k in w)]
    assert len(edges) == 3
