from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from penstock.codec.node import (
    ANY_TAG,
    FRAGMENT,
    HEADER_BYTES,
    HOLE,
    LINK,
    SIGNATURE_TAGS_MAX,
    TAGS,
    UNIFORM_TIME,
    ZSTD,
    Header,
    StagedId,
    build_body,
    decode_body,
    decode_header,
    decode_link,
    decode_linked,
    decode_node,
    hole_value,
    link_value,
    linked_header,
    may_hold,
    node_value,
    tag_signature,
)
from penstock.errors import CorruptError
from penstock.log.arrow import to_batch
from penstock.log.batch import build_bodies, column

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "node.json").read_text())


def encode_vector(value: dict[str, Any]) -> bytes:
    place = {"first": value["first"], "time_ms": value["time_ms"]}
    if "link" in value:
        return link_value(StagedId(*value["link"]), count=value["count"], **place)
    if "hole" in value:
        return hole_value(count=value["count"], **place, fragment=value["fragment"])
    alive = [entry or ["", "", None] for entry in value["entries"]]
    data = [entry[1].encode("latin-1") for entry in alive]
    tags = [entry[0].encode("latin-1") for entry in alive]
    metas = [(entry[2] or "").encode("latin-1") for entry in alive]
    bits = np.packbits([entry is not None for entry in value["entries"]], bitorder="little")
    body = build_body(
        len(data),
        column(data, "data"),
        tags=column(tags, "tag") if any(tags) else None,
        meta=column(metas, "meta") if any(metas) else None,
        validity=bits.tobytes() if None in value["entries"] else None,
        times=np.array(value["times"], "<i8").tobytes() if "times" in value else None,
        signature=value.get("signature", 0),
    )
    return node_value(body, **place, fragment=value["fragment"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_each_vector_encodes_to_its_bytes(vector: dict[str, Any]) -> None:
    assert encode_vector(vector["value"]).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_each_vector_decodes_to_its_value(vector: dict[str, Any]) -> None:
    raw, value = bytes.fromhex(vector["hex"]), vector["value"]
    header = decode_header(raw, "vector")
    assert (header.first, header.time_ms) == (value["first"], value["time_ms"])
    assert header.signature == value.get("signature", 0)
    if "link" in value:
        assert decode_link(header, raw, "vector") == StagedId(*value["link"])
        return
    node = decode_node(raw, "vector")
    alive = node.alive()
    if "hole" in value:
        assert alive is not None
        assert not alive.any()
        assert node.count == value["count"]
        return
    found = [
        [tag.decode("latin-1"), data.decode("latin-1"), meta and meta.decode("latin-1")]
        for tag, data, meta in zip(
            node.tag_list(0, node.count),
            node.data_list(0, node.count),
            node.meta_list(0, node.count),
            strict=True,
        )
    ]
    lives = [True] * node.count if alive is None else alive.tolist()
    assert [e if live else None for e, live in zip(found, lives, strict=True)] == value["entries"]
    assert node.time_list(0, node.count) == value.get("times", [value["time_ms"]] * node.count)


def sample(count: int = 1000) -> bytes:
    entries = [
        (b"u%d" % (i % 5), b'{"n": %d, "page": "/a/b"}' % i, b"m%d" % i) for i in range(count)
    ]
    return node_value(build_bodies(entries)[0], 1000, 77)


def inside(buffer: pa.Buffer, whole: bytes) -> bool:
    start = pa.py_buffer(whole).address
    return bool(start <= buffer.address and buffer.address + buffer.size <= start + len(whole))


@pytest.mark.parametrize("count", [10, 1000])
def test_arrow_columns_lie_inside_the_decoded_body(count: int) -> None:
    node = decode_node(sample(count), "node")
    batch = to_batch(node)
    for name in ("tag", "data", "meta"):
        _, table, blob = batch.column(name).buffers()
        assert inside(table, node.raw), name
        assert inside(blob, node.raw), name
        assert table.address % 8 == 0
        assert blob.address % 8 == 0
    batch.validate(full=True)


def test_times_of_a_merged_node_lie_inside_the_decoded_body() -> None:
    times = np.arange(3, dtype="<i8").tobytes()
    body = build_body(3, column([b"a", b"b", b"c"], "data"), times=times)
    node = decode_node(node_value(body, 0, 2), "node")
    buffer = to_batch(node).column("time").buffers()[1]
    assert inside(buffer, node.raw)
    assert node.last_ms() == 2


def test_dead_entries_are_null_in_tag_data_and_meta() -> None:
    body = build_body(
        2,
        column([b"", b"x"], "data"),
        tags=column([b"", b"t"], "tag"),
        meta=column([b"", b"m"], "meta"),
        validity=bytes([0b10]),
    )
    batch = to_batch(decode_node(node_value(body, 4, 5), "node"))
    assert batch.select(["offset", "tag", "data", "meta"]).to_pylist() == [
        {"offset": 4, "tag": None, "data": None, "meta": None},
        {"offset": 5, "tag": b"t", "data": b"x", "meta": b"m"},
    ]


@pytest.mark.parametrize(
    ("low", "high", "runs"),
    [
        (0, 6, [(0, 1, False), (1, 3, True), (3, 5, False), (5, 6, True)]),
        (1, 3, [(1, 3, True)]),
        (2, 5, [(2, 3, True), (3, 5, False)]),
    ],
)
def test_runs_are_neighbours_that_live_or_are_dead(
    low: int, high: int, runs: list[tuple[int, int, bool]]
) -> None:
    data = [b"", b"aa", b"bb", b"", b"", b"cccc"]
    body = build_body(6, column(data, "data"), validity=bytes([0b100110]))
    node = decode_node(node_value(body, 10, 5), "node")
    assert node.runs(low, high) == runs
    hole = decode_node(hole_value(first=3, count=6, time_ms=1), "hole")
    assert hole.runs(low, high) == [(low, high, False)]


@pytest.mark.parametrize(
    ("low", "size", "end"),
    [(0, 9, 4), (0, 10, 4), (0, 8, 3), (0, 5, 3), (0, 4, 2), (0, 0, 1), (2, -5, 3), (3, 1, 4)],
)
def test_entries_fit_until_they_reach_the_size(low: int, size: int, end: int) -> None:
    """Whatever they are large with."""
    plain = build_body(4, column([b"aa", b"bb", b"cccc", b"d"], "data"))
    tags, metas = column([b"a", b"", b"ccc", b""], "tag"), column([b"", b"bb", b"", b"d"], "meta")
    mixed = build_body(4, column([b"a", b"", b"c", b""], "data"), tags=tags, meta=metas)
    for body in (plain, mixed):
        node = decode_node(node_value(body, 10, 5), "node")
        assert node.fitting(low, 4, size) == end
        assert [node.entry_bytes(0, 3), node.entry_bytes(2, 4)] == [8, 5]


def test_a_hole_is_all_null_and_keeps_its_offsets() -> None:
    batch = to_batch(decode_node(hole_value(first=3, count=9, time_ms=1), "hole"))
    assert batch.column("offset").to_pylist() == list(range(3, 12))
    assert batch.column("data").null_count == batch.column("tag").null_count == 9


def test_compression_is_kept_only_where_it_helps() -> None:
    noise = [xxhash.xxh3_128_digest(b"%d" % i) * 1 for i in range(1000)]
    assert not build_bodies(noise)[0].flags & ZSTD
    assert build_bodies([b"the same again"] * 1000)[0].flags & ZSTD
    assert not build_bodies([b"the same again"] * 10)[0].flags & ZSTD


def test_every_flipped_bit_of_a_node_is_found() -> None:
    signed = node_value(build_bodies([(b"a%d" % (i % 3), b"bbb") for i in range(500)])[0], 0, 1)
    assert decode_header(signed, "node").signature
    for value in (sample(3), node_value(build_bodies([b"aaaa"] * 600)[0], 0, 1), signed):
        decode_node(value, "node")
        for at in range(len(value)):
            for bit in (1, 128):
                broken = bytearray(value)
                broken[at] ^= bit
                with pytest.raises(CorruptError):
                    decode_node(bytes(broken), "node")


def test_every_truncation_of_a_node_is_found() -> None:
    value = sample(3)
    for end in range(len(value)):
        with pytest.raises(CorruptError):
            decode_node(value[:end], "node")


def forged(
    flags: int, count: int, body: bytes, raw_bytes: int | None = None, *, signature: int = 0
) -> bytes:
    """A node whose checksums are right and whose content need not be."""
    head = struct.pack(
        "<BBHIQqIIQ",
        0x4E,
        1,
        flags,
        count,
        0,
        0,
        len(body) if raw_bytes is None else raw_bytes,
        len(body),
        xxhash.xxh3_64_intdigest(body),
    )
    covered = head + struct.pack("<I", signature) if signature else head
    return head + struct.pack("<II", zlib.crc32(covered), signature) + body


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (forged(UNIFORM_TIME, 0, b""), "count is 0"),
        (forged(UNIFORM_TIME, 1, b""), "offset table of data needs 8 bytes"),
        (forged(UNIFORM_TIME, 1, u32(1, 1)), "offset table of data is not in order"),
        (
            forged(UNIFORM_TIME, 3, u32(0, 2, 1, 2) + bytes(8)),
            "offset table of data is not in order",
        ),
        (forged(UNIFORM_TIME, 1, u32(0, 9) + bytes(8)), "data needs 9 bytes"),
        (forged(UNIFORM_TIME, 1, u32(0, 0x8000_0000)), "larger than a column can be"),
        (forged(UNIFORM_TIME, 1, u32(0, 1) + bytes(16)), "body has 8 bytes left over"),
        (forged(0, 2, bytes(8)), "times needs 16 bytes"),
        (forged(UNIFORM_TIME | ZSTD, 1, b"not zstd", 8), "does not decompress"),
        (forged(UNIFORM_TIME, 1, bytes(8), 16), "raw body of 16 bytes is stored in 8"),
        (forged(0x0100, 1, b""), "flags 0x0100 are unknown"),
        (forged(LINK, 1, bytes(24)), "contradict"),
        (forged(LINK | UNIFORM_TIME, 1, bytes(24)), "a link where columns are needed"),
        (forged(0x81, 1, bytes(8)), "a hole with a body"),
        (forged(0x14 | UNIFORM_TIME, 1, u32(0, 0) + u32(0, 0)), "validity needs 1 bytes"),
        (forged(UNIFORM_TIME, 1, u32(0, 0), signature=1), "signature of tags that are not there"),
        (forged(LINK | UNIFORM_TIME, 1, bytes(24), signature=1), "tags that are not there"),
        (forged(HOLE | UNIFORM_TIME, 1, b"", signature=1), "tags that are not there"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_body_is_named(value: bytes, field: str) -> None:
    with pytest.raises(CorruptError, match=field):
        decode_node(value, "log 1 node 0")


def test_a_frame_that_claims_another_size_is_not_inflated() -> None:
    body = build_bodies([b"aaaaaaaa"] * 600)[0]
    with pytest.raises(CorruptError, match="not of 7 bytes"):
        decode_node(forged(UNIFORM_TIME | ZSTD, 600, body.stored, 7), "node")


def test_a_linked_node_has_place_and_time_of_its_link() -> None:
    (body,) = build_bodies([("t", b"a"), ("", b"b")])
    staged = node_value(body, 0, 0)
    link = link_value(StagedId(1, 2, 3), first=50, count=2, time_ms=9)
    node = decode_linked(decode_header(link, "link"), staged, "staged")
    assert (node.first, node.end, node.time_list(0, 2)) == (50, 52, [9, 9])
    assert node.data_list(0, 2) == [b"a", b"b"]
    other = link_value(StagedId(1, 2, 3), first=50, count=3, time_ms=9)
    with pytest.raises(CorruptError, match="count is 2, its link says 3"):
        decode_linked(decode_header(other, "link"), staged, "staged")


def test_a_body_can_be_given_another_header_without_opening_it() -> None:
    (body,) = build_bodies([b"x" * 300] * 900)
    value = node_value(body, 0, 0)
    assert decode_body(decode_header(value, "node"), value, "node") == body
    assert len(value) == HEADER_BYTES + len(body.stored)


# ---- signatures -------------------------------------------------------------------------------


def header_of(*tags: bytes, signature: int = 0) -> Header:
    body = build_body(
        len(tags),
        column([b"x"] * len(tags), "data"),
        tags=column(tags, "tag") if any(tags) else None,
        signature=signature,
    )
    return decode_header(node_value(body, 0, 0), "node")


def test_a_signature_has_the_bit_of_each_tag() -> None:
    assert tag_signature([b"u1"]) == 1 << xxhash.xxh3_64_intdigest(b"u1") % 32
    both = tag_signature([b"u1"]) | tag_signature([b"u2"])
    assert tag_signature([b"u1", b"u2"]) == both
    assert tag_signature([b"t%d" % i for i in range(SIGNATURE_TAGS_MAX + 1)]) == ANY_TAG


def test_a_node_may_hold_what_its_signature_does_not_rule_out() -> None:
    others = [
        b"t%d" % i for i in range(200) if tag_signature([b"t%d" % i]) != tag_signature([b"a"])
    ]
    signed = header_of(b"a", b"a", signature=tag_signature([b"a"]))
    assert may_hold(signed, {b"a"})
    assert may_hold(signed, {b"a", *others[:3]})
    assert not may_hold(signed, set(others[:3]))
    assert not may_hold(signed, {b""})
    unsigned = header_of(b"a", b"a")
    assert may_hold(unsigned, {b"z"})
    without = header_of(b"", b"")
    assert (may_hold(without, {b"a"}), may_hold(without, {b"a", b""})) == (False, True)
    link = decode_header(link_value(StagedId(1, 2, 3), first=0, count=2, time_ms=0), "link")
    assert may_hold(link, {b"a"})
    hole = decode_header(hole_value(first=0, count=2, time_ms=0), "hole")
    assert not may_hold(hole, {b"a", b""})


@pytest.mark.parametrize("distinct", [1, 5, SIGNATURE_TAGS_MAX, SIGNATURE_TAGS_MAX + 1, 900])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_large_batch_gets_the_signature_of_its_tags(distinct: int, grouped: bool) -> None:
    tags = [b"tag-%d" % (i % distinct) for i in range(900)]
    tags = sorted(tags) if grouped else tags
    (body,) = build_bodies([(tag, b"data") for tag in tags])
    assert body.signature == tag_signature(set(tags))
    table = pa.table({"data": [b"data"] * 900, "tag": tags})
    assert build_bodies(table) == [body]


def test_nothing_is_computed_for_small_batches_and_without_tags() -> None:
    assert build_bodies([(b"a", b"x")] * 10)[0].signature == 0
    assert build_bodies([b"x"] * 1000)[0].signature == 0
    assert build_bodies([(b"", b"x")] * 1000)[0].signature == 0


def test_a_signature_goes_where_its_body_goes() -> None:
    (body,) = build_bodies([(b"a", b"x")] * 600)
    assert body.signature
    value = node_value(body, 5, 6)
    assert decode_body(decode_header(value, "node"), value, "node").signature == body.signature
    again = decode_header(decode_node(value, "node").value(), "node")
    assert (again.signature, again.flags & (TAGS | ZSTD)) == (body.signature, TAGS)
    link = decode_header(link_value(StagedId(1, 2, 3), first=50, count=600, time_ms=9), "link")
    linked = linked_header(link, node_value(body, 0, 0, fragment=True), "staged")
    assert (linked.first, linked.time_ms, linked.signature) == (50, 9, body.signature)
    assert linked.flags & FRAGMENT
