from __future__ import annotations

import numpy as np
import pytest

from penstock.codec.queuestate import (
    AVAILABLE,
    DONE,
    FAILED,
    IN_FLIGHT,
    ActiveBucket,
    Entries,
    ListBucket,
    decode_active,
    decode_done,
    decode_failed,
    encode_active,
    encode_done,
    encode_failed,
)
from penstock.errors import CorruptError, InvalidError


def bucket(available: int = 0, consumers: tuple[str, ...] = (), operation: int = 0) -> ActiveBucket:
    """With one lease for each of the consumers."""
    in_flight = np.zeros(len(consumers), IN_FLIGHT)
    in_flight["consumer"] = range(len(consumers))
    return ActiveBucket(np.zeros(available, AVAILABLE), in_flight, consumers, operation)


def listed(count: int, form: np.dtype[np.void], operation: int = 0) -> ListBucket:
    return ListBucket(np.zeros(count, form), operation)


def test_an_entry_takes_the_rfcs_bytes_and_ours() -> None:
    def sizes(count: int) -> list[int]:
        return [
            len(encode_active(bucket(count))),
            len(encode_active(bucket(0, ("",) * count))),
            len(encode_done(listed(count, DONE))),
            len(encode_failed(listed(count, FAILED))),
        ]

    rfc, ours = [27, 27, 18, 18], [9, 33 + 2, 1, 18]  # 2: the length of a consumer's name
    each = [two - one for one, two in zip(sizes(1), sizes(2), strict=True)]
    assert each == [a + b for a, b in zip(rfc, ours, strict=True)]


def test_a_bucket_holds_65535_entries_and_not_one_more() -> None:
    assert len(decode_active(encode_active(bucket(65_535))).available) == 65_535
    assert len(decode_done(encode_done(listed(65_535, DONE))).entries) == 65_535
    flown = ActiveBucket(np.zeros(0, AVAILABLE), np.zeros(65_536, IN_FLIGHT), ("w",), 0)
    with pytest.raises(InvalidError, match="65536 available messages"):
        encode_active(bucket(65_536))
    with pytest.raises(InvalidError, match="65536 in-flight messages"):
        encode_active(flown)
    with pytest.raises(InvalidError, match="65536 done messages"):
        encode_done(listed(65_536, DONE))
    with pytest.raises(InvalidError, match="65536 failed messages"):
        encode_failed(listed(65_536, FAILED))


def test_a_full_bucket_has_room_for_as_many_consumers() -> None:
    names = tuple(map(str, range(65_535)))
    decoded = decode_active(encode_active(bucket(0, names)))
    assert decoded.consumers == names
    assert decoded.in_flight["consumer"].tolist() == list(range(65_535))


def test_an_array_that_is_a_view_with_gaps_is_encoded_without_them() -> None:
    entries: Entries = np.zeros(4, DONE)
    entries["message_id"] = [1, 2, 3, 4]
    entries["flags"] = [5, 6, 7, 8]
    found = decode_done(encode_done(ListBucket(entries[::2], 0))).entries
    assert found.tolist() == [(1, 0, 0, 5), (3, 0, 0, 7)]


def test_names_that_hold_no_lease_are_not_stored_and_others_come_in_order() -> None:
    in_flight = np.zeros(3, IN_FLIGHT)
    in_flight["consumer"] = [2, 0, 2]
    stored = encode_active(ActiveBucket(np.zeros(0, AVAILABLE), in_flight, ("a", "b", "c"), 0))
    decoded = decode_active(stored)
    assert decoded.consumers == ("c", "a")
    assert decoded.in_flight["consumer"].tolist() == [0, 1, 0]
    assert encode_active(decoded) == stored


def test_active_buckets_differ_by_each_of_their_parts() -> None:
    one = bucket(1, ("w1",), 1)
    assert one == bucket(1, ("w1",), 1)
    assert not one != bucket(1, ("w1",), 1)  # noqa: SIM202 - `!=` is a method of its own
    assert one != bucket(2, ("w1",), 1)
    assert one != bucket(1, ("w2",), 1)
    assert one != bucket(1, ("w1",), 2)
    for part in ("available", "in_flight"):
        for field in getattr(one, part).dtype.names:
            other = bucket(1, ("w1", "w2") if field == "consumer" else ("w1",), 1)
            if field == "consumer":
                other = ActiveBucket(other.available, other.in_flight[:1], other.consumers, 1)
            getattr(other, part)[field] = 1
            assert one != other, field


@pytest.mark.parametrize("form", [DONE, FAILED])
def test_lists_differ_by_each_of_their_parts(form: np.dtype[np.void]) -> None:
    one = listed(1, form, 1)
    assert one == listed(1, form, 1)
    assert not one != listed(1, form, 1)  # noqa: SIM202 - `!=` is a method of its own
    assert one != listed(2, form, 1)
    assert one != listed(1, form, 2)
    for field in form.names or ():
        other = listed(1, form, 1)
        other.entries[field] = 9
        assert one != other, field


@pytest.mark.parametrize("count", [0, 1])
def test_done_messages_are_never_failed_ones(count: int) -> None:
    assert listed(count, DONE) != listed(count, FAILED)


def test_a_value_without_our_part_is_corrupt_and_not_an_empty_one() -> None:
    with pytest.raises(CorruptError, match="last operation at byte 4 needs 8 bytes, 0 are left"):
        decode_active(bytes(4))
    for decode in (decode_done, decode_failed):
        with pytest.raises(CorruptError, match="operation at byte 2 needs 8 bytes, 0 are left"):
            decode(bytes(2))


def test_a_lease_without_a_consumer_is_a_bug() -> None:
    nobodys = ActiveBucket(np.zeros(0, AVAILABLE), np.zeros(1, IN_FLIGHT), (), 0)
    with pytest.raises(IndexError):
        encode_active(nobodys)


def test_entries_of_another_dtype_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="dtype"):
        encode_done(listed(1, FAILED))
    with pytest.raises(AssertionError, match="dtype"):
        encode_failed(listed(1, DONE))


@pytest.mark.parametrize("operation", [-1, 2**64])
def test_an_operation_that_does_not_fit_is_refused(operation: int) -> None:
    with pytest.raises(InvalidError, match="last operation does not fit a u64"):
        encode_active(bucket(operation=operation))
    with pytest.raises(InvalidError, match="last operation does not fit a u64"):
        encode_done(listed(0, DONE, operation))
