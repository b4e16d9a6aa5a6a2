"""Which files of a folder are complete."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

import penstock
from penstock.cli.watch_folder import (
    Found,
    Settling,
    Version,
    being_written,
    list_files,
    uri_of,
)
from penstock.spark.ingest.tablefolder import staging_folder

SECOND = 1_000_000_000


def names(folder: Path, **options: object) -> list[str]:
    return sorted(list_files(folder, **options).files)  # type: ignore[arg-type]


def touch(path: Path, data: bytes = b"{}\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("a.json", True),
        ("no ending", True),
        ("sub/deep/ünï cödé.json.gz", True),
        ("100%.json", True),
        (".hidden.json", False),
        (".folder/a.json", False),
        ("_SUCCESS", False),
        ("_temporary/0/part-0.json", False),
        ("a.json.part", False),
        ("a.JSON.TMP", False),
        ("a.json._COPYING_", False),
        ("a.json~", False),
        ("table/_delta_log/0.json", False),
        (f"table/{staging_folder('0123456789ab', 7)}/{'f' * 32}.parquet", False),
        (f"{staging_folder('0123456789ab', 7)}/{'f' * 32}.parquet", False),
        ("splits/2026-11/a.parquet", True),
    ],
)
def test_what_is_listed_by_its_name(name: str, listed: bool, tmp_path: Path) -> None:
    touch(tmp_path / name)
    assert names(tmp_path) == ([name] if listed else [])


def test_the_files_of_a_table_and_what_lies_below_it_are_not_listed(tmp_path: Path) -> None:
    for name in ("table/part.parquet", "table/more/part.parquet", "table/_delta_log/0.json", "b"):
        touch(tmp_path / name)
    assert names(tmp_path) == ["b"]


def test_links_and_pipes_are_not_listed_and_linked_folders_not_entered(tmp_path: Path) -> None:
    touch(tmp_path / "in/a.json")
    touch(tmp_path / "out/b.json")
    (tmp_path / "in/link.json").symlink_to("a.json")
    (tmp_path / "in/folder").symlink_to(tmp_path / "out")
    os.mkfifo(tmp_path / "in/pipe.json")
    assert names(tmp_path / "in") == ["a.json"]


def test_patterns_and_flat_folders_narrow_a_listing(tmp_path: Path) -> None:
    for name in ("a.json", "b.csv", "sub/c.json"):
        touch(tmp_path / name)
    assert names(tmp_path, patterns=["*.json"]) == ["a.json", "sub/c.json"]
    assert names(tmp_path, patterns=["*.csv", "a*"]) == ["a.json", "b.csv"]
    assert names(tmp_path, recursive=False) == ["a.json", "b.csv"]


def test_no_location_is_listed_whoever_serves_it_and_folders_of_such_names_are(
    tmp_path: Path,
) -> None:
    """One that is served elsewhere, or another one: its files change with every commit."""
    for name in ("served", "by/another"):
        with penstock.open(tmp_path / name) as db:
            db.stream("s").write(b"x")
    for name in ("a.json", "books/journal/1.json", "books/store/2.json", "books/broker/3.json"):
        touch(tmp_path / name)
    assert names(tmp_path) == [
        "a.json", "books/broker/3.json", "books/journal/1.json", "books/store/2.json",
    ]  # fmt: skip


def test_a_folder_below_that_cannot_be_read_is_a_trouble_and_the_rest_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "a.json")
    touch(tmp_path / "locked/b.json")
    scandir = os.scandir

    def guarded(path: Path) -> object:
        if path == tmp_path / "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("penstock.cli.watch_folder.os.scandir", guarded)
    listing = list_files(tmp_path)
    assert list(listing.files) == ["a.json"]
    assert listing.troubles == [f"{tmp_path / 'locked'}: Permission denied"]
    monkeypatch.setattr(
        "penstock.cli.watch_folder.os.scandir", lambda _: (_ for _ in ()).throw(OSError)
    )
    with pytest.raises(OSError):  # noqa: PT011 - whatever it is, it is not an empty folder
        list_files(tmp_path)


def test_a_uri_is_percent_encoded_whatever_the_name() -> None:
    assert uri_of(Path("/in"), "a b/ü%.json") == "file:///in/a%20b/%C3%BC%25.json"
    assert uri_of(Path("/in"), os.fsdecode(b"\xff#?.json")) == "file:///in/%FF%23%3F.json"


# ---- settling ---------------------------------------------------------------------------------


def at(
    settling: Settling, second: float, files: dict[str, Found], *, wall: float | None = None
) -> list[str]:
    return settling.settled(
        files,
        {},
        wall_ns=int((1000 + second if wall is None else wall) * SECOND),
        monotonic_ns=int(second * SECOND),
    )


def found(size: int, changed: float) -> Found:
    return Found(Version(size, int(changed * SECOND)), int(changed * SECOND))


def test_a_file_that_lies_there_for_long_is_settled_at_first_sight() -> None:
    settling = Settling(2 * SECOND)
    assert at(settling, 5, {"a": found(1, 1003), "b": found(1, 1003.5)}) == ["a"]


def test_a_file_that_grows_is_not_settled_until_it_stops() -> None:
    settling = Settling(2 * SECOND)
    for second in range(10):
        assert at(settling, second, {"a": found(second, 1000 + second)}) == []
    assert at(settling, 10.9, {"a": found(9, 1009)}) == []
    assert at(settling, 11, {"a": found(9, 1009)}) == ["a"]


def test_a_file_of_the_future_is_settled_when_it_was_seen_unchanged_for_long_enough() -> None:
    settling = Settling(2 * SECOND)
    ahead = found(1, 9_000)
    assert at(settling, 0, {"a": ahead}) == []
    assert at(settling, 1.9, {"a": ahead}) == []
    assert at(settling, 1.95, {"a": found(2, 9_000)}) == []
    assert at(settling, 3.9, {"a": found(2, 9_000)}) == []
    assert at(settling, 3.95, {"a": found(2, 9_000)}) == ["a"]


def test_a_changed_name_or_owner_begins_the_settling_anew() -> None:
    settling = Settling(2 * SECOND)
    moved = Found(Version(1, 0), 1000 * SECOND)  # its content is old, its name is new
    assert at(settling, 1, {"a": moved}) == []
    assert at(settling, 2, {"a": moved}) == ["a"]


def test_what_was_announced_is_not_settled_again_unless_its_content_changed() -> None:
    settling = Settling(0)
    old, new = found(1, 1), found(1, 2)
    announced = {"a": old.version, "b": old.version}
    assert settling.settled(
        {"a": old, "b": new}, announced, wall_ns=9 * SECOND, monotonic_ns=0
    ) == ["b"]
    assert settling.waiting == 1
    settling.announced("b")
    assert settling.waiting == 0


def test_a_settled_file_waits_until_it_is_announced_or_gone() -> None:
    settling = Settling(0)
    assert at(settling, 1, {"a": found(1, 0)}) == ["a"]
    assert at(settling, 2, {"a": found(1, 0)}) == ["a"]
    assert settling.waiting == 1
    assert at(settling, 3, {}) == []
    assert settling.waiting == 0


# ---- open files -------------------------------------------------------------------------------


def test_a_file_that_somebody_has_open_for_writing_is_being_written(tmp_path: Path) -> None:
    path = touch(tmp_path / "a.json")
    assert not being_written(path)
    with path.open("ab"):
        assert being_written(path)
    with path.open("rb"):
        assert not being_written(path)
    assert not being_written(tmp_path / "gone")


def test_a_writer_that_comes_while_a_file_is_looked_at_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel sends a signal then, whose usual effect is the end of the process."""
    path = touch(tmp_path / "a.json")
    real, came = fcntl.fcntl, []

    def with_a_writer(file: int, command: int, argument: int = 0) -> int:
        answer = real(file, command, argument)
        if argument == fcntl.F_RDLCK:
            with pytest.raises(BlockingIOError):
                os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            came.append(command)
        return answer

    monkeypatch.setattr("penstock.cli.watch_folder.fcntl.fcntl", with_a_writer)
    assert not being_written(path)
    assert came == [fcntl.F_SETLEASE]
