"""The one commit: grouping, order, what a failure may and may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.commit import BACKOFF_SECONDS, LASTING_SECONDS, Committer, Shown
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.log.decision import Decision, Now, Step, View
from penstock.store.memory import (
    Fault,
    Faults,
    Fence,
    Lose,
    MemoryDisk,
    MemoryStore,
    Refuse,
    Stall,
)
from penstock.store.port import StoppedError
from unit.broker.driver import StepClock

COUNT = ("count", 0)
KEY = b"\x01\x0acount"


class World:
    def __init__(self, **options: Any) -> None:
        self.clock = StepClock()
        self.disk = MemoryDisk()
        self.faults = Faults()
        self.openings: list[int | None] = []
        self.unreachable: Exception | None = None
        self.committer = Committer(self._open, self.clock, **options)

    async def _open(self, after: int | None) -> MemoryStore:
        self.openings.append(after)
        if self.unreachable is not None:
            raise self.unreachable
        if after is not None and self.disk.epoch != after:
            raise FencedError("taken over")
        return await MemoryStore.open(self.disk, clock=self.clock, faults=self.faults)

    async def settle(self) -> None:
        """Let everything run that can run without the outside world."""
        for _ in range(50):
            await asyncio.sleep(0)

    def stored(self) -> int:
        return int(self.disk.rows.get(KEY) or 0)


async def make_world(**options: Any) -> World:
    world = World(**options)
    await world.committer.open()
    return world


async def load_count(view: View) -> None:
    if view.state(COUNT) is None:
        view.keep(COUNT, int(await view.store.get(KEY) or 0) + 1000)


def add(amount: int, *, error: Exception | None = None) -> Step:
    """Adds to a number that lives in a row and, 1000 higher, in a state. -> the sum"""

    def decide(view: View, now: Now) -> Decision:
        if error is not None:
            raise error
        count = view.state(COUNT)
        assert count is not None
        total = count - 1000 + amount
        return Decision(reply=total, writes={KEY: b"%d" % total}, states={COUNT: total + 1000})

    return Step(decide, load_count)


async def shown_count(world: World) -> int:
    async def query(view: Shown) -> int:
        await load_count(view)
        count = view.state(COUNT)
        assert count is not None
        assert count - 1000 == int(await view.store.get(KEY) or 0), "memory and rows agree"
        return int(count) - 1000

    return await world.committer.read(query)


async def test_requests_that_arrive_during_a_commit_share_the_next_one() -> None:
    world = await make_world()
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    others = [asyncio.create_task(world.committer.submit(add(1))) for _ in range(10)]
    await world.settle()
    stall.release()
    assert await first == [1]
    assert [await task for task in others] == [[n] for n in range(2, 12)]
    assert world.disk.head.n == 2


async def test_nobody_hears_or_sees_a_commit_before_it_is_durable() -> None:
    world = await make_world()
    await world.committer.submit(add(5))
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    waiting = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    assert not waiting.done()
    assert await shown_count(world) == 5
    stall.release()
    assert await waiting == [6]
    assert await shown_count(world) == 6


async def test_a_refused_request_leaves_the_others_of_its_tick_untouched() -> None:
    world = await make_world()
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    good = asyncio.create_task(world.committer.submit(add(10)))
    bad = asyncio.create_task(world.committer.submit(add(100), add(0, error=ConflictError("no"))))
    after = asyncio.create_task(world.committer.submit(add(1000)))
    await world.settle()
    stall.release()
    assert await first == [1]
    assert await good == [11]
    with pytest.raises(ConflictError):
        await bad
    assert await after == [1011]
    assert world.stored() == 1011


async def test_the_steps_of_one_request_see_each_other_and_enter_together() -> None:
    world = await make_world()
    assert await world.committer.submit(add(1), add(10), add(100)) == [1, 11, 111]
    assert world.disk.head.n == 1


async def test_a_bug_in_a_decision_fails_its_request_alone() -> None:
    world = await make_world()
    with pytest.raises(ZeroDivisionError):
        await world.committer.submit(add(0, error=ZeroDivisionError()))
    assert await world.committer.submit(add(1)) == [1]


async def test_a_commit_that_the_store_refused_changes_nothing_and_the_handle_goes_on() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.faults.next("commit", Fault(before=[Refuse()]))
    with pytest.raises(UnavailableError) as caught:
        await world.committer.submit(add(1))
    assert "nothing was written" in caught.value.hint
    assert await shown_count(world) == 1
    assert await world.committer.submit(add(1)) == [2]
    assert world.openings == [None]


@pytest.mark.parametrize(
    ("fault", "total"), [(Fault(before=[Lose()]), 1), (Fault(after=[Lose()]), 2)]
)
async def test_after_an_unknown_outcome_everything_is_rebuilt_from_the_store(
    fault: Fault, total: int
) -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.faults.next("commit", fault)
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    assert world.openings == [None, 1], "reopened, and only over its own epoch"
    assert await shown_count(world) == total
    assert await world.committer.submit(add(1)) == [total + 1]
    assert world.committer.health.unknown_outcomes == 1


async def test_a_store_that_hangs_ends_every_call_at_the_deadline_and_heals() -> None:
    # Half of it is what a tick has until its commit: a busy machine may need a tenth of a second.
    world = await make_world(deadline=2.0)
    await world.committer.submit(add(1))
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    second = asyncio.create_task(world.committer.submit(add(1)))
    for task in (first, second):
        with pytest.raises(UnavailableError):
            await task
    await world.settle()
    assert await world.committer.submit(add(1)) == [2]


async def test_what_waited_for_half_the_deadline_is_refused_and_nothing_is_written() -> None:
    world = await make_world(deadline=60)
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    late = asyncio.create_task(world.committer.submit(add(10)))
    await world.settle()
    world.clock.mono += 1
    in_time = asyncio.create_task(world.committer.submit(add(100)))
    await world.settle()
    world.clock.mono += 29.5
    stall.release()
    assert await first == [1], "what is in a tick has the other half"
    with pytest.raises(UnavailableError, match="too slow") as caught:
        await late
    assert "nothing was written" in caught.value.hint
    assert await in_time == [101]
    assert await shown_count(world) == 101
    assert world.openings == [None], "the outcome is known: the handle goes on"


async def test_a_call_that_used_half_its_deadline_before_it_came_does_not_wait_for_a_tick() -> None:
    """What it looked up took as long: behind the tick of others it could not end in time."""
    world = await make_world(deadline=60)
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    world.clock.mono += 31
    with pytest.raises(UnavailableError, match="too slow") as caught:
        await world.committer.submit(add(10), begun=0.0)
    assert "nothing was written" in caught.value.hint
    in_time = asyncio.create_task(world.committer.submit(add(100), begun=2.0))
    await world.settle()
    stall.release()
    assert await first == [1]
    assert await in_time == [101]


async def test_who_is_too_late_hears_it_before_those_in_front_of_it_are_looked_up() -> None:
    """They may take the rest of its deadline."""
    world = await make_world(deadline=60)
    stall, looked_up = Stall(), asyncio.Event()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()

    async def slow(view: View) -> None:
        await looked_up.wait()

    in_front = asyncio.create_task(world.committer.submit(Step(lambda view, now: Decision(), slow)))
    late = asyncio.create_task(world.committer.submit(add(10), begun=-20.0))
    await world.settle()
    world.clock.mono += 15
    stall.release()
    assert await first == [1]
    await world.settle()
    assert late.done()
    with pytest.raises(UnavailableError, match="too slow"):
        await late
    assert not in_front.done()
    looked_up.set()
    assert await in_front == [None]
    assert await shown_count(world) == 1


async def test_a_tick_that_runs_out_of_time_while_it_looks_things_up_keeps_the_handle() -> None:
    """Nothing was sent to the store, so the outcome is known: no memory is lost over it."""
    world = await make_world(deadline=0.2)
    stall = Stall()
    world.faults.next("get", Fault(before=[stall]))
    asked = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    behind = asyncio.create_task(world.committer.submit(add(10)))
    with pytest.raises(UnavailableError) as caught:
        await asked
    assert "nothing was written" in caught.value.hint
    assert await behind == [10], "what waited behind it goes on"
    assert world.stored() == 10
    assert world.openings == [None]
    assert world.committer.health.unknown_outcomes == 0


async def test_a_tick_whose_time_is_over_does_not_begin_a_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decision held the loop up: the commit would be cut off, its outcome unknown."""
    world = await make_world(deadline=60)
    loop = asyncio.get_running_loop()
    time = loop.time

    def decide(view: View, now: Now) -> Decision:
        monkeypatch.setattr(loop, "time", lambda: time() + 31)
        return Decision(writes={KEY: b"1"})

    with pytest.raises(UnavailableError) as caught:
        await world.committer.submit(Step(decide))
    monkeypatch.setattr(loop, "time", time)
    assert "nothing was written" in caught.value.hint
    assert world.stored() == 0
    assert await world.committer.submit(add(1)) == [1]
    assert world.openings == [None]


