"""What is stored of groups: round trips, and damage that is always named as such."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.group import (
    OFFSET_MAX,
    PAGE_SLOTS,
    GroupOperation,
    GroupRow,
    HeadRow,
    Offsets,
    PageRow,
)
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.errors import CorruptError
from unit.codec.test_group import CODECS, plain

# The machine may be busy, so no example is judged by its time.
calm = settings(deadline=None)
brief = settings(deadline=None, max_examples=50)

u16 = st.integers(0, 2**16 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=8)


@st.composite
def pages(draw: st.DrawFn) -> PageRow:
    slots = sorted(draw(st.sets(st.integers(0, PAGE_SLOTS - 1), max_size=8)))

    def column(each: st.SearchStrategy[int], form: Any) -> Any:
        size = len(slots)
        return np.array(draw(st.lists(each, min_size=size, max_size=size)), form)

    return PageRow(
        draw(u64),
        np.array(slots, np.uint16),
        column(u16, np.uint16),
        column(st.integers(1, 2**63 - 1), np.int64),
        column(i64, np.int64),
    )


@st.composite
def offsets(draw: st.DrawFn) -> Offsets:
    """Neighbours, gaps of one and wide gaps: what runs are made of."""
    gaps = draw(st.lists(st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 2**40))))
    found = np.cumsum([draw(st.integers(0, 2**50)), *gaps])
    assert found[-1] <= OFFSET_MAX
    return found.astype(np.int64)[: draw(st.integers(0, len(found)))]


class Record(NamedTuple):
    name: str
    values: st.SearchStrategy[Any]


RECORDS = [
    Record("group", st.builds(GroupRow, u64, u64, names)),
    Record("head", st.builds(HeadRow, u64, names, u64, u64, u64, u64)),
    Record("page", pages()),
    Record(
        "operation",
        st.builds(GroupOperation, u64, u64, u64, i64, i64, offsets(), offsets(), offsets()),
    ),
    Record(
        "record",
        st.lists(
            st.builds(
                Operation,
                st.builds(Owner, st.sampled_from(PagedView), u64),
                u64,
                st.binary(max_size=40),
            ),
            max_size=4,
        ),
    ),
]
each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)


def codec(record: Record) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    return CODECS[record.name]


def test_every_codec_has_a_strategy() -> None:
    assert {record.name for record in RECORDS} == set(CODECS)


@each_record
@calm
@given(data=st.data())
def test_what_is_encoded_is_decoded(record: Record, data: st.DataObject) -> None:
    encode, decode = codec(record)
    value = data.draw(record.values)
    raw = encode(value)
    assert plain(decode(raw)) == plain(value)
    assert encode(decode(raw)) == raw


@each_record
@brief
@given(data=st.data())
def test_every_truncation_and_anything_behind_is_corrupt(
    record: Record, data: st.DataObject
) -> None:
    encode, decode = codec(record)
    raw = encode(data.draw(record.values))
    for end in range(len(raw)):
        with pytest.raises(CorruptError):
            decode(raw[:end])
    with pytest.raises(CorruptError):
        decode(raw + data.draw(st.binary(min_size=1, max_size=8)))


@each_record
@brief
@given(data=st.data())
def test_a_changed_byte_is_a_value_that_could_have_been_written_or_corrupt(
    record: Record, data: st.DataObject
) -> None:
    encode, decode = codec(record)
    raw = bytearray(encode(data.draw(record.values)))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptError):
        value = decode(bytes(raw))
        assert plain(decode(encode(value))) == plain(value)


@each_record
@calm
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_a_value_or_corrupt(record: Record, data: bytes) -> None:
    decode = codec(record)[1]
    for raw in (data, b"\x01" + data, bytes(40) + data):
        with contextlib.suppress(CorruptError):
            decode(raw)
