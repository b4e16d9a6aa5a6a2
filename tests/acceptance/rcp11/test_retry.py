"""RCP 11, "RETRY <retry-ms> <expire-ms>", over every door."""

from __future__ import annotations

import time

import pytest

from acceptance.rcp11.doors import (
    NEVER_MS,
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Door,
    blocked,
    expected,
    numbered,
    offsets_of,
    until,
)
from acceptance.rcp11.resp_door import RespDoor
from penstock import InvalidError


def test_a_retry_time_needs_a_group(resp: RespDoor, name: str) -> None:
    """RETRY, 1st sentence: "only if also a group name is specified"; without one an error."""
    resp.write_many(name, numbered(3))
    for words in (
        ("RETRY", 1000, 0),
        ("RETRY", 1000, 5000, "BLOCK", 1),
        ("WITHINFO", "RETRY", 1, 1),
    ):
        with pytest.raises(InvalidError):
            resp.ask("TREAD", name, 0, 1, *words)


def test_without_retry_nothing_has_to_be_acknowledged(door: Door, full: str) -> None:
    """RETRY, 1st sentence, from the other side: no retry time, no pending messages."""
    door.read_group(full, "g", 5)
    assert door.group_info(full, "g").pending == 0
    assert door.group_pending(full, "g") == []


def test_returned_messages_need_to_be_acknowledged(door: Door, full: str) -> None:
    """RETRY, 1st sentence: they are pending from now on."""
    door.read_group(full, "g", 3, retry_ms=NEVER_MS)
    assert door.group_info(full, "g").pending == 3
    assert [pending.offset for pending in door.group_pending(full, "g")] == [0, 1, 2]


def test_otherwise_they_are_provided_again_after_the_retry_time(door: Door, full: str) -> None:
    """RETRY, 1st sentence: not before; "or more" is allowed."""
    begin = time.monotonic()
    assert door.read_group(full, "g", 10, retry_ms=200) == expected(range(10))
    assert door.read_group(full, "g", 10, retry_ms=200, block_ms=PATIENCE_MS) == expected(range(10))
    # Two milliseconds for rounding, one at each end.
    assert time.monotonic() - begin >= 0.198


def test_they_are_not_provided_again_before_their_time(door: Door, full: str) -> None:
    """RETRY, 1st sentence: an hour has not passed."""
    assert len(door.read_group(full, "g", 10, retry_ms=NEVER_MS)) == 10
    assert door.read_group(full, "g", 10, retry_ms=1) == []
    assert door.read_group(full, "g", 10, retry_ms=1, block_ms=30) == []


