from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock.codec.keys import decode_node_key, node_key, staged_key
from penstock.codec.node import build_body, node_value
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.log.batch import NODE_ENTRIES, build_bodies, column
from penstock.log.decision import Decision, Step
from penstock.log.evict import delete_step, evict_step
from penstock.log.fold import plan_fold
from penstock.log.holes import plan_holes
from penstock.log.link import link_step
from penstock.log.merge import plan_merge
from penstock.log.read import (
    Message,
    entries_in_steps,
    entries_of,
    read,
    read_nodes,
    to_arrow,
)
from penstock.log.seek import seek_time
from penstock.log.staging import begin_step, stage_step
from penstock.log.state import LogState
from penstock.store.port import Store
from unit.log.driver import LogDriver, stream

S = stream("s")


async def filled(count: int, batch: int = 1000) -> tuple[LogDriver, LogState]:
    driver = await LogDriver.open()
    for start in range(0, count, batch):
        await driver.append(S, [("t", b"%d" % i) for i in range(start, min(start + batch, count))])
    state = await driver.state(S)
    assert state is not None
    return driver, state


def data(messages: list[Message | None]) -> list[int | None]:
    return [None if message is None else int(message.data) for message in messages]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0, 2500), (0, 900), (3, 1500), (1700, 1700)])
async def test_entries_made_in_steps_are_the_same(low: int, high: int, reverse: bool) -> None:
    driver, _ = await filled(2500, 700)
    await driver.do(evict_step(S, up_to=899))
    state = await driver.state(S)
    assert state is not None
    pieces = [piece async for piece in read_nodes(driver.store, state, low, high)]
    found = await entries_in_steps(pieces, low, high, reverse=reverse)
    assert found == entries_of(pieces, low, high, reverse=reverse)
    assert len(found) == high - low


async def test_a_message_has_offset_tag_data_time_and_meta() -> None:
    driver = await LogDriver.open()
    driver.clock.ms = 1_500
    await driver.append(S, [(b"\xff", b"x", b"m"), ("ü", b"", None)])
    one, two = await driver.read(S, 0, 10)
    assert one == Message(0, "\udcff", b"x", 1_500, b"m")
    assert two == Message(1, "ü", b"", 1_500, None)
    assert one.time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offset", "count", "reverse", "expected"),
    [
        (0, 3, False, [0, 1, 2]),
        (998, 4, False, [998, 999, 1000, 1001]),
        (2498, 10, False, [2498, 2499]),
        (2500, 10, False, []),
        (10**18, 10, False, []),
        (5, 0, False, []),
        (2, 3, True, [2, 1, 0]),
        (2, 10, True, [2, 1, 0]),
        (1001, 3, True, [1001, 1000, 999]),
        (10**18, 2, True, [2499, 2498]),
        (0, 0, True, []),
    ],
)
async def test_reads_of_either_direction(
    offset: int, count: int, reverse: bool, expected: list[int]
) -> None:
    driver, state = await filled(2500)
    found = await read(driver.store, state, offset, count, reverse=reverse)
    assert data(found) == expected


async def test_evicted_entries_are_none_and_count() -> None:
    driver, _ = await filled(20, 4)
    await driver.do(evict_step(S, up_to=9))
    assert data(await driver.read(S, 7, 5)) == [None, None, None, 10, 11]
    assert data(await driver.read(S, 11, 4, reverse=True)) == [11, 10, None, None]


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, -1)])
async def test_negative_arguments_are_invalid(offset: int, count: int) -> None:
    driver, state = await filled(1)
    with pytest.raises(InvalidError, match="is negative"):
        await read(driver.store, state, offset, count)


async def test_a_read_never_shows_more_than_its_state() -> None:
    driver, state = await filled(3)
    await driver.append(S, [b"3"])
    assert data(await read(driver.store, state, 0, 10)) == [0, 1, 2]


