from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.broker.streams import READ_BYTES_MAX
from penstock.codec.node import (
    ANY_TAG,
    META,
    SIGNATURE_TAGS_MAX,
    TAGS,
    ZSTD,
    decode_node,
    node_value,
    tag_signature,
)
from penstock.errors import InvalidError
from penstock.log import batch
from penstock.log.batch import (
    ENTRY_BYTES_MAX,
    NODE_BYTES,
    NODE_ENTRIES,
    TAG_BYTES_MAX,
    build_bodies,
    column,
    column_signature,
    split_edges,
)
from penstock.server.limits import Limits


def entries_of(bodies: list[Any]) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for body in bodies:
        node = decode_node(node_value(body, 0, 0), "node")
        found += zip(node.tag_list(0, node.count), node.data_list(0, node.count), strict=True)
    return found


def test_no_entries_make_no_bodies() -> None:
    assert build_bodies([]) == []
    assert build_bodies(pa.RecordBatch.from_pydict({"data": pa.array([], pa.binary())})) == []


def test_a_batch_of_2500_becomes_three_nodes_of_even_size() -> None:
    bodies = build_bodies([b"%d" % i for i in range(2500)])
    assert sorted(body.count for body in bodies) == [833, 833, 834]
    assert [data for _, data in entries_of(bodies)] == [b"%d" % i for i in range(2500)]


def test_an_entry_larger_than_a_node_is_a_node_of_its_own() -> None:
    large = bytes(3 * NODE_BYTES)
    bodies = build_bodies([b"before", large, b"after"])
    assert [body.count for body in bodies] == [1, 1, 1]
    assert [data for _, data in entries_of(bodies)] == [b"before", large, b"after"]


def test_many_small_entries_between_huge_ones_stay_within_the_count() -> None:
    sizes = [2 * NODE_BYTES, *[0] * 2500, 2 * NODE_BYTES]
    assert split_edges(np.array(sizes, np.int64)) == [0, 1, 1001, 2001, 2501, 2502]


def test_an_entry_of_64_mebibytes_works() -> None:
    (body,) = build_bodies([bytes(64 << 20)])
    assert body.flags & ZSTD
    assert len(decode_node(node_value(body, 0, 0), "node").data_list(0, 1)[0]) == 64 << 20


def test_columns_without_a_byte_are_left_out() -> None:
    assert not build_bodies([("", b"a"), (None, b"b")])[0].flags & (TAGS | META)
    assert not build_bodies([("", b"a", None), ("", b"b", b"")])[0].flags & (TAGS | META)
    assert build_bodies([("t", b"a", b"m")])[0].flags & (TAGS | META) == TAGS | META


def test_buffers_are_copied_so_that_a_later_change_does_not_reach_the_log() -> None:
    buffer = bytearray(b"abc")
    bodies = build_bodies([buffer])
    buffer[0] = 0
    assert entries_of(bodies) == [(b"", b"abc")]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (b"one entry", "entries are a list"),
        ("text", "entries are a list"),
        (["text"], "entry 0: data is bytes, not str"),
        ([b"a", 7], "entry 1: data is bytes, not int"),
        ([("t", b"a"), ("t", None)], "entry 1: data is bytes, not NoneType"),
        ([("t", b"a"), b"xy"], "all data, or all .*; entry 1 is not what entry 0 is"),
        ([("t", b"a"), b"x"], "all data, or all .*; entry 1 is not what entry 0 is"),
        ([b"a", b"b", ("t", b"a")], "all data, or all .*; entry 2 is not what entry 0 is"),
        ([("t", b"a"), ("t", b"a", b"m")], "all data, or all"),
        ([("t", b"a", b"m", b"more")], "or \\(tag, data, meta\\)"),
        ([("t",)], "all data, or all"),
        ([(1, b"a")], "a tag is text or bytes, not int"),
        ([("\ud800", b"a")], "is not valid text"),
        ([("", b"a"), (b"x" * (TAG_BYTES_MAX + 1), b"a")], "entry 1: tag of 65536 bytes"),
        ([memoryview(array("I", [1, 2]))], "one byte per element"),
        ([[1, 2]], "entry 0: data is bytes, not list"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(entries: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        build_bodies(entries)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tag": [b"a"]}, "columns are data"),
        ({"data": [b"a"], "other": [1]}, "columns are data"),
        ({"data": [1]}, "cannot become bytes"),
        ({"data": [b"a", None]}, "data has nulls"),
        ({"data": [b"a"], "tag": [b"x" * (TAG_BYTES_MAX + 1)]}, "entry 0: tag of 65536 bytes"),
    ],
)
def test_what_is_wrong_with_an_arrow_batch_is_said(columns: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        build_bodies(pa.RecordBatch.from_pydict(columns))


def test_a_table_of_many_chunks_is_one_batch() -> None:
    chunks = [[b"%d" % i for i in range(start, start + 300)] for start in range(0, 1800, 300)]
    table = pa.table({"data": pa.chunked_array(chunks, pa.binary())})
    bodies = build_bodies(table)
    assert [body.count for body in bodies] == [900, 900]
    assert [data for _, data in entries_of(bodies)] == [b"%d" % i for i in range(1800)]


def test_an_arrow_column_without_a_value_buffer_is_taken() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"data": pa.array([b"", b""]), "tag": pa.nulls(2, pa.binary())}
    )
    assert entries_of(build_bodies(batch)) == [(b"", b""), (b"", b"")]


def test_only_large_bodies_are_compressed() -> None:
    assert not build_bodies([b"x" * 100] * (NODE_ENTRIES // 2 - 1))[0].flags & ZSTD
    assert build_bodies([b"x" * 100] * (NODE_ENTRIES // 2))[0].flags & ZSTD


@pytest.mark.parametrize("entries", [[b"x", b"y" * (2 << 20)], [("", b"x", b"y" * (2 << 20))]])
def test_an_entry_that_is_too_large_is_refused_by_its_number(
    monkeypatch: pytest.MonkeyPatch, entries: list[Any]
) -> None:
    monkeypatch.setattr(batch, "ENTRY_BYTES_MAX", (2 << 20) - 1)
    with pytest.raises(InvalidError, match=r"entry \d: (data|meta) of 2,097,152 bytes; at most"):
        build_bodies(entries)
    monkeypatch.setattr(batch, "ENTRY_BYTES_MAX", 2 << 20)
    assert sum(body.count for body in build_bodies(entries)) == len(entries)


def test_the_largest_entry_goes_through_the_doors() -> None:
    limits = Limits()
    assert limits.request.bulk_bytes >= ENTRY_BYTES_MAX
    # An answer ends with the node that reaches its limit.
    assert limits.output_bytes > READ_BYTES_MAX + ENTRY_BYTES_MAX


MANY = [b"1"] * (SIGNATURE_TAGS_MAX + 2)


@pytest.mark.parametrize(
    "tags",
    [
        MANY,
        [*MANY, b"2"],
        [*MANY, b"11", b""],  # as many bytes as one of the same for each
        [b"", *MANY],
        [b"%d" % (i % SIGNATURE_TAGS_MAX) for i in range(1000)],
        [*MANY, *(b"%d" % i for i in range(SIGNATURE_TAGS_MAX))],
        [b"%d" % i for i in range(1000)],
    ],
)
def test_the_signature_of_a_column_knows_all_its_tags(tags: list[bytes]) -> None:
    signature = column_signature(len(tags), column(tags, "tag"))
    assert signature == tag_signature(set(tags))
    assert (signature == ANY_TAG) == (len(set(tags)) > SIGNATURE_TAGS_MAX)
