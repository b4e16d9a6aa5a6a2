"""RCP 11, "GROUP <groupname>" and "Behavior of clients groups with empty keys", over every door."""

from __future__ import annotations

import queue

import pytest

from acceptance.rcp11.doors import (
    NEVER_MS,
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Door,
    Start,
    blocked,
    expected,
    in_background,
    numbered,
    offsets_of,
    until,
)
from acceptance.rcp11.resp_door import RespDoor
from penstock import InvalidError, NotFoundError


def test_the_specified_offset_is_disregarded(resp: RespDoor, name: str) -> None:
    """GROUP, 2nd sentence. In Python there is no offset to give."""
    resp.write_many(name, numbered(10))
    for n, offset in enumerate((7, 0, -1, 99_999, (1 << 63) - 1)):
        found = resp.ask("TREAD", name, offset, 2, "GROUP", "g")
        assert [entry[0] for entry in found] == [2 * n, 2 * n + 1]


def test_the_offset_is_read_from_the_group_inside_the_stream(door: Door, full: str) -> None:
    """GROUP, 3rd sentence: a group of the same name on another stream is another group."""
    other = f"{full}-other"
    door.write_many(other, numbered(10))
    assert offsets_of(door.read_group(full, "g", 4)) == [0, 1, 2, 3]
    assert offsets_of(door.read_group(other, "g", 2)) == [0, 1]
    assert door.group_info(full, "g").last_offset == 3
    assert door.group_info(other, "g").last_offset == 1


def test_the_group_is_updated_at_the_same_time(door: Door, full: str) -> None:
    """GROUP, 4th sentence: the next client gets what comes after, until nothing is left."""
    assert offsets_of(door.read_group(full, "g", 6)) == [0, 1, 2, 3, 4, 5]
    assert offsets_of(door.read_group(full, "g", 6)) == [6, 7, 8, 9]
    assert door.read_group(full, "g", 6) == []
    door.write_many(full, numbered(1, 10))
    assert offsets_of(door.read_group(full, "g", 6)) == [10]


def test_different_clients_get_different_subsets_also_at_once(door: Door, name: str) -> None:
    """GROUP, "the basic idea": no message twice, none left out, in the order of the stream."""
    door.write_many(name, numbered(200))
    door.group_create(name, "g")

    def work() -> list[int | None]:
        mine: list[int | None] = []
        while found := door.read_group(name, "g", 3):
            mine += offsets_of(found)
        return mine

    workers = [in_background(work) for _ in range(4)]
    shares = [worker.result(PATIENCE_SECONDS) for worker in workers]
    assert sorted(n for share in shares for n in share if n is not None) == list(range(200))
    assert all(share == sorted(n for n in share if n is not None) for share in shares)


def test_the_reader_that_is_served_first_returns_as_the_last_in_the_queue(
    door: Door, name: str
) -> None:
    """GROUP with BLOCK: messages go evenly, in turn, to all clients of the group."""
    door.group_create(name, "g")
    served: queue.Queue[tuple[int, bytes]] = queue.Queue()

    def work(who: int) -> None:
        while True:
            (entry,) = door.read_group(name, "g", 1, block_ms=None)
            served.put((who, entry.data))
            if entry.data == b"stop":
                return

    readers = [blocked(door, lambda who=who: work(who)) for who in range(3)]  # type: ignore[misc]
    order = []
    for n in range(9):
        door.write(name, b"", b"%d" % n)
        who, data = served.get(timeout=PATIENCE_SECONDS)
        assert data == b"%d" % n
        order.append(who)
        until(lambda: door.waiting() == 3)
    door.write_many(name, [(b"", b"stop")] * 3)
    for reader in readers:
        reader.result(PATIENCE_SECONDS)
    assert order == [0, 1, 2] * 3


def test_one_write_is_shared_out_among_those_who_wait_in_their_order(door: Door, name: str) -> None:
    """GROUP with BLOCK: each takes up to its count; those for whom nothing is left wait on."""
    door.group_create(name, "g")
    readers = [
        blocked(door, lambda: door.read_group(name, "g", 4, block_ms=PATIENCE_MS)) for _ in range(4)
    ]
    door.write_many(name, numbered(10))
    shares = [offsets_of(reader.result(PATIENCE_SECONDS)) for reader in readers[:3]]
    assert shares == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    until(lambda: door.waiting() == 1)
    assert not readers[3].done()
    door.write_many(name, numbered(1, 10))
    assert offsets_of(readers[3].result(PATIENCE_SECONDS)) == [10]


def test_readers_of_different_groups_do_not_take_turns_with_each_other(
    door: Door, name: str
) -> None:
    """GROUP with BLOCK: turns are for "the same group"."""
    for group in ("a", "b"):
        door.group_create(name, group)
    readers = [
        blocked(door, lambda g=group: door.read_group(name, g, 9, block_ms=PATIENCE_MS))  # type: ignore[misc]
        for group in ("a", "b")
    ]
    door.write_many(name, numbered(2))
    for reader in readers:
        assert reader.result(PATIENCE_SECONDS) == expected(range(2))


def test_a_reader_that_gave_up_loses_its_turn_and_nothing_else(door: Door, name: str) -> None:
    """GROUP with BLOCK: what comes later goes to those who still wait."""
    door.group_create(name, "g")
    assert door.read_group(name, "g", 1, block_ms=20) == []
    stays = blocked(door, lambda: door.read_group(name, "g", 1, block_ms=PATIENCE_MS))
    door.write_many(name, numbered(1))
    assert stays.result(PATIENCE_SECONDS) == expected(range(1))


