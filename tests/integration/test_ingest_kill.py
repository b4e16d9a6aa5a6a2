"""Runners of a source that are killed at random, without a JVM (tests/spark has those with one)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from integration.children import Child
from integration.ingest_kills import PATIENCE_SECONDS, QUEUE, Kills, end_brokers
from integration.seeds import fresh_seed


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("files", "runners", "kills"),
    [(40, 3, 2), pytest.param(1000, 4, 40, marks=pytest.mark.slow)],
)
def test_killed_runners_neither_lose_nor_repeat_a_row(
    tmp_path: Path, files: int, runners: int, kills: int
) -> None:
    arguments = {
        "location": str(tmp_path / "data"),
        "queue": QUEUE,
        "table": str(tmp_path / "table"),
        "commit_timeout": 1,
        "linger": 0.05,
        "retry_delay": 0.05,
        "max_files": 5,
        "once": False,
    }

    location = tmp_path / "data"
    with (
        penstock.open(location, broker="outside", deadline=PATIENCE_SECONDS) as database,
        ExitStack() as stack,
    ):
        stack.callback(end_brokers, location)
        world = Kills(
            database,
            tmp_path,
            fresh_seed(),
            files=files,
            rows=5,
            runners=runners,
            start=lambda: stack.enter_context(Child("ingester", "never", json.dumps(arguments))),
        )
        world.disturb(kills, also=lambda: end_brokers(location))
        world.finish()
