"""The Delta table of a source: made, widened, and fed with what was published, exactly once.

Contract     export(...): when it returns, the table has every split that was published before the
             call, each once. Any process may run it at any time, several at once too.
How          Load the table; v = the version of our app in it; take the publishes v + 1 … N without
             a gap; one transaction from that very handle, with (app, N). Whatever goes wrong, start
             over: a commit of unknown outcome is seen by the next loading. Delta's app version does
             not by itself refuse a repetition, but a handle that is not the newest cannot commit,
             so two exporters that read the same v cannot both win.
Invariant    One app id per source, never per process. The table's mark decides; the store's is a
             hint for pruning and for people.
Not here     Who publishes (coordinator.py), what a split is (task.py).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.clock import Clock
from penstock.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from penstock.source.requests import PublishRow, SourceInfo
from penstock.spark.ingest.schema import RESERVED, delta_type, from_text, table_schema, to_text
from penstock.spark.ingest.tablefolder import missing
from penstock.store.location import folder_of
from penstock.words import counted

#: How often a transaction is tried; each failure means that somebody else had one.
TRIES = 50
#: Publishes in one transaction of the table, so that it stays of a bounded size.
PUBLISHES_MAX = 200
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0

#: How delta-rs draws a cause below an error.
_DECORATION = re.compile(r"\x1b\[\d+m|^\s+|↳\s*")
_UNSAFE = "AWS_S3_ALLOW_UNSAFE_RENAME"
_RETENTION = "delta.setTransactionRetentionDuration"
_REFUSED = {
    _RETENTION: "it forgets which publishes it has",
    "delta.columnMapping.mode": "its files have other names for the columns",
}
#: Of a column or a field, in its metadata: what a writer would have to compute or to check.
_RULES = (b"delta.generationExpression", b"delta.identity.", b"delta.invariants")


def require_deltalake() -> Any:
    try:
        return importlib.import_module("deltalake")
    except ImportError as error:
        raise InvalidError(
            f"deltalake is not installed: {error}", hint="pip install '.[spark]' in the clone"
        ) from error


def app_id(source: SourceInfo) -> str:
    """What a source is called in its table's log. Sources of two stores may have one name."""
    return f"penstock/{source.name}/{source.id}-{source.created_ms}"


def storage_options(table: str) -> dict[str, str] | None:
    """delta-rs has its own names for what obstore reads from the environment."""
    if "://" not in table:
        return None
    if os.environ.get(_UNSAFE, "").lower() not in ("", "0", "false", "off", "no", "n"):
        raise InvalidError(
            f"{_UNSAFE} is set: of two who write the table's log at once both would win",
            hint="unset it; stores that refuse to overwrite need no renaming",
        )
    names = {"AWS_ENDPOINT": "AWS_ENDPOINT_URL"}
    return {
        names.get(name, name): value
        for name, value in os.environ.items()
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))
    }


class _OvertakenError(Exception):
    """Another process exported meanwhile."""


