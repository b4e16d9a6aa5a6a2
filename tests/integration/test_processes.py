"""Handles and processes: forks, pickles, scripts that just end, second openers, odd paths."""

from __future__ import annotations

import atexit
import copy
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from integration.children import Child


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with penstock.open(tmp_path / "data") as opened:
        opened.stream("mixed").write(b"first")
        yield opened


def outcome_in_fork(call: Callable[[], object]) -> str:
    """What a call comes to in a forked child: the error's name, or `returned`, or `hangs`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child: no pytest, no atexit
        try:
            call()
            answer = "returned"
        except BaseException as error:
            answer = type(error).__name__
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with Patience(pid):
        answer = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    return answer or "hangs"


class Patience:
    """Kills a child that takes too long, so that its pipe ends."""

    def __init__(self, pid: int) -> None:
        self._timer = threading.Timer(20.0, os.kill, (pid, 9))

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.stream("mixed").write(b"x"),
        lambda db: db.stream("mixed").write_many([b"x"]),
        lambda db: db.stream("mixed").read(0),
        lambda db: db.stream("mixed").info(),
        lambda db: db.stream("mixed").to_arrow(),
        lambda db: db.stream("mixed").evict(keep=0),
        lambda db: db.close(),
    ],
    ids=["write", "write_many", "read", "info", "to_arrow", "evict", "close"],
)
def test_a_forked_child_that_uses_its_parents_handle_is_refused_at_once(
    db: penstock.Database, call: Callable[[penstock.Database], object]
) -> None:
    assert outcome_in_fork(lambda: call(db)) == "InvalidError"
    assert db.stream("mixed").write(b"the parent goes on") == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_the_parents_location_open(db: penstock.Database) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            atexit._run_exitfuncs()  # what a child that ends normally runs
        finally:
            os._exit(0)
    with Patience(pid):
        assert os.waitpid(pid, 0)[1] == 0
    assert db.stream("mixed").write(b"the parent goes on") == 1
    with Child("opener", db.location) as other:
        assert other.hear().startswith("UnavailableError ")


@pytest.mark.parametrize("copier", [pickle.dumps, copy.deepcopy])
def test_handles_refuse_to_be_pickled(
    db: penstock.Database, copier: Callable[[object], object]
) -> None:
    for handle in (db, db.stream("mixed")):
        with pytest.raises(penstock.InvalidError):
            copier(handle)


def test_a_script_that_ends_without_close_loses_nothing_and_says_nothing(tmp_path: Path) -> None:
    with Child("forgetful_script", tmp_path / "data", 50) as script:
        assert script.finish() == 0
        assert script.errors() == ""
        assert script.drain() == []
    with penstock.open(tmp_path / "data") as db:
        found = [message.data for message in db.stream("mixed").read(0, 100) if message]
    assert found == [f"entry {number}".encode() for number in range(50)]


def test_the_second_process_that_opens_a_folder_is_told_who_has_it(tmp_path: Path) -> None:
    location = tmp_path / "data"
    with Child("opener", location) as first, Child("opener", location) as second:
        answers = sorted([first.hear(), second.hear()])
        refused, opened = answers
        assert opened == "open"
        assert refused.startswith("UnavailableError ")
        assert "is open in another process" in refused
        assert str(first.pid) in refused or str(second.pid) in refused
        assert "close it there" in refused


def test_a_second_handle_in_the_same_process_is_refused(db: penstock.Database) -> None:
    with pytest.raises(penstock.UnavailableError, match="is open in"):
        penstock.open(db.location)


@pytest.mark.parametrize(
    "name",
    [
        "with spaces",
        "ünïcödé 数据 🚰",
        "50% off",
        "%20",
        "a#b?c&d=e",
        "semi;colon'quote\"",
        "back\\slash",
        "new\nline",
        "..dots..",
        "~tilde",
        "x" * 200,
    ],
)
def test_a_folder_of_any_name_works_and_leaves_no_stray_folders(tmp_path: Path, name: str) -> None:
    location = tmp_path / name / "data"
    for number in range(3):
        with penstock.open(location) as db:
            assert db.stream("mixed").write(b"x" * number) == number
    with penstock.open(location) as db:
        found = [message.data for message in db.stream("mixed").read(0, 9) if message]
    assert found == [b"", b"x", b"xx"]
    assert os.listdir(tmp_path) == [name]
    assert os.listdir(tmp_path / name) == ["data"]
    assert sorted(os.listdir(location)) == ["broker", "journal", "store"]


def test_a_path_of_more_than_three_hundred_characters_works(tmp_path: Path) -> None:
    location = tmp_path.joinpath(*["p" * 60] * 6)
    assert len(str(location)) > 300
    with penstock.open(location) as db:
        db.stream("mixed").write(b"x")
    with penstock.open(location) as db:
        assert db.stream("mixed").info().length == 1


def test_a_relative_path_is_fixed_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with penstock.open("data") as db:
        db.stream("mixed").write(b"x")
        monkeypatch.chdir(tmp_path / "there")
        db.stream("mixed").write_many([b"y" * 1000] * 1000)
    assert os.listdir(tmp_path / "there") == []
    with penstock.open(tmp_path / "here" / "data") as db:
        assert db.stream("mixed").info().length == 1001
