"""RCP 11, "TWRITE command", over every door."""

from __future__ import annotations

import pytest

from acceptance.rcp11.doors import Door, Entry, expected, numbered
from acceptance.rcp11.resp_door import RespDoor
from penstock import InvalidError


def test_it_creates_the_stream_if_there_is_none(door: Door, name: str) -> None:
    """TWRITE, 1st sentence: a new stream at the key, unless it exists."""
    assert name not in door.keys("*")
    assert door.info(name).created_ms is None
    door.write(name, b"t", b"x")
    assert name in door.keys("*")
    created_ms = door.info(name).created_ms
    assert created_ms is not None
    door.write(name, b"t", b"y")
    assert door.info(name).created_ms == created_ms


def test_it_adds_the_entry_at_the_end_of_the_log(door: Door, full: str) -> None:
    """TWRITE, 1st sentence: the entry becomes the last one."""
    door.write(full, b"new", b"entry")
    assert door.read(full, 9, 10) == [*expected(range(9, 10)), Entry(10, b"new", b"entry")]


def test_it_returns_the_offset_at_which_the_entry_was_stored(door: Door, name: str) -> None:
    """TWRITE, 2nd sentence."""
    for n in range(5):
        offset = door.write(name, b"t", b"x%d" % n)
        assert offset == n
        assert door.read(name, offset, 1) == [Entry(n, b"t", b"x%d" % n)]


def test_the_complex_form_takes_options_and_several_entries(door: Door, name: str) -> None:
    """TWRITE, "two forms": ENTRIES with many entries; the reply tells the first and the last."""
    assert door.write_many(name, numbered(3)) == range(3)
    assert door.write_many(name, numbered(4, 3), backlog=1000) == range(3, 7)
    assert door.read(name, 0, 100) == expected(range(7))


def test_the_complex_form_takes_a_single_entry_too(door: Door, name: str) -> None:
    """TWRITE, "two forms": `ENTRIES tag entry` is the shortest one."""
    assert door.write_many(name, numbered(1)) == range(1)
    assert door.read(name, 0, 100) == expected(range(1))


def test_both_forms_write_to_the_same_log(door: Door, name: str) -> None:
    """TWRITE, "two forms": one stream, one sequence of offsets."""
    door.write(name, b"t0", b"d0")
    door.write_many(name, numbered(2, 1))
    assert door.write(name, b"t3", b"d3") == 3
    assert door.read(name, 0, 10) == expected(range(4))


def test_a_batch_without_entries_is_refused_and_creates_nothing(door: Door, name: str) -> None:
    """TWRITE, the syntax: at least one entry follows ENTRIES."""
    if door.kind == "resp":
        with pytest.raises(InvalidError):
            door.write_many(name, [])
    else:
        # In Python an empty list is a list: nothing is written.
        assert len(door.write_many(name, [])) == 0
    assert name not in door.keys("*")


@pytest.mark.parametrize("backlog", [None, 0, 1])
def test_a_batch_without_entries_changes_nothing_its_options_neither(
    door: Door, name: str, backlog: int | None
) -> None:
    """TWRITE, BACKLOG: old data goes with a write, and this is none."""
    door.write_many(name, numbered(3))
    if door.kind == "resp":
        with pytest.raises(InvalidError):
            door.write_many(name, [], backlog=backlog)
    else:
        assert door.write_many(name, [], backlog=backlog) == range(3, 3)
    assert door.read(name, 0, 10) == expected(range(3))
    assert door.info(name).first == 0


@pytest.mark.parametrize("backlog", [0, 1, 999, 1000, 1001, 2500, 3502, 3503, 3504, 100_000])
def test_backlog_deletes_old_data_so_that_at_least_count_items_remain(
    door: Door, name: str, backlog: int
) -> None:
    """TWRITE, BACKLOG: what remains are the newest, at their offsets."""
    door.write_many(name, numbered(3500))
    assert door.write_many(name, numbered(3, 3500), backlog=backlog) == range(3500, 3503)
    info = door.info(name)
    assert info.length >= min(backlog, 3503)
    assert (info.last, info.first) == (3502, 3503 - info.length)
    assert door.read(name, info.first, 5000) == expected(range(info.first, 3503))


def test_backlog_may_take_more_than_count_but_less_than_a_block_more(door: Door, name: str) -> None:
    """TWRITE, BACKLOG: eviction may be per block; a block is 1000 entries."""
    for start in range(0, 6000, 500):
        door.write_many(name, numbered(500, start), backlog=700)
        length = door.length(name)
        assert min(700, start + 500) <= length < 700 + 1000
    assert door.read(name, 5300, 1000) == expected(range(5300, 6000))


def test_backlog_of_more_than_there_is_deletes_nothing(door: Door, full: str) -> None:
    """TWRITE, BACKLOG: at least that many remain."""
    door.write_many(full, numbered(1, 10), backlog=11)
    assert door.read(full, 0, 100) == expected(range(11))


def test_backlog_does_not_outlive_its_command(door: Door, name: str) -> None:
    """TWRITE, BACKLOG is an option of one command, not of the stream (that is TCONFIG)."""
    door.write_many(name, numbered(3000), backlog=10)
    length = door.length(name)
    assert length < 1010
    door.write_many(name, numbered(3000, 3000))
    assert door.length(name) == length + 3000


def test_exactly_three_words_are_the_simple_form_whatever_they_are(
    resp: RespDoor, name: str
) -> None:
    """TWRITE, the syntax: a tag may be spelt like an option."""
    for n, tag in enumerate((b"ENTRIES", b"BACKLOG", b"PRODUCER", b"META", b"entries")):
        assert resp.ask("TWRITE", name, tag, b"x") == n
        assert resp.read(name, n, 1) == [Entry(n, tag, b"x")]


def test_words_behind_entries_are_entries_whatever_they_are(resp: RespDoor, name: str) -> None:
    """TWRITE, the syntax: nothing behind ENTRIES is an option."""
    assert resp.ask("TWRITE", name, "ENTRIES", "BACKLOG", "1", "ENTRIES", "x") == [0, 1]
    assert resp.read(name, 0, 9) == [Entry(0, b"BACKLOG", b"1"), Entry(1, b"ENTRIES", b"x")]


def test_the_reply_of_the_simple_form_is_a_number_and_of_the_other_a_pair(
    resp: RespDoor, name: str
) -> None:
    """docs/streams.md, table: offset, or [first, last]."""
    assert resp.ask("TWRITE", name, "t", "x") == 0
    assert resp.ask("TWRITE", name, "ENTRIES", "t", "x") == [1, 1]
    assert resp.ask("TWRITE", name, "BACKLOG", 9, "ENTRIES", "t", "x", "t", "y") == [2, 3]
