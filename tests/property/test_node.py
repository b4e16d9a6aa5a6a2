"""Nodes: what goes in comes out, however it went in; other bytes are CorruptError, nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.codec.node import build_body, decode_header, decode_node, node_value
from penstock.errors import CorruptError
from penstock.log.arrow import to_batch
from penstock.log.batch import (
    NODE_BYTES,
    NODE_ENTRIES,
    build_bodies,
    column,
    encode_tag,
    split_edges,
)
from unit.codec.test_node import forged

entries = st.lists(
    st.tuples(st.binary(max_size=8), st.binary(max_size=40), st.none() | st.binary(max_size=4)),
    min_size=1,
    max_size=20,
)


@given(entries=entries, first=st.integers(0, 2**63), time_ms=st.integers(-(2**63), 2**63 - 1))
def test_entries_survive_the_round_trip(
    entries: list[tuple[bytes, bytes, bytes | None]], first: int, time_ms: int
) -> None:
    (body,) = build_bodies(entries)
    node = decode_node(node_value(body, first, time_ms, fragment=True), "node")
    count = len(entries)
    assert (node.first, node.count) == (first, count)
    found = zip(
        node.tag_list(0, count), node.data_list(0, count), node.meta_list(0, count), strict=True
    )
    assert list(found) == [(tag, data, meta or None) for tag, data, meta in entries]
    assert node.time_list(0, count) == [time_ms] * count


@given(entries=entries, data=st.data())
def test_a_slice_of_a_node_is_the_slice_of_its_entries(
    entries: list[tuple[bytes, bytes, bytes | None]], data: st.DataObject
) -> None:
    node = decode_node(node_value(build_bodies(entries)[0], 0, 0), "node")
    low = data.draw(st.integers(0, len(entries)))
    high = data.draw(st.integers(low, len(entries)))
    assert node.data_list(low, high) == [entry[1] for entry in entries[low:high]]
    assert node.tag_list(low, high) == [entry[0] for entry in entries[low:high]]
    batch = to_batch(node, low, high)
    assert batch.column("data").to_pylist() == [entry[1] for entry in entries[low:high]]
    assert batch.column("meta").to_pylist() == [entry[2] or None for entry in entries[low:high]]


@given(entries=entries, skip=st.integers(0, 3), large=st.booleans(), text=st.booleans())
def test_arrow_in_gives_the_same_bodies_as_a_list(
    entries: list[tuple[bytes, bytes, bytes | None]], skip: int, large: bool, text: bool
) -> None:
    if text:
        entries = [(t.hex().encode(), d.hex().encode(), m) for t, d, m in entries]
    kind = {
        (False, False): pa.binary(),
        (False, True): pa.string(),
        (True, False): pa.large_binary(),
        (True, True): pa.large_string(),
    }[large, text]
    tags, data, metas = zip(*entries, strict=True)
    binary = pa.large_binary() if large else pa.binary()
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(data, pa.binary()).cast(kind),
            pa.array(tags, pa.binary()).cast(kind),
            pa.array(metas, binary),
        ],
        names=["data", "tag", "meta"],
    ).slice(skip)
    expected = build_bodies(entries[skip:])
    assert build_bodies(batch) == expected
    assert build_bodies(pa.Table.from_batches([batch])) == expected


@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 100, 5000, NODE_BYTES // 3, NODE_BYTES, 2 * NODE_BYTES]),
        min_size=1,
        max_size=60,
    ),
    times=st.integers(1, 60),
)
def test_nodes_stay_within_their_bounds_and_hold_every_entry_once(
    sizes: list[int], times: int
) -> None:
    every = np.array(sizes * times, np.int64)
    edges = split_edges(every)
    assert edges[0] == 0
    assert edges[-1] == len(every)
    for low, high in pairwise(edges):
        assert 0 < high - low <= NODE_ENTRIES
        assert high - low == 1 or every[low:high].sum() <= NODE_BYTES


@given(count=st.integers(1, 5000), size=st.integers(0, 2000))
@example(count=2548, size=1234)  # three nodes by the sum, four by whole entries
def test_entries_of_one_size_are_split_evenly(count: int, size: int) -> None:
    edges = split_edges(np.full(count, size, np.int64))
    parts = np.diff(edges)
    assert parts.max() - parts.min() <= 1
    per_node = min(NODE_ENTRIES, NODE_BYTES // size if size else NODE_ENTRIES)
    assert len(parts) <= -(-count // per_node) + 1


@given(tag=st.binary(max_size=20))
def test_tags_shown_as_text_become_the_same_bytes_again(tag: bytes) -> None:
    assert encode_tag(tag.decode("utf-8", "surrogateescape")) == tag


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_never_anything_but_corrupt(data: bytes) -> None:
    for raw in (data, b"\x4e\x01" + data):
        try:
            decode_node(raw, "node")
        except CorruptError:
            continue
        raise AssertionError("checksums do not match by chance")


@given(
    body=st.binary(max_size=200),
    count=st.integers(1, 30),
    flags=st.integers(0, 0xFF),
    raw=st.integers(0, 300),
)
def test_bodies_with_right_checksums_are_a_node_or_corrupt(
    body: bytes, count: int, flags: int, raw: int
) -> None:
    for raw_bytes in (raw, None):
        value = forged(flags, count, body, raw_bytes)
        try:
            node = decode_node(value, "node")
        except CorruptError:
            continue
        to_batch(node).validate(full=True)
        assert len(node.data_list(0, count)) == count


@given(entries=entries, at=st.floats(0, 1), change=st.integers(1, 255))
def test_a_changed_byte_is_always_found(
    entries: list[tuple[bytes, bytes, bytes | None]], at: float, change: int
) -> None:
    value = bytearray(node_value(build_bodies(entries)[0], 3, 4))
    value[int(at * (len(value) - 1))] ^= change
    try:
        decode_node(bytes(value), "node")
    except CorruptError:
        return
    raise AssertionError("a changed byte was not found")


def test_the_time_column_is_only_there_when_times_differ() -> None:
    times = np.array([1, 2], "<i8").tobytes()
    body = build_body(2, column([b"a", b"b"], "data"), times=times)
    assert body.raw_bytes == build_bodies([b"a", b"b"])[0].raw_bytes + 16
    assert decode_header(node_value(body, 0, 2), "node").time_ms == 2
