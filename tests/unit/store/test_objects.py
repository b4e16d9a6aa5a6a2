"""Payloads beside the store: what a put leaves behind that did not end well, and what the end of a
process means."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.store.objects import FolderObjects


async def test_a_put_on_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is never used again, so that nobody would write over it."""
    objects, write = FolderObjects(tmp_path, sync=False), os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:50])

    monkeypatch.setattr("penstock.store.disk.os.write", full)
    with pytest.raises(UnavailableError, match="No space left"):
        await objects.put(7, bytes(100))
    assert list((tmp_path / "payloads").iterdir()) == []


async def test_what_a_killed_put_left_is_found_and_deleted_as_an_object(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path, sync=False)
    await objects.put(7, b"whole")
    (tmp_path / "payloads" / "8.tmp").write_bytes(b"hal")
    assert await objects.numbers() == [7, 8]
    await objects.delete(8)
    assert await objects.numbers() == [7]
    assert await objects.get(7) == b"whole"


async def test_in_a_process_that_ends_objects_are_out_of_reach_and_that_is_no_bug(
    tmp_path: Path,
) -> None:
    objects = FolderObjects(tmp_path, sync=False)
    executor = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    executor.shutdown()  # as an interpreter does before it calls what was registered for its end
    with pytest.raises(UnavailableError, match="shutdown"):
        await objects.numbers()
