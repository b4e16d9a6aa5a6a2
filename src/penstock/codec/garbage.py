"""The garbage row: a range of rows that is dead already and waits to be removed. Pure.

    value       version (u8 = 1) | end key, exclusive (Bytes32)

The first key of the range is in the row's own key, so a range that grows at its end stays one row.

Not here     removing (log/collect.py).
"""

from __future__ import annotations

from penstock.codec.keys import KeyType, open_key
from penstock.codec.scalars import Reader, encode_bytes32

_VERSION = b"\x01"


def encode_garbage(end_key: bytes) -> bytes:
    return _VERSION + encode_bytes32(end_key, "end key")


def decode_garbage(key: bytes, data: bytes) -> tuple[bytes, bytes]:
    """-> (first key, end key), the end exclusive"""
    place = open_key(key, KeyType.GARBAGE)
    first_key = place.terminated("first key")
    place.end()
    reader = Reader(data, "garbage row")
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    end_key = reader.bytes32("end key")
    reader.end()
    return first_key, end_key
