"""RCP 11, "TACK command", over every door."""

from __future__ import annotations

import pytest

from acceptance.rcp11.doors import NEVER_MS, Door, numbered
from acceptance.rcp11.resp_door import RespDoor


@pytest.fixture
def delivered(door: Door, full: str) -> str:
    """Ten entries, the first eight of them pending."""
    assert len(door.read_group(full, "g", 8, retry_ms=NEVER_MS)) == 8
    return full


def pending(door: Door, name: str) -> list[int]:
    return [entry.offset for entry in door.group_pending(name, "g")]


def test_it_takes_one_offset(door: Door, delivered: str) -> None:
    """TACK, 1st form."""
    assert door.ack(delivered, "g", 3) == 1
    assert pending(door, delivered) == [0, 1, 2, 4, 5, 6, 7]


def test_it_takes_many_offsets_in_any_order(door: Door, delivered: str) -> None:
    """TACK, 1st form: "offset ... offset"."""
    assert door.ack(delivered, "g", 6, 0, 3) == 3
    assert pending(door, delivered) == [1, 2, 4, 5, 7]


def test_it_takes_a_range_with_both_ends_inclusive(door: Door, delivered: str) -> None:
    """TACK, 2nd form: start_offset-end_offset."""
    assert door.ack(delivered, "g", range(2, 6)) == 4  # 2-5 on the wire
    assert pending(door, delivered) == [0, 1, 6, 7]


def test_it_takes_a_range_of_one(door: Door, delivered: str) -> None:
    """TACK, 2nd form: both ends may be the same."""
    assert door.ack(delivered, "g", range(2, 3)) == 1
    assert pending(door, delivered) == [0, 1, 3, 4, 5, 6, 7]


def test_it_takes_both_mixed_and_overlapping(door: Door, delivered: str) -> None:
    """docs/streams.md: mixed; what is named twice counts once."""
    assert door.ack(delivered, "g", 7, range(1, 4), 3, range(2, 6), 7) == 6
    assert pending(door, delivered) == [0, 6]


def test_it_counts_only_entries_that_were_pending(door: Door, delivered: str) -> None:
    """docs/streams.md: neither acknowledged ones, nor those not delivered, nor those to come."""
    assert door.ack(delivered, "g", range(0, 2)) == 2
    assert door.ack(delivered, "g", range(0, 3)) == 1
    assert door.ack(delivered, "g", 0, 8, 9, 10, 1 << 40) == 0
    assert door.ack(delivered, "g", range(0, 1 << 40)) == 5
    assert pending(door, delivered) == []


def test_what_was_not_delivered_is_not_acknowledged_in_advance(door: Door, delivered: str) -> None:
    """docs/streams.md: an acknowledgement is for a delivery."""
    assert door.ack(delivered, "g", 8, 9) == 0
    assert [entry.offset for entry in door.read_group(delivered, "g", 9)] == [8, 9]


def test_it_acknowledges_for_its_group_alone(door: Door, delivered: str) -> None:
    """TACK names the group."""
    door.read_group(delivered, "other", 8, retry_ms=NEVER_MS)
    assert door.ack(delivered, "g", range(0, 8)) == 8
    assert door.group_info(delivered, "other").pending == 8


def test_unknown_streams_and_groups_have_nothing_pending(door: Door, full: str, name: str) -> None:
    """docs/streams.md: 0, and nothing is made."""
    assert door.ack(full, "nobody", 0) == 0
    assert door.ack(f"{name}-none", "g", 0, range(1, 9)) == 0
    assert door.groups(full) == []
    assert f"{name}-none" not in door.keys("*")


def test_ranges_reach_across_blocks_and_pages(door: Door, name: str) -> None:
    """TACK, 2nd form: thousands at once."""
    door.write_many(name, numbered(5000))
    door.group_create(name, "g", max_pending=5000)
    assert len(door.read_group(name, "g", 5000, retry_ms=NEVER_MS)) == 5000
    assert door.ack(name, "g", range(10, 4990), 4995) == 4981
    info = door.group_info(name, "g")
    assert (info.pending, info.ack_offset) == (19, 0)
    assert door.ack(name, "g", range(0, 10)) == 10
    assert door.group_info(name, "g").ack_offset == 4990


def test_the_words_of_a_range(resp: RespDoor, name: str) -> None:
    """TACK, both forms as they are written."""
    resp.write_many(name, numbered(10))
    resp.read_group(name, "g", 10, retry_ms=NEVER_MS)
    assert resp.ask("TACK", name, "g", "2-4") == 3
    assert resp.ask("TACK", name, "g", 0, "5-5", "8-100", 7) == 5
    assert resp.ask("TACK", name, "g", "0-1000000000000") == 2
