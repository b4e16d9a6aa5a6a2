"""Readers at a checkpoint: one fixed state, in other processes, whatever the writer does."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slatedb.uniffi as engine

from conformance.factories import BUCKET, bucket_server
from penstock.clock import SystemClock
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.store import slate
from penstock.store.location import open_store
from penstock.store.port import Reader, Store
from penstock.store.reader import open_reader
from penstock.store.slate import SlateRows

LOW, HIGH = b"\x01\x0b", b"\x01\x0c"
HOUR_MS = 3_600_000

Rows = dict[bytes, bytes]


@pytest.fixture(scope="module")
def bucket() -> Iterator[None]:
    with bucket_server():
        yield


@pytest.fixture(params=["folder", "odd folder", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "folder":
            return str(tmp_path / "plain")
        case "odd folder":
            return str(tmp_path / "with space, 100%25 # and ü")
        case _:
            request.getfixturevalue("bucket")
            return f"s3://{BUCKET}/{tmp_path.name} with space"


def rows_of(store: Store) -> SlateRows:
    rows: SlateRows = store._rows  # type: ignore[attr-defined]
    return rows


async def write(store: Store, writes: dict[bytes, bytes | None]) -> None:
    n = store.head().n + 1
    rows = [(LOW + key, value) for key, value in writes.items()]
    await store.commit(n, rows, time_ms=n, epoch=store.epoch)


async def filled(location: str) -> tuple[Store, Rows]:
    """Rows in several tables: written, written again, deleted."""
    store = await open_store(location, clock=SystemClock())
    for part in range(3):
        await write(store, {b"%03d" % i: b"%d-%d" % (part, i) * 50 for i in range(part, 200)})
        await rows_of(store).flush_memtable()
    await write(store, {b"%03d" % i: None for i in range(0, 200, 7)})
    expected = {LOW + b"%03d" % i: b"%d-%d" % (min(i, 2), i) * 50 for i in range(200) if i % 7}
    return store, expected


async def every_row(reader: Reader, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
    scan = reader.scan(LOW, HIGH, reverse=reverse, batch_rows=16)
    return [row async for rows in scan for row in rows]


async def until(condition: Callable[[], Any]) -> None:
    while not await condition():
        await asyncio.sleep(0.02)


async def collect_garbage(store: Store, *ours: str) -> None:
    """As the writer does by itself, some minutes later: the compactor has checkpoints of its own,
    which keep what it has compacted for a while."""
    admin = rows_of(store)._admin
    for found in await admin.list_checkpoints(None):
        if found.id not in ours:
            await admin.delete_checkpoint(found.id)
    at_once = engine.GarbageCollectorDirectoryOptions(min_age_ms=0, dry_run=False)
    await admin.run_gc_once(
        engine.GarbageCollectorOptions(
            manifest_options=at_once,
            wal_options=at_once,
            compacted_options=at_once,
            compactions_options=at_once,
        )
    )


async def replace_everything(store: Store) -> None:
    """Write, flush and compact until none of the tables of before is one of the newest state."""
    before = set(await rows_of(store).tables())

    async def replaced() -> bool:
        await write(store, {b"%03d" % i: os.urandom(200) for i in range(250)})
        await rows_of(store).flush_memtable()
        return not before & set(await rows_of(store).tables())

    await until(replaced)


SCRIPT = """
import asyncio, json, sys
from penstock.store.reader import open_reader

async def main():
    location, checkpoint_id = sys.argv[1:]
    low, high = b"\\x01\\x0b", b"\\x01\\x0c"
    reader = await open_reader(location, checkpoint_id)
    up = [row async for rows in reader.scan(low, high) for row in rows]
    down = [row async for rows in reader.scan(low, high, reverse=True) for row in rows]
    assert down == up[::-1], "one state in both directions"
    got = [await reader.get(key) for key, _ in up]
    assert got == [value for _, value in up], "one state for get and scan"
    floor = await reader.floor(high, low=low)
    assert floor == up[-1]
    await reader.close()
    print(json.dumps([[part.hex() for part in row] for row in up]))

