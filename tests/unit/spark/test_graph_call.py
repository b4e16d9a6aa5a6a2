"""What comes back from tasks: errors of a bounded size, and outputs for many streams."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import penstock
from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.errors import InvalidError, NotFoundError
from penstock.graph import Graph, Message
from penstock.graph.hashes import message_hash
from penstock.graph.machine import Ask, Idle, processor_steps
from penstock.spark import graphjob, sinks
from penstock.spark.graphcall import described
from penstock.spark.graphjob import Job, why
from penstock.spark.graphlay import INLINE_BYTES, Laying
from penstock.spark.graphloop import ask_status
from penstock.spark.graphs import ProcessorReport, Report
from penstock.spark.graphwork import INLINE_BYTES as OUTLET_BYTES
from penstock.spark.graphwork import Done, Task, Work
from penstock.spark.staging import StreamStage


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[penstock.Database]:
    with penstock.open(f"memory://{request.node.name}") as db:
        yield db


class Plain:
    """Of a SparkContext what a Job uses; tasks run here, one after the other."""

    def __init__(self, bulk: Bulk, cores: int) -> None:
        self._bulk = bulk
        self.defaultParallelism = cores

    def parallelize(self, numbers: range, parts: int) -> Plain:
        self._parts = numbers
        return self

    def mapPartitionsWithIndex(self, work: Work) -> Plain:  # noqa: N802
        self._work = work
        return self

    def collect(self) -> list[Done]:
        return [Task(self._work, part, self._bulk).run() for part in self._parts]


def run(
    db: penstock.Database, graph: Graph, *, dies: bool = False, step_max: int = 10, cores: int = 1
) -> None:
    """Its one processor, until it is idle, or until its first step was run and not committed."""
    (processor,) = graph.processors
    context: Any = Plain(db.bulk, cores)
    job = Job(context, db.bulk, db.location, processor)
    steps = processor_steps(processor.topology, step_max=step_max)
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


def test_an_error_whose_traceback_cannot_be_shown_is_handled_like_others() -> None:
    """Python's own traceback module fails on a SyntaxError that is not well made."""
    place: Any = ("f", 1, "not a column", "x = 1")
    failure = described("g", "p", [], SyntaxError("x", place), b"h" * 16)
    told = msgspec.json.decode(failure.entry[1])
    assert (told["type"], told["traceback"]) == (
        "SyntaxError", "(it cannot be shown: TypeError)",
    )  # fmt: skip


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


@pytest.mark.parametrize("kind", ["sqlite", "delta", "file"])
def test_a_message_that_gave_no_row_before_a_driver_died_is_added_when_it_gives_one(
    db: penstock.Database, tmp_path: Path, kind: str
) -> None:
    """The step was written, without that message, and not committed."""
    graph = Graph("g")
    ready = {
        "sqlite": sinks.sqlite(tmp_path / "sqlite", table="t"),
        "delta": sinks.delta(tmp_path / "delta", schema=pa.schema([("n", pa.int64())])),
        "file": sinks.file(tmp_path / "file"),
    }[kind]

    @graph.sink("in")
    @ready
    def rows(message: Message) -> dict[str, int] | None:
        if message.offset == 2 and (tmp_path / "not yet").exists():
            return None
        return {"n": message.offset}

    def found() -> list[int]:
        match kind:
            case "sqlite":
                with closing(sqlite3.connect(tmp_path / "sqlite")) as table:
                    return [n for (n,) in table.execute("SELECT n FROM t ORDER BY n")]
            case "delta":
                table = DeltaTable(tmp_path / "delta").to_pyarrow_table()
                return sorted(table.column("n").to_pylist())
            case _:
                lines = (tmp_path / "file").read_text().split()
                return sorted(msgspec.json.decode(line)["n"] for line in lines)

    (tmp_path / "not yet").touch()
    db.stream("in").write_many([b""] * 4)
    run(db, graph, dies=True)
    assert found() == [0, 1, 3]
    (tmp_path / "not yet").unlink()
    run(db, graph)
    assert found() == [0, 1, 2, 3]


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


