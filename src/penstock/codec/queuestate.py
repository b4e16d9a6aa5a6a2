"""Queue state: the buckets of active, done and failed messages. Pure.

    AvailableMessage   message id (u64) | priority (u8) | visible at (i64)
                       | retention deadline (i64) | attempts (u16)                   27 bytes
    InFlightMessage    message id (u64) | priority (u8) | claimed at (i64)
                       | lease deadline (i64) | attempts (u16)                       27 bytes
    DoneMessage        message id (u64) | done at (i64) | attempts (u16)             18 bytes
    FailedMessage      message id (u64) | failed at (i64) | attempts (u16)           18 bytes

    active (02)        available (Array<AvailableMessage>) | in flight (Array<InFlightMessage>)
                       ours: last operation (u64)
                       | for each available message: offset (u64) | flags (u8)
                       | for each in-flight message: retention deadline (i64)
                         | lease number (u64) | visible at (i64) | offset (u64) | flags (u8)
                       | for each in-flight message: consumer (Utf8)
    done (03)          done (Array<DoneMessage>)
                       ours: last operation (u64) | for each message: flags (u8)
    failed (04)        failed (Array<FailedMessage>)
                       ours: last operation (u64)
                       | for each message: priority (u8) | retention deadline (i64)
                         | offset (u64) | flags (u8)

Contract     Entries are numpy structured arrays: the RFC's fields, then ours. Each group of fields
             is packed and little-endian, so that a value is made of copies of columns and no entry
             is converted by itself. `offset` is where the message's metadata stands in the log.
Invariants   At most 65,535 entries to an array. Each value has one encoding.
Not here     Which message goes next, what a bucket is keyed by, when one is full (queue/).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.scalars import U16_MAX, Reader, encode_u16, encode_u64, encode_utf8
from penstock.errors import InvalidError

#: A one-dimensional array of one of the dtypes below.
Entries = npt.NDArray[np.void]

#: There is an attempts record of this message in this queue.
HISTORY = 0x01

# Packed (no align=True) and little-endian, so that the memory of an array is the RFC's bytes.
_AVAILABLE = [
    ("message_id", "<u8"),
    ("priority", "u1"),  # lower numbers go first
    ("visible_at_ms", "<i8"),  # not claimed before this
    ("retention_deadline_ms", "<i8"),  # not claimed after this; NEVER_MS is for ever
    ("attempts", "<u2"),  # claims so far; saturates
]
_AVAILABLE_OURS = [("offset", "<u8"), ("flags", "u1")]
_IN_FLIGHT = [
    ("message_id", "<u8"),
    ("priority", "u1"),  # kept for when the message becomes available again
    ("claimed_at_ms", "<i8"),
    ("lease_deadline_ms", "<i8"),  # the lease ends here at the latest
    ("attempts", "<u2"),  # claims so far, this one included; saturates
]
_IN_FLIGHT_OURS = [
    ("retention_deadline_ms", "<i8"),  # without it, a failed claim could not be given back
    ("lease_number", "<u8"),  # names the lease in a receipt; never used twice
    ("visible_at_ms", "<i8"),  # as it was, for a message that is released
    ("offset", "<u8"),
    ("flags", "u1"),
]
_DONE = [("message_id", "<u8"), ("done_at_ms", "<i8"), ("attempts", "<u2")]
_DONE_OURS = [("flags", "u1")]
_FAILED = [("message_id", "<u8"), ("failed_at_ms", "<i8"), ("attempts", "<u2")]
_FAILED_OURS = [
    ("priority", "u1"),
    ("retention_deadline_ms", "<i8"),
    ("offset", "<u8"),
    ("flags", "u1"),
]
#: Which of a bucket's consumers holds the lease: an index, only in memory and in operations.
_CONSUMER = [("consumer", "<u2")]

AVAILABLE = np.dtype(_AVAILABLE + _AVAILABLE_OURS)
IN_FLIGHT = np.dtype(_IN_FLIGHT + _IN_FLIGHT_OURS + _CONSUMER)
DONE = np.dtype(_DONE + _DONE_OURS)
FAILED = np.dtype(_FAILED + _FAILED_OURS)


class ActiveBucket(msgspec.Struct, frozen=True, eq=False):
    available: Entries  # of AVAILABLE
    in_flight: Entries  # of IN_FLIGHT
    consumers: tuple[str, ...]  # who holds leases; in_flight["consumer"] counts in here
    operation: int  # the last operation this bucket contains; recovery applies newer ones

    # Arrays compare element by element, so the generated comparison would have no truth value.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActiveBucket):
            return NotImplemented
        return encode_active(self) == encode_active(other)

    # Struct brings a `!=` of its own, which would go on comparing identities.
    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


class ListBucket(msgspec.Struct, frozen=True, eq=False):
    """Done or failed messages."""

    entries: Entries  # of DONE or FAILED
    operation: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ListBucket):
            return NotImplemented
        # Done and failed messages have no common dtype, and numpy would refuse to compare them.
        return (
            self.operation == other.operation
            and self.entries.dtype == other.entries.dtype
            and np.array_equal(self.entries, other.entries)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def encode_active(bucket: ActiveBucket) -> bytes:
    return b"".join(
        (
            _encode_array(bucket.available, AVAILABLE, _AVAILABLE, "available messages"),
            _encode_array(bucket.in_flight, IN_FLIGHT, _IN_FLIGHT, "in-flight messages"),
            encode_u64(bucket.operation, "last operation"),
            _columns(bucket.available, _AVAILABLE_OURS),
            _columns(bucket.in_flight, _IN_FLIGHT_OURS),
            *_encode_consumers(bucket.in_flight["consumer"].tolist(), bucket.consumers),
        )
    )


def decode_active(data: bytes) -> ActiveBucket:
    reader = Reader(data, "active messages")
    available = _read_array(reader, AVAILABLE, _AVAILABLE, "available messages")
    in_flight = _read_array(reader, IN_FLIGHT, _IN_FLIGHT, "in-flight messages")
    operation = reader.u64("last operation")
    _read_columns(reader, available, _AVAILABLE_OURS, "available messages")
    _read_columns(reader, in_flight, _IN_FLIGHT_OURS, "in-flight messages")
    consumers: dict[str, int] = {}
    for i in range(len(in_flight)):
        name = reader.utf8("consumer")
        in_flight["consumer"][i] = consumers.setdefault(name, len(consumers))
    reader.end()
    return ActiveBucket(available, in_flight, tuple(consumers), operation)


def encode_done(bucket: ListBucket) -> bytes:
    return _encode_list(bucket, DONE, _DONE, _DONE_OURS, "done messages")


def decode_done(data: bytes) -> ListBucket:
    return _decode_list(data, DONE, _DONE, _DONE_OURS, "done messages")


def encode_failed(bucket: ListBucket) -> bytes:
    return _encode_list(bucket, FAILED, _FAILED, _FAILED_OURS, "failed messages")


def decode_failed(data: bytes) -> ListBucket:
    return _decode_list(data, FAILED, _FAILED, _FAILED_OURS, "failed messages")


# ---- parts --------------------------------------------------------------------------------------

_Fields = Sequence[tuple[str, str]]


def _encode_list(
    bucket: ListBucket, form: np.dtype[np.void], rfc: _Fields, ours: _Fields, what: str
) -> bytes:
    return b"".join(
        (
            _encode_array(bucket.entries, form, rfc, what),
            encode_u64(bucket.operation, "last operation"),
            _columns(bucket.entries, ours),
        )
    )


def _decode_list(
    data: bytes, form: np.dtype[np.void], rfc: _Fields, ours: _Fields, what: str
) -> ListBucket:
    reader = Reader(data, what)
    entries = _read_array(reader, form, rfc, what)
    operation = reader.u64("last operation")
    _read_columns(reader, entries, ours, what)
    reader.end()
    return ListBucket(entries, operation)


def _encode_array(entries: Entries, form: np.dtype[np.void], rfc: _Fields, what: str) -> bytes:
    assert entries.dtype == form, f"{what} have another dtype: {entries.dtype}"
    assert entries.ndim == 1, f"{what} are not one row of entries"
    if len(entries) > U16_MAX:
        raise InvalidError(f"{len(entries)} {what}; one bucket holds at most {U16_MAX}")
    return encode_u16(len(entries), f"number of {what}") + _columns(entries, rfc)


def _columns(entries: Entries, fields: _Fields) -> bytes:
    part = np.empty(len(entries), np.dtype(list(fields)))
    for name, _ in fields:
        part[name] = entries[name]
    return part.tobytes()


def _read_array(
    reader: Reader, form: np.dtype[np.void], rfc: _Fields, what: str
) -> npt.NDArray[np.void]:
    entries = np.zeros(reader.u16(f"number of {what}"), form)
    _read_columns(reader, entries, rfc, what)
    return entries


def _read_columns(reader: Reader, entries: Entries, fields: _Fields, what: str) -> None:
    form = np.dtype(list(fields))
    part = np.frombuffer(reader.take(len(entries) * form.itemsize, what), form)
    for name, _ in fields:
        entries[name] = part[name]


def _encode_consumers(held: Iterable[int], consumers: tuple[str, ...]) -> Iterable[bytes]:
    # A few consumers hold many leases: each name is encoded once.
    encoded = [encode_utf8(name, "consumer") for name in consumers]
    return [encoded[i] for i in held]
