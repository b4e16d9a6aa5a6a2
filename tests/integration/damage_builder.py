"""A child that builds a small store with something of everything in it.

    python -m integration.damage_builder LOCATION ROUNDS

Each round opens, writes to three streams, evicts a little and closes, which leaves a table in a
folder; in a bucket every other round makes a checkpoint, which does the same there. A folder is
then kept open until a compaction has left its own table. Then it says `closed`, waits for a line,
opens and writes more, which is in the journal or the WAL only, says `written`, and waits to be
killed.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from pathlib import Path

import penstock
from integration.children import say
from integration.damage import STREAMS
from penstock.clock import SystemClock
from penstock.store.location import open_store


def write_round(db: penstock.Database, number: int) -> None:
    if number:
        db.stream(STREAMS[0]).evict(up_to=number * 3)
    for name in STREAMS:
        stream = db.stream(name)
        for size in (1, 7, 40):
            stream.write_many(
                [(f"t{i % 3}", f"{name} {number} {i} ".encode() * (i + 1)) for i in range(size)]
            )


async def make_table(location: str) -> None:
    store = await open_store(location, clock=SystemClock())
    await store.checkpoint(lifetime_ms=1)
    await store.close()


def await_compaction(folder: Path, tables: int) -> None:
    with penstock.open(folder, durability="os"):
        until = time.monotonic() + 10
        while len(list(folder.glob("store/compacted/*.sst"))) <= tables:
            assert time.monotonic() < until, "no compaction happened"
            time.sleep(0.02)


def main(location: str, rounds: int) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    for number in range(rounds):
        with penstock.open(location, durability="os") as db:
            write_round(db, number)
        if "://" in location and number % 2:
            asyncio.run(make_table(location))
    if "://" not in location:
        await_compaction(Path(location), rounds)
    say("closed")
    sys.stdin.readline()
    db = penstock.open(location, durability="os")
    write_round(db, rounds)
    say("written")
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