def test_a_blocked_reader_that_came_first_is_not_overtaken(door: Door, name: str) -> None:
    """GROUP with BLOCK: one reader takes all it may before the second gets any."""
    door.group_create(name, "g")
    first = blocked(door, lambda: door.read_group(name, "g", 100, block_ms=PATIENCE_MS))
    second = blocked(door, lambda: door.read_group(name, "g", 100, block_ms=PATIENCE_MS))
    door.write_many(name, numbered(5))
    assert first.result(PATIENCE_SECONDS) == expected(range(5))
    until(lambda: door.waiting() == 1)
    assert not second.done()
    door.write_many(name, numbered(1, 5))
    assert second.result(PATIENCE_SECONDS) == expected(range(5, 6))


# ---- groups with empty keys -------------------------------------------------------------------


def test_a_new_group_starts_at_the_first_message_unless_told(door: Door, full: str) -> None:
    """Empty keys, 1st solution, the default here: the first that is there, not offset 0."""
    assert door.read_group(full, "g", 2) == expected(range(2))
    door.evict(full, up_to=6)
    assert door.read_group(full, "late", 2) == expected(range(7, 9))
    assert door.group_info(full, "late").skipped == 0


def test_a_new_group_may_start_behind_the_last_message(door: Door, full: str) -> None:
    """Empty keys, 2nd solution: the last plus 1, so that only new messages come."""
    assert door.read_group(full, "g", 5, start="new") == []
    assert door.group_info(full, "g").last_offset == 9
    door.write_many(full, numbered(2, 10))
    assert door.read_group(full, "g", 5, start="new") == expected(range(10, 12))


@pytest.mark.parametrize("start", ["first", "new", 0, 4, 10])
def test_both_variants_and_any_offset_can_be_asked_for_in_the_same_command(
    door: Door, full: str, start: Start
) -> None:
    """Empty keys, 3rd solution: no initialisation is needed; FROM says where."""
    begin = {"first": 0, "new": 10}.get(str(start), start)
    assert isinstance(begin, int)
    assert door.read_group(full, "g", 100, start=start) == expected(range(begin, 10))


@pytest.mark.parametrize("start", ["first", "new", 0, 4, 10])
def test_a_group_can_be_created_beforehand(door: Door, full: str, start: Start) -> None:
    """Empty keys, last paragraph: the client may set the position of a new group itself."""
    begin = {"first": 0, "new": 10}.get(str(start), start)
    assert isinstance(begin, int)
    door.group_create(full, "g", start=start)
    assert door.group_info(full, "g").last_offset == begin - 1
    assert door.read_group(full, "g", 100) == expected(range(begin, 10))


def test_where_a_group_starts_matters_the_first_time_only(door: Door, full: str) -> None:
    """Empty keys: "the first time a new group is used"."""
    door.read_group(full, "g", 3)
    assert door.read_group(full, "g", 3, start="new") == expected(range(3, 6))
    assert door.read_group(full, "g", 3, start=0) == expected(range(6, 9))


def test_a_group_does_not_start_behind_the_end(door: Door, full: str) -> None:
    """docs/streams.md: first, new or an offset that has been or comes next."""
    with pytest.raises(InvalidError):
        door.read_group(full, "g", 1, start=11)
    with pytest.raises(InvalidError):
        door.group_create(full, "g", start=11)
    assert door.groups(full) == []


def test_a_group_created_on_a_new_stream_waits_for_its_first_message(door: Door, name: str) -> None:
    """docs/streams.md, TGROUP CREATE: group and stream may come before the entries."""
    for start in ("first", "new"):
        door.group_create(name, start, start="first" if start == "first" else "new")
    door.write_many(name, numbered(2))
    assert door.read_group(name, "first", 9) == expected(range(2))
    assert door.read_group(name, "new", 9) == expected(range(2))


def test_a_client_can_set_the_position_of_a_group(door: Door, full: str) -> None:
    """Empty keys, last paragraph: forwards and back."""
    door.read_group(full, "g", 5)
    for offset, begin in ((8, 8), (0, 0), ("new", 10), ("first", 0), (3, 3), (10, 10)):
        door.group_set(full, "g", offset)  # type: ignore[arg-type]
        assert door.group_info(full, "g").last_offset == begin - 1
        assert door.read_group(full, "g", 100) == expected(range(begin, 10))


def test_a_blocked_reader_notices_that_the_group_was_set_back(door: Door, full: str) -> None:
    """TGROUP SET: what is new to the group serves those who wait."""
    door.read_group(full, "g", 100)
    reader = blocked(door, lambda: door.read_group(full, "g", 2, block_ms=PATIENCE_MS))
    door.group_set(full, "g", 6)
    assert reader.result(PATIENCE_SECONDS) == expected(range(6, 8))


def test_setting_an_unknown_group_is_not_found(door: Door, full: str, name: str) -> None:
    """TGROUP SET and INFO are about groups that exist."""
    for stream in (full, f"{name}-none"):
        with pytest.raises(NotFoundError):
            door.group_set(stream, "g", 0)
        with pytest.raises(NotFoundError):
            door.group_info(stream, "g")
        assert door.group_destroy(stream, "g") is False
        assert door.groups(stream) == []


def test_a_destroyed_group_begins_again(door: Door, full: str) -> None:
    """TGROUP DESTROY: position and pending entries are forgotten."""
    door.read_group(full, "g", 5, retry_ms=NEVER_MS)
    assert door.group_destroy(full, "g") is True
    assert door.groups(full) == []
    assert door.ack(full, "g", 0) == 0
    assert door.read_group(full, "g", 5) == expected(range(5))
    assert door.group_info(full, "g").pending == 0
