"""The options of the data source: what is meant, and what is refused. No Spark is started."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, LongType, MapType, StructField, StructType

from penstock.errors import InvalidError
from penstock.spark.options import read_options, write_options
from penstock.spark.schema import chosen, made_columns, schema_of
from penstock.spark.source import PenstockSource

HERE = {"location": "./data"}


def test_names_come_in_any_case_and_defaults_are_those_of_kafka() -> None:
    options = read_options({**HERE, "STREAM": "clicks"}, streaming=False)
    assert (options.source.kind, options.source.name) == ("stream", "clicks")
    assert options.starting is None
    assert options.ending == "latest"
    assert options.fail_on_data_loss is True
    assert options.headers is False
    assert read_options({**HERE, "messages": "true"}, streaming=False).headers is True


@pytest.mark.parametrize(
    ("text", "edge"),
    [
        ("earliest", "earliest"),
        ("LATEST", "latest"),
        ("0", 0),
        (str((1 << 63) - 1), (1 << 63) - 1),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31 13:00:00.5+01:00", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_an_edge_is_a_word_an_offset_or_a_time(text: str, edge: object) -> None:
    given = {**HERE, "stream": "s", "startingOffsets": text}
    assert read_options(given, streaming=True).starting == edge


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stream": "s"}, "which location"),
        ({"location": "./data", "path": "./other", "stream": "s"}, "and the path is"),
        ({"location": "memory://x", "stream": "s"}, "several"),
        ({"location": "s3://b/x", "stream": "s"}, "a bucket has one broker"),
        (HERE, "one of stream, topic, messages and queue"),
        ({**HERE, "stream": "s", "queue": "q"}, "stream and queue"),
        ({**HERE, "strem": "s"}, "'strem' is not an option"),
        ({**HERE, "stream": ""}, "name"),
        ({**HERE, "stream": "x" * 256}, "255"),
        ({**HERE, "messages": "false"}, "messages is true"),
        ({**HERE, "stream": "s", "state": "done"}, "state is for a queue"),
        ({**HERE, "queue": "q", "state": "gone"}, "'gone' is none of"),
        ({**HERE, "queue": "q", "startingOffsets": "1"}, "has none"),
        ({**HERE, "stream": "s", "startingOffsets": "-1"}, "earliest, latest"),
        ({**HERE, "stream": "s", "startingOffsets": str(1 << 63)}, "below 2"),
        ({**HERE, "stream": "s", "startingOffsets": "2026-01-31"}, "no time zone"),
        ({**HERE, "stream": "s", "failOnDataLoss": "yes"}, "true or false"),
        ({**HERE, "stream": "s", "minPartitions": "0"}, "at least 1"),
        ({**HERE, "stream": "s", "maxMessagesPerTrigger": "5"}, "streaming reads"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_read(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read_options(given, streaming=False)


def test_what_is_of_another_kind_of_read_is_refused() -> None:
    with pytest.raises(InvalidError, match="no end"):
        read_options({**HERE, "stream": "s", "endingOffsets": "5"}, streaming=True)
    with pytest.raises(InvalidError, match="not a stream of rows"):
        read_options({**HERE, "queue": "q"}, streaming=True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("subscribe", "stream"),
        ("subscribePattern", "stream"),
        ("assign", "stream"),
        ("kafka.bootstrap.servers", "location"),
        ("startingOffsetsByTimestamp", "startingOffsets with a time"),
        ("maxOffsetsPerTrigger", "maxMessagesPerTrigger"),
    ],
)
def test_a_name_from_elsewhere_gets_a_hint(name: str, meant: str) -> None:
    with pytest.raises(InvalidError) as caught:
        read_options({**HERE, name: "s"}, streaming=False)
    assert f"did you mean {meant}" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"producer": "p"}, False, "go together"),
        ({"sequence": "1"}, False, "go together"),
        ({"producer": "p", "sequence": "1"}, True, "batch writes"),
        ({"producer": "p", "sequence": "x"}, False, "whole number"),
        ({"producer": "", "sequence": "1"}, False, "1 to 255"),
        ({"startingOffsets": "1"}, False, "not an option"),
    ],
)
def test_what_cannot_be_written_is_told(
    given: dict[str, str], streaming: bool, message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        write_options({**HERE, "stream": "s", **given}, streaming=streaming)


def test_spark_hands_in_names_of_its_own() -> None:
    given = {**HERE, "stream": "s", "checkpointlocation": "/tmp/x", "path": "./data"}
    assert write_options(given, streaming=True).location == str(Path("data").resolve())


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_beyond_all_times_is_told(time: str) -> None:
    with pytest.raises(InvalidError, match="beyond all times"):
        read_options({"location": "x", "stream": "s", "startingOffsets": time}, streaming=False)


def test_a_producer_that_is_no_text_is_told() -> None:
    given = {"location": "x", "stream": "s", "producer": "\udcff", "sequence": "1"}
    with pytest.raises(InvalidError, match="no valid text"):
        write_options(given, streaming=False)


@pytest.mark.parametrize(
    ("source", "option", "streaming"),
    [
        ("stream", "includePayload", False),
        ("topic", "includePayload", False),
        ("messages", "failOnDataLoss", False),
        ("queue", "failOnDataLoss", False),
        ("queue", "minPartitions", False),
        ("queue", "pushFilters", False),
        ("stream", "pushFilters", True),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    source: str, option: str, streaming: bool
) -> None:
    value = "2" if option == "minPartitions" else "true"
    given = {"location": "d", source: "true" if source == "messages" else "x"}
    read_options(given, streaming=streaming)
    with pytest.raises(InvalidError, match=f"(?i){option}"):
        read_options({**given, option: value}, streaming=streaming)


def test_a_schema_chooses_columns_and_may_take_them_for_null() -> None:
    options = read_options({**HERE, "stream": "s"}, streaming=False)
    assert chosen(options, schema_of(options)) == options
    two = StructType([StructField("data", BinaryType()), StructField("offset", LongType(), False)])
    only = chosen(options, two)
    assert schema_of(only) == two
    assert made_columns(only) == ["data", "offset"]
    keys = read_options({**HERE, "topic": "t"}, streaming=True)
    assert made_columns(chosen(keys, StructType().add("shard_key", "string"))) == ["tag"]


def test_what_a_schema_leaves_out_is_not_read() -> None:
    options = read_options({**HERE, "messages": "true"}, streaming=False)
    assert (options.headers, options.payload) == (True, True)
    only = chosen(options, StructType().add("id", "long"))
    assert (only.headers, only.payload) == (False, False)
    only = chosen(options, StructType().add("uri", "string"))
    assert (only.headers, only.payload) == (False, True)
    meta = read_options({**HERE, "stream": "s", "includeHeaders": "true"}, streaming=False)
    assert chosen(meta, StructType().add("meta", "binary")).headers is True


@pytest.mark.parametrize(
    "given",
    [
        StructType(),
        StructType().add("data", "string"),
        StructType().add("data", "binary").add("value", "binary"),
        StructType().add("data", "binary").add("data", "binary"),
        StructType().add("meta", "binary", nullable=False),  # which may be null
    ],
)
def test_a_schema_of_other_columns_is_refused(given: StructType) -> None:
    """Else each task would fail, with a sentence that is not about this."""
    source = PenstockSource({**HERE, "stream": "s", "includeHeaders": "true"})
    with pytest.raises(InvalidError, match="the columns are offset bigint not null, time"):
        source.reader(given)
    with pytest.raises(InvalidError, match="the columns are offset bigint not null, time"):
        source.streamReader(given).initialOffset()


def test_maps_whose_values_may_be_null_are_others_too() -> None:
    source = PenstockSource({**HERE, "messages": "true"})
    own = source.schema()
    source.reader(own)
    headers = own["headers"].dataType
    assert isinstance(headers, MapType)
    other = MapType(headers.keyType, headers.valueType, not headers.valueContainsNull)
    fields = [
        StructField(each.name, other, each.nullable) if each.name == "headers" else each
        for each in own.fields
    ]
    with pytest.raises(InvalidError, match=r"headers MapType\(.*, not .*headers MapType\("):
        source.reader(StructType(fields))
