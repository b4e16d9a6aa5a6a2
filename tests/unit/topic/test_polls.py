"""Polls: live messages and replays side by side, and waiting as a sign of life."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.errors import NotFoundError, UnavailableError
from penstock.server.resp.topic_grammar import Poll
from penstock.server.resp.topics import run
from penstock.topic.item import prepare_push
from unit.broker.driver import BrokerWorld
from unit.topic.driver import T, Tailer, TopicWorld


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TopicWorld]:
    outer = BrokerWorld(monkeypatch)
    world = TopicWorld(outer, await outer.open())
    yield world
    await world.check()
    await world.broker.close()


# ---- live messages and replays ----------------------------------------------------------------


async def replaying(world: TopicWorld, count: int, *names: str) -> list[Tailer]:
    """So many messages are replayed and as many are new, for each of these consumers."""
    tailers = [await world.joined(name) for name in names]
    await world.push(count * len(names))
    for tailer in tailers:
        while await tailer.poll():
            await tailer.ack()
    await world.topics.replay(T, 0)
    await world.push(count * len(names))
    await world.world.settle()
    return tailers


async def taken(tailer: Tailer, count: int, *, along: bool) -> str:
    """One poll: r for each that is replayed, l for each live one. `along`: what came before is
    acknowledged with the poll, else it is right after it."""
    await tailer.poll(count, done=tailer.refs() if along else [])
    found = "".join(("r" if part.job else "l") * len(part.offsets) for part in tailer.parts)
    if not along:
        await tailer.ack()
    return found


@pytest.mark.parametrize("along", [False, True])
async def test_one_at_a_time_live_messages_and_replays_take_turns(
    world: TopicWorld, along: bool
) -> None:
    (c,) = await replaying(world, 8, "c")
    found = "".join([await taken(c, 1, along=along) for _ in range(16)])
    assert found in ("lr" * 8, "rl" * 8)


@pytest.mark.parametrize("along", [False, True])
async def test_the_odd_one_goes_to_both_in_turn(world: TopicWorld, along: bool) -> None:
    (c,) = await replaying(world, 32, "c")
    found = [await taken(c, 3, along=along) for _ in range(8)]
    assert set(found[::2]) | set(found[1::2]) == {"rrl", "rll"}
    assert len(set(found[::2])) == len(set(found[1::2])) == 1


async def test_what_others_poll_changes_nothing_about_the_turns(world: TopicWorld) -> None:
    a, b = await replaying(world, 16, "a", "b")
    found = [(await taken(a, 1, along=False), await taken(b, 1, along=False)) for _ in range(10)]
    for mine in zip(*found, strict=True):
        assert "".join(mine) in ("lr" * 5, "rl" * 5)


async def test_what_comes_again_counts_as_a_turn_too(world: TopicWorld) -> None:
    (c,) = await replaying(world, 8, "c")
    found = ""
    for _ in range(10):
        await c.poll(1)
        found += "r" if c.parts[0].job else "l"
        await world.topics.release(T, "c", c.token, c.refs())
    assert found in ("lr" * 5, "rl" * 5)


async def test_large_messages_leave_room_for_both_in_an_answer(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.topictails.ANSWER_BYTES", 45)
    await world.topics.push(T, prepare_push([b"x" * 10] * 20))
    c = await world.joined("c")
    while await c.poll():
        await c.ack()
    await world.topics.replay(T, 0)
    await world.topics.push(T, prepare_push([b"x" * 10] * 20))
    await world.world.settle()
    assert await taken(c, 20, along=False) == "rrll"
    await world.world.settle()
    stats = await world.topics.stats(T)
    assert (stats.running, stats.redelivered, stats.replayed, stats.emitted) == (0, 0, 2, 22)


async def test_everything_is_given_back_where_a_part_cannot_be_read(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (c,) = await replaying(world, 4, "c")
    read = world.topics._part
    parts: list[Any] = []

    async def broken(*arguments: Any) -> Any:
        parts.append(arguments)
        if len(parts) == 2:
            raise UnavailableError("the store is away")
        return await read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(world.topics, "_part", broken)
        with pytest.raises(UnavailableError, match="away"):
            await c.poll()
    await world.world.settle()
    assert len(await c.poll()) == 8, "the part that was read is nobody's either"


# ---- signs of life ----------------------------------------------------------------------------


def waiting(world: TopicWorld, tailer: Tailer, **options: Any) -> asyncio.Task[bytes]:
    """As a connection does."""
    request = Poll(T, tailer.name, tailer.token, 10, block_ms=None, **options)
    return asyncio.ensure_future(run(request, world.topics, 3, 1 << 20))


async def is_there(world: TopicWorld, name: str) -> bool:
    return name in {each.id for each in await world.topics.consumers(T) if not each.zombie}


async def test_whoever_waits_and_has_nothing_to_settle_lives(world: TopicWorld) -> None:
    c = await world.joined("c", heartbeat_ms=1000)
    polling = waiting(world, c)
    await world.world.settle()
    for _ in range(5):
        await world.pass_ms(900)
    assert await is_there(world, "c")
    await world.push(1)
    assert b"data" in await polling
    # Its time begins anew with the answer.
    await world.pass_ms(900)
    assert await is_there(world, "c")
    await world.pass_ms(101)
    assert not await is_there(world, "c")


async def test_whoever_waited_and_is_gone_has_no_more_time_than_others(world: TopicWorld) -> None:
    c = await world.joined("c", heartbeat_ms=1000)
    polling = waiting(world, c)
    await world.world.settle()
    await world.pass_ms(1001)
    polling.cancel()  # as a connection does that was closed
    with contextlib.suppress(asyncio.CancelledError):
        await polling
    await world.pass_ms(999)
    assert await is_there(world, "c")
    await world.pass_ms(1)
    assert not await is_there(world, "c")


@pytest.mark.parametrize("replay", [False, True])
async def test_waiting_is_no_sign_of_life_where_something_runs(
    world: TopicWorld, replay: bool
) -> None:
    """It may be stopped, or cut off without a word: others have to get what it holds."""
    await world.push(1)
    c = await world.joined("c", heartbeat_ms=1000)
    await c.poll()
    if replay:
        await c.ack()
        await world.topics.replay(T, 0)
        await world.world.settle()
        assert len(await c.poll()) == 1
    polling = waiting(world, c)
    await world.world.settle()
    await world.pass_ms(1001)
    with pytest.raises(NotFoundError, match="not registered"):
        await polling


async def test_clients_that_beat_are_heard_by_their_beats_alone(world: TopicWorld) -> None:
    c = await world.joined("c", heartbeat_ms=1000)
    polling = waiting(world, c, packed=True)
    await world.world.settle()
    await world.pass_ms(1001)
    with pytest.raises(NotFoundError, match="not registered"):
        await polling
