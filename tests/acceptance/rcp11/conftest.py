"""Every test of this folder runs once per door; each door has one location for all of them.

A test gets a stream name of its own, so that tests do not see each other, and must not leave a
blocked reader behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest

from acceptance.rcp11.doors import PATIENCE_SECONDS, Door, numbered, until
from acceptance.rcp11.python_door import PythonDoor, waiting_at
from acceptance.rcp11.resp_door import RespDoor
from integration.resp_serve import Serve

TESTS = Path(__file__).parents[2]
_numbers = itertools.count(1)


@contextlib.contextmanager
def open_resp(folder: Path) -> Iterator[Door]:
    with Serve(folder) as server:
        door = RespDoor(server.port)
        yield door
        door.close()


@contextlib.contextmanager
def open_local(folder: Path) -> Iterator[Door]:
    door = PythonDoor(folder, "local", lambda: waiting_at(folder))
    yield door
    door.close()


@contextlib.contextmanager
def open_remote(folder: Path) -> Iterator[Door]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "acceptance.rcp11.host", str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines, asking = process.stdout, threading.Lock()
    ask = process.stdin

    def waiting() -> int:
        with asking:
            ask.write("waiting\n")
            ask.flush()
            return int(lines.readline())

    try:
        assert lines.readline() == "ready\n"
        door = PythonDoor(folder, "remote", waiting)
        yield door
        door.close()
        ask.close()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        lines.close()


D = TypeVar("D", bound=Door)
Opener = Callable[[Path], AbstractContextManager[Door]]
OPENERS: dict[str, Opener] = {"resp": open_resp, "local": open_local, "remote": open_remote}


@pytest.fixture(scope="package")
def resp_opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RespDoor]:
    with open_resp(tmp_path_factory.mktemp("resp")) as door:
        assert isinstance(door, RespDoor)
        yield door


@pytest.fixture(scope="package", params=OPENERS)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    kind: str = request.param
    if kind == "resp":
        yield request.getfixturevalue("resp_opened")
        return
    with OPENERS[kind](tmp_path_factory.mktemp(kind)) as door:
        yield door


@pytest.fixture
def door(opened: Door) -> Iterator[Door]:
    yield from left_as_found(opened)


@pytest.fixture
def resp(resp_opened: RespDoor) -> Iterator[RespDoor]:
    """For what is about words on the wire, and so has no other door."""
    yield from left_as_found(resp_opened)


def left_as_found(door: D) -> Iterator[D]:
    before = door.waiting()
    yield door
    until(lambda: door.waiting() <= before)


@pytest.fixture
def name() -> str:
    """A stream that nobody else uses."""
    return f"s{next(_numbers)}"


@pytest.fixture
def full(door: Door, name: str) -> str:
    """A stream with the entries 0 to 9, as `numbered` makes them."""
    door.write_many(name, numbered(10))
    return name
