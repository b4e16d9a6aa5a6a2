"""Id blocks: ids that are never handed out twice. Pure.

    row        next id that is not yet reserved (u64)

Contract     `reserve` moves the row past a block of ids. The caller commits the new row before,
             or in the commit in which, it hands out the first of them; a crash in between wastes
             the block. Gaps are legal, reuse is not.
Invariants   Blocks of successive rows do not overlap. Id 0 is never handed out, so it can mean
             "none"; neither is the largest u64, which scans use as "after the last one".
Not here     The key of the row (keys.py), how large a block should be.
"""

from __future__ import annotations

import msgspec

from penstock.codec.scalars import Reader, encode_u64
from penstock.errors import InvalidError

FIRST_ID = 1


class IdBlock(msgspec.Struct, frozen=True):
    next_id: int  # every id below it may be in use


def encode_id_block(block: IdBlock) -> bytes:
    return encode_u64(block.next_id, "next id")


def decode_id_block(data: bytes) -> IdBlock:
    reader = Reader(data, "id block")
    next_id = reader.u64("next id")
    reader.end()
    # Zeroed bytes must not start the ids again from the beginning.
    if next_id < FIRST_ID:
        reader.at = 0
        raise reader.fail("next id", "is 0")
    return IdBlock(next_id)


def reserve(row: bytes | None, size: int) -> tuple[range, bytes]:
    """The next `size` ids and the row that says they are taken. `row` is None before the first."""
    if size < 1:
        raise InvalidError(f"a block of {size} ids; at least 1 is needed")
    first_id = FIRST_ID if row is None else decode_id_block(row).next_id
    next_id = first_id + size
    # The encoder refuses a next id beyond a u64, and thereby the block that would reach it.
    return range(first_id, next_id), encode_id_block(IdBlock(next_id))
