"""RCP 11, "TREAD command", WITHINFO included, over every door."""

from __future__ import annotations

import pytest
import redis

from acceptance.rcp11.doors import (
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Door,
    Edges,
    Entry,
    blocked,
    expected,
    numbered,
)
from acceptance.rcp11.resp_door import RespDoor
from penstock import InvalidError


@pytest.mark.parametrize(
    ("offset", "count", "found"),
    [
        (0, 1, range(1)),
        (0, 10, range(10)),
        (0, 11, range(10)),
        (3, 4, range(3, 7)),
        (9, 1, range(9, 10)),
        (9, 1000, range(9, 10)),
        (10, 5, range(0)),
        (1 << 62, 5, range(0)),
        (0, 0, range(0)),
        (5, 0, range(0)),
        (0, (1 << 63) - 1, range(10)),
    ],
)
def test_it_reads_count_messages_starting_from_offset(
    door: Door, full: str, offset: int, count: int, found: range
) -> None:
    """TREAD, 1st sentence."""
    assert door.read(full, offset, count) == expected(found)


def test_each_message_contains_offset_tag_and_message(door: Door, name: str) -> None:
    """TREAD, 2nd sentence, with the RCP's own example."""
    door.write_many(name, [(b"tag1", b"msg1"), (b"tag2", b"msg2")])
    assert door.read(name, 0, 2) == [Entry(0, b"tag1", b"msg1"), Entry(1, b"tag2", b"msg2")]


def test_the_reply_is_an_array_of_arrays(resp: RespDoor, name: str) -> None:
    """TREAD, 2nd sentence: the shape on the wire."""
    resp.write_many(name, [(b"tag1", b"msg1"), (b"tag2", b"msg2")])
    assert resp.ask("TREAD", name, 0, 9) == [[0, b"tag1", b"msg1"], [1, b"tag2", b"msg2"]]
    assert resp.ask("TREAD", name, 5, 9) == []


def test_reading_a_stream_that_does_not_exist_finds_nothing_and_makes_nothing(
    door: Door, name: str
) -> None:
    """docs/streams.md: empty, not an error."""
    assert door.read(name, 0, 10) == []
    assert door.read(name, 77, 10, reverse=True) == []
    assert door.read_group(name, "g", 10) == []
    assert name not in door.keys("*")


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, -1)])
def test_negative_offsets_and_counts_are_refused(
    door: Door, full: str, offset: int, count: int
) -> None:
    """Offsets are logical and begin at 0."""
    with pytest.raises(InvalidError):
        door.read(full, offset, count)


# ---- WITHINFO ---------------------------------------------------------------------------------


def test_withinfo_specifies_the_first_and_last_offset_available(door: Door, full: str) -> None:
    """WITHINFO, 1st sentence."""
    assert door.read_withinfo(full, 4, 2) == (Edges(0, 9), expected(range(4, 6)))
    door.evict(full, up_to=3)
    assert door.read_withinfo(full, 4, 2) == (Edges(4, 9), expected(range(4, 6)))


def test_withinfo_is_the_first_element_of_the_reply(resp: RespDoor, name: str) -> None:
    """WITHINFO, 1st sentence: the shape on the wire, with a group and when nothing is found too."""
    resp.write_many(name, numbered(3))
    assert resp.ask("TREAD", name, 2, 9, "WITHINFO") == [[0, 2], [2, b"t2", b"d2"]]
    assert resp.ask("TREAD", name, 3, 9, "WITHINFO") == [[0, 2]]
    assert resp.ask("TREAD", name, 3, 9, "BLOCK", 1, "WITHINFO") == [[0, 2]]
    group = resp.ask("TREAD", name, 0, 1, "GROUP", "g", "WITHINFO")
    assert group == [[0, 2], [0, b"t0", b"d0"]]
    assert resp.ask("TREAD", name, 0, 0, "GROUP", "g", "WITHINFO") == [[0, 2]]
    assert resp.ask("TREAD", f"{name}-none", 0, 1, "GROUP", "g", "WITHINFO") == [[0, -1]]


def test_a_count_of_0_obtains_just_the_information(door: Door, full: str) -> None:
    """WITHINFO, 2nd sentence."""
    assert door.read_withinfo(full, 0, 0) == (Edges(0, 9), [])
    assert door.read_withinfo(full, 9999, 0) == (Edges(0, 9), [])


def test_with_it_a_client_starts_reading_only_the_new_data(door: Door, full: str) -> None:
    """WITHINFO, 2nd sentence: the next call reads from last + 1."""
    edges, _ = door.read_withinfo(full, 0, 0)
    assert door.read(full, edges.last + 1, 10) == []
    door.write(full, b"t0", b"d10")
    assert door.read(full, edges.last + 1, 10) == expected(range(10, 11))


