"""RCP 11, "BLOCK <milliseconds>", over every door. What a group adds is in test_group.py."""

from __future__ import annotations

import pytest

from acceptance.rcp11.doors import (
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Door,
    blocked,
    expected,
    numbered,
    until,
)
from acceptance.rcp11.resp_door import RespDoor
from integration.resp_server import Wire


def test_it_blocks_if_there_are_no_messages_from_the_offset_on(door: Door, full: str) -> None:
    """BLOCK, 1st sentence: `blocked` sees that it waits."""
    reader = blocked(door, lambda: door.read(full, 10, 1, block_ms=PATIENCE_MS))
    door.write_many(full, numbered(1, 10))
    assert reader.result(PATIENCE_SECONDS) == expected(range(10, 11))


def test_it_does_not_block_if_there_is_one_message_greater_or_equal(door: Door, full: str) -> None:
    """BLOCK, 1st sentence: fewer than count are enough."""
    assert door.read(full, 9, 100, block_ms=None) == expected(range(9, 10))


def test_it_unblocks_as_soon_as_messages_are_available_with_such_an_offset(
    door: Door, full: str
) -> None:
    """BLOCK, 1st sentence: with all that one write brought, up to count."""
    few = blocked(door, lambda: door.read(full, 10, 2, block_ms=PATIENCE_MS))
    many = blocked(door, lambda: door.read(full, 10, 100, block_ms=PATIENCE_MS))
    door.write_many(full, numbered(5, 10))
    assert few.result(PATIENCE_SECONDS) == expected(range(10, 12))
    assert many.result(PATIENCE_SECONDS) == expected(range(10, 15))


def test_a_client_reads_messages_and_blocks_again_for_new_ones(door: Door, name: str) -> None:
    """BLOCK, 2nd sentence: the loop of every consumer."""
    for n in range(5):
        reader = blocked(door, lambda n=n: door.read(name, n, 10, block_ms=PATIENCE_MS))  # type: ignore[misc]
        door.write_many(name, numbered(1, n))
        assert reader.result(PATIENCE_SECONDS) == expected(range(n, n + 1))


def test_a_client_ignores_the_next_n_messages_and_blocks_for_a_later_offset(
    door: Door, full: str
) -> None:
    """BLOCK, 2nd paragraph: old_offset + N; what lies before it wakes nobody."""
    reader = blocked(door, lambda: door.read(full, 9 + 5, 10, block_ms=PATIENCE_MS))
    for n in range(10, 14):
        door.write_many(full, numbered(1, n))
        assert not reader.done()
        assert door.waiting() == 1
    door.write_many(full, numbered(1, 14))
    assert reader.result(PATIENCE_SECONDS) == expected(range(14, 15))


def test_one_large_write_serves_readers_of_different_offsets(door: Door, full: str) -> None:
    """BLOCK: a write wakes exactly the readers that it can serve."""
    readers = {
        offset: blocked(door, lambda o=offset: door.read(full, o, 1, block_ms=PATIENCE_MS))  # type: ignore[misc]
        for offset in (12, 10, 14, 13, 11)
    }
    door.write_many(full, numbered(3, 10))
    for offset in (10, 11, 12):
        assert readers.pop(offset).result(PATIENCE_SECONDS) == expected(range(offset, offset + 1))
    assert door.waiting() == 2
    door.write_many(full, numbered(2, 13))
    for offset, reader in readers.items():
        assert reader.result(PATIENCE_SECONDS) == expected(range(offset, offset + 1))


def test_a_block_that_ran_out_is_an_empty_array(door: Door, full: str, name: str) -> None:
    """docs/streams.md: nothing there when the time is over."""
    assert door.read(full, 10, 5, block_ms=20) == []
    assert door.read(f"{name}-none", 0, 5, block_ms=20) == []
    assert door.read_group(full, "g", 5, start="new", block_ms=20) == []
    assert door.read_group(f"{name}-none", "g", 5, block_ms=20) == []


def test_block_0_waits_for_ever(door: Door, full: str) -> None:
    """docs/streams.md: until there is something; in Python that is math.inf."""
    reader = blocked(door, lambda: door.read(full, 10, 1, block_ms=None))
    group = blocked(door, lambda: door.read_group(full, "g", 1, block_ms=None, start="new"))
    door.write_many(full, numbered(1, 10))
    assert reader.result(PATIENCE_SECONDS) == expected(range(10, 11))
    assert group.result(PATIENCE_SECONDS) == expected(range(10, 11))


def test_with_block_a_stream_that_does_not_exist_is_waited_for(door: Door, name: str) -> None:
    """docs/streams.md: for its first entry, or for a later one."""
    first = blocked(door, lambda: door.read(name, 0, 10, block_ms=PATIENCE_MS))
    third = blocked(door, lambda: door.read(name, 2, 10, block_ms=PATIENCE_MS))
    group = blocked(door, lambda: door.read_group(name, "g", 10, block_ms=PATIENCE_MS))
    door.write_many(name, numbered(2))
    assert first.result(PATIENCE_SECONDS) == expected(range(2))
    assert group.result(PATIENCE_SECONDS) == expected(range(2))
    assert not third.done()
    door.write_many(name, numbered(1, 2))
    assert third.result(PATIENCE_SECONDS) == expected(range(2, 3))


