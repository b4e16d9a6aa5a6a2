"""RCP 11, "Logical offsets", over every door."""

from __future__ import annotations

import threading

from acceptance.rcp11.doors import PATIENCE_SECONDS, Door, expected, in_background, numbered


def test_each_successive_entry_has_an_incremental_offset(door: Door, name: str) -> None:
    """1st paragraph: 0, 1, 2, ... whatever the sizes of entries and batches are."""
    offsets: list[int] = []
    for size in (1, 3, 1, 1000, 1, 999, 7):
        offsets += door.write_many(name, [(b"", b"x" * (size % 13)) for _ in range(size)])
        offsets.append(door.write(name, b"", b""))
    assert offsets == list(range(len(offsets)))


def test_a_client_jumps_back_ten_messages_by_subtracting_ten(door: Door, name: str) -> None:
    """2nd paragraph."""
    door.write_many(name, numbered(50))
    (current,) = door.read(name, 35, 1)
    assert current is not None
    assert door.read(name, current.offset - 10, 10) == expected(range(25, 35))


def test_offsets_of_concurrent_writers_are_unique_and_dense(door: Door, name: str) -> None:
    """1st paragraph: guaranteed, so also when many write at once; a batch stays together."""
    start = threading.Barrier(4)

    def write(who: int) -> list[range]:
        start.wait(PATIENCE_SECONDS)
        return [door.write_many(name, [(b"%d" % who, b"%d" % i)] * (1 + i % 3)) for i in range(20)]

    writers = [in_background(lambda who=who: write(who)) for who in range(4)]  # type: ignore[misc]
    answers = [writer.result(PATIENCE_SECONDS) for writer in writers]
    given = sorted(offset for ranges in answers for offsets in ranges for offset in offsets)
    assert given == list(range(len(given)))
    stored = door.read(name, 0, len(given) + 1)
    for who, ranges in enumerate(answers):
        for i, offsets in enumerate(ranges):
            for offset in offsets:
                assert stored[offset] == (offset, b"%d" % who, b"%d" % i)


def test_a_stream_that_is_deleted_and_written_again_begins_at_zero(door: Door, full: str) -> None:
    """Offsets belong to a stream; one of the same name is another stream."""
    assert door.delete(full)
    assert door.write_many(full, numbered(2)) == range(2)
    assert door.read(full, 0, 10) == expected(range(2))
