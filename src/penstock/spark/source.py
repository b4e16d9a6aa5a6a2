"""The data source `penstock`: what Spark asks for a reader or a writer.

Contract     `spark.read` / `readStream` / `write` / `writeStream` `.format("penstock")`, with the
             options of options.py. Registered by `penstock.spark.register(spark)`. Executors get
             this class by its name: they need the package, see docs/spark.md.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from penstock.errors import InvalidError
from penstock.spark.handles import reach
from penstock.spark.options import ReadOptions, read_options, write_options
from penstock.spark.reader import BatchReader, FilteringReader, StreamReader
from penstock.spark.schema import schema_of
from penstock.spark.writer import BatchWriter, StreamWriter


def _check_schema(options: ReadOptions, given: StructType) -> None:
    """Also whether columns may be null: Spark's tasks compare that with what they get."""
    own = schema_of(options)
    if _columns(given) != _columns(own):
        raise InvalidError(
            f"the columns are {_columns(own)}, not {_columns(given)}",
            hint="leave .schema() out, and select what you need",
        )


def _columns(schema: StructType) -> str:
    return ", ".join(
        f"{field.name} {_type(field.dataType)}{'' if field.nullable else ' not null'}"
        for field in schema.fields
    )


def _type(kind: DataType) -> str:
    """The short form of an array or a map does not say whether its values may be null."""
    return repr(kind) if isinstance(kind, (ArrayType, MapType)) else kind.simpleString()


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Whether it will be streaming is not known here; the schema is the same.
        streaming = "maxmessagespertrigger" in {name.lower() for name in self.options}
        return schema_of(read_options(self.options, streaming=streaming))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        _check_schema(options, schema)
        return FilteringReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options, streaming=True)
        _check_schema(options, schema)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidError(
                "entries are appended, what is there is never overwritten", hint='.mode("append")'
            )
        options = write_options(self.options, streaming=False)
        reach(options.location)
        return BatchWriter(options, schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidError(
                "entries are appended, so a query's output is too", hint='.outputMode("append")'
            )
        return StreamWriter(write_options(self.options, streaming=True), schema)
