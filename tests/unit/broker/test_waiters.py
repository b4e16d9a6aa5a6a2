"""Readers that wait for a log to grow."""

from __future__ import annotations

import asyncio

from penstock.broker.waiters import Waiters

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
