"""Ingest from the announcement to the table, in a world without a JVM."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from penstock.source.local import Local
from penstock.source.queueport import Received
from penstock.source.requests import ListSources, OpenSource, ReopenShard
from penstock.spark.ingest import coordinator, pieces, run, shared
from penstock.spark.ingest.coordinator import Coordinator
from penstock.spark.ingest.readers import PieceReader
from penstock.spark.ingest.shared import Shared
from unit.spark.ingest.world import World

ID = pa.schema([("id", pa.int64())])
PATIENCE = 20.0


def test_each_row_of_each_file_is_in_the_table_once(world: World) -> None:
    for n in range(5):
        world.write(f"{n}.json", {"id": 2 * n}, {"id": 2 * n + 1})
    world.queue.send(str(world.files / "3.json"))
    world.queue.send((world.files / "1.json").as_uri())
    report = world.ingest().run(once=True)
    assert (report.files, report.rows, report.duplicates, report.failed) == (5, 10, 2, 0)
    assert world.ids() == list(range(10))
    assert len(world.queue) == 0
    assert world.spark.jobs == 2  # one to infer the schema, one to load


def test_a_second_run_finds_nothing_and_a_repeated_announcement_is_a_duplicate(
    world: World,
) -> None:
    path = world.write("a.json", {"id": 1})
    world.ingest().run(once=True)
    assert world.ingest().run(once=True).files == 0
    world.queue.send(str(path))
    report = world.ingest().run(once=True)
    assert (report.files, report.duplicates) == (0, 1)
    assert world.ids() == [1]
    assert len(world.queue) == 0


def test_rows_know_their_file_and_position(world: World) -> None:
    path = world.write("ä b%20.json", {"id": 1}, {"id": 2}, announce=False)
    world.queue.send(str(path).replace("%", "%25"))
    world.ingest().run(once=True)
    assert world.rows("id", "_file", "_position", "_rescued_data") == [
        (1, f"file://{path}", 0, None),
        (2, f"file://{path}", 10, None),
    ]


def test_every_bad_thing_has_its_outcome_and_blocks_no_other(world: World) -> None:
    world.write("empty.json")
    world.write("bad.json", {"id": 1}, b"not json", {"id": 2})
    world.queue.send(str(world.files / "deleted.json"))
    world.queue.send("what is this")
    world.queue.send(json.dumps({"Event": "s3:TestEvent"}))
    world.write("good.json", {"id": 3})
    (world.files / "cut.json.gz").write_bytes(gzip.compress(b'{"id":9}\n' * 999)[:-20])
    world.queue.send(str(world.files / "cut.json.gz"))
    report = world.ingest(max_failures=2).run(once=True)
    assert (report.files, report.rows, report.failed) == (3, 4, 3)
    assert world.ids() == [1, 2, 3, None]
    assert [row[0] for row in world.rows("_rescued_data")] == ["not json", None, None, None]
    shards = world.shards()
    assert {name: shard.phase for name, shard in shards.items() if shard.kind == "file"} == {
        "empty.json": "eof",
        "bad.json": "eof",
        "good.json": "eof",
        "deleted.json": "failed",
        "cut.json.gz": "failed",
    }
    assert (shards["deleted.json"].failures, shards["cut.json.gz"].failures) == (2, 2)
    assert "no such file" in shards["deleted.json"].error
    assert "damaged" in shards["cut.json.gz"].error
    assert len(world.queue) == 0


def test_a_file_that_comes_late_is_loaded_when_it_is_there(world: World) -> None:
    path = world.write("late.json", {"id": 1}, announce=False)
    world.queue.send(str(path))
    text = path.read_bytes()
    path.unlink()

    def arrive() -> None:
        path.write_bytes(text)

    world.write("other.json", {"id": 2})
    world.spark.before = arrive
    report = world.ingest().run(once=True)
    assert (report.files, report.failed) == (2, 0)
    assert world.ids() == [1, 2]


def test_a_failed_file_goes_on_when_it_is_reopened(world: World) -> None:
    path = world.files / "a.json"
    world.queue.send(str(path))
    world.ingest().run(once=True)
    world.write("a.json", {"id": 1})
    assert world.ingest().run(once=True).files == 0  # failed for good, until somebody says so
    world.database.sources.ask(ReopenShard(world.source().id, f"file://{path}"))
    world.queue.send(str(path))
    assert world.ingest().run(once=True).files == 1
    assert world.ids() == [1]


def test_the_same_name_with_new_content_is_loaded_again_only_by_version(world: World) -> None:
    path = world.write("a.json", {"id": 1})
    world.ingest(name="by uri").run(once=True)
    table = world.folder / "other"
    world.queue.send(str(path))
    world.ingest(name="by version", table=table, identity="version").run(once=True)
    world.write("a.json", {"id": 2}, {"id": 3})
    world.ingest(name="by uri").run(once=True)
    assert world.ids() == [1]
    for _ in range(2):
        world.queue.send(str(path))
        world.ingest(name="by version", table=table, identity="version").run(once=True)
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]


def test_a_file_whose_version_was_unknown_ends_once_it_is_there(world: World) -> None:
    path = world.files / "late.json"
    world.queue.send(str(path))
    world.write("other.json", {"id": 2})
    world.spark.before = lambda: None if path.exists() else bool(path.write_bytes(b'{"id":1}\n'))
    report = world.ingest(identity="version").run(once=True)
    assert (report.files, report.rows, report.failed) == (2, 2, 0)
    assert world.ids() == [1, 2]
    assert {shard.phase for shard in world.shards().values()} == {"eof"}
    world.queue.send(str(path))
    assert world.ingest(identity="version").run(once=True).duplicates == 1
    assert world.ids() == [1, 2]
    assert len(world.queue) == 0


def test_messages_can_be_the_data(world: World) -> None:
    world.queue.send(b'{"id":1}\n{"id":2}\n', dedup_id="x")
    world.queue.send(b'{"id":3}')
    world.queue.send(b'{"id":1}\n{"id":2}\n', dedup_id="x")
    report = world.ingest(inline=True).run(once=True)
    assert (report.files, report.rows, report.duplicates) == (2, 3, 1)
    assert world.rows("id", "_file") == [
        (1, "inline:dedup:x"),
        (2, "inline:dedup:x"),
        (3, "inline:id:2"),
    ]


def test_of_two_inline_messages_with_one_id_the_first_is_the_data(world: World) -> None:
    world.queue.send(b'{"id":1}\n', dedup_id="x")
    world.queue.send(b'{"id":2}\n', dedup_id="x")
    world.queue.send(b'{"id":3}\n', dedup_id="y" * 5000)
    report = world.ingest(inline=True).run(once=True)
    assert (report.files, report.duplicates) == (2, 1)
    assert world.ids() == [1, 3]


def test_an_announcement_with_a_name_that_is_too_long_blocks_no_other(world: World) -> None:
    world.queue.send("s3://bucket/" + "é" * 3000)
    world.write("a.json", {"id": 1})
    report = world.ingest().run(once=True)
    assert (report.files, report.failed) == (1, 1)
    (failed,) = (shard for shard in world.shards().values() if shard.phase == "failed")
    assert "more than" in failed.error
    assert len(world.queue) == 0


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_large_file_is_loaded_in_several_commits(world: World, ending: str) -> None:
    text = b"".join(json.dumps({"id": n}).encode() + b"\n" for n in range(500))
    path = world.files / f"large.json{ending}"
    path.write_bytes(gzip.compress(text) if ending else text)
    world.queue.send(str(path))
    report = world.ingest(chunk_bytes=1000, schema=pa.schema([("id", pa.int64())])).run(once=True)
    assert (report.files, report.rows) == (1, 500)
    assert report.publishes == (1 if ending else 6)
    assert report.bytes == path.stat().st_size
    assert world.ids() == list(range(500))
    offsets = [row[0] for row in world.rows("_position")]
    assert offsets == sorted({match for match in _line_starts(text)})


def _line_starts(text: bytes) -> list[int]:
    starts, at = [], 0
    for line in text.splitlines(keepends=True):
        starts.append(at)
        at += len(line)
    return starts


def test_a_large_parquet_file_is_loaded_by_row_groups(world: World) -> None:
    path = world.files / "a.parquet"
    pq.write_table(pa.table({"id": list(range(100))}), path, row_group_size=10)
    world.queue.send(str(path))
    report = world.ingest(format="parquet", chunk_bytes=200).run(once=True)
    assert (report.files, report.rows) == (1, 100)
    assert report.publishes > 2
    assert world.rows("id", "_position") == [(n, n) for n in range(100)]


def test_a_range_that_fails_leaves_out_the_other_ranges_of_its_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("large.json", *({"id": n} for n in range(100)))
    world.write("small.json", {"id": 100})
    monkeypatch.setattr(pieces, "_RANGE_BYTES", 200)
    tables = PieceReader.tables
    failed: list[int] = []

    def once(self: PieceReader, columns: pa.Schema) -> Iterator[pa.Table]:
        if self._piece.start and not failed:
            failed.append(self._piece.start)
            raise CorruptError("not whole yet")
        yield from tables(self, columns)

    monkeypatch.setattr(PieceReader, "tables", once)
    report = world.ingest(chunk_bytes=1000, schema=pa.schema([("id", pa.int64())])).run(once=True)
    assert failed
    assert (report.files, report.rows, report.failed) == (2, 101, 0)
    assert world.ids() == list(range(101))
    assert len(world.splits()) == DeltaTable(world.table_path).get_add_actions().num_rows


@pytest.mark.parametrize("rows", [2, 400], ids=["shorter", "longer"])
def test_a_file_that_changes_between_two_commits_has_failed(world: World, rows: int) -> None:
    path = world.write("a.json", *({"id": n} for n in range(300)))

    def replace() -> None:
        if world.spark.jobs == 3:
            world.write("a.json", *({"id": 1000 + n} for n in range(rows)), announce=False)

    world.spark.before = replace
    report = world.ingest(schema=ID, chunk_bytes=500).run(once=True)
    assert (report.files, report.failed) == (0, 1)
    shard = world.shards()["a.json"]
    assert shard.phase == "failed"
    assert "changed after a part of it was loaded" in shard.error
    assert world.ids() == list(range(shard.rows))  # none of the new ones
    assert 0 < shard.rows < 300
    # Who has looked at it may go on, as far as there is something to go on with.
    world.spark.before = lambda: None
    world.database.sources.ask(ReopenShard(world.source().id, f"file://{path}"))
    world.queue.send(str(path))
    report = world.ingest(schema=ID, chunk_bytes=500).run(once=True)
    assert (report.files, report.failed) == ((0, 1) if rows == 2 else (1, 0))
    if rows == 2:
        assert "shorter than what was loaded" in world.shards()["a.json"].error


def test_a_file_that_changes_while_its_first_part_is_read_is_read_again(world: World) -> None:
    world.write("a.json", *({"id": n} for n in range(300)))

    def replace() -> None:
        if world.spark.jobs == 1:
            world.write("a.json", *({"id": 1000 + n} for n in range(200)), announce=False)

    world.spark.before = replace
    report = world.ingest(schema=ID, chunk_bytes=500).run(once=True)
    assert (report.files, report.rows, report.failed) == (1, 200, 0)
    assert world.ids() == list(range(1000, 1200))


def test_parts_of_a_file_are_of_one_file_for_who_takes_it_over(world: World) -> None:
    world.write("a.json", *({"id": n} for n in range(300)))
    ingest = world.ingest(schema=ID, chunk_bytes=500)
    world.spark.before = lambda: ingest.stop() if world.spark.jobs == 2 else None
    ingest.run(once=True)
    assert world.shards()["a.json"].rows > 0
    world.write("a.json", *({"id": 1000 + n} for n in range(400)), announce=False)
    world.clock.moved += 31
    assert world.ingest(schema=ID, chunk_bytes=500).run(once=True).failed == 1
    assert "changed" in world.shards()["a.json"].error


def test_a_run_that_forgot_the_format_is_refused_and_changes_nothing(world: World) -> None:
    path = world.files / "a.parquet"
    pq.write_table(pa.table({"id": list(range(300))}), path, row_group_size=10)
    world.queue.send(str(path))
    ingest = world.ingest(format="parquet", chunk_bytes=200)
    world.spark.before = lambda: ingest.stop() if world.spark.jobs == 2 else None
    ingest.run(once=True)
    before = world.shards()["a.parquet"]
    assert 0 < before.rows < 300
    world.clock.moved += 31
    with pytest.raises(ConflictError, match="reads its files as parquet, not as json"):
        world.ingest(prune_count=5).run(once=True)
    assert world.shards()["a.parquet"].position == before.position
    assert world.source().prune_count == 1_000_000
    world.ingest(format="parquet").run(once=True)
    assert sorted(world.rows("id")) == [(n,) for n in range(300)]


def test_a_file_of_which_a_part_is_loaded_is_not_read_whole_as_another_format(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a source that was made before formats were remembered.
    monkeypatch.setattr(run, "OpenSource", lambda *a, **k: OpenSource(*a, **k | {"format": ""}))
    path = world.files / "a.csv"
    path.write_text("".join(f"{n}\n" for n in range(300)))
    world.queue.send(str(path))
    ingest = world.ingest(format="text", chunk_bytes=200)
    world.spark.before = lambda: ingest.stop() if world.spark.jobs == 2 else None
    ingest.run(once=True)
    loaded = world.shards()["a.csv"].rows
    assert 0 < loaded < 300
    world.clock.moved += 31
    schema = pa.schema([("value", pa.string())])
    world.ingest(format="csv", options={"header": False}, schema=schema).run(once=True)
    assert "as another format" in world.shards()["a.csv"].error
    assert len(world.rows("value")) == loaded


def test_a_file_that_is_done_has_no_error_of_an_earlier_try(world: World) -> None:
    path = world.files / "late.json"
    world.queue.send(str(path))
    world.write("x.json", {"id": 0})
    world.spark.before = lambda: path.write_text('{"id":1}\n')
    world.ingest().run(once=True)
    shard = world.shards()["late.json"]
    assert (shard.phase, shard.failures, shard.error) == ("eof", 0, "")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"schema": "this is no ddl ("}, InvalidError),
        ({"schema": pa.schema([("id", pa.string())])}, InvalidError),  # the table's is a number
        ({"commit_timeout": 100_000}, InvalidError),  # no lease of the queue is that long
        ({"name": "other", "table": "second"}, ConflictError),  # it loads into another table
    ],
)
def test_what_is_refused_has_changed_nothing(
    world: World, wrong: dict[str, Any], error: type[Exception]
) -> None:
    queue = world.database.create_queue("q", max_attempts=5)
    world.write("a.json", {"id": 1})
    world.ingest(name="other").run(once=True)
    before = world.database.sources.ask(ListSources()).sources
    if "table" in wrong:
        wrong = wrong | {"table": world.folder / "second"}
    with pytest.raises(error):
        world.ingest(**{"queue": "q", "prune_count": 5, "name": "new"} | wrong).run(once=True)
    assert queue.describe().max_attempts == 5
    assert world.database.sources.ask(ListSources()).sources == before


def test_a_schema_that_the_source_has_not_is_refused_before_its_settings_change(
    world: World,
) -> None:
    world.write("a.json", {"id": 1})
    world.ingest().run(once=True)
    shutil.rmtree(world.table_path)  # so that the table does not refuse it
    with pytest.raises(InvalidError, match="has the schema"):
        world.ingest(schema=pa.schema([("id", pa.string())]), prune_count=5).run(once=True)
    assert world.source().prune_count == 1_000_000


def test_when_all_that_fits_in_waits_for_another_try_it_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "Local", lambda: Local(capacity=2))
    for n in range(3):
        world.queue.send(str(world.files / f"missing {n}.json"))
    paused: list[float] = []

    def pause(_: object, seconds: float) -> None:
        paused.append(seconds)
        world.clock.moved += seconds

    rounds = iter(range(50))
    receive = Coordinator._receive

    def received(self: Coordinator, wait: float) -> int | None:
        assert next(rounds, None) is not None, "it goes round and round"
        return receive(self, wait)

    monkeypatch.setattr(Coordinator, "_pause", pause)
    monkeypatch.setattr(Coordinator, "_receive", received)
    assert world.ingest(schema=ID, retry_delay=0.2, max_failures=2).run(once=True).failed == 3
    assert paused
    assert len(world.queue) == 0


def test_a_message_is_held_for_as_long_as_its_file_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that takes longer than the lease; the queue gives its message to nobody else."""
    world.write("a.json", {"id": 1})
    extended = threading.Event()
    extend = world.queue.extend

    def told(received: Received, seconds: float) -> float | None:
        deadline = extend(received, seconds)
        extended.set()
        return deadline

    def long_job() -> None:
        world.clock.moved += 25  # of a lease of 30
        running = ingest._running
        assert running is not None
        with running._keeper._changed:
            running._keeper._changed.notify_all()  # the time was not spent, but moved
        assert extended.wait(PATIENCE), "nobody keeps the message"
        world.clock.moved += 25
        others.extend(world.queue.receive(10, 0))

    others: list[Received] = []
    monkeypatch.setattr(world.queue, "extend", told)
    world.spark.before = long_job
    ingest = world.ingest(schema=ID)
    assert ingest.run(once=True).files == 1
    assert others == []
    assert len(world.queue) == 0


