"""Routing: in the publish commit, behind it, and for a queue that wants what was there before."""

from __future__ import annotations

import pytest

from penstock.codec.keys import router_key
from penstock.codec.queueoperation import PageKind
from penstock.codec.router import decode_cursor, encode_cursor
from penstock.log.decision import Decision, Step
from penstock.queue.admin import create_step
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.publish import publish_step
from penstock.queue.route import ROUTER, backfill_step, catch_up_step
from penstock.queue.state import queue_name
from unit.queue.driver import QueueDriver, messages, small_pages

B = queue_name("b")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    monkeypatch.setattr("penstock.queue.route.ROUTE_COUNT", 3)


async def fall_behind(driver: QueueDriver, cursor: int) -> None:
    """As after messages were linked without routing."""
    await driver.do(Step(lambda view, now: Decision(writes={router_key(): encode_cursor(cursor)})))
    driver.states.pop(ROUTER, None)


async def test_a_message_goes_to_every_queue_whose_filter_takes_it() -> None:
    driver = await QueueDriver.start()
    await driver.create("red", filter="color = 'red'")
    await driver.create("none", filter="false")
    red, blue, bare = await driver.publish(
        Item(headers={"color": "red"}), Item(headers={"color": "blue"}), Item()
    )
    assert await driver.ids(PageKind.AVAILABLE) == [red, blue, bare]
    assert await driver.ids(PageKind.AVAILABLE, "red") == [red]
    assert await driver.ids(PageKind.AVAILABLE, "none") == []
    await driver.clean()


async def test_an_addressed_message_goes_to_its_queue_alone_and_no_filter_is_asked() -> None:
    driver = await QueueDriver.start()
    await driver.create("none", filter="false")
    ids = await driver.publish(Item(to="none"), Item(), Item(to="q"))
    assert await driver.ids(PageKind.AVAILABLE) == ids[1:]
    assert await driver.ids(PageKind.AVAILABLE, "none") == ids[:1]
    await driver.clean()


class CountedName(str):
    """Knows how often names were compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


async def test_many_addressees_cost_as_many_looks_as_there_are_and_not_their_square() -> None:
    driver = await QueueDriver.start()
    for n in range(50):
        await driver.create(f"to{n}", filter="false")
    CountedName.compared = 0
    ids = await driver.publish(*(Item(to=CountedName(f"to{n}")) for n in range(50)))
    assert CountedName.compared < 10 * 50
    for n in (0, 49):
        assert await driver.ids(PageKind.AVAILABLE, f"to{n}") == [ids[n]]
    await driver.clean()


async def test_a_queue_that_is_made_in_the_same_tick_takes_what_is_published_after_it() -> None:
    driver = await QueueDriver.open()
    assert isinstance(driver, QueueDriver)

    def publish(data: bytes) -> Step:
        return publish_step(PreparedBatch([Item(data)]))

    create = create_step(B, {}, secret=bytes(32))
    replies = await driver.submit(publish(b"1"), create, publish(b"2"))
    assert await driver.ids(PageKind.AVAILABLE, "b") == replies[2].ids
    await driver.clean()


async def test_publishing_leaves_everything_to_a_router_that_is_behind() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    await fall_behind(driver, 1)
    await driver.publish(*messages(7))
    assert (await driver.stats()).routed == 1
    while await driver.do(catch_up_step()):
        pass
    assert (await driver.stats()).routed == 8
    assert await driver.store.get(router_key()) is None
    await driver.publish(b"y")
    assert (await driver.stats()).routed == 9
    await driver.clean()


async def test_a_router_that_dies_after_any_of_its_commits_neither_skips_nor_doubles() -> None:
    driver = await QueueDriver.start()
    await fall_behind(driver, 0)
    ids = await driver.publish(*messages(10))
    more, commits = True, 0
    while more:
        driver = await driver.restarted()
        value = await driver.store.get(router_key())
        assert value is not None
        assert decode_cursor(value) == 3 * commits
        more = await driver.do(catch_up_step())
        commits += 1
        await driver.clean()
        assert await driver.ids(PageKind.AVAILABLE) == ids[: 3 * commits]
    assert commits == 4


async def test_a_queue_that_is_made_while_the_router_is_behind_gets_nothing_from_before() -> None:
    driver = await QueueDriver.start()
    await fall_behind(driver, 0)
    await driver.publish(*messages(5), Item(to="q"))
    await driver.create("b")
    after = await driver.publish(b"after")
    while await driver.do(catch_up_step()):
        pass
    assert await driver.ids(PageKind.AVAILABLE, "b") == after
    assert (await driver.stats()).routed == 7
    await driver.clean()


async def test_an_addressed_message_whose_queue_was_made_anew_since_is_for_nobody() -> None:
    driver = await QueueDriver.start()
    await fall_behind(driver, 0)
    await driver.publish(Item(to="q"))
    await driver.delete()
    await driver.create("q")
    while await driver.do(catch_up_step()):
        pass
    assert (await driver.stats()).routed == 0
    await driver.clean()


async def test_what_the_same_tick_publishes_is_not_routed_by_its_catch_up() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"0")
    await fall_behind(driver, 1)
    await driver.submit(publish_step(PreparedBatch([Item(b"1")])), catch_up_step())
    while await driver.do(catch_up_step()):
        pass
    assert (await driver.stats()).routed == 2
    await driver.clean()


async def test_a_backfill_takes_what_lives_and_is_not_addressed_and_dies_well() -> None:
    driver = await QueueDriver.start(filter="done = 'yes'")
    yes = {"done": "yes"}
    ids = await driver.publish(
        Item(headers=yes), Item(to="q"), Item(), Item(retention_s=1), Item(), Item(headers=yes)
    )
    (lease,) = [x for x in await driver.claim(9) if x.message_id == ids[0]]
    await driver.ack(lease)
    driver.clock.ms += 1001
    await driver.create("b", "first")
    more = True
    while more:
        after = await driver.publish(b"after")
        driver = await driver.restarted()
        more = await driver.do(backfill_step(B))
        await driver.clean()
    assert await driver.do(backfill_step(B)) is False
    old = [i for i in await driver.ids(PageKind.AVAILABLE, "b") if i < after[0] - 1]
    assert old == [ids[2], ids[4], ids[5]]
    assert (await driver.stats("b")).backfilling is False
