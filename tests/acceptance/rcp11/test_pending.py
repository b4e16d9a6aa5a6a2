"""RCP 11, "How messages pending for acknowledged are handled", over every door.

Here redelivery is not stopped by the first entry that is not due: the RCP's own trap (streams.md).
"""

from __future__ import annotations

import pytest

from acceptance.rcp11.doors import (
    NEVER_MS,
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Door,
    Entry,
    blocked,
    expected,
    numbered,
    offsets_of,
    until,
)
from penstock import InvalidError


def test_last_offset_is_the_last_offset_provided(door: Door, full: str) -> None:
    """struct client_group: before the first delivery it is the one before."""
    door.group_create(full, "g", start=4)
    assert door.group_info(full, "g").last_offset == 3
    door.read_group(full, "g", 3)
    assert door.group_info(full, "g").last_offset == 6
    door.read_group(full, "g", 99)
    assert door.group_info(full, "g").last_offset == 9


def test_everything_below_ack_offset_is_acknowledged_also_out_of_order(
    door: Door, full: str
) -> None:
    """struct client_group and "clients acknowledge messages out of order"."""
    door.read_group(full, "g", 6, retry_ms=NEVER_MS)
    edges = []
    for offset in (2, 0, 5, 1, 4, 3):
        assert door.ack(full, "g", offset) == 1
        edges.append(door.group_info(full, "g").ack_offset)
    # 5 and everything before it: the next to come is 6.
    assert edges == [0, 1, 1, 3, 3, 6]


def test_without_pending_messages_ack_offset_is_where_the_group_goes_on(
    door: Door, full: str
) -> None:
    """struct client_group: what need not be acknowledged holds nothing back."""
    door.read_group(full, "g", 4)
    assert door.group_info(full, "g").ack_offset == 4
    door.read_group(full, "g", 1, retry_ms=NEVER_MS)
    door.read_group(full, "g", 3)
    assert door.group_info(full, "g").ack_offset == 4
    door.ack(full, "g", 4)
    assert door.group_info(full, "g").ack_offset == 8


def test_pending_count_is_the_number_of_pending_messages(door: Door, full: str) -> None:
    """struct client_group."""
    door.read_group(full, "g", 7, retry_ms=NEVER_MS)
    assert door.group_info(full, "g").pending == 7
    door.ack(full, "g", range(1, 4))
    assert door.group_info(full, "g").pending == 4


def test_for_each_unacknowledged_message_there_is_an_entry(door: Door, full: str) -> None:
    """struct pending_messages: offset, when it comes again, when it is given up."""
    door.read_group(full, "g", 2, retry_ms=NEVER_MS, expire_ms=3 * NEVER_MS)
    first, second = door.group_pending(full, "g")
    assert (first.offset, second.offset) == (0, 1)
    assert first.expire_ms is not None
    assert first.expire_ms - first.retry_ms == 2 * NEVER_MS
    assert (first.deliveries, second.deliveries) == (1, 1)


def test_entries_are_created_only_with_both_group_and_retry(door: Door, full: str) -> None:
    """Below the structs: neither a plain read nor a group without retry makes one."""
    door.group_create(full, "g")
    door.read(full, 0, 10)
    door.read_group(full, "g", 3)
    assert door.group_info(full, "g").pending == 0
    door.read_group(full, "g", 3, retry_ms=NEVER_MS)
    assert door.group_info(full, "g").pending == 3


