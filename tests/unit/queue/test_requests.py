"""Requests of queues through a broker: bounds, damage, cancelling, what waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.pagekeeping import flush_queue
from penstock.broker.queuekeeping import GRACE_MS
from penstock.broker.queues import Queues
from penstock.codec.queueoperation import PageKind
from penstock.errors import CorruptError, InvalidError, NotFoundError, UnavailableError
from penstock.log.decision import Decision, Step
from penstock.queue.allqueues import ALL_QUEUES
from penstock.queue.item import Item
from penstock.queue.state import load_queue, page_row_key, page_state_key, queue_name
from penstock.queue.taken import RECLAIM_MS
from unit.queue.driver import small_pages
from unit.queue.test_reclaim import Q, World

LARGE = b"x" * ((1 << 20) + 1)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.open()
    await world.broker.queues.create(Q, backoff=0, max_attempts=2)
    return world


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_each_receipt_has_its_own_answer(world: World) -> None:
    queues = world.broker.queues
    await queues.publish([Item(b"x")] * 2)
    first, second = (message.receipt for message in await queues.claim(Q, 2))
    forged = first[:-1] + ("0" if first[-1] != "0" else "1")
    truths = await queues.ack(Q, ["", second, forged, first, second])
    assert truths == [False, True, False, True, False]
    assert (await queues.stats(Q)).acked == 2


@pytest.mark.parametrize("what", ["publish", "ack"])
async def test_a_call_that_looks_something_up_first_has_one_deadline_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """How many queues there are, or the key of receipts: once, after an opening. What that took is
    not there any more for the commit, which may need half of the deadline."""
    queues, committer = world.broker.queues, world.broker.committer
    await queues.publish([Item(b"x")])
    (held,) = await queues.claim(Q, 1, lease_ms=60_000)
    half_ms = round(committer.deadline * 500)
    read = committer.read

    async def call(lookup_ms: int) -> Any:
        committer.states.put(ALL_QUEUES, None)
        queues._secret = None

        async def slow(query: Any) -> Any:
            found = await read(query)
            world.clock.pass_ms(lookup_ms)
            return found

        monkeypatch.setattr(committer, "read", slow)
        try:
            if what == "publish":
                return await queues.publish([Item(b"y"), Item(b"z")])
            return await queues.ack(Q, [held.receipt])
        finally:
            monkeypatch.setattr(committer, "read", read)

    before = committer.applied_n
    with pytest.raises(UnavailableError, match="too slow") as caught:
        await call(half_ms + 1)
    assert "nothing was written" in caught.value.hint
    assert committer.applied_n == before
    assert len(await call(half_ms - 1)) == (2 if what == "publish" else 1)
    assert committer.applied_n == before + 1


async def test_expiry_of_many_single_messages_takes_few_commits(world: World) -> None:
    for i in range(50):
        await world.broker.queues.publish([Item(b"%d" % i, retention_s=1)])
    world.clock.pass_ms(1001 + GRACE_MS)
    before = world.broker.committer.health.requests
    await world.upkeep()
    assert await world.payloads() == {}
    assert world.broker.committer.health.requests - before < 20
    await world.clean()


async def test_a_batch_for_many_queues_is_committed_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.queues.PART_BYTES", 10_000)
    queues = world.broker.queues
    await queues.publish([Item(b"x")] * 20)
    alone = world.broker.committer.health.commits
    for i in range(50):
        await queues.create(queue_name(f"q{i}"))
    before = world.broker.committer.health.commits
    assert len(await queues.publish([Item(b"x")] * 20)) == 20
    assert alone <= 3
    assert world.broker.committer.health.commits - before > 3
    assert (await queues.stats(queue_name("q49"))).available == 20
    await world.clean()


async def test_a_large_batch_for_an_unknown_queue_stores_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.queues.PART_BYTES", 1000)
    with pytest.raises(NotFoundError):
        await world.broker.queues.publish([Item(b"x" * 100)] * 20 + [Item(b"y", to="nope")])
    assert await world.payloads() == {}


async def test_a_claim_answers_with_as_much_as_it_may_and_gives_the_others_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.queues.ANSWER_BYTES", 250)
    queues = world.broker.queues
    await queues.publish([Item(b"x" * 100) for _ in range(10)])
    found = await queues.claim(Q, 10)
    assert len(found) == 3
    await settle()
    stats = await queues.stats(Q)
    assert (stats.available, stats.in_flight) == (7, 3)
    again = await queues.claim(Q, 10)
    assert [message.attempts for message in again] == [1, 1, 1]
    await settle()
    assert len(await queues.peek(Q, 10)) == 3


async def test_a_damaged_payload_does_not_keep_the_others_back(world: World) -> None:
    queues = world.broker.queues
    (bad,) = await queues.publish([Item(LARGE)])
    (good,) = await queues.publish([Item(b"good")])
    world.objects.objects[bad] = b"other bytes"
    found = await queues.claim(Q, 10)
    assert [message.id for message in found] == [good]
    assert (await queues.stats(Q)).in_flight == 2, "it stays leased, and fails in the end"
    world.clock.pass_ms(30_001)
    with pytest.raises(CorruptError, match="checksum"):
        await queues.claim(Q, 1)
    world.clock.pass_ms(30_001)
    assert (await queues.stats(Q)).failed == 1


async def test_what_was_claimed_for_a_cancelled_call_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = world.broker.queues
    await queues.publish([Item(LARGE)])
    reached = asyncio.Event()

    async def hangs(number: int) -> Any:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(world.objects, "get", hangs)
    claim = asyncio.create_task(queues.claim(Q, 1))
    await reached.wait()
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await settle()
    monkeypatch.undo()
    (found,) = await queues.claim(Q, 1)
    assert found.attempts == 1


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_what_is_leased_while_its_caller_leaves_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    """The claim is decided, and its commit is under way."""
    queues, store = world.broker.queues, world.store
    await queues.publish([Item(b"x")])
    commit, reached, go_on = store.commit, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> None:
        reached.set()
        await go_on.wait()
        await commit(*args, **kwargs)

    monkeypatch.setattr(store, "commit", slow)
    claim = asyncio.create_task(queues.claim(Q, 1, wait_ms=wait_ms))
    await reached.wait()
    claim.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await settle()
    (found,) = await queues.claim(Q, 1)
    assert found.attempts == 1


async def test_a_claim_that_finds_something_at_once_does_not_overtake_who_waits(
    world: World,
) -> None:
    queues = world.broker.queues
    waiting = asyncio.create_task(queues.claim(Q, 2, wait_ms=60_000, consumer="first"))
    await settle()
    await asyncio.gather(
        queues.publish([Item(b"a"), Item(b"b")]),
        late := asyncio.create_task(queues.claim(Q, 1, wait_ms=1, consumer="late")),
    )
    assert [message.payload for message in await waiting] == [b"a", b"b"]
    assert late.result() == []
    assert not queues._due_ms, "nobody waits any more"


async def test_a_claim_that_is_refused_or_cancelled_before_it_waits_leaves_nothing_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory knows when the first message becomes visible for as long as somebody waits for it."""
    queues, committer = world.broker.queues, world.broker.committer
    await queues.publish([Item(b"x", delay_ms=60_000)])
    with pytest.raises(InvalidError):
        await queues.claim(Q, 1, wait_ms=1000, lease_ms=1 << 60)
    assert not queues._due_ms
    read, looked_up = committer.read, asyncio.Event()

    async def slow(query: Any) -> Any:
        await looked_up.wait()
        return await read(query)

    monkeypatch.setattr(committer, "read", slow)
    claim = asyncio.create_task(queues.claim(Q, 1, wait_ms=1000))
    await settle()
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    assert not queues._due_ms


