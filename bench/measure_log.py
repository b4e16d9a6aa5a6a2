"""Measure opening and reading of a location that `build_log.py` made.

    python bench/measure_log.py bench/data/10m

A fresh process each time: nothing is warm but the operating system's cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.bench_log import READ_STREAM
from penstock.cli.bench_read import ReadResult, measure_reads
from penstock.cli.figures import disk_bytes, memory_bytes
from penstock.cli.output import print_json


class Measured(msgspec.Struct, frozen=True):
    reads: ReadResult
    rss_bytes_max: int
    disk_bytes: int


def measure(
    location: Annotated[Path, typer.Argument(help="A folder that build_log.py filled.")],
    seconds: Annotated[float, typer.Option(min=0.01, help="For each kind of reading.")] = 5.0,
) -> None:
    """Open, seek, read in sequence; one JSON document."""
    print_json(
        Measured(
            reads=measure_reads(str(location), READ_STREAM, seconds=seconds),
            rss_bytes_max=memory_bytes()[1],
            disk_bytes=disk_bytes(location),
        )
    )


if __name__ == "__main__":
    typer.run(measure)
