"""A time limit for what one task does again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.limit import Limit


async def test_what_takes_too_long_ends_and_the_next_block_has_its_own_time() -> None:
    limit = Limit()
    for _ in range(3):
        with pytest.raises(TimeoutError), limit(0.01):
            await asyncio.sleep(10)
        with limit(0.05):
            await asyncio.sleep(0.02)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_block_that_follows_others_ends_at_its_own_time_and_not_at_theirs() -> None:
    limit, loop = Limit(), asyncio.get_running_loop()
    with limit(0.05):
        await asyncio.sleep(0.03)
    begun = loop.time()
    with pytest.raises(TimeoutError), limit(0.05) as ends:
        await asyncio.sleep(10)
    assert ends == pytest.approx(begun + 0.05, abs=0.01)
    assert loop.time() >= ends
    with limit(10):
        pass
    begun = loop.time()
    with pytest.raises(TimeoutError), limit(0.01):  # sooner than the timer that is set
        await asyncio.sleep(10)
    assert loop.time() < begun + 5


async def test_being_cancelled_from_outside_is_no_timeout() -> None:
    limit, heard = Limit(), list[str]()

    async def work() -> None:
        try:
            with limit(10):
                await asyncio.sleep(10)
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["CancelledError"]


async def test_both_at_once_is_a_cancellation() -> None:
    limit = Limit()

    async def work() -> None:
        with limit(0.01):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # from outside, in the moment the time is over
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def test_an_error_of_the_block_is_its_own() -> None:
    limit = Limit()
    with pytest.raises(KeyError), limit(10):
        raise KeyError
    with limit(10):
        pass


async def test_ten_thousand_blocks_set_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, loop, timers = Limit(), asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def noted(when: float, callback: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, callback)

    monkeypatch.setattr(loop, "call_at", noted)
    for _ in range(10_000):
        with limit(100):
            pass
    assert len(timers) == 1