async def test_a_read_that_hangs_ends_at_the_deadline() -> None:
    world = await make_world(deadline=0.1)
    world.faults.next("get", Fault(before=[Stall()]))
    with pytest.raises(UnavailableError):
        await shown_count(world)
    assert await shown_count(world) == 0


async def test_while_the_store_is_down_new_load_is_turned_away_at_once() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.unreachable = UnavailableError("no route")
    world.faults.next("commit", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    with pytest.raises(UnavailableError, match="no route"):
        await world.committer.submit(add(1))
    with pytest.raises(UnavailableError, match="no route"):
        await shown_count(world)
    assert len(world.openings) > 2, "it keeps trying"
    world.unreachable = None
    await world.settle()
    assert await world.committer.submit(add(1)) == [2]
    await world.committer.close()


@pytest.mark.parametrize("fault", [Fault(before=[Fence()]), Fault(after=[Fence()])])
async def test_fenced_means_finished_for_writes_and_reads(fault: Fault) -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.faults.next("commit", fault)
    with pytest.raises(FencedError):
        await world.committer.submit(add(1))
    await world.settle()
    for call in (world.committer.submit(add(1)), shown_count(world)):
        with pytest.raises(FencedError):
            await call
    assert world.openings == [None], "a fenced committer never takes the location back"


async def test_a_read_answers_nothing_once_another_owns_the_epoch() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.disk.fence()
    with pytest.raises(FencedError):
        await shown_count(world)
    with pytest.raises(FencedError):
        await world.committer.submit(add(1))


@pytest.mark.parametrize(
    "answer",
    [
        NotFoundError("there is no such queue"),
        InvalidError("there are fewer"),
        CorruptError("a row is missing"),
    ],
)
async def test_a_read_refuses_nothing_once_another_owns_the_epoch(answer: PenstockError) -> None:
    """It rests on rows as an answer does: the new owner may have made what is not found here, and
    may have let go of what is missing."""
    world = await make_world()

    async def refuse(view: Shown) -> None:
        raise answer

    with pytest.raises(type(answer)):
        await world.committer.read(refuse)
    await world.settle()
    world.disk.fence()
    with pytest.raises(FencedError):
        await world.committer.read(refuse)
    with pytest.raises(FencedError):
        await world.committer.submit(add(1))


async def test_calls_under_way_hear_that_the_location_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not that the store is closed or was reopened: they would ask it again."""
    world = await make_world()
    await world.committer.submit(add(1))
    store, go = world.committer._store, asyncio.Event()
    assert store is not None
    commit = store.commit

    async def slow(*given: Any, **named: Any) -> Any:
        await go.wait()
        return await commit(*given, **named)

    async def look(view: Any) -> object:
        await go.wait()
        return await view.store.get(b"x")

    monkeypatch.setattr(store, "commit", slow)
    calls = [
        asyncio.ensure_future(world.committer.submit(add(1))),
        asyncio.ensure_future(world.committer.read(look)),
    ]
    await asyncio.sleep(0)
    world.committer.fence("taken")
    await world.settle()
    go.set()
    heard = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in heard] == [FencedError, FencedError]


async def test_a_request_without_writes_is_answered_only_by_the_owner_of_the_epoch() -> None:
    world = await make_world()
    world.disk.fence()
    with pytest.raises(FencedError):
        await world.committer.submit(Step(lambda view, now: Decision(reply=1)))


async def test_it_does_not_take_the_location_back_from_whoever_overtook_it() -> None:
    world = await make_world()
    world.faults.next("commit", Fault(before=[Lose()]))
    world.disk.fence()
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    with pytest.raises(FencedError):
        await world.committer.submit(add(1))
    assert world.disk.epoch == 2


@pytest.mark.parametrize("kind", [CorruptError, StoppedError])
async def test_damage_found_when_reopening_ends_the_attempts_and_is_what_callers_hear(
    kind: type[CorruptError],
) -> None:
    world = await make_world()
    world.unreachable = kind("a table is missing")
    world.faults.next("commit", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    assert len(world.openings) == 2
    with pytest.raises(CorruptError, match="a table is missing") as raised:
        await world.committer.submit(add(1))
    assert type(raised.value) is CorruptError


async def test_an_engine_that_ends_while_it_opens_is_damage_as_callers_know_it() -> None:
    world = World()
    world.unreachable = StoppedError("panicked")
    with pytest.raises(CorruptError, match="panicked") as raised:
        await world.committer.open()
    assert type(raised.value) is CorruptError


async def test_who_asks_an_ended_committer_again_and_again_is_not_remembered() -> None:
    """It is one error: the frames of everybody who asked, with what he asked for, would stay."""
    world = await make_world()
    world.committer.fence("taken over")
    frames: dict[str, set[int]] = {"read": set(), "write": set()}
    for _ in range(5):
        with pytest.raises(FencedError) as told:
            await shown_count(world)
        frames["read"].add(len(told.traceback))
        with pytest.raises(FencedError) as told:
            await world.committer.submit(add(1))
        frames["write"].add(len(told.traceback))
    assert [len(lengths) for lengths in frames.values()] == [1, 1]


async def test_a_request_whose_caller_gave_up_before_the_tick_is_not_committed() -> None:
    world = await make_world()
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    second = asyncio.create_task(world.committer.submit(add(10)))
    await world.settle()
    second.cancel()
    await world.settle()
    stall.release()
    await first
    await world.settle()
    assert world.stored() == 1


async def test_commit_times_never_run_backwards_nor_stand_still() -> None:
    world = await make_world()
    times = []
    for wall in (1_000_000, 999_000, 1_000_500, 500):
        world.clock.wall = wall
        world.clock.mono += 0.125
        await world.committer.submit(add(1))
        times.append(world.disk.head.time_ms)
    assert times == [1_000_125, 1_000_250, 1_000_500, 1_000_625]
    await world.committer.close()
    again = Committer(world._open, world.clock)
    await again.open()
    await again.submit(add(1))
    assert world.disk.head.time_ms >= 1_000_625, "time goes on from the last commit after a restart"


async def test_a_state_that_a_read_loaded_during_a_commit_does_not_replace_the_newer_one() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.committer.states.clear()
    stall = Stall()
    world.faults.next("get", Fault(after=[stall]))

    async def query(view: Shown) -> None:
        await load_count(view)

    reading = asyncio.create_task(world.committer.read(query))
    await stall.reached.wait()
    await world.committer.submit(add(1))
    world.committer.states.clear()
    stall.release()
    await reading
    assert await world.committer.submit(add(1)) == [3]


async def test_a_bug_after_the_commit_is_heard_and_memory_is_rebuilt() -> None:
    def forget(keys: object) -> None:
        raise ZeroDivisionError

    world = await make_world(on_commit=forget)
    with pytest.raises(ZeroDivisionError):
        await world.committer.submit(add(1))
    await world.settle()
    world.committer._on_commit = lambda keys: None
    assert await shown_count(world) == 1
    assert await world.committer.submit(add(1)) == [2]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_bug_in_the_store_is_heard_by_its_tick_and_everything_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    real, stall = MemoryStore.commit, Stall()

    async def broken(self: MemoryStore, *args: Any, **options: Any) -> None:
        if durable:
            await real(self, *args, **options)
        await stall.hang()
        raise ZeroDivisionError

    monkeypatch.setattr(MemoryStore, "commit", broken)
    hit = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    behind = asyncio.create_task(world.committer.submit(add(10)))
    await world.settle()
    monkeypatch.setattr(MemoryStore, "commit", real)
    stall.release()
    with pytest.raises(ZeroDivisionError):
        await hit
    with pytest.raises(UnavailableError, match="ZeroDivisionError"):
        await behind
    await world.settle()
    assert world.openings == [None, 1]
    total = 2 if durable else 1
    assert await shown_count(world) == total
    assert await world.committer.submit(add(1)) == [total + 1]


async def test_a_bug_while_reopening_does_not_end_the_attempts() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.faults.next("commit", Fault(before=[Lose()]))
    world.unreachable = ZeroDivisionError()
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    with pytest.raises(UnavailableError, match="reopening failed: ZeroDivisionError"):
        await world.committer.submit(add(1))
    world.unreachable = None
    await world.settle()
    assert await world.committer.submit(add(1)) == [2]


async def test_a_state_that_memory_drops_between_load_and_decide_is_still_shown() -> None:
    world = await make_world()
    await world.committer.submit(add(5))
    dropped = asyncio.Event()

    async def load(view: View) -> None:
        await load_count(view)
        assert view.state(COUNT) is not None
        world.committer.states.clear()  # as reads of many other things would do
        dropped.set()

    step = Step(add(1).decide, load)
    assert await world.committer.submit(step) == [6]
    assert dropped.is_set()


async def test_opening_and_reopening_are_told() -> None:
    openings: list[int] = []
    world = await make_world(on_open=lambda: openings.append(1))
    world.faults.next("commit", Fault(after=[Lose()]))
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    assert len(openings) == 2


async def test_after_close_every_call_is_an_invalid_error() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    await world.committer.close()
    for call in (world.committer.submit(add(1)), shown_count(world)):
        with pytest.raises(InvalidError, match="closed"):
            await call


async def test_memory_of_states_is_bounded_by_number_and_by_size() -> None:
    from penstock.broker import memory

    class Large:
        memory_bytes = memory.STATES_BYTES_MAX // 4

    states = memory.States()
    for n in range(memory.STATES_MAX + 10):
        states.put(("n", n), n)
    assert len(states) == memory.STATES_MAX
    assert states.get(("n", 0)) is None
    for n in range(100):
        states.put(("large", n), Large())
    assert len(states) <= 4


async def test_a_refusal_waits_for_the_commit_that_it_may_rest_on() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall, Lose()]))
    written = asyncio.create_task(world.committer.submit(add(5)))
    refused = asyncio.create_task(world.committer.submit(add(0, error=InvalidError("too low"))))
    await stall.reached.wait()
    await world.settle()
    assert not refused.done(), "what it saw is not durable"
    stall.release()
    for task in (written, refused):
        with pytest.raises(UnavailableError):
            await task
    await world.settle()
    with pytest.raises(InvalidError, match="too low"):
        await world.committer.submit(add(0, error=InvalidError("too low")))


async def test_an_overtaken_committer_does_not_even_refuse() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.disk.fence()
    with pytest.raises(FencedError):
        await world.committer.submit(add(0, error=InvalidError("too low")))


async def test_a_handle_that_cannot_read_any_more_is_replaced_without_a_write() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.committer.states.clear()
    world.faults.next("get", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await shown_count(world)
    await world.settle()
    assert world.committer.health.reopened == 1
    assert await shown_count(world) == 1


async def test_what_a_read_could_not_do_keeps_the_cause_that_the_store_gave() -> None:
    """And is not its own cause: who follows causes to their end would never get there."""
    world = await make_world()

    async def fails(view: Shown) -> None:
        raise UnavailableError("no answer") from OSError("the wire was cut")

    with pytest.raises(UnavailableError) as raised:
        await world.committer.read(fails)
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("call", ["read", "write", "look"])
async def test_a_handle_whose_engine_ended_is_replaced_whoever_finds_it_so(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Damage to what was asked for is not that: everybody else goes on with the handle."""
    world = await make_world()
    await world.committer.submit(add(1))
    world.committer.states.clear()
    ended = True

    async def get(self: MemoryStore, key: bytes) -> bytes | None:
        raise StoppedError("panicked") if ended else CorruptError("a row is damaged")

    monkeypatch.setattr(MemoryStore, "get", get)
    look = Step(lambda view, now: Decision(), load_count)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: shown_count(world),
        "write": lambda: world.committer.submit(add(1)),
        "look": lambda: world.committer.submit(look),
    }
    for reopened in (1, 1):
        with pytest.raises(CorruptError) as raised:
            await calls[call]()
        assert type(raised.value) is CorruptError
        await world.settle()
        assert world.committer.health.reopened == reopened
        ended = False
    monkeypatch.undo()
    assert await shown_count(world) == 1


