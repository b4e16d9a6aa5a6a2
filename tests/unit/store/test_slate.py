"""What is ours in front of SlateDB: settings that took effect, errors in our words, safe paths."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import slatedb.uniffi as engine

from penstock.clock import SystemClock
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.store.folder import FolderStore
from penstock.store.location import folder_of, open_store
from penstock.store.port import StoppedError
from penstock.store.slate import COMMON, make_settings, translate


def test_a_setting_that_slatedb_does_not_know_is_a_bug_and_not_ignored() -> None:
    make_settings(COMMON, {"wal_enabled": False})
    with pytest.raises((AssertionError, KeyError)):
        make_settings({"compactor_options.pol_interval": "100ms"})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (engine.Error.Transaction("x"), ConflictError),
        (engine.Error.Closed(engine.CloseReason.FENCED, "x"), FencedError),
        (engine.Error.Closed(engine.CloseReason.CLEAN, "x"), InvalidError),
        (engine.Error.Closed(engine.CloseReason.PANIC, "x"), StoppedError),
        (engine.Error.Unavailable("x"), UnavailableError),
        (engine.Error.Invalid("x"), InvalidError),
        (engine.Error.Data("x"), CorruptError),
        (engine.Error.Internal("x"), StoppedError),
    ],
)
def test_every_error_of_the_engine_has_one_meaning(
    error: Exception, kind: type[PenstockError]
) -> None:
    assert type(translate(error)) is kind


async def test_an_open_store_refuses_to_be_pickled() -> None:
    store = await open_store("memory://pickle", clock=SystemClock())
    with pytest.raises(InvalidError, match="pickled"):
        pickle.dumps(store._rows)  # type: ignore[attr-defined]
    await store.close()


@pytest.mark.parametrize("name", ["with space", "ünïcode", "per%20cent", "a#b?c", "br{ace}", "~t"])
async def test_any_folder_name_works_and_nothing_is_written_beside_it(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    for n in (1, 2):
        store = await FolderStore.open(folder, clock=SystemClock())
        await store.commit(n, [(b"\x01\x0bk", b"%d" % n)], time_ms=n, epoch=store.epoch)
        await store.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert sorted(path.name for path in folder.iterdir()) == ["journal", "store"]


async def test_a_path_with_dots_is_the_folder_that_the_system_means(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    store = await FolderStore.open(tmp_path / "a" / ".." / "d", clock=SystemClock())
    await store.commit(1, [(b"\x01\x0bk", b"v")], time_ms=1, epoch=store.epoch)
    await store.checkpoint(lifetime_ms=60_000)
    await store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "d"]
    again = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    assert await again.get(b"\x01\x0bk") == b"v"
    await again.close()


async def test_durability_os_says_loudly_what_it_gives_up(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="power cut loses acknowledged data"):
        store = await FolderStore.open(tmp_path / "d", clock=SystemClock(), durability="os")
    await store.close()


async def test_a_folder_that_is_a_file_or_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(InvalidError, match="is a file"):
        await FolderStore.open(path, clock=SystemClock())
    with pytest.raises(NotFoundError, match="no such folder"):
        await FolderStore.open(tmp_path / "none", clock=SystemClock(), create=False)
    with pytest.raises(NotFoundError, match="not a Penstock location"):
        await FolderStore.open(tmp_path, clock=SystemClock(), create=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("./data", Path("data").absolute()),
        ("/x/y", Path("/x/y")),
        ("file:///x/a%20b", Path("/x/a b")),
        ("s3://bucket/p", None),
        ("memory://m", None),
    ],
)
def test_a_location_names_a_folder_or_something_else(location: str, folder: Path | None) -> None:
    assert folder_of(location) == folder


@pytest.mark.parametrize(
    "location",
    ["", "ftp://x/y", "s3://", "s3://b/../x", "s3://b/x//y", "s3://b/.", "file://host/x", "a\0b"],
)
async def test_a_string_that_is_no_location_is_refused(location: str) -> None:
    with pytest.raises(InvalidError):
        await open_store(location, clock=SystemClock())
