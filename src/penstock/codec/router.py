"""Rows of the router: its cursor where it is behind, and when messages leave by retention. Pure.

    router (15)    version (u8 = 1) | offset (u64)      no row: it is at the tail
    expiry (16)    version (u8 = 1) | count (u32)       so many offsets from the key's on

Contract     Offsets are those of the metadata log.
"""

from __future__ import annotations

from penstock.codec.keys import KeyType, open_key
from penstock.codec.scalars import Reader, encode_u32, encode_u64

_VERSION = b"\x01"


def encode_cursor(offset: int) -> bytes:
    return _VERSION + encode_u64(offset, "router's offset")


def decode_cursor(data: bytes) -> int:
    reader = _open(data, "router row")
    offset = reader.u64("offset")
    reader.end()
    return offset


def encode_expiry(count: int) -> bytes:
    return _VERSION + encode_u32(count, "expiring messages")


def decode_expiry(data: bytes) -> int:
    reader = _open(data, "expiry row")
    count = reader.u32("count")
    reader.end()
    return count


def decode_expiry_key(key: bytes) -> tuple[int, int]:
    """-> (deadline in ms, first offset)"""
    reader = open_key(key, KeyType.EXPIRY)
    found = reader.u64_key("deadline"), reader.u64_key("first offset")
    reader.end()
    return found


def _open(data: bytes, what: str) -> Reader:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    return reader
