"""A source to be disturbed: files, a queue that announces them, a table, and what must be in it.

Contract     The process of the test is the broker. `child` starts a runner that waits at a moment
             (ingester.py); `run` is one in this process. `settle` runs until every announcement is
             acknowledged, which takes as long as leases and signs of life last. `check` compares
             the table with the files: every row of every file once, and no split left that is not
             in it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import deltalake
import pyarrow as pa

import penstock
from integration.children import Child
from integration.plainspark import PlainSpark
from penstock.client.blockingqueue import Queue
from penstock.source.requests import GetSource, ListFiles, Shard, SourceInfo
from penstock.spark import Ingest
from penstock.spark.ingest.report import Report

#: Nothing here takes this long, even on a machine that is busy with other things.
PATIENCE_SECONDS = 120.0
#: What others wait for before they take over: twice the commit timeout; and until a message whose
#: receiver died comes again.
SHORT, LONG = 0.4, 60.0
LEASE = 0.3


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = folder / "data"
        self.table = folder / "table"
        (folder / "in").mkdir()
        self.rows: dict[str, int] = {}  # rows of each file
        self.database = penstock.open(self.location)
        self.queue: Queue = self.database.create_queue(
            "q", filter="false", lease=LEASE, backoff=0, max_attempts=0
        )

    # -- files

    def put(self, name: str, rows: int = 3) -> str:
        path = self.folder / "in" / name
        path.write_text("".join(f'{{"file": "{name}", "row": {i}}}\n' for i in range(rows)))
        self.rows[name] = rows
        return f"file://{path}"

    def announce(self, *names: str) -> list[int]:
        places = [f"file://{self.folder / 'in' / name}" for name in names]
        return self.database.publish_many(
            [penstock.Publish(penstock.URI(place), to="q") for place in places]
        )

    def put_and_announce(self, *names: str, rows: int = 3) -> None:
        for name in names:
            self.put(name, rows)
        self.announce(*names)

    # -- runners

    def arguments(self, commit_timeout: float, **more: Any) -> dict[str, Any]:
        return {
            "location": str(self.location),
            "queue": "q",
            "table": str(self.table),
            "format": "json",
            "commit_timeout": commit_timeout,
            "linger": 0.05,
            "retry_delay": 0.05,
            **more,
        }

    def child(self, moment: str, commit_timeout: float = LONG, **more: Any) -> Child:
        return Child("ingester", moment, json.dumps(self.arguments(commit_timeout, **more)))

    def run(self, commit_timeout: float = LONG, **more: Any) -> Report:
        """Once, in this process."""
        arguments = self.arguments(commit_timeout, **more)
        return Ingest(**arguments, spark=PlainSpark()).run(once=True)  # type: ignore[arg-type]

    def settle(self, commit_timeout: float = LONG, **more: Any) -> Report:
        """-> the sums of what the runs did"""
        total: Counter[str] = Counter()
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            report = self.run(commit_timeout, **more)
            total.update({name: getattr(report, name) for name in report.__struct_fields__})
            if self.waiting() == 0:
                return Report(**total)
            assert time.monotonic() < until, self.queue.stats()

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not true():
            assert time.monotonic() < end, self.queue.stats()
            time.sleep(0.01)

    # -- what is there

    def waiting(self) -> int:
        """Announcements that nobody has acknowledged."""
        stats = self.queue.stats()
        assert stats.failed == 0
        return stats.available + stats.delayed + stats.in_flight

    def source(self) -> SourceInfo:
        return self.database.sources.ask(GetSource(str(self.table)))

    def shards(self) -> dict[str, Shard]:
        """By the name of the file."""
        found: list[Shard] = []
        after: str | None = ""
        while after is not None:
            page = self.database.sources.ask(ListFiles(self.source().id, after=after))
            found += page.shards
            after = page.after
        return {each.uri.rpartition("/")[2]: each for each in found}

    def loaded(self) -> pa.Table:
        return deltalake.DeltaTable(self.table).to_pyarrow_table()

    def counts(self) -> Counter[tuple[str, int]]:
        """How often each row is in the table."""
        if not deltalake.DeltaTable.is_deltatable(str(self.table)):
            return Counter()
        found = self.loaded()
        return Counter(zip(found["file"].to_pylist(), found["row"].to_pylist(), strict=True))

    def check(self) -> None:
        wanted = Counter((name, i) for name, rows in self.rows.items() for i in range(rows))
        assert self.counts() == wanted
        assert {name: each.phase for name, each in self.shards().items()} == dict.fromkeys(
            self.rows, "eof"
        )
        source = self.source()
        assert source.exported == source.published
        # What dead ones left goes when they were silent for long enough, by whoever runs then.
        while orphans := orphan_splits(self.table):
            assert self.run().files == 0, orphans

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.database.close()


def orphan_splits(table: Path) -> set[Path]:
    """What lies in the table's folder and is not in the table. And all that is in it is there."""
    named = {Path(each).resolve() for each in deltalake.DeltaTable(table).file_uris()}
    found = {each.resolve() for each in (table / "splits").glob("*/*")}
    assert named <= found
    return found - named


def report_of(child: Child) -> Report:
    """What it says at its own end."""
    line = child.hear_until("done")[-1]
    assert child.finish() == 0, child.errors()
    return Report(**json.loads(line.partition(" ")[2]))
