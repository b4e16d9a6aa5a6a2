"""RCP 11, "TEVICT command", over every door. Eviction is exact here: the RCP may keep a block."""

from __future__ import annotations

import pytest

from acceptance.rcp11.doors import NEVER_MS, Door, expected, numbered, offsets_of
from acceptance.rcp11.resp_door import RespDoor


@pytest.mark.parametrize(
    ("up_to", "removed"), [(0, 1), (4, 5), (8, 9), (9, 10), (10, 10), (1 << 62, 10)]
)
def test_a_positive_offset_removes_entries_less_or_equal(
    door: Door, full: str, up_to: int, removed: int
) -> None:
    """TEVICT, 2nd sentence. Exactly those, also in the active block; the reply counts them."""
    assert door.evict(full, up_to=up_to) == removed
    assert door.info(full)[:3] == (removed, 9, 10 - removed)
    assert door.read(full, 0, 100) == [None] * removed + expected(range(removed, 10))


@pytest.mark.parametrize(
    ("keep", "removed"), [(0, 10), (1, 9), (7, 3), (9, 1), (10, 0), (11, 0), (1 << 62, 0)]
)
def test_a_negative_number_retains_that_many(
    door: Door, full: str, keep: int, removed: int
) -> None:
    """TEVICT, 3rd sentence: at least, and here not one more."""
    assert door.evict(full, keep=keep) == removed
    assert door.info(full)[:3] == (removed, 9, 10 - removed)
    assert door.read(full, 0, 100) == [None] * removed + expected(range(removed, 10))


@pytest.mark.parametrize("up_to", [0, 998, 999, 1000, 1001, 1500, 2999, 3498, 3499])
def test_it_is_exact_wherever_the_offset_lies_in_its_block(
    door: Door, name: str, up_to: int
) -> None:
    """TEVICT, 2nd sentence: the RCP may leave data of the active block; nothing is left here."""
    door.write_many(name, numbered(3500))
    assert door.evict(name, up_to=up_to) == up_to + 1
    assert door.length(name) == 3499 - up_to
    low = max(0, up_to - 1)
    gone: list[None] = [None] * (up_to + 1 - low)
    assert door.read(name, low, 3) == (gone + expected(range(up_to + 1, 3500)))[:3]


def test_what_is_evicted_is_evicted_once(door: Door, full: str) -> None:
    """TEVICT: the reply counts what this command removed."""
    assert door.evict(full, up_to=4) == 5
    assert door.evict(full, up_to=4) == 0
    assert door.evict(full, up_to=2) == 0
    assert door.evict(full, keep=5) == 0
    assert door.evict(full, up_to=6) == 2


def test_evicting_from_a_stream_that_does_not_exist_removes_nothing(door: Door, name: str) -> None:
    """TEVICT: and makes nothing."""
    assert door.evict(name, up_to=10) == 0
    assert door.evict(name, keep=0) == 0
    assert name not in door.keys("*")


def test_minus_zero_is_negative(resp: RespDoor, name: str) -> None:
    """TEVICT: 0 is an offset, -0 retains nothing."""
    resp.write_many(name, numbered(10))
    assert resp.ask("TEVICT", name, "0") == 1
    assert resp.ask("TEVICT", name, "-0") == 9


def test_writing_goes_on_behind_what_was_evicted(door: Door, full: str) -> None:
    """TEVICT removes old data and nothing else."""
    door.evict(full, keep=0)
    assert door.write_many(full, numbered(2, 10)) == range(10, 12)
    assert door.read(full, 10, 9) == expected(range(10, 12))


def test_groups_skip_evicted_entries_and_count_them(door: Door, full: str) -> None:
    """docs/streams.md: a group goes on with the first entry that is there."""
    door.read_group(full, "g", 2)
    door.evict(full, up_to=5)
    assert offsets_of(door.read_group(full, "g", 2)) == [6, 7]
    assert door.group_info(full, "g").skipped == 4


def test_evicted_pending_entries_leave_the_list_and_are_counted(door: Door, full: str) -> None:
    """docs/streams.md: nobody can deliver them again."""
    door.read_group(full, "g", 6, retry_ms=NEVER_MS)
    door.ack(full, "g", 1)
    door.evict(full, up_to=3)
    assert offsets_of(door.read_group(full, "g", 1, retry_ms=NEVER_MS)) == [6]
    info = door.group_info(full, "g")
    assert (info.pending, info.skipped, info.ack_offset) == (3, 3, 4)
    assert [pending.offset for pending in door.group_pending(full, "g")] == [4, 5, 6]


def test_eviction_makes_room_in_a_full_pending_list(door: Door, full: str) -> None:
    """docs/streams.md: entries that left the list do not fill it."""
    door.group_create(full, "g", max_pending=3)
    assert len(door.read_group(full, "g", 10, retry_ms=NEVER_MS)) == 3
    assert door.read_group(full, "g", 10, retry_ms=NEVER_MS) == []
    door.evict(full, up_to=1)
    assert offsets_of(door.read_group(full, "g", 10, retry_ms=NEVER_MS)) == [3, 4]