asyncio.run(main())
"""


async def read_elsewhere(location: str, checkpoint_id: str) -> list[tuple[bytes, bytes]]:
    def run() -> str:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, location, checkpoint_id],
            check=True,
            stdout=subprocess.PIPE,
            timeout=120,
        ).stdout.decode()

    found = json.loads(await asyncio.to_thread(run))
    return [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in found]


async def test_another_process_sees_exactly_the_state_of_the_checkpoint(location: str) -> None:
    store, expected = await filled(location)
    checkpoint_id = await store.checkpoint(lifetime_ms=HOUR_MS)
    # Durable, and in no table: on a bucket it is in the WAL, on a folder in the journal.
    await write(store, {b"later": b"x"})
    reader = await open_reader(location, checkpoint_id)
    assert await every_row(reader) == sorted(expected.items())
    await reader.close()
    await replace_everything(store)
    await collect_garbage(store, checkpoint_id)
    assert await read_elsewhere(location, checkpoint_id) == sorted(expected.items())
    # And after the end of the writer.
    await store.close()
    assert await read_elsewhere(location, checkpoint_id) == sorted(expected.items())


async def test_reads_of_an_open_reader_are_those_of_the_port(location: str) -> None:
    store, expected = await filled(location)
    reader = await open_reader(location, await store.checkpoint(lifetime_ms=HOUR_MS))
    await store.close()
    rows = sorted(expected.items())
    assert await every_row(reader) == rows
    assert await every_row(reader, reverse=True) == rows[::-1]
    assert await reader.get(LOW + b"000") is None
    assert await reader.get(LOW + b"001") == rows[0][1]
    assert await reader.floor(LOW + b"007", low=LOW) == (LOW + b"006", expected[LOW + b"006"])
    assert await reader.floor(LOW + b"000", low=LOW) is None
    assert await reader.floor(LOW, low=HIGH) is None
    assert [rows async for rows in reader.scan(HIGH, LOW)] == []
    with pytest.raises(InvalidError, match="pickled"):
        pickle.dumps(reader)
    await reader.close()
    await reader.close()
    with pytest.raises(InvalidError, match="closed"):
        await reader.get(LOW)
    with pytest.raises(InvalidError, match="closed"):
        await every_row(reader)


async def test_a_checkpoint_that_is_dropped_or_was_never_made_is_not_found(location: str) -> None:
    store, _ = await filled(location)
    checkpoint_id = await store.checkpoint(lifetime_ms=HOUR_MS)
    await store.drop_checkpoint(checkpoint_id)
    unknown = "b5a5587b-5cd1-4a5c-9e0a-5a5a5a5a5a5a"
    for asked in (checkpoint_id, unknown, "nonsense", ""):
        with pytest.raises(NotFoundError, match=f"the checkpoint {asked} has expired"):
            await open_reader(location, asked)
    await store.close()


async def test_a_checkpoint_that_ends_while_it_is_read_is_expired_and_not_corrupt(
    location: str,
) -> None:
    store, expected = await filled(location)
    checkpoint_id = await store.checkpoint(lifetime_ms=HOUR_MS)
    pinned = await open_reader(location, checkpoint_id)
    dropped_id = await store.checkpoint(lifetime_ms=HOUR_MS)
    dropped = await open_reader(location, dropped_id)
    await store.drop_checkpoint(dropped_id)
    # Its tables are still there, for the sake of the other one: nothing is missing.
    assert await every_row(dropped) == sorted(expected.items())
    # From its end on it is there until garbage is collected.
    await store.renew_checkpoint(checkpoint_id, lifetime_ms=1)
    await replace_everything(store)

    async def collected() -> bool:
        await collect_garbage(store, checkpoint_id)
        try:
            await every_row(pinned)
        except NotFoundError:
            return True
        return False

    await until(collected)
    for reader in (pinned, dropped):
        with pytest.raises(NotFoundError, match="has expired"):
            await every_row(reader)
        with pytest.raises(NotFoundError, match="has expired"):
            await reader.floor(HIGH, low=LOW)
        await reader.close()
    with pytest.raises(NotFoundError, match=f"the checkpoint {checkpoint_id} has expired"):
        await open_reader(location, checkpoint_id)
    await store.close()


async def damaged(tmp_path: Path, change: Callable[[Path, bytes], None]) -> tuple[Path, str]:
    folder = tmp_path / "d"
    store, _ = await filled(str(folder))
    checkpoint_id = await store.checkpoint(lifetime_ms=HOUR_MS)
    await store.close()
    for path in (folder / "store" / "compacted").iterdir():
        change(path, path.read_bytes())
    return folder, checkpoint_id


def flip(path: Path, data: bytes) -> None:
    broken = bytearray(data)
    broken[len(broken) // 2] ^= 1
    path.write_bytes(broken)


async def test_a_damaged_table_is_corrupt(tmp_path: Path) -> None:
    folder, checkpoint_id = await damaged(tmp_path, flip)
    reader = await open_reader(str(folder), checkpoint_id)
    with pytest.raises(CorruptError):
        await every_row(reader)
    await reader.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path, data: path.unlink(), "a table of the store is missing"),
        (lambda path, data: path.write_bytes(data[: len(data) // 2]), "at least"),
        (lambda path, data: path.write_bytes(b""), "at least"),
    ],
    ids=["missing", "cut", "empty"],
)
async def test_a_table_that_is_missing_or_cut_is_corrupt_before_anything_is_read(
    tmp_path: Path, change: Callable[[Path, bytes], None], said: str
) -> None:
    folder, checkpoint_id = await damaged(tmp_path, change)
    with pytest.raises(CorruptError, match=said):
        await open_reader(str(folder), checkpoint_id)


async def test_a_table_that_is_cut_while_it_is_read_is_corrupt_and_not_a_slow_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slate, "_READER_RETRIES", 1)
    folder, checkpoint_id = await damaged(tmp_path, lambda path, data: None)
    reader = await open_reader(str(folder), checkpoint_id)
    for path in (folder / "store" / "compacted").iterdir():
        path.write_bytes(b"")
    with pytest.raises(CorruptError, match="at least"):
        await every_row(reader)
    await reader.close()


async def test_a_location_that_is_not_there_is_not_found(tmp_path: Path, bucket: None) -> None:
    unknown = "b5a5587b-5cd1-4a5c-9e0a-5a5a5a5a5a5a"
    for location in (str(tmp_path / "none"), str(tmp_path), f"s3://{BUCKET}/none"):
        with pytest.raises(NotFoundError):
            await open_reader(location, unknown)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidError, match="memory of one process"):
        await open_reader("memory://here", unknown)
    with pytest.raises(InvalidError):
        await open_reader("ftp://x/y", unknown)


async def test_a_store_of_memory_cannot_be_read_elsewhere() -> None:
    store = await open_store("memory://reader", clock=SystemClock())
    checkpoint_id = await store.checkpoint(lifetime_ms=HOUR_MS)
    with pytest.raises(InvalidError):
        await open_reader("memory://reader", checkpoint_id)
    await store.close()
