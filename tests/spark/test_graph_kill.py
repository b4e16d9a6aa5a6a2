"""A graph of all kinds, whose runners are killed, stopped, and two at once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from spark.graph_world import World

KILLS = int(os.environ.get("PENSTOCK_GRAPH_KILLS", "30"))
NUMBERS = int(os.environ.get("PENSTOCK_GRAPH_NUMBERS", "200000"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_runners_killed_at_any_moment_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    with World(tmp_path, step_max=10_000) as world:
        spare = world.runner()
        for n in range(KILLS):
            # There is always work left, so every kill hits something under way.
            world.count_to(NUMBERS * (n + 1) // KILLS)
            runner, spare = spare, world.runner()
            runner.begin("forever")
            time.sleep(rng.uniform(0, 3))
            assert runner.process.poll() is None, runner.said()
            runner.kill()
            print(f"kill {n + 1}", flush=True)
        world.count_to(NUMBERS)
        spare.begin("idle")
        assert spare.wait() == 0, spare.said()
        world.compare(NUMBERS)


def test_of_two_runners_at_once_one_is_fenced_and_nothing_is_doubled(tmp_path: Path) -> None:
    with World(tmp_path, step_max=500) as world:
        world.count_to(20_000)
        one, other = world.runner(), world.runner()
        one.begin("idle")
        other.begin("idle")
        assert {one.wait(), other.wait()} == {0, 6}, one.said() + other.said()
        world.compare(20_000)


def test_a_runner_that_was_stopped_and_wakes_up_is_fenced(tmp_path: Path) -> None:
    with World(tmp_path, step_max=500) as world:
        world.count_to(30_000)
        sleeper, other = world.runner(), world.runner()
        sleeper.begin("forever")
        world.await_entries(1000)
        sleeper.signal(signal.SIGSTOP)
        other.begin("idle")
        world.await_entries(10_000)
        sleeper.signal(signal.SIGCONT)
        assert sleeper.wait() == 6, sleeper.said()
        assert other.wait() == 0, other.said()
        world.compare(30_000)
