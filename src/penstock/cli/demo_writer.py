"""The process that the demo kills: appends numbered entries and says so on stdout, for ever.

Contract     `python -m penstock.cli.demo_writer LOCATION ROUND`. A line is printed after its write
             returned, never before: what the demo reads there was acknowledged. One `os.write` per
             line, shorter than a pipe's atomic write, so that a kill cannot cut a line in two.
"""

from __future__ import annotations

import itertools
import os
import sys

import penstock
from penstock.cli.demo_entries import Acknowledged, Entry, encode_acknowledged, encode_entry

STREAM = "demo"
#: Single entries, small batches, and one that spans several macro nodes.
BATCH_SIZES = (1, 1, 1, 7, 100, 1, 1000, 2500)
#: Made ahead, so that a kill meets a write and not the making of entries.
AHEAD = 20 * len(BATCH_SIZES)


def write_for_ever(location: str, round_: int) -> None:
    with penstock.open(location) as db:
        stream = db.stream(STREAM)
        for start in itertools.count(0, AHEAD):
            made = [make_batch(round_, number) for number in range(start, start + AHEAD)]
            for number, batch in enumerate(made, start):
                if len(batch) == 1:
                    tag, data = batch[0]
                    first = stream.write(data, tag=tag)
                else:
                    first = stream.write_many(batch).start
                written = Acknowledged(round_, number, first, len(batch))
                os.write(1, encode_acknowledged(written))


def make_batch(round_: int, number: int) -> list[tuple[str, bytes]]:
    size = BATCH_SIZES[number % len(BATCH_SIZES)]
    return [
        (f"round-{round_}", encode_entry(Entry(round_, number, index, size)))
        for index in range(size)
    ]


if __name__ == "__main__":
    write_for_ever(sys.argv[1], int(sys.argv[2]))
