"""RCP 11, "Rationale": the characteristics that streams should have, over every door."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.rcp11.conftest import OPENERS
from acceptance.rcp11.doors import (
    NEVER_MS,
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Config,
    Door,
    Entry,
    blocked,
    expected,
    numbered,
    offsets_of,
)


def test_clients_control_what_they_read_and_can_rewind(door: Door, full: str) -> None:
    """Characteristic 1: reading takes nothing away, any past position can be read again."""
    for offset in (7, 2, 0, 9, 2):
        assert door.read(full, offset, 3) == expected(range(offset, min(offset + 3, 10)))


def test_consumer_groups_are_implemented(door: Door, full: str) -> None:
    """Characteristic 1: clients of one group share its position."""
    assert door.read_group(full, "g", 4) == expected(range(4))
    assert door.read_group(full, "g", 4) == expected(range(4, 8))


def test_clients_of_one_group_receive_different_messages(door: Door, full: str) -> None:
    """Shortcomings of lists, last point: nobody in the group gets what another one got."""
    readers = [door.read_group(full, "g", 3) for _ in range(4)]
    assert [entry for found in readers for entry in found] == expected(range(10))


def test_yet_another_group_receives_the_same_set_of_messages(door: Door, full: str) -> None:
    """Shortcomings of lists, last point."""
    for group in ("a", "b", "c"):
        assert door.read_group(full, group, 100) == expected(range(10))


def test_a_client_can_rewind_independently_of_its_group(door: Door, full: str) -> None:
    """Shortcomings of lists, last point: a plain read does not move the group."""
    door.read_group(full, "g", 6)
    assert door.read(full, 2, 3) == expected(range(2, 5))
    assert door.read_group(full, "g", 2) == expected(range(6, 8))


def test_a_client_may_block_for_entries_beyond_a_given_offset(door: Door, full: str) -> None:
    """Characteristic 2."""
    reader = blocked(door, lambda: door.read(full, 10, 5, block_ms=PATIENCE_MS))
    door.write(full, b"t0", b"d10")
    assert reader.result(PATIENCE_SECONDS) == expected(range(10, 11))


def test_each_entry_keeps_its_offset_when_old_entries_are_evicted(door: Door, full: str) -> None:
    """Characteristic 3: offsets are unique and stay."""
    door.evict(full, up_to=6)
    assert door.read(full, 7, 10) == expected(range(7, 10))
    assert door.write(full, b"t0", b"d10") == 10
    door.evict(full, keep=1)
    assert door.read(full, 10, 10) == expected(range(10, 11))


def test_offsets_are_not_used_again_when_everything_was_evicted(door: Door, full: str) -> None:
    """Characteristic 3: unique, also after the stream was empty."""
    door.evict(full, keep=0)
    assert door.length(full) == 0
    assert door.write(full, b"t0", b"d10") == 10


def test_history_takes_less_room_than_its_messages(door: Door, name: str) -> None:
    """Characteristic 4 and "Nodes compression": entries that are alike are stored compactly."""
    door.write_many(name, [(b"sensor-%d" % (n % 7), b"temperature=%05d " % n * 8)
                           for n in range(5000)])  # fmt: skip
    assert 0 < door.info(name).bytes < 5000 * 8 * 18 // 2


def test_entries_in_the_middle_are_found_among_many(door: Door, name: str) -> None:
    """Characteristic 5: correctness of a seek; what it costs is for bench/."""
    for start in range(0, 20_000, 4000):
        door.write_many(name, numbered(4000, start))
    for offset in (0, 1, 999, 1000, 1001, 7777, 9999, 10_000, 10_001, 19_998, 19_999):
        assert door.read(name, offset, 2) == expected(range(offset, min(offset + 2, 20_000)))


def test_old_entries_can_be_evicted_gradually(door: Door, full: str) -> None:
    """Characteristic 6: a bit at a time, what is newer stays readable throughout."""
    for n in range(10):
        assert door.evict(full, up_to=n) == 1
        assert door.info(full)[:3] == (n + 1, 9, 9 - n)
        assert door.read(full, n + 1, 100) == expected(range(n + 1, 10))


@pytest.mark.parametrize("kind", OPENERS)
def test_the_log_is_persisted(kind: str, tmp_path: Path) -> None:
    """Characteristic 7: entries, groups, pending entries and settings survive the server."""
    with OPENERS[kind](tmp_path) as door:
        door.write_many("s", numbered(1500), producer=("p", 1))
        door.evict("s", up_to=2)
        door.group_create("s", "g", max_pending=7, dead="morgue")
        assert len(door.read_group("s", "g", 5, retry_ms=1, expire_ms=NEVER_MS)) == 5
        assert door.ack("s", "g", 4) == 1
        door.read_group("s", "plain", 9)
        door.configure("s", Config(max_count=100_000, compact=False))
        info, groups = door.info("s"), door.groups("s")
        pending = door.group_pending("s", "g")
    with OPENERS[kind](tmp_path) as door:
        assert door.keys("*") == ["s"]
        assert door.info("s") == info
        assert door.groups("s") == groups
        assert door.group_pending("s", "g") == pending
        assert door.read("s", 1, 5000) == [None, None, *expected(range(3, 1500))]
        assert door.write_many("s", numbered(1500), producer=("p", 1)) == range(1500)
        # The retry that fell due while nobody was there comes first.
        again = door.read_group("s", "g", 5, retry_ms=NEVER_MS)
        assert offsets_of(again) == [3, 5, 6, 7, 8]
        assert offsets_of(door.read_group("s", "plain", 1)) == [12]
        assert door.write("s", b"t0", b"d1500") == 1500


def test_multiple_clients_read_the_same_stream_without_polling(door: Door, name: str) -> None:
    """Below the characteristics: all who block for an offset are served by one write."""
    readers = [
        blocked(door, lambda: door.read(name, 0, 10, block_ms=PATIENCE_MS)) for _ in range(5)
    ]
    door.write(name, b"t", b"x")
    for reader in readers:
        assert reader.result(PATIENCE_SECONDS) == [Entry(0, b"t", b"x")]


def test_a_client_restarts_from_a_given_point_after_a_disconnection(door: Door, full: str) -> None:
    """Below the characteristics: the position is the client's own, and any connection will do."""
    last = door.read(full, 0, 4)[-1]
    assert last is not None
    if door.kind == "resp":
        door.close()  # redis-py connects again when it is used
    assert door.read(full, last.offset + 1, 100) == expected(range(4, 10))
