"""kill -9 of runners and of the broker: every row of every announced file is published once.

Runners are processes that may serve, with short patience: some are killed, some sleep so long that
their files are taken over and they find out at their publish. What counts is the content of the
splits that publishes name, and that no other file is left in the table's folder.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

import penstock
from integration.children import PATIENCE_SECONDS, Child
from integration.seeds import fresh_seed
from integration.source_runner import LEASE_SECONDS, QUEUE, SOURCE, STALE_MS, Runner, rows_of
from penstock.cli.check import inspect
from penstock.source.requests import GetSource, ListFiles, ListPublishes

RUNNERS = 3


def announce(db: penstock.Database, files: int, rng: random.Random) -> None:
    uris = [f"file:///{n}" for n in range(files)]
    uris += rng.sample(uris, files * 3 // 10)  # announced twice
    rng.shuffle(uris)
    db.publish_many([penstock.Publish(uri.encode(), to=QUEUE) for uri in uris])


def kill_runners(folder: Path, *, files: int, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    location, table = folder / "d", folder / "table"
    table.mkdir()
    with penstock.open(location) as db:
        db.create_queue(QUEUE, lease=LEASE_SECONDS, max_attempts=0)
        announce(db, files, rng)
    said: Counter[str] = Counter()
    crew: list[Child] = []

    def add() -> None:
        child = Child("source_runner", location, table, rng.randrange(1 << 30))
        child.tell("go")
        crew.append(child)

    def listen(seconds: float) -> None:
        for child in crew:
            said.update(line.split()[0] for line in child.drain(seconds / len(crew)))

    try:
        for _ in range(RUNNERS):
            add()
        for _ in range(kills):
            before, begun = said["published"], time.monotonic()
            while said["published"] == before and not said["empty"]:
                listen(0.05)
                assert not any(child.ended() for child in crew), [c.errors() for c in crew]
                assert time.monotonic() - begun < PATIENCE_SECONDS, "nothing is published"
            with crew.pop(rng.randrange(len(crew))) as victim:
                said.update(line.split()[0] for line in victim.kill())
            add()
        begun = time.monotonic()
        while not said["empty"]:
            listen(0.05)
            assert time.monotonic() - begun < PATIENCE_SECONDS, f"it does not end: {said}"
        for child in crew:
            child.tell("end")
            child.hear_until("end")
            assert child.finish() == 0, child.errors()
            assert child.errors() == ""
    finally:
        for child in crew:
            child.__exit__(None, None, None)
    verify(location, table, files)
    print(said)


def verify(location: Path, table: Path, files: int) -> None:
    with penstock.open(location) as db:
        source = db.sources.ask(GetSource(SOURCE))
        shards = db.sources.ask(ListFiles(source.id, limit=10_000)).shards
        assert {each.id for each in shards} == {f"file:///{n}" for n in range(files)}
        assert {each.phase for each in shards} == {"eof"}
        assert all(each.rows == len(rows_of(each.uri)) for each in shards)

        runner = Runner(db, table, random.Random(0))
        until = time.monotonic() + PATIENCE_SECONDS
        published = db.sources.ask(ListPublishes(source.id, 0, limit=10_000))
        splits = [split.path for row in published.rows for split in row.splits]
        while set(os.listdir(table)) != set(splits):
            runner.clean()  # what the killed left behind is removed when they are stale
            assert time.monotonic() < until, set(os.listdir(table)) ^ set(splits)
            time.sleep(STALE_MS / 10_000)
        assert len(published.rows) == published.published == source.published
    found = Counter(row for name in splits for row in (table / name).read_text().split("\n"))
    assert found == Counter(row for n in range(files) for row in rows_of(f"file:///{n}"))
    assert asyncio.run(inspect(str(location))).findings == []


def test_killed_runners_lose_and_double_no_row(tmp_path: Path) -> None:
    kill_runners(tmp_path, files=30, kills=3, seed=fresh_seed())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_killed_runners_lose_and_double_no_row(tmp_path: Path) -> None:
    kill_runners(tmp_path, files=1000, kills=60, seed=fresh_seed())
