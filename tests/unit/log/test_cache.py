from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from penstock.codec.keys import log_key, node_key
from penstock.codec.node import Node, decode_node, node_value
from penstock.errors import CorruptError
from penstock.log.batch import build_bodies
from penstock.log.cache import NodeCache
from penstock.log.read import AHEAD_NODE_BYTES, AHEAD_NODES, Message, read
from penstock.log.state import LogState
from unit.log.driver import LogDriver, stream

LARGE_ENTRY = 2 << 20


def node(first: int, count: int = 10, size: int = 10) -> Node:
    return decode_node(node_value(build_bodies([bytes(size)] * count)[0], first, 0), "node")


def test_a_node_is_found_by_every_offset_it_holds_and_by_no_other() -> None:
    cache = NodeCache()
    cache.keep(1, node(10), set())
    cache.keep(1, node(30), set())
    assert [o for o in range(50) if cache.find(1, o)] == [*range(10, 20), *range(30, 40)]
    assert cache.find(2, 10) is None


def test_the_least_recently_used_node_goes_first() -> None:
    cache = NodeCache(48_000)
    for first in (0, 10, 20, 30):
        cache.keep(1, node(first, size=1000), set())
    assert cache.find(1, 0)
    cache.keep(1, node(40, size=1000), set())
    assert [bool(cache.find(1, o)) for o in (0, 10, 20, 30, 40)] == [True, False, True, True, True]
    assert cache.bytes <= 48_000


def test_a_node_larger_than_its_share_is_not_kept() -> None:
    cache = NodeCache(10_000)
    cache.keep(1, node(0, size=1000), set())
    assert cache.find(1, 0) is None
    assert cache.bytes == 0


def test_a_write_of_the_same_key_drops_the_node() -> None:
    cache = NodeCache()
    cache.keep(1, node(10), set())
    cache.forget([log_key(1), node_key(2, 10), node_key(1, 11)])
    assert cache.find(1, 10)
    cache.forget([node_key(1, 10)])
    assert cache.find(1, 10) is None
    assert cache.bytes == 0


def test_a_node_read_before_a_write_does_not_enter_after_it() -> None:
    cache = NodeCache()
    with cache.reading() as forgotten:
        old = node(10)
        cache.forget([node_key(1, 10)])
        cache.keep(1, old, forgotten)
        cache.keep(1, node(20), forgotten)
    assert cache.find(1, 10) is None
    assert cache.find(1, 20)


async def test_a_second_read_asks_the_store_for_nothing() -> None:
    driver = await LogDriver.open()
    name = stream("s")
    await driver.append(name, [b"x"] * 2500)
    state = await driver.state(name)
    assert state is not None
    cache = NodeCache()
    first = await read(driver.store, state, 0, 2500, cache=cache)
    driver.store.crash()
    assert await read(driver.store, state, 0, 2500, cache=cache) == first


def test_a_node_that_was_being_read_while_all_was_forgotten_does_not_enter() -> None:
    cache = NodeCache()
    with cache.reading() as forgotten:
        old = node(10)
        cache.clear()
        cache.keep(1, old, forgotten)
    assert cache.find(1, 10) is None


class Looks:
    """Counts how often the store is asked for nodes."""

    def __init__(self, driver: LogDriver, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("floor", "scan"):
            self._count(driver, patch, name)

    def _count(self, driver: LogDriver, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(driver.store, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return real(*args, **options)

        patch.setattr(driver.store, name, counted)


async def filled(nodes: int) -> tuple[LogDriver, LogState]:
    driver = await LogDriver.open()
    for n in range(nodes):
        await driver.append(stream("s"), [b"%d" % (100 * n + i) for i in range(100)])
    state = await driver.state(stream("s"))
    assert state is not None
    return driver, state


def data(messages: Sequence[Message | None]) -> list[int | None]:
    return [None if message is None else int(message.data) for message in messages]


async def test_who_reads_on_looks_once_for_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, state = await filled(20)
    cache, looks = NodeCache(), Looks(driver, monkeypatch)
    for offset in range(0, 2000, 50):
        found = await read(driver.store, state, offset, 50, cache=cache)
        assert data(found) == list(range(offset, offset + 50))
    assert looks.count == 4  # the first node, and behind it eight, eight and three


async def test_who_reads_here_and_there_gets_what_he_asks_for_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, state = await filled(20)
    cache, looks = NodeCache(), Looks(driver, monkeypatch)
    for n in range(0, 20, 2):
        assert len(await read(driver.store, state, 100 * n, 100, cache=cache)) == 100
        assert cache.find(state.log_id, 100 * (n + 1)) is None
    assert looks.count == 10


async def test_damage_that_nobody_asked_for_hinders_no_read() -> None:
    driver, state = await filled(5)
    head = driver.store.head()
    await driver.store.commit(
        head.n + 1,
        [(node_key(state.log_id, 300), b"damaged")],
        time_ms=head.time_ms,
        epoch=driver.store.epoch,
    )
    cache = NodeCache()
    for n in (0, 1, 2):
        found = await read(driver.store, state, 100 * n, 100, cache=cache)
        assert data(found) == list(range(100 * n, 100 * n + 100))
    with pytest.raises(CorruptError):
        await read(driver.store, state, 300, 1, cache=cache)


async def test_a_node_that_does_not_begin_behind_its_neighbour_is_found_all_the_same() -> None:
    driver, state = await filled(3)
    cache = NodeCache()
    cache.keep(state.log_id, node(100, 50), set())  # what a merge replaced, meanwhile
    assert data(await read(driver.store, state, 150, 100, cache=cache)) == list(range(150, 250))


async def test_reading_on_behind_small_entries_does_not_take_many_large_ones() -> None:
    """Their nodes hold one each: as many offsets as the last node had could be any size."""
    driver = await LogDriver.open()
    await driver.append(stream("s"), [b"%d" % i for i in range(1000)])
    for _ in range(12):
        await driver.append(stream("s"), [Random(1).randbytes(LARGE_ENTRY)])
    state = await driver.state(stream("s"))
    assert state is not None
    cache = NodeCache()
    await read(driver.store, state, 0, 1, cache=cache)
    before = cache.bytes
    assert len(await read(driver.store, state, 1000, 1, cache=cache)) == 1
    assert cache.bytes - before <= AHEAD_NODES * AHEAD_NODE_BYTES + 2 * LARGE_ENTRY


async def test_reading_on_takes_few_nodes_however_small_they_are() -> None:
    driver = await LogDriver.open()
    await driver.append(stream("s"), [b"%d" % i for i in range(1000)])
    for n in range(60):
        await driver.append(stream("s"), [b"%d" % (1000 + n)])
    state = await driver.state(stream("s"))
    assert state is not None
    cache = NodeCache()
    await read(driver.store, state, 0, 1, cache=cache)
    assert data(await read(driver.store, state, 1000, 1, cache=cache)) == [1000]
    assert cache.find(state.log_id, 1000 + AHEAD_NODES - 1)
    assert cache.find(state.log_id, 1000 + AHEAD_NODES) is None
