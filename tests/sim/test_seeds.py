"""Worlds: each seed is a world of its own, and nothing may be wrong in any of them.

A failure prints its story and how to see it again. `PENSTOCK_SEED=N` adds a seed to the default
run; seeds that found something are kept in FOUND.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.sim.run import SimulationError, run_seed
from sim.worlds import Worlds

DEFAULT = range(60)
MANY = range(1000, 6000)
#: Seeds per slow test: each says how far it is.
PART = 100
#: Seeds that found what the first ones did not, when it was planted: a state made stale by a read,
#: a cache that an opening did not clear, upkeep that ended with the queue it was about, an object
#: that memory remembers longer than the rows do. The last ones found a call with two deadlines, as
#: it looked something up before it committed, metadata that a crash left behind for good, and a
#: message that went in a commit whose time was before the end of its retention.
FOUND = (80, 143, 71, 95, 1046, 1094, 1443, 1546, 1485, 2021)


def default_seeds() -> list[int]:
    asked = os.environ.get("PENSTOCK_SEED")
    return [*DEFAULT, *FOUND, *([] if asked is None else [int(asked)])]


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest) -> Iterator[Worlds]:
    """Those that this run asks for."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params.get("seed") for item in items if hasattr(item, "callspec")]
    worlds = Worlds(seed for seed in default_seeds() if seed in asked)
    yield worlds
    worlds.close()


@pytest.mark.parametrize("seed", default_seeds())
def test_nothing_is_wrong_in_this_world(seed: int, worlds: Worlds) -> None:
    worlds.report(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(MANY.start, MANY.stop, PART))
def test_nothing_is_wrong_in_any_of_these_worlds(first: int) -> None:
    wrong = []
    for done, seed in enumerate(range(first, first + PART), 1):
        try:
            run_seed(seed)
        except SimulationError as error:
            wrong.append(str(error))
        if done % 20 == 0:
            print(f"seeds {first}-{seed}: {len(wrong)} wrong", flush=True)
    assert not wrong, "\n\n".join(wrong)
