"""Payload records: what the payload store keeps under a message id. Pure.

    Payload Record Value:   type of payload (u8) | payload
    01  Array<Byte>         count (u16) | bytes                                        RFC 0001
    02  URI                 Utf8                                                       RFC 0001
    03  block               count (u32) | offsets (u32) x (count + 1) | blob           ours

Contract     `payload_of` chooses the record: one payload of up to 65,535 bytes stays exactly the
             RFC's; several, or a longer one, become a block. A block is keyed by the id of its
             first payload, so payload `id` is number `id - first id` of it: a floor lookup and
             arithmetic, no index.
Invariants   A block holds at least one payload; its offsets start at 0, never fall, and end at
             the length of the blob. Each value has one encoding.
Not here     The keys (keys.py); whether an id is alive (a block does not know about expiry);
             objects behind `penstock-payload:` URIs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

import msgspec
import numpy as np

from penstock.codec.scalars import U16_MAX, U32_MAX, Reader, encode_u16, encode_u32, encode_utf8
from penstock.errors import InvalidError

#: URIs that point at our own payload objects. Readers resolve them, users may not publish them.
RESERVED_SCHEME = "penstock-payload:"

_BYTES, _URI, _BLOCK = 0x01, 0x02, 0x03
_OFFSET_BYTES = 4
_SPAN = struct.Struct("<II")


class BytesPayload(msgspec.Struct, frozen=True):
    data: bytes  # the payload itself, at most 65,535 bytes


class UriPayload(msgspec.Struct, frozen=True):
    uri: str  # where the payload is; handed on as it is


class PayloadBlock(msgspec.Struct, frozen=True):
    """Payloads with consecutive ids. Made by `payload_of` or the decoder, which check it."""

    offsets: bytes  # count + 1 little-endian u32: payload n is blob[offset n : offset n + 1]
    blob: bytes  # the payloads back to back

    @property
    def count(self) -> int:
        return len(self.offsets) // _OFFSET_BYTES - 1


Payload = BytesPayload | UriPayload | PayloadBlock


def payload_of(payloads: Sequence[bytes]) -> BytesPayload | PayloadBlock:
    """The record for payloads that one commit stores under consecutive ids."""
    assert payloads, "a record holds at least one payload"
    if len(payloads) == 1 and len(payloads[0]) <= U16_MAX:
        return BytesPayload(payloads[0])
    # The sum comes before the join: an impossible block must cost no memory.
    total_bytes = sum(map(len, payloads))
    if total_bytes > U32_MAX:
        raise InvalidError(f"payloads of {total_bytes} bytes; one block holds at most {U32_MAX}")
    offsets = np.zeros(len(payloads) + 1, "<u4")
    offsets[1:] = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
    return PayloadBlock(offsets.tobytes(), b"".join(payloads))


def payload_at(block: PayloadBlock, index: int) -> bytes | None:
    """Payload number `index`, which is its id minus the block's first id; None: not in this block.

    None is an expected answer: the floor lookup of a removed id finds an older, shorter block.
    """
    assert index >= 0, "a floor lookup never finds a later block"
    if index >= block.count:
        return None
    start, end = _SPAN.unpack_from(block.offsets, index * _OFFSET_BYTES)
    return block.blob[start:end]


def payloads_between(block: PayloadBlock, low: int, high: int) -> list[bytes]:
    """Payloads low <= index < high of the block, which has them: neighbours are cut together in a
    third of the time."""
    assert 0 <= low <= high <= block.count, "they are in this block"
    edges = struct.unpack_from(f"<{high - low + 1}I", block.offsets, low * _OFFSET_BYTES)
    blob = block.blob
    return [blob[start:end] for start, end in pairwise(edges)]


def is_reserved_uri(uri: str) -> bool:
    """Whether users may not publish this URI. Schemes ignore case (RFC 3986, section 3.1)."""
    return uri.lstrip().lower().startswith(RESERVED_SCHEME)


def encode_payload(payload: Payload) -> bytes:
    match payload:
        case BytesPayload(data):
            size = encode_u16(len(data), "length of the payload")
            return bytes((_BYTES,)) + size + data
        case UriPayload(uri):
            return bytes((_URI,)) + encode_utf8(uri, "payload URI")
        case PayloadBlock(offsets, blob):
            count = encode_u32(payload.count, "number of payloads")
            return b"".join((bytes((_BLOCK,)), count, offsets, blob))
        case _:
            assert_never(payload)


def decode_payload(data: bytes) -> Payload:
    reader = Reader(data, "payload record")
    payload: Payload
    match reader.u8("type of payload"):
        case 0x01:
            payload = BytesPayload(reader.take(reader.u16("length of the payload"), "payload"))
        case 0x02:
            payload = UriPayload(reader.utf8("URI"))
        case 0x03:
            payload = _read_block(reader)
        case unknown:
            reader.at = 0
            raise reader.fail("type of payload", f"is unknown: {unknown:#04x}")
    reader.end()
    return payload


def _read_block(reader: Reader) -> PayloadBlock:
    count = reader.u32("number of payloads")
    if count == 0:
        reader.at -= 4
        raise reader.fail("number of payloads", "is 0")
    table = reader.take((count + 1) * _OFFSET_BYTES, "payload offsets")
    offsets = np.frombuffer(table, "<u4")
    if offsets[0] != 0 or bool(np.any(offsets[1:] < offsets[:-1])):
        reader.at -= len(table)
        raise reader.fail("payload offsets", "do not rise from 0")
    return PayloadBlock(table, reader.take(int(offsets[-1]), "payloads"))
