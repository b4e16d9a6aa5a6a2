"""For every instant at which a processor may die, and every instant after that: what it wrote is
what a run without a death writes, and each hash is there once.

Goal         exactly once, as the specification promises it, for every kind of processor.
Method       A life is counted in points: before and after everything that is asked of the broker,
             each staging, and the function. A world is run to its end once; then again with a
             death at each of its points, and from what each of those left on the disk, once more
             with a death at each point of the recovery and of what follows. Nothing but rows
             survives a death.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.errors import UnavailableError
from penstock.graph.machine import Ask, Idle, Outcome, Run, processor_steps
from penstock.graph.requests import Fenced, Graphs, ShowGraphs, Start, Topology
from penstock.store.memory import NO_FAULT, Fault, Faults, Lose, MemoryDisk, MemoryStore
from unit.broker.driver import StepClock
from unit.graph.driver import (
    Died,
    Entry,
    GraphDriver,
    copied,
    function_of,
    topology,
    with_inputs,
)

STREAMS = ("out", "side", "errors")
Written = dict[str, list[Entry]]


class Life:
    """One run of a processor, from a disk to its end or to its death."""

    def __init__(self, declared: Topology, *, staged: bool = False) -> None:
        self.declared = declared
        self.staged = staged

    async def live(
        self, disk: MemoryDisk, effects: list[tuple[str, bytes]], dies_at: int = 0
    ) -> tuple[GraphDriver, bool]:
        driver = await GraphDriver.on(copied(disk))
        driver.effects = list(effects)
        driver.dies_at = dies_at
        try:
            await driver.run(self.declared, function_of(self.declared.kind), staged=self.staged)
        except Died:
            driver.forget()
            return driver, True
        return driver, False


async def deaths(
    life: Life, disk: MemoryDisk, effects: list[tuple[str, bytes]], depth: int
) -> AsyncIterator[GraphDriver]:
    """Every end of every world with up to `depth` deaths from here on."""
    end, died = await life.live(disk, effects)
    assert not died
    yield end
    if not depth:
        return
    for point in range(1, end.points + 1):
        dead, died = await life.live(disk, effects, point)
        assert died
        async for each in deaths(life, dead.disk, dead.effects, depth - 1):
            yield each


async def written(driver: GraphDriver) -> Written:
    return {name: await driver.entries(name) for name in STREAMS}


def once_each(found: Written) -> None:
    for name, entries in found.items():
        assert all(meta is not None and len(meta) == 16 for _, _, meta in entries)
        assert len({meta for _, _, meta in entries}) == len(entries), name


def in_order(found: Written) -> dict[str, list[Entry]]:
    """By stream and input: below an alts, timing decides how inputs are mixed."""
    return {
        f"{name} of {side}": [entry for entry in entries if entry[1].startswith(side.encode())]
        for name, entries in found.items()
        for side in ("l", "r", "no", "x")
    }


@pytest.mark.parametrize("staged", [False, True], ids=["with the commit", "staged"])
@pytest.mark.parametrize("kind", ["source", "pipe", "join", "alts", "fork"])
async def test_whenever_it_dies_the_output_is_that_of_a_run_without_a_death(
    kind: str, staged: bool
) -> None:
    life = Life(topology(kind), staged=staged)
    disk = (await with_inputs(left=4, right=3)).disk
    clean, _ = await life.live(disk, [])
    expected = await written(clean)
    assert expected["out"]
    once_each(expected)
    worlds = 0
    async for end in deaths(life, disk, [], 1 if staged else 2):
        found = await written(end)
        if kind == "alts":
            assert in_order(found) == in_order(expected)
            once_each(found)
        else:
            assert found == expected
        await end.check()
        worlds += 1
    assert worlds > 20


async def test_whenever_a_sink_dies_each_message_is_seen_with_the_same_hash() -> None:
    life = Life(topology("sink"))
    disk = (await with_inputs(left=4)).disk
    clean, _ = await life.live(disk, [])
    assert len(set(clean.effects)) == len(clean.effects) == 4
    again = 0
    async for end in deaths(life, disk, [], 2):
        # At least once; who writes each hash once has what a run without a death gives.
        assert list(dict.fromkeys(end.effects)) == clean.effects
        again += len(end.effects) > len(clean.effects)
        await end.check()
    assert again > 10


async def test_whenever_it_dies_at_least_once_loses_nothing() -> None:
    life = Life(topology("pipe", semantics="at_least_once"))
    disk = (await with_inputs(left=4)).disk
    clean, _ = await life.live(disk, [])
    expected = await written(clean)
    async for end in deaths(life, disk, [], 2):
        assert await written(end) == expected  # what it writes, it writes with its positions
        await end.check()


async def test_whenever_a_sink_dies_at_least_once_sees_every_message() -> None:
    life = Life(topology("sink", semantics="at_least_once"))
    disk = (await with_inputs(left=4)).disk
    clean, _ = await life.live(disk, [])
    async for end in deaths(life, disk, [], 2):
        assert set(end.effects) == set(clean.effects)
        await end.check()


async def test_whenever_it_dies_at_most_once_doubles_nothing_and_counts_what_is_lost() -> None:
    life = Life(topology("sink", semantics="at_most_once"))
    disk = (await with_inputs(left=6)).disk
    clean, _ = await life.live(disk, [])
    assert len(clean.effects) == 6
    lost_ever = 0
    async for end in deaths(life, disk, [], 2):
        assert len(set(end.effects)) == len(end.effects)
        (graph,) = (await end.raw(ShowGraphs())).graphs  # type: ignore[union-attr]
        (status,) = graph.processors
        assert status.delivered + status.lost == 6
        assert len(end.effects) >= status.delivered
        assert status.lost <= 2 * 2  # a step of two for each death
        lost_ever = max(lost_ever, status.lost)
        await end.check()
    assert lost_ever == 4


async def test_an_alts_that_died_reads_the_input_it_chose_though_another_has_data_now() -> None:
    life = Life(topology("alts"))
    fresh = await GraphDriver.fresh()
    await fresh.write("left", b"l-0", b"l-4")
    clean, _ = await life.live(fresh.disk, [])
    looked = 0
    for point in range(1, clean.points + 1):
        dead, _ = await life.live(fresh.disk, [], point)
        before = await dead.raw(ShowGraphs())
        await dead.write("right", b"r-0", b"r-4")
        again, died = await life.live(dead.disk, [])
        assert not died
        entries = [data for _, data, _ in await again.entries("out")]
        assert sorted(entries) == [b"l-0!", b"l-4!", b"r-0!", b"r-4!"]
        once_each(await written(again))
        chosen = [run.ranges for run in dead.runs]
        under_way = isinstance(before, Graphs) and before.graphs and before.graphs[0].processors[0]
        if chosen and under_way and under_way.pending:
            # It had read from `left`: so does the first attempt after it, of the same range.
            assert again.runs[0].ranges == chosen[0]
            assert again.runs[0].step_hash == dead.runs[0].step_hash
            looked += 1
    assert looked >= 2


@pytest.mark.parametrize("kind", ["source", "pipe", "join", "alts", "fork", "sink"])
async def test_whenever_another_runner_starts_the_first_one_writes_nothing_more(kind: str) -> None:
    """At each of its requests: it is answered that it was overtaken, and no row changes."""
    declared, function = topology(kind), function_of(kind)
    asked = 0
    for held in range(1, 100):
        driver = await with_inputs(left=4, right=3)
        steps = processor_steps(declared, step_max=2)
        effect = next(steps)
        requests = 0
        while not isinstance(effect, Idle):
            if isinstance(effect, Ask) and (requests := requests + 1) == held:
                break
            effect = steps.send(
                await driver.ask(effect.request)
                if isinstance(effect, Ask)
                else await driver.execute(declared, effect, function)
            )
        if isinstance(effect, Idle):
            break
        assert isinstance(effect, Ask)
        await driver.run(declared, function)
        if isinstance(effect.request, Start):
            continue  # it never had it
        expected = await written(driver)
        rows = driver.store.head()
        reply = await driver.raw(effect.request)
        assert isinstance(reply, Fenced), effect.request
        assert driver.store.head() == rows
        assert await written(driver) == expected
        once_each(expected)
        await driver.check()
        asked += 1
    assert asked >= 3


@pytest.mark.parametrize("kind", ["source", "pipe", "join", "alts", "fork", "sink"])
async def test_whatever_is_asked_twice_is_answered_twice_and_done_once(kind: str) -> None:
    """As after a lost broker: the answer did not come, and the request is sent again."""
    declared, function = topology(kind), function_of(kind)
    clean = await with_inputs(left=4, right=3)
    await clean.run(declared, function)
    driver = await with_inputs(left=4, right=3)
    steps = processor_steps(declared, step_max=2)
    effect = next(steps)
    while not isinstance(effect, Idle):
        if isinstance(effect, Run):
            effect = steps.send(await driver.execute(declared, effect, function))
            continue
        assert isinstance(effect, Ask)
        answer = await driver.raw(effect.request)
        if not isinstance(effect.request, Start):  # whose repetition is the one that counts
            head = driver.store.head()
            driver.forget()
            assert await driver.raw(effect.request) == answer
            assert driver.store.head() == head
        effect = steps.send(answer)
    assert await written(driver) == await written(clean)
    await driver.check()


# ---- a real broker over a store that loses answers ---------------------------------------------


class LossyWorld:
    """A broker, and a runner that asks again or starts again when an answer is lost."""

    def __init__(self, *, restarts: bool) -> None:
        self.disk = MemoryDisk()
        self.clock = StepClock()
        self.faults = Faults()
        self.restarts = restarts
        self.lost = 0

    async def open(self) -> Broker:
        async def opener(after: int | None) -> MemoryStore:
            return await MemoryStore.open(self.disk, clock=self.clock, faults=self.faults)

        return await Broker.start(opener, self.clock, deadline=30)

    async def run(self, broker: Broker, declared: Topology, function: Any) -> None:
        while not await self._life(broker, declared, function):
            pass

    async def _life(self, broker: Broker, declared: Topology, function: Any) -> bool:
        """-> whether it came to its end"""
        steps = processor_steps(declared, step_max=2)
        effect = next(steps)
        while not isinstance(effect, Idle):
            if isinstance(effect, Run):
                effect = steps.send(await self._execute(broker, declared, effect, function))
                continue
            try:
                reply = await broker.graphs.ask(effect.request)
            except UnavailableError:
                self.lost += 1
                if self.restarts:
                    return False
                continue
            assert not isinstance(reply, Fenced)
            effect = steps.send(reply)
        return True

    async def _execute(
        self, broker: Broker, declared: Topology, run: Run, function: Any
    ) -> Outcome:
        driver = await GraphDriver.on(copied(self.disk))
        return await driver.execute(declared, run, function)


@pytest.mark.parametrize("restarts", [False, True], ids=["asked again", "started again"])
@pytest.mark.parametrize("kind", ["pipe", "alts"])
async def test_whichever_answer_of_the_store_is_lost_nothing_is_lost_or_doubled(
    kind: str, restarts: bool
) -> None:
    """Of each commit: it happened or not, and the broker reopens without knowing."""
    declared, function = topology(kind), function_of(kind)
    clean = await with_inputs(left=4, right=3)
    await clean.run(declared, function)
    expected = await written(clean)
    inputs = (await with_inputs(left=4, right=3)).disk
    lost = 0
    for nth in range(1, 100):
        for fault in (Fault(before=[Lose()]), Fault(after=[Lose()])):
            world = LossyWorld(restarts=restarts)
            world.disk = copied(inputs)
            broker = await world.open()
            world.faults.next("commit", *[NO_FAULT] * (nth - 1), fault)
            await world.run(broker, declared, function)
            await broker.close()
            lost += world.lost
            found = await GraphDriver.on(copied(world.disk))
            assert in_order(await written(found)) == in_order(expected)
            once_each(await written(found))
            await found.check()
        if not world.lost:
            break
    assert lost >= 8
