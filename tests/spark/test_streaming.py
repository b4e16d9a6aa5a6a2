"""Structured Streaming: from stream to stream, each entry once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark calls it
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructType

import penstock
from penstock.log.catalogue import stream_name
from penstock.spark.options import read_options, write_options
from penstock.spark.planning import Part
from penstock.spark.reader import StreamReader
from penstock.spark.writer import BATCH_ID, QUERY_ID, StreamWriter
from spark.tables import copy, load_stream


@pytest.fixture
def db(tmp_path: Path) -> Iterator[penstock.Database]:
    with penstock.open(tmp_path / "d") as db:
        yield db


def place(db: penstock.Database) -> Path:
    return Path(db.location)


def doubled(spark: SparkSession, db: penstock.Database, **options: object) -> DataFrame:
    frame = load_stream(
        spark, place(db), **{"stream": "in", "startingOffsets": "earliest"} | options
    )
    return frame.selectExpr("concat('x', cast(data AS string)) AS data", "tag")


def data_of(db: penstock.Database, name: str = "out") -> list[bytes | None]:
    return [None if found is None else found.data for found in db.stream(name).read(0, 100_000)]


def write(db: penstock.Database, low: int, high: int) -> None:
    db.stream("in").write_many([(f"t{i % 3}", b"%d" % i) for i in range(low, high)])


def expected(low: int, high: int) -> list[bytes]:
    return [b"x%d" % i for i in range(low, high)]


@pytest.mark.parametrize("again", [False, True])
def test_a_read_that_is_refused_says_why_and_nothing_else(
    spark: SparkSession, db: penstock.Database, tmp_path: Path, again: bool
) -> None:
    """Spark's runner stumbles over itself where making the reader raises."""
    if again:  # with a checkpoint Spark begins by another question
        write(db, 0, 10)
        copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    refused = doubled(spark, db, endingOffsets="5")
    with pytest.raises(StreamingQueryException, match="a streaming one has no end") as caught:
        copy(refused, place(db), tmp_path / "c", stream="out")
    assert "UnboundLocalError" not in str(caught.value)


