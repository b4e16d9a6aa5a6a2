"""Queue state: the buckets of active, done and failed messages. Pure.

    AvailableMessage   message id (u64) | priority (u8) | visible at (i64)
                       | retention deadline (i64) | attempts (u16)                   27 bytes
    InFlightMessage    message id (u64) | priority (u8) | claimed at (i64)
                       | lease deadline (i64) | attempts (u16)                       27 bytes
    DoneMessage        message id (u64) | done at (i64) | attempts (u16)             18 bytes
    FailedMessage      message id (u64) | failed at (i64) | attempts (u16)           18 bytes

    active (02)        available (Array<AvailableMessage>) | in flight (Array<InFlightMessage>)
                       ours: last operation (u64)
                       | for each in-flight message: retention deadline (i64) | lease number (u64)
                       | for each in-flight message: consumer (Utf8)
    done (03)          done (Array<DoneMessage>)
    failed (04)        failed (Array<FailedMessage>)

Contract     The entries are numpy structured arrays whose memory is the encoding: nothing is
             converted, in either direction. Decoded arrays are read-only views of the value.
Invariants   An active bucket's `in_flight`, `leases` and `consumers` are parallel. At most 65,535
             entries to an array. Each value has one encoding.
Not here     Which message goes next, what a bucket is keyed by, when one is full (queue).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.scalars import U16_MAX, Reader, encode_u16, encode_u64, encode_utf8
from penstock.errors import InvalidError

#: A one-dimensional array of one of the dtypes below.
Entries = npt.NDArray[np.void]

# Packed (no align=True) and little-endian, so that the memory of an array is the RFC's bytes.
AVAILABLE = np.dtype(
    [
        ("message_id", "<u8"),
        ("priority", "u1"),  # lower numbers go first
        ("visible_at_ms", "<i8"),  # not claimed before this
        ("retention_deadline_ms", "<i8"),  # not claimed after this; NEVER_MS is for ever
        ("attempts", "<u2"),  # claims so far; saturates
    ]
)
IN_FLIGHT = np.dtype(
    [
        ("message_id", "<u8"),
        ("priority", "u1"),  # kept for when the message becomes available again
        ("claimed_at_ms", "<i8"),
        ("lease_deadline_ms", "<i8"),  # the lease ends here at the latest
        ("attempts", "<u2"),  # claims so far, this one included; saturates
    ]
)
#: What an in-flight message must remember and the RFC's entry cannot hold.
LEASE = np.dtype(
    [
        ("retention_deadline_ms", "<i8"),  # without it, a failed claim could not be given back
        ("lease_number", "<u8"),  # names the lease in a receipt; never used twice
    ]
)
DONE = np.dtype([("message_id", "<u8"), ("done_at_ms", "<i8"), ("attempts", "<u2")])
FAILED = np.dtype([("message_id", "<u8"), ("failed_at_ms", "<i8"), ("attempts", "<u2")])


class ActiveBucket(msgspec.Struct, frozen=True, eq=False):
    available: Entries  # of AVAILABLE
    in_flight: Entries  # of IN_FLIGHT
    leases: Entries  # of LEASE, parallel to in_flight
    consumers: tuple[str, ...]  # who holds the lease, parallel to in_flight
    operation: int  # the last operation this bucket contains; recovery applies newer ones

    # Arrays compare element by element, so the generated comparison would have no truth value.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActiveBucket):
            return NotImplemented
        return (
            self.operation == other.operation
            and self.consumers == other.consumers
            and np.array_equal(self.available, other.available)
            and np.array_equal(self.in_flight, other.in_flight)
            and np.array_equal(self.leases, other.leases)
        )

    # Struct brings a `!=` of its own, which would go on comparing identities.
    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def encode_active(bucket: ActiveBucket) -> bytes:
    in_flight_count = len(bucket.in_flight)
    assert in_flight_count == len(bucket.leases) == len(bucket.consumers), "parallel columns"
    assert bucket.leases.dtype == LEASE
    return b"".join(
        (
            _encode_entries(bucket.available, AVAILABLE, "available messages"),
            _encode_entries(bucket.in_flight, IN_FLIGHT, "in-flight messages"),
            encode_u64(bucket.operation, "last operation"),
            bucket.leases.tobytes(),
            *_encode_consumers(bucket.consumers),
        )
    )


def decode_active(data: bytes) -> ActiveBucket:
    reader = Reader(data, "active messages")
    available = _read_entries(reader, AVAILABLE, "available messages")
    in_flight = _read_entries(reader, IN_FLIGHT, "in-flight messages")
    operation = reader.u64("last operation")
    in_flight_count = len(in_flight)
    leases = np.frombuffer(reader.take(in_flight_count * LEASE.itemsize, "leases"), LEASE)
    consumers = tuple(reader.utf8("consumer") for _ in range(in_flight_count))
    reader.end()
    return ActiveBucket(available, in_flight, leases, consumers, operation)


def encode_done(entries: Entries) -> bytes:
    return _encode_entries(entries, DONE, "done messages")


def decode_done(data: bytes) -> Entries:
    return _decode_entries(data, DONE, "done messages")


def encode_failed(entries: Entries) -> bytes:
    return _encode_entries(entries, FAILED, "failed messages")


def decode_failed(data: bytes) -> Entries:
    return _decode_entries(data, FAILED, "failed messages")


def _encode_entries(entries: Entries, form: np.dtype[np.void], what: str) -> bytes:
    assert entries.dtype == form, f"{what} have another dtype: {entries.dtype}"
    assert entries.ndim == 1, f"{what} are not one row of entries"
    if len(entries) > U16_MAX:
        raise InvalidError(f"{len(entries)} {what}; one bucket holds at most {U16_MAX}")
    return encode_u16(len(entries), f"number of {what}") + entries.tobytes()


def _encode_consumers(consumers: Iterable[str]) -> Iterable[bytes]:
    # A few consumers hold many leases: each name is encoded once.
    encoded = {name: encode_utf8(name, "consumer") for name in set(consumers)}
    return map(encoded.__getitem__, consumers)


def _read_entries(reader: Reader, form: np.dtype[np.void], what: str) -> Entries:
    count = reader.u16(f"number of {what}")
    return np.frombuffer(reader.take(count * form.itemsize, what), form)


def _decode_entries(data: bytes, form: np.dtype[np.void], what: str) -> Entries:
    reader = Reader(data, what)
    entries = _read_entries(reader, form, what)
    reader.end()
    return entries
