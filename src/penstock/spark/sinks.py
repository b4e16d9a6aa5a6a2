"""Ready-made sinks that hold each message once: a SQLite table, a Delta table, a file.

    @graph.sink("paid")
    @sinks.sqlite("shop.db", table="paid")
    def paid(message):
        return {"order": message.tag, "amount": float(message.data)}

Contract     The function makes rows of a message: a dict, a list of them, or None; of a file bytes
             or text too. It runs on Spark, message by message, and what it raises is handled as
             everywhere. The rows of a step are then written here, in the driver, in one
             transaction, before the step is committed. After a crash between the two the step
             comes again, and what the target has already is left out:
             SQLite     by the message hash, the primary key of the table
             Delta      by how far the input was written, an application transaction of the table
             file       by the same, in a small file beside it
             Both remember with it which messages of the step gave no row, as they failed or as
             the function returned None: when the step comes again and one of them gives a row, it
             is added.
             So a driver that was stopped and wakes up, or a step that comes again in smaller
             pieces, adds nothing twice.
Paths        are those of the driver's machine (a Delta table's may be anything that deltalake
             takes); relative ones begin where the driver was started.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import InvalidError

#: What a function may return to be one row.
Value = Mapping[str, Any] | bytes | str
#: Offset -> why, of messages that a target did not take: nothing of them is written.
Refused = Mapping[int, InvalidError]


@dataclass(frozen=True)
class Row:
    offset: int  # of the message that it was made of
    hash: bytes
    value: Any  # as `Target.encode` gave it


@dataclass(frozen=True)
class Delivery:
    """The rows of one step."""

    processor_id: str
    #: Names this processor and its input, and never another: deleted and made anew they are others.
    source: str
    end: int  # the rows are those of the messages before this offset that were not written yet
    rows: Sequence[Row]
    start: int = 0  # what lies before it is committed, and does not come again


class Offsets(msgspec.Struct, frozen=True):
    """As they are kept: a bit for each from `low` on, deflated. Written out they would be longer
    than the rows of a step that leaves every other message out."""

    low: int = 0
    bits: bytes = b""


@dataclass(frozen=True)
class Written:
    """How far a target is that remembers offsets, and not rows."""

    end: int = 0  # what lies before it is written,
    left: frozenset[int] = frozenset()  # but not these: they gave no row

    def missing(self, delivery: Delivery) -> list[Row]:
        return [row for row in delivery.rows if row.offset >= self.end or row.offset in self.left]

    def after(self, delivery: Delivery) -> Written:
        """When what was missing is written. A message that was written, and gives no row when its
        step comes again, stays written."""
        new = range(max(self.end, delivery.start), delivery.end)
        left = self.left.union(new) - {row.offset for row in delivery.rows}
        return Written(
            max(self.end, delivery.end),
            frozenset(offset for offset in left if offset >= delivery.start),
        )

    @property
    def kept(self) -> Offsets:
        if not self.left:
            return Offsets()
        low = min(self.left)
        bits = np.zeros(max(self.left) - low + 1, bool)
        bits[np.fromiter(self.left, np.int64) - low] = True
        return Offsets(low, zlib.compress(np.packbits(bits).tobytes()))


def offsets_of(kept: Offsets) -> frozenset[int]:
    if not kept.bits:
        return frozenset()
    try:
        packed = zlib.decompress(kept.bits)
    except zlib.error as error:
        raise InvalidError(f"what a sink remembers of its last step is damaged: {error}") from None
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    return frozenset((np.flatnonzero(bits) + kept.low).tolist())


class Target(Protocol):
    """Where rows go. It travels to the workers, so it holds what describes it and nothing open."""

    def prepare(self) -> None:
        """In the driver, before a step: whether it can be written at all."""

    def encode(self, value: Any) -> Any:
        """In a worker: a row as it is written; what it raises is that message's error."""

    def write(self, delivery: Delivery) -> Refused:
        """In the driver: all rows or none, and none that are there already. What only the target
        can tell of a row is that message's error, too."""


class TableSink:
    """A function whose rows go into a target: what `graph.sink` gets."""

    def __init__(self, function: Callable[..., Any], target: Target) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.target = target

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


Decorator = Callable[[Callable[..., Any]], TableSink]


def sqlite(path: str | Path, table: str) -> Decorator:
    """Rows of a SQLite table; it is made, and gets new columns, as rows need them.

    The column `delivery_hash` (hex) is the primary key. Values are what SQLite knows: None,
    numbers, text, bytes; true and false become 1 and 0, times ISO 8601, dicts and lists JSON.
    A row that breaks a rule of the table (NOT NULL, CHECK, UNIQUE) is that message's error.
    """
    from penstock.spark.sinksqlite import SqliteTarget

    target = SqliteTarget(_absolute(path), table)
    return lambda function: TableSink(function, target)


def delta(
    path: str | Path,
    *,
    schema: pa.Schema | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Decorator:
    """Rows of a Delta table. `schema` says the columns of one that does not exist yet; of one that
    does they are its own. A row that does not fit is that message's error."""
    from penstock.spark.sinkdelta import DeltaTarget

    place = str(path) if "://" in str(path) else str(_absolute(path))
    target = DeltaTarget(place, schema, dict(storage_options or {}))
    return lambda function: TableSink(function, target)


def file(path: str | Path) -> Decorator:
    """Lines of a file: bytes or text, as they are, or a dict, as JSON."""
    from penstock.spark.sinkfile import FileTarget

    target = FileTarget(_absolute(path))
    return lambda function: TableSink(function, target)


def _absolute(path: str | Path) -> Path:
    if not str(path):
        raise InvalidError("a sink needs a path")
    return Path(path).absolute()


def values_of(returned: Any) -> list[Value]:
    """What a function returned, row by row."""
    if returned is None:
        return []
    if isinstance(returned, list | tuple):
        return list(returned)
    return [returned]


def check_mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidError(f"a row is a dict, column -> value, not {type(value).__name__}")
    for name in value:
        if not isinstance(name, str) or not name:
            raise InvalidError(f"{name!r} is no name of a column")
    return value
