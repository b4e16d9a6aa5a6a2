"""Upkeep behind the requests: merging, collecting and expiring, on its own and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.broker import Broker
from penstock.broker.commit import Shown
from penstock.codec.keys import KeyType, nodes_prefix, prefix, prefix_end
from penstock.log.batch import build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.check import check_log

NAME = stream_name("s")


async def rows_of(broker: Broker, low: bytes) -> int:
    async def query(view: Shown) -> int:
        return sum([len(rows) async for rows in view.store.scan(low, prefix_end(low))])

    return await broker.committer.read(query)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the background without guessing how long it takes; the test's timeout is the end."""
    while not await condition():
        await asyncio.sleep(0.005)


async def open_broker(location: str) -> Broker:
    return await Broker.open(location, deadline=30)


async def findings(broker: Broker) -> list[object]:
    return list(await broker.committer.read(lambda view: check_log(view.store)))


@pytest.mark.parametrize("location", ["memory://upkeep", "folder"])
async def test_small_writes_become_few_nodes_and_read_the_same(
    location: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if location == "folder":
        location = str(tmp_path_factory.mktemp("upkeep"))
    broker = await open_broker(location)
    for n in range(150):
        await broker.append(NAME, build_bodies([b"%d.%d" % (n, i) for i in range(20)]))

    async def merged() -> bool:
        return await rows_of(broker, nodes_prefix(1)) <= 3

    await until(merged)
    found = await broker.read(NAME, 0, 5000)
    assert [m and m.data for m in found] == [
        b"%d.%d" % (n, i) for n in range(150) for i in range(20)
    ]
    assert await findings(broker) == []
    await broker.close()


async def test_what_was_closed_before_a_restart_is_merged_after_it() -> None:
    broker = await open_broker("memory://upkeep-restart")
    assert broker._upkeep is not None
    await broker._upkeep.stop()
    for n in range(60):
        await broker.append(NAME, build_bodies([b"%d" % n] * 50))
    assert await rows_of(broker, nodes_prefix(1)) == 60
    await broker.close()
    broker = await open_broker("memory://upkeep-restart")

    async def merged() -> bool:
        return await rows_of(broker, nodes_prefix(1)) <= 3

    await until(merged)
    assert len(await broker.read(NAME, 0, 5000)) == 3000
    await broker.close()


async def test_evicted_rows_are_collected() -> None:
    broker = await open_broker("memory://upkeep-evict")
    for _ in range(5):
        await broker.append(NAME, build_bodies([b"x" * 100] * 1000))
    assert await broker.evict(NAME, keep=10) == 4990

    async def collected() -> bool:
        return await rows_of(broker, nodes_prefix(1)) == 1

    await until(collected)
    assert await rows_of(broker, prefix(KeyType.GARBAGE)) == 0
    assert (await broker.info(NAME)).length == 10
    await broker.close()


async def test_an_idempotency_row_that_expired_is_removed_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await open_broker("memory://upkeep-once")
    from penstock.log.append import append_step

    step = append_step(NAME, build_bodies([b"x"]), producer=b"p", sequence=1, once_ms=0)
    await broker.committer.submit(step)
    assert await rows_of(broker, prefix(KeyType.ONCE)) == 1
    await broker.close()
    broker = await open_broker("memory://upkeep-once")

    async def expired() -> bool:
        return await rows_of(broker, prefix(KeyType.ONCE)) == 0

    await until(expired)
    await broker.close()
