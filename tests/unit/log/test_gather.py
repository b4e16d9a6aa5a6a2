"""What was written in parts reads the same when it is one body."""

from __future__ import annotations

import pytest

from penstock.codec.node import (
    ZSTD,
    Body,
    Node,
    body_columns,
    build_body,
    decode_node,
    node_value,
    tag_signature,
)
from penstock.log.batch import LARGE_ENTRIES, build_bodies, column
from penstock.log.gather import Gathered
from penstock.log.holes import punched
from penstock.log.read import Message, messages

PARTS = (
    [b"plain", b""],
    [("tag", b"tagged"), ("", b"")],
    [("t", b"with meta", b"m"), ("", b"without", None)],
    [b"x" * 9],
)


def bodies() -> list[Body]:
    return [body for entries in PARTS for body in build_bodies(entries)]


def node_of(body: Body, first: int, time_ms: int) -> Node:
    return decode_node(node_value(body, first, time_ms), "part")


def shown(node: Node) -> list[Message | None]:
    return messages(node, 0, node.count)


def test_bodies_keep_their_entries_and_their_times() -> None:
    gathered, expected, first = Gathered(), list[Message | None](), 7
    for body, time_ms in zip(bodies(), (5, 5, 6, 9), strict=True):
        gathered.add_body(body, time_ms)
        expected += shown(node_of(body, first, time_ms))
        first += body.count
    joined = gathered.body(compress=True)
    assert joined is not None
    assert shown(node_of(joined, 7, gathered.last_ms)) == expected
    assert gathered.last_ms == 9
    assert joined.signature == tag_signature({b"", b"tag", b"t"})


def test_one_time_for_all_needs_no_column() -> None:
    gathered = Gathered()
    for body in bodies():
        gathered.add_body(body, 5)
    joined = gathered.body()
    assert joined is not None
    assert joined.raw_bytes == sum(map(len, joined_pieces(joined)))
    assert node_of(joined, 0, 5).times is None


def joined_pieces(body: Body) -> list[bytes]:
    """The columns with their padding: all that is in a body without times and dead entries."""
    columns = body_columns(body)
    assert columns is not None
    return [piece + bytes(-len(piece) % 8) for each in columns if each for piece in each]


def test_nodes_with_dead_entries_and_times_keep_both() -> None:
    gathered, expected, first = Gathered(), list[Message | None](), 0
    times = (3).to_bytes(8, "little") + (4).to_bytes(8, "little")
    timed = build_body(2, column([b"a", b"b"], "data"), times=times)
    for body in (timed, *bodies()):
        node = node_of(body, first, 4)
        value = punched(node, [first], fragment=True) if first in (2, 6) else None
        node = node if value is None else decode_node(value, "punched")
        gathered.add_node(node)
        expected += shown(node)
        first = node.end
    joined = gathered.body(compress=True)
    assert joined is not None
    assert shown(node_of(joined, 0, gathered.last_ms)) == expected
    assert sum(each is None for each in expected) == 2


def test_a_body_that_was_compressed_is_opened() -> None:
    (large,) = build_bodies([b"the same again"] * 600)
    assert large.flags & ZSTD
    gathered = Gathered()
    gathered.add_body(large, 1)
    gathered.add_entries([(b"t", b"alone")])
    joined = gathered.body()
    assert joined is not None
    assert [message and message.data for message in shown(node_of(joined, 0, 1))] == [
        *[b"the same again"] * 600,
        b"alone",
    ]


@pytest.mark.parametrize(
    ("count", "asked", "squeezed"),
    [(LARGE_ENTRIES, None, True), (LARGE_ENTRIES - 1, None, False), (100, True, True)],
)
def test_what_is_small_is_compressed_only_where_that_is_asked_for(
    count: int, asked: bool | None, squeezed: bool
) -> None:
    gathered = Gathered()
    gathered.add_entries([(b"", b"the same again")] * count)
    joined = gathered.body(compress=asked)
    assert joined is not None
    assert bool(joined.flags & ZSTD) is squeezed


def test_nothing_alive_is_no_body() -> None:
    (body,) = build_bodies([b"a", b"b"])
    hole = punched(node_of(body, 0, 5), [0, 1], fragment=True)
    assert hole is not None
    gathered = Gathered()
    gathered.add_node(decode_node(hole, "hole"))
    assert gathered.body(compress=True) is None
    gathered.add_body(body, 5)
    joined = gathered.body(compress=True)
    assert joined is not None
    assert [each and each.data for each in shown(node_of(joined, 0, 5))] == [None, None, b"a", b"b"]