def test_the_limits_that_a_queue_tells_are_of_their_type(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.queue, "limits", lambda: {"lease": 5})
    with pytest.raises(InvalidError, match=r"limits\(\) of MemoryQueue answered with dict"):
        world.ingest().run(once=True)


def test_csv_text_and_their_options(world: World) -> None:
    path = world.files / "a.csv"
    path.write_text("id;name\n1;a\n2;'b;c'\n")
    world.queue.send(str(path))
    world.ingest(format="csv", options={"sep": ";", "quote": "'"}).run(once=True)
    assert world.rows("id", "name") == [(1, "a"), (2, "b;c")]
    table = world.folder / "text"
    world.queue.send(str(path))
    world.ingest(format="text", table=table, name="text").run(once=True)
    assert DeltaTable(table).to_pyarrow_table()["value"].to_pylist() == [
        "id;name",
        "1;a",
        "2;'b;c'",
    ]


def test_a_schema_is_remembered_and_what_does_not_fit_is_rescued(world: World) -> None:
    world.write("a.json", {"id": 1})
    world.ingest().run(once=True)
    world.write("b.json", {"id": 2, "new": "x"}, {"id": "three"}, {"id": 4})
    world.ingest().run(once=True)
    assert world.rows("id", "_rescued_data") == [
        (1, None),
        (2, '{"id": 2, "new": "x"}'),
        (4, None),
        (None, '{"id": "three"}'),
    ]
    assert world.source().schema_version == 1