async def test_failed_messages_are_listed_in_parts_of_bounded_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.queues.LIST_BYTES", 100)
    queues = world.broker.queues
    await queues.publish([Item(b"x" * 50) for _ in range(10)])
    for _ in range(2):
        found = await queues.claim(Q, 10)
        await queues.fail(Q, [message.receipt for message in found])
    ids: list[int] = []
    after: int | None = 0
    parts = 0
    while after is not None:
        page = await queues.failed(Q, after)
        ids += [message.id for message in page.messages]
        after, parts = page.next, parts + 1
    assert ids == sorted(set(ids))
    assert len(ids) == 10
    assert parts > 1


async def test_stats_count_leases_that_ended_as_they_are(world: World) -> None:
    queues = world.broker.queues
    await queues.publish([Item(b"x")])
    await queues.claim(Q, 1)
    world.clock.pass_ms(30_001)
    stats = await queues.stats(Q)
    assert (stats.available + stats.delayed, stats.in_flight) == (1, 0)


async def test_who_waits_at_a_paused_queue_is_not_asked_again_and_again(world: World) -> None:
    queues = world.broker.queues
    await queues.publish([Item(b"x")])
    await queues.pause(Q)
    asked = world.broker.committer.health.requests
    waiting = asyncio.create_task(queues.claim(Q, 1, wait_ms=None))
    await settle()
    assert queues._alarms == {}
    assert world.broker.committer.health.requests == asked
    await queues.play(Q)
    assert [message.payload for message in await waiting] == [b"x"]


