from __future__ import annotations

from penstock.codec.keys import log_key, node_key
from penstock.codec.node import Node, decode_node, node_value
from penstock.log.batch import build_bodies
from penstock.log.cache import NodeCache
from penstock.log.read import read
from unit.log.driver import LogDriver, stream


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
