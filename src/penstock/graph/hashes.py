"""Delivery hashes: BLAKE2b with 128 bits, of canonical bytes. Pure; vectors in hashes.json.

Message      person "penstock-message" | id (Utf8) | count (u16) | count x (stream id, offset: u64)
             [| ordinal (u32)], inputs in the order of (stream id, offset). The k-th output of a
             list adds k; an output that is no list adds nothing. Independent of the step.
Source       person "penstock-source" | id (Utf8) | position (u32 length, bytes) [| ordinal (u32)]
Step         person "penstock-step" | id (Utf8) | step (u64) | count (u16)
             | count x (stream id, start, end: u64), by alias, | chosen (u16; FFFF: no alts).
             Attempts and the recovery compare it: it covers the snapshot and the choice of an alts.
             Frames that follow a declared order hash their outputs with it: `row_hash`.

All integers little-endian; Utf8 is a u16 length and the bytes; the id is `graph/processor`. The
original's 32 bits collide, and a collision reads as "already delivered".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from penstock.codec.scalars import U16_MAX
from penstock.errors import InvalidError

HASH_BYTES = 16

_COUNT = struct.Struct("<H")
_ORDINAL = struct.Struct("<I")
_INPUT = struct.Struct("<QQ")
_RANGE = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")
_NOT_CHOSEN = U16_MAX


def _named(person: bytes, processor_id: str) -> blake2b:
    name = processor_id.encode()
    if not 0 < len(name) <= U16_MAX:
        raise InvalidError(f"a processor id of {len(name)} bytes cannot be hashed")
    return blake2b(_COUNT.pack(len(name)) + name, digest_size=HASH_BYTES, person=person)


def message_hash(
    processor_id: str, inputs: Sequence[tuple[int, int]], ordinal: int | None = None
) -> bytes:
    """Of what was consumed: (stream id, offset) of each input."""
    state = _named(b"penstock-message", processor_id)
    state.update(_COUNT.pack(len(inputs)))
    for pair in sorted(inputs):
        state.update(_INPUT.pack(*pair))
    return _with_ordinal(state, ordinal)


def message_hashes(processor_id: str, stream_id: int, offsets: Iterable[int]) -> list[bytes]:
    """`message_hash` of many messages that have one input: what every message has in common is
    hashed once."""
    state = _named(b"penstock-message", processor_id)
    state.update(_COUNT.pack(1) + _U64.pack(stream_id))
    copy, pack = state.copy, _U64.pack
    found: list[bytes] = []
    for offset in offsets:
        one = copy()
        one.update(pack(offset))
        found.append(one.digest())
    return found


def joined_hashes(processor_id: str, inputs: Sequence[tuple[int, Sequence[int]]]) -> list[bytes]:
    """`message_hash` of many messages of a join: of each stream the offsets, all of one length."""
    state = _named(b"penstock-message", processor_id)
    state.update(_COUNT.pack(len(inputs)))
    # Sorted by stream alone: a processor reads a stream once.
    streams = [stream_id for stream_id, _ in sorted(inputs)]
    pack = struct.Struct("<" + "QQ" * len(inputs)).pack
    found: list[bytes] = []
    for offsets in zip(*(offsets for _, offsets in sorted(inputs)), strict=True):
        one = state.copy()
        one.update(pack(*(edge for pair in zip(streams, offsets, strict=True) for edge in pair)))
        found.append(one.digest())
    return found


def source_hash(processor_id: str, position: bytes, ordinal: int | None = None) -> bytes:
    state = _named(b"penstock-source", processor_id)
    state.update(_ORDINAL.pack(len(position)) + position)
    return _with_ordinal(state, ordinal)


def step_hash(
    processor_id: str,
    step: int,
    ranges: Sequence[tuple[int, int, int]],
    chosen: int | None = None,
) -> bytes:
    """`ranges`: (stream id, start, end) by alias; `chosen`: which of them, of an alts."""
    state = _named(b"penstock-step", processor_id)
    state.update(_U64.pack(step) + _COUNT.pack(len(ranges)))
    for one in ranges:
        state.update(_RANGE.pack(*one))
    state.update(_COUNT.pack(_NOT_CHOSEN if chosen is None else chosen))
    return state.digest()


def row_hash(step: bytes, ordinal: int) -> bytes:
    """Of the ordinal-th row that a frame gives in its declared order."""
    state = blake2b(step + _U64.pack(ordinal), digest_size=HASH_BYTES, person=b"penstock-row")
    return state.digest()


def _with_ordinal(state: blake2b, ordinal: int | None) -> bytes:
    if ordinal is not None:
        state.update(_ORDINAL.pack(ordinal))
    return state.digest()
