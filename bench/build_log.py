"""Build a location with a large stream, for `measure_log.py`.

    python bench/build_log.py bench/data/10m --entries 10000000
    python bench/build_log.py bench/data/10m --entries 10000000 --kill

An interrupted build goes on where it stopped. With --kill the process kills itself instead of
closing, which leaves the journal as full as it happens to be: the next opening has to replay it.
"""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

import penstock
from penstock.cli.bench_log import READ_STREAM, fill
from penstock.cli.figures import memory_bytes
from penstock.cli.output import progress_bars
from penstock.cli.payloads import SIZE_BYTES_MIN, Payload
from penstock.clock import perf_counter


def build(
    location: Annotated[str, typer.Argument(help="The folder to fill; created if missing.")],
    entries: Annotated[int, typer.Option(min=1, help="Until it holds this many.")] = 10_000_000,
    size: Annotated[int, typer.Option(min=SIZE_BYTES_MIN, help="Bytes of each.")] = 100,
    payload: Annotated[Payload, typer.Option(help="Compressible or not.")] = Payload.JSON,
    kill: Annotated[bool, typer.Option("--kill", help="End by SIGKILL, without a close.")] = False,
) -> None:
    """Append entries in batches of 1,000 until the stream holds enough of them."""
    with penstock.open(location) as db, progress_bars() as bars:
        stream = db.stream(READ_STREAM)
        length = before = stream.info().length
        task = bars.add_task("build", total=entries, completed=before, note="")
        start = perf_counter()

        def report(now: int) -> None:
            nonlocal length
            length = now
            rate = (length - before) / (perf_counter() - start)
            bars.update(task, completed=length, note=f"{length:,} at {rate:,.0f}/s")

        fill(stream, payload=payload, entries=entries, size_bytes=size, report=report)
        seconds = perf_counter() - start
        highest_mib = memory_bytes()[1] / 2**20
        print(
            f"{length:,} entries, {length - before:,} of them now, in {seconds:.1f} s"
            f" ({(length - before) / seconds:,.0f}/s); highest RSS {highest_mib:.0f} MiB",
            flush=True,
        )
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    typer.run(build)
