"""Requests of topics through a broker: who gets what, who is a zombie, what waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.topicanswers import Failure, Refs, TxPublish, TxPush, TxWrite
from penstock.codec.keys import hold_key
from penstock.codec.once import decode_hold
from penstock.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from penstock.log.catalogue import stream_name
from penstock.queue.item import Item
from penstock.queue.state import queue_name
from penstock.server.resp.topic_grammar import parse_configure
from penstock.server.resp.topics import run
from penstock.topic.draft import HOLDER
from penstock.topic.feed import feed_step
from penstock.topic.item import prepare_push, slot_of
from penstock.topic.push import push_step
from penstock.topic.replay import replay_step
from penstock.topic.shards import CLOSED_MAX, waiting
from penstock.topic.state import topic_name
from unit.broker.driver import BrokerWorld
from unit.topic.driver import T, TopicWorld

S = stream_name("s")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TopicWorld]:
    outer = BrokerWorld(monkeypatch)
    world = TopicWorld(outer, await outer.open())
    yield world
    await world.check()
    await world.broker.close()


async def test_a_push_makes_the_topic_and_waits_unrouted_without_a_consumer(
    world: TopicWorld,
) -> None:
    assert await world.topics.names() == []
    assert await world.push(3) == range(3)
    assert await world.topics.names() == ["t"]
    counters = await world.counters()
    assert counters == dict(
        inserted=3, routed=0, emitted=0, acked=0, errored=0, waiting=3, running=0
    )
    await world.joined("c")
    assert (await world.counters())["routed"] == 3


async def test_a_push_that_may_not_make_the_topic_is_refused(world: TopicWorld) -> None:
    with pytest.raises(NotFoundError, match="topic 't' does not exist"):
        await world.topics.push(T, prepare_push([b"x"]), create=False)
    assert await world.topics.names() == []


async def test_small_pushes_that_come_together_keep_their_order_and_share_a_commit(
    world: TopicWorld,
) -> None:
    await world.joined("c")
    before = world.broker.committer.health.commits
    batches = [prepare_push([b"%d" % i], [f"k{i % 3}" if i % 2 else None]) for i in range(50)]
    batches.insert(25, prepare_push([b"x"] * 600))  # too large to be joined
    offsets = await asyncio.gather(*(world.topics.push(T, batch) for batch in batches))
    assert [each.start for each in offsets] == [*range(26), *range(625, 650)]
    assert world.broker.committer.health.commits - before == 1
    tailer = world.tailer("c")
    await tailer.join()
    found = [data for _, data in await tailer.poll(1000)]
    assert found == [b"%d" % i for i in range(25)] + [b"x"] * 600 + [
        b"%d" % i for i in range(25, 50)
    ]


async def test_a_push_that_is_refused_does_not_take_others_along(world: TopicWorld) -> None:
    await world.topics.push(T, prepare_push([b"x"]), slots=4)
    batch = prepare_push([b"y"])
    replies = await asyncio.gather(
        world.topics.push(T, batch),
        world.topics.push(T, batch, slots=5),
        world.topics.push(topic_name("no"), batch, create=False),
        world.topics.push(T, batch, slots=4),
        return_exceptions=True,
    )
    assert [type(each) for each in replies] == [range, InvalidError, NotFoundError, range]
    assert (await world.topics.stats(T)).inserted == 3


async def test_nothing_pushed_makes_nothing(world: TopicWorld) -> None:
    assert await world.topics.push(T, prepare_push([])) == range(0)
    assert await world.topics.names() == []


@pytest.mark.parametrize("slots", [0, -1, 1025])
async def test_a_number_of_slots_that_cannot_be_is_refused(world: TopicWorld, slots: int) -> None:
    with pytest.raises(InvalidError, match="1 to 1024 slots"):
        await world.topics.push(T, prepare_push([b"x"]), slots=slots)


async def test_the_number_of_slots_is_fixed(world: TopicWorld) -> None:
    await world.topics.push(T, prepare_push([b"x"]), slots=4)
    with pytest.raises(InvalidError, match="topic 't' has 4 slots, not 8"):
        await world.topics.push(T, prepare_push([b"x"]), slots=8)
    with pytest.raises(InvalidError, match="has 4 slots"):
        await world.topics.join(T, "c", slots=5)
    await world.topics.push(T, prepare_push([b"y"]))
    assert (await world.topics.describe(T)).slots == 4


async def test_messages_come_in_order_and_are_done_once(world: TopicWorld) -> None:
    await world.push(5, ["a", "b"])
    c = await world.joined("c")
    assert [offset for offset, _ in await c.poll(3)] == [0, 1, 2]
    assert (await c.ack()).taken == [True, True, True]
    assert (await c.ack()).taken == [False, False, False]
    assert await c.poll() == [(3, b"3"), (4, b"4")]
    counters = await world.counters()
    assert (counters["emitted"], counters["acked"], counters["running"]) == (5, 3, 2)


async def test_acks_that_come_with_a_poll(world: TopicWorld) -> None:
    await world.push(4)
    c = await world.joined("c")
    await c.poll(2)
    assert [offset for offset, _ in await c.poll(2, done=c.refs())] == [2, 3]
    assert (await world.counters())["acked"] == 2


async def test_a_silent_consumer_is_a_zombie_and_what_it_had_comes_to_another(
    world: TopicWorld,
) -> None:
    await world.push(64)
    a, b = await world.joined("a", heartbeat_ms=3000), await world.joined("b", heartbeat_ms=3000)
    mine, other = await a.poll(), await b.poll()
    assert len(mine) + len(other) == 64
    assert (await a.ack()).taken == [True] * len(mine)
    held = await a.poll()
    await world.push(32)
    held = await a.poll()
    assert held
    await b.ack()
    await world.pass_ms(2000)
    await world.topics.beat(T, "b", b.token)
    await world.pass_ms(1001)
    listed = {each.id: each for each in await world.topics.consumers(T)}
    assert listed["a"].zombie
    assert not listed["b"].zombie
    assert len(listed["b"].slots) == 32
    # Acked ones never come again, the others do, and before anything newer of their slots.
    assert (await a.ack()).taken == [False] * len(held)
    again = await b.poll()
    assert {offset for offset, _ in held} <= {offset for offset, _ in again}
    assert not {offset for offset, _ in mine} & {offset for offset, _ in again}
    assert any(each.draining for each in await world.topics.shards(T))
    await b.ack()
    assert [each.id for each in await world.topics.consumers(T)] == ["b"]
    assert not any(each.draining for each in await world.topics.shards(T))
    with pytest.raises(NotFoundError, match="'a' is not registered"):
        await a.poll()
    stats = await world.topics.stats(T)
    assert (stats.acked, stats.redelivered) == (96, len(held))


async def test_whoever_beats_polls_or_acks_lives(world: TopicWorld) -> None:
    await world.push(1)
    a = await world.joined("a", heartbeat_ms=1000)
    for _ in range(3):
        await world.pass_ms(600)
        await world.topics.beat(T, "a", a.token)
        await world.pass_ms(600)
        await a.poll()
        await world.pass_ms(600)
        await a.ack()
    (listed,) = await world.topics.consumers(T)
    assert not listed.zombie
    await world.pass_ms(1001)
    assert await world.topics.consumers(T) == []


async def test_time_in_which_the_broker_itself_was_stopped_makes_no_zombie(
    world: TopicWorld,
) -> None:
    a = await world.joined("a", heartbeat_ms=1000)
    await world.pass_ms(60_000)
    (listed,) = await world.topics.consumers(T)
    assert not listed.zombie
    await world.topics.beat(T, "a", a.token)
    await world.pass_ms(60_000)
    assert len(await world.topics.consumers(T)) == 1
    await world.pass_ms(501)  # it had half of its time once more, and was silent
    assert await world.topics.consumers(T) == []


async def test_a_dead_consumer_is_a_zombie_though_the_broker_is_late_every_time(
    world: TopicWorld,
) -> None:
    await world.joined("a", heartbeat_ms=1000)
    await world.pass_ms(60_000)
    assert len(await world.topics.consumers(T)) == 1
    await world.pass_ms(60_000)
    assert await world.topics.consumers(T) == []


async def test_a_name_that_is_taken_again_fences_who_had_it(world: TopicWorld) -> None:
    await world.push(3)
    old = await world.joined("a")
    held = await old.poll()
    new = await world.joined("a")
    with pytest.raises(ConflictError, match="another process"):
        await old.poll()
    with pytest.raises(ConflictError, match="another process"):
        await world.topics.beat(T, "a", old.token)
    assert (await old.ack()).taken == [False] * 3
    assert not await world.topics.leave(T, "a", old.token)
    assert await new.poll() == held


async def test_a_slot_that_moved_away_and_back_is_fenced_all_the_same(world: TopicWorld) -> None:
    """The consumer is the same one; what it holds from before is not its own any more."""
    await world.push(32)
    a = await world.joined("a")
    await a.poll()
    before = a.refs()
    b = await world.joined("b")
    assert await world.topics.rebalance(T) == 16
    assert await world.topics.leave(T, "b", b.token)
    half = Refs(before[0].offsets[:16], before[0].epochs[:16])
    taken = (await world.topics.ack(T, "a", a.token, [half])).taken
    assert await a.poll()
    taken += (await world.topics.ack(T, "a", a.token, before)).taken[16:]
    assert taken.count(True) == 16
    assert (await a.ack()).taken == [True] * 16


async def test_a_consumer_that_starts_again_and_again_leaves_no_endless_list_of_shards(
    world: TopicWorld,
) -> None:
    """It is killed before it acknowledges anything, and messages go on coming."""
    await world.topics.push(T, prepare_push([b"0", b"1"]), slots=2)
    for _ in range(3 * CLOSED_MAX):
        c = await world.joined("c")
        await world.push(2)
        await c.poll(1)
    assert len(await world.topics.shards(T)) == 2 * (CLOSED_MAX + 1)
    await world.check()
    c = await world.joined("c")
    count = 2 + 6 * CLOSED_MAX
    assert [offset for offset, _ in await c.poll()] == list(range(count))
    assert (await c.ack()).taken == [True] * count
    assert len(await world.topics.shards(T)) == 2
    stats = await world.topics.stats(T)
    assert (stats.routed, stats.emitted, stats.acked) == (count, count, count)


async def test_joining_waits_for_what_runs_and_rebalance_does_not(world: TopicWorld) -> None:
    await world.push(32)
    a = await world.joined("a")
    await a.poll(32)
    b = await world.joined("b")
    assert len((await world.topics.consumers(T))[1].slots) == 16
    await world.push(32)
    assert await b.poll() == []  # nothing of its slots moved yet
    assert len(await a.poll()) == 16  # and those that are promised give no more
    first = Refs(list(range(32)), [2] * 32)
    assert (await world.topics.ack(T, "a", a.token, [first])).taken == [True] * 32
    assert len(await b.poll()) == 16
    assert (await world.topics.stats(T)).redelivered == 0


async def test_what_is_given_back_comes_again(world: TopicWorld) -> None:
    await world.push(3)
    c = await world.joined("c")
    await c.poll()
    given = Refs(c.parts[0].offsets[1:], c.parts[0].epochs[1:])
    assert (await world.topics.release(T, "c", c.token, [given])).taken == [True, True]
    assert (await world.counters())["running"] == 1
    assert [offset for offset, _ in await c.poll()] == [1, 2]


async def test_pause_stops_routing_and_emission(world: TopicWorld) -> None:
    c = await world.joined("c")
    assert await world.topics.pause(T)
    await world.push(2)
    assert await c.poll() == []
    assert (await world.topics.poll(T, "c", c.token, 1)).paused
    assert (await world.topics.beat(T, "c", c.token)).paused
    assert (await world.counters())["routed"] == 0
    await world.topics.play(T)
    assert (await world.counters())["routed"] == 2
    assert len(await c.poll()) == 2


async def test_pause_waits_for_what_runs(world: TopicWorld) -> None:
    await world.push(2)
    c = await world.joined("c")
    await c.poll()
    pausing = asyncio.ensure_future(world.topics.pause(T))
    await world.world.settle()
    assert not pausing.done()
    acked = await world.topics.ack(T, "c", c.token, [Refs(c.parts[0].offsets[:1], [2])])
    assert acked.paused
    await world.world.settle()
    assert not pausing.done()
    await world.topics.release(T, "c", c.token, [Refs(c.parts[0].offsets[1:], [2])])
    assert await pausing
    await world.topics.play(T)
    await c.poll()
    assert not await world.topics.pause(T, wait_ms=0)


async def test_pause_waits_for_answers_that_are_under_way(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.push(1)
    c = await world.joined("c")
    gate, part = asyncio.Event(), world.topics._part

    async def slow(*arguments: Any) -> Any:
        await gate.wait()
        return await part(*arguments)

    monkeypatch.setattr(world.topics, "_part", slow)
    polling = asyncio.ensure_future(c.poll())
    await world.world.settle()
    pausing = asyncio.ensure_future(world.topics.pause(T))
    await world.world.settle()
    assert not pausing.done()
    gate.set()
    assert await polling == [(0, b"0")]
    await c.ack()
    assert await pausing


async def test_what_could_not_be_answered_with_is_given_back(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.push(2)
    c = await world.joined("c")

    async def broken(*arguments: Any) -> Any:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(world.topics, "_part", broken)
        with pytest.raises(UnavailableError, match="away"):
            await c.poll()
    await world.world.settle()
    stats = await world.topics.stats(T)
    assert (stats.emitted, stats.running) == (0, 0)
    assert len(await c.poll()) == 2


@pytest.mark.parametrize("wait_ms", [0, None])
async def test_a_poll_that_is_cancelled_leaves_nothing_running(
    world: TopicWorld, wait_ms: int | None
) -> None:
    await world.push(3)
    c = await world.joined("c")
    for turns in range(1, 12):
        polling = asyncio.ensure_future(c.poll(wait_ms=wait_ms))
        for _ in range(turns):
            await asyncio.sleep(0)
        if polling.done():
            break
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await polling
        await world.world.settle()
        if polling.cancelled():
            stats = await world.topics.stats(T)
            assert (stats.running, stats.emitted) == (0, 0), turns
    assert polling.done()
    assert turns > 2


async def test_a_poll_that_waits_gets_what_comes(world: TopicWorld) -> None:
    c = await world.joined("c")
    waiting = asyncio.ensure_future(c.poll(wait_ms=None))
    await world.world.settle()
    assert not waiting.done()
    await world.push(1)
    assert await waiting == [(0, b"0")]
    assert world.topics.waiting == 0


async def test_a_poll_that_waits_hears_of_a_play_and_of_slots_that_move(world: TopicWorld) -> None:
    a = await world.joined("a")
    b = await world.joined("b")
    await world.topics.pause(T)
    await world.push(32)
    waiting = asyncio.ensure_future(b.poll(wait_ms=None))
    await world.world.settle()
    assert not waiting.done()
    await world.topics.play(T)
    assert len(await waiting) == 16
    await b.ack()
    again = asyncio.ensure_future(b.poll(wait_ms=None))
    await world.topics.leave(T, "a", a.token)
    assert len(await again) == 16


async def test_a_poll_that_waits_ends_when_its_consumer_or_the_topic_is_gone(
    world: TopicWorld,
) -> None:
    c = await world.joined("c", heartbeat_ms=1000)
    waiting = asyncio.ensure_future(c.poll(wait_ms=None))
    await world.world.settle()
    await world.pass_ms(1001)
    with pytest.raises(NotFoundError, match="not registered"):
        await waiting
    c = await world.joined("c")
    waiting = asyncio.ensure_future(c.poll(wait_ms=None))
    await world.world.settle()
    assert await world.topics.delete(T)
    with pytest.raises(NotFoundError, match="does not exist"):
        await waiting


async def test_an_answer_is_bounded_and_the_rest_was_never_emitted(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.topictails.ANSWER_BYTES", 25)
    data = [b"x" * 10] * 5
    await world.topics.push(T, prepare_push(data))
    c = await world.joined("c")
    assert [offset for offset, _ in await c.poll()] == [0, 1]
    await world.world.settle()
    stats = await world.topics.stats(T)
    assert (stats.emitted, stats.running, stats.redelivered) == (2, 2, 0)
    monkeypatch.setattr("penstock.broker.topictails.ANSWER_BYTES", 1)
    assert [offset for offset, _ in await c.poll()] == [2]


async def test_a_replay_is_the_slice_of_the_log_while_live_messages_flow(world: TopicWorld) -> None:
    await world.push(50, ["a", "b", "c"])
    c = await world.joined("c")
    await c.poll()
    await c.ack()
    begun = await world.topics.replay(T, 10, 20)
    assert (begun.first, begun.end) == (10, 20)
    await world.push(10, ["a"])
    await world.world.settle()
    replayed: list[int] = []
    live: list[int] = []
    while len(replayed) + len(live) < 20:
        await c.poll(4)
        for part in c.parts:
            (replayed if part.job else live).extend(part.offsets)
            assert part.job in (0, begun.id)
        await c.ack()
    assert replayed == list(range(10, 20))
    assert live == list(range(50, 60))
    stats = await world.topics.stats(T)
    assert (stats.replayed, stats.redelivered, stats.replays, stats.acked) == (10, 0, 0, 60)


async def test_a_replay_by_time_takes_what_was_pushed_then(world: TopicWorld) -> None:
    start_ms = world.broker.committer.now_ms()
    for _ in range(3):
        await world.push(2)
        await world.pass_ms(100)
    begun = await world.topics.replay(T, start_ms + 100, start_ms + 200, unit="time")
    assert (begun.first, begun.end) == (2, 4)
    begun = await world.topics.replay(T, start_ms + 150, unit="time")
    assert (begun.first, begun.end) == (4, 6)
    nothing = await world.topics.replay(T, start_ms + 5000, unit="time")
    assert (nothing.id, nothing.first, nothing.end) == (0, 6, 6)


@pytest.mark.parametrize(("start", "end"), [(-1, None), (0, -1), (3, 2)])
async def test_a_replay_that_cannot_be_is_refused(
    world: TopicWorld, start: int, end: int | None
) -> None:
    await world.push(5)
    with pytest.raises(InvalidError):
        await world.topics.replay(T, start, end)


async def test_a_replay_goes_on_after_a_restart(world: TopicWorld) -> None:
    await world.push(6)
    c = await world.joined("c")
    await c.poll()
    await c.ack()
    await world.topics.replay(T, 0)
    await world.world.settle()
    await c.poll(2)
    await c.ack()
    await c.poll(2)
    await world.broker.close()
    world.broker = await world.world.open()
    world.topics = world.broker.topics
    c = await world.joined("c")
    assert [offset for offset, _ in await c.poll()] == [2, 3, 4, 5]
    assert (await c.ack()).taken == [True] * 4
    assert (await world.topics.stats(T)).replays == 0


async def test_an_error_is_recorded_with_its_message_and_its_key_goes_on(world: TopicWorld) -> None:
    await world.push(2, ["k"])
    c = await world.joined("c")
    await c.poll()
    (part,) = c.parts

    async def fail(text: str) -> str:
        failure = Failure(part.offsets[0], part.epochs[0], text)
        acked = await world.topics.ack(T, "c", c.token, failures=[failure], max_attempts=2)
        return acked.failed[0]

    assert await fail("first") == "again"
    (error,) = await world.topics.errors(T)
    assert (error.error, error.attempts, error.final) == ("first", 1, False)
    assert (await world.counters())["running"] == 2
    assert await fail("second") == "errored"
    assert await fail("third") == "stale"
    (error,) = await world.topics.errors(T)
    assert (error.offset, error.shard_key, error.data) == (0, b"k", b"0")
    assert (error.error, error.attempts, error.final, error.consumer) == ("second", 2, True, "c")
    counters = await world.counters()
    assert (counters["errored"], counters["running"]) == (1, 1)
    assert await world.topics.errors(T, start=1) == []


async def test_attempts_are_told_to_whoever_gets_the_message_next(world: TopicWorld) -> None:
    await world.push(1)
    c = await world.joined("c")
    await c.poll()
    failure = Failure(0, c.parts[0].epochs[0], "it broke")
    await world.topics.ack(T, "c", c.token, failures=[failure], max_attempts=3)
    again = await world.joined("c")
    await again.poll()
    assert again.parts[0].attempts == {0: 1}


async def test_effects_are_committed_with_the_ack(world: TopicWorld) -> None:
    await world.broker.queues.create(queue_name("q"))
    await world.push(2)
    c = await world.joined("c")
    await c.poll()
    effects = [
        TxWrite("s", b"one", b"tag"),
        TxPush("t", b"two", b"key"),
        TxPush("other", b"three"),
        TxPublish(Item(b"four")),
        TxWrite("s", b"five"),
    ]
    assert (await c.ack(tx=effects)).taken == [True, True]
    found = await world.broker.streams.read(S, 0, 10)
    assert [m and (m.tag, m.data) for m in found.messages] == [("tag", b"one"), ("", b"five")]
    assert await c.poll() == [(2, b"two")]
    assert (await world.topics.stats(topic_name("other"))).inserted == 1
    (message,) = await world.broker.queues.claim(queue_name("q"), 5)
    assert message.payload == b"four"


async def test_effects_of_a_stale_message_never_happen(world: TopicWorld) -> None:
    await world.push(2)
    c = await world.joined("c")
    await c.poll()
    first = Refs(c.parts[0].offsets[:1], c.parts[0].epochs[:1])
    assert (await world.topics.ack(T, "c", c.token, [first])).taken == [True]
    acked = await c.ack(tx=[TxWrite("s", b"x")])
    assert acked.taken == [False, False]
    assert (await world.broker.streams.info(S)).length == 0
    assert (await world.counters())["acked"] == 1


@pytest.mark.parametrize("named", [[], [Refs([], [])]])
async def test_effects_of_nobody_never_happen(world: TopicWorld, named: list[Refs]) -> None:
    """Without a message that could be stale: only a consumer that is registered has effects."""
    await world.push(1)
    effects = [TxWrite("s", b"x")]
    with pytest.raises(NotFoundError, match="'ghost' is not registered"):
        await world.topics.ack(T, "ghost", 99, named, tx=effects)
    old = await world.joined("c")
    c = await world.joined("c")
    with pytest.raises(ConflictError, match="by another process"):
        await world.topics.ack(T, "c", old.token, named, tx=effects)
    assert (await world.broker.streams.info(S)).length == 0
    await world.topics.ack(T, "c", c.token, named, tx=effects)
    assert (await world.broker.streams.info(S)).length == 1


async def test_an_effect_that_cannot_be_leaves_the_message_running(world: TopicWorld) -> None:
    await world.push(1)
    c = await world.joined("c")
    await c.poll()
    with pytest.raises(NotFoundError, match="nowhere"):
        await c.ack(tx=[TxWrite("s", b"x"), TxPublish(Item(b"x", to="nowhere"))])
    with pytest.raises(InvalidError, match="stream name"):
        await c.ack(tx=[TxWrite("", b"x")])
    assert (await world.broker.streams.info(S)).length == 0
    assert (await world.counters())["running"] == 1
    assert (await c.ack()).taken == [True]


async def test_a_large_batch_is_pushed_as_one_and_gets_its_references_behind(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("penstock.log.staging", "penstock.broker.staged"):
        monkeypatch.setattr(f"{module}.STAGE_BYTES_MAX", 100_000)
    keys = [f"k{i % 50}" for i in range(5000)]
    data = [b"%04d" % i * 25 for i in range(5000)]
    c = await world.joined("c")
    assert await world.topics.push(T, prepare_push(data, keys)) == range(5000)
    await world.world.settle()
    assert (await world.counters())["routed"] == 5000
    await world.push(1, ["k0"])
    found: list[bytes] = []
    while len(found) < 5001:
        found += [item for _, item in await c.poll(1000)]
        await c.ack()
    assert found == [*data, b"5000"]


async def test_staged_messages_that_are_linked_reach_the_consumers(world: TopicWorld) -> None:
    """As Spark writes: tasks stage, the driver links, nobody knows of slots."""
    bulk = world.broker.bulk
    staging = await bulk.begin(key=b"job")
    push = prepare_push([b"%d" % i for i in range(600)], [f"k{i % 7}" for i in range(600)])
    await bulk.stage(staging, 9, 0, push.bodies)
    for _ in range(2):  # the same batch again is the same one
        offsets = await bulk.link(staging, T, [9], producer=b"query", sequence=0)
        assert offsets == range(600)
    await world.world.settle()
    c = await world.joined("c")
    assert [data for _, data in await c.poll(1000)] == [b"%d" % i for i in range(600)]
    assert (await c.ack()).taken == [True] * 600


async def test_the_all_log_is_trimmed_but_not_past_what_is_not_acknowledged(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.pages.TAIL_RECORDS", 4)
    await world.push(9000)
    c = await world.joined("c")
    await world.topics.configure(T, max_count=10)
    await c.poll(8500)
    await world.pass_ms(1000)
    assert (await world.topics.stats(T)).first == 0
    await c.ack()
    for _ in range(6):
        await world.topics.beat(T, "c", c.token)
        await world.push(1)
        await world.pass_ms(1000)
    topic_id = (await world.topics.stats(T)).first
    assert topic_id == 8192  # the page of what is left
    assert (await world.topics.describe(T)).max_count == 10
    with pytest.raises(InvalidError, match="max_count"):
        await world.topics.configure(T, max_count=0)


async def test_limits_that_are_not_named_stay_as_they_are(world: TopicWorld) -> None:
    await world.push(1)

    async def configure(*words: bytes) -> dict[bytes, int]:
        for request in (words, ()):
            reply = await run(
                parse_configure([b"TOPIC.CONFIG", b"t", *request]), world.topics, 2, 1 << 20
            )
        lines = reply.split(b"\r\n")
        return {lines[i]: int(lines[i + 1][1:]) for i in range(2, len(lines) - 1, 3)}

    await configure(b"MAXLEN", b"1000")
    assert await configure(b"MAXAGE", b"60000") == {
        b"maxlen": 1000, b"maxbytes": 0, b"maxage": 60_000,
    }  # fmt: skip
    assert await configure(b"MAXLEN", b"0", b"MAXBYTES", b"7") == {
        b"maxlen": 0, b"maxbytes": 7, b"maxage": 60_000,
    }  # fmt: skip
    await world.topics.configure(T, max_age_ms=None)
    info = await world.topics.describe(T)
    assert (info.max_count, info.max_bytes, info.max_age_ms) == (None, 7, None)


async def test_what_is_being_replayed_is_not_trimmed(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.pages.TAIL_RECORDS", 4)
    await world.push(9000)
    c = await world.joined("c")
    await c.poll(10_000)
    await c.ack()
    await world.topics.replay(T, 100, 110)
    await world.topics.configure(T, max_count=10)

    async def go_on() -> int:
        """Pages are written, and with them the hold; then the log is trimmed."""
        for _ in range(6):
            await world.topics.beat(T, "c", c.token)
            await world.push(1)
            await world.pass_ms(1000)
        return (await world.topics.stats(T)).first

    assert await go_on() <= 100
    while (await world.topics.stats(T)).replays:
        await c.poll()
        await c.ack()
    assert await go_on() > 8192


async def test_a_topic_that_is_deleted_is_another_when_it_is_made_again(world: TopicWorld) -> None:
    await world.push(3)
    c = await world.joined("c")
    await c.poll()
    assert await world.topics.delete(T)
    assert not await world.topics.delete(T)
    for call in (world.topics.stats(T), world.topics.consumers(T), world.topics.play(T)):
        with pytest.raises(NotFoundError):
            await call
    with pytest.raises(NotFoundError):
        await c.poll()
    await world.push(1)
    stats = await world.topics.stats(T)
    assert (stats.inserted, stats.consumers, stats.emitted) == (1, 0, 0)


async def test_a_consumer_of_a_deleted_topic_is_none_of_the_next_one(world: TopicWorld) -> None:
    """Both have the same name, hold the same offset, and were the first of their topic."""
    await world.push(1)
    old = await world.joined("c")
    await old.poll()
    await world.topics.delete(T)
    await world.push(1)
    new = await world.joined("c")
    await new.poll()
    assert (await old.ack()).taken == [False]
    assert (await old.ack(tx=[TxWrite("s", b"x")])).taken == [False]
    assert (await world.topics.release(T, "c", old.token, old.refs())).taken == [False]
    assert not await world.topics.leave(T, "c", old.token)
    for call in (old.poll(), world.topics.beat(T, "c", old.token)):
        with pytest.raises(ConflictError, match="by another process"):
            await call
    assert (await world.broker.streams.info(S)).length == 0
    assert (await new.ack()).taken == [True]


@pytest.mark.parametrize("again", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_polled_is_gone_not_damaged(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    await world.push(3)
    c = await world.joined("c")
    part = world.topics._part

    async def late(*arguments: Any) -> Any:
        await world.topics.delete(T)
        if again:
            await world.push(1)
        return await part(*arguments)

    monkeypatch.setattr(world.topics, "_part", late)
    with pytest.raises(NotFoundError, match="'t' does not exist"):
        await c.poll()


@pytest.mark.parametrize("count", [0, -1, 10_001])
async def test_a_poll_of_a_number_that_cannot_be_is_refused(world: TopicWorld, count: int) -> None:
    await world.push(1)
    c = await world.joined("c")
    with pytest.raises(InvalidError, match="1 to 10,000"):
        await c.poll(count)


async def test_bad_names_and_numbers_of_messages_are_refused(world: TopicWorld) -> None:
    await world.push(1)
    c = await world.joined("c")
    await c.poll()
    for refs in (Refs([0], []), Refs([-1], [2]), Refs([2**63], [2]), Refs([0], [-1])):
        with pytest.raises(InvalidError):
            await world.topics.ack(T, "c", c.token, [refs])
    with pytest.raises(InvalidError, match="heartbeat"):
        await world.topics.join(T, "d", heartbeat_ms=0)
    with pytest.raises(InvalidError, match="consumer name"):
        await world.topics.join(T, "")
    with pytest.raises(InvalidError, match="max_attempts"):
        await world.topics.ack(T, "c", c.token, max_attempts=0)
    unknown = Refs([10**6], [2]), Refs([0], [2], job=77)
    assert (await world.topics.ack(T, "c", c.token, unknown)).taken == [False, False]


async def test_a_topic_holds_its_log_from_the_first_message_on(world: TopicWorld) -> None:
    await world.push(1)

    async def held(view: object) -> int | None:
        value = await view.store.get(hold_key(1, HOLDER))  # type: ignore[attr-defined]
        return None if value is None else decode_hold(value)

    assert await world.broker.committer.read(held) == 0


async def test_rebalance_spreads_the_backlog_and_joining_does_not(world: TopicWorld) -> None:
    await world.topics.push(T, prepare_push([b"x"]), slots=4)
    a, b = await world.joined("a"), await world.joined("b")
    owned = {each.id: each.slots for each in await world.topics.consumers(T)}
    keys = {slot_of(key.encode(), 4): key for key in map(str, range(100))}
    for slot in owned["a"]:
        await world.topics.push(T, prepare_push([b""] * 100, [keys[slot]] * 100))
    assert len(await b.poll(1000)) <= 1
    assert await world.topics.rebalance(T) == 2
    assert len(await a.poll(1000)) in (100, 101)
    assert len(await b.poll(1000)) in (99, 100, 101)
    assert [len(each.slots) for each in await world.topics.consumers(T)] == [2, 2]
    assert await world.topics.rebalance(T) == 0


async def test_a_commit_looks_once_at_what_waits_for_however_many_consumers(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    tailers = [await world.joined(f"c{i}") for i in range(20)]
    polls = [asyncio.ensure_future(each.poll(wait_ms=None)) for each in tailers]
    await world.world.settle()
    looks = 0

    def counted(shards: Any) -> Any:
        nonlocal looks
        looks += 1
        return waiting(shards)

    monkeypatch.setattr("penstock.broker.topictails.waiting", counted)
    await world.push(1, ["k"])
    await world.world.settle()
    assert sum(each.done() for each in polls) == 1
    assert 0 < looks <= 6, "once for all, and a few times for the one that is served"
    for each in polls:
        each.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert world.topics._pollers == {}


async def test_a_replay_of_what_is_pushed_in_the_same_tick_is_fed_after_it(
    world: TopicWorld,
) -> None:
    await world.push(5, ["k"])
    request = world.broker.committer.request
    replies: tuple[list[Any], ...] = await asyncio.gather(
        request(push_step(T, prepare_push([b"5"], ["k"]))),
        request(replay_step(T, 4, None)),
        request(feed_step(T)),
    )
    _, (begun,), (more,) = replies
    assert (begun.first, begun.end, more) == (4, 6, True)
    c = await world.joined("c")
    await world.world.settle()
    await c.poll()
    replays = [part.offsets for part in c.parts if part.job]
    assert replays == [[4, 5]]
