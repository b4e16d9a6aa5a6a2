"""Reading at a checkpoint without an event loop: the same batches, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import SystemClock
from penstock.codec.keys import node_key
from penstock.errors import CorruptError, NotFoundError
from penstock.log.bulkread import ask_at, read_at
from penstock.log.columns import Counts, columns
from penstock.log.state import LogRange, read_log
from penstock.store.folder import FolderStore
from penstock.store.port import Reader
from unit.log.driver import LogDriver, stream

S = stream("s")
LOG = LogRange(1, 0, 3000)


async def made(folder: Path, *, damage: bool = False) -> tuple[str, list[pa.RecordBatch]]:
    """A folder with the rows of a log of 3,000 entries. -> checkpoint, what it must give"""
    driver = await LogDriver.open()
    for at in range(0, 3000, 600):
        await driver.append(S, [(f"t{at // 600}", b"%d" % i) for i in range(at, at + 600)])
    scan = driver.store.scan(b"", b"\xff")
    rows = {key: value async for part in scan for key, value in part}
    expected = [
        batch
        async for batch in columns(driver.store, LOG, 10, 2900, count=Counts(), batch_rows=1000)
    ]
    if damage:
        value = bytearray(rows[node_key(LOG.log_id, 1200)])
        value[len(value) // 2] ^= 1
        rows[node_key(LOG.log_id, 1200)] = bytes(value)
    store = await FolderStore.open(folder, clock=SystemClock())
    await store.commit(1, list(rows.items()), time_ms=1, epoch=store.epoch)
    checkpoint_id = await store.checkpoint(lifetime_ms=3_600_000)
    await store.close()
    return checkpoint_id, expected


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def read_range(
    location: str, checkpoint_id: str, log: LogRange, low: int, high: int, **options: Any
) -> Iterator[pa.RecordBatch]:
    return read_at(location, checkpoint_id, lambda store: columns(store, log, low, high, **options))


def test_the_batches_are_those_of_the_log(tmp_path: Path) -> None:
    checkpoint_id, expected = asyncio.run(made(tmp_path / "d"))
    count = Counts()
    location = str(tmp_path / "d")
    found = list(read_range(location, checkpoint_id, LOG, 10, 2900, count=count, batch_rows=1000))
    assert found == expected
    assert [batch.num_rows for batch in found] == [1190, 1200, 500]
    assert (count.rows, count.nodes) == (2890, 5)
    chosen = list(read_range(location, checkpoint_id, LOG, 0, 3000, count=count, tags=[b"t3"]))
    assert [batch.num_rows for batch in chosen] == [600]

    async def length(store: Reader) -> int:
        state = await read_log(store, LOG.log_id)
        assert state is not None
        return state.length

    assert ask_at(location, checkpoint_id, length) == 3000


def test_whoever_leaves_early_or_fails_leaves_nothing_open(tmp_path: Path) -> None:
    folder = tmp_path / "ü"  # reached through a descriptor, which must be closed
    checkpoint_id, expected = asyncio.run(made(folder))

    def read(asked: str) -> None:
        batches = read_range(str(folder), asked, LOG, 10, 2900, count=Counts(), batch_rows=1000)
        assert next(batches) == expected[0]
        batches.close()  # type: ignore[attr-defined]

    read(checkpoint_id)
    before = descriptors()
    for _ in range(5):
        read(checkpoint_id)
        with pytest.raises(NotFoundError):
            read("b5a5587b-5cd1-4a5c-9e0a-5a5a5a5a5a5a")
    assert descriptors() == before


def test_a_node_that_is_not_what_was_written_is_corrupt(tmp_path: Path) -> None:
    checkpoint_id, _ = asyncio.run(made(tmp_path / "d", damage=True))
    location = str(tmp_path / "d")
    with pytest.raises(CorruptError, match="log 1 node 1200: checksum of the body"):
        list(read_range(location, checkpoint_id, LOG, 0, 3000, count=Counts()))
    # Who does not open it does not meet it.
    found = list(read_range(location, checkpoint_id, LOG, 0, 3000, count=Counts(), tags=[b"t0"]))
    assert [batch.num_rows for batch in found] == [600]