def test_with_it_a_client_fetches_the_available_history(door: Door, full: str) -> None:
    """WITHINFO, 2nd sentence: all of it lies between first and last."""
    door.evict(full, up_to=5)
    (first, last), _ = door.read_withinfo(full, 0, 0)
    assert door.read(full, first, last - first + 1) == expected(range(6, 10))


def test_information_about_an_empty_stream_is_next_and_next_minus_one(
    door: Door, full: str, name: str
) -> None:
    """docs/streams.md: so that last + 1 is where the next entry will be."""
    assert door.read_withinfo(f"{name}-none", 0, 0) == (Edges(0, -1), [])
    door.evict(full, keep=0)
    assert door.read_withinfo(full, 0, 0) == (Edges(10, 9), [])


def test_withinfo_of_a_blocked_read_is_that_of_its_answer(door: Door, full: str) -> None:
    """WITHINFO with BLOCK: the offsets available when it is answered."""
    reader = blocked(door, lambda: door.read_withinfo(full, 10, 5, block_ms=PATIENCE_MS))
    door.write(full, b"t0", b"d10")
    assert reader.result(PATIENCE_SECONDS) == (Edges(0, 10), expected(range(10, 11)))


def test_withinfo_of_a_block_that_ran_out_is_that_of_its_answer(resp: RespDoor, name: str) -> None:
    """WITHINFO with BLOCK: also when what was written meanwhile did not reach the offset."""
    resp.write_many(name, numbered(10))
    reader = blocked(resp, lambda: resp.read_withinfo(name, 20, 1, block_ms=500))
    resp.write_many(name, numbered(1, 10))
    assert reader.result(PATIENCE_SECONDS) == (Edges(0, 10), [])


def test_withinfo_of_a_group_that_waited_in_vain_tells_the_edges_too(
    resp: RespDoor, name: str
) -> None:
    """WITHINFO with BLOCK and GROUP: the first element is there, and true."""
    resp.write_many(name, numbered(10))
    resp.read_group(name, "g", 10)
    found = resp.ask("TREAD", name, 0, 1, "GROUP", "g", "WITHINFO", "BLOCK", 5)
    assert found == [[0, 9]]


# ---- evicted entries --------------------------------------------------------------------------


def test_evicted_messages_are_reported_as_null_entries(door: Door, full: str) -> None:
    """WITHINFO, 3rd paragraph."""
    door.evict(full, up_to=3)
    assert door.read(full, 2, 4) == [None, None, *expected(range(4, 6))]


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (0, 4), (1, 3), (0, 7), (3, 100)])
def test_null_number_i_stands_for_offset_plus_i_and_counts(
    door: Door, full: str, offset: int, count: int
) -> None:
    """docs/streams.md: so a client always knows where it is."""
    door.evict(full, up_to=3)
    wanted = range(offset, min(offset + count, 10))
    every = [None] * 4 + expected(range(4, 10))
    assert door.read(full, offset, count) == every[wanted.start : wanted.stop]


def test_a_stream_that_lost_everything_reads_as_nulls(door: Door, full: str) -> None:
    """WITHINFO, 3rd paragraph: all of them are evicted, and none lies behind the end."""
    door.evict(full, keep=0)
    assert door.read(full, 0, 100) == [None] * 10
    assert door.read(full, 8, 100) == [None] * 2
    assert door.read(full, 10, 100) == []


def test_nulls_across_blocks_and_in_both_directions(door: Door, name: str) -> None:
    """WITHINFO, 3rd paragraph, in a stream of several macro nodes."""
    door.write_many(name, numbered(3500))
    door.evict(name, up_to=2345)
    assert door.read(name, 900, 2000) == [None] * 1446 + expected(range(2346, 2900))
    backwards = door.read(name, 2400, 200, reverse=True)
    assert backwards == expected(range(2346, 2401))[::-1] + [None] * 145


def test_null_is_the_null_of_the_protocol(resp: RespDoor, name: str) -> None:
    """WITHINFO, 3rd paragraph: on the wire, in RESP2 and RESP3."""
    resp.write_many(name, numbered(3))
    resp.evict(name, up_to=1)
    port = resp.client.get_connection_kwargs()["port"]
    for protocol in (2, 3):
        with redis.Redis(port=port, protocol=protocol) as client:
            assert client.execute_command("TREAD", name, 0, 9) == [None, None, [2, b"t2", b"d2"]]
