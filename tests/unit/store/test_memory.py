"""The store in memory: its faults, its map, and what it must never show. The port's own contract is
tested in conformance/."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FencedError, InvalidError, NotFoundError, UnavailableError
from penstock.store import memory
from penstock.store.memory import (
    NO_FAULT,
    Call,
    Crash,
    Crashed,
    Delay,
    Fault,
    Faults,
    Fence,
    Lose,
    MemoryDisk,
    MemoryStore,
    Refuse,
    Rows,
    Stall,
)
from penstock.store.port import RefusedError, Row


class VirtualClock:
    """Time that passes only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self.asleep = asyncio.Event()

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def entropy(self, size: int) -> bytes:
        raise AssertionError("the memory store draws no entropy")

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.now + seconds, woken))
        self.asleep.set()
        await woken.wait()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for until, woken in self._sleepers:
            if until <= self.now:
                woken.set()


class World:
    """One disk, one clock, one script of faults, and handles over them."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = VirtualClock()
        self.faults = Faults()

    async def open(self) -> MemoryStore:
        return await MemoryStore.open(self.disk, clock=self.clock, faults=self.faults)


@pytest.fixture
def world() -> World:
    return World()


def batch(n: int) -> list[tuple[bytes, bytes | None]]:
    return [(b"k%d" % n, b"v%d" % n), (b"last", b"%d" % n)]


def rows_up_to(n: int) -> list[Row]:
    return [*((b"k%d" % i, b"v%d" % i) for i in range(1, n + 1)), (b"last", b"%d" % n)] if n else []


async def commit(store: MemoryStore, n: int) -> None:
    await store.commit(n, batch(n), time_ms=n, epoch=store.epoch)


async def rows_of(scan: AsyncIterator[list[Row]]) -> list[Row]:
    return [row async for rows in scan for row in rows]


async def everything(store: MemoryStore) -> list[Row]:
    return await rows_of(store.scan(b"", b"\xff"))


# Reads show durable commits only


async def test_a_staged_batch_is_invisible_until_it_is_durable(world: World) -> None:
    store = await world.open()
    await commit(store, 1)
    staged, durable = Stall(), Stall()
    world.faults.next("commit", Fault(before=[staged], after=[durable]))
    task = asyncio.create_task(commit(store, 2))

    await staged.reached.wait()
    assert await store.get(b"last") == b"1"
    assert await store.get(b"k2") is None
    assert await store.floor(b"k9", low=b"k") == (b"k1", b"v1")
    assert await everything(store) == rows_up_to(1)
    assert store.head().n == world.disk.head.n == 1

    staged.release()
    await durable.reached.wait()
    assert not task.done()
    assert await everything(store) == rows_up_to(2)
    assert store.head().n == world.disk.head.n == 2

    durable.release()
    await task


async def test_a_scan_shows_the_state_of_its_first_list(world: World) -> None:
    store = await world.open()
    await commit(store, 1)
    scan = store.scan(b"", b"\xff", batch_rows=1)
    await commit(store, 2)
    first = await anext(scan)
    await store.commit(
        3, [(b"k1", b"x"), (b"k2", None), (b"k15", b"y")], time_ms=3, epoch=store.epoch
    )
    assert first + await rows_of(scan) == rows_up_to(2)
    assert await everything(store) == [(b"k1", b"x"), (b"k15", b"y"), (b"last", b"2")]


# Latency


@pytest.mark.parametrize(
    ("fault", "n_meanwhile"),
    [(Fault(before=[Delay(5.0)]), 0), (Fault(after=[Delay(5.0)]), 1)],
)
async def test_a_delay_passes_on_the_given_clock(
    world: World, fault: Fault, n_meanwhile: int
) -> None:
    store = await world.open()
    world.faults.next("commit", fault)
    task = asyncio.create_task(commit(store, 1))
    await world.clock.asleep.wait()
    world.clock.advance(4.9)
    await asyncio.sleep(0)
    assert not task.done()
    assert world.disk.head.n == n_meanwhile
    world.clock.advance(0.2)
    await task
    assert await everything(store) == rows_up_to(1)


# Refused: nothing changed, and the handle goes on


async def test_a_refused_commit_changes_nothing_and_can_be_tried_again(world: World) -> None:
    store = await world.open()
    await commit(store, 1)
    head, rows = world.disk.head, world.disk.rows
    world.faults.next("commit", *[Fault(before=[Refuse()])] * 2)
    for _ in range(2):
        with pytest.raises(RefusedError):
            await commit(store, 2)
        assert store.head() == world.disk.head == head
        assert world.disk.rows is rows
    await commit(store, 2)
    assert await everything(store) == rows_up_to(2)


def test_a_fault_cannot_refuse_what_is_already_durable() -> None:
    with pytest.raises(AssertionError):
        Fault(after=[Refuse()])


# Unknown outcomes


@pytest.mark.parametrize(
    ("fault", "applied"), [(Fault(before=[Lose()]), False), (Fault(after=[Lose()]), True)]
)
async def test_after_a_lost_answer_the_handle_is_useless_and_the_disk_is_as_told(
    world: World, fault: Fault, applied: bool
) -> None:
    store = await world.open()
    await commit(store, 1)
    world.faults.next("commit", fault)
    with pytest.raises(UnavailableError) as caught:
        await commit(store, 2)
    assert not isinstance(caught.value, RefusedError)

    await check_every_read_raises(store, UnavailableError)
    with pytest.raises(AssertionError):
        await commit(store, store.head().n + 1)
    await store.abandon()

    again = await world.open()
    assert again.head().n == (2 if applied else 1)
    assert await everything(again) == rows_up_to(2 if applied else 1)
    await commit(again, again.head().n + 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_cancelled_commit_has_an_unknown_outcome(world: World, when: str) -> None:
    store = await world.open()
    stall = Stall()
    world.faults.next("commit", Fault(**{when: [stall]}))
    task = asyncio.create_task(commit(store, 1))
    await stall.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await check_every_read_raises(store, UnavailableError)
    again = await world.open()
    assert await everything(again) == rows_up_to(0 if when == "before" else 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_handle_was_abandoned_meanwhile_is_not_acknowledged(
    world: World, when: str
) -> None:
    store = await world.open()
    stall = Stall()
    world.faults.next("commit", Fault(**{when: [stall]}))
    task = asyncio.create_task(commit(store, 1))
    await stall.reached.wait()
    await store.abandon()
    stall.release()
    with pytest.raises(UnavailableError):
        await task
    assert world.disk.head.n == (0 if when == "before" else 1)


# Fences


async def test_a_fence_before_durability_loses_the_batch(world: World) -> None:
    store = await world.open()
    await commit(store, 1)
    world.faults.next("commit", Fault(before=[Fence()]))
    with pytest.raises(FencedError):
        await commit(store, 2)
    assert world.disk.head.n == 1
    assert await everything(await world.open()) == rows_up_to(1)


async def test_a_fence_after_durability_keeps_the_batch_and_acknowledges_nothing(
    world: World,
) -> None:
    store = await world.open()
    await commit(store, 1)
    world.faults.next("commit", Fault(after=[Fence()]))
    with pytest.raises(FencedError):
        await commit(store, 2)
    assert await everything(await world.open()) == rows_up_to(2)


async def test_a_stalled_commit_that_wakes_up_behind_a_new_owner_writes_nothing(
    world: World,
) -> None:
    old = await world.open()
    await commit(old, 1)
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    task = asyncio.create_task(old.commit(2, [(b"old", b"x")], time_ms=2, epoch=old.epoch))
    await stall.reached.wait()
    new = await world.open()
    await commit(new, 2)
    stall.release()
    with pytest.raises(FencedError):
        await task
    assert world.disk.head == new.head()
    assert await everything(new) == rows_up_to(2)


async def test_a_fenced_handle_reads_the_old_state_until_it_verifies(world: World) -> None:
    old = await world.open()
    await commit(old, 1)
    new = await world.open()
    await commit(new, 2)
    assert await old.get(b"last") == b"1"
    assert await everything(old) == rows_up_to(1)
    assert old.head().n == 1
    with pytest.raises(FencedError):
        await old.verify()
    await check_every_read_raises(old, FencedError)
    await old.close()
    await new.verify()


async def test_a_fence_that_comes_during_verify_is_noticed(world: World) -> None:
    store = await world.open()
    await store.verify()
    world.faults.next("verify", Fault(before=[Fence()]))
    with pytest.raises(FencedError):
        await store.verify()


# Crashes


@pytest.mark.parametrize(
    ("fault", "survived"), [(Fault(before=[Crash()]), 1), (Fault(after=[Crash()]), 2)]
)
async def test_a_crash_loses_what_is_staged_and_keeps_what_is_durable(
    world: World, fault: Fault, survived: int
) -> None:
    store = await world.open()
    await commit(store, 1)
    world.faults.next("commit", fault)
    with pytest.raises(Crashed):
        await commit(store, 2)
    await check_every_read_raises(store, Crashed)
    with pytest.raises(Crashed):
        await commit(store, survived + 1)
    with pytest.raises(Crashed):
        await store.close()
    await store.abandon()
    await check_every_read_raises(store, Crashed)

    again = await world.open()
    assert again.head().n == survived
    assert await everything(again) == rows_up_to(survived)


async def test_a_crash_while_a_commit_hangs_ends_it_whatever_is_released_later(
    world: World,
) -> None:
    store = await world.open()
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    task = asyncio.create_task(commit(store, 1))
    await stall.reached.wait()
    store.crash()
    stall.release()
    with pytest.raises(Crashed):
        await task
    assert world.disk.head.n == 0
    assert await everything(await world.open()) == []


def test_no_handler_of_errors_survives_a_crash() -> None:
    assert not issubclass(Crashed, Exception)


# Reads and openings fail too

_reads: dict[str, Callable[[MemoryStore], Awaitable[object]]] = {
    "get": lambda store: store.get(b"k1"),
    "floor": lambda store: store.floor(b"k1", low=b""),
    "scan": everything,
    "verify": lambda store: store.verify(),
}


async def check_every_read_raises(store: MemoryStore, expected: type[BaseException]) -> None:
    for call in _reads.values():
        with pytest.raises(expected):
            await call(store)


@pytest.mark.parametrize("action", [Refuse(), Lose()])
@pytest.mark.parametrize("read", _reads)
async def test_a_read_that_failed_can_be_tried_again(
    world: World, read: str, action: Refuse | Lose
) -> None:
    store = await world.open()
    await commit(store, 1)
    call = _reads[read]
    expected = await call(store)
    world.faults.next(read, Fault(before=[action]))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError) as caught:
        await call(store)
    assert not isinstance(caught.value, RefusedError)
    assert await call(store) == expected


@pytest.mark.parametrize("read", _reads)
async def test_a_read_that_hangs_does_not_answer_for_a_handle_that_is_gone(
    world: World, read: str
) -> None:
    for expected in (InvalidError, Crashed):
        store = await world.open()
        stall = Stall()
        world.faults.next(read, Fault(after=[stall]))  # type: ignore[arg-type]
        task = asyncio.ensure_future(_reads[read](store))
        await stall.reached.wait()
        if expected is Crashed:
            store.crash()
        else:
            await store.close()
        stall.release()
        with pytest.raises(expected):
            await task


async def test_a_scan_can_fail_between_two_lists(world: World) -> None:
    store = await world.open()
    await commit(store, 1)
    scan = store.scan(b"", b"\xff", batch_rows=1)
    await anext(scan)
    world.faults.next("scan", Fault(before=[Lose()]))
    with pytest.raises(UnavailableError):
        await anext(scan)


@pytest.mark.parametrize(
    ("fault", "epochs"), [(Fault(before=[Lose()]), 0), (Fault(after=[Lose()]), 1)]
)
async def test_an_opening_can_fail_before_or_after_it_took_the_epoch(
    world: World, fault: Fault, epochs: int
) -> None:
    first = await world.open()
    world.faults.next("open", fault)
    with pytest.raises(UnavailableError):
        await world.open()
    assert world.disk.epoch == first.epoch + epochs


# Misuse


async def test_two_commits_at_once_are_a_bug(world: World) -> None:
    store = await world.open()
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall]))
    task = asyncio.create_task(commit(store, 1))
    await stall.reached.wait()
    with pytest.raises(AssertionError):
        await commit(store, 1)
    with pytest.raises(AssertionError):
        await store.close()
    stall.release()
    await task
    assert await everything(store) == rows_up_to(1)


@pytest.mark.parametrize("writes", [[(b"a", b"1"), (b"a", None)], [(b"", b"1")]])
async def test_a_batch_with_a_repeated_or_empty_key_is_a_bug(
    world: World, writes: list[tuple[bytes, bytes | None]]
) -> None:
    store = await world.open()
    with pytest.raises(AssertionError):
        await store.commit(1, writes, time_ms=1, epoch=store.epoch)
    assert world.disk.head.n == 0


# Checkpoints


async def test_a_checkpoint_ends_with_its_lifetime_unless_it_is_renewed(world: World) -> None:
    store = await world.open()
    renewed = await store.checkpoint(lifetime_ms=1000)
    expired = await store.checkpoint(lifetime_ms=1000)
    world.clock.advance(0.9)
    await store.renew_checkpoint(renewed, lifetime_ms=1000)
    world.clock.advance(0.9)
    with pytest.raises(NotFoundError):
        await store.renew_checkpoint(expired, lifetime_ms=1000)
    assert list(world.disk.checkpoints) == [renewed]
    await store.drop_checkpoint(renewed)
    assert world.disk.checkpoints == {}


@pytest.mark.parametrize("lifetime_ms", [0, -1])
async def test_a_checkpoint_without_a_lifetime_is_invalid(world: World, lifetime_ms: int) -> None:
    store = await world.open()
    with pytest.raises(InvalidError):
        await store.checkpoint(lifetime_ms=lifetime_ms)
    checkpoint_id = await store.checkpoint(lifetime_ms=1000)
    with pytest.raises(InvalidError):
        await store.renew_checkpoint(checkpoint_id, lifetime_ms=lifetime_ms)
    assert list(world.disk.checkpoints) == [checkpoint_id]


async def test_a_fenced_handle_makes_no_checkpoint(world: World) -> None:
    store = await world.open()
    await world.open()
    with pytest.raises(FencedError):
        await store.checkpoint(lifetime_ms=1000)
    assert world.disk.checkpoints == {}


# Deciding what goes wrong


async def test_the_decision_is_shown_every_call_in_order() -> None:
    calls: list[Call] = []

    def decide(call: Call) -> Fault:
        calls.append(call)
        return NO_FAULT

    disk, faults = MemoryDisk(), Faults(decide)
    store = await MemoryStore.open(disk, clock=VirtualClock(), faults=faults)
    await commit(store, 1)
    await store.get(b"k1")
    await commit(store, 2)
    await store.verify()
    assert calls == [
        Call(operation="open", nth=1, epoch=0, n=0),
        Call(operation="commit", nth=1, epoch=1, n=1),
        Call(operation="get", nth=1, epoch=1, n=1),
        Call(operation="commit", nth=2, epoch=1, n=2),
        Call(operation="verify", nth=1, epoch=1, n=2),
    ]


async def test_a_script_goes_before_the_decision_and_calls_keep_their_numbers() -> None:
    faults = Faults(lambda call: Fault(before=[Refuse()]) if call.nth == 3 else NO_FAULT)
    faults.next("commit", NO_FAULT, Fault(before=[Refuse()]))
    store = await MemoryStore.open(MemoryDisk(), clock=VirtualClock(), faults=faults)
    await commit(store, 1)
    for _ in range(2):
        with pytest.raises(RefusedError):
            await commit(store, 2)
    await commit(store, 2)


async def _drive(seed: int) -> tuple[list[str], MemoryDisk]:
    """A writer that commits, and opens again when it must, in a world that a seed makes worse."""
    random = Random(seed)
    menu = [
        NO_FAULT,
        Fault(before=[Refuse()]),
        *(Fault(before=[action]) for action in (Lose(), Fence(), Crash())),
        *(Fault(after=[action]) for action in (Lose(), Fence(), Crash())),
    ]

    def decide(call: Call) -> Fault:
        return random.choice(menu) if call.operation == "commit" else NO_FAULT

    disk, clock, faults = MemoryDisk(), VirtualClock(), Faults(decide)
    store = await MemoryStore.open(disk, clock=clock, faults=faults)
    story: list[str] = []
    acknowledged = 0
    for _ in range(60):
        n = store.head().n + 1
        try:
            await commit(store, n)
            acknowledged, outcome = n, "acknowledged"
        except RefusedError:
            outcome = "refused"
        except (UnavailableError, FencedError, Crashed) as error:
            outcome = type(error).__name__
            await store.abandon()
            store = await MemoryStore.open(disk, clock=clock, faults=faults)
        story.append(f"{n} {outcome}")
        # Nothing acknowledged is lost, nothing is torn, and at most one unknown commit is ahead.
        assert acknowledged <= store.head().n <= n
        assert sorted(await everything(store)) == sorted(rows_up_to(store.head().n))
    return story, disk


async def test_a_seed_replays_exactly_and_loses_nothing() -> None:
    stories = set()
    for seed in range(20):
        story, disk = await _drive(seed)
        again, disk_again = await _drive(seed)
        assert story == again
        assert disk.head == disk_again.head
        stories.add(tuple(story))
    assert len(stories) == 20


# The map

_keys = st.binary(max_size=2)
_histories = st.lists(
    st.dictionaries(_keys, st.none() | st.binary(max_size=2), max_size=12), max_size=8
)


@settings(max_examples=150, deadline=None)
@given(history=_histories, low=_keys, high=_keys)
def test_rows_read_like_a_sorted_dict_and_old_versions_never_change(
    history: list[dict[bytes, bytes | None]], low: bytes, high: bytes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small chunks, so that short histories split and empty them.
        patch.setattr(memory, "CHUNK_ROWS_MAX", 3)
        rows, model = Rows(), dict[bytes, bytes]()
        versions = [(rows, list(model.items()))]
        for written in history:
            rows = rows.written(list(written.items()))
            for key, value in written.items():
                model.pop(key, None)
                if value is not None:
                    model[key] = value
            versions.append((rows, sorted(model.items())))
    for version, expected in versions:
        assert list(version.range(b"", b"\xff" * 3, reverse=False)) == expected
        inside = [row for row in expected if low <= row[0] < high]
        assert list(version.range(low, high, reverse=False)) == inside
        assert list(version.range(low, high, reverse=True)) == inside[::-1]
        below = [row for row in expected if row[0] <= high]
        assert version.floor(high) == (below[-1] if below else None)
        assert version.get(low) == dict(expected).get(low)


def test_rows_of_many_chunks_stay_in_order() -> None:
    numbers = list(range(5000))
    Random(1).shuffle(numbers)
    rows = Rows().written([(b"%05d" % number, b"x") for number in numbers])
    assert max(len(keys) for keys, _ in rows._chunks) <= memory.CHUNK_ROWS_MAX
    rows = rows.written([(b"%05d" % number, None) for number in numbers if number % 7])
    found = [key for key, _ in rows.range(b"", b"\xff", reverse=False)]
    assert found == [b"%05d" % number for number in range(0, 5000, 7)]