def test_new_fields_become_columns_where_that_is_wanted(world: World) -> None:
    world.write("a.json", {"id": 1})
    world.ingest(evolve=True).run(once=True)
    world.write("b.json", {"id": 2, "new": "x"})
    world.ingest(evolve=True).run(once=True)
    assert world.rows("id", "new", "_rescued_data") == [(1, None, None), (2, "x", None)]
    assert world.source().schema_version == 2


def test_columns_can_be_added_by_a_given_schema_but_not_changed(world: World) -> None:
    world.write("a.json", {"id": 1, "name": "n"})
    world.ingest(schema=pa.schema([("id", pa.int64())])).run(once=True)
    wider = pa.schema([("id", pa.int64()), ("name", pa.string())])
    world.write("b.json", {"id": 2, "name": "m"})
    world.ingest(schema=wider).run(once=True)
    world.write("c.json", {"id": 3, "name": "o"})
    world.ingest(schema=pa.schema([("id", pa.int64())])).run(once=True)  # the wider one is used
    assert world.rows("id", "name") == [(1, None), (2, "m"), (3, "o")]
    with pytest.raises(InvalidError, match="has the schema id int64, name string"):
        world.ingest(schema=pa.schema([("id", pa.string())])).run(once=True)


def test_nothing_but_bad_lines_is_loaded_and_pins_no_schema(world: World) -> None:
    world.write("a.json", b"nonsense")
    world.ingest().run(once=True)
    assert world.source().schema_version == 0
    world.write("b.json", {"id": 1})
    world.ingest().run(once=True)
    assert world.rows("id", "_rescued_data") == [(1, None), (None, "nonsense")]