async def test_who_waits_while_a_read_ends_the_handle_hears_that_nothing_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the engine ended over is the read's business, not that of a write behind it."""
    world = await make_world()
    await world.committer.submit(add(1))
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    in_flight = asyncio.create_task(world.committer.submit(add(5)))
    await stall.reached.wait()
    behind = asyncio.create_task(world.committer.submit(add(7)))
    await world.settle()

    async def ended(view: Shown) -> None:
        raise StoppedError("panicked")

    with pytest.raises(CorruptError):
        await world.committer.read(ended)
    with pytest.raises(UnavailableError, match="panicked"):
        await behind
    stall.release()
    with pytest.raises(UnavailableError):
        await in_flight
    await world.settle()
    assert await world.committer.submit(add(1)) == [2]


async def test_openings_that_help_nothing_come_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes over which the engine ends each time they are read: who reads them after every opening,
    as upkeep does, must not have the location opened without a pause."""
    world = await make_world()

    async def get(self: MemoryStore, key: bytes) -> bytes | None:
        raise StoppedError("panicked")

    monkeypatch.setattr(MemoryStore, "get", get)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(world.clock, "sleep", sleep)

    async def lose() -> None:
        with pytest.raises(CorruptError):
            await world.committer.read(lambda view: view.store.get(KEY))
        await world.settle()

    for _ in range(len(BACKOFF_SECONDS) + 2):
        await lose()
    assert pauses == [*BACKOFF_SECONDS, BACKOFF_SECONDS[-1]]
    # A handle that lasted is opened again at once.
    world.clock.pass_ms(int(LASTING_SECONDS * 1000))
    await lose()
    assert len(pauses) == len(BACKOFF_SECONDS) + 1
    assert world.committer.health.reopened == len(BACKOFF_SECONDS) + 3
    # The next one is as new as it.
    await lose()
    assert pauses[len(BACKOFF_SECONDS) + 1 :] == [BACKOFF_SECONDS[0]]


async def test_who_finds_the_engine_ended_while_it_opens_is_told_one_of_the_six_kinds() -> None:
    world = World()
    world.unreachable = StoppedError("panicked")
    with pytest.raises(CorruptError) as raised:
        await world.committer.open()
    assert type(raised.value) is CorruptError
    world = await make_world()
    world.unreachable = StoppedError("panicked")
    world.faults.next("commit", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await world.committer.submit(add(1))
    await world.settle()
    with pytest.raises(CorruptError) as raised:
        await world.committer.submit(add(1))
    assert type(raised.value) is CorruptError


async def test_a_state_that_a_read_put_in_memory_meanwhile_is_shown_even_if_it_is_dropped() -> None:
    world = await make_world()

    async def load(view: View) -> None:
        world.committer.states.put(COUNT, 1000)  # a read that ran beside this load
        view.keep(COUNT, 1000)
        world.committer.states.clear()

    step = add(1)
    assert await world.committer.submit(Step(step.decide, load)) == [1]


async def test_a_commit_that_our_own_reopening_fenced_does_not_finish_us() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    hangs = asyncio.create_task(world.committer.submit(add(5)))
    await stall.reached.wait()
    world.committer.states.clear()
    world.faults.next("get", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await shown_count(world)  # the handle is lost to a read, and opened again
    await world.settle()
    assert world.committer.health.reopened == 1
    stall.release()
    with pytest.raises(UnavailableError):
        await hangs
    assert await world.committer.submit(add(1)) == [2]


async def test_a_store_whose_operations_cannot_be_read_is_not_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    abandoned: list[MemoryStore] = []
    abandon = MemoryStore.abandon

    async def counted(self: MemoryStore) -> None:
        abandoned.append(self)
        await abandon(self)

    monkeypatch.setattr(MemoryStore, "abandon", counted)
    world.faults.next("scan", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await world.committer.open()
    assert len(abandoned) == 1


async def test_what_a_read_of_a_lost_handle_loaded_never_enters_memory() -> None:
    world = await make_world()
    await world.committer.submit(add(1))
    world.committer.states.clear()
    read: asyncio.Future[Shown] = asyncio.get_running_loop().create_future()

    async def query(view: Shown) -> None:
        read.set_result(view)

    await world.committer.read(query)
    view = await read
    world.faults.next("get", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await shown_count(world)
    await world.settle()
    assert world.committer.health.reopened == 1
    view.keep(COUNT, 99)  # its answer comes late; no commit was counted meanwhile
    assert world.committer.states.get(COUNT) is None
    assert await shown_count(world) == 1


async def test_a_handle_that_was_lost_in_the_step_before_the_close_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await make_world()
    abandoned: list[MemoryStore] = []
    abandon = MemoryStore.abandon

    async def counted(self: MemoryStore) -> None:
        abandoned.append(self)
        await abandon(self)

    monkeypatch.setattr(MemoryStore, "abandon", counted)
    world.faults.next("get", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await shown_count(world)
    await world.committer.close()
    assert abandoned


async def test_a_close_that_is_cancelled_leaves_the_commit_under_way_alone() -> None:
    world = await make_world()
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(world.committer.submit(add(1)))
    await stall.reached.wait()
    second = asyncio.create_task(world.committer.submit(add(2)))
    closing = asyncio.create_task(world.committer.close())
    await world.settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    stall.release()
    assert (await first, await second) == ([1], [3])
    assert world.stored() == 3
    await world.committer.close()
    with pytest.raises(InvalidError, match="closed"):
        await world.committer.submit(add(1))


async def test_a_close_ends_though_somebody_goes_on_submitting() -> None:
    world = await make_world()
    refused = 0

    async def produce() -> None:
        nonlocal refused
        while not refused:
            try:
                await world.committer.submit(add(1))
            except InvalidError:
                refused += 1

    producer = asyncio.create_task(produce())
    await world.settle()
    async with asyncio.timeout(10):
        await world.committer.close()
        await producer
    assert refused == 1


async def test_replies_are_made_ready_while_the_commit_is_on_its_way_and_are_shown_after_it() -> (
    None
):
    world = await make_world()
    heard: list[object] = []
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    reply = world.committer.request(add(1), meanwhile=heard.append)
    refused = world.committer.request(add(1, error=ConflictError("no")), meanwhile=heard.append)
    await stall.reached.wait()
    assert heard == [[1]]
    await world.settle()
    assert not reply.done()
    assert world.committer.states.get(COUNT) == 1000
    stall.release()
    assert await reply == [1]
    with pytest.raises(ConflictError):
        await refused
    assert heard == [[1]]


async def test_what_was_made_ready_for_a_commit_that_is_lost_is_shown_to_nobody() -> None:
    world = await make_world()
    heard: list[object] = []
    world.faults.next("commit", Fault(before=[Lose()]))
    reply = world.committer.request(add(1), meanwhile=heard.append)
    with pytest.raises(UnavailableError):
        await reply
    assert heard == [[1]]
    assert world.stored() == 0
