"""`penstock ingest` with a real Spark, killed with -9, JVM and Python workers and all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from integration.ingest_kills import PATIENCE_SECONDS, QUEUE, Kills, end_brokers
from integration.seeds import fresh_seed
from penstock.client.database import Database
from spark.lean import LEAN, clean_environment
from spark.processes import kill_all, of_session


class Command:
    """`penstock ingest` in a session of its own."""

    def __init__(self, log: Path, folder: Path) -> None:
        self._log = log
        settings = LEAN | {"spark.driver.memory": "512m"}
        arguments = [
            *("--location", folder / "data", "--queue", QUEUE, "--table", folder / "table"),
            *("--format", "json", "--continuous", "--commit-timeout", 3, "--max-files", 20),
            *("--master", "local[1]"),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        ]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "ingest", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=clean_environment(),
                start_new_session=True,
            )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def errors(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]

    def kill(self) -> None:
        kill_all(lambda: of_session(self._process.pid))
        self._process.wait()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """The broker is a process of its own."""
    location = tmp_path / "data"
    with penstock.open(location, broker="outside", deadline=PATIENCE_SECONDS) as database:
        yield database
    end_brokers(location)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Command]]:
    started: list[Command] = []

    def start() -> Command:
        started.append(Command(tmp_path / f"ingest-{len(started)}.log", tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("files", "runners", "kills"),
    [(60, 1, 1), pytest.param(1000, 4, 20, marks=pytest.mark.slow)],
)
def test_killed_commands_neither_lose_nor_repeat_a_row(
    tmp_path: Path,
    database: Database,
    start: Callable[[], Command],
    files: int,
    runners: int,
    kills: int,
) -> None:
    world = Kills(
        database, tmp_path, fresh_seed(), files=files, rows=20, runners=runners, start=start
    )
    world.disturb(kills, also=lambda: end_brokers(tmp_path / "data"))
    world.finish()
    assert world.kills == kills
