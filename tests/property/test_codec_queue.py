"""What is stored of queues beside RFC 0001's records: round trips, damage that is always named as
such, and takers against a model that looks at one slot at a time.

Each value has one encoding, so whatever a decoder accepts must encode to the very bytes it was
given: damage is either refused or is a value that somebody could have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.queueoperation import (
    FORMS,
    LINES,
    SHEETS,
    Delta,
    HeadRow,
    Keys,
    PageKind,
    QueueHead,
    QueueOperation,
    SheetRow,
    encode_runs,
    read_runs,
)
from penstock.codec.queuestate import Entries
from penstock.codec.scalars import U64_MAX, Reader
from penstock.codec.taken import (
    DEAD,
    GONE,
    PAGE_SLOTS,
    TAKERS_MAX,
    TakenOperation,
    TakenPage,
    applied,
    decode_taken_operation,
    decode_taken_page,
    encode_taken_operation,
    encode_taken_page,
    touched,
)
from penstock.errors import CorruptError
from unit.codec import test_queueoperation, test_router, test_taken
from unit.codec.test_queueoperation import runs_bytes

# The machine may be busy, so no example is judged by its time.
calm = settings(deadline=None)
brief = settings(deadline=None, max_examples=50)

u8 = st.integers(0, 2**8 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
names = st.text(max_size=8)
few = st.integers(0, 3)


@st.composite
def rising(draw: st.DrawFn) -> Keys:
    """Neighbours, gaps of one and wide gaps: what runs are made of."""
    gaps = draw(st.lists(st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 2**50))))
    found = [draw(st.integers(0, 2**50) | st.just(U64_MAX - 1))]
    for gap in gaps:
        found.append(found[-1] + gap)
    kept = [key for key in found if key < U64_MAX]
    return np.array(kept[: draw(st.integers(0, len(kept)))], np.uint64)


def arrays(form: np.dtype[np.void]) -> st.SearchStrategy[Entries]:
    return few.flatmap(
        lambda count: st.binary(min_size=count * form.itemsize, max_size=count * form.itemsize).map(
            lambda raw: np.frombuffer(raw, form)
        )
    )


heads = st.builds(QueueHead, *[u64] * 12)


@st.composite
def deltas(draw: st.DrawFn, consumers: int) -> Delta:
    kind = draw(st.sampled_from(PageKind))
    put: Entries | None = draw(arrays(FORMS[kind])).copy()
    assert put is not None
    if kind is PageKind.IN_FLIGHT and consumers:
        put["consumer"] %= consumers
    if not len(put) or (kind is PageKind.IN_FLIGHT and not consumers):
        put = None
    return Delta(kind, draw(u64), draw(u8), draw(rising()), put)


@st.composite
def queue_operations(draw: st.DrawFn) -> QueueOperation:
    consumers = tuple(draw(st.lists(names, max_size=3)))
    changes = tuple(draw(st.lists(deltas(len(consumers)), max_size=3)))
    return QueueOperation(draw(heads), consumers, changes)


@st.composite
def taken_operations(draw: st.DrawFn) -> TakenOperation:
    taken = draw(rising())
    size = 2 * len(taken)
    counts = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), "<u2")
    return TakenOperation(taken, counts, draw(rising()), draw(rising()))


takers = st.sampled_from([0, 1, 2, TAKERS_MAX - 1, TAKERS_MAX, DEAD, GONE])


@st.composite
def taken_pages(draw: st.DrawFn) -> TakenPage:
    some = draw(st.dictionaries(st.integers(0, PAGE_SLOTS - 1), takers, max_size=5))
    return test_taken.page_of(test_taken.PAGE, some, draw(u64))


class Record(NamedTuple):
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    plain: Callable[[Any], Any]


def record(of: Any, row: str, values: st.SearchStrategy[Any]) -> Record:
    encode, decode = of.CODECS[row]
    return Record(values, encode, decode, getattr(of, "plain", lambda value: value))


RECORDS = {
    "queue operation": record(test_queueoperation, "operation", queue_operations()),
    "queue head row": record(
        test_queueoperation,
        "head row",
        st.builds(
            HeadRow,
            u64,
            names,
            heads,
            st.fixed_dictionaries({kind: arrays(SHEETS[kind]) for kind in PageKind}),
        ),
    ),
    "queue sheet row": record(
        test_queueoperation,
        "sheet",
        st.sampled_from(PageKind).flatmap(
            lambda kind: st.builds(SheetRow, st.just(kind), u64, arrays(LINES[kind]))
        ),
    ),
    "taken page": record(test_taken, "page", taken_pages()),
    "taken head row": record(test_taken, "head row", u64),
    "taken operation": record(test_taken, "operation", taken_operations()),
    "cursor": record(test_router, "cursor", u64),
    "expiry": record(test_router, "expiry", u32),
}
every_record = pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)


def test_every_codec_has_a_strategy() -> None:
    codecs = sum(len(of.CODECS) for of in (test_queueoperation, test_taken, test_router))
    assert len(RECORDS) == codecs


def accepts(record: Record, data: bytes) -> bool:
    """Whether the decoder takes these bytes; every other exception than CorruptError escapes."""
    try:
        value = record.decode(data)
    except CorruptError:
        return False
    assert record.encode(value) == data
    return True


@pytest.fixture(autouse=True, scope="module")
def few_keys() -> Any:
    """A damaged length is mostly below the real limit: thousands of long lists, to no avail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.codec.queueoperation.RUN_KEYS_MAX", 1 << 12)
        yield


