"""Worlds in processes of their own, several at a time: a world is one thread that only computes.

Contract     `Worlds` runs the seeds it was given in their order, and `report` waits for one of
             them: what `run_seed` returns or raises. What pytest would not let pass in its own
             process does not pass here: a warning, or an exception that nobody could raise.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from penstock.sim.run import Report, run_seed

#: More do not help: the rest of the suite and its servers are not idle either.
PROCESSES_MAX = 4


class Worlds:
    def __init__(self, seeds: Iterable[int]) -> None:
        self._pool = ProcessPoolExecutor(
            min(os.cpu_count() or 1, PROCESSES_MAX),
            # A fork would share what the tests before this one have opened.
            mp_context=multiprocessing.get_context("spawn"),
            # As `-W error`, which a spawned process does not have from pytest.
            initializer=warnings.simplefilter,
            initargs=("error",),
        )
        self._futures = {seed: self._pool.submit(run_strictly, seed) for seed in seeds}

    def report(self, seed: int) -> Report:
        return self._futures[seed].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def run_strictly(seed: int) -> Report:
    unraisable: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: unraisable.append(f"{found.exc_value!r} in {found.object!r}")
    try:
        report = run_seed(seed)
        gc.collect()  # a coroutine that was never awaited says so when it goes
    finally:
        sys.unraisablehook = before
    assert not unraisable, f"seed {seed}: {unraisable}"
    return report
