"""`penstock graph run`: how it is told to end, and what it tells; the run itself is a fake."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.cli.graph import _line
from penstock.spark import graphs

FILE = """
from penstock.graph import Graph

graph = Graph("shop")

@graph.pipe("raw", "clean")
def clean(message):
    return message.data

@graph.pipe("clean", "tidy")
def tidy(message):
    return message.data
"""


class Endless:
    """A run that is interrupted while it waits, and heard of before."""

    def __init__(self) -> None:
        self.over = threading.Event()
        done = graphs.ProcessorReport("clean", 1, 1, 1, 0, 0, 0)
        self.report = graphs.Report("shop", 1.0, [done])

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stop(self) -> None:
        self.over.set()

    def wait(self, until: str, progress: Any) -> graphs.Report:
        assert progress is None, "there is no terminal"
        os.kill(os.getpid(), signal.SIGINT)
        assert self.over.wait(30)
        return self.report


@pytest.mark.parametrize(("until", "code"), [("forever", 0), ("idle", 130)])
def test_a_run_that_is_told_to_end_reports_what_it_did(
    sh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str, code: int
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FILE)
    stopped = threading.Event()
    monkeypatch.setattr("penstock.spark.session", lambda *_: Mock(stop=stopped.set))
    monkeypatch.setattr("penstock.spark.graphs.start", lambda *_, **__: Endless())
    assert sh("graph", "run", str(file), "--until", until) == code
    assert stopped.is_set()
    assert "shop, 1.0 s" in sh.out
    rows = [line.split("│")[1].split() for line in sh.out.splitlines() if line.startswith("│")]
    assert rows == [["clean"]], "the others had not begun"
    assert sh.json("graph", "run", str(file), "--until", until, code=code)["graph"] == "shop"


def test_a_terminal_sees_how_far_a_run_is() -> None:
    reports = [graphs.ProcessorReport("a", 1, 1, 1, 0, 0, 0)]
    assert _line(graphs.Report("g", 1.0, reports)) == "1 step, 1 message, 1 written"
    reports.append(graphs.ProcessorReport("b", 2, 1500, 20, 3, 0, 0))
    assert (
        _line(graphs.Report("g", 1.0, reports)) == "3 steps, 1,501 messages, 21 written, 3 errors"
    )
