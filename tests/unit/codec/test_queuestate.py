from __future__ import annotations

import numpy as np
import pytest

from penstock.codec.queuestate import (
    AVAILABLE,
    DONE,
    FAILED,
    IN_FLIGHT,
    LEASE,
    ActiveBucket,
    Entries,
    decode_active,
    decode_done,
    encode_active,
    encode_done,
    encode_failed,
)
from penstock.errors import CorruptError, InvalidError


def bucket(available: int = 0, consumers: tuple[str, ...] = (), operation: int = 0) -> ActiveBucket:
    return ActiveBucket(
        available=np.zeros(available, AVAILABLE),
        in_flight=np.zeros(len(consumers), IN_FLIGHT),
        leases=np.zeros(len(consumers), LEASE),
        consumers=consumers,
        operation=operation,
    )


def test_the_memory_of_an_entry_is_the_rfcs_encoding() -> None:
    assert [form.itemsize for form in (AVAILABLE, IN_FLIGHT, DONE, FAILED)] == [27, 27, 18, 18]


def test_a_bucket_holds_65535_entries_and_not_one_more() -> None:
    assert len(decode_active(encode_active(bucket(65_535))).available) == 65_535
    with pytest.raises(InvalidError, match="65536 available messages"):
        encode_active(bucket(65_536))
    with pytest.raises(InvalidError, match="65536 in-flight messages"):
        encode_active(bucket(0, ("w",) * 65_536))
    with pytest.raises(InvalidError, match="65536 done messages"):
        encode_done(np.zeros(65_536, DONE))
    with pytest.raises(InvalidError, match="65536 failed messages"):
        encode_failed(np.zeros(65_536, FAILED))


def test_an_array_that_is_a_view_with_gaps_is_encoded_without_them() -> None:
    entries: Entries = np.zeros(4, DONE)
    entries["message_id"] = [1, 2, 3, 4]
    assert decode_done(encode_done(entries[::2]))["message_id"].tolist() == [1, 3]


def test_decoded_entries_cannot_be_changed_in_place() -> None:
    entries = decode_done(encode_done(np.zeros(1, DONE)))
    with pytest.raises(ValueError, match="read-only"):
        entries["attempts"] = 9


def test_buckets_differ_by_each_of_their_parts() -> None:
    one = bucket(1, ("w1",), 1)
    assert one == bucket(1, ("w1",), 1)
    assert not one != bucket(1, ("w1",), 1)  # noqa: SIM202 - `!=` is a method of its own
    assert one != bucket(2, ("w1",), 1)
    assert one != bucket(1, ("w2",), 1)
    assert one != bucket(1, ("w1",), 2)
    for part in ("available", "in_flight", "leases"):
        other = bucket(1, ("w1",), 1)
        entries = getattr(other, part)
        entries[entries.dtype.names[0]] = 9
        assert one != other


def test_an_active_value_without_our_part_is_corrupt_and_not_an_empty_one() -> None:
    with pytest.raises(CorruptError, match="last operation at byte 4 needs 8 bytes, 0 are left"):
        decode_active(bytes(4))


def test_columns_that_are_not_parallel_are_a_bug() -> None:
    odd = ActiveBucket(np.zeros(0, AVAILABLE), np.zeros(1, IN_FLIGHT), np.zeros(1, LEASE), (), 0)
    with pytest.raises(AssertionError, match="parallel"):
        encode_active(odd)


def test_entries_of_another_dtype_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="dtype"):
        encode_done(np.zeros(1, FAILED))