def test_a_new_group_that_waits_for_new_entries_gets_the_first_of_a_stream(
    door: Door, name: str
) -> None:
    """docs/streams.md: whatever is written after it began to wait is new to it."""
    reader = blocked(
        door, lambda: door.read_group(name, "g", 10, block_ms=PATIENCE_MS, start="new")
    )
    door.write_many(name, numbered(2))
    assert reader.result(PATIENCE_SECONDS) == expected(range(2))


def test_a_new_group_that_waits_gets_them_also_where_the_stream_was_looked_for_before(
    door: Door, name: str
) -> None:
    """docs/streams.md: the same, when it is known already that there is no such stream."""
    assert door.read(name, 0, 1) == []
    reader = blocked(door, lambda: door.read_group(name, "g", 10, block_ms=500, start="new"))
    door.write_many(name, numbered(2))
    assert reader.result(PATIENCE_SECONDS) == expected(range(2))


@pytest.mark.parametrize("known_missing", [False, True])
@pytest.mark.parametrize("block_ms", [0, 20])
def test_a_new_group_that_looked_before_the_first_entry_gets_it_with_its_next_look(
    door: Door, name: str, block_ms: int, known_missing: bool
) -> None:
    """docs/streams.md: FROM new is where the stream ended at the group's first look."""
    if known_missing:
        assert door.read(name, 0, 1) == []
    assert door.read_group(name, "g", 10, block_ms=block_ms, start="new") == []
    door.write_many(name, numbered(2))
    assert door.read_group(name, "g", 10, start="new") == expected(range(2))


def test_a_new_group_that_waits_does_not_bring_back_a_stream_that_is_deleted(
    door: Door, name: str
) -> None:
    """docs/streams.md: it is made once, by the first look."""
    reader = blocked(
        door, lambda: door.read_group(name, "g", 10, block_ms=PATIENCE_MS, start="new")
    )
    assert door.delete(name)
    assert name not in door.keys("*")
    door.write_many(name, numbered(2))
    assert reader.result(PATIENCE_SECONDS) == expected(range(2))


def test_a_count_of_0_never_blocks(door: Door, full: str) -> None:
    """BLOCK waits for messages; who wants none has nothing to wait for."""
    assert door.read(full, 10, 0, block_ms=None) == []
    assert door.read_group(full, "g", 0, block_ms=None) == []


def test_an_evicted_offset_does_not_block(door: Door, full: str) -> None:
    """BLOCK waits for what is not written yet; what is gone is told at once, as NULL."""
    door.evict(full, keep=0)
    assert door.read(full, 8, 10, block_ms=None) == [None, None]


def test_a_reader_waits_on_when_the_stream_is_deleted(door: Door, full: str) -> None:
    """BLOCK: the name counts; the stream that comes after it may serve the reader."""
    reader = blocked(door, lambda: door.read(full, 10, 1, block_ms=PATIENCE_MS))
    door.delete(full)
    door.write_many(full, numbered(10))
    assert not reader.done()
    door.write_many(full, numbered(1, 10))
    assert reader.result(PATIENCE_SECONDS) == expected(range(10, 11))


def test_a_reader_of_a_group_waits_on_when_the_stream_is_deleted(door: Door, full: str) -> None:
    """BLOCK with GROUP: the group of the stream that comes after it begins anew."""
    door.read_group(full, "g", 100)
    reader = blocked(door, lambda: door.read_group(full, "g", 100, block_ms=PATIENCE_MS))
    door.delete(full)
    assert not reader.done()
    door.write_many(full, numbered(3))
    assert reader.result(PATIENCE_SECONDS) == expected(range(3))


def test_a_reader_that_is_gone_takes_nothing_with_it(resp: RespDoor, name: str) -> None:
    """BLOCK and GROUP: what comes after a client hung up goes to the next one."""
    resp.write_many(name, numbered(1))
    resp.group_create(name, "g", start="new")
    port: int = resp.client.get_connection_kwargs()["port"]
    with Wire(port) as gone:
        before = resp.waiting()
        gone.words(b"TREAD", name.encode(), b"0", b"9", b"BLOCK", b"0", b"GROUP", b"g")
        until(lambda: resp.waiting() == before + 1)
    until(lambda: resp.waiting() == before)
    reader = blocked(resp, lambda: resp.read_group(name, "g", 9, block_ms=PATIENCE_MS))
    resp.write_many(name, numbered(1, 1))
    assert reader.result(PATIENCE_SECONDS) == expected(range(1, 2))
