"""The demo's fourth act: a stream through Spark, whose driver is killed in the middle.

Contract     Real Spark, a real streaming query. Its driver, with its JVM and Python workers, is
             killed (SIGKILL) while it works and begun again, until all orders are through. What
             came out is compared with what went in, entry for entry.
Without      Spark (penstock[spark]) the act is left out, and says so.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

import penstock
from penstock.cli.demo_driver import BATCH, FLAGGED, LARGE, ORDERS
from penstock.clock import perf_counter
from penstock.errors import UnavailableError

COUNT = 10_000
#: A driver that writes nothing for this long is stuck, and the demo says so.
SILENCE_S = 120.0
HINT = "try again when the machine is less busy, or look at the driver's messages with --folder"


class SparkResult(msgspec.Struct, frozen=True):
    kills: int
    written: int
    found: int
    lost: int
    duplicated: int
    wrong: int  # not what Spark should have made of it, or in another order
    seconds: float

    @property
    def kept(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)


def has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def through_spark(work: Path, *, kills: int, report: Callable[[str], None]) -> SparkResult:
    location, checkpoint = work / "orders", work / "checkpoint"
    begun = perf_counter()
    with penstock.open(location) as db:
        expected = _write_orders(db)
        out = db.stream(FLAGGED)
        for n in range(kills):
            report(f"Spark works on {COUNT:,} orders")
            with _Driver(work, location, checkpoint) as driver:
                driver.follow(out, out.info().length + BATCH)
                report(f"kill {n + 1}: the Spark driver and its workers")
        report("Spark goes on where it was")
        with _Driver(work, location, checkpoint) as driver:
            driver.finish(out)
        report("comparing")
        found = [message.data for message in out.read(0, 10 * COUNT) if message is not None]
    return compare(expected, found, kills, perf_counter() - begun)


def _write_orders(db: penstock.Database) -> list[bytes]:
    amounts = np.random.default_rng(7).integers(1, 1000, COUNT).tolist()
    orders = [b'{"order":%d,"amount":%d}' % pair for pair in enumerate(amounts)]
    db.stream(ORDERS).write_many([(f"c{n % 100}", order) for n, order in enumerate(orders)])
    return [
        order + (b" large" if amount >= LARGE else b" small")
        for order, amount in zip(orders, amounts, strict=True)
    ]


def compare(expected: list[bytes], found: list[bytes], kills: int, seconds: float) -> SparkResult:
    wanted, got = Counter(expected), Counter(found)
    duplicated = sum((got - wanted)[data] for data in wanted)
    strange = sum(count for data, count in got.items() if data not in wanted)
    return SparkResult(
        kills=kills,
        written=len(expected),
        found=len(found),
        lost=sum((wanted - got).values()),
        duplicated=duplicated,
        wrong=strange or int(sorted(found) == sorted(expected) and found != expected),
        seconds=seconds,
    )


class _Driver:
    """The process of the driver, and all that it starts: killed when this is left."""

    def __init__(self, work: Path, location: Path, checkpoint: Path) -> None:
        self._errors = work / "driver.err"
        with self._errors.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.demo_driver", str(location), str(checkpoint)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def follow(self, out: penstock.Stream, wanted: int) -> None:
        """Until so many entries came out, or it is done."""
        while out.info().length < wanted and self._process.poll() is None:
            length = out.info().length
            if not out.read(length, 1, block=SILENCE_S) and self._process.poll() is None:
                raise UnavailableError(f"Spark wrote nothing for {SILENCE_S:.0f} s", hint=HINT)
        self._raise_trouble()

    def finish(self, out: penstock.Stream) -> None:
        """Until it ends by itself."""
        while True:
            length = out.info().length
            try:
                self._process.wait(SILENCE_S)
                break
            except subprocess.TimeoutExpired:
                if out.info().length == length:
                    raise UnavailableError(
                        f"Spark wrote nothing for {SILENCE_S:.0f} s", hint=HINT
                    ) from None
        self._raise_trouble()

    def _raise_trouble(self) -> None:
        if self._process.poll() not in (None, 0):
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else "no message"
            raise UnavailableError(f"the Spark driver ended: {reason}", hint=HINT)
