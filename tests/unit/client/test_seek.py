"""Starting a broker outside: a process of its own, which nobody waits for."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from pathlib import Path

import pytest

import penstock
from penstock.client import seek
from penstock.clock import SystemClock
from penstock.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)


class HandClock(SystemClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_nobody_is_warned_of_an_outside_broker_that_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It should: it serves whoever comes next, and ends by itself when nobody does."""
    broker = tmp_path / "broker"
    broker.write_text("#!/bin/sh\nexec sleep 60\n")
    broker.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(broker))
    process = seek.start_outside(tmp_path / "location")
    pid = process.pid
    assert process.poll() is None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        seek._started.remove(process)
        del process
        gc.collect()
    assert [str(warning.message) for warning in warned] == []
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[0] == pid


def test_a_broker_that_cannot_be_started_leaves_nothing_to_be_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(FileNotFoundError):
            seek.start_outside(tmp_path / "location")
        gc.collect()
    assert warned == []


def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> tuple[seek.Starter, HandClock]:
    """A starter whose broker is this script, which has ended."""
    broker = tmp_path / "broker"
    broker.write_text(f"#!/bin/sh\n{script}\n")
    broker.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(broker))
    log = tmp_path / "location" / "broker" / seek.LOG_NAME
    log.parent.mkdir(parents=True)
    log.write_text("penstock: of yesterday\n  hint: forget it\n")
    clock = HandClock()
    starter = seek.Starter(tmp_path / "location", clock)
    starter.start()
    assert starter._process is not None
    starter._process.wait()
    return starter, clock


@pytest.mark.parametrize(
    ("script", "kind", "message", "hint"),
    [
        (
            "echo 'penstock: the store is damaged' >&2; echo '  hint: restore it' >&2; exit 7",
            CorruptError, "{folder}: the store is damaged", "restore it",
        ),
        (
            "echo 'penstock: {folder} is a file' >&2; echo '  hint: name a folder' >&2; exit 2",
            InvalidError, "{folder} is a file", "name a folder",
        ),
        ("echo 'penstock: x' >&2; exit 3", NotFoundError, "{folder}: x", NotFoundError.hint),
        (
            "echo 'Traceback' >&2; echo '  File x' >&2; echo '' >&2; echo 'Oh: no' >&2; exit 1",
            UnavailableError,
            "{folder}: its broker ended with 1: Traceback / File x / Oh: no", "see {log}",
        ),
        (
            "kill -ABRT $$", UnavailableError,
            "{folder}: its broker ended with -6: without a word", "see {log}",
        ),
    ],
)  # fmt: skip
def test_a_broker_that_cannot_serve_is_told_at_once_in_its_own_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    kind: type[PenstockError],
    message: str,
    hint: str,
) -> None:
    places = {
        "folder": tmp_path / "location",
        "log": tmp_path / "location" / "broker" / seek.LOG_NAME,
    }
    starter, _ = started(tmp_path, monkeypatch, script.format(**places))
    with pytest.raises(kind) as raised:
        starter.start()
    assert str(raised.value) == message.format(**places)
    assert raised.value.hint == hint.format(**places)


@pytest.mark.parametrize("script", ["exit 0", "exit 5", "exit 6", "kill -KILL $$"])
def test_a_broker_that_others_were_faster_than_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    starter, clock = started(tmp_path, monkeypatch, script)
    before = starter._process
    starter.start()
    assert starter._process is before, "not at once"
    clock.now += seek.START_AGAIN_SECONDS
    starter.start()
    assert starter._process is not before


def test_a_module_in_the_working_folder_is_none_of_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "json", "penstock"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of a user')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seek, "IDLE_EXIT_SECONDS", 2)
    with penstock.open(tmp_path / "location", broker="outside") as db:
        db.stream("s").write(b"x")


def test_nobody_starts_python_where_the_working_folder_counts() -> None:
    package = Path(penstock.__file__).parent
    starts = [
        (path.name, line.strip())
        for path in sorted(package.rglob("*.py"))
        for line in path.read_text().splitlines()
        if "sys.executable" in line and '"-m"' in line
    ]
    assert starts
    assert [each for each in starts if '"-P"' not in each[1]] == []
