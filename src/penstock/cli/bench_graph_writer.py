"""A process that writes messages at an even rate, beside what is measured.

python -m penstock.cli.bench_graph_writer LOCATION STREAM RATE SECONDS
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import TracebackType
from typing import Self

import penstock
from penstock.clock import SystemClock

#: Of a second: one write.
TICK_SECONDS = 0.01


class Writer:
    """Runs until it has written everything; leaving waits for that."""

    def __init__(self, location: str, stream: str, *, rate: int, seconds: float) -> None:
        command = [sys.executable, "-P", "-m", "penstock.cli.bench_graph_writer"]
        self._process = subprocess.Popen([*command, location, stream, str(rate), str(seconds)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._process.wait()


async def write(location: str, stream: str, rate: int, seconds: float) -> None:
    clock = SystemClock()
    async with await penstock.aio.open(location, broker="outside") as db:
        begun = clock.monotonic()
        written = 0
        while written < int(rate * seconds):
            due = min(int(rate * seconds), int((clock.monotonic() - begun) * rate))
            if due > written:
                await db.stream(stream).write_many([b'{"n": %9d}' % n for n in range(written, due)])
                written = due
            await clock.sleep(TICK_SECONDS)


if __name__ == "__main__":
    place, name, per_second, duration = sys.argv[1:]
    asyncio.run(write(place, name, int(per_second), float(duration)))
