"""Rows of a SQLite table, each once by its hash.

Contract     One transaction per step. Rows whose hash the table has are left out, so a step may
             come any number of times, whole or in pieces, from any number of drivers. They are
             left out before the table's rules are asked: what was written is never refused later.
Refused      What SQLite would refuse is refused when a row is encoded: there it is the error of its
             message, and not one that all of the step runs into. What the table is like (how many
             columns, which cannot be null) is looked up before a step. What it says of a row only
             when that is inserted (CHECK, UNIQUE, a trigger's RAISE, an expression that fails) is
             the error of its message as well: then the step is inserted message by message, within
             its transaction. A rule that gives up that transaction (ROLLBACK) leaves nothing to
             tell apart, and stops the sink. Rows that have too many columns only together fail as a
             step, and are told apart when that is narrowed. Everything else (a disk, a damaged
             file, a trigger on a table that is gone) is no row's error.
Durability   SQLite's own default: a commit that returned survives a power cut.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.sinks import Delivery, Refused, Row, check_mapping

HASH_COLUMN = "delivery_hash"
#: While another program writes into the same file.
_BUSY_SECONDS = 30.0
_INTEGER = range(-(1 << 63), 1 << 63)
#: Of a table that is not there yet; SQLite may be built with another bound.
_COLUMNS_MAX = 2000
#: Of the names of a row: a statement has a megabyte at most.
_NAMES_BYTES_MAX = 256 << 10


@dataclass(frozen=True)
class Columns:
    """Of a table; names are in lower case."""

    names: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()
    key_kind: str = ""  # the type of the first of them, in upper case
    not_null: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()  # those of `not_null` without a default
    made: frozenset[str] = frozenset()  # of others: GENERATED ALWAYS AS
    max: int = _COLUMNS_MAX
    strict: bool = False


@dataclass
class SqliteTarget:
    path: Path
    table: str
    #: As they were before the step.
    columns: Columns = Columns()

    def __post_init__(self) -> None:
        if not self.table or "\0" in self.table or self.table.lower().startswith("sqlite_"):
            raise InvalidError(f"{self.table!r} is no name of a table")

    def prepare(self) -> None:
        if not self.path.parent.is_dir():
            raise InvalidError(f"{self.path.parent} is no folder", hint="make it first")
        if not self.path.exists():
            return  # a look would make it
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as connection:
                self.columns = self._described(connection)
                if self.columns.names:
                    self._check_key(self.columns)
        except sqlite3.Error as error:
            raise UnavailableError(f"{self.path}, table {self.table}: {error}") from error

    def encode(self, value: Any) -> dict[str, Any]:
        found = {name: _stored(name, each) for name, each in check_mapping(value).items()}
        names = {name.lower(): name for name in found}
        if HASH_COLUMN in names:
            raise InvalidError(f"column {HASH_COLUMN} is filled by the sink")
        if len(names) < len(found):
            twice = next(name for name in found if names[name.lower()] != name)
            raise InvalidError(
                f"columns {twice!r} and {names[twice.lower()]!r} are one for SQLite",
                hint="upper and lower case make no difference",
            )
        count = len(names.keys() | self.columns.names | {HASH_COLUMN})
        if count > self.columns.max:
            raise InvalidError(
                f"with this row the table would have {count:,} columns; "
                f"at most {self.columns.max:,} are allowed"
            )
        null = {name for name in self.columns.not_null & names.keys() if found[names[name]] is None}
        for name in sorted(null | (self.columns.needed - names.keys())):
            raise InvalidError(f"column {names.get(name, name)} cannot be null")
        for name in sorted(self.columns.made & names.keys()):
            raise InvalidError(f"column {names[name]} is made of others, by SQLite")
        if sum(len(name.encode()) for name in found) > _NAMES_BYTES_MAX:
            raise InvalidError(f"the names of a row have at most {_NAMES_BYTES_MAX:,} bytes")
        return found

    def write(self, delivery: Delivery) -> Refused:
        if not delivery.rows:
            return {}
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as connection:
                # By hand: Python's own begins only at the first INSERT, behind the CREATE.
                connection.isolation_level = None
                connection.execute("BEGIN IMMEDIATE")
                self._widen(connection, delivery.rows)
                refused = self._insert_all(connection, delivery.rows)
                connection.execute("COMMIT")
                return refused
        except sqlite3.Error as error:
            raise UnavailableError(f"{self.path}, table {self.table}: {error}") from error

    def _widen(self, connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
        """The table, and its columns."""
        table = _quoted(self.table)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table} ({HASH_COLUMN} TEXT PRIMARY KEY NOT NULL)"
        )
        columns = self._described(connection)
        self._check_key(columns)
        known = set(columns.names)
        # Elsewhere ANY would make numbers of text that looks like one.
        kind = " ANY" if columns.strict else ""
        for name in dict.fromkeys(name for row in rows for name in row.value):
            if name.lower() not in known:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {_quoted(name)}{kind}")
                known.add(name.lower())

    def _check_key(self, columns: Columns) -> None:
        name = f"table {self.table} of {self.path}"
        if columns.key != (HASH_COLUMN,):
            raise InvalidError(
                f"{name} has no primary key {HASH_COLUMN}",
                hint="use another table, or make it with that column",
            )
        # INTEGER as a key is the number of the row; other types are taken at their word if STRICT.
        kind = columns.key_kind
        if kind == "INTEGER" or (columns.strict and kind not in ("TEXT", "ANY")):
            raise InvalidError(
                f"{name}: {HASH_COLUMN} is of type {kind}, and holds no hash",
                hint=f"make it with {HASH_COLUMN} TEXT PRIMARY KEY",
            )

    def _described(self, connection: sqlite3.Connection) -> Columns:
        table = _quoted(self.table)
        # Number, name, type, not null, default, place in the key, hidden: 2 and 3 are generated.
        found = [
            (str(name).lower(), *rest)
            for _, name, *rest in connection.execute(f"PRAGMA table_xinfo({table})")
        ]
        keyed = sorted((key, name, kind.upper()) for name, kind, _, _, key, _ in found if key)
        made = frozenset(name for name, *_, hidden in found if hidden in (2, 3))
        filled = made | {HASH_COLUMN}  # not by a row
        not_null = {n: default for n, _, null, default, _, _ in found if null and n not in filled}
        tables = connection.execute(f"PRAGMA table_list({table})")
        return Columns(
            names=frozenset(name for name, *_ in found),
            key=tuple(name for _, name, _ in keyed),
            key_kind=keyed[0][2] if keyed else "",
            not_null=frozenset(not_null),
            needed=frozenset(name for name, default in not_null.items() if default is None),
            made=made,
            max=connection.getlimit(sqlite3.SQLITE_LIMIT_COLUMN),
            strict=any(strict for *_, strict in tables),
        )

    def _insert_all(
        self, connection: sqlite3.Connection, rows: Sequence[Row]
    ) -> dict[int, InvalidError]:
        """At once where no rule of the table is broken, else message by message. -> whose are"""
        if self._refusal(connection, rows) is None:
            return {}
        messages = [list(found) for _, found in groupby(rows, lambda row: row.offset)]
        refusals = ((found, self._refusal(connection, found)) for found in messages)
        return {
            found[0].offset: InvalidError(f"table {self.table} refuses the row: {error}")
            for found, error in refusals
            if error is not None
        }

    def _refusal(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> sqlite3.Error | None:
        """Of the first rule that is broken: then none of the rows is inserted."""
        # Not left to the statement, which with FAIL keeps what it did by then.
        connection.execute("SAVEPOINT penstock")
        try:
            self._insert(connection, rows)
        except sqlite3.Error as error:
            if not self._is_of_row(connection, error, rows):
                raise
            if not connection.in_transaction:
                raise InvalidError(
                    f"{self.path}, table {self.table}: a rule gives up all of a step: {error}",
                    hint="ABORT in place of ROLLBACK refuses a single row",
                ) from error
            connection.execute("ROLLBACK TO penstock")
            connection.execute("RELEASE penstock")
            return error
        connection.execute("RELEASE penstock")
        return None

    def _is_of_row(
        self, connection: sqlite3.Connection, error: sqlite3.Error, rows: Sequence[Row]
    ) -> bool:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            return True
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
            return False
        # An expression that failed (malformed JSON), or a statement that is none (no such table)?
        for names, row in {tuple(row.value): row for row in rows}.items():
            connection.execute(f"EXPLAIN {_statement(self.table, names)}", _values(row))
        return True

    def _insert(self, connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
        """In order: of rows that replace each other the last one stays."""
        for names, found in groupby(rows, lambda row: tuple(row.value)):
            connection.executemany(_statement(self.table, names), map(_values, found))


@lru_cache(16)
def _statement(table: str, names: tuple[str, ...]) -> str:
    columns = ", ".join((HASH_COLUMN, *map(_quoted, names)))
    marks = ", ".join("?" * (len(names) + 1))
    # Row by row, and not all at first: one that is there may be replaced by another of the step.
    # ON CONFLICT alone would not do: triggers BEFORE INSERT come first, and OR IGNORE would also
    # pass over a row that breaks another rule of the table.
    return (
        f"INSERT INTO {_quoted(table)} ({columns}) SELECT {marks} "
        f"WHERE NOT EXISTS (SELECT 1 FROM {_quoted(table)} WHERE {HASH_COLUMN} = ?) "
        f"ON CONFLICT ({HASH_COLUMN}) DO NOTHING"
    )


def _values(row: Row) -> tuple[Any, ...]:
    """Of its statement."""
    found = row.hash.hex()
    return (found, *row.value.values(), found)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _stored(name: str, value: Any) -> Any:
    if "\0" in name or not _is_text(name):
        raise InvalidError(f"{name!r} is no name of a column")
    if isinstance(value, str):
        if not _is_text(value):
            raise InvalidError(
                f"column {name}: {value!r} has bytes that are not UTF-8",
                hint='text.encode("utf-8", "surrogateescape") makes bytes of it',
            )
        return value
    if isinstance(value, float) and math.isnan(value):
        raise InvalidError(f"column {name}: NaN would become NULL", hint="return None for it")
    if value is None or isinstance(value, float | bytes):
        return value
    if isinstance(value, int):
        if value not in _INTEGER:
            raise InvalidError(f"column {name}: {value} has more than 64 bits")
        return int(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, dict | list | tuple):
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidError(f"column {name}: it cannot be told in JSON: {error}") from None
    raise InvalidError(f"column {name}: {type(value).__name__} is nothing that SQLite stores")


def _is_text(value: str) -> bool:
    """Surrogates stand for bytes that are none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
