"""Failures of handlers: attempts are counted once, errors are listed, all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.topicanswers import Failure, TopicError
from penstock.errors import CorruptError, InvalidError
from penstock.topic.given import held
from penstock.topic.item import prepare_push
from penstock.topic.read import read_messages
from unit.broker.driver import BrokerWorld
from unit.topic.driver import T, Tailer, TopicWorld


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TopicWorld]:
    outer = BrokerWorld(monkeypatch)
    world = TopicWorld(outer, await outer.open())
    yield world
    await world.check()
    await world.broker.close()


async def fail(
    world: TopicWorld, c: Tailer, *failures: Failure, most: int = 2, **options: Any
) -> list[str]:
    acked = await world.topics.ack(
        T, c.name, c.token, failures=failures, max_attempts=most, **options
    )
    return acked.failed


def failures_of(c: Tailer, attempt: int = 0, error: str = "no") -> list[Failure]:
    """One for each message of the last poll."""
    return [
        Failure(offset, epoch, error, part.job, attempt)
        for part in c.parts
        for offset, epoch in zip(part.offsets, part.epochs, strict=True)
    ]


async def test_many_failures_cost_no_more_looks_than_a_few(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that looks at each for itself, and at all attempts for each, stands still."""
    await world.push(300)
    c = await world.joined("c")
    await c.poll(300)
    looks = 0

    async def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return await held(*arguments)

    monkeypatch.setattr("penstock.topic.ack.held", counted)
    told = failures_of(c)
    assert await fail(world, c, *told, most=3) == ["again"] * 300
    assert looks <= 2
    assert await fail(world, c, *told[:100], most=2) == ["errored"] * 100
    assert looks <= 4
    counters = await world.counters()
    assert (counters["errored"], counters["running"]) == (100, 200)
    again = await world.joined("c")
    await again.poll(300)
    assert again.parts[0].attempts == dict.fromkeys(range(100, 300), 1)


async def test_failures_of_messages_and_of_their_replay_are_told_apart(world: TopicWorld) -> None:
    await world.push(3)
    c = await world.joined("c")
    await c.poll()
    await c.ack()
    await world.push(3)
    job = (await world.topics.replay(T, 0, 3)).id
    await world.world.settle()
    await c.poll()
    told = failures_of(c)
    assert sorted((each.job, each.offset) for each in told) == [
        *((0, offset) for offset in range(3, 6)),
        *((job, offset) for offset in range(3)),
    ]
    stale = Failure(3, 99, "no")
    mixed = [told[0], stale, told[3], told[1], told[0]]
    assert await fail(world, c, *mixed) == ["again", "stale", "again", "again", "again"]
    assert await fail(world, c, *mixed) == ["errored", "stale", "errored", "errored", "errored"]
    found = {(each.offset, each.job, each.attempts) for each in await world.topics.errors(T)}
    assert found == {(each.offset, each.job, 2) for each in (told[0], told[1], told[3])}


async def test_a_failure_whose_answer_was_lost_counts_once(world: TopicWorld) -> None:
    await world.push(1)
    c = await world.joined("c")
    await c.poll()
    (first,), (second,) = failures_of(c, 1), failures_of(c, 2, "last")
    for _ in range(3):
        assert await fail(world, c, first) == ["again"]
    (error,) = await world.topics.errors(T)
    assert (error.attempts, error.final) == (1, False)
    for _ in range(3):
        assert await fail(world, c, second) == ["errored"]
    assert await fail(world, c, first) == ["stale"]
    (error,) = await world.topics.errors(T)
    assert (error.attempts, error.final, error.error) == (2, True, "last")
    assert (await world.counters())["errored"] == 1


async def test_what_was_counted_is_errored_where_fewer_attempts_are_left_now(
    world: TopicWorld,
) -> None:
    await world.push(1)
    c = await world.joined("c")
    await c.poll()
    assert await fail(world, c, *failures_of(c, 1), most=3) == ["again"]
    assert await fail(world, c, *failures_of(c, 1), most=1) == ["errored"]
    (error,) = await world.topics.errors(T)
    assert (error.attempts, error.final) == (1, True)


# ---- looking at them --------------------------------------------------------------------------


async def all_errors(world: TopicWorld, count: int) -> list[tuple[int, int]]:
    """-> offsets and jobs, page by page"""
    found: list[TopicError] = []
    start = job = 0
    while page := await world.topics.errors(T, start, count, job=job):
        assert len(page) <= count
        found += page
        start, job = page[-1].offset, page[-1].job + 1
    assert all(each.data == b"x" * 10 for each in found)
    return [(each.offset, each.job) for each in found]


async def failed_twice(world: TopicWorld, count: int) -> list[tuple[int, int]]:
    """Messages of 10 bytes that failed, and failed again when they were replayed."""
    await world.topics.push(T, prepare_push([b"x" * 10] * count))
    c = await world.joined("c")
    await c.poll()
    await fail(world, c, *failures_of(c), most=1)
    job = (await world.topics.replay(T, 0)).id
    await world.world.settle()
    await c.poll()
    await fail(world, c, *failures_of(c), most=1)
    return [(offset, each) for offset in range(count) for each in (0, job)]


async def test_errors_are_listed_page_by_page_with_those_of_replays(world: TopicWorld) -> None:
    expected = await failed_twice(world, 5)
    for count in (1, 2, 3, 100):
        assert await all_errors(world, count) == expected
    with pytest.raises(InvalidError, match="not negative"):
        await world.topics.errors(T, job=-1)


async def test_pages_of_errors_are_short_where_messages_are_large(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await failed_twice(world, 5)
    for size in (1, 10, 25, 31):
        monkeypatch.setattr("penstock.broker.topics.ANSWER_BYTES", size)
        assert len(await world.topics.errors(T)) == max(1, size // 10)
        assert await all_errors(world, 100) == expected


async def test_errors_are_shown_though_their_messages_are_trimmed_in_that_moment(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.pages.TAIL_RECORDS", 4)
    await world.push(9000)
    c = await world.joined("c")
    await c.poll(9000)
    await fail(world, c, *failures_of(c)[:1], most=1)
    await c.ack()
    reads = 0

    async def trim_before(*arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            await world.topics.configure(T, max_count=10)
            for _ in range(6):
                await world.topics.beat(T, "c", c.token)
                await world.push(1)
                await world.pass_ms(1000)
        return await read_messages(*arguments, **{**options, "cache": None})

    monkeypatch.setattr("penstock.broker.topics.read_messages", trim_before)
    found = await world.topics.errors(T)
    assert reads == 2
    assert [each for each in found if each.data is not None] == []
    assert (await world.topics.stats(T)).first > 0


async def test_a_message_that_is_missing_for_no_reason_is_corruption(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.push(1)
    c = await world.joined("c")
    await c.poll()
    await fail(world, c, *failures_of(c), most=1)

    async def hole(*arguments: Any, **options: Any) -> Any:
        raise CorruptError("message 0 is gone")

    monkeypatch.setattr("penstock.broker.topics.read_messages", hole)
    with pytest.raises(CorruptError, match="gone"):
        await world.topics.errors(T)
