"""The page about graphs and the example do what they say."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from acceptance.pages import ROOT, run_page
from spark.lean import clean_environment
from spark.once_world import end_brokers

pytestmark = pytest.mark.slow


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/graphs.md", tmp_path)


def test_the_example_runs_twice_and_holds_every_order_once(tmp_path: Path) -> None:
    def graph(*words: str) -> str:
        command = [sys.executable, "-m", "penstock", "graph", *words, "--location", "data"]
        return subprocess.run(
            command, cwd=tmp_path, env=clean_environment(), check=True, capture_output=True
        ).stdout.decode()

    try:
        for delivered in (4000, 0):
            report = json.loads(graph("run", str(ROOT / "examples" / "orders.py"), "--json"))
            (either,) = (e for e in report["processors"] if e["processor"] == "either")
            assert either["delivered"] == delivered
            with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
                counted = list(db.execute("SELECT count(*), count(DISTINCT id) FROM large"))
            assert counted == [(1992, 1992)]
        assert "idle" in graph("status", "orders")
    finally:
        end_brokers(tmp_path / "data")
