"""The rows of sources: round trips, and damage that is always named as such.

Each value has one encoding, so whatever a decoder accepts must encode to the very bytes it was
given: damage is either refused or is a value that somebody could have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.published import PublishedRow, SplitRow, decode_published, encode_published
from penstock.codec.shard import (
    Place,
    ShardKind,
    ShardPhase,
    ShardRow,
    decode_shard,
    encode_shard,
)
from penstock.codec.source import (
    IdentityBy,
    SchemaRow,
    SourceRow,
    decode_schema,
    decode_source,
    encode_schema,
    encode_source,
)
from penstock.codec.splits import SplitsPhase, SplitsRow, decode_splits, encode_splits
from penstock.errors import CorruptError

brief = settings(deadline=None, max_examples=50)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=8)
tokens = st.binary(min_size=16, max_size=16)

ends = st.sampled_from(
    [
        (ShardPhase.OPEN, Place.BOF),
        (ShardPhase.OPEN, Place.OFFSET),
        (ShardPhase.EOF, Place.EOF),
        (ShardPhase.FAILED, Place.BOF),
        (ShardPhase.FAILED, Place.OFFSET),
    ]
)


@st.composite
def shards(draw: st.DrawFn) -> ShardRow:
    phase, place = draw(ends)
    offset = draw(u64) if place is Place.OFFSET else 0
    return ShardRow(
        draw(st.sampled_from(ShardKind)), phase, draw(tokens), draw(u64), place, offset, draw(u64),
        draw(u32), draw(i64), draw(i64), draw(text), draw(st.none() | text), draw(text), draw(text),
        draw(text),
    )  # fmt: skip


class Record(NamedTuple):
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


RECORDS = {
    "source": Record(
        st.builds(
            SourceRow, st.sampled_from(IdentityBy), text, text, i64, u64, u64, u64, u32, u32, u64,
            u64, u64, u64, u64, u64,
        ),
        encode_source,
        decode_source,
    ),
    "schema": Record(st.builds(SchemaRow, u32, text), encode_schema, decode_schema),
    "shard": Record(shards(), encode_shard, decode_shard),
    "published": Record(
        st.builds(
            PublishedRow,
            u32,
            i64,
            st.lists(st.builds(SplitRow, text, u64, u64, text), max_size=4).map(tuple),
        ),
        encode_published,
        decode_published,
    ),
    "splits": Record(
        st.builds(SplitsRow, st.sampled_from(SplitsPhase), tokens, u64, i64, i64, text),
        encode_splits,
        decode_splits,
    ),
}  # fmt: skip

every_record = pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)


@every_record
@brief
@given(data=st.data())
def test_a_row_reads_back(record: Record, data: st.DataObject) -> None:
    value = data.draw(record.values)
    assert record.decode(record.encode(value)) == value


@every_record
@brief
@given(data=st.data())
def test_damage_is_refused_or_another_value(record: Record, data: st.DataObject) -> None:
    raw = record.encode(data.draw(record.values))
    at = data.draw(st.integers(0, len(raw) - 1))
    cut = data.draw(st.integers(0, len(raw) - at))
    damaged = raw[:at] + data.draw(st.binary(max_size=8)) + raw[at + cut :]
    try:
        value = record.decode(damaged)
    except CorruptError:
        return
    assert record.encode(value) == damaged