async def test_a_lease_that_is_too_long_is_refused_before_anybody_waits(world: World) -> None:
    with pytest.raises(InvalidError, match="lease"):
        await world.broker.queues.claim(Q, 1, wait_ms=None, lease_ms=10**12)
    with pytest.raises(InvalidError, match="not valid text"):
        await world.broker.queues.claim(Q, 1, consumer="\ud800")


async def test_under_retention_nothing_goes_by_being_done_until_that_is_changed(
    world: World,
) -> None:
    queues = world.broker.queues
    await queues.configure(reclaim="retention")
    await queues.publish([Item(b"x")])
    found = await queues.claim(Q, 1)
    await queues.ack(Q, [found[0].receipt])
    world.clock.pass_ms(RECLAIM_MS)
    await world.upkeep()
    assert await world.living() == 1
    await queues.configure(reclaim="done")
    world.clock.pass_ms(RECLAIM_MS)
    await world.upkeep()
    assert await world.living() == 0
    await world.clean()


async def test_a_claim_clears_a_bounded_number_of_pages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("page", "place", "expire"):
        monkeypatch.setattr(f"penstock.queue.{module}.PAGE_ENTRIES", 2)
    monkeypatch.setattr("penstock.queue.lease.TAKE_PAGES", 3)
    queues = world.broker.queues
    await queues.publish([Item(b"good")])
    await queues.publish([Item(b"%d" % i, retention_s=1) for i in range(40)])
    await queues.publish([Item(b"last")])
    world.clock.pass_ms(1001)
    assert [message.payload for message in await queues.claim(Q, 2)] == [b"good"]
    assert (await queues.describe(Q)).name == "q"
    assert [message.payload for message in await queues.claim(Q, 2)] == [b"last"], "it asked again"


async def test_who_lists_failed_messages_and_redrives_them_sees_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer may end within a page: what goes and comes meanwhile must not hide the rest."""
    monkeypatch.setattr("penstock.broker.queues.LIST_BYTES", 0)
    queues = world.broker.queues

    async def fail(count: int) -> None:
        await queues.publish([Item(b"x")] * count)
        for _ in range(2):
            found = await queues.claim(Q, count)
            assert all(await queues.fail(Q, [message.receipt for message in found], delay_ms=0))

    await fail(30)
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await queues.failed(Q, after)
        seen += [message.id for message in page.messages]
        await queues.redrive(Q, [message.id for message in page.messages])
        if len(seen) == 12:
            await queues.purge(Q)  # those that were sent round again
            await fail(5)
        after = page.next
    assert len(seen) == len(set(seen)) == 35


async def test_headers_that_a_consumer_was_given_are_its_own(world: World) -> None:
    """Who passes a message on adds to its headers, in the object that it was given. Memory still
    holds what was published, and every message without headers shares what says so."""
    queues = world.broker.queues
    await queues.publish([Item(b"a", headers={"hop": "1"}), Item(b"b")])
    taken = await queues.claim(Q, 2)
    for message in taken:
        headers: Any = message.headers
        headers["hop"] = "2"
    await queues.release(Q, [message.receipt for message in taken])
    await queues.publish([Item(b"c")])
    again = await queues.claim(Q, 3)
    assert [message.headers for message in again] == [{"hop": "1"}, {}, {}]
    world.broker.queues.reopened()  # what memory knew is gone: as it is stored
    await queues.release(Q, [message.receipt for message in again])
    assert [m.headers for m in await queues.claim(Q, 3)] == [{"hop": "1"}, {}, {}]


async def test_a_peek_shows_each_message_once_whatever_is_committed_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads one page, another one is cut: what moves is not where its line said."""
    small_pages(monkeypatch)
    queues, committer = world.broker.queues, world.broker.committer
    ids = await queues.publish([Item(b"x", headers={"priority": "1"})])
    ids += await queues.publish([Item(b"x")] * 4)
    await flush_queue(committer, Q)
    state = await committer.read(lambda view: load_queue(view, Q))
    for number in (1, 2):
        committer.states.put(page_state_key(state.id, PageKind.AVAILABLE, number), None)
    first = page_row_key(state.queue_id, PageKind.AVAILABLE, 1, 1)
    get = world.store.get
    begun: list[asyncio.Task[list[int]]] = []

    async def busy(key: bytes) -> Any:
        if key == first and not begun:
            earlier = [Item(b"y", visible_at_ms=0)] * 5
            begun.append(asyncio.create_task(queues.publish(earlier)))
            await settle()
        return await get(key)

    monkeypatch.setattr(world.store, "get", busy)
    found = [message.id for message in await queues.peek(Q, 100)]
    assert len(begun) == 1
    published = await begun[0]
    assert found in (ids, [ids[0], *published, *ids[1:]])
    assert [m.id for m in await queues.peek(Q, 100)] == [ids[0], *published, *ids[1:]]


