"""Which store a string names, and what is said of a string that names none."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.errors import InvalidError, NotFoundError, UnavailableError
from penstock.store.location import SCHEMES, folder_of, open_store


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("~", "home"),
        ("~/a/b", "home/a/b"),
        ("./~", "here/~"),
        ("a/~", "here/a/~"),
        ("a~", "here/a~"),
        ("a:b", "here/a:b"),
        ("2026-01-01T10:00:00/x", "here/2026-01-01T10:00:00/x"),
        ("./s3:/bucket", "here/s3:/bucket"),
    ],
)
def test_a_tilde_in_front_is_the_home_and_a_colon_alone_is_part_of_a_name(
    location: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder_of(location) == tmp_path / folder


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("../data", "data"),
        ("sub/../data", "here/data"),
        ("link/../data", "far/data"),
        ("~/../data", "data"),
        ("file://{}/here/../data", "data"),
    ],
)
def test_a_path_that_goes_up_leads_where_the_system_says(
    location: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "far/away", "home"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for n in range(2):
        with penstock.open(location.format(tmp_path)) as db:
            assert db.stream("s").write(b"x") == n
    assert list((tmp_path / folder / "store" / "manifest").iterdir())
    assert [path.name for path in tmp_path.rglob("*") if "%" in path.name] == []


def test_a_database_in_the_home_leaves_no_folder_named_like_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with penstock.open("~/pp") as db:
        db.stream("s").write(b"x")
    assert list(Path().iterdir()) == []
    assert (tmp_path / "home" / "pp" / "journal").is_dir()


@pytest.mark.parametrize(
    "location",
    [
        "s3:bucket",
        "s3:/bucket",
        "s3:///bucket",
        "S3:/bucket",
        "S3://bucket",
        "gs:/bucket",
        "memory:x",
        "memory:/x",
        "file:data",
        "file:/data",
        "file://",
        "file://data",
        "file:///data?x",
        "file:///data#x",
        "ftp:/x",
        "ftp://x/y",
        "C:/data",
        "~nobody-has-this-name/x",
    ],
)
async def test_what_looks_like_another_kind_of_location_is_refused_and_creates_nothing(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError) as refused:
        await open_store(location, clock=SystemClock())
    with pytest.raises(InvalidError):
        penstock.open(location)
    assert location in str(refused.value)
    assert list(tmp_path.iterdir()) == []


async def test_an_unknown_scheme_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidError) as refused:
        await open_store("ftp://x/y", clock=SystemClock())
    assert all(f"{scheme}://" in refused.value.hint for scheme in SCHEMES)


@pytest.mark.parametrize("location", ["memory://durability", "folder"])
def test_a_wrong_durability_is_refused_before_anything_is_created(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: Any = "maybe"
    with pytest.raises(InvalidError, match="durability"):
        penstock.open(location, durability=wrong)
    assert list(tmp_path.iterdir()) == []


async def test_a_location_in_memory_that_does_not_exist_is_named() -> None:
    with pytest.raises(NotFoundError, match="memory://location-none"):
        await open_store("memory://location-none", clock=SystemClock(), create=False)


@pytest.mark.parametrize("error", [UnavailableError("down"), OSError("down")])
@pytest.mark.parametrize("location", ["s3://bucket/prefix", "memory://down", "folder"])
def test_a_location_that_does_not_open_says_nothing_about_writes(
    location: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("penstock.store.location.reach", AsyncMock())
    monkeypatch.setattr("penstock.store.location.BucketStore.open", broken)
    monkeypatch.setattr("penstock.store.location.FolderStore._open", broken)
    with pytest.raises(UnavailableError, match="down") as refused:
        penstock.open(location)
    assert refused.value.hint == "retry later"


def test_a_location_that_hangs_while_it_opens_says_nothing_about_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("penstock.store.location.FolderStore.open", hang)
    with pytest.raises(UnavailableError, match="did not open in time") as refused:
        penstock.open(tmp_path)
    assert "write" not in refused.value.hint
