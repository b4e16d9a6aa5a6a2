from __future__ import annotations

import struct

import pytest

from penstock.codec.payload import (
    BytesPayload,
    PayloadBlock,
    UriPayload,
    decode_payload,
    encode_payload,
    is_reserved_uri,
    payload_at,
    payload_of,
)
from penstock.errors import CorruptError, InvalidError


def test_one_small_payload_stays_the_rfcs_record() -> None:
    assert payload_of([b"hi"]) == BytesPayload(b"hi")
    assert payload_of([b"x" * 65_535]) == BytesPayload(b"x" * 65_535)


def test_one_payload_beyond_the_rfcs_limit_becomes_a_block_of_one() -> None:
    data = b"x" * 65_536
    block = decode_payload(encode_payload(payload_of([data])))
    assert isinstance(block, PayloadBlock)
    assert (block.count, payload_at(block, 0)) == (1, data)


def test_the_rfcs_record_never_wraps_around_at_65536_bytes() -> None:
    with pytest.raises(InvalidError, match="65536"):
        encode_payload(BytesPayload(b"x" * 65_536))
    with pytest.raises(InvalidError, match="65536"):
        encode_payload(UriPayload("x" * 65_536))


def test_payloads_of_a_block_are_found_by_arithmetic_from_its_first_id() -> None:
    first_id, payloads = 100, [b"ab", b"", b"c"]
    block = payload_of(payloads)
    assert isinstance(block, PayloadBlock)
    found = [payload_at(block, message_id - first_id) for message_id in range(100, 104)]
    assert found == [b"ab", b"", b"c", None]


def test_a_block_beyond_a_u32_is_invalid_and_costs_no_memory() -> None:
    mebibyte = bytes(1 << 20)
    with pytest.raises(InvalidError, match="4294967296 bytes"):
        payload_of([mebibyte] * 4096)


@pytest.mark.parametrize(
    ("uri", "reserved"),
    [
        ("penstock-payload:1", True),
        ("PENSTOCK-Payload:1", True),
        (" \tpenstock-payload:1", True),
        ("penstock-payloads:1", False),
        ("s3://penstock-payload:1", False),
        ("", False),
    ],
)
def test_the_reserved_scheme_is_known_in_any_case(uri: str, reserved: bool) -> None:
    assert is_reserved_uri(uri) is reserved


def test_an_unknown_type_of_payload_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="type of payload at byte 0 is unknown: 0x04"):
        decode_payload(b"\x04")


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([0], "number of payloads at byte 1 is 0"),
        ([1, 2], "offsets at byte 5 do not rise from 0"),
        ([0, 2, 1], "offsets at byte 5 do not rise from 0"),
        ([0, 3], "payloads at byte 13 needs 3 bytes, 2 are left"),
        ([0, 1], "1 bytes left over"),
    ],
)
def test_a_block_with_wrong_offsets_is_corrupt(offsets: list[int], why: str) -> None:
    table = struct.pack(f"<{len(offsets) + 1}I", len(offsets) - 1, *offsets)
    with pytest.raises(CorruptError, match=why):
        decode_payload(b"\x03" + table + b"ab")
