"""The broker's wiring: the bound on states, and the readers' cache behind every commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.broker import memory
from penstock.broker.broker import Broker
from penstock.broker.commit import Shown
from penstock.errors import UnavailableError
from penstock.log.batch import build_bodies
from penstock.log.catalogue import LogName, open_target, stream_name
from penstock.log.check import check_log
from penstock.log.decision import Step
from penstock.log.holes import plan_holes
from penstock.store.memory import Fault, Lose, Stall
from unit.broker.driver import BrokerWorld

S = stream_name("s")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> BrokerWorld:
    return BrokerWorld(monkeypatch)


async def data_of(broker: Broker, name: LogName) -> list[bytes | None]:
    found = (await broker.streams.read(name, 0, 10_000)).messages
    return [None if message is None else message.data for message in found]


async def plan_punch(broker: Broker, offsets: Sequence[int]) -> Step:
    async def query(view: Shown) -> Step:
        state = await open_target(view, S)
        assert state is not None
        step, _ = await plan_holes(view.store, state, offsets)
        assert step is not None
        return step

    return await broker.committer.read(query)


# Memory is bounded, and nobody notices.


@pytest.mark.parametrize(
    ("limit", "value", "data_bytes"),
    # Two are fewer than one append needs: the name, the ids and the log.
    [("STATES_MAX", 2, 10), ("STATES_BYTES_MAX", 100_000, 10_000)],
)
async def test_many_logs_stay_right_while_memory_holds_a_few_of_their_states(
    world: BrokerWorld,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    data_bytes: int,
) -> None:
    monkeypatch.setattr(memory, limit, value)
    broker = await world.open()
    states = broker.committer.states
    names = [stream_name(f"log-{i}") for i in range(12)]
    sent: dict[LogName, list[bytes | None]] = {name: [] for name in names}
    dropped = 0

    async def append(name: LogName) -> None:
        n = len(sent[name])
        data = b"%d " % n + name.name.ljust(data_bytes)
        sent[name].append(data)
        assert await broker.streams.write(name, build_bodies([data])) == range(n, n + 1), (
            "no offset twice"
        )

    for _ in range(4):
        await asyncio.gather(*map(append, names))  # many are decided in one tick
        for name in names:
            await append(name)  # its state may be in memory, and is replaced then
            assert await data_of(broker, name) == sent[name]
            held = list(states._states.values())
            assert len(held) <= memory.STATES_MAX
            held_bytes = sum(getattr(state, "memory_bytes", 0) for state in held)
            assert held_bytes <= memory.STATES_BYTES_MAX
            assert held_bytes == states._bytes, "what is counted is what is there"
        dropped += len(names) - sum(key[0] == "log" for key in states._states)
    assert dropped, "the bound was met"
    for name in names:
        assert await broker.streams.evict(name, up_to=3) == 4
    await world.settle()
    for name in names:
        assert await data_of(broker, name) == [None] * 4 + sent[name][4:]
    assert list(await broker.committer.read(lambda view: check_log(view.store))) == []
    await broker.close()


# The cache shows durable commits, and nothing older.


async def cached(broker: Broker) -> None:
    """Entries 0 to 9 in one node, which is in the cache."""
    await broker.streams.write(S, build_bodies([b"%d" % i for i in range(10)]))
    assert (await data_of(broker, S))[3] == b"3"
    assert broker.streams._cache.find(1, 3) is not None


async def test_a_hole_punched_into_a_cached_node_is_seen_by_the_next_read(
    world: BrokerWorld,
) -> None:
    broker = await world.open(upkeep=False)
    await cached(broker)
    assert await broker.committer.submit(await plan_punch(broker, [3])) == [()]
    assert (await data_of(broker, S))[2:5] == [b"2", None, b"4"]
    await broker.close()


async def test_a_read_that_met_a_commit_does_not_cache_what_was_before_it(
    world: BrokerWorld,
) -> None:
    broker = await world.open(upkeep=False)
    await broker.streams.write(S, build_bodies([b"%d" % i for i in range(10)]))
    step = await plan_punch(broker, [3])
    stall = Stall()
    world.faults.next("floor", Fault(after=[stall]))
    reading = asyncio.create_task(data_of(broker, S))
    await stall.reached.wait()
    await broker.committer.submit(step)
    stall.release()
    assert (await reading)[3] in (b"3", None)
    assert (await data_of(broker, S))[3] is None
    await broker.close()


@pytest.mark.parametrize(
    ("fault", "shown"), [(Fault(before=[Lose()]), b"3"), (Fault(after=[Lose()]), None)]
)
async def test_after_an_unknown_outcome_a_cached_node_is_read_again(
    world: BrokerWorld, fault: Fault, shown: bytes | None
) -> None:
    broker = await world.open(upkeep=False)
    await cached(broker)
    step = await plan_punch(broker, [3])
    world.faults.next("commit", fault)
    with pytest.raises(UnavailableError):
        await broker.committer.submit(step)
    await world.settle()
    assert world.openings == 2
    assert (await data_of(broker, S))[2:5] == [b"2", shown, b"4"]
    assert await broker.streams.write(S, build_bodies([b"more"])) == range(10, 11)
    await broker.close()


@pytest.mark.parametrize("reverse", [False, True])
async def test_an_answer_is_bounded_in_bytes_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    world = BrokerWorld(monkeypatch)
    broker = await world.open()
    monkeypatch.setattr("penstock.broker.streams.READ_BYTES_MAX", 50_000)
    for n in range(20):
        await broker.streams.write(
            S, build_bodies([b"%d" % (100 * n + i) * 50 for i in range(100)])
        )
    found: list[int] = []
    answers = 0
    at = 1999 if reverse else 0
    while 0 <= at < 2000:
        messages = (await broker.streams.read(S, at, 5000, reverse=reverse)).messages
        found += [message.offset for message in messages if message is not None]
        answers += 1
        at = found[-1] + (-1 if reverse else 1)
    assert found == (list(range(2000))[::-1] if reverse else list(range(2000)))
    assert answers > 1
    await broker.close()


async def test_a_look_of_a_group_that_asks_for_nothing_leaves_nothing_in_memory(
    world: BrokerWorld,
) -> None:
    """It does not wait, whatever it says: nobody would come and forget what it noted to wait."""
    broker = await world.open(upkeep=False)
    await broker.streams.write(S, build_bodies([b"x"]))
    for n in range(3):
        found = await broker.streams.read_group(S, b"g%d" % n, 0, block_ms=1)
        assert (found.info.last, found.messages) == (0, [])
    assert broker.streams._due_ms == {}
    assert broker.streams._names == {}
    await broker.close()
