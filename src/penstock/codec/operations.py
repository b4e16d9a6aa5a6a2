"""The operation record: everything that one commit did to paged state, in one row. Pure.

    record      version (u8 = 1) | count (u32) | count x operation
    operation   view (u8) | owner (u64) | sequence (u64) | body (Bytes32)

Contract     The row is keyed by the commit's number. An owner (a group, a queue, a topic) numbers
             its operations without gaps; a page says which one it contains last, and whoever opens
             it applies the newer ones (log/pages.py). What a body means is its view's business.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from penstock.codec.scalars import (
    Reader,
    encode_bytes32,
    encode_u32,
    encode_u64,
)

_VERSION = b"\x01"


class PagedView(IntEnum):
    """Whose operations these are."""

    GROUP = 1
    QUEUE = 2
    TAKEN = 3
    TOPIC = 4


class Owner(msgspec.Struct, frozen=True, gc=False):
    view: PagedView
    id: int


class Operation(msgspec.Struct, frozen=True, gc=False):
    owner: Owner
    sequence: int
    body: bytes
    #: The pages it changes, where that is known: not stored, it spares decoding the body.
    pages: frozenset[int] | None = None
    #: Where in the body each page's part stands, where somebody looked (queueoperation.py).
    cuts: Any = None


def encode_operations(operations: list[Operation]) -> bytes:
    parts = [_VERSION, encode_u32(len(operations), "number of operations")]
    for operation in operations:
        parts += (
            bytes((operation.owner.view,)),
            encode_u64(operation.owner.id, "owner"),
            encode_u64(operation.sequence, "sequence"),
            encode_bytes32(operation.body, "operation"),
        )
    return b"".join(parts)


def decode_operations(data: bytes) -> list[Operation]:
    reader = Reader(data, "operation record")
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    operations = []
    for _ in range(reader.u32("number of operations")):
        at = reader.at
        view = reader.u8("view")
        if view not in PagedView._value2member_map_:
            reader.at = at
            raise reader.fail("view", f"is unknown: {view}")
        owner = Owner(PagedView(view), reader.u64("owner"))
        operations.append(Operation(owner, reader.u64("sequence"), reader.bytes32("operation")))
    reader.end()
    return operations
