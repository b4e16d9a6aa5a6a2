"""Upkeep behind the requests: merging, collecting and expiring, on its own and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker import upkeep
from penstock.broker.broker import Broker
from penstock.broker.commit import Committer, Shown
from penstock.broker.upkeep import EXPIRE_MS, RETRY_MS
from penstock.codec.keys import KeyType, nodes_prefix, prefix, prefix_end, staging_key
from penstock.errors import FencedError, InvalidError, PenstockError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.check import check_log
from penstock.log.decision import Decision, StateKey, Step, Timer
from penstock.store.memory import NO_FAULT, Fault, MemoryStore, Refuse
from unit.broker.driver import BrokerWorld, upkeep_of

NAME = stream_name("s")


async def rows_of(broker: Broker, low: bytes) -> int:
    async def query(view: Shown) -> int:
        return sum([len(rows) async for rows in view.store.scan(low, prefix_end(low))])

    return await broker.committer.read(query)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the background without guessing how long it takes; the test's timeout is the end."""
    while not await condition():
        await asyncio.sleep(0.005)


async def open_broker(location: str) -> Broker:
    return await Broker.open(location, deadline=30)


async def findings(broker: Broker) -> list[object]:
    return list(await broker.committer.read(lambda view: check_log(view.store)))


@pytest.mark.parametrize("location", ["memory://upkeep", "folder"])
async def test_small_writes_become_few_nodes_and_read_the_same(
    location: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if location == "folder":
        location = str(tmp_path_factory.mktemp("upkeep"))
    broker = await open_broker(location)
    for n in range(150):
        await broker.streams.write(NAME, build_bodies([b"%d.%d" % (n, i) for i in range(20)]))

    async def merged() -> bool:
        return await rows_of(broker, nodes_prefix(1)) <= 3

    await until(merged)
    found = (await broker.streams.read(NAME, 0, 5000)).messages
    assert [m and m.data for m in found] == [
        b"%d.%d" % (n, i) for n in range(150) for i in range(20)
    ]
    assert await findings(broker) == []
    await broker.close()


async def test_what_was_closed_before_a_restart_is_merged_after_it() -> None:
    broker = await open_broker("memory://upkeep-restart")
    await upkeep_of(broker).stop()
    for n in range(60):
        await broker.streams.write(NAME, build_bodies([b"%d" % n] * 50))
    assert await rows_of(broker, nodes_prefix(1)) == 60
    await broker.close()
    broker = await open_broker("memory://upkeep-restart")

    async def merged() -> bool:
        return await rows_of(broker, nodes_prefix(1)) <= 3

    await until(merged)
    assert len((await broker.streams.read(NAME, 0, 5000)).messages) == 3000
    await broker.close()


async def test_evicted_rows_are_collected() -> None:
    broker = await open_broker("memory://upkeep-evict")
    for _ in range(5):
        await broker.streams.write(NAME, build_bodies([b"x" * 100] * 1000))
    assert await broker.streams.evict(NAME, keep=10) == 4990

    async def collected() -> bool:
        return await rows_of(broker, nodes_prefix(1)) == 1

    await until(collected)
    assert await rows_of(broker, prefix(KeyType.GARBAGE)) == 0
    assert (await broker.streams.info(NAME)).length == 10
    await broker.close()


async def test_an_idempotency_row_that_expired_is_removed_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await open_broker("memory://upkeep-once")
    step = append_step(NAME, build_bodies([b"x"]), producer=b"p", sequence=1, once_ms=0)
    await broker.committer.submit(step)
    assert await rows_of(broker, prefix(KeyType.ONCE)) == 1
    await broker.close()
    broker = await open_broker("memory://upkeep-once")

    async def expired() -> bool:
        return await rows_of(broker, prefix(KeyType.ONCE)) == 0

    await until(expired)
    await broker.close()


# Failures, periods and sizes, on a clock that the test sets.


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> BrokerWorld:
    return BrokerWorld(monkeypatch)


async def close_runs(broker: Broker, count: int) -> None:
    """Each of them is two fragments that wait for the merge."""
    for n in range(2 * count):
        await broker.streams.write(NAME, build_bodies([b"%d" % n] * 499))
    await broker.streams.write(NAME, build_bodies([b"sealed"] * 1000))


async def test_a_chore_that_the_store_hindered_is_tried_again_a_while_later(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    for _ in range(2):
        await broker.streams.write(NAME, build_bodies([b"x"] * 400))
    await world.settle()
    # The first commit is the append that closes the run.
    world.faults.next("commit", NO_FAULT, Fault(before=[Refuse()]))
    await broker.streams.write(NAME, build_bodies([b"x"] * 400))
    await world.pass_ms(broker, RETRY_MS - 1)
    assert await rows_of(broker, nodes_prefix(1)) == 3, "no hurry while the store is in trouble"
    await world.pass_ms(broker, 1)
    assert await rows_of(broker, nodes_prefix(1)) == 2
    assert await findings(broker) == []
    await broker.close()


async def test_expired_idempotency_rows_are_looked_for_again_and_again(world: BrokerWorld) -> None:
    broker = await world.open()
    for sequence in range(3):
        producer = b"p%d" % sequence
        await broker.committer.submit(
            append_step(NAME, build_bodies([b"x"]), producer=producer, sequence=0, once_ms=1)
        )
        await world.pass_ms(broker, EXPIRE_MS - 1)
        assert await rows_of(broker, prefix(KeyType.ONCE)) == 1
        await world.pass_ms(broker, 1)
        assert await rows_of(broker, prefix(KeyType.ONCE)) == 0
    await broker.close()


async def test_a_look_for_expired_rows_that_failed_does_not_wait_for_the_next_period(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    await broker.committer.submit(
        append_step(NAME, build_bodies([b"x"]), producer=b"p", sequence=0, once_ms=1)
    )
    world.faults.next("commit", Fault(before=[Refuse()]))
    await world.pass_ms(broker, EXPIRE_MS)
    assert await rows_of(broker, prefix(KeyType.ONCE)) == 1
    await world.pass_ms(broker, RETRY_MS)
    assert await rows_of(broker, prefix(KeyType.ONCE)) == 0
    await broker.close()


@pytest.mark.parametrize(("merged_runs", "commits"), [(None, 1), (2, 3)])
async def test_runs_that_wait_are_merged_several_at_a_time_in_one_commit(
    world: BrokerWorld,
    monkeypatch: pytest.MonkeyPatch,
    merged_runs: int | None,
    commits: int,
) -> None:
    if merged_runs is not None:
        monkeypatch.setattr(upkeep, "MERGED_RUNS", merged_runs)
    broker = await world.open(upkeep=False)
    await close_runs(broker, 5)
    before = (await broker.streams.read(NAME, 0, 10_000)).messages
    assert await rows_of(broker, nodes_prefix(1)) == 11
    head = world.disk.head.n
    upkeep_of(broker).start(broker.committer)
    await world.settle()
    assert await rows_of(broker, nodes_prefix(1)) == 6
    assert world.disk.head.n - head == commits
    assert (await broker.streams.read(NAME, 0, 10_000)).messages == before
    assert await findings(broker) == []
    await broker.close()


async def test_a_bug_in_one_commit_of_the_upkeep_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = BrokerWorld(monkeypatch)
    broker = await world.open()
    commit, commits = MemoryStore.commit, 0

    async def broken(self: MemoryStore, *args: Any, **options: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 4:
            raise ZeroDivisionError
        await commit(self, *args, **options)

    monkeypatch.setattr(MemoryStore, "commit", broken)
    for _ in range(3):
        await broker.streams.write(NAME, build_bodies([b"x"] * 400))
    await world.settle()
    await world.pass_ms(broker, 5000)
    assert "upkeep failed" in caplog.text
    assert await rows_of(broker, nodes_prefix(1)) == 2
    await broker.close()


async def test_an_error_that_a_chore_makes_itself_does_not_end_the_upkeep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the kind that a closed location ends it with."""
    world = BrokerWorld(monkeypatch)
    broker = await world.open()
    raised: list[PenstockError] = [InvalidError("too many of them")]

    async def chore(committer: Committer, what: StateKey) -> None:
        if what[1] is not None and raised:
            raise raised.pop()

    upkeep_of(broker).add({"odd": chore})
    upkeep_of(broker).remind([Timer(0, ("odd", 1))])
    await world.settle()
    assert raised == []
    assert "too many of them" in caplog.text
    for _ in range(3):
        await broker.streams.write(NAME, build_bodies([b"x"] * 400))
    await world.settle()
    assert await rows_of(broker, nodes_prefix(1)) == 2
    await broker.close()


async def test_a_location_that_is_lost_ends_the_upkeep(world: BrokerWorld) -> None:
    broker = await world.open()
    world.disk.fence()
    with pytest.raises(FencedError):
        await broker.committer.verify()
    upkeep_of(broker).look_again()
    await world.settle()
    task = upkeep_of(broker)._task
    assert task is not None
    assert task.done()
    await broker.close()


async def test_a_staging_that_cannot_be_read_keeps_nobody_from_merging(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await world.open()
    await upkeep_of(broker).stop()
    await close_runs(broker, 1)
    damaged = Decision(writes={staging_key(7): b"damaged"})
    await broker.committer.submit(Step(lambda view, now: damaged))
    await broker.close()
    broker = await world.open()
    await world.settle()
    assert await rows_of(broker, nodes_prefix(1)) == 2
    assert "staging row 7" in caplog.text
    await broker.close()