def test_a_task_of_several_holds_what_the_others_staged_from_its_beginning(
    db: penstock.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stages at its end alone may take longer than a lease lasts."""
    called = tmp_path / "called"
    entered: list[bool] = []

    @contextmanager
    def running(self: StreamStage) -> Iterator[None]:
        entered.append(called.exists())
        yield

    monkeypatch.setattr(graphjob, "PART_ROWS", 2)
    monkeypatch.setattr(StreamStage, "running", running)
    graph = Graph("g")

    @graph.pipe("in", "out")
    def copy(message: Message) -> bytes:
        called.touch()
        return message.data

    db.stream("in").write_many([b"x"] * 4)
    run(db, graph, cores=2)
    assert entered == [False, True]
    assert len(db.stream("out").read(0, 9)) == 4
    entered.clear()
    db.stream("in").write(b"x")
    run(db, graph, cores=2)
    assert entered == []  # alone: nothing is staged before it stages


@pytest.mark.parametrize("text", ["order 17: the pump crashed, see log", "it said: no"])
def test_what_a_function_says_is_told(text: str) -> None:
    assert why(ValueError(text)) == f"ValueError: {text}"


def test_a_ready_made_sink_is_none_of_the_other_kinds(tmp_path: Path) -> None:
    """Its dicts would go to the file, and its bytes to the stream."""
    ready = sinks.file(tmp_path / "f")(lambda message: message.data)
    pipe, source = Graph("g"), Graph("g")
    pipe.pipe("in", "out", name="p")(ready)
    source.source("out", name="p")(ready)
    for graph, kind in ((pipe, "pipe"), (source, "source")):
        with pytest.raises(InvalidError, match=f"a ready-made sink is no {kind}"):
            graph.run("memory://none")


def test_a_session_that_is_none_is_told() -> None:
    graph = Graph("g")
    graph.pipe("in", "out", name="p")(lambda message: message)
    wrong: Any = "local[2]"
    with pytest.raises(InvalidError, match="not str"):
        graph.run("memory://none", spark=wrong)


def test_a_worker_that_was_killed_is_told() -> None:
    spark = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n at x.y"
    assert why(RuntimeError(spark)) == "a Python worker was killed or crashed"


def test_a_report_knows_its_processors() -> None:
    found = ProcessorReport("p", 1, 2, 3, 4, 5, 6)
    report = Report("g", 1.0, [found])
    assert report["p"] == found
    with pytest.raises(NotFoundError, match="graph 'g' has no processor 'typo'"):
        report["typo"]


@pytest.mark.parametrize("errors", ["errors", None])
@pytest.mark.parametrize("count", [6, 3000])
def test_a_row_that_a_table_refuses_is_the_error_of_its_message_alone(
    db: penstock.Database,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    errors: str | None,
    count: int,
) -> None:
    """Whether its errors go with the commit or are staged, beside those of the function."""
    monkeypatch.setattr(graphjob, "PART_ROWS", 1000)
    with closing(sqlite3.connect(tmp_path / "x.db")) as table, table:
        table.execute("CREATE TABLE t (delivery_hash TEXT PRIMARY KEY, n CHECK (n % 3 > 0))")
    graph = Graph("g", errors=errors)

    @graph.sink("in")
    @sinks.sqlite(tmp_path / "x.db", table="t")
    def rows(message: Message) -> dict[str, Any]:
        if message.offset % 3 == 1:
            raise ValueError("of the function")
        return {"n": message.offset}

    db.stream("in").write_many([b"x"] * count)
    run(db, graph, step_max=count, cores=2)
    with closing(sqlite3.connect(tmp_path / "x.db")) as table:
        found = [n for (n,) in table.execute("SELECT n FROM t ORDER BY n")]
    assert found == list(range(2, count, 3))
    (status,) = ask_status(db.graphs, "g").processors
    assert "CHECK constraint failed" in caplog.text
    if errors is None:
        assert (status.failed, status.nil) == (0, count)
        return
    assert (status.failed, status.nil) == (count // 3 * 2, count // 3)
    told = [msgspec.json.decode(m.data) for m in db.stream("errors").read(0, count) if m]
    assert sorted(each["inputs"][0]["offset"] for each in told) == [
        n for n in range(count) if n % 3 != 2
    ]
    (tailer,) = status.tailers
    refused = next(each for each in told if each["inputs"][0]["offset"] == 3)
    assert refused["type"] == "penstock.errors.InvalidError"
    assert refused["message"].startswith("table t refuses the row: CHECK constraint failed")
    assert refused["hash"] == message_hash("g/rows", [(tailer.stream_id, 3)]).hex()