class DeltaTarget:
    """A table that a source feeds."""

    def __init__(self, table: str, app: str, clock: Clock, pause: Callable[[float], None]) -> None:
        self._delta = require_deltalake()
        self._table = table
        self._app = app
        self._clock = clock
        self._pause = pause

    def check(self, columns: pa.Schema) -> None:
        """Refuse now what an export would stumble over. Creates nothing."""
        handle = self._open()
        if handle is not None:
            self._check_properties(handle)
            self._missing(handle, table_schema(columns))

    def columns(self) -> pa.Schema | None:
        """Those of the data in a table that is there already; None: there is none."""
        handle = self._open()
        if handle is None:
            return None
        self._check_properties(handle)
        own = [
            field for field in pa.schema(handle.schema().to_arrow()) if field.name not in RESERVED
        ]
        return pa.schema(own) if own else None

    def version(self) -> int:
        """Up to which publish the table has everything; 0: nothing, or there is no table."""
        handle = self._open()
        return 0 if handle is None else self._mark(handle)

    def export(
        self,
        publishes: Callable[[int, int], Sequence[PublishRow]],
        schema: Callable[[], str],
        exported: Callable[[int], None],
        known: int = 0,
    ) -> int:
        """-> how many publishes this call has brought into the table

        `publishes(after, limit)`: those that come next, without a gap; `schema()`: the newest one,
        as text; `exported(n)`: the table has all up to n. `known`: it once had all up to this one.
        """
        done = 0
        tries = 0
        while True:
            try:
                count = self._export_some(publishes, schema, exported, known)
            except self._conflicts() as error:
                tries += 1
                if tries >= TRIES:
                    raise UnavailableError(
                        f"{self._table}: its log could not be written: {_reason(error)}",
                        hint="what was published is safe; it is exported by the next run",
                    ) from error
                self._pause(min(_PAUSE_SECONDS * 2 ** min(tries, 6), _PAUSE_SECONDS_MAX))
                continue
            if not count:
                return done
            done, tries = done + count, 0

    def _export_some(
        self,
        publishes: Callable[[int, int], Sequence[PublishRow]],
        schema: Callable[[], str],
        exported: Callable[[int], None],
        known: int,
    ) -> int:
        handle = self._load()
        mark = 0 if handle is None else self._mark(handle)
        try:
            rows = publishes(mark, PUBLISHES_MAX)
        except NotFoundError as error:
            raise CorruptError(
                f"{self._table} has the publishes up to {mark} of this source, and the next one is "
                "not remembered any more",
                hint="the table was replaced by an older one, or removed; restore it",
            ) from error
        if not rows:
            if mark:
                exported(mark)
            return 0
        assert [row.sequence for row in rows] == list(range(mark + 1, mark + 1 + len(rows))), rows
        if mark < known:
            self._check_splits(rows, mark)
        columns = from_text(text) if (text := schema()) else pa.schema([])
        handle = self._prepare(handle, table_schema(columns))
        if self._mark(handle) != mark:
            raise _OvertakenError(f"others have exported since publish {mark}")
        self._commit(handle, rows)
        exported(rows[-1].sequence)
        return len(rows)

    def _check_splits(self, rows: Sequence[PublishRow], mark: int) -> None:
        """The table is older than it was: its log lost its end, or all of it was put back."""
        gone = missing(self._table, [split.path for row in rows for split in row.splits])
        if gone:
            raise CorruptError(
                f"{self._table} is older than it was: it has the publishes up to {mark}, and "
                f"lacks {counted(len(gone), 'split')} of later ones, such as {gone[0]}",
                hint="restore the table's whole folder, or load the files again into another one",
            )

    def _commit(self, handle: Any, rows: Sequence[PublishRow]) -> None:
        from deltalake.transaction import AddAction

        actions = [
            AddAction(
                split.path,
                split.bytes,
                {},
                row.time_ms,
                True,
                split.stats or f'{{"numRecords": {split.rows}}}',
            )
            for row in rows
            for split in row.splits
        ]
        mark = self._delta.Transaction(self._app, rows[-1].sequence, self._clock.wall_ms())
        handle.create_write_transaction(
            actions,
            "append",
            handle.schema(),
            commit_properties=self._delta.CommitProperties(
                # Its own retries would try again on a newer version than the one that was read.
                max_commit_retries=0,
                app_transactions=[mark],
            ),
        )

    # -- the table

    def _open(self) -> Any:
        """None: there is no table. What keeps it from being read is told; an export tries again."""
        from deltalake.exceptions import DeltaError

        folder = folder_of(self._table)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InvalidError(f"{self._table} is a file", hint="a table is a folder")
        try:
            return self._load()
        except OSError as error:
            raise UnavailableError(f"{self._table}: {_reason(error)}") from error
        except DeltaError as error:
            raise CorruptError(
                f"{self._table}: its log cannot be read: {_reason(error)}",
                hint="restore its folder _delta_log, or load into another table",
            ) from error

    def _load(self) -> Any:
        from deltalake.exceptions import TableNotFoundError

        try:
            return self._delta.DeltaTable(self._table, storage_options=storage_options(self._table))
        except TableNotFoundError:
            return None

    def _mark(self, handle: Any) -> int:
        found = handle.transaction_version(self._app)
        return 0 if found is None else int(found)

    def _prepare(self, handle: Any, wanted: pa.Schema) -> Any:
        """The newest handle of a table that has all these columns."""
        if handle is None:
            self._delta.DeltaTable.create(
                self._table,
                self._delta.Schema.from_arrow(wanted),
                mode="error",
                storage_options=storage_options(self._table),
            )
            return self._delta.DeltaTable(self._table, storage_options=storage_options(self._table))
        self._check_properties(handle)
        missing = self._missing(handle, wanted)
        if not missing:
            return handle
        fields = self._delta.Schema.from_arrow(pa.schema(missing)).fields
        handle.alter.add_columns(fields)
        return self._delta.DeltaTable(self._table, storage_options=storage_options(self._table))

    def _missing(self, handle: Any, wanted: pa.Schema) -> list[pa.Field]:
        has = {field.name: field for field in pa.schema(handle.schema().to_arrow())}
        folded = {name.casefold(): name for name in has}
        missing = []
        for field in wanted:
            found = has.get(field.name)
            if found is None:
                if field.name.casefold() in folded:
                    raise InvalidError(
                        f"{self._table} has a column {folded[field.name.casefold()]!r}, the data "
                        f"{field.name!r}",
                        hint="give a schema with the table's names",
                    )
                missing.append(field)
            elif _text(found) != _text(field):
                raise InvalidError(
                    f"{self._table} has the column {field.name!r} as {found.type}, the data as "
                    f"{field.type}",
                    hint="give a schema with the table's types, or another table",
                )
        needed = [name for name, field in has.items() if not field.nullable]
        if needed:
            raise InvalidError(
                f"{self._table} wants a value in every row of {', '.join(needed)}; files may have "
                "none",
                hint="load into a table whose columns may be null",
            )
        return missing

    def _check_properties(self, handle: Any) -> None:
        metadata = handle.metadata()
        for name, reason in _REFUSED.items():
            value = metadata.configuration.get(name)
            if value is not None and value != "none":
                raise InvalidError(
                    f"{self._table} has the property {name}: {reason}", hint="unset it"
                )
        constraints = [name for name in metadata.configuration if "constraints." in name]
        if constraints:
            raise InvalidError(
                f"{self._table} has constraints that are not checked here: "
                + ", ".join(sorted(constraints)),
                hint="load into a table without constraints",
            )
        columns = pa.schema(handle.schema().to_arrow())
        ruled = [field.name for field in columns if _has_rule(field)]
        if ruled:
            raise InvalidError(
                f"{self._table} has columns with rules that Delta leaves to its writers: "
                + ", ".join(ruled),
                hint="load into a table without generated columns and invariants",
            )
        if metadata.partition_columns:
            raise InvalidError(
                f"{self._table} is partitioned by {', '.join(metadata.partition_columns)}",
                hint="files are loaded into tables without partitions",
            )

    def _conflicts(self) -> tuple[type[BaseException], ...]:
        """After these the table is loaded again: a commit may or may not be in it. What the
        broker refuses (a ConflictError) it would refuse again."""
        from deltalake.exceptions import DeltaError

        return (DeltaError, OSError, _OvertakenError)


def _has_rule(field: pa.Field) -> bool:
    """Of its own, or of a field within it."""
    inner = (field.type.field(at) for at in range(field.type.num_fields))
    own = any(key.startswith(_RULES) for key in field.metadata or ())
    return own or any(map(_has_rule, inner))


def _text(field: pa.Field) -> str:
    """Types as Delta has them: names of list elements and the like do not matter."""
    return to_text(pa.schema([pa.field("c", delta_type(field.type))]))


def _reason(error: BaseException) -> str:
    """Its first line; of a chain of causes all of them. The rest is from inside of delta-rs."""
    lines = [_DECORATION.sub("", line) for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return ": ".join(filter(None, lines)) if "↳" in str(error) else lines[0]
