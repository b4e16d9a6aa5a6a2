"""A seed decides everything: the same world, line by line, whatever Python's own dice say."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from penstock.codec import group
from penstock.sim.knobs import KNOBS, turned
from penstock.sim.loop import StandstillError, VirtualLoop, run
from penstock.sim.run import run_seed
from penstock.sim.world import World
from penstock.stream import pending

REPORT = "from penstock.sim.run import run_seed; print([run_seed(s).digest for s in (3, 8, 17)])"


@cache
def digest_of(seed: int) -> str:
    return run_seed(seed).digest


def test_a_seed_replays_exactly() -> None:
    assert run_seed(8) == run_seed(8)


def test_another_seed_is_another_world() -> None:
    assert digest_of(8) != digest_of(17)


def test_a_seed_replays_exactly_in_another_process_with_other_hashes() -> None:
    def digests(hash_seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", REPORT],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout

    with ThreadPoolExecutor(2) as pool:  # one process each, side by side
        one, other = pool.map(digests, ("1", "2"))
    assert one == other == f"{[digest_of(seed) for seed in (3, 8, 17)]}\n"


def test_a_failure_says_how_to_see_it_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "replay: python -m penstock.sim --seed 1 --steps 30 --trace" in done.stdout


BROKEN = """
from penstock.sim.history import History
from penstock.sim.run import SimulationError, run_seed
History.committed = lambda self, n, writes, time_ms: self._trace.fail("planted")
try:
    run_seed(1, 30)
except SimulationError as error:
    print(error)
"""


def test_limits_are_put_back() -> None:
    world = World(1, 0)
    with turned(world.random("limits")) as limits:
        assert set(KNOBS) <= set(limits)
        assert slots() == {limits["PAGE_SLOTS"]}
    world.loop.close()
    assert slots() == {1024}


def slots() -> set[int]:
    """One constant, in the modules that have it by name."""
    return {vars(module)["PAGE_SLOTS"] for module in (group, pending)}


def loop() -> VirtualLoop:
    return VirtualLoop(lambda task, context: None)


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> tuple[float, list[str]]:
        woken: list[str] = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(name)

        await asyncio.gather(sleep("day", 86_400), sleep("hour", 3_600), sleep("now", 0))
        return asyncio.get_running_loop().time(), woken

    time, woken = run(loop(), main())
    assert time == pytest.approx(86_400)
    assert woken == ["now", "hour", "day"]


def test_a_world_in_which_nothing_can_happen_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StandstillError, match="everybody waits"):
        run(loop(), main())


def test_a_world_in_which_time_stands_still_is_an_error() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StandstillError, match="stands still"):
        run(loop(), main())
