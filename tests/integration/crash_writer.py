"""A child that writes until it is killed, and says what was acknowledged.

    python -m integration.crash_writer LOCATION SEED [DURABILITY]

It waits for a line `RUN SEQUENCE`, opens, says `open`, and then lines as in ledger.py, each only
after the call that it reports returned. Two threads write, so that commits carry more than one
request.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings
from typing import Literal

import pyarrow as pa

import penstock
from integration.children import say
from integration.ledger import NUMBERED, entries

SIZES = (1, 1, 1, 7, 7, 100, 1000)


def acknowledge(stream: str, batch: str, offsets: range) -> None:
    say(f"ack {stream} {batch} {len(offsets)} {offsets.start}")


def write_mixed(db: penstock.Database, run: int, rng: random.Random) -> None:
    """Batches of all sizes, as single entries, lists and Arrow, to two streams."""
    number = 0
    while True:
        stream = rng.choice(("mixed", "evicted"))
        batch = f"m{run}.{number}"
        number += 1
        size = rng.choice(SIZES)
        data = entries(batch, size)
        if size == 1:
            start = db.stream(stream).write(data[0])
            offsets = range(start, start + 1)
        elif rng.random() < 0.3:
            columns = {"data": pa.array(data, pa.binary()), "tag": pa.array(["t"] * size)}
            offsets = db.stream(stream).write_many(pa.RecordBatch.from_pydict(columns))
        else:
            offsets = db.stream(stream).write_many(data)
        acknowledge(stream, batch, offsets)


def write_numbered(db: penstock.Database, sequence: int, rng: random.Random) -> None:
    """A producer that repeats what was in doubt, and now and then evicts."""
    numbered, evicted = db.stream("numbered"), db.stream("evicted")
    while True:
        # The size of a batch follows from its number: a repetition must be the same batch.
        batch, size = f"{NUMBERED}{sequence}", SIZES[sequence * 5 % len(SIZES)]
        offsets = numbered.write_many(entries(batch, size), producer="writer", sequence=sequence)
        acknowledge("numbered", batch, offsets)
        sequence += 1
        info = evicted.info()
        if info.length > 500 and rng.random() < 0.2:
            up_to = info.first + rng.randrange(info.length // 2)
            say(f"evicting evicted {up_to}")
            evicted.evict(up_to=up_to)
            say(f"evicted evicted {up_to}")


def main(location: str, seed: int, durability: Literal["power", "os"]) -> None:
    run, sequence = map(int, sys.stdin.readline().split())
    warnings.simplefilter("ignore", RuntimeWarning)  # durability="os" says so, loudly
    db = penstock.open(location, durability=durability)
    say("open")
    rng = random.Random(seed)
    threading.Thread(
        target=write_numbered, args=(db, sequence, random.Random(seed + 1)), daemon=True
    ).start()
    write_mixed(db, run, rng)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "os" if sys.argv[3:] == ["os"] else "power")
