"""A command of Penstock's in a process of its own, which the demo kills with all that it starts.

Contract     `Driver(work, *words)` runs `penstock WORDS`; leaving it kills the whole session with
             SIGKILL: driver, JVM and Python workers. `until(done)` waits until something happened,
             and says so when the process ends with an error, or nothing happens for too long.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.clock import perf_counter
from penstock.errors import UnavailableError

#: A driver after whose start so much time passes in vain is stuck, and the demo says so.
PATIENCE_S = 180.0
LOOK_S = 0.1
HINT = "try again when the machine is less busy, or look at the messages in --folder"


def has_spark() -> bool:
    return all(importlib.util.find_spec(name) for name in ("pyspark", "deltalake"))


class Driver:
    def __init__(self, work: Path, *words: str) -> None:
        self._errors = work / f"{words[0]}.err"
        with self._errors.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "penstock", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def until(self, done: Callable[[], bool]) -> None:
        """Until it is done, or the process ends in order."""
        end = perf_counter() + PATIENCE_S
        while not done():
            with suppress(subprocess.TimeoutExpired):
                if self._process.wait(LOOK_S) == 0:
                    return
                lines = self._errors.read_text(errors="replace").strip().splitlines()
                reason = lines[-1] if lines else "no message"
                raise UnavailableError(f"a Spark driver ended: {reason}", hint=HINT)
            if perf_counter() > end:
                raise UnavailableError(f"Spark did nothing for {PATIENCE_S:.0f} s", hint=HINT)

    def finish(self) -> None:
        """Until it ends by itself."""
        self.until(lambda: False)


class FlowResult(msgspec.Struct, frozen=True):
    """What went in and what came out at the other end."""

    kills: int
    went_in: int
    came_out: int
    lost: int
    duplicated: int
    wrong: int  # came out, and nobody had put it in
    seconds: float

    @property
    def kept(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)


def compare(
    expected: Sequence[Hashable], found: Sequence[Hashable], kills: int, seconds: float
) -> FlowResult:
    wanted, got = Counter(expected), Counter(found)
    more = got - wanted
    return FlowResult(
        kills=kills,
        went_in=len(expected),
        came_out=len(found),
        lost=sum((wanted - got).values()),
        duplicated=sum(count for each, count in more.items() if each in wanted),
        wrong=sum(count for each, count in got.items() if each not in wanted),
        seconds=seconds,
    )