@every_record
@calm
@given(data=st.data())
def test_what_is_encoded_is_decoded(record: Record, data: st.DataObject) -> None:
    value = data.draw(record.values)
    raw = record.encode(value)
    assert record.plain(record.decode(raw)) == record.plain(value)
    assert accepts(record, raw)


@every_record
@brief
@given(data=st.data(), more=st.binary(min_size=1, max_size=8))
def test_every_truncation_and_anything_behind_is_corrupt(
    record: Record, data: st.DataObject, more: bytes
) -> None:
    raw = record.encode(data.draw(record.values))
    ends = range(len(raw))
    if len(raw) > 500:  # a page: its slots are all alike
        ends = data.draw(st.sampled_from([range(20), range(len(raw) - 20, len(raw))]))
    assert [end for end in ends if accepts(record, raw[:end])] == []
    assert not accepts(record, raw + more)


@every_record
@brief
@given(data=st.data(), flip=st.integers(1, 255))
def test_a_changed_byte_is_corrupt_or_another_value(
    record: Record, data: st.DataObject, flip: int
) -> None:
    raw = record.encode(data.draw(record.values))
    for at, byte in enumerate(raw[:500]):
        accepts(record, raw[:at] + bytes((byte ^ flip,)) + raw[at + 1 :])


# Mostly small bytes: they are counts and lengths that reach far into the rest.
noise = st.binary(max_size=120) | st.lists(
    st.integers(0, 5) | st.integers(0, 255), max_size=120
).map(bytes)


@every_record
@calm
@given(data=noise)
def test_arbitrary_bytes_are_corrupt_or_a_value(record: Record, data: bytes) -> None:
    for raw in (data, b"\x01" + data, bytes(96) + data, b"\x01" + bytes(106) + data):
        accepts(record, raw)


# ---- runs ---------------------------------------------------------------------------------------