def test_a_table_that_was_there_gives_the_schema(world: World) -> None:
    DeltaTable.create(world.table_path, pa.schema([("id", pa.int32()), ("x", pa.string())]))
    world.write("a.json", {"id": 1, "more": 1})
    world.ingest().run(once=True)
    assert world.rows("id", "x", "_rescued_data") == [(1, None, '{"id": 1, "more": 1}')]


def test_a_table_that_forgets_its_transactions_is_refused(world: World) -> None:
    property = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable.create(world.table_path, pa.schema([("id", pa.int64())]), configuration=property)
    world.write("a.json", {"id": 1})
    with pytest.raises(InvalidError, match="forgets which publishes"):
        world.ingest().run(once=True)
    assert len(world.queue) == 1
    assert DeltaTable(world.table_path).version() == 0


def test_a_table_with_constraints_is_refused(world: World) -> None:
    table = DeltaTable.create(world.table_path, pa.schema([("id", pa.int64())]))
    table.alter.add_constraint({"positive": "id > 0"})
    world.write("a.json", {"id": 1})
    with pytest.raises(InvalidError, match="constraints that are not checked"):
        world.ingest().run(once=True)
    assert len(world.queue) == 1


def test_partitioned_and_mistyped_tables_are_refused(world: World) -> None:
    world.write("a.json", {"id": 1})
    DeltaTable.create(world.table_path, pa.schema([("id", pa.int64())]), partition_by=["id"])
    with pytest.raises(InvalidError, match="partitioned by id"):
        world.ingest().run(once=True)
    other = world.folder / "other"
    DeltaTable.create(other, pa.schema([("id", pa.string())]))
    with pytest.raises(InvalidError, match="has the column 'id' as string"):
        world.ingest(table=other, schema=pa.schema([("id", pa.int64())])).run(once=True)
    assert len(world.queue) == 1


