"""The daemon of Python workers in local sessions."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import penstock.spark

FILE = Path(penstock.spark.__file__).parent / "workerpath" / "penstock_daemon.py"


@pytest.fixture
def daemon() -> ModuleType:
    specification = importlib.util.spec_from_file_location("penstock_daemon", FILE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_worker_whose_session_was_stopped_ends_without_a_word(
    daemon: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sock: socket.socket, authenticated: bool) -> int:
        raise BrokenPipeError

    def wrong(sock: socket.socket, authenticated: bool) -> int:
        raise ValueError("a real fault")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(daemon, "_worker", broken)
        assert daemon._quiet_worker(ours, True) != 0
        monkeypatch.setattr(daemon, "_worker", wrong)
        with pytest.raises(ValueError, match="a real fault"):
            daemon._quiet_worker(ours, True)
        monkeypatch.setattr(daemon, "_worker", lambda sock, authenticated: 0)
        assert daemon._quiet_worker(ours, True) == 0


def test_the_daemon_loads_nothing_that_may_not_be_forked() -> None:
    script = (
        "import sys; import penstock_daemon\n"
        "print([name for name in ('penstock', 'slatedb', 'pyarrow', 'pandas', 'numpy') "
        "if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(FILE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "[]\n"
