"""Blocked readers of a group: their order, their places, what is never lost to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.turns import Turns

KEY = "group"


class Entries:
    """What there is to deliver; a reader takes up to its count."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.asked: list[str] = []
        self.idle = 0
        self.turns = Turns(lambda key: len(self.waiting), self._idle)

    def _idle(self, key: Any) -> None:
        self.idle += 1

    def put(self, *entries: int) -> None:
        self.waiting += entries
        self.turns.stir(KEY)

    def reader(self, name: str, count: int = 1, seconds: float | None = None) -> asyncio.Task[Any]:
        async def ask() -> list[int]:
            self.asked.append(name)
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
            return taken

        return asyncio.create_task(self.turns.wait(KEY, ask, count, seconds))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_readers_are_served_in_the_order_they_came() -> None:
    entries = Entries()
    readers = [entries.reader(name) for name in "abc"]
    await settle()
    assert entries.asked == [], "nobody is asked while there is nothing"
    entries.put(1, 2)
    await settle()
    assert [reader.done() for reader in readers] == [True, True, False]
    assert [readers[0].result(), readers[1].result()] == [[1], [2]]
    assert entries.asked == ["a", "b"], "the third one could not be served: it is not asked"
    entries.put(3)
    assert await readers[2] == [3]
    assert len(entries.turns) == 0


async def test_who_was_served_goes_to_the_end() -> None:
    entries = Entries()
    first, second = entries.reader("a"), entries.reader("b")
    await settle()
    entries.put(1)
    assert await first == [1]
    again = entries.reader("a")
    await settle()
    entries.put(2)
    assert await second == [2]
    entries.put(3)
    assert await again == [3]


async def test_a_reader_that_comes_when_there_is_something_is_served_at_once() -> None:
    entries = Entries()
    entries.put(1)
    assert await entries.reader("a") == [1]


async def test_a_reader_whose_time_is_over_gets_nothing_and_leaves() -> None:
    entries = Entries()
    gone, waits = entries.reader("a", seconds=0.001), entries.reader("b")
    assert await gone is None
    entries.put(1)
    assert await waits == [1]
    assert entries.waiting == []