def test_redelivery_updates_the_retry_time(door: Door, name: str) -> None:
    """ "As we re-deliver things with TREAD": with the retry time of that TREAD."""
    door.write_many(name, numbered(1))
    door.read_group(name, "g", 1, retry_ms=10)
    before = door.group_pending(name, "g")[0]
    door.read_group(name, "g", 1, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
    after = door.group_pending(name, "g")[0]
    assert after.retry_ms >= before.retry_ms + NEVER_MS
    assert door.read_group(name, "g", 1) == []


def test_an_entry_that_is_not_due_holds_nothing_up(door: Door, full: str) -> None:
    """The RCP stops scanning at the first entry that is not to be retried; ours does not."""
    assert offsets_of(door.read_group(full, "g", 2, retry_ms=NEVER_MS)) == [0, 1]
    assert len(door.read_group(full, "g", 8, retry_ms=20)) == 8
    # Neither those in front hold them up, nor those that went before and are not due any more.
    for offsets in ([2, 3, 4], [5, 6, 7], [8, 9]):
        found = door.read_group(full, "g", 3, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
        assert offsets_of(found) == offsets


def test_redelivery_keeps_the_pending_order(door: Door, full: str) -> None:
    """docs/streams.md: in the order of their offsets, whichever fell due first."""
    door.read_group(full, "g", 3, retry_ms=60)
    door.read_group(full, "g", 7, retry_ms=1)
    until(lambda: _now_ms(door, full) > door.group_pending(full, "g")[0].retry_ms)
    assert offsets_of(door.read_group(full, "g", 10)) == list(range(10))


def _now_ms(door: Door, name: str) -> int:
    """The time of the broker: that of an entry written now."""
    clock = f"{name}-clock"
    (entry,) = door.read_full(clock, door.write(clock, b"", b""), 1)
    assert entry is not None
    return entry.time_ms


def test_due_retries_come_before_new_entries(door: Door, full: str) -> None:
    """docs/streams.md; and what is left of the count is filled with new ones."""
    door.read_group(full, "g", 3, retry_ms=1)
    until(lambda: _now_ms(door, full) > door.group_pending(full, "g")[0].retry_ms)
    assert offsets_of(door.read_group(full, "g", 2, retry_ms=NEVER_MS)) == [0, 1]
    assert offsets_of(door.read_group(full, "g", 4, retry_ms=NEVER_MS)) == [2, 3, 4, 5]


# ---- the maximum size -------------------------------------------------------------------------


def test_a_full_pending_list_stops_new_messages(door: Door, full: str) -> None:
    """ "A maximum size which is user-configurable": with and without retry."""
    door.group_create(full, "g", max_pending=3)
    assert door.group_info(full, "g").max_pending == 3
    assert offsets_of(door.read_group(full, "g", 10, retry_ms=NEVER_MS)) == [0, 1, 2]
    assert door.read_group(full, "g", 10, retry_ms=NEVER_MS) == []
    assert door.read_group(full, "g", 10) == []
    assert door.group_info(full, "g").pending == 3


def test_a_full_pending_list_does_not_stop_retries(door: Door, full: str) -> None:
    """ "So that we wait for the messages in our pending list to be retried again"."""
    door.group_create(full, "g", max_pending=3)
    door.read_group(full, "g", 10, retry_ms=20)
    again = door.read_group(full, "g", 10, retry_ms=20, block_ms=PATIENCE_MS)
    assert again == expected(range(3))


def test_a_full_list_of_one_group_does_not_stop_another(door: Door, full: str) -> None:
    """The list is the group's."""
    door.group_create(full, "g", max_pending=1)
    door.read_group(full, "g", 10, retry_ms=NEVER_MS)
    assert door.read_group(full, "other", 10, retry_ms=NEVER_MS) == expected(range(10))


def test_an_acknowledgement_makes_room_for_as_many_new_messages(door: Door, full: str) -> None:
    """The maximum is about pending messages, not about all that were ever delivered."""
    door.group_create(full, "g", max_pending=3)
    door.read_group(full, "g", 10, retry_ms=NEVER_MS)
    assert door.ack(full, "g", 1, 2) == 2
    assert offsets_of(door.read_group(full, "g", 10, retry_ms=NEVER_MS)) == [3, 4]


def test_tread_may_block_while_there_are_new_messages_until_a_tack(door: Door, full: str) -> None:
    """Last paragraph: TACK brings the list within its limits and unblocks; TWRITE alone cannot."""
    door.group_create(full, "g", max_pending=2)
    door.read_group(full, "g", 2, retry_ms=NEVER_MS)
    reader = blocked(
        door, lambda: door.read_group(full, "g", 5, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
    )
    door.write_many(full, numbered(1, 10))
    assert not reader.done()
    assert door.waiting() == 1
    door.ack(full, "g", 0)
    assert offsets_of(reader.result(PATIENCE_SECONDS)) == [2]


def test_tread_unblocks_on_a_twrite_when_there_is_room(door: Door, full: str) -> None:
    """Last paragraph: within the limits a write is enough, and fills what room there is."""
    door.group_create(full, "g", start="new", max_pending=2)
    reader = blocked(
        door, lambda: door.read_group(full, "g", 5, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
    )
    door.write_many(full, numbered(5, 10))
    assert offsets_of(reader.result(PATIENCE_SECONDS)) == [10, 11]


def test_an_acknowledgement_wakes_as_many_readers_as_it_makes_room_for(
    door: Door, full: str
) -> None:
    """docs/streams.md: acks wake readers, in turn."""
    door.group_create(full, "g", max_pending=4)
    door.read_group(full, "g", 4, retry_ms=NEVER_MS)
    readers = [
        blocked(
            door, lambda: door.read_group(full, "g", 1, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
        )
        for _ in range(3)
    ]
    door.ack(full, "g", 0, 3)
    shares = [offsets_of(reader.result(PATIENCE_SECONDS)) for reader in readers[:2]]
    assert shares == [[4], [5]]
    assert not readers[2].done()
    door.ack(full, "g", 1)
    assert offsets_of(readers[2].result(PATIENCE_SECONDS)) == [6]


def test_expired_messages_make_room_too(door: Door, full: str) -> None:
    """docs/streams.md, the second trap: a dead consumer does not stall its group for ever."""
    door.group_create(full, "g", max_pending=2)
    door.read_group(full, "g", 2, retry_ms=NEVER_MS, expire_ms=50)
    reader = blocked(
        door,
        lambda: door.read_group(full, "g", 5, retry_ms=NEVER_MS, block_ms=PATIENCE_MS),
        surely=False,
    )
    assert offsets_of(reader.result(PATIENCE_SECONDS)) == [2, 3]


def test_a_dead_consumer_with_a_full_list_does_not_stall_its_group(door: Door, full: str) -> None:
    """docs/streams.md, the second trap: others get its messages when they are due, and go on."""
    door.group_create(full, "g", max_pending=4)
    door.read_group(full, "g", 4, retry_ms=30)  # and never heard of again
    seen: list[int] = []
    while len(seen) < 10:
        found = door.read_group(full, "g", 2, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
        assert found
        seen += [entry.offset for entry in found]
        door.ack(full, "g", *(entry.offset for entry in found))
    assert seen == list(range(10))
    assert door.group_info(full, "g").ack_offset == 10


def test_the_list_holds_a_thousand_unless_told(door: Door, name: str) -> None:
    """The default of the maximum."""
    door.write_many(name, numbered(1100))
    assert len(door.read_group(name, "g", 2000, retry_ms=NEVER_MS)) == 1000
    assert door.read_group(name, "g", 1, retry_ms=NEVER_MS) == []
    assert door.group_info(name, "g").max_pending == 1000


@pytest.mark.parametrize("max_pending", [0, -1])
def test_the_maximum_is_at_least_one(door: Door, full: str, max_pending: int) -> None:
    """A group that may have nothing pending could never deliver."""
    with pytest.raises(InvalidError):
        door.group_create(full, "g", max_pending=max_pending)
    assert door.groups(full) == []


# ---- expired entries are never silently gone --------------------------------------------------


def test_expired_messages_are_moved_to_the_dead_stream(door: Door, name: str) -> None:
    """docs/streams.md: with tag and data, in their order, once; the group names the stream."""
    dead = f"{name}-dead"
    door.group_create(name, "g", dead=dead)
    assert door.group_info(name, "g").dead == dead
    door.write_many(name, numbered(5))
    door.read_group(name, "g", 5, retry_ms=NEVER_MS, expire_ms=30)
    door.ack(name, "g", 2)
    until(lambda: door.length(dead) == 4)
    found = [entry for entry in door.read(dead, 0, 10) if entry is not None]
    assert [entry[1:] for entry in found] == [entry[1:] for entry in expected(range(5)) if
                                              entry.offset != 2]  # fmt: skip
    info = door.group_info(name, "g")
    assert (info.pending, info.expired, info.ack_offset) == (0, 4, 5)


def test_a_reader_can_wait_at_the_dead_stream(door: Door, name: str) -> None:
    """docs/streams.md: it is a stream like any other; the move wakes its readers."""
    dead = f"{name}-dead"
    door.group_create(name, "g", dead=dead)
    door.write(name, b"t", b"x")
    door.read_group(name, "g", 1, retry_ms=NEVER_MS, expire_ms=100)
    reader = blocked(door, lambda: door.read(dead, 0, 1, block_ms=PATIENCE_MS), surely=False)
    assert reader.result(PATIENCE_SECONDS) == [Entry(0, b"t", b"x")]


def test_a_group_cannot_bury_its_messages_in_their_own_stream(door: Door, name: str) -> None:
    """docs/streams.md, DEAD: they would come again for ever."""
    with pytest.raises(InvalidError):
        door.group_create(name, "g", dead=name)
    assert name not in door.keys("*")
