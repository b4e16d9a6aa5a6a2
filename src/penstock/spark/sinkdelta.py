"""Rows of a Delta table, each once.

Contract     A step is one version of the table. With its rows goes an application transaction: the
             id is that of the processor and its input, the version how far the input was written.
             So a loop: load the table, look how far it is, leave out what it has, append the rest
             from that very handle; somebody else who wrote as the same application in between makes
             that fail, and it begins anew. The version is an offset and not the number of a step:
             a step that comes again in smaller pieces fits too.
Rowless      Which messages of a step gave no row is in the metadata of its commit, for when it
             comes again: then the table's history is looked through for it.
Why the loop An application transaction does not by itself make a repetition do nothing: a fresh
             handle would append again.
Refused      A table that forgets its application transactions after a while.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.sinks import Delivery, Offsets, Refused, Row, Written, check_mapping, offsets_of

_log = logging.getLogger("penstock")

#: Others may write into the table all the time; each try is one of their commits later.
_TRIES = 20
_FORGETS = "delta.setTransactionRetentionDuration"
#: A key of a commit's metadata.
_NOTE = "penstock"
#: Commits of the history that are looked at first: mostly the last one is it.
_HISTORY = 10


class Note(msgspec.Struct, frozen=True):
    """What a commit of ours says of itself."""

    source: str
    end: int
    rowless: Offsets = Offsets()  # of what lies before `end`: what gave no row


@dataclass
class DeltaTarget:
    path: str
    schema: pa.Schema | None = None
    storage_options: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Workers need the columns. Those of a table that is there are its own, whatever was
        given, and there may be more of them by now."""
        try:
            table = self._load()
        except (DeltaError, OSError) as error:
            raise UnavailableError(f"Delta table {self.path}: {error}") from error
        if table is not None:
            self.schema = pa.schema(table.schema().to_arrow())
        if self.schema is None:
            raise InvalidError(
                f"there is no Delta table at {self.path}, and nothing says its columns",
                hint='sinks.delta(path, schema=pyarrow.schema([("order", pyarrow.int64())]))',
            )

    def encode(self, value: Any) -> dict[str, Any]:
        assert self.schema is not None, "prepare was there before"
        row = check_mapping(value)
        unknown = row.keys() - set(self.schema.names)
        if unknown:
            raise InvalidError(
                f"the table has no column {', '.join(sorted(unknown))}",
                hint=f"it has {', '.join(self.schema.names)}",
            )
        for column in self.schema:
            given = row.get(column.name)
            if given is None and not column.nullable:
                raise InvalidError(f"column {column.name} cannot be null")
            try:
                pa.scalar(given, column.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidError(
                    f"column {column.name} is {column.type}, and {given!r} does not fit: {error}"
                ) from None
            _check_whole(column.name, column.type, given)
        return dict(row)

    def write(self, delivery: Delivery) -> Refused:
        for _ in range(_TRIES):
            try:
                table = self._load() or self._create()
                written = self._written(table, delivery)
                rows = written.missing(delivery)
                if rows:
                    self._append(table, rows, delivery.source, written.after(delivery))
                return {}
            except CommitFailedError:
                continue  # somebody was quicker, perhaps with these very rows: look again
            except (DeltaError, OSError) as error:
                raise UnavailableError(f"Delta table {self.path}: {error}") from error
        raise UnavailableError(f"Delta table {self.path}: others wrote {_TRIES} times in between")

    def _written(self, table: DeltaTable, delivery: Delivery) -> Written:
        end = table.transaction_version(delivery.source) or 0
        if delivery.start >= end:
            return Written(end)  # nothing of this step, so nothing of it was left out
        for limit in (_HISTORY, None):
            for commit in table.history(limit):
                note = _note_of(commit.get(_NOTE))
                if note is not None and note.source == delivery.source:
                    # Another end: what came last was written before there were notes.
                    return Written(end, *([offsets_of(note.rowless)] if note.end == end else []))
        _log.warning(
            "%s: the history of Delta table %s does not say any more which messages of a step gave "
            "no row; such ones are not added", delivery.processor_id, self.path,
        )  # fmt: skip
        return Written(end)

    def _append(
        self, table: DeltaTable, rows: Sequence[Row], source: str, written: Written
    ) -> None:
        assert self.schema is not None, "prepare was there before"
        note = Note(source, written.end, written.kept)
        write_deltalake(
            table,
            pa.Table.from_pylist([row.value for row in rows], schema=self.schema),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={_NOTE: msgspec.json.encode(note).decode()},
                app_transactions=[Transaction(source, written.end)],
                max_commit_retries=0,
            ),
        )

    def _load(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self.path, storage_options=self.storage_options or None)
        except TableNotFoundError:
            return None
        if _FORGETS in table.metadata().configuration:
            raise InvalidError(
                f"Delta table {self.path} has {_FORGETS}: it forgets what was written into it",
                hint="remove that property, or use another table",
            )
        return table

    def _create(self) -> DeltaTable:
        assert self.schema is not None, "prepare was there before"
        return DeltaTable.create(
            self.path, self.schema, storage_options=self.storage_options or None
        )


def _check_whole(name: str, kind: pa.DataType, value: Any) -> None:
    """Arrow leaves out what a struct has no field for, and the fraction of what is to be an
    integer, without a word. What it did not take at all is not asked for here."""
    if pa.types.is_integer(kind):
        if isinstance(value, float | Decimal | np.floating) and value != int(value):
            raise InvalidError(f"{name} is {kind}, and {value!r} has a fraction")
    elif pa.types.is_struct(kind) and isinstance(value, Mapping | list):
        fields = {field.name: field.type for field in kind}
        for key, each in dict(value).items():
            if key not in fields:
                raise InvalidError(
                    f"{name} has no field {key!r}", hint=f"it has {', '.join(fields)}"
                )
            _check_whole(f"{name}.{key}", fields[key], each)
    elif pa.types.is_map(kind) and value is not None:
        for key, each in dict(value).items():
            _check_whole(f"{name}[{key!r}]", kind.item_type, each)
    elif pa.types.is_list(kind) and value is not None:
        for each in value:
            _check_whole(name, kind.value_type, each)


def _note_of(value: Any) -> Note | None:
    """Others may write what they like into the history."""
    try:
        return msgspec.json.decode(value, type=Note) if isinstance(value, str) else None
    except msgspec.DecodeError:
        return None
