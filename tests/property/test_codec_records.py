"""RFC 0001's records: round trips, and damage that is always named as such.

One table holds a strategy, an encoder and a decoder per record. Each value has one encoding, so
whatever a decoder accepts must encode to the very bytes it was given: damage is either refused
or is a value that somebody could have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.attempts import Attempt, Ending, decode_attempts, encode_attempts
from penstock.codec.catalogue import CatalogueRow, decode_catalogue_row, encode_catalogue_row
from penstock.codec.idblock import (
    FIRST_ID,
    IdBlock,
    decode_id_block,
    encode_id_block,
    reserve,
)
from penstock.codec.metadata import Metadata, decode_metadata, encode_metadata
from penstock.codec.payload import (
    BytesPayload,
    PayloadBlock,
    UriPayload,
    decode_payload,
    encode_payload,
    payload_at,
    payload_of,
    payloads_between,
)
from penstock.codec.queueconfig import QueueConfig, decode_queue_config, encode_queue_config
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
from penstock.codec.scalars import U64_MAX
from penstock.errors import CorruptError

# The machine may be busy, so no example is judged by its time.
calm = settings(deadline=None)
# Damage runs over every record, so that fewer examples of each are enough.
brief = settings(deadline=None, max_examples=50)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=8)
pairs = st.dictionaries(text, text, max_size=4).map(lambda found: tuple(found.items()))
few = st.integers(0, 4)


def entries(form: np.dtype[np.void], count: int) -> st.SearchStrategy[Entries]:
    size = count * form.itemsize
    return st.binary(min_size=size, max_size=size).map(lambda raw: np.frombuffer(raw, form))


@st.composite
def active_buckets(draw: st.DrawFn) -> ActiveBucket:
    in_flight = draw(entries(IN_FLIGHT, draw(few))).copy()
    # Some names hold several leases, some none, and some stand there twice.
    consumers = draw(st.lists(text, min_size=min(len(in_flight), 1), max_size=4))
    in_flight["consumer"] = [draw(st.integers(0, len(consumers) - 1)) for _ in in_flight]
    return ActiveBucket(
        available=draw(entries(AVAILABLE, draw(few))),
        in_flight=in_flight,
        consumers=tuple(consumers),
        operation=draw(u64),
    )


def list_buckets(form: np.dtype[np.void]) -> st.SearchStrategy[ListBucket]:
    return st.builds(ListBucket, few.flatmap(lambda n: entries(form, n)), u64)


class Record(NamedTuple):
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


RECORDS = {
    "payload": Record(
        st.one_of(
            st.binary(max_size=20).map(BytesPayload),
            text.map(UriPayload),
            st.lists(st.binary(max_size=8), min_size=1, max_size=5).map(payload_of),
        ),
        encode_payload,
        decode_payload,
    ),
    "metadata": Record(
        st.builds(Metadata, u64, i64, i64, i64, u32, pairs, st.none() | text, st.none() | text),
        encode_metadata,
        decode_metadata,
    ),
    "active": Record(active_buckets(), encode_active, decode_active),
    "done": Record(list_buckets(DONE), encode_done, decode_done),
    "failed": Record(list_buckets(FAILED), encode_failed, decode_failed),
    "attempts": Record(
        st.lists(st.builds(Attempt, text, i64, st.sampled_from(Ending), text), max_size=4).map(
            tuple
        ),
        encode_attempts,
        decode_attempts,
    ),
    "queueconfig": Record(
        st.builds(QueueConfig, text, u16, u32, pairs), encode_queue_config, decode_queue_config
    ),
    "idblock": Record(
        st.builds(IdBlock, st.integers(FIRST_ID, U64_MAX)), encode_id_block, decode_id_block
    ),
    "catalogue": Record(
        st.builds(CatalogueRow, u64, i64, pairs), encode_catalogue_row, decode_catalogue_row
    ),
}

every_record = pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)


def accepts(record: Record, data: bytes) -> bool:
    """Whether the decoder takes these bytes; every other exception than CorruptError escapes."""
    try:
        value = record.decode(data)
    except CorruptError:
        return False
    assert record.encode(value) == data
    return True


@every_record
@calm
@given(data=st.data())
def test_a_record_decodes_to_the_value_it_was_made_of(record: Record, data: st.DataObject) -> None:
    value = data.draw(record.values)
    assert record.decode(record.encode(value)) == value


@calm
@given(bucket=active_buckets())
def test_an_active_bucket_keeps_every_field_and_who_holds_each_lease(bucket: ActiveBucket) -> None:
    # Buckets are compared by their bytes, so that a field that is not stored would not be missed.
    decoded = decode_active(encode_active(bucket))
    assert decoded.available.tolist() == bucket.available.tolist()
    assert decoded.operation == bucket.operation
    stored = [name for name in IN_FLIGHT.names or () if name != "consumer"]
    assert decoded.in_flight[stored].tolist() == bucket.in_flight[stored].tolist()
    names = [bucket.consumers[i] for i in bucket.in_flight["consumer"]]
    assert [decoded.consumers[i] for i in decoded.in_flight["consumer"]] == names
    assert decoded.consumers == tuple(dict.fromkeys(names))


@every_record
@brief
@given(data=st.data())
def test_a_truncated_record_is_corrupt(record: Record, data: st.DataObject) -> None:
    value = data.draw(record.values)
    encoded = record.encode(value)
    accepted = [size for size in range(len(encoded)) if accepts(record, encoded[:size])]
    # Our tail of the metadata record is optional, so without it the bytes are the RFC's.
    tailed = isinstance(value, Metadata) and (value.to, value.dedup_id) != (None, None)
    if tailed:
        rfc = Metadata(*(getattr(value, name) for name in Metadata.__struct_fields__[:-2]))
        assert accepted == [len(encode_metadata(rfc))]
    else:
        assert accepted == []


@every_record
@brief
@given(data=st.data(), more=st.binary(min_size=1, max_size=4))
def test_a_record_with_bytes_left_over_is_corrupt_or_another_value(
    record: Record, data: st.DataObject, more: bytes
) -> None:
    value = data.draw(record.values)
    accepted = accepts(record, record.encode(value) + more)
    # Only a metadata record without a tail can grow one.
    assert not accepted or isinstance(value, Metadata)


@every_record
@brief
@given(data=st.data(), flip=st.integers(1, 255))
def test_a_changed_byte_is_corrupt_or_another_value(
    record: Record, data: st.DataObject, flip: int
) -> None:
    encoded = record.encode(data.draw(record.values))
    for at, byte in enumerate(encoded):
        accepts(record, encoded[:at] + bytes((byte ^ flip,)) + encoded[at + 1 :])


# Mostly small bytes: they are counts and lengths that reach far into the rest.
noise = st.binary(max_size=120) | st.lists(
    st.integers(0, 5) | st.integers(0, 255), max_size=120
).map(bytes)


@every_record
@calm
@given(data=noise)
def test_arbitrary_bytes_are_corrupt_or_a_value(record: Record, data: bytes) -> None:
    accepts(record, data)


@calm
@given(payloads=st.lists(st.binary(max_size=8), min_size=2, max_size=20))
def test_each_payload_of_a_block_is_found_at_its_place(payloads: list[bytes]) -> None:
    block = decode_payload(encode_payload(payload_of(payloads)))
    assert isinstance(block, PayloadBlock)
    assert [payload_at(block, n) for n in range(len(payloads) + 1)] == [*payloads, None]
    for low in range(len(payloads) + 1):
        assert payloads_between(block, low, len(payloads)) == list(payloads)[low:]
        assert payloads_between(block, 0, low) == list(payloads)[:low]


@calm
@given(sizes=st.lists(st.integers(1, 2**60), max_size=10))
def test_no_id_is_ever_reserved_twice(sizes: list[int]) -> None:
    row, above = None, 0
    for size in sizes:
        ids, row = reserve(row, size)
        assert ids.start > above
        assert (len(ids), ids.step) == (size, 1)
        above = ids[-1]