def test_wrong_arguments_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    from penstock.spark import Ingest

    good = {"location": tmp_path / "d", "queue": "q", "table": tmp_path / "t"}
    for bad in (
        {"format": "xml"},
        {"commit_timeout": 0},
        {"commit_timeout": "60"},
        {"max_files": 0},
        {"identity": "etag"},
        {"options": {"header": True}},
        {"format": "csv", "options": {"sep": ",,"}},
        {"format": "csv", "options": {"delimiter": ","}},
        {"format": "csv", "options": {"sep": '"'}},
        {"format": "text", "schema": "value STRING"},
        {"inline": True, "identity": "version"},
        {"table": "memory://x"},
        {"table": "s3://bucket"},
        {"table": "./100%"},
        {"name": ""},
        {"name": "x" * 256},
        {"name": "\ud800"},
        {"name": 5},
        {"table": None},
        {"table": 5},
        {"table": f"/t/{'x' * 300}"},  # a source without a name is called like its table
        {"queue": None},
        {"queue": ""},
        {"location": 5},
        {"format": "csv", "options": "x"},
        {"format": "csv", "options": ["header"]},
        {"options": 5},
        {"max_files": 10_001},
    ):
        with pytest.raises(InvalidError):
            Ingest(**(good | bad))  # type: ignore[arg-type]
    assert not os.listdir(tmp_path)


