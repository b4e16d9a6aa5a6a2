"""The folder of a table, while two processes work on one staging: the one that cleared it away, and
the one that was silent and wakes up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.ingest import tablefolder
from penstock.spark.ingest.tablefolder import put, remove, table_uri
from penstock.store import disk

STAGED = "splits/x-1"


def names(table: Path) -> list[str]:
    return sorted(path.name for path in (table / STAGED).glob("*"))


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\nb"])
def test_a_path_that_delta_would_take_for_another_one_is_no_table(name: str) -> None:
    with pytest.raises(InvalidError, match="the path of a table cannot have"):
        table_uri(f"/tables/{name}")
    assert table_uri("/tables/ä b#1?") == "/tables/ä b#1?"


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove(str(tmp_path), STAGED)
    remove(str(tmp_path), STAGED, keep={f"{STAGED}/a.parquet"})


def test_removing_leaves_what_is_kept_and_else_not_even_the_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(str(tmp_path), f"{STAGED}/{name}", b"data")
    remove(str(tmp_path), STAGED, keep={f"{STAGED}/a"})
    assert names(tmp_path) == ["a"]
    remove(str(tmp_path), STAGED)
    assert not (tmp_path / STAGED).exists()


def test_a_split_is_put_though_its_folder_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tablefolder._make_folders
    removed: list[Path] = []

    def made(folder: Path) -> None:
        make(folder)
        if folder.name == "x-1" and len(removed) < 2:
            removed.append(folder)
            shutil.rmtree(folder)

    monkeypatch.setattr(tablefolder, "_make_folders", made)
    put(str(tmp_path), f"{STAGED}/a", b"data")
    assert len(removed) == 2
    assert (tmp_path / STAGED / "a").read_bytes() == b"data"


def test_a_split_that_is_removed_before_it_is_durable_is_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = disk.sync_folder
    removed: list[Path] = []

    def synced(folder: Path) -> None:
        if folder.name == "x-1" and not removed:
            removed.append(folder)
            shutil.rmtree(folder)
        sync(folder)

    monkeypatch.setattr(tablefolder, "sync_folder", synced)
    put(str(tmp_path), f"{STAGED}/a", b"data")
    assert removed
    assert (tmp_path / STAGED / "a").read_bytes() == b"data"


def test_a_folder_that_is_removed_again_and_again_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablefolder, "_make_folders", lambda folder: None)
    with pytest.raises(UnavailableError, match="No such file"):
        put(str(tmp_path), f"{STAGED}/a", b"data")


def test_a_split_that_comes_while_its_folder_is_removed_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(str(tmp_path), f"{STAGED}/a", b"data")
    rmdir = Path.rmdir
    late: list[str] = []

    def busy(self: Path) -> None:
        if not late:
            late.append("b")
            put(str(tmp_path), f"{STAGED}/b", b"data")
        rmdir(self)

    monkeypatch.setattr(Path, "rmdir", busy)
    remove(str(tmp_path), STAGED)
    assert late
    assert not (tmp_path / STAGED).exists()
