"""Graphs on Spark: every kind of processor, handled errors, and failures that nobody handled."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock
from penstock.client import graphs as client_graphs
from penstock.errors import ConflictError, FencedError, InvalidError, UnavailableError
from penstock.graph import Graph, Message, Stop
from penstock.graph.hashes import message_hash, row_hash, step_hash
from penstock.graph.requests import CommitStep, Graphs, ProcessorStatus, ShowGraphs, Start
from penstock.log.catalogue import stream_name
from penstock.spark import graphloop, graphs, sinks
from spark.graph_flow import expected, flow


@pytest.fixture
def db(tmp_path: Path) -> Iterator[penstock.Database]:
    with penstock.open(tmp_path / "data") as db:
        yield db


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphloop, "PAUSE_SECONDS", 0.001)


def entries(db: penstock.Database, name: str) -> list[tuple[str, bytes]]:
    return [(m.tag, m.data) for m in db.stream(name).read(0, 100_000) if m is not None]


def data(db: penstock.Database, name: str) -> list[bytes]:
    return [data for _, data in entries(db, name)]


def hashes(db: penstock.Database, name: str) -> list[bytes | None]:
    return [m.meta for m in db.stream(name).read(0, 100_000) if m is not None]


def told_errors(db: penstock.Database, name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each) for each in data(db, name)]


def status(db: penstock.Database, graph: Graph, processor: str) -> ProcessorStatus:
    found = db.graphs.ask(ShowGraphs(graph.name))
    assert isinstance(found, Graphs)
    (one,) = (each for each in found.graphs[0].processors if each.processor == processor)
    return one


def test_all_kinds_give_what_plain_python_gives(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    (tmp_path / "limit").write_text("3000")
    graph = flow(tmp_path / "limit", tmp_path / "pairs.db")
    report = graph.run(db.location, spark=spark, step_max=1000)
    wanted = expected(3000)
    for name in ("raw", "cleaned", "left", "right", "pairs"):
        assert entries(db, name) == wanted[name], name
    assert sorted(entries(db, "all")) == sorted(wanted["all"])
    errors = told_errors(db, "errors")
    assert [each["inputs"] for each in errors] == [
        [{"stream": "raw", "offset": int(offset)}] for _, offset in wanted["errors"]
    ]
    assert [bytes.fromhex(each["hash"]) for each in errors] == hashes(db, "errors")
    clean = report["clean"]
    assert clean.delivered == 3000
    assert clean.written == len(wanted["cleaned"])
    assert clean.failed == len(wanted["errors"])
    assert clean.steps >= 3

    again = graph.run(db.location, spark=spark)
    assert all(each.delivered == each.written == 0 for each in again.processors)
    (tmp_path / "limit").write_text("3100")
    graph.run(db.location, spark=spark)
    assert entries(db, "pairs") == expected(3100)["pairs"]


def test_a_function_gets_the_hash_that_its_output_carries(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.pipe("in", "out")
    def tell(message: Message, delivery_hash: str) -> bytes:
        return delivery_hash.encode()

    db.stream("in").write_many([b"a", b"b"])
    graph.run(db.location, spark=spark)
    stream_id = db.bulk.log_size(stream_name("in")).log_id
    wanted = [message_hash("g/tell", [(stream_id, offset)]) for offset in range(2)]
    assert hashes(db, "out") == wanted
    assert data(db, "out") == [each.hex().encode() for each in wanted]


def test_tags_and_times_come_as_they_were_written(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.pipe("in", "out")
    def same(message: Message) -> Message:
        assert message.time.year >= 2020
        assert (message.stream, message.meta) == ("in", b"m" if message.offset else None)
        return message

    db.stream("in").write_many([(b"\xff\x00", b"x", None), ("grün", b"", b"m"), ("", b"z", b"m")])
    graph.run(db.location, spark=spark)
    assert entries(db, "out") == entries(db, "in")


def test_what_is_no_output_is_a_handled_error(spark: SparkSession, db: penstock.Database) -> None:
    graph = Graph("g", errors="errors")

    @graph.fork("in", ["a", "b"])
    def wrong(message: Message) -> Any:
        return [
            {"a": b"1", "b": "text"},
            {"c": b"1"},
            b"bytes",
            {"a": [b"1", None]},
            {"a": Message(b"", tag="t" * 70_000)},
            {"a": None, "b": []},
            {"a": bytearray(b"ok")},
        ][message.offset]

    db.stream("in").write_many([b"x"] * 7)
    report = graph.run(db.location, spark=spark)
    assert (data(db, "a"), data(db, "b")) == ([b"ok"], [])
    errors = told_errors(db, "errors")
    assert [each["inputs"][0]["offset"] for each in errors] == [0, 1, 2, 3, 4]
    assert {each["type"] for each in errors} == {"penstock.errors.InvalidError"}
    assert "not str" in errors[0]["message"]
    assert (report["wrong"].failed, report["wrong"].nil, report["wrong"].written) == (5, 1, 1)


def test_without_an_error_stream_a_handled_error_is_delivered_and_logged(
    spark: SparkSession, db: penstock.Database, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("g")

    @graph.pipe("in", "out")
    def picky(message: Message) -> bytes:
        return b"%d" % (1 // message.offset)

    db.stream("in").write_many([b"x", b"y"])
    report = graph.run(db.location, spark=spark)
    assert data(db, "out") == [b"1"]
    assert (report["picky"].delivered, report["picky"].nil) == (2, 1)
    assert "g/picky: in offset 0: ZeroDivisionError" in caplog.text


def test_an_unhandled_failure_is_tried_again_and_loses_nothing(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    graph = Graph("g", errors="errors")
    seen = tmp_path / "seen"

    @graph.pipe("in", "out")
    def moody(message: Message) -> bytes:
        if message.offset == 2 and not seen.exists():
            seen.touch()
            raise Stop("not today")
        return message.data

    db.stream("in").write_many([b"%d" % n for n in range(5)])
    graph.run(db.location, spark=spark)
    assert data(db, "out") == [b"0", b"1", b"2", b"3", b"4"]
    assert data(db, "errors") == []
    found = status(db, graph, "moody")
    assert (found.failure, found.epoch) == (None, 2)


def test_a_message_that_always_fails_ends_alone_and_others_go_on(
    spark: SparkSession, db: penstock.Database
) -> None:
    def declare(poison: int) -> Graph:
        graph = Graph("g")

        @graph.pipe("in", "out")
        def fragile(message: Message) -> bytes:
            if message.offset == poison:
                raise SystemExit("poison")
            return message.data

        @graph.pipe("other", "others")
        def sturdy(message: Message) -> bytes:
            return message.data

        return graph

    graph = declare(poison=5)
    db.stream("in").write_many([b"%d" % n for n in range(8)])
    db.stream("other").write_many([b"x"] * 3)
    with pytest.raises(UnavailableError, match="g/fragile cannot go on: in offset 5: SystemExit"):
        graph.run(db.location, spark=spark)
    assert data(db, "out") == [b"0", b"1", b"2", b"3", b"4"]
    assert data(db, "others") == [b"x"] * 3
    found = status(db, graph, "fragile")
    assert found.failure == "in offset 5: SystemExit: poison"
    assert found.pending

    declare(poison=-1).run(db.location, spark=spark)
    assert data(db, "out") == [b"%d" % n for n in range(8)]
    assert status(db, graph, "fragile").failure is None


def test_sources_go_on_behind_what_is_committed(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    begun: list[Any] = []
    graph = Graph("g", errors="errors")

    @graph.source("out")
    def feed(position: Any) -> Iterator[Any]:
        begun.append(position)
        for n in range(0 if position is None else position["n"] + 1, 5):
            if n == 3 and len(begun) == 1:
                raise RuntimeError("the line is dead")
            yield ([b"%d" % n, b"%d!" % n] if n % 2 else "text" if n == 4 else b"%d" % n), {"n": n}

    @graph.source("plain")
    def anew() -> Iterator[bytes]:
        yield from (b"a", b"b")

    graph.run(db.location, spark=spark)
    assert begun == [None, {"n": 2}]
    assert data(db, "out") == [b"0", b"1", b"1!", b"2", b"3", b"3!"]
    (error,) = told_errors(db, "errors")
    assert (error["processor"], error["inputs"]) == ("feed", [])
    assert data(db, "plain") == [b"a", b"b"]
    assert len(set(hashes(db, "out")) | set(hashes(db, "plain"))) == 8


def test_a_live_source_is_read_while_it_waits_and_left_when_the_run_is_stopped(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")
    never = threading.Event()

    @graph.source("in")
    def feed(position: Any) -> Iterator[Any]:
        yield b"event", 1
        never.wait()

    @graph.pipe("in", "out")
    def copy(message: Message) -> bytes:
        return message.data

    with graphs.start(graph, db.location, spark=spark) as running:
        # What it yielded passes the pipe although it waits for what comes next.
        assert [m.data for m in db.stream("out").read(0, 1, block=60.0) if m] == [b"event"]
        running.stop()
        running.wait("forever")
        assert not any(each.name == "g/feed" for each in threading.enumerate())
    never.set()


def test_a_source_that_repeats_a_position_is_told(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.source("out")
    def feed(position: Any) -> Iterator[Any]:
        yield b"a", 1
        yield b"b", 1

    with pytest.raises(UnavailableError, match="position 1 was yielded twice"):
        graph.run(db.location, spark=spark)
    assert data(db, "out") == [b"a"]


def test_frames_follow_their_order_and_carry_the_hash_of_the_step(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.pipe("in", "out", df=True, order_by=["place"])
    def backwards(frame: DataFrame) -> DataFrame:
        return frame.select("tag", F.upper(F.col("data").cast("string")).alias("data"),
                            (-F.col("offset")).alias("place"))  # fmt: skip

    db.stream("in").write_many([(f"k{n}", b"x%d" % n) for n in range(4)])
    report = graph.run(db.location, spark=spark)
    assert entries(db, "out") == [(f"k{n}", b"X%d" % n) for n in (3, 2, 1, 0)]
    stream_id = db.bulk.log_size(stream_name("in")).log_id
    step = step_hash("g/backwards", 0, [(stream_id, 0, 4)])
    assert hashes(db, "out") == [row_hash(step, n) for n in range(4)]
    assert report["backwards"].written == 4


@pytest.mark.slow
def test_frames_of_a_fork_go_to_several_streams(spark: SparkSession, db: penstock.Database) -> None:
    graph = Graph("g")

    @graph.pipe("in", "out", df=True, order_by="tag")
    def totals(frame: DataFrame) -> DataFrame:
        number = F.col("data").cast("string").cast("int")
        return frame.groupBy("tag").agg(F.sum(number).cast("string").alias("data"))

    @graph.fork("out", ["few", "many"], df=True, order_by=["offset"])
    def apart(frame: DataFrame) -> dict[str, DataFrame]:
        number = F.col("data").cast("string").cast("int")
        return {
            "few": frame.where(number < 140).select("offset", "data"),
            "many": frame.where(number >= 140).select("offset", "data"),
        }

    db.stream("in").write_many([(f"k{n % 3}", b"%d" % n) for n in range(30)])
    graph.run(db.location, spark=spark)
    assert entries(db, "out") == [("k0", b"135"), ("k1", b"145"), ("k2", b"155")]
    assert (data(db, "few"), data(db, "many")) == ([b"135"], [b"145", b"155"])


@pytest.mark.slow
def test_frames_of_a_join_have_positions_and_those_of_a_sink_hashes(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.join({"a": "in", "b": "in2"}, "pairs", df=True, order_by="position")
    def pairs(a: DataFrame, b: DataFrame) -> DataFrame:
        right = b.select("position", F.col("data").alias("right"))
        return a.join(right, "position").select("position", F.concat("data", "right").alias("data"))

    seen: list[list[str]] = []

    @graph.sink("pairs", df=True)
    def sink(frame: DataFrame) -> None:
        seen.append([row["delivery_hash"] for row in frame.orderBy("offset").collect()])

    db.stream("in").write_many([b"%d" % n for n in range(30)])
    db.stream("in2").write_many([b"-%d" % n for n in range(4)])
    graph.run(db.location, spark=spark)
    assert data(db, "pairs") == [b"%d-%d" % (n, n) for n in range(4)]
    stream_id = db.bulk.log_size(stream_name("pairs")).log_id
    assert seen == [[message_hash("g/sink", [(stream_id, n)]).hex() for n in range(4)]]


def test_a_frame_that_is_none_stops_its_processor(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g", errors="errors")

    @graph.pipe("in", "out", df=True)
    def wrong(frame: DataFrame) -> DataFrame:
        return frame

    db.stream("in").write(b"x")
    with pytest.raises(UnavailableError, match="a frame has data and, if wanted, tag"):
        graph.run(db.location, spark=spark)
    assert data(db, "out") == data(db, "errors") == []


def test_what_was_evicted_stops_a_processor_or_is_skipped(
    spark: SparkSession, db: penstock.Database
) -> None:
    def declare(**options: Any) -> Graph:
        graph = Graph("g")

        @graph.pipe("in", "out", **options)
        def copy(message: Message) -> bytes:
            return message.data

        return graph

    db.stream("in").write_many([b"a", b"b"])
    declare().run(db.location, spark=spark)
    db.stream("in").write_many([b"c", b"d"])
    db.stream("in").evict(up_to=2)
    with pytest.raises(UnavailableError, match="evicted"):
        declare().run(db.location, spark=spark)
    assert data(db, "out") == [b"a", b"b"]
    report = declare(on_evicted="skip").run(db.location, spark=spark)
    assert data(db, "out") == [b"a", b"b", b"d"]
    assert report["copy"].skipped == 1


@pytest.mark.parametrize(
    ("semantics", "wanted"),
    [("at_least_once", [b"0", b"1", b"2", b"3", b"4", b"5"]), ("at_most_once", [b"4", b"5"])],
)
def test_other_semantics_do_what_they_say_after_a_failure(
    spark: SparkSession, db: penstock.Database, tmp_path: Path, semantics: Any, wanted: list[bytes]
) -> None:
    graph = Graph("g", semantics=semantics)
    seen = tmp_path / "seen"

    @graph.pipe("in", "out", step_max=4)
    def moody(message: Message) -> bytes:
        if message.offset == 2 and not seen.exists():
            seen.touch()
            raise Stop("not today")
        return message.data

    db.stream("in").write_many([b"%d" % n for n in range(6)])
    graph.run(db.location, spark=spark)
    assert data(db, "out") == wanted
    assert status(db, graph, "moody").lost == (4 if semantics == "at_most_once" else 0)


def test_a_runner_that_is_overtaken_ends_fenced(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    graph = Graph("g")

    @graph.source("out")
    def feed(position: Any) -> Iterator[Any]:
        yield b"a", 1
        # As another runner would: the first processor of the graph is the one that counts.
        db.graphs.ask(Start(graph.topologies[0]))
        yield b"b", 2
        yield b"c", 3

    with pytest.raises(FencedError, match="g/feed was taken over"):
        graph.run(db.location, spark=spark)
    assert data(db, "out") == []


def test_a_graph_that_changed_is_refused_before_anything_runs(
    spark: SparkSession, db: penstock.Database
) -> None:
    def declare(source: str, name: str = "copy") -> Graph:
        graph = Graph("g")

        @graph.pipe(source, "out", name=name)
        def copy(message: Message) -> bytes:
            return message.data

        return graph

    db.stream("in").write(b"a")
    declare("in").run(db.location, spark=spark)
    for changed in (declare("elsewhere"), declare("in", name="other")):
        with pytest.raises(ConflictError, match="copy"):
            changed.run(db.location, spark=spark)
    assert data(db, "out") == [b"a"]


def test_a_large_step_is_cut_into_tasks_and_stays_in_order(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g", errors="errors")

    @graph.pipe("in", "out")
    def most(message: Message) -> bytes:
        if message.offset % 4000 == 3999:
            raise ValueError("no")
        return message.data * 3

    db.stream("in").write_many([b"%d " % n for n in range(24_000)])
    report = graph.run(db.location, spark=spark)
    assert report["most"].steps == 1
    assert data(db, "out") == [b"%d " % n * 3 for n in range(24_000) if n % 4000 != 3999]
    assert [each["inputs"][0]["offset"] for each in told_errors(db, "errors")] == [
        3999, 7999, 11999, 15999, 19999, 23999,
    ]  # fmt: skip


def test_what_cannot_run_is_told_at_once(spark: SparkSession, tmp_path: Path) -> None:
    graph = Graph("g")
    lock = __import__("threading").Lock()

    @graph.pipe("in", "out")
    def locked(message: Message) -> bytes:
        with lock:
            return message.data

    with pytest.raises(InvalidError, match=r"g/locked: its function cannot be sent"):
        graph.run(str(tmp_path / "data"), spark=spark)
    with pytest.raises(InvalidError, match="memory of one process"):
        graph.run("memory://x", spark=spark)
    with pytest.raises(InvalidError, match="until is"):
        graph.run(str(tmp_path / "data"), spark=spark, until="never")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="no processors"):
        Graph("empty").run(str(tmp_path / "data"), spark=spark)


def test_ready_made_sinks_hold_each_message_once_though_every_commit_fails_once(
    spark: SparkSession, db: penstock.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph("g", errors="errors")
    schema = pa.schema([("n", pa.int64()), ("data", pa.string())])

    def row(message: Message) -> list[dict[str, Any]]:
        if message.offset == 3:
            raise ValueError("three")
        n = "no number" if message.offset == 4 else message.offset
        return [{"n": n, "data": message.data.decode()}] * (2 if message.offset == 5 else 1)

    graph.sink("in", name="sqlite")(sinks.sqlite(tmp_path / "t.db", table="t")(row))
    graph.sink("in", name="delta")(sinks.delta(tmp_path / "delta", schema=schema)(row))
    graph.sink("in", name="file")(sinks.file(tmp_path / "lines")(row))

    failed: set[tuple[int, int]] = set()
    ask = client_graphs.Graphs.ask

    def fails_once(self: client_graphs.Graphs, request: Any) -> Any:
        place = (request.processor, request.tail) if isinstance(request, CommitStep) else None
        if place is not None and place not in failed:
            failed.add(place)
            raise UnavailableError("lost in between")
        return ask(self, request)

    monkeypatch.setattr(client_graphs.Graphs, "ask", fails_once)
    db.stream("in").write_many([b"%d" % n for n in range(8)])
    graph.run(db.location, spark=spark, step_max=3)
    assert len(failed) == 9
    wanted = [0, 1, 2, 5, 5, 6, 7]
    with closing(sqlite3.connect(tmp_path / "t.db")) as table:
        assert [n for (n,) in table.execute("SELECT n FROM t ORDER BY rowid")] == [
            0, 1, 2, "no number", 5, 5, 6, 7,
        ]  # fmt: skip
    found = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().column("n").to_pylist()
    assert sorted(found) == wanted
    lines = (tmp_path / "lines").read_text().splitlines()
    assert [msgspec.json.decode(line)["n"] for line in lines] == [
        0, 1, 2, "no number", 5, 5, 6, 7,
    ]  # fmt: skip
    errors = [
        (each["processor"], each["inputs"][0]["offset"]) for each in told_errors(db, "errors")
    ]
    assert sorted(errors) == [("delta", 3), ("delta", 4), ("file", 3), ("sqlite", 3)]


def test_a_graph_without_any_input_is_idle_at_once(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.join({"a": "here", "b": "nowhere"}, "out")
    def pair(a: Message, b: Message) -> bytes:
        return a.data + b.data

    db.stream("here").write(b"x")
    assert graph.run(db.location, spark=spark)["pair"].delivered == 0
    db.stream("nowhere").write_many([b"y", b"z"])
    assert graph.run(db.location, spark=spark)["pair"].delivered == 1
    assert data(db, "out") == [b"xy"]


def test_a_graph_can_be_started_watched_and_stopped(
    spark: SparkSession, db: penstock.Database
) -> None:
    graph = Graph("g")

    @graph.pipe("in", "out")
    def copy(message: Message) -> bytes:
        return message.data

    with graphs.start(graph, db.location, spark=spark) as running:
        for n in range(3):
            db.stream("in").write(b"%d" % n)
            assert db.stream("out").read(n, 1, block=60)
        assert running.status().processors[0].processor == "copy"
        heard: list[graphs.Report] = []

        def hear(report: graphs.Report) -> None:
            heard.append(report)
            running.stop()

        assert running.wait("forever", hear)["copy"].delivered == 3
        assert [report["copy"].delivered for report in heard] == [3]
    assert data(db, "out") == [b"0", b"1", b"2"]
