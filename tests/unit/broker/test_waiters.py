"""Readers that wait for a log to grow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.waiters import GIVEN_UP_MIN, Waiters

KEY = ("log", 1)


def waiting(waiters: Waiters, offset: int) -> asyncio.Task[None]:
    return asyncio.create_task(waiters.wait(KEY, offset))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_commit_wakes_exactly_the_readers_it_can_serve() -> None:
    waiters = Waiters()
    readers = {offset: waiting(waiters, offset) for offset in (5, 3, 9, 4)}
    await settle()
    waiters.grown(KEY, 5)
    await settle()
    assert {offset for offset, reader in readers.items() if reader.done()} == {3, 4}
    waiters.grown(("log", 2), 100)
    waiters.grown(KEY, None)
    await asyncio.gather(*readers.values())
    assert len(waiters) == 0


async def test_readers_that_gave_up_are_forgotten() -> None:
    waiters = Waiters()
    stays = waiting(waiters, 0)
    others = [waiting(waiters, offset) for offset in range(1, 1001)]
    await settle()
    assert len(waiters) == 1001
    for reader in others:
        reader.cancel()
    await asyncio.wait(others)
    assert len(waiters) == 1
    assert len(waiters._heaps[KEY].items) < 200
    waiters.wake_all()
    await stays
    assert not waiters._heaps


async def test_readers_that_give_up_one_by_one_do_not_pile_up_behind_one_that_waits() -> None:
    """Whatever else waited before: how far the count of all waits is must not decide."""
    for before in range(0, 1000, 97):
        waiters = Waiters()
        for _ in range(before):
            other = asyncio.create_task(waiters.wait(("log", 2), 0))
            await asyncio.sleep(0)
            other.cancel()
        await settle()
        assert not waiters._heaps, "nobody waits there any more"
        stays = waiting(waiters, 0)
        for _ in range(1000):
            gives_up = waiting(waiters, 0)
            await asyncio.sleep(0)
            gives_up.cancel()
            await asyncio.wait([gives_up])
            assert len(waiters._heaps[KEY].items) < 200
        waiters.grown(KEY, 1)
        await stays
        assert not waiters._heaps.get(KEY)


@pytest.mark.parametrize(("staying", "most"), [(1, 1000 // GIVEN_UP_MIN), (1000, 1)])
async def test_who_gives_up_does_not_have_all_who_wait_looked_through(
    monkeypatch: pytest.MonkeyPatch, staying: int, most: int
) -> None:
    looks = 0

    def counted(items: Any) -> list[Any]:
        nonlocal looks
        looks += 1
        return sorted(items)

    monkeypatch.setattr("penstock.broker.waiters.sorted", counted, raising=False)
    waiters = Waiters()
    stay = [waiting(waiters, 0) for _ in range(staying)]
    for _ in range(1000):
        gives_up = waiting(waiters, 1)
        await asyncio.sleep(0)
        gives_up.cancel()
        await asyncio.wait([gives_up])
    assert looks <= most
    waiters.wake_all()
    await asyncio.gather(*stay)


async def test_the_end_is_told_to_all_and_nobody_is_kept() -> None:
    waiters = Waiters()
    readers = [waiting(waiters, offset) for offset in range(3)]
    await settle()
    waiters.end(ValueError("closed"))
    for reader in readers:
        with pytest.raises(ValueError, match="closed"):
            await reader
    assert not waiters._heaps
