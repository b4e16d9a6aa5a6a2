"""TOPIC.POLL with SETTLE: exactly what is answered is acknowledged, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from penstock.broker.topicanswers import Polled
from penstock.errors import InvalidError
from penstock.server.resp.topic_grammar import Poll
from penstock.server.resp.topics import run
from penstock.topic.item import prepare_push
from unit.broker.driver import BrokerWorld
from unit.topic.driver import T, TopicWorld


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TopicWorld]:
    outer = BrokerWorld(monkeypatch)
    world = TopicWorld(outer, await outer.open())
    yield world
    await world.check()
    await world.broker.close()


async def poll(
    world: TopicWorld,
    token: int,
    *,
    limit: int = 1 << 20,
    gone: Callable[[], bool] = lambda: False,
    settle: bool = True,
) -> list[int]:
    """-> offsets"""
    request = Poll(T, "c", token, 100, settle=settle, packed=True)
    reply = await run(request, world.topics, 3, limit, gone)
    if not reply:
        return []
    _, body = reply.split(b"\r\n", 1)
    polled = msgspec.msgpack.decode(body[:-2], type=Polled)
    return [offset for part in polled.parts for offset in part.offsets]


async def pushed(world: TopicWorld, count: int) -> int:
    """Messages of 10 bytes. -> the token of their consumer"""
    await world.topics.push(T, prepare_push([b"x" * 10] * count))
    return (await world.joined("c")).token


async def settled(world: TopicWorld) -> tuple[int, int, int]:
    await world.world.settle()
    counters = await world.counters()
    return counters["emitted"], counters["acked"], counters["running"]


async def test_what_is_polled_is_done(world: TopicWorld) -> None:
    token = await pushed(world, 2)
    assert await poll(world, token) == [0, 1]
    assert await settled(world) == (2, 2, 0)
    assert await poll(world, token) == []


async def test_what_did_not_fit_into_the_answer_comes_next(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.topictails.ANSWER_BYTES", 25)
    token = await pushed(world, 5)
    found = []
    for done in (2, 4, 5):
        found += await poll(world, token)
        assert await settled(world) == (done, done, 0)
    assert found == [0, 1, 2, 3, 4]


async def test_a_reply_that_is_too_large_acknowledges_nothing(world: TopicWorld) -> None:
    token = await pushed(world, 5)
    with pytest.raises(InvalidError, match="poll fewer"):
        await poll(world, token, limit=50)
    assert (await settled(world))[1:] == (0, 0)
    assert await poll(world, token) == [0, 1, 2, 3, 4]


async def test_whoever_is_gone_has_acknowledged_nothing(world: TopicWorld) -> None:
    token = await pushed(world, 2)
    assert await poll(world, token, gone=lambda: True) == []
    assert (await settled(world))[1:] == (0, 0)


async def test_what_has_moved_on_meanwhile_is_not_answered_with(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await pushed(world, 32)
    ack, gate = world.topics.ack, asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Any:
        await gate.wait()
        return await ack(*arguments, **options)

    monkeypatch.setattr(world.topics, "ack", slow)
    polling = asyncio.ensure_future(poll(world, token))
    await world.world.settle()
    d = await world.joined("d")
    await world.topics.rebalance(T)
    gate.set()
    mine = await polling
    theirs = [offset for offset, _ in await d.poll()]
    assert len(mine) == len(theirs) == 16
    assert sorted(mine + theirs) == list(range(32))