async def test_a_peek_goes_on_behind_pages_of_nothing_but_expired_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pages(monkeypatch)
    monkeypatch.setattr("penstock.queue.peek.PEEK_PAGES", 2)
    queues = world.broker.queues
    await queues.publish([Item(b"x", retention_s=1)] * 40)
    (last,) = await queues.publish([Item(b"y")])
    world.clock.pass_ms(1001)
    assert [message.id for message in await queues.peek(Q, 100)] == [last]
    await queues.claim(Q, 1)
    assert await queues.peek(Q, 100) == []


LOST: list[tuple[PageKind, Callable[[Queues, str], Awaitable[Any]]]] = [
    (PageKind.AVAILABLE, lambda queues, receipt: queues.claim(Q, 1)),
    (PageKind.AVAILABLE, lambda queues, receipt: queues.peek(Q, 1)),
    (PageKind.AVAILABLE, lambda queues, receipt: queues.purge(Q)),
    (PageKind.IN_FLIGHT, lambda queues, receipt: queues.ack(Q, [receipt])),
    (PageKind.IN_FLIGHT, lambda queues, receipt: queues.delete(Q)),
    (PageKind.DONE, lambda queues, receipt: queues.ack(Q, [receipt])),
    (PageKind.FAILED, lambda queues, receipt: queues.redrive(Q)),
    (PageKind.FAILED, lambda queues, receipt: queues.purge(Q, failed=True)),
    (PageKind.FAILED, lambda queues, receipt: queues.failed(Q)),
    (PageKind.DONE, lambda queues, receipt: queues.done(Q)),
]


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(("kind", "ask"), LOST)
async def test_a_page_whose_row_is_lost_or_an_older_one_is_damage(
    world: World,
    kind: PageKind,
    ask: Callable[[Queues, str], Awaitable[Any]],
    older: bool,
    listed: bool,
) -> None:
    """Its line says how many messages it has. Not that there are none, nor an error of no kind, nor
    a request that never ends; not only the first time, and whoever looked at it before."""
    queues, committer = world.broker.queues, world.broker.committer

    async def row() -> tuple[bytes, bytes | None]:
        await flush_queue(committer, Q)
        state = await committer.read(lambda view: load_queue(view, Q))
        available = kind is PageKind.AVAILABLE
        key = page_row_key(state.queue_id, kind, int(available), 128 if available else 0)
        return key, await world.store.get(key)

    await queues.alter(Q, max_attempts=1)
    for part in range(2):
        await queues.publish([Item(b"x")] * 8)
        done, failed, held = await queues.claim(Q, 3)
        await queues.ack(Q, [done.receipt])
        await queues.fail(Q, [failed.receipt])
        key, value = await row()
        if not part:
            before = value
    assert value not in (None, before)
    put = {key: before if older else None}
    await committer.submit(Step(lambda view, now: Decision(writes=put)))
    committer.states.clear()
    for look in (queues.failed, queues.done) if listed else ():
        with contextlib.suppress(CorruptError):
            await look(Q)
    for _ in range(2):
        with pytest.raises(CorruptError, match=f"page . of {kind.name.lower()} messages"):
            await asyncio.wait_for(ask(queues, held.receipt), 10)