def test_wrong_schemas_and_queues_are_refused(world: World) -> None:
    for schema in (
        5,
        "{",
        pa.schema([]),
        pa.schema([("_file", pa.string())]),
        pa.schema([("a", pa.int64()), ("A", pa.int64())]),
    ):
        with pytest.raises(InvalidError):
            world.ingest(schema=schema).run(once=True)
    nested = pa.schema([("l", pa.list_(pa.int64()))])
    with pytest.raises(InvalidError, match="cannot hold the columns l"):
        world.ingest(format="csv", schema=nested).run(once=True)
    with pytest.raises(NotFoundError):
        world.ingest(queue="nobody made it").run(once=True)
    with pytest.raises(InvalidError):
        world.ingest(queue=object()).run(once=True)
    assert not world.table_path.exists()


def test_a_source_keeps_its_table_and_identity(world: World) -> None:
    world.write("a.json", {"id": 1})
    world.ingest(name="n").run(once=True)
    with pytest.raises(ConflictError):
        world.ingest(name="n", table=world.folder / "other").run(once=True)
    with pytest.raises(ConflictError):
        world.ingest(name="n", identity="version").run(once=True)


def test_a_queue_that_is_away_for_a_moment_is_not_an_empty_one(world: World) -> None:
    world.write("a.json", {"id": 1})
    receive = world.queue.receive
    calls: list[int] = []

    def away(max_messages: int, wait: float) -> list[Received]:
        calls.append(max_messages)
        if len(calls) == 1:
            raise UnavailableError("nobody answers")
        return receive(max_messages, wait)

    world.queue.receive = away  # type: ignore[method-assign]
    assert world.ingest().run(once=True).files == 1

    def gone(max_messages: int, wait: float) -> list[Received]:
        raise UnavailableError("nobody answers")

    world.queue.receive = gone  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="nobody answers"):
        world.ingest(commit_timeout=0.05).run(once=True)