def test_they_are_provided_to_clients_of_the_specified_group_only(door: Door, full: str) -> None:
    """RETRY, 1st sentence: "of the specified group"."""
    door.read_group(full, "a", 10, retry_ms=20)
    door.read_group(full, "b", 10, retry_ms=NEVER_MS)
    again = door.read_group(full, "a", 10, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
    assert again == expected(range(10))
    assert door.read_group(full, "b", 10) == []


def test_an_acknowledged_message_never_comes_again(door: Door, full: str) -> None:
    """RETRY, 2nd sentence: TACK is how it is done."""
    door.read_group(full, "g", 4, retry_ms=30)
    assert door.ack(full, "g", 0, 2) == 2
    again = door.read_group(full, "g", 2, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
    while len(again) < 2 or again[0].offset >= 4:  # new ones come while none is due
        again = door.read_group(full, "g", 2, retry_ms=NEVER_MS, block_ms=PATIENCE_MS)
    assert again == [expected(range(4))[1], expected(range(4))[3]]


def test_a_message_comes_again_and_again_until_it_is_acknowledged(door: Door, name: str) -> None:
    """RETRY, 1st sentence: each delivery waits for its acknowledgement."""
    door.write_many(name, numbered(1))
    for _ in range(4):
        found = door.read_group(name, "g", 1, retry_ms=10, block_ms=PATIENCE_MS)
        assert found == expected(range(1))
    assert door.group_pending(name, "g")[0].deliveries == 4
    assert door.ack(name, "g", 0) == 1
    assert door.read_group(name, "g", 1, block_ms=30) == []


def test_a_delivery_without_retry_ends_the_waiting_for_an_acknowledgement(
    door: Door, name: str
) -> None:
    """RETRY belongs to each delivery: the last one said that nobody has to acknowledge."""
    door.write_many(name, numbered(1))
    door.read_group(name, "g", 1, retry_ms=10)
    assert door.read_group(name, "g", 1, block_ms=PATIENCE_MS) == expected(range(1))
    assert door.group_info(name, "g").pending == 0


def test_after_the_expire_time_a_message_is_not_retained_in_the_pending_list(
    door: Door, full: str
) -> None:
    """RETRY, expire: it leaves the list by itself, and is counted."""
    door.read_group(full, "g", 3, retry_ms=NEVER_MS, expire_ms=30)
    until(lambda: door.group_info(full, "g").pending == 0)
    assert door.group_info(full, "g").expired == 3
    assert door.ack(full, "g", 0, 1, 2) == 0


def test_an_expired_message_is_not_delivered_again(door: Door, name: str) -> None:
    """RETRY, expire: given up, though a retry would be due."""
    door.write_many(name, numbered(2))
    door.read_group(name, "g", 2, retry_ms=40, expire_ms=30)
    until(lambda: door.group_info(name, "g").expired == 2)
    assert door.read_group(name, "g", 2, retry_ms=40, block_ms=60) == []


def test_the_time_to_live_counts_from_the_first_delivery(door: Door, name: str) -> None:
    """RETRY, expire: deliveries do not prolong it, or a message could live for ever."""
    door.write_many(name, numbered(1))
    door.read_group(name, "g", 1, retry_ms=10, expire_ms=NEVER_MS)
    first = door.group_pending(name, "g")[0]
    door.read_group(name, "g", 1, retry_ms=10, expire_ms=2 * NEVER_MS, block_ms=PATIENCE_MS)
    second = door.group_pending(name, "g")[0]
    assert (second.deliveries, second.expire_ms) == (2, first.expire_ms)


def test_an_expired_message_stays_in_the_stream(door: Door, full: str) -> None:
    """RETRY, expire: what is destroyed is the pending entry; readers and other groups have it."""
    door.read_group(full, "g", 10, retry_ms=NEVER_MS, expire_ms=20)
    until(lambda: door.group_info(full, "g").expired == 10)
    assert door.read(full, 0, 100) == expected(range(10))
    assert door.read_group(full, "other", 100) == expected(range(10))


def test_without_an_expire_time_a_message_is_retained_for_ever(door: Door, full: str) -> None:
    """docs/streams.md: 0 on the wire, nothing in Python."""
    door.read_group(full, "g", 2, retry_ms=NEVER_MS)
    assert [pending.expire_ms for pending in door.group_pending(full, "g")] == [None, None]


def test_a_due_retry_wakes_a_blocked_reader(door: Door, full: str) -> None:
    """RETRY with BLOCK: nobody writes, nobody acknowledges, time alone does it."""
    door.read_group(full, "g", 10, retry_ms=100)
    reader = blocked(
        door, lambda: door.read_group(full, "g", 10, block_ms=PATIENCE_MS), surely=False
    )
    assert reader.result(PATIENCE_SECONDS) == expected(range(10))


def test_due_retries_are_shared_out_in_turn(door: Door, name: str) -> None:
    """RETRY with BLOCK and GROUP: turns are the same for what comes again."""
    door.write_many(name, numbered(4))
    door.read_group(name, "g", 4, retry_ms=150)
    readers = [
        blocked(
            door,
            lambda: door.read_group(name, "g", 2, retry_ms=NEVER_MS, block_ms=PATIENCE_MS),
            surely=False,
        )
        for _ in range(2)
    ]
    shares = [offsets_of(reader.result(PATIENCE_SECONDS)) for reader in readers]
    assert shares == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("retry_ms", "expire_ms"), [(0, None), (-1, None), (1000, -1)])
def test_times_that_make_no_sense_are_refused(
    door: Door, full: str, retry_ms: int, expire_ms: int | None
) -> None:
    """RETRY takes milliseconds, at least 1."""
    with pytest.raises(InvalidError):
        door.read_group(full, "g", 1, retry_ms=retry_ms, expire_ms=expire_ms)
    assert door.groups(full) == []