def naive_runs(keys: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for key in keys:
        if found and sum(found[-1]) == key:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((key, 1))
    return found


@calm
@given(keys=rising())
def test_runs_are_as_long_as_they_can_be(keys: Keys) -> None:
    raw = encode_runs(keys)
    assert raw == runs_bytes(*naive_runs(keys.tolist()))
    reader = Reader(raw, "runs")
    found = read_runs(reader, "it")
    reader.end()
    assert found.dtype == np.uint64
    assert found.tolist() == keys.tolist()


places = st.integers(0, 12) | st.integers(U64_MAX - 5, U64_MAX)


@calm
@given(runs=st.lists(st.tuples(places, st.integers(0, 4)), max_size=4))
def test_runs_are_read_exactly_when_they_rise_and_leave_room_between(
    runs: list[tuple[int, int]],
) -> None:
    above = -1
    fine = True
    for first, length in runs:
        fine = fine and length > 0 and first > above and first + length <= U64_MAX
        above = first + length
    try:
        found = read_runs(Reader(runs_bytes(*runs), "runs"), "it")
    except CorruptError:
        assert not fine
    else:
        assert fine
        assert found.tolist() == [first + i for first, length in runs for i in range(length)]


# ---- takers -------------------------------------------------------------------------------------


def naive(now: int, taken: int | None, released: bool, gone: bool) -> int:
    """One slot, from the drawing in taken.py."""
    if taken and now != GONE:
        now = min((0 if now == DEAD else now) + taken, 65_533)
    # From the most on nobody knows how many there are, so that it stays.
    if released and 0 < now < 65_533:
        now = now - 1 or DEAD
    return GONE if gone else now


# Three pages, mostly at their edges; a small world, so that changes meet.
offsets = st.sampled_from([0, 1, 2, 1022, 1023, 1024, 1025, 2047, 2048, 3071]) | st.integers(
    0, 3 * PAGE_SLOTS - 1
)
counts = st.sampled_from([0, 1, 1, 2, 3, TAKERS_MAX - 2, 65_535])
changes = st.lists(
    st.tuples(st.dictionaries(offsets, counts, max_size=6), *[st.sets(offsets, max_size=6)] * 2),
    max_size=6,
)


@calm
@given(
    base=st.sampled_from([0, 7, 2**40, 2**54 - 3]),
    before=st.dictionaries(offsets, takers, max_size=6),
    steps=changes,
)
def test_takers_change_as_a_model_of_single_slots_says(
    base: int,
    before: dict[int, int],
    steps: list[tuple[dict[int, int], set[int], set[int]]],
) -> None:
    first = base * PAGE_SLOTS
    pages = {}
    for n in range(3):
        here = {at % PAGE_SLOTS: now for at, now in before.items() if at // PAGE_SLOTS == n}
        pages[base + n] = test_taken.page_of(base + n, here)
    model = {at: before.get(at, 0) for at in range(3 * PAGE_SLOTS)}
    # The very last u64 is nobody's offset.
    able = [at for at in model if first + at < U64_MAX]
    for sequence, (taken, released, gone) in enumerate(steps, 1):
        named = sorted((taken.keys() | released | gone) & set(able))
        for at in named:
            model[at] = naive(model[at], taken.get(at), at in released, at in gone)
        operation = TakenOperation(
            np.array([first + at for at in named if at in taken], np.uint64),
            np.array([taken[at] for at in named if at in taken], np.uint16),
            np.array([first + at for at in named if at in released], np.uint64),
            np.array([first + at for at in named if at in gone], np.uint64),
        )
        # As it is after an opening: from stored bytes alone.
        operation = decode_taken_operation(encode_taken_operation(operation))
        assert touched(operation) == sorted({base + at // PAGE_SLOTS for at in named})
        for number in pages:
            old = pages[number].slots.tolist()
            new = applied(pages[number], operation, sequence)
            assert pages[number].slots.tolist() == old
            assert (new.number, new.sequence) == (number, sequence)
            if number not in touched(operation):
                assert new.slots.tolist() == old
            pages[number] = decode_taken_page(number, encode_taken_page(new))
    found = np.concatenate([page.slots for page in pages.values()]).tolist()
    wrong = {at: (found[at], now) for at, now in model.items() if found[at] != now}
    assert wrong == {}
