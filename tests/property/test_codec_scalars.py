"""Scalars: round trips, the order of TerminatedBytes, the bounds of a prefix, and damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.codec.scalars import (
    Reader,
    encode_array,
    encode_bytes32,
    encode_i64,
    encode_terminated,
    encode_u8,
    encode_u16,
    encode_u32,
    encode_u64,
    encode_u64_key,
    encode_utf8,
    lex_increment,
)
from penstock.errors import CorruptError

# The machine may be busy, so no example is judged by its time.
calm = settings(deadline=None)

# Bytes that mean something to the escapes are common, so that strings often share a beginning.
tricky = st.lists(st.sampled_from([0, 1, 2, 3, 0x61, 0xFE, 0xFF]), max_size=5).map(bytes)
raw = tricky | st.binary(max_size=12)
# Small numbers in front are counts and lengths that fit what is behind them.
counted = st.builds(
    lambda count, zeros, rest: bytes((count,)) + bytes(zeros) + rest,
    st.integers(0, 5),
    st.sampled_from([1, 3]),
    raw,
)

Case = tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[Reader], Any]]


def number(kind: str, low: int, high: int, encode: Callable[[int, str], bytes]) -> Case:
    return st.integers(low, high), lambda n: encode(n, "n"), lambda r: getattr(r, kind)("n")


CASES: dict[str, Case] = {
    "u8": number("u8", 0, 2**8 - 1, encode_u8),
    "u16": number("u16", 0, 2**16 - 1, encode_u16),
    "u32": number("u32", 0, 2**32 - 1, encode_u32),
    "u64": number("u64", 0, 2**64 - 1, encode_u64),
    "i64": number("i64", -(2**63), 2**63 - 1, encode_i64),
    "u64 in keys": number("u64_key", 0, 2**64 - 1, encode_u64_key),
    "Utf8": (st.text(max_size=8), lambda s: encode_utf8(s, "s"), lambda r: r.utf8("s")),
    "Bytes32": (raw, lambda b: encode_bytes32(b, "b"), lambda r: r.bytes32("b")),
    "Array": (
        st.lists(st.text(max_size=3), max_size=4),
        lambda items: encode_array([encode_utf8(item, "s") for item in items], "a"),
        lambda r: r.array(lambda inner: inner.utf8("s"), "a"),
    ),
    "TerminatedBytes": (raw, encode_terminated, lambda r: r.terminated("b")),
}
every_scalar = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_scalar
@calm
@given(data=st.data(), behind=raw)
def test_a_scalar_reads_back_and_leaves_what_is_behind_it(
    case: Case, data: st.DataObject, behind: bytes
) -> None:
    values, encode, read = case
    value = data.draw(values)
    reader = Reader(encode(value) + behind, "it")
    assert read(reader) == value
    assert reader.data[reader.at :] == behind


@every_scalar
@calm
@given(data=st.data())
def test_every_truncation_of_a_scalar_is_corrupt(case: Case, data: st.DataObject) -> None:
    values, encode, read = case
    encoded = encode(data.draw(values))
    for size in range(len(encoded)):
        with pytest.raises(CorruptError, match="at byte"):
            read(Reader(encoded[:size], "it"))


@every_scalar
@calm
@given(data=raw | counted)
def test_arbitrary_bytes_are_a_scalar_or_corrupt(case: Case, data: bytes) -> None:
    _, encode, read = case
    reader = Reader(data, "it")
    try:
        value = read(reader)
    except CorruptError:
        return
    assert encode(value) == data[: reader.at]


@calm
@given(a=raw, b=raw, behind_a=raw, behind_b=raw)
@example(a=b"a", b=b"a\x00", behind_a=b"\xff", behind_b=b"")
@example(a=b"a\x00", b=b"a\x01", behind_a=b"\xff", behind_b=b"")
def test_terminated_bytes_keep_the_order_whatever_follows(
    a: bytes, b: bytes, behind_a: bytes, behind_b: bytes
) -> None:
    one, other = encode_terminated(a) + behind_a, encode_terminated(b) + behind_b
    if a == b:
        assert (one < other) == (behind_a < behind_b)
    else:
        assert (one < other) == (a < b)


@calm
@given(a=raw, b=raw)
@example(a=b"a", b=b"a\x00")
def test_no_terminated_bytes_are_the_beginning_of_others(a: bytes, b: bytes) -> None:
    assert encode_terminated(b).startswith(encode_terminated(a)) == (a == b)


@calm
@given(prefix=raw, rest=raw, other=raw)
def test_lex_increment_parts_those_with_the_prefix_from_those_above(
    prefix: bytes, rest: bytes, other: bytes
) -> None:
    end = lex_increment(prefix)
    for string in (prefix, prefix + rest, other, prefix[:-1] + other):
        inside = string >= prefix and (end is None or string < end)
        assert inside == string.startswith(prefix)


@calm
@given(prefix=raw)
def test_there_is_no_bound_only_where_nothing_is_above(prefix: bytes) -> None:
    assert (lex_increment(prefix) is None) == (prefix.strip(b"\xff") == b"")
