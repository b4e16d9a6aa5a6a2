"""The folder store: what lies between the journal and SlateDB."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import CorruptError, UnavailableError
from penstock.store import disk
from penstock.store.folder import FolderStore
from penstock.store.slate import SlateRows


async def commit(store: FolderStore, n: int) -> None:
    await store.commit(n, [(b"\x01\x0bk%d" % n, b"v%d" % n)], time_ms=n, epoch=store.epoch)


async def test_a_failed_write_behind_an_acknowledged_commit_is_raised_and_nothing_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    real = SlateRows.write
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def fails_once(
        self: SlateRows, writes: Iterable[tuple[bytes, bytes | None]], *, seqnum: int | None = None
    ) -> int:
        monkeypatch.setattr(SlateRows, "write", real)
        begun.set()
        await go_on.wait()
        raise UnavailableError("once")

    monkeypatch.setattr(SlateRows, "write", fails_once)
    await commit(store, 1)
    await begun.wait()
    await commit(store, 2)
    go_on.set()
    with pytest.raises(UnavailableError, match="once"):
        await store.get(b"\x01\x0bk1")
    with pytest.raises(UnavailableError, match="once"):
        await commit(store, 3)
    await store.close()
    again = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    assert again.head().n == 2
    assert await again.get(b"\x01\x0bk1") == b"v1"
    assert await again.get(b"\x01\x0bk2") == b"v2"
    await again.close()


async def test_reads_see_what_was_acknowledged_before_slatedb_was_given_it(
    tmp_path: Path,
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    for n in range(1, 200):
        await commit(store, n)
        if n % 7 == 0:
            assert await store.get(b"\x01\x0bk%d" % n) == b"v%d" % n
    found = [key async for rows in store.scan(b"\x01\x0b", b"\x01\x0c") for key, _ in rows]
    assert len(found) == 199
    await store.close()


async def test_a_copied_location_is_made_synchronous_again(tmp_path: Path) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    await commit(store, 1)
    await store.close()
    if not disk.is_synchronous(tmp_path / "d" / "store"):
        pytest.skip("this file system has no synchronous folders")
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    copied = tmp_path / "copy" / "store"
    assert not disk.is_synchronous(copied / "manifest")
    store = await FolderStore.open(tmp_path / "copy", clock=SystemClock())
    assert disk.is_synchronous(copied / "manifest")
    assert disk.is_synchronous(copied / "compacted")
    await store.close()


def test_changing_the_directory_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "b")
    with penstock.open("data") as db:
        db.stream("s").write(b"b")
    monkeypatch.chdir(tmp_path / "a")
    db = penstock.open("data")
    db.stream("s").write(b"a")
    monkeypatch.chdir(tmp_path / "b")
    stream = db.stream("s")
    for _ in range(5):
        stream.write(os.urandom(8 << 20))  # more than a segment of the journal
    db.close()
    for name, length in (("a", 6), ("b", 1)):
        with penstock.open(tmp_path / name / "data") as db:
            assert db.stream("s").info().length == length
            head = db.stream("s").read(0, 1)[0]
            assert head is not None
            assert head.data == name.encode()


def test_a_forked_child_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    db = penstock.open(tmp_path / "d")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent is done
        os._exit(0)
    try:
        db.close()
        penstock.open(tmp_path / "d").close()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
        os.close(read_end)


async def test_a_missing_log_row_is_corruption_and_not_an_empty_stream(tmp_path: Path) -> None:
    from penstock.codec.keys import log_key

    with penstock.open(tmp_path / "d") as db:
        db.stream("s").write(b"precious")
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    await store.commit(
        store.head().n + 1, [(log_key(1), None)], time_ms=store.head().time_ms, epoch=store.epoch
    )
    await store.close()

    def use() -> None:
        with penstock.open(tmp_path / "d") as db:
            db.stream("s").write(b"other")

    with pytest.raises(CorruptError, match="is missing"):
        await asyncio.to_thread(use)