async def test_what_was_found_while_the_time_ended_is_not_lost() -> None:
    turns = Turns(lambda key: 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def ask() -> list[int]:
        begun.set()
        await go_on.wait()
        return [1]

    reader = asyncio.create_task(turns.wait(KEY, ask, 1, 0.001))
    await begun.wait()
    await asyncio.sleep(0.01)
    assert not reader.done()
    go_on.set()
    assert await reader == [1]


async def test_a_reader_whose_time_ended_while_it_found_nothing_leaves() -> None:
    turns = Turns(lambda key: 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def ask() -> list[int]:
        begun.set()
        await go_on.wait()
        return []

    reader = asyncio.create_task(turns.wait(KEY, ask, 1, 0.001))
    await begun.wait()
    await asyncio.sleep(0.01)
    go_on.set()
    assert await reader is None
    assert KEY not in turns


async def test_a_reader_that_is_gone_does_not_keep_the_others_waiting() -> None:
    entries = Entries()
    gone, waits = entries.reader("a"), entries.reader("b")
    await settle()
    gone.cancel()
    await settle()
    entries.put(1)
    assert await waits == [1]
    assert entries.asked == ["b"]


async def test_the_error_of_an_ask_is_its_readers_alone() -> None:
    turns = Turns(lambda key: 2)

    async def fails() -> list[int]:
        raise ValueError("broken")

    async def finds() -> list[int]:
        return [1]

    broken = asyncio.create_task(turns.wait(KEY, fails, 1, None))
    works = asyncio.create_task(turns.wait(KEY, finds, 1, None))
    with pytest.raises(ValueError, match="broken"):
        await broken
    assert await works == [1]


async def test_those_that_still_wait_are_told_when_nothing_more_can_be_done() -> None:
    entries = Entries()
    reader = entries.reader("a")
    await settle()
    assert entries.idle == 1, "once per stir: this is where the alarm for the next retry is set"
    entries.put(1)
    await reader
    assert entries.idle == 1


async def test_those_that_are_being_asked_are_asked_again_when_something_unknown_changed() -> None:
    """A commit comes by while an ask is under way, and nobody knows yet that it is about the same
    group: the ask looked before it, so it finds nothing."""
    waiting: list[int] = []
    asked = 0
    under_way, answer = asyncio.Event(), asyncio.Event()

    async def ask() -> list[int]:
        nonlocal asked
        asked += 1
        found, waiting[:] = waiting[:], []
        under_way.set()
        await answer.wait()
        return found

    turns = Turns(lambda key: 1)
    reader = asyncio.create_task(turns.wait(KEY, ask, 1, None))
    await under_way.wait()
    waiting.append(7)
    turns.stir_served()
    answer.set()
    await settle()
    assert asked == 2
    assert reader.done()
    assert reader.result() == [7]


async def test_nobody_is_asked_for_something_unknown_while_nobody_is_being_asked() -> None:
    entries = Entries()
    reader = entries.reader("a")
    await settle()
    entries.waiting.append(1)
    entries.turns.stir_served()
    await settle()
    assert entries.asked == []
    entries.turns.stir(KEY)
    assert await reader == [1]


async def test_what_was_found_while_the_reader_was_cancelled_is_not_lost() -> None:
    turns = Turns(lambda key: 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def ask() -> list[int]:
        begun.set()
        await go_on.wait()
        return [1]

    reader = asyncio.create_task(turns.wait(KEY, ask, 1, None))
    await begun.wait()
    reader.cancel()
    await settle()
    assert not reader.done()
    go_on.set()
    assert await reader == [1]


async def test_a_reader_that_was_cancelled_while_it_found_nothing_is_cancelled() -> None:
    turns = Turns(lambda key: 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def ask() -> list[int]:
        begun.set()
        await go_on.wait()
        return []

    reader = asyncio.create_task(turns.wait(KEY, ask, 1, None))
    await begun.wait()
    reader.cancel()
    await settle()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert KEY not in turns


async def test_a_reader_that_leaves_in_the_moment_it_is_stirred_takes_nothing_along() -> None:
    entries = Entries()
    reader = entries.reader("a")
    await settle()
    entries.put(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await settle()
    assert entries.waiting == [1]


async def test_a_reader_that_is_cancelled_again_and_again_keeps_what_it_is_given() -> None:
    turns = Turns(lambda key: 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def ask() -> list[int]:
        begun.set()
        await go_on.wait()
        return [1]

    reader = asyncio.create_task(turns.wait(KEY, ask, 1, 0.001))
    await begun.wait()
    await asyncio.sleep(0.01)  # its time is over, and it is being asked
    for _ in range(3):
        reader.cancel()
        await settle()
    go_on.set()
    assert await reader == [1]
    assert reader.cancelling() == 0


class Slow(Entries):
    """The first ask takes until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    def reader(self, name: str, count: int = 1, seconds: float | None = None) -> asyncio.Task[Any]:
        async def ask() -> list[int]:
            self.asked.append(name)
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
            if len(self.asked) == 1:
                await self.go.wait()
            return taken

        return asyncio.create_task(self.turns.wait(KEY, ask, count, seconds))


@pytest.mark.parametrize("left", [0, 1])
async def test_a_reader_with_little_time_is_asked_once_where_there_is_something(left: int) -> None:
    """Who comes while others are being asked is not told that there is nothing, unasked."""
    entries = Slow()
    entries.put(*range(1 + left))
    first = entries.reader("first")
    await settle()
    hasty = entries.reader("hasty", seconds=0)
    await asyncio.sleep(0.01)
    assert not hasty.done()
    entries.go.set()
    assert await first == [0]
    assert await hasty == ([1] if left else None)
    assert entries.asked == ["first", *["hasty"] * left]
    assert len(entries.turns) == 0


async def test_a_reader_with_little_time_whose_turn_was_there_is_not_asked_again() -> None:
    entries = Entries()
    hasty = entries.reader("hasty", seconds=0.001)
    entries.turns._available = lambda key: 1  # it may be; only an ask tells
    assert await hasty is None
    assert entries.asked == ["hasty"]


async def test_a_reader_whose_turn_was_there_does_not_wait_for_that_of_another() -> None:
    room, asked, go_on = [2], list[str](), asyncio.Event()
    turns = Turns(lambda key: room[0])

    def reader(name: str, seconds: float | None) -> asyncio.Task[Any]:
        async def ask() -> list[int]:
            asked.append(name)
            if asked.count("first") > 1:
                await go_on.wait()
            return []

        return asyncio.create_task(turns.wait(KEY, ask, 1, seconds))

    first, hasty = reader("first", None), reader("hasty", 0.1)
    await settle()
    assert asked == ["first", "hasty"]
    room[0] = 1
    turns.stir(KEY)
    await settle()
    assert asked == ["first", "hasty", "first"]
    assert await asyncio.wait_for(hasty, 10) is None
    go_on.set()
    first.cancel()
    await asyncio.wait([first])


async def test_a_reader_with_little_time_does_not_stay_when_the_one_before_it_found_nothing() -> (
    None
):
    entries = Slow()
    entries.turns._available = lambda key: 1
    first = entries.reader("first")
    await settle()
    hasty = entries.reader("hasty", seconds=0)
    await asyncio.sleep(0.01)
    entries.turns._stirred.clear()  # as if it had come while the first one was already chosen
    entries.go.set()
    assert await asyncio.wait_for(hasty, 5) is None
    first.cancel()


async def test_a_hasty_reader_hears_of_the_end() -> None:
    entries = Slow()
    entries.put(0)
    first = entries.reader("first")
    await settle()
    hasty = entries.reader("hasty", seconds=0)
    await asyncio.sleep(0.01)
    entries.turns.end(ValueError("closed"))
    with pytest.raises(ValueError, match="closed"):
        await hasty
    entries.go.set()
    with pytest.raises(ValueError, match="closed"):
        await first


async def test_a_reader_whose_time_ends_before_its_ask_has_begun_is_asked() -> None:
    entries = Entries()
    ask = entries.turns._ask

    async def begun_late(key: Any, reader: Any) -> bool:
        await asyncio.sleep(0.01)
        return await ask(key, reader)

    entries.turns._ask = begun_late  # type: ignore[method-assign]
    entries.put(1)
    assert await entries.reader("hasty", seconds=0) == [1]
