"""The columns of the data source, as Spark knows them. Pure.

Contract     `schema_of(options)` is what a read gives: the Arrow schema of whoever makes the
             batches (log/columns.py, queue/messagecolumns.py, queue/statecolumns.py), in Spark's
             words, so that there is one place that names them. `check_written` says what cannot be
             written before a task runs.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    NumericType,
    StringType,
    StructType,
)

from penstock.errors import InvalidError
from penstock.log.columns import column_schema
from penstock.queue.messagecolumns import message_schema
from penstock.queue.statecolumns import state_schema
from penstock.spark.options import ReadOptions, Source

_TEXT = (BinaryType, StringType)
#: What the tag of an entry is called, for the kinds whose rows are entries of a log.
TAG_COLUMNS = {"stream": "tag", "topic": "shard_key"}


_TOPIC_SCHEMA = column_schema().set(2, pa.field(TAG_COLUMNS["topic"], pa.string()))


def arrow_schema(options: ReadOptions) -> pa.Schema:
    match options.source.kind:
        case "stream":
            return column_schema(meta=options.headers)
        case "topic":
            return _TOPIC_SCHEMA
        case "messages":
            return message_schema(headers=options.headers, payload=options.payload)
        case "queue":
            return state_schema(headers=options.headers, payload=options.payload)


def shown(options: ReadOptions, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as it was read, with the columns of this source."""
    columns = batch.columns
    if options.source.kind == "topic":
        keys = columns[2]
        columns[2] = pc.if_else(pc.equal(keys, ""), pa.scalar(None, keys.type), keys)
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(options))


def schema_of(options: ReadOptions) -> StructType:
    return from_arrow_schema(arrow_schema(options))


def check_written(source: Source, schema: StructType) -> None:
    """Which columns a write may have, and of which types."""
    if source.kind == "queue":
        raise InvalidError(
            "messages are not written into a queue, but published",
            hint='.option("messages", "true"), and a column "to" with the name of the queue',
        )
    known = {"stream": _STREAM, "topic": _TOPIC}.get(source.kind, _MESSAGES)
    names = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in known]
    if unknown or "data" not in names or len(set(names)) < len(names):
        others = ", ".join(name for name in known if name != "data")
        raise InvalidError(
            f"a {str(source).split(' ', 1)[0]} is written from the columns data and, if needed, "
            f"{others}; not {', '.join(names)}",
            hint="select them, and rename the others",
        )
    for field in schema.fields:
        if not known[field.name](field.dataType):
            raise InvalidError(f"column {field.name} cannot be {field.dataType.simpleString()}")


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, _TEXT)


def _is_string(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_seconds(kind: DataType) -> bool:
    return isinstance(kind, NumericType) and not isinstance(kind, DecimalType)


def _is_headers(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_string(kind.keyType) and _is_string(kind.valueType)


_STREAM = {"data": _is_text, "tag": _is_text, "meta": _is_text}
_TOPIC = {"data": _is_text, "shard_key": _is_text}
_MESSAGES = {
    "data": _is_text,
    "headers": _is_headers,
    "to": _is_string,
    "delay": _is_seconds,
    "retention": _is_seconds,
}
