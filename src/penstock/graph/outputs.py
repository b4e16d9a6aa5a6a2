"""What an attempt hands over: entries as nodes, positions of sources as bytes. Pure.

Contract     `pack` lays entries out as `Output.nodes`, for steps whose outputs are few: up to
             INLINE_BYTES_MAX they go with the commit itself, more is staged (database.bulk).
             A position is a JSON value: text, numbers, true and false, lists and dicts of them.
             None stands for the beginning, so it is no position.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from penstock.codec.node import node_value
from penstock.errors import InvalidError
from penstock.graph.requests import Output
from penstock.log.batch import Entry, build_bodies

#: Of all outputs of one commit: so much does not hold the one writer up.
INLINE_BYTES_MAX = 4 << 20
POSITION_BYTES_MAX = 64 << 10

Position = object


def pack(stream: str, entries: Sequence[Entry] | pa.RecordBatch | pa.Table) -> Output:
    """Entries are (tag, data, hash), or Arrow with the columns tag, data and meta."""
    return Output(stream, [node_value(body, 0, 0) for body in build_bodies(entries)])


def encode_position(position: Position) -> bytes:
    """One encoding for each value: the hash of a source's output is made of it."""
    try:
        data = msgspec.json.encode(position, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidError(f"position {position!r} is not a JSON value: {error}") from None
    # msgspec takes more than JSON has, and gives back something else: tuples, bytes, dates.
    if position is None or msgspec.json.decode(data) != position:
        raise InvalidError(
            f"position {position!r} is not a JSON value",
            hint="use text, numbers, true and false, lists and dicts of them",
        )
    if len(data) > POSITION_BYTES_MAX:
        raise InvalidError(f"a position of {len(data):,} bytes; at most {POSITION_BYTES_MAX:,}")
    return data


def decode_position(data: bytes | None) -> Position:
    return None if data is None else msgspec.json.decode(data)