class Interrupted:
    """A store during whose first scan something else happens."""

    def __init__(self, driver: LogDriver, work: Any) -> None:
        self._store = driver.store
        self._work = work

    async def _once(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work()

    async def get(self, key: bytes) -> bytes | None:
        await self._once()
        return await self._store.get(key)

    async def floor(self, key: bytes, *, low: bytes) -> Any:
        return await self._store.floor(key, low=low)

    async def scan(self, low: bytes, high: bytes, **options: Any) -> AsyncIterator[Any]:
        await self._once()
        async for rows in self._store.scan(low, high, **options):
            yield rows


async def test_a_merge_in_the_middle_of_a_read_is_not_noticed() -> None:
    driver, state = await filled(300, 10)

    async def merge() -> None:
        step = await plan_merge(driver.store, state, active=True)
        assert step is not None
        assert await driver.do(step)

    store: Any = Interrupted(driver, merge)
    assert data(await read(store, state, 0, 300)) == list(range(300))


async def test_entries_evicted_and_collected_in_the_middle_of_a_read_are_none() -> None:
    driver, state = await filled(300, 10)

    async def evict() -> None:
        await driver.do(evict_step(S, up_to=149))
        await driver.chore(("collect", None))

    store: Any = Interrupted(driver, evict)
    found = data(await read(store, state, 0, 300))
    assert found == [*range(10), *[None] * 140, *range(150, 300)]


async def test_a_log_deleted_in_the_middle_of_a_read_is_not_found() -> None:
    driver, state = await filled(300, 10)

    async def delete() -> None:
        await driver.do(delete_step(S))
        await driver.chore(("collect", None))

    store: Any = Interrupted(driver, delete)
    with pytest.raises(NotFoundError):
        await read(store, state, 0, 300)


async def test_a_fold_in_the_middle_of_a_read_is_not_noticed() -> None:
    driver = await LogDriver.open()
    staging_id = await driver.do(begin_step())
    await driver.do(stage_step(staging_id, 0, 0, build_bodies([b"0", b"1"])))
    await driver.do(link_step(staging_id, [(S, [0])]))
    state = await driver.state(S)
    assert state is not None

    async def fold() -> None:
        step = await plan_fold(driver.store, staging_id)
        assert step is not None
        await driver.do(step)

    store: Any = Interrupted(driver, fold)
    assert data(await read(store, state, 0, 2)) == [0, 1]


async def linked(count: int) -> tuple[LogDriver, LogState, int]:
    """A log whose entries are staged nodes that nobody folded yet, and a last one that is not."""
    driver = await LogDriver.open()
    staging_id = await driver.do(begin_step())
    bodies = build_bodies([b"%d" % i for i in range(count)])
    await driver.do(stage_step(staging_id, 0, 0, bodies))
    await driver.do(link_step(staging_id, [(S, [0])]))
    await driver.append(S, [b"%d" % count])
    state = await driver.state(S)
    assert state is not None
    return driver, state, staging_id


async def test_links_evicted_and_folded_under_a_scan_are_gone_and_not_corrupt() -> None:
    driver, state, staging_id = await linked(4000)
    nodes = read_nodes(driver.store, state, 0, state.next)
    seen = [(await anext(nodes))[0].first]
    await driver.do(evict_step(S, up_to=2500))
    await driver.chore(("staging", staging_id))
    seen += [node.first async for node, _, _ in nodes]
    assert seen == [0, 2000, 3000, 4000]


async def test_links_evicted_and_folded_before_a_lookup_are_none_and_not_corrupt() -> None:
    driver, state, staging_id = await linked(4000)
    await driver.do(evict_step(S, up_to=2500))
    await driver.chore(("staging", staging_id))
    expected = [None] * 2501 + list(range(2501, 4001))
    # The state is older than the eviction; entries of the node over the edge are still there.
    assert data(await read(driver.store, state, 0, 5000))[2501:] == expected[2501:]
    assert data(await read(driver.store, state, 0, 2000)) == [None] * 2000
    assert data(await driver.read(S, 0, 5000)) == expected


async def test_a_link_deleted_and_folded_in_the_middle_of_a_read_is_not_found() -> None:
    driver, state, staging_id = await linked(4000)
    await driver.do(delete_step(S))
    await driver.chore(("staging", staging_id))
    with pytest.raises(NotFoundError):
        await read(driver.store, state, 0, 10)


async def remove(driver: LogDriver, key: bytes) -> None:
    n = driver.store.head().n + 1
    await driver.store.commit(n, [(key, None)], time_ms=0, epoch=driver.store.epoch)


@pytest.mark.parametrize("first", [0, 1000, 2000])
async def test_a_missing_node_is_corruption(first: int) -> None:
    driver, state = await filled(3000)
    await remove(driver, node_key(state.log_id, first))
    with pytest.raises(CorruptError, match=f"the node of offset {first} is missing"):
        await read(driver.store, state, 0, 3000)
    with pytest.raises(CorruptError):
        await to_arrow(driver.store, state, 0, 3000)


async def test_a_link_without_its_staged_node_is_corruption() -> None:
    driver = await LogDriver.open()
    staging_id = await driver.do(begin_step())
    await driver.do(stage_step(staging_id, 0, 0, build_bodies([b"0"])))
    await driver.do(link_step(staging_id, [(S, [0])]))
    await remove(driver, staged_key(staging_id, 0, 0))
    with pytest.raises(CorruptError, match="its staged node is missing"):
        await driver.read(S, 0, 1)


async def test_arrow_out_begins_at_the_edge() -> None:
    driver, _ = await filled(2500)
    await driver.do(evict_step(S, up_to=1499))
    state = await driver.state(S)
    assert state is not None
    table = await to_arrow(driver.store, state, 1000, 2200)
    assert table["offset"].to_pylist() == list(range(1500, 2200))
    assert table["data"].to_pylist() == [b"%d" % i for i in range(1500, 2200)]
    assert (await to_arrow(driver.store, state, 0, 10)).num_rows == 0


async def test_the_node_of_an_offset_is_looked_for_where_it_can_begin() -> None:
    """The engine opens every table that may hold a part of the range."""
    driver, state = await filled(5000)
    asked = Asked(driver.store)
    assert data(await read(asked, state, 4500, 3)) == [4500, 4501, 4502]
    assert await seek_time(asked, state, 0) == 0
    await plan_holes(asked, state, [2500])
    assert (node_key(state.log_id, 4500), node_key(state.log_id, 3501)) in asked.floors
    assert (node_key(state.log_id, 2500), node_key(state.log_id, 1501)) in asked.floors
    assert all(
        decode_node_key(key)[1] - decode_node_key(low)[1] < NODE_ENTRIES
        for key, low in asked.floors
    )


async def test_a_node_that_is_longer_than_ours_is_found_all_the_same() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [b"0"])
    state = await driver.state(S)
    assert state is not None
    items = [b"%d" % i for i in range(3000)]
    long = build_body(3000, column(items, "data"))
    await driver.do(
        Step(lambda view, now: Decision(writes={node_key(1, 0): node_value(long, 0, now.ms)}))
    )
    state = msgspec.structs.replace(state, next=3000)
    assert data(await read(driver.store, state, 2900, 2)) == [2900, 2901]


class Asked:
    """A store, and what it was asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.floors: list[tuple[bytes, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def floor(self, key: bytes, *, low: bytes) -> Any:
        self.floors.append((key, low))
        return await self._store.floor(key, low=low)
