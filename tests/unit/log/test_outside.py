"""Nodes that clients laid out: only what a client may say of entries gets in."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from penstock.codec.node import (
    ANY_TAG,
    Body,
    Column,
    build_body,
    hole_value,
    node_value,
    tag_signature,
)
from penstock.errors import InvalidError
from penstock.log.batch import ENTRY_BYTES_MAX, TAG_BYTES_MAX, build_bodies, column
from penstock.log.outside import take_node

DATA = column([b"a", b"", b"c"], "data")


def one(size: int) -> Column:
    """A column with one entry, which may be larger than any that is allowed."""
    return struct.pack("<2I", 0, size), bytes(size)


TAGS = column([b"k", b"", b"k" * TAG_BYTES_MAX], "tag")


def test_a_node_of_a_client_is_its_body_and_its_columns() -> None:
    (body,) = build_bodies([("k", b"x", b"m"), ("", b"y", b"")])
    node, found = take_node(node_value(body, 7, 1234), "a node")
    assert found == body, "place and time are the log's to give"
    assert node.tag_list(0, 2) == [b"k", b""]
    _, found = take_node(node_value(build_body(3, DATA, tags=TAGS), 0, 0), "a node")
    assert found.count == 3


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (build_body(3, DATA, tags=TAGS, validity=bytes([0b101])), "evicted"),
        (build_body(3, DATA, validity=bytes([0b111])), "evicted"),
        (build_body(3, DATA, times=struct.pack("<3q", 5, 6, 2**62)), "times"),
        (build_body(1, column([b"a"], "data"),
                    tags=column([b"k" * (TAG_BYTES_MAX + 1)], "tag")), "tag of 65,536 bytes"),
    ],
)  # fmt: skip
def test_what_only_a_log_may_say_is_refused(body: Body, what: str) -> None:
    with pytest.raises(InvalidError, match=f"^node 0: .*{what}"):
        take_node(node_value(body, 0, 0), "node 0")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda: build_body(1, column([bytes(ENTRY_BYTES_MAX)], "data"), compress=True), None),
        (lambda: build_body(1, one(ENTRY_BYTES_MAX + 1), compress=True), "data of 67,108,865"),
        (lambda: build_body(1, column([b""], "data"), meta=one(ENTRY_BYTES_MAX + 1),
                            compress=True), "meta of 67,108,865"),
        (lambda: build_body(1, one(3 * ENTRY_BYTES_MAX), compress=True), "201,326,600 bytes"),
        (lambda: build_body(1000, column([b""] * 1000, "data"), compress=True), None),
        (lambda: build_body(1001, column([b""] * 1001, "data"), compress=True), "1,001 entries"),
    ],
)  # fmt: skip
def test_the_bounds_of_entries_and_nodes_hold_for_what_comes_compressed(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[], Body], what: str | None
) -> None:
    value = node_value(body(), 0, 0)
    assert len(value) < 100_000, "it looks harmless"
    if what is None:
        take_node(value, "node 0")
        return
    if "entries" in what or "201," in what:  # before it is decompressed
        monkeypatch.setattr("penstock.codec.node._inflate", None)
    with pytest.raises(InvalidError, match=f"^node 0: {what}"):
        take_node(value, "node 0")


KNOWN = tag_signature([b"k", b"l"])  # a bit each


@pytest.mark.parametrize(
    ("signature", "taken"),
    [(0, True), (KNOWN, True), (ANY_TAG, True), (tag_signature([b"k"]), False)],
)
def test_a_signature_may_leave_no_tag_out(signature: int, taken: bool) -> None:
    """Who reads by a tag that it leaves out would never see those entries."""
    tags = column([b"k", b"l", b"k"], "tag")
    value = node_value(build_body(3, DATA, tags=tags, signature=signature), 0, 0)
    if taken:
        assert take_node(value, "node 0")[1].signature == signature
        return
    with pytest.raises(InvalidError, match=r"^node 0: tags that its signature leaves out"):
        take_node(value, "node 0")


@pytest.mark.parametrize("value", [b"", b"x" * 100, hole_value(first=0, count=3, time_ms=0)])
def test_what_is_no_node_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidError, match="node 0"):
        take_node(value, "node 0")
