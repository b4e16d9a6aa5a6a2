"""Handles and processes: forks, pickles, scripts that just end, many openers, odd paths."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from integration.children import Child
from penstock.broker.lock import FolderLock, HeldError, highest_term, lock_path
from penstock.client import seek


def ask(child: Child, line: str) -> str:
    child.tell(line)
    return child.hear()


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
        lambda db: db.stream("mixed"),
        lambda db: db.close(),
    ],
    ids=["write", "write_many", "read", "info", "to_arrow", "evict", "stream", "close"],
)
def test_a_forked_child_that_uses_its_parents_handle_is_refused_at_once(
    db: penstock.Database, call: Callable[[penstock.Database], object]
) -> None:
    assert outcome_in_fork(lambda: call(db)) == "InvalidError"
    assert db.stream("mixed").write(b"the parent goes on") == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_handle_that_a_forked_child_closed_still_says_whose_it_is(db: penstock.Database) -> None:
    stream = db.stream("mixed")

    def use() -> None:
        with contextlib.suppress(penstock.InvalidError):
            db.close()
        for call in (stream.info, db.streams, lambda: db.stream("other")):
            with pytest.raises(penstock.InvalidError, match="belongs to the process that opened"):
                call()

    assert outcome_in_fork(use) == "returned"
    assert stream.write(b"the parent goes on") == 1


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
    with Child("talker", db.location) as other:
        assert other.hear() == "open"
        assert ask(other, "serves") == "serves no"
        assert ask(other, "write x") == "wrote 0"


@pytest.mark.parametrize("copier", [pickle.dumps, copy.deepcopy])
def test_handles_refuse_to_be_pickled(
    db: penstock.Database, copier: Callable[[object], object]
) -> None:
    for handle in (db, db.stream("mixed")):
        with pytest.raises(penstock.InvalidError):
            copier(handle)


@pytest.mark.parametrize("count", [0, 50])
def test_a_script_that_ends_without_close_loses_nothing_and_says_nothing(
    tmp_path: Path, count: int
) -> None:
    with Child("forgetful_script", tmp_path / "data", count) as script:
        assert script.finish() == 0
        assert script.errors() == ""
        assert script.drain() == []
    assert os.listdir(tmp_path / "data" / "broker") == ["1.lock"], "it was closed in order"
    with penstock.open(tmp_path / "data") as db:
        found = [message.data for message in db.stream("mixed").read(0, 100) if message]
    assert found == [f"entry {number}".encode() for number in range(count)]


def test_of_processes_that_open_a_folder_at_once_one_serves_and_all_work(tmp_path: Path) -> None:
    with Child("racer") as first, Child("racer") as second, Child("racer") as third:
        children = (first, second, third)
        for round_ in range(20):
            location = tmp_path / f"d{round_ % 5}"  # new ones, and some that were used before
            for child in children:
                child.tell(f"go {location}")
            answers = [child.hear().split(" ") for child in children]
            assert sorted(answer[1] for answer in answers) == ["no", "no", "yes"]
            before = 3 * (round_ // 5)
            assert sorted(int(answer[2]) for answer in answers) == [before, before + 1, before + 2]
            for child in children:
                child.tell("end")
            assert [child.hear() for child in children] == ["closed"] * 3
        assert "".join(child.errors() for child in children) == ""


def test_a_second_handle_in_the_same_process_is_a_client_and_takes_over(
    db: penstock.Database,
) -> None:
    with penstock.open(db.location) as second:
        assert second._session.link.broker is None
        assert second.stream("mixed").write(b"second") == 1
        db.close()
        assert second.stream("mixed").write(b"third") == 2
        assert second._session.link.broker is not None


def test_a_folder_that_somebody_uses_alone_is_unavailable_after_the_deadline(
    tmp_path: Path,
) -> None:
    lock = FolderLock(tmp_path)  # as `penstock check` does
    with pytest.raises(penstock.UnavailableError, match=f"process {os.getpid()}"):
        penstock.open(tmp_path, deadline=0.2)
    lock.release()
    penstock.open(tmp_path).close()


# Forks.


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_opens_the_folder_itself_is_a_client_of_its_parent(
    db: penstock.Database,
) -> None:
    def use() -> None:
        with penstock.open(db.location) as own:
            assert own._session.link.broker is None
            assert own.stream("mixed").write(b"child") == 1
            assert [m and m.data for m in own.stream("mixed").read(0, 9)] == [b"first", b"child"]

    assert outcome_in_fork(use) == "returned"
    assert db.stream("mixed").write(b"the parent goes on") == 2


def sockets_of(pid: int) -> set[str]:
    """The sockets of a process, by inode."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {each for each in found if each.startswith("socket:")}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_no_copy_of_its_parents_connections(tmp_path: Path) -> None:
    """Broker and client know of each other's end by these: a copy would hide it."""
    location = tmp_path / "d"
    with Child("talker", location) as other:
        assert other.hear() == "open"
        sockets_before = sockets_of(os.getpid())
        db = penstock.open(location)  # a client
        assert db.stream("s").write(b"0") == 0
        ready, begun = os.pipe()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.write(begun, b"x")
            os.read(reader, 1)  # until the test ends
            os._exit(0)
        try:
            os.read(ready, 1)
            for descriptor in (reader, ready, begun):
                os.close(descriptor)
            assert sockets_of(os.getpid()) - sockets_before
            assert not sockets_of(pid) & (sockets_of(os.getpid()) - sockets_before)
            assert db.stream("s").write(b"1") == 1, "the parent's own are as they were"
        finally:
            db.close()
            os.close(writer)
            os.waitpid(pid, 0)


