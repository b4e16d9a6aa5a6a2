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
from pyspark.sql.types import StructType

from penstock.errors import InvalidError
from penstock.spark.handles import reach
from penstock.spark.options import read_options, write_options
from penstock.spark.reader import BatchReader, FilteringReader, RefusedReader, StreamReader
from penstock.spark.schema import chosen, schema_of
from penstock.spark.writer import BatchWriter, StreamWriter


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Whether it will be streaming is not known here; the schema is the same.
        streaming = "maxmessagespertrigger" in {name.lower() for name in self.options}
        return schema_of(read_options(self.options, streaming=streaming))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = chosen(read_options(self.options, streaming=False), schema)
        return FilteringReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            return StreamReader(chosen(read_options(self.options, streaming=True), schema))
        except InvalidError as error:
            return RefusedReader(error)

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
