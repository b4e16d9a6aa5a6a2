"""The columns of the data source, as Spark knows them. Pure.

Contract     `schema_of(options)` is what a read gives: the Arrow schema of whoever makes the
             batches (log/columns.py, queue/messagecolumns.py, queue/statecolumns.py), in Spark's
             words, so that there is one place that names them. `chosen` takes what `.schema()`
             names of it: Spark does not tell a source in Python which columns a query uses, so
             this is how a reader says that the others need not be read. `check_written` says what
             cannot be written before a task runs.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    NumericType,
    StringType,
    StructField,
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
    whole = _whole_schema(options)
    if options.columns is None:
        return whole
    return pa.schema([whole.field(name).with_nullable(null) for name, null in options.columns])


def _whole_schema(options: ReadOptions) -> pa.Schema:
    match options.source.kind:
        case "stream":
            return column_schema(meta=options.headers)
        case "topic":
            return _TOPIC_SCHEMA
        case "messages":
            return message_schema(headers=options.headers, payload=options.payload)
        case "queue":
            return state_schema(headers=options.headers, payload=options.payload)


def made_columns(options: ReadOptions) -> list[str]:
    """What the columns of a stream or topic are called where they are made."""
    tag = TAG_COLUMNS[options.source.kind]
    return ["tag" if name == tag else name for name in arrow_schema(options).names]


def shown(options: ReadOptions, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as it was read, with the columns of this source."""
    schema = arrow_schema(options)
    columns = [_shown(batch, name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _shown(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name != TAG_COLUMNS["topic"]:
        return batch.column(name)
    keys = batch.column("tag")
    return pc.if_else(pc.equal(keys, ""), pa.scalar(None, keys.type), keys)


def schema_of(options: ReadOptions) -> StructType:
    return from_arrow_schema(arrow_schema(options))


def chosen(options: ReadOptions, given: StructType) -> ReadOptions:
    """The same with the columns of `given` only, each once and of its own type."""
    own = schema_of(options)
    if given == own:
        return options
    types = {field.name: field for field in own.fields}
    names = given.fieldNames()
    wrong = [field for field in given.fields if not _is_of(field, types.get(field.name))]
    if wrong or not names or len(set(names)) < len(names):
        raise InvalidError(
            f"the columns are {_columns(own)}, not {_columns(given) or 'none'}",
            hint="leave .schema() out, or name some of them as they are",
        )
    return msgspec.structs.replace(
        options,
        headers=options.headers and not {"meta", "headers"}.isdisjoint(names),
        payload=options.payload and not {"payload", "uri"}.isdisjoint(names),
        columns=tuple((field.name, field.nullable) for field in given.fields),
    )


def _is_of(field: StructField, own: StructField | None) -> bool:
    """Who takes a column for null that never is, may."""
    return (
        own is not None
        and _type(field.dataType) == _type(own.dataType)
        and (field.nullable or not own.nullable)
    )


def _columns(schema: StructType) -> str:
    return ", ".join(
        f"{field.name} {_type(field.dataType)}{'' if field.nullable else ' not null'}"
        for field in schema.fields
    )


def _type(kind: DataType) -> str:
    """The short form of an array or a map does not say whether its values may be null."""
    return repr(kind) if isinstance(kind, (ArrayType, MapType)) else kind.simpleString()


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
