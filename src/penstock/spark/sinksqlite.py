"""Rows of a SQLite table, each once by its hash.

Contract     One transaction per step. Rows whose hash the table has are left out, so a step may
             come any number of times, whole or in pieces, from any number of drivers.
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


@dataclass(frozen=True)
class SqliteTarget:
    path: Path
    table: str

    def __post_init__(self) -> None:
        if not self.table or "\0" in self.table or self.table.lower().startswith("sqlite_"):
            raise InvalidError(f"{self.table!r} is no name of a table")

    def prepare(self) -> None:
        if not self.path.parent.is_dir():
            raise InvalidError(f"{self.path.parent} is no folder", hint="make it first")

    def encode(self, value: Any) -> dict[str, Any]:
        found = {name: _stored(name, each) for name, each in check_mapping(value).items()}
        if any(name.lower() == HASH_COLUMN for name in found):
            raise InvalidError(f"column {HASH_COLUMN} is filled by the sink")
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
    if "\0" in name:
        raise InvalidError(f"{name!r} is no name of a column")
    if value is None or isinstance(value, float | str | bytes):
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
        return msgspec.json.encode(value).decode()
    raise InvalidError(f"column {name}: {type(value).__name__} is nothing that SQLite stores")
