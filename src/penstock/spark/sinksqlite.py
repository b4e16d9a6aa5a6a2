"""Rows of a SQLite table, each once by its hash.

Contract     One transaction per step. Rows whose hash the table has are left out, so a step may
             come any number of times, whole or in pieces, from any number of drivers.
Refused      What SQLite would refuse is refused when a row is encoded: there it is the error of its
             message, and not one that all of the step runs into. How many columns the table has is
             looked up before a step; rows that are too many only together fail as a step, and are
             told apart when that is narrowed.
Durability   SQLite's own default: a commit that returned survives a power cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.sinks import Delivery, Row, check_mapping

HASH_COLUMN = "delivery_hash"
#: While another program writes into the same file.
_BUSY_SECONDS = 30.0
_INTEGER = range(-(1 << 63), 1 << 63)
#: Of a table that is not there yet; SQLite may be built with another bound.
_COLUMNS_MAX = 2000
#: Of the names of a row: a statement has a megabyte at most.
_NAMES_BYTES_MAX = 256 << 10


@dataclass
class SqliteTarget:
    path: Path
    table: str
    #: In lower case, as they were before the step.
    columns: frozenset[str] = frozenset()
    columns_max: int = _COLUMNS_MAX

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
                described = connection.execute(f"PRAGMA table_info({_quoted(self.table)})")
                self.columns = frozenset(str(name).lower() for _, name, *_ in described)
                self.columns_max = connection.getlimit(sqlite3.SQLITE_LIMIT_COLUMN)
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
        count = len(names.keys() | self.columns | {HASH_COLUMN})
        if count > self.columns_max:
            raise InvalidError(
                f"with this row the table would have {count:,} columns; "
                f"at most {self.columns_max:,} are allowed"
            )
        if sum(len(name.encode()) for name in found) > _NAMES_BYTES_MAX:
            raise InvalidError(f"the names of a row have at most {_NAMES_BYTES_MAX:,} bytes")
        return found

    def write(self, delivery: Delivery) -> None:
        if not delivery.rows:
            return
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as connection:
                # By hand: Python's own begins only at the first INSERT, behind the CREATE.
                connection.isolation_level = None
                connection.execute("BEGIN IMMEDIATE")
                self._widen(connection, delivery.rows)
                self._insert(connection, delivery.rows)
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise UnavailableError(f"{self.path}, table {self.table}: {error}") from error

    def _widen(self, connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
        """The table, and its columns."""
        table = _quoted(self.table)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table} ({HASH_COLUMN} TEXT PRIMARY KEY NOT NULL)"
        )
        described = list(connection.execute(f"PRAGMA table_info({table})"))
        known = {str(name).lower() for _, name, *_ in described}
        if not any(str(name) == HASH_COLUMN and key == 1 for _, name, *_, key in described):
            raise InvalidError(
                f"table {self.table} of {self.path} has no primary key {HASH_COLUMN}",
                hint="use another table, or make it with that column",
            )
        for name in dict.fromkeys(name for row in rows for name in row.value):
            if name.lower() not in known:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {_quoted(name)}")
                known.add(name.lower())

    def _insert(self, connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
        by_columns: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for row in rows:
            values = (row.hash.hex(), *row.value.values())
            by_columns.setdefault(tuple(row.value), []).append(values)
        for names, found in by_columns.items():
            columns = ", ".join((HASH_COLUMN, *map(_quoted, names)))
            marks = ", ".join("?" * (len(names) + 1))
            # Not OR IGNORE, which would also pass over a row that breaks another rule of the table.
            connection.executemany(
                f"INSERT INTO {_quoted(self.table)} ({columns}) VALUES ({marks}) "
                f"ON CONFLICT ({HASH_COLUMN}) DO NOTHING",
                found,
            )


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
