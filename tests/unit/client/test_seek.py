"""Starting a broker outside: a process of its own, which nobody waits for."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from pathlib import Path

import pytest

from penstock.client import seek


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
