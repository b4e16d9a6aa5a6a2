"""Many files, some announced twice, several runners at once, and kill -9 at random.

Contract     `Kills` makes files and announces them, keeps runners running and kills them at moments
             that are spread over the work. `finish` lets the rest be loaded and compares the table
             with what plain Python makes of the files. Whenever a runner is killed, whatever is
             acknowledged by then must be in the table, or given up, for good.
Broker       A process of its own, which is killed once. Whoever is the next one may be a runner,
             and die as such.
Runners      are made by the caller: any process of a source, and how to kill it with all that it
             started.
Given up     A few announcements name files that are not there; they end as failed.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import deltalake

import penstock
from integration.ingest_world import orphan_splits
from penstock.client.database import Database
from penstock.source.requests import Ask, GetSource, ListFiles, Shard
from spark.processes import kill_all, serving

R = TypeVar("R")

#: Nothing here takes this long without any progress, even on a machine that is busy.
PATIENCE_SECONDS = 400.0
QUEUE = "uploads"
MISSING = 3


class Runner(Protocol):
    def kill(self) -> object: ...

    def ended(self) -> bool: ...

    def errors(self) -> str: ...


class Kills:
    def __init__(
        self,
        database: Database,
        folder: Path,
        seed: int,
        *,
        files: int,
        rows: int,
        runners: int,
        start: Callable[[], Runner],
    ) -> None:
        print(f"seed {seed}")
        self._rng = random.Random(seed)
        self._database = database
        self._folder = folder
        self._table = folder / "table"
        self._start = start
        self._files = files
        self.kills = 0
        (folder / "in").mkdir()
        self._wanted = Counter(
            (f"{n:04} ü.json", i) for n in range(files) for i in range(self._write(n, rows))
        )
        self._uris = self._announce(files)
        self._runners = [start() for _ in range(runners)]

    def _write(self, number: int, rows: int) -> int:
        count = self._rng.randint(0, 2 * rows)  # some are empty
        name = f"{number:04} ü.json"
        lines = [json.dumps({"file": name, "row": i, "data": "x" * 50}) for i in range(count)]
        (self._folder / "in" / name).write_text("".join(line + "\n" for line in lines))
        return count

    def _announce(self, files: int) -> dict[int, str]:
        """-> by message; names of files"""
        names = [f"{n:04} ü.json" for n in range(files)] + [f"gone {n}" for n in range(MISSING)]
        names += self._rng.sample(names, len(names) * 3 // 10)
        self._rng.shuffle(names)
        self._database.create_queue(QUEUE, filter="false", lease=2, backoff=0.2, max_attempts=0)
        ids = self._database.publish_many(
            [penstock.Publish(f"{self._folder}/in/{name}".encode(), to=QUEUE) for name in names]
        )
        return dict(zip(ids, names, strict=True))

    # -- what is there

    def shards(self) -> dict[str, Shard]:
        found: list[Shard] = []
        try:
            source = self._ask(GetSource(str(self._table))).id
        except penstock.NotFoundError:
            return {}  # no runner has come so far
        after: str | None = ""
        while after is not None:
            page = self._ask(ListFiles(source, after=after))
            found += page.shards
            after = page.after
        return {each.uri.rpartition("/")[2]: each for each in found}

    def _ask(self, request: Ask[R]) -> R:
        return patiently(lambda: self._database.sources.ask(request))

    def terminal(self) -> int:
        return sum(each.phase != "open" for each in self.shards().values())

    def waiting(self) -> int:
        stats = patiently(self._database.queue(QUEUE).stats)
        assert stats.failed == 0, "the queue gave up an announcement"
        return stats.available + stats.delayed + stats.in_flight

    def check_acknowledged(self) -> int:
        """Nothing is acknowledged before the table has it. Asked in this order, for it goes on."""
        queue = self._database.queue(QUEUE)
        done = patiently(lambda: [message.id for message in queue.done()])
        shards = self.shards()
        for message in done:
            assert shards[self._uris[message]].phase != "open", self._uris[message]
        loaded = {uri for message in done if shards[uri := self._uris[message]].rows}
        if loaded:
            table = deltalake.DeltaTable(self._table).to_pyarrow_table(columns=["file"])
            missing = loaded - set(table["file"].to_pylist())
            assert not missing, missing
        return len(done)

    # -- kills

    def disturb(self, kills: int, also: Callable[[], object]) -> None:
        """One runner after the other, as the work goes on; and once somebody else (`also`)."""
        step = self._files // (kills + 1)
        for n in range(kills):
            self._await(lambda at=step * (n + 1): self.terminal() >= at)  # type: ignore[misc]
            time.sleep(self._rng.uniform(0, 1))
            victim = self._rng.randrange(len(self._runners))
            self._runners[victim].kill()
            self._runners[victim] = self._start()
            if n == kills // 2:
                also()
            self.kills += 1
            done = self.check_acknowledged()
            print(f"kill {self.kills}: runner {victim}, {self.terminal()} files, {done} acks")

    def _await(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not true():
            for runner in self._runners:
                assert not runner.ended(), f"a runner ended by itself: {runner.errors()}"
            assert time.monotonic() < until, f"nothing goes on: {self._runners[0].errors()}"
            time.sleep(0.05)

    # -- the end

    def finish(self) -> None:
        self._await(lambda: self.waiting() == 0)
        self._await(self._exported)
        # What killed ones left is removed by whoever runs a while later.
        self._await(lambda: not orphan_splits(self._table))
        for runner in self._runners:
            runner.kill()
        self.check_acknowledged()
        shards = self.shards()
        assert Counter(each.phase for each in shards.values()) == {
            "eof": self._files,
            "failed": MISSING,
        }
        table = deltalake.DeltaTable(self._table).to_pyarrow_table(columns=["file", "row"])
        rows = Counter(zip(table["file"].to_pylist(), table["row"].to_pylist(), strict=True))
        assert rows == self._wanted
        assert sum(each.rows for each in shards.values()) == rows.total()
        print(f"{len(shards):,} files, {rows.total():,} rows, {self.kills} kills")

    def _exported(self) -> bool:
        source = self._ask(GetSource(str(self._table)))
        return source.exported == source.published

    def close(self) -> None:
        for runner in self._runners:
            runner.kill()


def patiently(look: Callable[[], R]) -> R:
    """A broker on a machine that is busy may say that it is not available."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return look()
        except penstock.UnavailableError:
            assert time.monotonic() < until
            time.sleep(0.1)


def end_brokers(location: Path) -> None:
    """Processes that do nothing else but serve it."""
    kill_all(lambda: serving(location))
