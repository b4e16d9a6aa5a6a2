"""The guard of SlateDB's manifests: no single flipped bit in one makes rows disappear."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import penstock
from penstock.errors import CorruptError
from penstock.store import guard


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guard") / "data"
    for _ in range(3):
        with penstock.open(folder) as db:
            db.stream("a").write_many([b"x" * 100] * 1500)
    return folder


def copy(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target, copy_function=os.link)
    _, path = guard._newest(target) or pytest.fail("there is no manifest")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return path


def test_every_flipped_bit_of_the_newest_manifest_is_seen(closed: Path, tmp_path: Path) -> None:
    path = copy(closed, tmp_path / "copy")
    intact = path.read_bytes()
    guard.check(tmp_path / "copy")
    for place in range(len(intact)):
        data = bytearray(intact)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(data))
        with pytest.raises(CorruptError, match="is not what was written"):
            guard.check(tmp_path / "copy")


def test_opening_looks_at_the_guard(closed: Path, tmp_path: Path) -> None:
    path = copy(closed, tmp_path / "copy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptError, match="is not what was written"):
        penstock.open(tmp_path / "copy")


def test_a_newest_manifest_that_is_gone_is_seen(closed: Path, tmp_path: Path) -> None:
    copy(closed, tmp_path / "copy").unlink()
    with pytest.raises(CorruptError, match="was written, the newest that is there is"):
        penstock.open(tmp_path / "copy")


def test_a_damaged_guard_says_so_and_a_missing_one_harms_nobody(
    closed: Path, tmp_path: Path
) -> None:
    copy(closed, tmp_path / "copy")
    path = tmp_path / "copy" / "journal" / "manifests"
    data = path.read_bytes()
    path.unlink()
    for damaged in (b"", data[:-3], b"x" + data[1:], data[:20] + b"\xff" + data[21:]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match="manifests: is damaged"):
            penstock.open(tmp_path / "copy")
    path.unlink()
    with penstock.open(tmp_path / "copy") as db:
        assert db.stream("a").info().length == 4500


def test_a_newer_manifest_than_the_one_that_was_seen_is_taken_as_it_is(
    closed: Path, tmp_path: Path
) -> None:
    path = copy(closed, tmp_path / "copy")
    newer = path.with_name(f"{int(path.stem) + 1:020d}.manifest")
    newer.write_bytes(path.read_bytes())
    guard.check(tmp_path / "copy")
    guard.watch(tmp_path / "copy", sync=False)
    assert int(newer.stem) in guard._read(tmp_path / "copy")


def test_without_synchronous_folders_a_manifest_that_no_sync_covered_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on XFS, where a power cut leaves the name of a new file without its bytes."""
    monkeypatch.setattr("penstock.store.disk.make_synchronous", lambda path: False)
    folder = tmp_path / "d"
    with penstock.open(folder) as db:
        number, path = guard._newest(folder) or pytest.fail("there is no manifest")
        assert number in guard._read(folder), "there is one to fall back to from the first moment"
        db.stream("s").write(b"x")
    number, path = guard._newest(folder) or pytest.fail("there is no manifest")
    path.with_name(f"{number + 1:020d}.manifest").write_bytes(b"")
    with penstock.open(folder) as db:
        assert db.stream("s").info().length == 1


def test_with_synchronous_folders_the_newest_manifest_must_be_whole(
    closed: Path, tmp_path: Path
) -> None:
    path = copy(closed, tmp_path / "copy")
    path.with_name(f"{int(path.stem) + 1:020d}.manifest").write_bytes(b"")
    with pytest.raises(CorruptError):
        penstock.open(tmp_path / "copy")