def test_a_query_goes_on_where_it_was(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    write(db, 0, 1000)
    limited = doubled(spark, db, maxMessagesPerTrigger=300)
    query = copy(limited, place(db), tmp_path / "c", stream="out")
    assert [told.numInputRows for told in query.recentProgress] == [300, 300, 300, 100]
    assert data_of(db) == expected(0, 1000)
    ends = [json.loads(told.sources[0].endOffset)["offset"] for told in query.recentProgress]
    latest = [json.loads(told.sources[0].latestOffset)["offset"] for told in query.recentProgress]
    assert (ends, latest) == ([300, 600, 900, 1000], [1000] * 4)  # the lag is their difference
    write(db, 1000, 1010)
    copy(limited, place(db), tmp_path / "c", stream="out")
    assert data_of(db) == expected(0, 1010)
    (told,) = [told for told in db.bulk.progress() if told.kind == "write"]
    assert (told.source, told.rows, told.total_rows) == ("stream out", 10, 1010)
    reads = [told for told in db.bulk.progress() if told.kind == "read"]
    assert sum(told.total_rows for told in reads) == 1010
    assert reads[-1].query == told.id
    assert [read.lag for read in reads] == [0, 0]


def test_bytes_of_a_batch_are_in_the_progress_of_a_query_that_observes_them(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    """As docs/spark.md says: Spark 4.3 takes no figures from a source in Python."""
    write(db, 0, 100)
    frame = load_stream(
        spark, place(db), stream="in", startingOffsets="earliest", maxMessagesPerTrigger=50
    ).observe("size", F.sum(F.length("data")).alias("bytes"))
    query = copy(frame.select("data"), place(db), tmp_path / "c", stream="out")
    told = [told.observedMetrics["size"]["bytes"] for told in query.recentProgress]
    assert told == [10 + 2 * 40, 2 * 50]


def test_a_batch_that_spark_repeats_changes_nothing(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    write(db, 0, 100)
    copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    # As if the driver had died between our commit and its own.
    for name in ("0", ".0.crc"):
        (tmp_path / "c" / "commits" / name).unlink(missing_ok=True)
    write(db, 100, 120)
    copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    assert data_of(db) == expected(0, 120)


def test_a_checkpoint_that_is_older_than_what_was_written_is_refused(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    write(db, 0, 10)
    limited = doubled(spark, db, maxMessagesPerTrigger=5)
    copy(limited, place(db), tmp_path / "c", stream="out")
    for folder in ("commits", "offsets"):
        for file in (tmp_path / "c" / folder).iterdir():
            if file.name.strip(".").split(".")[0] == "1":
                file.unlink()
    (tmp_path / "c" / "commits" / "0").unlink()
    (tmp_path / "c" / "commits" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="checkpoint is older"):
        copy(limited, place(db), tmp_path / "c", stream="out")
    assert data_of(db) == expected(0, 10)


def test_a_query_begins_at_the_end_unless_it_is_told(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    write(db, 0, 10)
    frame = load_stream(spark, place(db), stream="in").select("data", "tag")
    copy(frame, place(db), tmp_path / "c", stream="out")
    assert data_of(db) == []
    write(db, 10, 12)
    copy(frame, place(db), tmp_path / "c", stream="out")
    assert data_of(db) == [b"10", b"11"]


def test_evicted_entries_end_the_query_or_are_counted(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    write(db, 0, 10)
    copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    write(db, 10, 30)
    db.stream("in").evict(up_to=19)
    with pytest.raises(StreamingQueryException, match="10 entries of stream in from offset 10 on"):
        copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    skipping = doubled(spark, db, failOnDataLoss="false")
    copy(skipping, place(db), tmp_path / "c", stream="out")
    assert data_of(db) == expected(0, 10) + expected(20, 30)
    assert sum(told.total_evicted for told in db.bulk.progress() if told.kind == "read") == 10


def test_a_stream_that_was_made_again_is_another_one(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    write(db, 0, 10)
    copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    db.stream("in").delete()
    write(db, 50, 53)
    with pytest.raises(StreamingQueryException, match="was deleted since offset 10"):
        copy(doubled(spark, db), place(db), tmp_path / "c", stream="out")
    skipping = doubled(spark, db, failOnDataLoss="false")
    copy(skipping, place(db), tmp_path / "c", stream="out")
    assert data_of(db) == expected(0, 10) + expected(50, 53)


class Task:
    """What a writer asks of the task that it runs in: one of the first batch of one query."""

    @classmethod
    def get(cls) -> Task:
        return cls()

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return {QUERY_ID: "3c5e", BATCH_ID: "0"}[name]


def test_a_copied_checkpoint_may_go_on_into_another_stream_at_the_same_time(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both drivers are one query to Spark. Where they staged together, the first one to link ended
    the staging, and the other was told that its rows were written."""
    monkeypatch.setattr("penstock.spark.writer.TaskContext", Task)
    schema = StructType().add("data", BinaryType())
    told = {}
    for name in ("out", "other"):
        options = write_options({"location": db.location, "stream": name}, streaming=True)
        writer = StreamWriter(options, schema)
        batch = pa.RecordBatch.from_pydict({"data": [name.encode()]})
        told[name] = writer, writer.write(iter([batch]))
    for writer, staged in told.values():
        writer.commit([staged], 0)
    assert (data_of(db), data_of(db, "other")) == ([b"out"], [b"other"])


def stream_reader(location: object, **options: str) -> StreamReader:
    given = {"location": str(location), "stream": "in", **options}
    return StreamReader(read_options(given, streaming=True))


def evicted(db: penstock.Database) -> int:
    return sum(told.total_evicted for told in db.bulk.progress() if told.kind == "read")


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_query_whose_location_is_gone_makes_none_and_goes_on_nowhere(
    tmp_path: Path, fail: str
) -> None:
    """In an empty one it would begin at offset 0, and again when the folder is mounted again."""
    reader = stream_reader(tmp_path / "unmounted", failOnDataLoss=fail)
    with pytest.raises(penstock.NotFoundError, match="no such folder"):
        reader.latestOffset({"log": 7, "offset": 10}, ReadAllAvailable())
    assert list(tmp_path.iterdir()) == []


def test_a_location_that_is_older_than_the_checkpoint_is_told(
    db: penstock.Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder put back from a copy gives the offsets that were read out again."""
    write(db, 0, 50)
    read = stream_reader(db.location).reportLatestOffset()
    low, ahead = read | {"offset": 40}, read | {"offset": 100}
    strict = stream_reader(db.location)
    with pytest.raises(penstock.InvalidError, match="ends at offset 50, and was read up to 100"):
        strict.latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(penstock.InvalidError, match="ends at offset 50, and was read up to 100"):
        strict.partitions(low, ahead)
    skipping = stream_reader(db.location, failOnDataLoss="false")
    assert skipping.latestOffset(ahead, ReadAllAvailable()) == read
    assert skipping.partitions(ahead, read) == []
    (part,) = skipping.partitions(low, ahead)
    assert isinstance(part, Part)
    assert (part.low, part.high) == (40, 50)
    assert evicted(db) == 50
    assert "50 entries of stream in from offset 40 on are gone and left out" in caplog.text


def test_a_location_that_was_made_anew_is_another_one(
    db: penstock.Database, tmp_path: Path
) -> None:
    """Its first stream has the id that the first one of the old location had."""
    write(db, 0, 50)
    first = stream_reader(db.location, startingOffsets="earliest")
    start = first.initialOffset()
    read = first.latestOffset(start, ReadAllAvailable())
    with penstock.open(tmp_path / "anew") as anew:
        write(anew, 0, 80)
        strict = stream_reader(anew.location)
        with pytest.raises(penstock.InvalidError, match="was deleted since offset 50 was read"):
            strict.latestOffset(read, ReadAllAvailable())
        with pytest.raises(penstock.InvalidError, match="50 entries of stream in"):
            strict.partitions(start, read)
        skipping = stream_reader(anew.location, failOnDataLoss="false")
        end = skipping.latestOffset(read, ReadAllAvailable())
        (part,) = skipping.partitions(read, end)
        assert isinstance(part, Part)
        assert (part.low, part.high) == (0, 80)


def test_offsets_of_a_checkpoint_that_do_not_say_when_their_log_was_made_are_taken(
    db: penstock.Database,
) -> None:
    write(db, 0, 50)
    reader = stream_reader(db.location)
    log = db.bulk.log_size(stream_name("in")).log_id
    (part,) = reader.partitions({"log": log, "offset": 10}, {"log": log, "offset": 50})
    assert isinstance(part, Part)
    assert (part.low, part.high) == (10, 50)


def test_a_start_that_is_to_come_is_waited_for(db: penstock.Database) -> None:
    write(db, 0, 50)
    reader = stream_reader(db.location, startingOffsets="100")
    start = reader.initialOffset()
    assert start["offset"] == 100
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert reader.partitions(start, start) == []
    assert evicted(db) == 0


def test_a_query_at_its_end_has_no_lag(db: penstock.Database) -> None:
    def told() -> tuple[int | None, int | None, int | None]:
        (read,) = [told for told in db.bulk.progress() if told.kind == "read"]
        return read.offset, read.latest, read.lag

    write(db, 0, 50)
    reader = stream_reader(db.location, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(30))
    assert told() == (0, 50, 50)
    end = reader.latestOffset(end, ReadMaxRows(30))
    assert told() == (30, 50, 20)
    # Spark asks again when the last batch is done, and commits it with the next one.
    assert reader.latestOffset(end, ReadMaxRows(30)) == end
    assert told() == (50, 50, 0)


def test_a_batch_of_a_stream_that_was_deleted_is_counted_as_lost(db: penstock.Database) -> None:
    write(db, 0, 50)
    reader = stream_reader(db.location, startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    db.stream("in").delete()
    assert reader.partitions(start, end) == []
    assert evicted(db) == 50


def test_messages_are_read_and_published_as_they_come(
    spark: SparkSession, db: penstock.Database, tmp_path: Path
) -> None:
    queue = db.create_queue("second", filter="step = '2'")
    db.publish_many([(b"%d" % i, {"step": "1"}) for i in range(50)])
    frame = load_stream(spark, place(db), messages="true", startingOffsets="earliest")
    again = frame.where("headers['step'] = '1'").selectExpr(
        "payload AS data", "map('step', '2') AS headers"
    )
    copy(again, place(db), tmp_path / "c", messages="true")
    found: list[bytes | None] = []
    while len(found) < 50:
        claimed = queue.claim(100, wait=20)
        assert claimed
        found += [message.payload for message in claimed]
    assert sorted(map(bytes, found)) == sorted(b"%d" % i for i in range(50))  # type: ignore[arg-type]
