"""Seeking a time: the offset that a look at every entry finds, however the log came to be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.codec.keys import log_key, node_key
from penstock.errors import CorruptError, NotFoundError
from penstock.log.batch import build_bodies
from penstock.log.columns import Counts, columns
from penstock.log.evict import delete_step, evict_step
from penstock.log.fold import plan_fold
from penstock.log.holes import plan_holes
from penstock.log.link import link_step
from penstock.log.read import read_nodes
from penstock.log.seek import seek_time
from penstock.log.staging import begin_step, stage_step
from penstock.log.state import LogRange, LogState
from unit.log.driver import LogDriver, stream

S = stream("s")

#: What happens to a log: entries appended at once, linked (folded or not), or in a run of small
#: writes that becomes a node with times of its own; merges, holes, evictions.
moves = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([1, 2, 7, 600, 1700])),
        st.tuples(st.just("link"), st.sampled_from([1, 3, 1200])),
        st.tuples(st.just("wait"), st.integers(1, 3)),
        st.tuples(st.just("run"), st.lists(st.integers(0, 2), min_size=2, max_size=4)),
        st.tuples(st.just("merge"), st.just(0)),
        st.tuples(st.just("fold"), st.just(0)),
        st.tuples(st.just("punch"), st.floats(0, 1)),
        st.tuples(st.just("evict"), st.floats(0, 1)),
        st.tuples(st.just("collect"), st.just(0)),
    ),
    max_size=25,
)


async def made(driver: LogDriver, made_by: list[tuple[str, Any]]) -> LogState:
    await driver.append(S, [b"x"])
    staging_id = 0
    for what, much in made_by:
        state = await driver.state(S)
        assert state is not None
        match what:
            case "append":
                await driver.append(S, [b"x"] * much)
            case "link":
                staging_id = await driver.do(begin_step())
                await driver.do(stage_step(staging_id, 0, 0, build_bodies([b"x"] * much)))
                await driver.do(link_step(staging_id, [(S, [0])]))
            case "wait":
                driver.clock.ms += much
            case "run":
                for wait in much:
                    await driver.append(S, [b"x"] * 2)
                    driver.clock.ms += wait
                await driver.append(S, [b"x"] * 1000)
                await driver.chore(("merge", state.log_id))
            case "merge":
                await driver.chore(("merge", state.log_id))
            case "fold":
                step = await plan_fold(driver.store, staging_id)
                if step is not None:
                    await driver.do(step)
            case "punch":
                edge = state.first + int((state.next - state.first) * much)
                step, _ = await plan_holes(driver.store, state, range(edge, edge + 3))
                if step is not None:
                    await driver.do(step)
            case "evict":
                edge = state.first + int((state.next - state.first) * much)
                await driver.do(evict_step(S, up_to=edge - 1) if edge else evict_step(S, keep=1))
            case "collect":
                await driver.chore(("collect", None))
    state = await driver.state(S)
    assert state is not None
    return state


async def times_of(driver: LogDriver, state: LogState) -> list[int]:
    found: list[int] = []
    async for node, low, high in read_nodes(driver.store, state, 0, state.next):
        found += node.time_list(low, high)
    return found


#: The edge cuts a node with times of its own, between two entries of one time.
CUT: list[tuple[str, Any]] = [("run", [1, 1, 1]), ("evict", 4.5 / 1007)]


@settings(deadline=None)
@given(made_by=moves)
@example(made_by=CUT)
def test_a_seek_finds_what_a_look_at_every_entry_finds(made_by: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        driver = await LogDriver.open()
        state = await made(driver, made_by)
        times = await times_of(driver, state)
        assert times == sorted(times)
        assert len(times) == state.length
        known = LogRange(state.log_id, state.first, state.next)
        for time_ms in {0, 1_000_000, *times, *(time + 1 for time in times), driver.clock.ms + 5}:
            older = sum(time < time_ms for time in times)
            assert await seek_time(driver.store, state, time_ms) == state.first + older
            assert await seek_time(driver.store, known, time_ms) == state.first + older

    asyncio.run(play())


@settings(deadline=None)
@given(
    made_by=moves,
    times=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    part=st.just((0.0, 1.0)) | st.tuples(st.floats(0, 1), st.floats(0, 1)),
    batch_rows=st.sampled_from([1, 600, 10_000]),
)
@example(made_by=CUT, times=(0.0, 0.7), part=(0.0, 1.0), batch_rows=600)
def test_columns_of_a_time_are_those_that_a_look_at_every_entry_chooses(
    made_by: list[tuple[str, Any]],
    times: tuple[float, float],
    part: tuple[float, float],
    batch_rows: int,
) -> None:
    async def play() -> None:
        driver = await LogDriver.open()
        state = await made(driver, made_by)
        passed_ms = driver.clock.ms + 2 - 1_000_000
        low_ms, high_ms = (1_000_000 + int(passed_ms * time) for time in times)
        begin, end = (int(state.next * edge) for edge in part)
        expected = []
        async for node, start, stop in read_nodes(driver.store, state, begin, end):
            alive = node.alive()
            for i, time_ms in zip(range(start, stop), node.time_list(start, stop), strict=True):
                if low_ms <= time_ms < high_ms and (alive is None or alive[i]):
                    expected.append((node.first + i, time_ms * 1000))
        count = Counts()
        found = columns(
            driver.store,
            state,
            begin,
            end,
            count=count,
            time_low_ms=low_ms,
            time_high_ms=high_ms,
            batch_rows=batch_rows,
        )
        chosen: list[tuple[int, int]] = []
        async for batch in found:
            stamps = batch.column("time").cast("int64").to_pylist()
            chosen += zip(batch.column("offset").to_pylist(), stamps, strict=True)
        assert chosen == expected
        assert count.rows == len(expected)

    asyncio.run(play())


async def test_what_was_evicted_since_the_state_was_known_is_not_found_again() -> None:
    driver = await LogDriver.open()
    for _ in range(20):
        await driver.append(S, [b"x"] * 600)
        driver.clock.ms += 10
    old = await driver.state(S)
    assert old is not None
    await driver.do(evict_step(S, up_to=5999))
    await driver.chore(("collect", None))
    assert await seek_time(driver.store, old, 1_000_000) == 6000
    assert await seek_time(driver.store, old, 1_000_100) == 6000
    assert await seek_time(driver.store, old, 1_000_101) == 6600
    await driver.do(evict_step(S, up_to=11_999))
    await driver.chore(("collect", None))
    assert await seek_time(driver.store, old, 1_000_000) == 12_000


async def test_a_missing_node_is_corruption_and_a_deleted_log_is_not_found() -> None:
    driver = await LogDriver.open()
    for _ in range(3):
        await driver.append(S, [b"x"] * 600)
    state = await driver.state(S)
    assert state is not None
    n = driver.store.head().n + 1
    gone = node_key(state.log_id, 600)
    await driver.store.commit(n, [(gone, None)], time_ms=0, epoch=driver.store.epoch)
    with pytest.raises(CorruptError, match="the node of offset 900 is missing"):
        await seek_time(driver.store, state, 1_000_000)
    await driver.do(delete_step(S))
    await driver.chore(("collect", None))
    assert await driver.store.get(log_key(state.log_id)) is None
    with pytest.raises(NotFoundError):
        await seek_time(driver.store, state, 1_000_000)
