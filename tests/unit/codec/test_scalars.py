from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.codec.scalars import (
    Reader,
    encode_array,
    encode_i64,
    encode_terminated,
    encode_u8,
    encode_u16,
    encode_u32,
    encode_u64,
    encode_u64_key,
    encode_utf8,
    lex_increment,
    seconds_up,
)
from penstock.errors import CorruptError, InvalidError


@pytest.mark.parametrize(
    ("encode", "value"),
    [
        (encode_u8, -1),
        (encode_u8, 1 << 8),
        (encode_u16, -1),
        (encode_u16, 1 << 16),
        (encode_u32, -1),
        (encode_u32, 1 << 32),
        (encode_u64, -1),
        (encode_u64, 1 << 64),
        (encode_i64, -(1 << 63) - 1),
        (encode_i64, 1 << 63),
        (encode_u64_key, -1),
        (encode_u64_key, 1 << 64),
    ],
)
def test_a_number_beyond_its_field_is_invalid_and_never_wraps(
    encode: Callable[[int, str], bytes], value: int
) -> None:
    with pytest.raises(InvalidError, match=rf"price does not fit .*{value}"):
        encode(value, "price")


def test_text_longer_than_a_u16_is_invalid() -> None:
    assert len(encode_utf8("é" * 32_767 + "a", "t")) == 2 + 65_535
    with pytest.raises(InvalidError, match="65536 bytes long"):
        encode_utf8("é" * 32_768, "t")


def test_text_with_a_lone_surrogate_is_invalid() -> None:
    with pytest.raises(InvalidError, match="not valid text"):
        encode_utf8("a\ud800", "t")


def test_an_array_longer_than_a_u16_is_invalid() -> None:
    assert len(encode_array([b"x"] * 65_535, "t")) == 2 + 65_535
    with pytest.raises(InvalidError, match="65536 elements"):
        encode_array([b"x"] * 65_536, "t")


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"", None), (b"\xff\xff", None), (b"a", b"b"), (b"a\xff", b"b"), (b"a\xfe", b"a\xff")],
)
def test_lex_increment_carries_over_ff(prefix: bytes, end: bytes | None) -> None:
    assert lex_increment(prefix) == end


@pytest.mark.parametrize(("ms", "seconds"), [(0, 0), (1, 1), (500, 1), (1000, 1), (1001, 2)])
def test_durations_in_seconds_round_up_so_that_half_a_second_is_not_for_ever(
    ms: int, seconds: int
) -> None:
    assert seconds_up(ms) == seconds


@pytest.mark.parametrize("raw", [b"\x01\x00", b"\x01\x03\x00", b"\x01\xff\x00", b"a\x01\x00"])
def test_a_bad_escape_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CorruptError, match="key: name at byte 0 has a bad escape"):
        Reader(raw, "key").terminated("name")


def test_an_escaped_ff_is_corrupt_because_only_00_and_01_are_escaped() -> None:
    assert encode_terminated(b"\xff") == b"\xff\x00"
    with pytest.raises(CorruptError, match="bad escape"):
        Reader(b"\x01\x03\x00", "key").terminated("name")


def test_missing_bytes_say_what_and_where() -> None:
    reader = Reader(b"\x01\x00\x05\x00ab", "row")
    assert reader.u16("count") == 1
    with pytest.raises(CorruptError, match=r"^row: name at byte 4 needs 5 bytes, 2 are left$"):
        reader.utf8("name")


def test_bytes_left_over_say_what_and_where() -> None:
    reader = Reader(b"\x01\x02\x03", "row")
    reader.u8("count")
    with pytest.raises(CorruptError, match=r"^row: the end at byte 1 has 2 bytes left over$"):
        reader.end()


def test_bytes_that_are_not_utf8_say_what_and_where() -> None:
    with pytest.raises(CorruptError, match=r"^row: name at byte 2 is not UTF-8"):
        Reader(b"\x01\x00\xff", "row").utf8("name")


def test_text_without_a_terminator_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="no terminator"):
        Reader(b"abc", "key").terminated("name")
