"""Joining columns says what joining entry by entry would: whatever the parts are made of."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.codec.node import (
    Body,
    Node,
    build_body,
    decode_header,
    decode_node,
    may_hold,
    node_value,
)
from penstock.log.batch import build_bodies, column
from penstock.log.gather import Gathered
from penstock.log.holes import punched
from penstock.log.read import Message, messages

FIRST = 11

tags = st.one_of(st.just(b""), st.sampled_from([b"a", b"b", b"\xff"]), st.binary(max_size=3))
data = st.one_of(st.just(b""), st.binary(max_size=9), st.just(b"x" * 400))
metas = st.one_of(st.none(), st.just(b""), st.binary(max_size=3))
#: Tag, data, meta, milliseconds since the entry before, whether it dies.
entries = st.lists(
    st.tuples(tags, data, metas, st.integers(0, 2), st.booleans()), min_size=1, max_size=6
)
parts = st.lists(
    st.tuples(st.sampled_from(["body", "squeezed", "node", "timed", "holed"]), entries),
    min_size=1,
    max_size=6,
)


def body_of(found: list[Any], *, compress: bool = False, times: bytes | None = None) -> Body:
    tagged = [tag for tag, *_ in found]
    metaed = [meta or b"" for _, _, meta, *_ in found]
    return build_body(
        len(found),
        column([each for _, each, *_ in found], "data"),
        tags=column(tagged, "tag") if any(tagged) else None,
        meta=column(metaed, "meta") if any(metaed) else None,
        times=times,
        compress=compress,
    )


def shown(node: Node) -> list[Message | None]:
    return messages(node, 0, node.count)


@settings(deadline=None)
@example([("timed", [(b"", b"x", None, 1, False), (b"", b"y", None, 1, False)])], True)
@example([("holed", [(b"a", b"x", b"m", 0, True), (b"", b"y", None, 1, True)])] * 2, True)
@given(parts, st.booleans())
def test_bodies_and_nodes_read_the_same_when_they_are_joined(
    made: list[tuple[str, list[Any]]], compress: bool
) -> None:
    gathered = Gathered()
    expected: list[Message | None] = []
    now = 5
    for kind, found in made:
        first = FIRST + len(expected)
        steps = [step for *_, step, _ in found]
        times = [now] * len(found)
        if kind == "timed":
            times = list(accumulate(steps, initial=now))[1:]
        now = times[-1]
        packed = struct.pack(f"<{len(times)}q", *times) if kind == "timed" else None
        body = body_of(found, compress=kind == "squeezed", times=packed)
        value = node_value(body, first, now)
        dead = [first + i for i, entry in enumerate(found) if entry[-1] and kind == "holed"]
        if dead:
            value = punched(decode_node(value, "part"), dead, fragment=True) or value
        if kind in ("body", "squeezed"):
            gathered.add_body(body, now)
        else:
            gathered.add_node(decode_node(value, "part"))
        for i, ((tag, each, meta, *_), time_ms) in enumerate(zip(found, times, strict=True)):
            text = tag.decode("utf-8", "surrogateescape")
            message = Message(first + i, text, each, time_ms, meta or None)
            expected.append(None if first + i in dead else message)
        now += steps[0]
    assert gathered.count == len(expected)
    joined = gathered.body(compress=compress)
    if joined is None:
        assert not any(expected)
        return
    assert any(expected)
    value = node_value(joined, FIRST, gathered.last_ms)
    node = decode_node(value, "joined")
    assert shown(node) == expected
    assert node.last_ms() == gathered.last_ms == now - steps[0]
    header = decode_header(value, "joined")
    for alive in expected:
        if alive is not None:
            assert may_hold(header, [alive.tag.encode("utf-8", "surrogateescape")])


@settings(deadline=None)
@given(st.lists(st.one_of(entries, st.lists(st.tuples(tags, data), min_size=1, max_size=4))))
def test_lone_entries_and_bodies_keep_their_order(made: list[list[Any]]) -> None:
    gathered = Gathered()
    expected: list[tuple[bytes, bytes, bytes | None]] = []
    for found in made:
        if len(found[0]) == 2:
            gathered.add_entries(found)
            expected += [(tag, each, None) for tag, each in found]
        else:
            (body,) = build_bodies([(tag, each, meta) for tag, each, meta, *_ in found])
            gathered.add_body(body)
            expected += [(tag, each, meta or None) for tag, each, meta, *_ in found]
    if not expected:
        return
    joined = gathered.body()
    assert joined is not None
    node = decode_node(node_value(joined, 0, 7), "joined")
    columns = node.tag_list, node.data_list, node.meta_list
    assert [*zip(*(each(0, node.count) for each in columns), strict=True)] == expected
    assert node.time_list(0, node.count) == [7] * node.count
