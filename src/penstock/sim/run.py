"""Run one seed: a world, its clients, the oracle; and say how to see a failure again.

Contract     `run_seed` returns what happened, or raises `SimulationError` with the failure, the
             last lines of the story and the command that replays it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from penstock.sim.client import Actor
from penstock.sim.knobs import turned
from penstock.sim.loop import OverError, StandstillError, run
from penstock.sim.oracle import Oracle
from penstock.sim.process import running
from penstock.sim.queueoracle import QueueOracle
from penstock.sim.queues import draw_queues
from penstock.sim.streams import Cast, draw_cast
from penstock.sim.world import World

STEPS = 150


class SimulationError(AssertionError):
    """A world in which something was wrong."""


class Report(msgspec.Struct, frozen=True):
    seed: int
    digest: str  # of everything that happened
    commits: int
    entries: int
    seconds: float  # virtual


class _Ear(logging.Handler):
    """Errors that the broker logs instead of raising are failures too: nothing was damaged here."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        owner = running.get()
        if owner is None or owner.alive:
            error = record.exc_info[1] if record.exc_info else ""
            self._world.trace.fail(f"logged: {record.getMessage()} {error!r}")


@contextmanager
def _listening(world: World) -> Iterator[None]:
    logger, ear = logging.getLogger("penstock"), _Ear(world)
    before = logger.propagate, logger.level
    logger.addHandler(ear)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate, level = before
        logger.setLevel(level)


def run_seed(seed: int, steps: int = STEPS, *, show: bool = False) -> Report:
    world = World(seed, steps, show=show)
    with turned(world.random("limits")) as limits, _listening(world):
        world.limits = limits
        world.trace.add(f"seed {seed} steps {steps} limits {limits}")
        world.trace.add(f"deadline {world.deadline} {world.weather}")
        try:
            with suppress(OverError):
                run(world.loop, _live(world))
        except StandstillError as error:
            world.trace.fail(str(error))
    if world.trace.failures:
        story = "\n".join(world.trace.lines)
        raise SimulationError(
            f"{story}\n\nseed {seed}: {world.trace.failures[0]}\n"
            f"replay: python -m penstock.sim --seed {seed} --steps {steps} --trace"
        )
    return Report(
        seed,
        world.trace.digest(),
        world.disk.head.n,
        sum(log.end for log in world.history.logs.values()),
        world.loop.time(),
    )


class _Oracles:
    """Those of the views that this world has: streams, queues, or both."""

    def __init__(self, world: World) -> None:
        views = world.random("views").choices(("streams", "queues", "both"), (2, 1, 1))[0]
        self.clients: list[Actor] = []
        self._all: list[Oracle | QueueOracle] = []
        if views != "queues":
            self._streams(world, draw_cast(world))
        if views != "streams":
            queues = draw_queues(world)
            for plan in queues.plans:
                world.trace.add(f"{plan}")
            self.clients += queues.clients
            self._all.append(QueueOracle(world, queues))

    def _streams(self, world: World, cast: Cast) -> None:
        for plan in cast.streams:
            world.trace.add(f"{plan}")
        for group in cast.groups:
            world.trace.add(f"{group.stream.name} {group}")
        self.clients += cast.clients
        self._all.append(Oracle(world, cast))

    async def look(self) -> None:
        for oracle in self._all:
            await oracle.look()

    async def finish(self) -> None:
        for oracle in self._all:
            await oracle.finish()


async def _live(world: World) -> None:
    oracles = _Oracles(world)
    watch = asyncio.create_task(world.supervise())
    lives = [asyncio.create_task(client.live()) for client in oracles.clients]
    begun = world.steps
    for part in (2, 1):
        while world.steps > begun * part // 3:
            await asyncio.sleep(0.25)
            _heard(watch, *lives)
        async with world.quiet():
            await oracles.look()
    while world.steps > 0:
        await asyncio.sleep(0.25)
        _heard(watch, *lives)
    async with world.quiet():
        await oracles.finish()
    _heard(watch, *lives)


def _heard(*tasks: asyncio.Task[None]) -> None:
    """A bug of the simulator ends the run as itself."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
