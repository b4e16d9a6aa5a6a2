"""What comes back from tasks: errors of a bounded size, and outputs for many streams."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.graph import Graph, Message
from penstock.graph.machine import Ask, Idle, processor_steps
from penstock.spark import sinks
from penstock.spark.graphcall import described
from penstock.spark.graphjob import Job
from penstock.spark.graphlay import INLINE_BYTES, Laying
from penstock.spark.graphwork import INLINE_BYTES as OUTLET_BYTES
from penstock.spark.graphwork import Done, Task, Work


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[penstock.Database]:
    with penstock.open(f"memory://{request.node.name}") as db:
        yield db


class Plain:
    """Of a SparkContext what a Job uses; tasks run here, one after the other."""

    defaultParallelism = 1  # noqa: N815  # as Spark calls it

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk

    def parallelize(self, numbers: range, parts: int) -> Plain:
        self._parts = numbers
        return self

    def mapPartitionsWithIndex(self, work: Work) -> Plain:  # noqa: N802
        self._work = work
        return self

    def collect(self) -> list[Done]:
        return [Task(self._work, part, self._bulk).run() for part in self._parts]


def run(db: penstock.Database, graph: Graph, *, dies: bool = False) -> None:
    """Its one processor, until it is idle, or until its first step was run and not committed."""
    (processor,) = graph.processors
    context: Any = Plain(db.bulk)
    job = Job(context, db.bulk, db.location, processor)
    steps = processor_steps(processor.topology, step_max=10)
    effect = next(steps)
    while not isinstance(effect, Idle):
        if isinstance(effect, Ask):
            effect = steps.send(db.graphs.ask(effect.request))
            continue
        outcome = job.run(effect)
        if dies:
            return
        effect = steps.send(outcome)


def test_the_text_of_an_error_is_bounded() -> None:
    for text in ("x" * 1_000_000, "\udcff" * 1_000_000):
        tag, data, _ = described("g", "p", [], ValueError(text), bytes(16)).entry
        assert tag == b"p"
        assert len(data) < 200_000
        assert msgspec.json.decode(data)["message"].endswith("… (1,000,000 characters)")
    short = described("g", "p", [], ValueError("x" * 1000), bytes(16))
    assert msgspec.json.decode(short.entry[1])["message"] == "x" * 1000


@pytest.mark.parametrize("count", [2, 40])
def test_a_fork_may_have_large_outputs_for_many_streams(db: penstock.Database, count: int) -> None:
    """Each is small enough to go with the commit, but all together may not be."""
    names = [f"out-{n}" for n in range(count)]
    large = SystemClock().entropy(OUTLET_BYTES - 1000)
    graph = Graph("g")

    @graph.fork("in", names)
    def copies(message: Message) -> dict[str, bytes]:
        return {name: name.encode() + large for name in names}

    db.stream("in").write(b"x")
    run(db, graph)
    for name in names:
        (entry,) = db.stream(name).read(0, 10)
        assert entry is not None
        assert entry.data == name.encode() + large


def test_what_goes_with_a_commit_is_bounded_for_all_streams_together(
    db: penstock.Database,
) -> None:
    laying = Laying(db.bulk)
    assert laying.fits(INLINE_BYTES // 2)
    assert not laying.fits(INLINE_BYTES // 2 + 1)
    assert laying.fits(INLINE_BYTES // 2)
    assert not laying.fits(1)


def test_a_message_that_failed_before_a_driver_died_is_not_lost(
    db: penstock.Database, tmp_path: Path
) -> None:
    """The step was written, without that message, and not committed; then it does not fail."""
    graph = Graph("g", errors="errors")

    @graph.sink("in")
    @sinks.file(tmp_path / "lines")
    def lines(message: Message) -> bytes:
        if message.offset == 2 and (tmp_path / "refuses").exists():
            raise ValueError("not now")
        return message.data

    (tmp_path / "refuses").touch()
    db.stream("in").write_many([b"%d" % n for n in range(4)])
    run(db, graph, dies=True)
    assert (tmp_path / "lines").read_text().split() == ["0", "1", "3"]
    (tmp_path / "refuses").unlink()
    run(db, graph)
    assert sorted((tmp_path / "lines").read_text().split()) == ["0", "1", "2", "3"]
    assert "errors" not in db.streams()


def test_a_row_that_sqlite_cannot_store_is_the_error_of_its_message_alone(
    db: penstock.Database, tmp_path: Path
) -> None:
    graph = Graph("g", errors="errors")

    @graph.sink("in")
    @sinks.sqlite(tmp_path / "x.db", table="t")
    def rows(message: Message) -> dict[str, Any]:
        return {"order": message.tag}

    db.stream("in").write_many([(b"a", b"0"), (b"\xff", b"1"), (b"c", b"2")])
    run(db, graph)
    with closing(sqlite3.connect(tmp_path / "x.db")) as table:
        assert list(table.execute('SELECT "order" FROM t')) == [("a",), ("c",)]
    (error,) = db.stream("errors").read(0, 10)
    assert error is not None
    told = msgspec.json.decode(error.data)
    assert (told["inputs"], told["type"]) == (
        [{"stream": "in", "offset": 1}], "penstock.errors.InvalidError",
    )  # fmt: skip
