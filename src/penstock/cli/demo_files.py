"""The demo's fourth act: a folder of files into a Delta table, its loader killed in the middle.

Contract     Real files, of which every third is announced twice, as event systems do; a real
             `penstock ingest`, killed (SIGKILL) after its first commit and begun again. What is
             compared are the rows of the files and the rows that a reader of Delta finds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import penstock
from penstock.cli.demo_crowd import LOCATION
from penstock.cli.demo_driver import Driver, FlowResult, compare
from penstock.clock import perf_counter
from penstock.source.requests import ListSources

FILES, ROWS = 60, 200
#: Files of one commit: few, so that there is a middle to be killed in.
FILES_PER_COMMIT = 15
QUEUE = "uploads"
#: Short, so that what a killed loader held is soon somebody else's: leases, and twice this.
COMMIT_TIMEOUT_S = 2.0
LEASE_S = 3.0

Row = tuple[int, int, str]


def load_files(work: Path, *, kills: int, report: Callable[[str], None]) -> FlowResult:
    location, table = work / LOCATION, work / "orders-table"
    begun = perf_counter()
    expected = write_files(work / "inbox")
    command = (
        "ingest", "--queue", QUEUE, "--table", str(table), "--location", str(location),
        "--max-files", str(FILES_PER_COMMIT), "--commit-timeout", str(COMMIT_TIMEOUT_S),
    )  # fmt: skip
    with penstock.open(location) as db:
        queue = db.create_queue(QUEUE, filter="kind = 'file'", lease=LEASE_S, max_attempts=0)
        announced = announce(db, work / "inbox")
        for n in range(kills):
            report(f"Spark loads {FILES} files, announced {announced} times")
            with Driver(work, *command) as driver:
                driver.until(lambda n=n: _published(db) > n)  # type: ignore[misc]
                report(f"kill {n + 1}: the loader, its JVM and its workers")
        report("another loader goes on where it was")

        def loaded() -> bool:
            stats = queue.stats()
            left = stats.available + stats.delayed + stats.in_flight
            return not left and _published(db) == _exported(db)

        with Driver(work, *command) as driver:
            driver.until(loaded)
        report("comparing")
    return compare(expected, read_table(table), kills, perf_counter() - begun)


def write_files(inbox: Path) -> list[Row]:
    inbox.mkdir()
    amounts = np.random.default_rng(11).integers(1, 1000, FILES * ROWS).tolist()
    rows = [(n, amount, f"c{n % 97}") for n, amount in enumerate(amounts)]
    for file in range(FILES):
        part = rows[file * ROWS : (file + 1) * ROWS]
        lines = [json.dumps({"order": n, "amount": a, "customer": c}) + "\n" for n, a, c in part]
        (inbox / f"orders {file:03}.json").write_text("".join(lines))
    return rows


def announce(db: penstock.Database, inbox: Path) -> int:
    """-> how many announcements"""
    files = sorted(inbox.iterdir())
    announced = [*files, *files[::3]]
    db.publish_many(
        [penstock.Publish(penstock.URI(file.as_uri()), {"kind": "file"}) for file in announced]
    )
    return len(announced)


def _published(db: penstock.Database) -> int:
    return sum(source.published for source in db.sources.ask(ListSources()).sources)


def _exported(db: penstock.Database) -> int:
    return sum(source.exported for source in db.sources.ask(ListSources()).sources)


def read_table(table: Path) -> list[Row]:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder  # comes with penstock[spark]

    # Not by to_pyarrow_table: it may leave threads that need Python when Python has ended.
    tables = QueryBuilder().register("orders", DeltaTable(str(table)))
    found = pa.table(tables.execute('select "order", amount, customer from orders').read_all())
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))