def test_a_broker_that_is_away_for_a_moment_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})
    init = Shared.__init__
    failed: set[str] = set()

    def unsteady(self: Shared, *arguments: Any, ask: Any, **more: Any) -> None:
        def lose(request: Any) -> Any:
            answer = ask(request)
            name = type(request).__name__
            if name not in failed:
                # The request was done, and its answer lost.
                failed.add(name)
                raise UnavailableError("no broker")
            return answer

        init(self, *arguments, ask=lose, **more)

    monkeypatch.setattr(Shared, "__init__", unsteady)
    monkeypatch.setattr(shared, "_PAUSE_SECONDS", 0.0)
    report = world.ingest().run(once=True)
    assert (report.files, report.rows) == (1, 1)
    assert {"OpenShards", "BeginStaging", "Publish", "ListPublishes", "MarkExported"} <= failed
    assert world.ids() == [1]
    assert world.source().published == 1


def test_progress_is_told_and_stop_ends_a_run_that_would_go_on(world: World) -> None:
    world.write("a.json", {"id": 1})
    seen = []
    ingest = world.ingest(linger=0.0)

    def progress(report: object) -> None:
        seen.append(report)
        ingest.stop()

    report = ingest.run(progress=progress)
    assert seen[-1] == report
    assert report.files == 1
    assert world.ids() == [1]


def test_a_file_that_had_failed_is_not_passed_over_in_silence(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = world.files / "late.json"
    world.queue.send(str(path))
    assert world.ingest().run(once=True).failed == 1
    world.write("late.json", {"id": 1})
    caplog.clear()
    assert world.ingest().run(once=True).files == 0
    assert len(world.queue) == 0
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("1 file announced again, and had failed: penstock ingest again")
    assert told.endswith(f"file://{path}: file://{path}: there is no such file")
