"""RCP 11, "Implementation details", as far as a client can see them, over every door."""

from __future__ import annotations

from itertools import pairwise

import pytest

from acceptance.rcp11.doors import Door, Entry, expected, numbered, until
from acceptance.rcp11.resp_door import RespDoor
from penstock.codec.node import Node, decode_node

#: Around and between the edges of macro nodes.
PLACES = (0, 1, 499, 998, 999, 1000, 1001, 1999, 2000, 2001, 2500, 3332, 3333)
#: Batches that do not end where nodes do.
SIZES = (1, 1, 7, 333, 1000, 64, 999, 1, 928)
COUNT = sum(SIZES)


@pytest.fixture
def long(door: Door, name: str) -> str:
    at = 0
    for size in SIZES:
        at = door.write_many(name, numbered(size, at)).stop
    assert at == COUNT == 3334
    return name


def test_eviction_of_old_entries_leaves_the_others_readable(door: Door, long: str) -> None:
    """1st list: "allow the eviction of old entries", in the middle of a node too."""
    for up_to in (0, 998, 999, 1500, 2999, 3332):
        door.evict(long, up_to=up_to)
        assert door.read(long, up_to + 1, 5000) == expected(range(up_to + 1, COUNT))
        assert door.read(long, up_to, 1) == [None]


def test_seek_in_the_middle(door: Door, long: str) -> None:
    """1st list: "allow efficient seek in the middle"; the cost is for bench/."""
    for offset in PLACES:
        assert door.read(long, offset, 1) == expected(range(offset, offset + 1))
        end = min(offset + 1003, COUNT)
        assert door.read(long, offset, 1003) == expected(range(offset, end))


def test_sequential_traversal_forwards(door: Door, long: str) -> None:
    """1st list: "permit the sequential traversal both ways"."""
    for step in (1000, 333):
        found: list[Entry | None] = []
        while part := door.read(long, len(found), step):
            found += part
        assert found == expected(range(COUNT))


def test_sequential_traversal_backwards(door: Door, long: str) -> None:
    """1st list and "double linked": the same entries, the newest first."""
    for step in (1000, 333):
        found: list[Entry | None] = []
        at = COUNT - 1
        while at >= 0:
            part = door.read(long, at, step, reverse=True)
            found += part
            at -= len(part)
        assert found == expected(range(COUNT))[::-1]


def test_a_backward_seek_begins_at_the_offset_and_ends_at_the_first(door: Door, long: str) -> None:
    """ "Both directions": from any place; from behind the end it begins at the last entry."""
    for offset in PLACES:
        low = max(0, offset - 1002)
        assert door.read(long, offset, 1003, reverse=True) == expected(range(low, offset + 1))[::-1]
    last_two = expected(range(COUNT - 2, COUNT))[::-1]
    assert door.read(long, 1 << 40, 2, reverse=True) == last_two
    assert door.read(long, COUNT, 2, reverse=True) == last_two


def test_messages_of_very_different_sizes_share_a_stream(door: Door, name: str) -> None:
    """The offsets table: the size of each message is its own."""
    sizes = [0, 1, 100_000, 0, 3_000_000, 7, 65_536, 0]
    entries = [(b"%d" % n, bytes([n]) * size) for n, size in enumerate(sizes)]
    door.write_many(name, entries)
    for tag, data in entries:
        door.write(name, tag, data)
    wanted = [Entry(n, *entries[n % 8]) for n in range(16)]
    assert door.read(name, 0, 16) == wanted
    assert door.read(name, 15, 16, reverse=True) == wanted[::-1]


def test_a_stream_with_just_a_few_messages_is_small(door: Door, name: str) -> None:
    """Last paragraph: no table for 1000 messages is laid out for one."""
    door.write(name, b"t", b"x")
    assert 0 < door.info(name).bytes < 500


def nodes(resp: RespDoor, name: str) -> list[Node]:
    """The macro nodes of a stream, as RAW gives them."""
    _, (low, high), *pieces = resp.ask("TREAD", name, 0, 1 << 40, "RAW")
    found = [decode_node(value, "a node") for value, _, _ in pieces]
    assert (low, high) == (found[0].first, found[-1].end)
    assert all(a.end == b.first for a, b in pairwise(found))
    return found


def test_a_macro_node_is_composed_of_up_to_1000_messages(resp: RespDoor, name: str) -> None:
    """ "Each skiplist node is actually a macro node": as it is stored."""
    resp.write_many(name, numbered(3500))
    counts = [node.count for node in nodes(resp, name)]
    assert (len(counts), sum(counts)) == (4, 3500)
    assert max(counts) <= 1000


def test_messages_that_were_written_one_by_one_come_together_in_macro_nodes(
    resp: RespDoor, name: str
) -> None:
    """The same for small writes: in the background, and no reader can tell."""
    for _ in range(42):
        with resp.client.pipeline(transaction=False) as pipeline:
            for _ in range(50):
                pipeline.execute_command("TWRITE", name, "t", "x")  # type: ignore[no-untyped-call]
            pipeline.execute()
    until(lambda: all(node.count > 500 for node in nodes(resp, name)[:2]))
    assert all(node.count <= 1000 for node in nodes(resp, name))
    assert resp.read(name, 0, 5000) == [Entry(n, b"t", b"x") for n in range(2100)]
