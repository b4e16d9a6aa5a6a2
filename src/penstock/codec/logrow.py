"""The log row: the few numbers of a log that its nodes cannot tell. Pure.

    value       version (u8 = 1) | first (u64) | lowest (u64) | settled (u64) | settled bytes (u64)

Contract     Every living log has one; a log without it is deleted. The end of a log stands nowhere:
             it is the end of the last node, or `first` or `settled` where that is higher.
Not here     what the numbers are for in memory (log/state.py).
"""

from __future__ import annotations

import struct

import msgspec

from penstock.codec.scalars import Reader
from penstock.errors import CorruptError

_VERSION = 1
_ROW = struct.Struct("<BQQQQ")


class LogRow(msgspec.Struct, frozen=True, gc=False):
    first: int = 0  # the exact eviction edge: everything below reads as evicted
    lowest: int = 0  # rows of nodes below this are gone; from here to `first` they wait for it
    settled: int = 0  # a node begins here, and no living fragment lies below
    settled_bytes: int = 0  # stored bytes of the node rows below `settled`


def encode_log(row: LogRow) -> bytes:
    return _ROW.pack(_VERSION, row.first, row.lowest, row.settled, row.settled_bytes)


def decode_log(data: bytes, log_id: int) -> LogRow:
    reader = Reader(data, f"log row {log_id}")
    if (version := reader.u8("version")) != _VERSION:
        raise reader.fail("version", f"is {version}, not {_VERSION}")
    row = LogRow(
        reader.u64("first"),
        reader.u64("lowest"),
        reader.u64("settled"),
        reader.u64("settled bytes"),
    )
    reader.end()
    if row.lowest > row.first:
        raise CorruptError(f"log row {log_id}: lowest {row.lowest} is above first {row.first}")
    return row
