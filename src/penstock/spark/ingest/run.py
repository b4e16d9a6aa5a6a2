"""`penstock.spark.Ingest`: announced files into a Delta table, each row once.

Contract     The arguments are checked when it is made; nothing is opened before `run`. What `run`
             refuses changes nothing: schema, table, queue and stored source are looked at first.
             Any number of processes may run the same source at once: each file is loaded by one of
             them.
Not here     How (coordinator.py), the command line (cli/ingest.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import penstock
from penstock.client.database import Database
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidError, NotFoundError
from penstock.source.queueport import Limits, limits_of
from penstock.source.requests import GetSource, OpenSource, token_text
from penstock.source.visibility import check_limits
from penstock.source.words import SHARDS_MAX
from penstock.spark.ingest.coordinator import Coordinator
from penstock.spark.ingest.delta import DeltaTarget, require_deltalake
from penstock.spark.ingest.options import (
    Settings,
    check_count,
    check_identity,
    check_reading,
    check_seconds,
    check_source,
)
from penstock.spark.ingest.report import Report
from penstock.spark.ingest.schema import TEXT, given_schema, simple_fields
from penstock.spark.ingest.storedschema import check_given, stored_columns
from penstock.spark.ingest.tablefolder import table_uri
from penstock.spark.queueports import PenstockQueue, check_queue, check_there, open_queue
from penstock.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock")

_DAY = 24 * 3600.0


class Ingest:
    """Loads files that a queue announces into a Delta table, exactly once.

    `queue` is the name of a queue of the location, `sqs://…`, or an object that receives, extends
    and acknowledges. `table` is a folder or `s3://bucket/prefix`. `format` is json (lines), csv,
    parquet or text; `options` are those of csv: header, sep, quote.

    `schema` is DDL, a StructType or a schema of pyarrow; without it the first batch tells, and that
    is remembered. What does not fit is in `_rescued_data`; with `evolve=True` new fields become
    columns. `identity="version"` loads a file again when its content changed and it is announced
    again. `inline=True`: the messages are the data, not names of files.

    A process that gives no sign of life for twice the `commit_timeout` loses its files to others.
    """

    def __init__(
        self,
        location: str | Path,
        queue: object,
        table: str | Path,
        format: str = "json",
        commit_timeout: float = 60,
        *,
        name: str | None = None,
        schema: object = None,
        options: Mapping[str, object] | None = None,
        identity: str = "uri",
        inline: bool = False,
        evolve: bool = False,
        max_files: int = 5000,
        batch_bytes: int = 2 * 2**30,
        chunk_bytes: int = 256 * 2**20,
        max_failures: int = 3,
        retry_delay: float = 1.0,
        linger: float = 1.0,
        prune_age: float = 30 * _DAY,
        prune_count: int = 1_000_000,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
    ) -> None:
        uri = table_uri(table)
        if not isinstance(location, str | Path):
            raise InvalidError(f"a location is a folder or s3://bucket/…, not {location!r}")
        check_queue(queue)
        if schema is not None and format == "text":
            raise InvalidError("the format text has one column, value", hint="leave schema out")
        self._settings = Settings(
            location=str(location),
            table=uri,
            name=check_source(name, uri),
            reading=check_reading(format, options),
            identity=check_identity(identity),
            inline=bool(inline),
            evolve=bool(evolve),
            commit_timeout=check_seconds("commit_timeout", commit_timeout),
            linger=check_seconds("linger", linger, positive=False),
            max_files=check_count("max_files", max_files, most=SHARDS_MAX),
            batch_bytes=check_count("batch_bytes", batch_bytes),
            chunk_bytes=check_count("chunk_bytes", chunk_bytes),
            max_failures=check_count("max_failures", max_failures),
            retry_delay=check_seconds("retry_delay", retry_delay, positive=False),
            prune_age=check_seconds("prune_age", prune_age),
            prune_count=check_count("prune_count", prune_count),
        )
        if inline and identity == "version":
            raise InvalidError("inline data has no version", hint="leave identity out")
        self._queue = queue
        self._schema = schema
        self._spark = spark
        self._clock = clock or SystemClock()
        self._running: Coordinator | None = None
        self._stopped = False

    def run(
        self, once: bool = False, *, progress: Callable[[Report], None] | None = None
    ) -> Report:
        """Load what is announced. With `once`, return when nothing is left to do here; without,
        go on until `stop`. `progress` is told how far it is, in this thread."""
        try:
            return self._run(once, progress)
        finally:
            # A wish to end, even one that came before the run, was for this one.
            self._running, self._stopped = None, False

    def _run(self, once: bool, progress: Callable[[Report], None] | None) -> Report:
        require_deltalake()
        check_there(self._settings.location, self._queue)
        spark = self._spark or session("penstock ingest")
        given = self._given()
        with penstock.open(self._settings.location) as database:
            queue = open_queue(database, self._queue, clock=self._clock)
            try:
                limits = limits_of(queue)
                check_limits(self._settings.commit_timeout, limits)
                given = self._check(database, given)
                # Nothing is changed before here.
                source = database.sources.ask(self._open_source(limits))
                if source.warning:
                    _log.warning("source %r: %s", source.name, source.warning)
                coordinator = Coordinator(
                    self._settings,
                    source,
                    queue,
                    ask=database.sources.ask,
                    spark=spark,
                    clock=self._clock,
                    token=token_text(self._clock.entropy(16)),
                    progress=progress,
                )
                if given is not None:
                    coordinator.schema.use(given)
                if isinstance(queue, PenstockQueue):
                    queue.begin()
                self._running = coordinator
                if self._stopped:
                    coordinator.stop()
                return coordinator.run(once=once)
            finally:
                # A user's own object is the user's to close.
                close = getattr(queue, "close", None)
                if isinstance(self._queue, str) and close is not None:
                    close()

    def stop(self) -> None:
        """End `run` after the batch that is under way. From any thread, or a signal handler."""
        self._stopped = True
        if self._running is not None:
            self._running.stop()

    def _open_source(self, limits: Limits) -> OpenSource:
        settings = self._settings
        request = OpenSource(
            settings.name,
            settings.table,
            settings.identity,
            prune_age_ms=round(1000 * settings.prune_age),
            prune_count=settings.prune_count,
            max_failures=settings.max_failures,
            format=settings.reading.format,
        )
        if limits.retention is None:
            return request
        return msgspec.structs.replace(request, horizon_ms=round(1000 * limits.retention))

    def _given(self) -> pa.Schema | None:
        """The columns that the user gave, or that the format has."""
        if self._settings.reading.format == "text":
            return TEXT
        given = None if self._schema is None else given_schema(self._schema)
        self._check_format(given)
        return given

    def _check_format(self, columns: pa.Schema | None) -> None:
        if columns is None or self._settings.reading.format != "csv":
            return
        nested = simple_fields(columns)
        if nested:
            raise InvalidError(
                f"a CSV file cannot hold the columns {', '.join(nested)}",
                hint="take text, and parse it in Spark",
            )

    def _check(self, database: Database, given: pa.Schema | None) -> pa.Schema | None:
        """Refuse what cannot work with the source and the table that are there.
        -> the columns to load; None: as they are stored, or the first batch tells"""
        target = DeltaTarget(self._settings.table, "", self._clock, lambda _: None)
        stored = None
        with contextlib.suppress(NotFoundError):
            stored = stored_columns(database.sources.ask(GetSource(self._settings.name)))
        if given is None and stored is None:
            # A table that was there before has columns: what is loaded fits them, or is rescued.
            given = target.columns()
        if given is not None:
            check_given(self._settings.name, given, stored)
        for columns in (stored, given):
            if columns is not None:
                self._check_format(columns)
                target.check(columns)
        return given
