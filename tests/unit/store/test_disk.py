"""What the folder store asks of the file system."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from penstock.store import disk


def test_a_file_system_that_does_not_pass_its_flags_on_is_not_synchronous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As btrfs: the folder takes the flags, and what is made in it has none."""
    if not disk.make_synchronous(tmp_path):
        pytest.skip("the file system has no synchronous folders at all")
    assert disk.is_synchronous(tmp_path)
    monkeypatch.setattr(disk, "_flags", lambda path: 0)
    assert not disk.make_synchronous(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("calls", range(1, 7))
def test_a_kill_while_folders_are_made_leaves_no_name_that_is_never_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """`calls` is how many names are made or synced before the kill. Then the next one comes."""
    left, synced = [calls], set[Path]()
    mkdir, sync_folder = Path.mkdir, disk.sync_folder

    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    def made(path: Path, *args: Any, **options: Any) -> None:
        if not path.exists():
            step()
        mkdir(path, *args, **options)

    def told(path: Path) -> None:
        step()
        sync_folder(path)
        synced.update(path.iterdir())

    monkeypatch.setattr(Path, "mkdir", made)
    monkeypatch.setattr(disk, "sync_folder", told)
    deep = tmp_path / "a" / "b" / "c" / "d"
    with contextlib.suppress(KeyboardInterrupt):
        disk.make_folder(deep, sync=True)
    left[0] = 100
    disk.make_folder(deep, sync=True)
    # The last one's own name is made durable by whoever uses it (opening.py).
    assert {tmp_path / "a", *deep.parents[:2]} <= synced


def test_a_folder_above_that_may_not_be_read_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/home may be one that users go through and cannot list."""
    home = tmp_path / "home" / "user"
    home.mkdir(parents=True)
    sync_folder, synced = disk.sync_folder, list[Path]()

    def refused(path: Path) -> None:
        if path == tmp_path / "home":
            raise PermissionError(13, "Permission denied")
        sync_folder(path)
        synced.append(path)

    monkeypatch.setattr(disk, "sync_folder", refused)
    disk.make_folder(home / "data" / "journal", sync=True)
    assert synced == [home, home / "data"]
