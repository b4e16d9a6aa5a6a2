"""A child that builds a small store with something of everything in it.

    python -m integration.damage_builder LOCATION ROUNDS [unsynced]

Each round opens, writes to three streams, evicts a little and closes, which leaves a table in a
folder; in a bucket every other round makes a checkpoint, which does the same there. A folder is
then kept open until a compaction has left its own table. Then it says `closed`, waits for a line,
opens and writes more, which is in the journal or the WAL only, says `written`, and waits to be
killed. `unsynced`: as where folders cannot be synchronous (damage.py, `durability_of`), and there
is a last session, whose newest manifest no sync covers.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from pathlib import Path

import penstock
from integration.children import say
from integration.damage import STREAMS, durability_of
from penstock.clock import SystemClock
from penstock.store.folder import Durability, FolderStore
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


async def make_uncovered_manifest(location: str) -> None:
    """Keeps the store open: a clean close would have the manifest synced."""
    store = await open_store(location, clock=SystemClock())
    assert isinstance(store, FolderStore)
    store._watcher.cancel()
    await store._thread.run(lambda: None)  # behind a watch that has begun
    n = store.head().n + 1
    row = await anext(aiter(store.scan(b"\x00", b"\xff")))  # any: it is only written once more
    await store.commit(n, row[:1], time_ms=store.head().time_ms, epoch=store.epoch)
    await store._applied()
    await store._rows.flush_memtable()
    say("written")
    sys.stdin.readline()


def await_compaction(folder: Path, tables: int, durability: Durability) -> None:
    with penstock.open(folder, durability=durability):
        until = time.monotonic() + 10
        while len(list(folder.glob("store/compacted/*.sst"))) <= tables:
            assert time.monotonic() < until, "no compaction happened"
            time.sleep(0.02)


def main(location: str, rounds: int, mode: str) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    durability = durability_of(mode)
    for number in range(rounds):
        with penstock.open(location, durability=durability) as db:
            write_round(db, number)
        if "://" in location and number % 2:
            asyncio.run(make_table(location))
    if "://" not in location:
        await_compaction(Path(location), rounds, durability)
    say("closed")
    sys.stdin.readline()
    db = penstock.open(location, durability=durability)
    write_round(db, rounds)
    if mode == "unsynced":
        db.close()
        return asyncio.run(make_uncovered_manifest(location))
    say("written")
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "os")
