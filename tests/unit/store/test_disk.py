"""What the folder store asks of the file system."""

from __future__ import annotations

from pathlib import Path

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
