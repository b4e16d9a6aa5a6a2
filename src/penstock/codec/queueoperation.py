"""What one commit did to a queue, and the queue's head row. Pure.

    operation    head | consumers: count (u16), Utf8 each | deltas: count (u32), delta each
    delta        kind (u8) | page (u64) | priority (u8) | removed (runs)
                 | put: count (u32), entries
    runs         count (u32) | firsts (u64 each) | lengths (u32 each)
    head         twelve u64, in the order of `QueueHead`
    head row     version (u8 = 2) | sequence (u64) | name (Utf8) | head
                 | sheets of each kind: count (u32), sheet each
    sheet row    version (u8 = 1) | kind (u8) | sequence (u64) | lines: count (u32), line each
    head row 1   version (u8 = 1) | sequence (u64) | name (Utf8) | head
                 | lines of each kind: count (u32), line each

Contract     A delta changes one page: entries with these keys go, then these are put in their
             place. A page's key is the message id, or the lease number where it is in flight.
             Whoever has the page as it was before can say what it is after, without any other page;
             that is why whole entries stand here and not what was decided. A line tells of a page,
             and lines stand on sheets, which have rows of their own: page `kind << 56 | sheet` of
             the queue (keys.py). Of a sheet the head row keeps where it begins and what its lines
             come to. Entries, lines and sheets are the bytes of numpy arrays. Head rows of version
             1 hold all lines themselves; they are read, and written as version 2.
Invariants   Runs rise and do not touch. Each value has one encoding.
Not here     what is decided (queue/), the rows of pages (queuestate.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.queuestate import AVAILABLE, DONE, FAILED, IN_FLIGHT, Entries
from penstock.codec.scalars import (
    U64_MAX,
    Reader,
    encode_u8,
    encode_u16,
    encode_u32,
    encode_u64,
    encode_utf8,
)
from penstock.errors import InvalidError

Keys = npt.NDArray[np.uint64]
NO_KEYS: Keys = np.zeros(0, np.uint64)
#: How many keys one list of an operation may name: a few damaged bytes must not fill the memory.
RUN_KEYS_MAX = 1 << 22

_HEAD_VERSION = 2
_SHEET_VERSION = 1
_NO_RUNS = bytes(4)


class PageKind(IntEnum):
    AVAILABLE = 0
    IN_FLIGHT = 1
    DONE = 2
    FAILED = 3


FORMS: dict[PageKind, np.dtype[np.void]] = {
    PageKind.AVAILABLE: AVAILABLE,
    PageKind.IN_FLIGHT: IN_FLIGHT,
    PageKind.DONE: DONE,
    PageKind.FAILED: FAILED,
}
#: The field that names an entry within its page.
KEY_FIELD = {
    PageKind.AVAILABLE: "message_id",
    PageKind.IN_FLIGHT: "lease_number",
    PageKind.DONE: "message_id",
    PageKind.FAILED: "message_id",
}

#: What memory keeps of a page: enough to know which one a request needs.
LINES: dict[PageKind, np.dtype[np.void]] = {
    PageKind.AVAILABLE: np.dtype(
        [
            ("page", "<u8"),
            ("count", "<u4"),
            ("priority", "u1"),
            ("first_visible_ms", "<i8"),
            ("first_id", "<u8"),
            ("last_visible_ms", "<i8"),
            ("retention_ms", "<i8"),  # the earliest deadline
        ]
    ),
    PageKind.IN_FLIGHT: np.dtype([("page", "<u8"), ("count", "<u4"), ("deadline_ms", "<i8")]),
    PageKind.DONE: np.dtype(
        [("page", "<u8"), ("count", "<u4"), ("first_ms", "<i8"), ("last_ms", "<i8")]
    ),
    PageKind.FAILED: np.dtype([("page", "<u8"), ("count", "<u4")]),
}

_SHEET = [
    ("sheet", "<u8"),  # its number
    ("sequence", "<u8"),  # of the last operation that changed one of its lines
    ("lines", "<u4"),
    ("count", "<u8"),  # entries of all its pages
]
#: What the head keeps of a sheet: the place of its first line in the order of lines (`key_...`),
#: and the earliest or latest of what its lines say.
SHEETS: dict[PageKind, np.dtype[np.void]] = {
    PageKind.AVAILABLE: np.dtype(
        [
            *_SHEET,
            ("key_priority", "u1"),
            ("key_visible_ms", "<i8"),
            ("key_id", "<u8"),
            ("first_visible_ms", "<i8"),
            ("last_visible_ms", "<i8"),
            ("retention_ms", "<i8"),
        ]
    ),
    PageKind.IN_FLIGHT: np.dtype([*_SHEET, ("key_page", "<u8"), ("deadline_ms", "<i8")]),
    PageKind.DONE: np.dtype(
        [*_SHEET, ("key_page", "<u8"), ("first_ms", "<i8"), ("last_ms", "<i8")]
    ),
    PageKind.FAILED: np.dtype([*_SHEET, ("key_page", "<u8")]),
}
_KIND_SHIFT = 56
#: Above the number of every sheet.
SHEET_MAX = (1 << _KIND_SHIFT) - 1


class QueueHead(msgspec.Struct, frozen=True):
    """Numbers of a queue as they are after an operation."""

    next_lease: int = 1  # lease numbers are never used twice
    next_available: int = 1  # numbers of the next pages; 0 of each is made with the queue
    next_done: int = 1
    next_failed: int = 1
    routed: int = 0  # messages that ever entered
    done: int = 0  # acknowledged, whether they are still listed or not
    failed: int = 0  # failed for good, whether they are still listed or not
    expired: int = 0  # left by their retention
    purged: int = 0
    start: int = 0  # the router gives it messages from this offset of the metadata log on
    backfill: int = 0  # older ones are looked at from here
    backfill_end: int = 0  # to here


_HEAD = struct.Struct("<12Q")
_ONE_RUN = struct.Struct("<IQI")


class Delta(msgspec.Struct, frozen=True, eq=False):
    kind: PageKind
    page: int
    priority: int = 0  # of an available page, which its key carries
    removed: Keys = NO_KEYS  # rising
    put: Entries | None = None


class QueueOperation(msgspec.Struct, frozen=True, eq=False):
    head: QueueHead
    consumers: tuple[str, ...] = ()  # put["consumer"] counts in here
    deltas: tuple[Delta, ...] = ()


def encode_queue_operation(operation: QueueOperation) -> bytes:
    parts = [
        _encode_head(operation.head),
        encode_u16(len(operation.consumers), "consumers"),
        *(encode_utf8(name, "consumer") for name in operation.consumers),
        encode_u32(len(operation.deltas), "deltas"),
    ]
    for delta in operation.deltas:
        put = delta.put
        assert put is None or put.dtype == FORMS[delta.kind], "entries of another kind"
        assert _names_are_there(delta.kind, put, len(operation.consumers)), "a consumer is missing"
        parts += (
            encode_u8(delta.kind, "kind"),
            encode_u64(delta.page, "page"),
            encode_u8(delta.priority, "priority"),
            encode_runs(delta.removed),
            encode_u32(0 if put is None else len(put), "entries"),
            b"" if put is None else put.tobytes(),
        )
    return b"".join(parts)


def decode_queue_operation(data: bytes) -> QueueOperation:
    reader = Reader(data, "queue operation")
    head = _read_head(reader)
    consumers = tuple(reader.utf8("consumer") for _ in range(reader.u16("consumers")))
    deltas = tuple(
        _read_delta(reader, len(consumers)) for _ in range(reader.u32("number of deltas"))
    )
    reader.end()
    return QueueOperation(head, consumers, deltas)


class Cuts(msgspec.Struct, frozen=True):
    """Where the deltas of each page stand in an operation, so that a page reads its own alone."""

    consumers: tuple[str, ...]
    places: dict[tuple[PageKind, int, int], list[int]]  # kind, page, priority -> beginnings


def cut_queue_operation(data: bytes) -> Cuts:
    """A walk over the body; what it steps over is checked when it is read."""
    reader = Reader(data, "queue operation")
    _read_head(reader)
    consumers = tuple(reader.utf8("consumer") for _ in range(reader.u16("consumers")))
    places: dict[tuple[PageKind, int, int], list[int]] = {}
    for _ in range(reader.u32("number of deltas")):
        at = reader.at
        kind = _read_kind(reader)
        page, priority = reader.u64("page"), reader.u8("priority")
        reader.take(12 * reader.u32("runs of removed"), "removed")
        reader.take(FORMS[kind].itemsize * reader.u32("number of entries"), "entries")
        places.setdefault((kind, page, priority), []).append(at)
    reader.end()
    return Cuts(consumers, places)


def read_deltas(data: bytes, cuts: Cuts, place: tuple[PageKind, int, int]) -> list[Delta]:
    """Those of one page, in order."""
    found: list[Delta] = []
    for at in cuts.places.get(place, ()):
        reader = Reader(data, "queue operation")
        reader.at = at
        found.append(_read_delta(reader, len(cuts.consumers)))
    return found


def _encode_head(head: QueueHead) -> bytes:
    try:
        return _HEAD.pack(*msgspec.structs.astuple(head))
    except struct.error:
        raise InvalidError(f"a number does not fit a u64: {head}") from None


def _read_head(reader: Reader) -> QueueHead:
    return QueueHead(*_HEAD.unpack(reader.take(_HEAD.size, "head")))


def _read_delta(reader: Reader, consumers: int) -> Delta:
    kind = _read_kind(reader)
    page, priority = reader.u64("page"), reader.u8("priority")
    removed = read_runs(reader, "removed")
    count = reader.u32("number of entries")
    form = FORMS[kind]
    put = np.frombuffer(reader.take(count * form.itemsize, "entries"), form) if count else None
    if not _names_are_there(kind, put, consumers):
        raise reader.fail("entries", "name a consumer that is not there")
    return Delta(kind, page, priority, removed, put)


def _read_kind(reader: Reader) -> PageKind:
    at = reader.at
    number = reader.u8("kind")
    if number not in PageKind._value2member_map_:
        reader.at = at
        raise reader.fail("kind", f"is unknown: {number}")
    return PageKind(number)


def _names_are_there(kind: PageKind, put: Entries | None, consumers: int) -> bool:
    if kind != PageKind.IN_FLIGHT or put is None or not len(put):
        return True
    return int(put["consumer"].max()) < consumers


# ---- keys as runs -------------------------------------------------------------------------------


def encode_runs(keys: Keys) -> bytes:
    if not len(keys):
        return _NO_RUNS
    if len(keys) > RUN_KEYS_MAX:
        raise InvalidError(f"{len(keys)} keys in one list; at most {RUN_KEYS_MAX} are allowed")
    # What the reader would refuse must not become durable.
    assert (keys[1:] > keys[:-1]).all(), "keys do not rise"
    first, last = int(keys[0]), int(keys[-1])
    assert last < U64_MAX, "the last u64 is nobody's key"
    if last - first == len(keys) - 1:  # nearly always one run
        return _ONE_RUN.pack(1, first, len(keys))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys) != 1) + 1))
    lengths = np.diff(np.concatenate((starts, [len(keys)])))
    return b"".join(
        (
            encode_u32(len(starts), "runs"),
            keys[starts].astype("<u8").tobytes(),
            lengths.astype("<u4").tobytes(),
        )
    )


def read_runs(reader: Reader, what: str) -> Keys:
    count = reader.u32(f"runs of {what}")
    if not count:
        return NO_KEYS
    firsts: Keys = np.frombuffer(reader.take(8 * count, f"firsts of {what}"), "<u8")
    lengths = np.frombuffer(reader.take(4 * count, f"lengths of {what}"), "<u4").astype(np.uint64)
    total = int(lengths.sum())
    # Checked before anything is allocated for them.
    if not 0 < int(lengths.min()) <= total <= RUN_KEYS_MAX:
        raise reader.fail(what, "has runs that cannot be")
    ends = firsts + lengths
    if (ends <= firsts).any() or (firsts[1:] <= ends[:-1]).any():  # touching ones would be one run
        raise reader.fail(what, "has runs that do not rise")
    before: Keys = np.zeros(len(lengths), np.uint64)
    np.cumsum(lengths[:-1], out=before[1:])
    # Unsigned numbers wrap, and wrap back.
    starts = np.repeat(firsts - before, lengths.astype(np.int64))
    keys: Keys = starts + np.arange(total, dtype=np.uint64)
    return keys


# ---- the head row and its sheets ----------------------------------------------------------------


class HeadRow(msgspec.Struct, frozen=True, eq=False):
    sequence: int  # of the last operation that is in this row
    name: str
    head: QueueHead
    sheets: dict[PageKind, Entries]
    #: Of a row of version 1: all lines, and no sheets.
    lines: dict[PageKind, Entries] | None = None


def encode_head_row(row: HeadRow) -> bytes:
    assert row.lines is None, "version 1 is written no more"
    parts = [
        encode_u8(_HEAD_VERSION, "version"),
        encode_u64(row.sequence, "sequence"),
        encode_utf8(row.name, "queue name"),
        _encode_head(row.head),
    ]
    for kind in PageKind:
        parts.append(_encode_table(row.sheets[kind], SHEETS[kind], "sheets"))
    return b"".join(parts)


def decode_head_row(data: bytes, what: str) -> HeadRow:
    reader = Reader(data, what)
    version = reader.u8("version")
    if version not in (1, _HEAD_VERSION):
        raise reader.fail("version", f"is {version}, not {_HEAD_VERSION}")
    sequence, name, head = reader.u64("sequence"), reader.utf8("name"), _read_head(reader)
    if version == 1:
        lines = {
            kind: _read_table(reader, LINES[kind], f"lines of {kind.name}") for kind in PageKind
        }
        sheets = {kind: np.zeros(0, SHEETS[kind]) for kind in PageKind}
        row = HeadRow(sequence, name, head, sheets, lines)
    else:
        sheets = {
            kind: _read_table(reader, SHEETS[kind], f"sheets of {kind.name}") for kind in PageKind
        }
        row = HeadRow(sequence, name, head, sheets)
    reader.end()
    return row


def sheet_number(kind: PageKind, sheet: int) -> int:
    """Which page of the queue (keys.py) a sheet is."""
    assert sheet <= SHEET_MAX, "no queue had so many sheets"
    return kind << _KIND_SHIFT | sheet


class SheetRow(msgspec.Struct, frozen=True, eq=False):
    kind: PageKind
    sequence: int  # of the last operation that changed one of these lines
    lines: Entries


def encode_sheet(row: SheetRow) -> bytes:
    return b"".join(
        (
            encode_u8(_SHEET_VERSION, "version"),
            encode_u8(row.kind, "kind"),
            encode_u64(row.sequence, "sequence"),
            _encode_table(row.lines, LINES[row.kind], "lines"),
        )
    )


def decode_sheet(data: bytes, what: str) -> SheetRow:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _SHEET_VERSION:
        raise reader.fail("version", f"is {version}, not {_SHEET_VERSION}")
    kind = _read_kind(reader)
    row = SheetRow(
        kind, reader.u64("sequence"), _read_table(reader, LINES[kind], f"lines of {kind.name}")
    )
    reader.end()
    return row


def _encode_table(rows: Entries, form: np.dtype[np.void], what: str) -> bytes:
    assert rows.dtype == form, f"{what} of another kind"
    return encode_u32(len(rows), what) + rows.tobytes()


def _read_table(reader: Reader, form: np.dtype[np.void], what: str) -> Entries:
    count = reader.u32(what)
    return np.frombuffer(reader.take(count * form.itemsize, what), form)


def join(form: np.dtype[np.void], parts: Sequence[Entries]) -> Entries:
    """One array of all, read-only: numpy's own copies of entries go field by field, in thirty times
    as long."""
    if len(parts) == 1:
        return parts[0]
    return np.frombuffer(b"".join([part.tobytes() for part in parts]), form)


def pick(entries: Entries, which: npt.NDArray[np.bool_ | np.integer]) -> Entries:
    """entries[which], as whole entries: numpy would copy each field of each by itself."""
    chosen: Entries = entries.view(_whole(entries.dtype))[which].view(entries.dtype)
    return chosen


def copy_of(entries: Entries) -> Entries:
    """One that may be changed."""
    return np.frombuffer(bytearray(entries.tobytes()), entries.dtype)


@lru_cache
def _whole(form: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype((np.void, form.itemsize))
