from __future__ import annotations

import pytest

from penstock.codec.metadata import (
    Metadata,
    decode_metadata,
    decode_metadata_list,
    encode_metadata,
)
from penstock.errors import CorruptError, InvalidError

BARE = Metadata(message_id=1, created_at_ms=2, received_at_ms=3, visible_at_ms=4, retention_s=5)


def with_headers(*headers: tuple[str, str], to: str | None = None) -> Metadata:
    return Metadata(1, 2, 3, 4, 5, headers, to)


def test_a_record_without_a_tail_is_the_rfcs_bytes() -> None:
    assert len(encode_metadata(BARE)) == 8 + 8 + 8 + 8 + 4 + 1


def test_the_tail_takes_none_of_the_255_headers() -> None:
    full = with_headers(*((f"h{n}", "v") for n in range(255)), to="eu")
    assert decode_metadata(encode_metadata(full)) == full
    with pytest.raises(InvalidError, match="256 headers"):
        encode_metadata(with_headers(*((f"h{n}", "v") for n in range(256))))


def test_an_empty_to_is_not_an_absent_one() -> None:
    assert decode_metadata(encode_metadata(with_headers(to=""))).to == ""
    assert decode_metadata(encode_metadata(with_headers())).to is None


@pytest.mark.parametrize(
    "records",
    [
        [],
        [BARE],
        [BARE, with_headers(to="eu"), BARE],
        [BARE, with_headers(("a", "1"))],
        [with_headers(to=""), Metadata(1, 2, 3, 4, 5, dedup_id="d")],
    ],
)
def test_records_that_are_read_together_are_those_that_are_read_alone(
    records: list[Metadata],
) -> None:
    assert decode_metadata_list([encode_metadata(each) for each in records]) == records


def test_damage_of_a_record_that_is_read_with_others_is_told() -> None:
    good = encode_metadata(BARE)
    for bad in (good[:-1], good[:-1] + b"\x01", good + b"\x00"):
        with pytest.raises(CorruptError):
            decode_metadata_list([good, bad, good])
    with pytest.raises(CorruptError):
        decode_metadata_list([good[:-1] + b"\x01"])


def test_headers_keep_their_order() -> None:
    headers = (("b", "1"), ("a", "2"), ("c", "3"))
    assert decode_metadata(encode_metadata(with_headers(*headers))).headers == headers


def test_a_header_name_given_twice_is_invalid() -> None:
    with pytest.raises(InvalidError, match="'a' occurs twice"):
        encode_metadata(with_headers(("a", "1"), ("b", "1"), ("a", "1")))


def test_a_header_name_stored_twice_is_corrupt() -> None:
    stored = encode_metadata(with_headers(("a", "1"), ("b", "2"))).replace(b"b", b"a")
    with pytest.raises(CorruptError, match="header name at byte 43 occurs twice: 'a'"):
        decode_metadata(stored)


@pytest.mark.parametrize("present", [0, 4, 0xFF])
def test_a_tail_with_unknown_parts_is_corrupt(present: int) -> None:
    with pytest.raises(CorruptError, match="tail at byte 37 has unknown parts"):
        decode_metadata(encode_metadata(BARE) + bytes((present, 0, 0)))


def test_a_header_beyond_the_limit_names_the_header() -> None:
    with pytest.raises(InvalidError, match="header 'big' is 65536 bytes long"):
        encode_metadata(with_headers(("big", "x" * 65_536)))