def test_a_broker_that_forked_and_was_killed_is_noticed_at_once(tmp_path: Path) -> None:
    with Child("forker", tmp_path) as broker:
        assert broker.hear() == "open"
        child = int(broker.hear())
        try:
            with penstock.open(tmp_path) as db:
                assert db.stream("s").write(b"0") == 1
                broker.kill()
                # The child of the broker lives on; neither lock nor sockets do.
                assert db.stream("s").read(0, 1)[0] is not None
                assert db._session.link.broker is not None
                os.kill(child, 0)
        finally:
            os.kill(child, 9)


def test_a_fork_of_a_process_that_had_a_store_open_never_serves(tmp_path: Path) -> None:
    with Child("forker", tmp_path, "serve") as script:
        assert script.hear() == "open"
        assert int(script.hear()) > 0
        # The parent has closed: its child needs a broker, and starts one outside.
        assert script.hear() == "child serves no"
        assert script.hear() == "child wrote 1"
        assert script.finish() == 0, script.errors()
    end_outside(tmp_path)


# Outside.


def end_outside(location: Path) -> None:
    """End the process that serves, in order, and wait until the folder is free."""
    text = lock_path(location, highest_term(location)).read_text()
    os.kill(int(text.split()[1]), signal.SIGTERM)
    for _ in range(500):
        with contextlib.suppress(HeldError):
            FolderLock(location).release()
            return
        threading.Event().wait(0.02)
    raise AssertionError("it does not end")


def test_outside_a_process_of_its_own_serves_and_is_shared(tmp_path: Path) -> None:
    location = tmp_path / "d"
    with penstock.open(location, broker="outside") as db:
        assert db._session.link.broker is None
        assert db.stream("mixed").write(b"0") == 0
        with penstock.open(location, broker="outside") as again, penstock.open(location) as auto:
            assert again.stream("mixed").write(b"1") == 1
            assert auto._session.link.broker is None
            assert auto.stream("mixed").write(b"2") == 2
    with penstock.open(location) as db:  # it stays for a while, for the next short script
        assert db._session.link.broker is None
    end_outside(location)
    with penstock.open(location) as db:
        assert db._session.link.broker is not None
        assert db.stream("mixed").info().length == 3


def test_an_outside_broker_that_nobody_uses_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.seek.IDLE_EXIT_SECONDS", 0.5)
    with penstock.open(tmp_path, broker="outside") as db:
        db.stream("mixed").write(b"0")
    process = seek._started[-1]
    assert process.wait(30) == 0
    with penstock.open(tmp_path) as db:
        assert db._session.link.broker is not None
    log = (tmp_path / "broker" / "serve.log").read_text()
    assert "Traceback" not in log


def test_outside_says_what_is_wrong_with_the_location(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as db:
        db.stream("mixed").write(b"0")
    for path in (tmp_path / "store" / "manifest").iterdir():
        path.write_bytes(b"junk")
    with pytest.raises(penstock.CorruptError):
        penstock.open(tmp_path, broker="outside")


# Paths.


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
        with penstock.open(location) as client:
            assert client._session.link.broker is None
            assert client.stream("mixed").write(b"y") == 1
            with Child("talker", location) as other:
                assert other.hear() == "open"
                assert ask(other, "serves") == "serves no"
                assert ask(other, "write z") == "wrote 0"
            db.close()
            assert client.stream("mixed").write(b"z") == 2
    with penstock.open(location) as db:
        assert db.stream("mixed").info().length == 3


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
