"""Golden bytes and damage of what a commit did to a queue, and of the queue's head row.

The vectors are {"row", "name", "value", "hex", "note"}, written from the drawing in the codec file
and not from the encoders' output. They are never edited. Head rows of version 1 are read only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.codec.queueoperation import (
    FORMS,
    KEY_FIELD,
    LINES,
    NO_KEYS,
    RUN_KEYS_MAX,
    SHEET_MAX,
    SHEETS,
    Delta,
    HeadRow,
    Keys,
    PageKind,
    QueueHead,
    QueueOperation,
    SheetRow,
    decode_head_row,
    decode_queue_operation,
    decode_sheet,
    encode_head_row,
    encode_queue_operation,
    encode_runs,
    encode_sheet,
    join,
    read_runs,
    sheet_number,
)
from penstock.codec.queuestate import Entries
from penstock.codec.scalars import U64_MAX, Reader
from penstock.errors import CorruptError, InvalidError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "queueoperation.json").read_text())
HEAD_BYTES = 12 * 8
MANY = b"\xff\xff\xff\xff"
NO_SHEETS = {kind: np.zeros(0, SHEETS[kind]) for kind in PageKind}


def keys(*values: int) -> Keys:
    return np.array(values, np.uint64)


def entries(rows: list[list[int]], form: np.dtype[np.void]) -> Entries:
    return np.array([tuple(row) for row in rows], form)


def build_delta(value: Any) -> Delta:
    kind = PageKind(value["kind"])
    put = entries(value["put"], FORMS[kind]) if value["put"] else None
    return Delta(kind, value["page"], value["priority"], keys(*value["removed"]), put)


def build(row: str, value: Any) -> Any:
    if row == "sheet":
        kind = PageKind(value["kind"])
        return SheetRow(kind, value["sequence"], entries(value["lines"], LINES[kind]))
    head = QueueHead(**value["head"])
    match row:
        case "operation":
            deltas = tuple(map(build_delta, value["deltas"]))
            return QueueOperation(head, tuple(value["consumers"]), deltas)
        case "head row":
            rows = value.get("sheets", [[], [], [], []])
            sheets = {kind: entries(rows[kind], SHEETS[kind]) for kind in PageKind}
            lines = None
            if "lines" in value:
                lines = {kind: entries(value["lines"][kind], LINES[kind]) for kind in PageKind}
            return HeadRow(value["sequence"], value["name"], head, sheets, lines)
    raise AssertionError(row)


CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "operation": (encode_queue_operation, decode_queue_operation),
    "head row": (encode_head_row, lambda data: decode_head_row(data, "head row")),
    "sheet": (encode_sheet, lambda data: decode_sheet(data, "sheet")),
}


def plain(value: Any) -> Any:
    """Comparable: structs with arrays have no equality of their own."""
    match value:
        case QueueOperation() | HeadRow() | SheetRow() | Delta():
            return {name: plain(item) for name, item in msgspec.structs.asdict(value).items()}
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case tuple():
            return [plain(item) for item in value]
        case np.ndarray():
            return value.dtype, value.tolist()
    return value


def vectors(*rows: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "vector",
        [
            pytest.param(vector, id=f"{vector['row']}: {vector['name']}")
            for vector in VECTORS
            if not rows or vector["row"] in rows
        ],
    )


def test_every_codec_has_vectors() -> None:
    assert {vector["row"] for vector in VECTORS} == set(CODECS)


def test_every_kind_of_page_has_vectors() -> None:
    operations = [vector["value"] for vector in VECTORS if vector["row"] == "operation"]
    put = {delta["kind"] for value in operations for delta in value["deltas"] if delta["put"]}
    assert put == set(PageKind) == set(FORMS) == set(LINES) == set(SHEETS) == set(KEY_FIELD)
    sheets = {vector["value"]["kind"] for vector in VECTORS if vector["row"] == "sheet"}
    assert sheets == set(PageKind)


@vectors()
def test_each_vector_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    encode, decode = CODECS[vector["row"]]
    value, golden = build(vector["row"], vector["value"]), bytes.fromhex(vector["hex"])
    if getattr(value, "lines", None) is None or vector["row"] != "head row":
        assert encode(value).hex(" ") == golden.hex(" ")
    assert plain(decode(golden)) == plain(value)


@vectors()
def test_every_truncation_and_every_longer_row_is_corrupt(vector: dict[str, Any]) -> None:
    raw, decode = bytes.fromhex(vector["hex"]), CODECS[vector["row"]][1]
    for end in range(len(raw)):
        with pytest.raises(CorruptError):
            decode(raw[:end])
    with pytest.raises(CorruptError, match="left over"):
        decode(raw + b"\x00")


@vectors("head row")
@pytest.mark.parametrize("version", [0, 3, 255])
def test_another_version_is_corrupt(vector: dict[str, Any], version: int) -> None:
    raw = bytes((version,)) + bytes.fromhex(vector["hex"])[1:]
    with pytest.raises(CorruptError, match=f"is {version}, not 2"):
        decode_head_row(raw, "head row")


@vectors("sheet")
@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_sheet_of_another_version_or_kind_is_corrupt(
    vector: dict[str, Any], version: int
) -> None:
    raw = bytes.fromhex(vector["hex"])
    with pytest.raises(CorruptError, match=f"is {version}, not 1"):
        decode_sheet(bytes((version,)) + raw[1:], "sheet")
    with pytest.raises(CorruptError, match="kind at byte 1 is unknown: 4"):
        decode_sheet(raw[:1] + b"\x04" + raw[2:], "sheet")


def test_a_head_row_of_version_1_is_not_written() -> None:
    lines = {kind: np.zeros(0, LINES[kind]) for kind in PageKind}
    with pytest.raises(AssertionError, match="version 1"):
        encode_head_row(HeadRow(0, "q", QueueHead(), NO_SHEETS, lines))


def test_sheets_of_a_kind_are_neighbours_and_in_order() -> None:
    numbers = [sheet_number(kind, at) for kind in PageKind for at in (0, 1, SHEET_MAX)]
    assert numbers == sorted(numbers)
    with pytest.raises(AssertionError, match="so many"):
        sheet_number(PageKind.AVAILABLE, SHEET_MAX + 1)


# ---- deltas -------------------------------------------------------------------------------------


def operation_bytes(kind: int = 0, runs: bytes = bytes(4), put: bytes = bytes(4)) -> bytes:
    """An operation without consumers, with one delta; this many bytes stand before its kind."""
    return bytes(HEAD_BYTES + 2) + struct.pack("<IBQB", 1, kind, 3, 0) + runs + put


DELTA_AT = HEAD_BYTES + 2 + 4


@pytest.mark.parametrize("kind", [4, 255])
def test_an_unknown_kind_of_page_is_corrupt(kind: int) -> None:
    with pytest.raises(CorruptError, match=f"kind at byte {DELTA_AT} is unknown: {kind}"):
        decode_queue_operation(operation_bytes(kind=kind))


def flight(*consumers: int) -> Entries:
    found = np.zeros(len(consumers), FORMS[PageKind.IN_FLIGHT])
    found["consumer"] = consumers
    return found


@pytest.mark.parametrize(
    ("names", "held"),
    [((), [0]), (("a",), [1]), (("a", "b"), [0, 2, 1]), (("a", "b"), [65535])],
)
def test_a_lease_names_one_of_the_operations_consumers(
    names: tuple[str, ...], held: list[int]
) -> None:
    put = flight(*held)
    stored = b"".join(
        (
            bytes(HEAD_BYTES),
            struct.pack("<H", len(names)),
            *(struct.pack("<H", len(name)) + name.encode() for name in names),
            struct.pack("<IBQBII", 1, PageKind.IN_FLIGHT, 3, 0, 0, len(put)),
            put.tobytes(),
        )
    )
    with pytest.raises(CorruptError, match="name a consumer that is not there"):
        decode_queue_operation(stored)
    # What could not be read must not be written.
    delta = Delta(PageKind.IN_FLIGHT, 3, put=put)
    with pytest.raises(AssertionError, match="consumer"):
        encode_queue_operation(QueueOperation(QueueHead(), names, (delta,)))


def test_the_last_of_the_consumers_may_hold_a_lease() -> None:
    delta = Delta(PageKind.IN_FLIGHT, 3, put=flight(0, 1))
    operation = QueueOperation(QueueHead(), ("a", "b"), (delta,))
    assert plain(decode_queue_operation(encode_queue_operation(operation))) == plain(operation)


def test_no_entries_and_an_array_of_none_are_the_same_delta() -> None:
    for kind in PageKind:
        none, empty = Delta(kind, 3), Delta(kind, 3, put=np.zeros(0, FORMS[kind]))
        encoded = encode_queue_operation(QueueOperation(QueueHead(), (), (none,)))
        assert encode_queue_operation(QueueOperation(QueueHead(), (), (empty,))) == encoded
        assert decode_queue_operation(encoded).deltas[0].put is None


def test_entries_with_gaps_in_memory_are_encoded_without_them() -> None:
    every = np.zeros(4, FORMS[PageKind.DONE])
    every["message_id"] = [1, 2, 3, 4]
    delta = Delta(PageKind.DONE, 3, put=every[::2])
    encoded = encode_queue_operation(QueueOperation(QueueHead(), (), (delta,)))
    (found,) = decode_queue_operation(encoded).deltas
    assert found.put is not None
    assert found.put["message_id"].tolist() == [1, 3]


def test_entries_and_lines_of_another_kind_are_a_bug() -> None:
    delta = Delta(PageKind.DONE, 3, put=np.zeros(1, FORMS[PageKind.FAILED]))
    with pytest.raises(AssertionError, match="another kind"):
        encode_queue_operation(QueueOperation(QueueHead(), (), (delta,)))
    sheets = dict.fromkeys(PageKind, np.zeros(0, SHEETS[PageKind.DONE]))
    with pytest.raises(AssertionError, match="another kind"):
        encode_head_row(HeadRow(0, "q", QueueHead(), sheets))
    with pytest.raises(AssertionError, match="another kind"):
        encode_sheet(SheetRow(PageKind.DONE, 1, np.zeros(1, LINES[PageKind.FAILED])))


def test_counts_are_checked_before_anything_is_allocated() -> None:
    with pytest.raises(CorruptError, match="kind at byte"):
        decode_queue_operation(bytes(HEAD_BYTES + 2) + MANY)
    with pytest.raises(CorruptError, match="length of consumer at byte"):
        decode_queue_operation(bytes(HEAD_BYTES) + MANY[:2])
    with pytest.raises(CorruptError, match=r"firsts of removed at byte .* needs 34359738360"):
        decode_queue_operation(operation_bytes(runs=MANY))
    for kind in PageKind:
        with pytest.raises(CorruptError, match=r"entries at byte .* 0 are left"):
            decode_queue_operation(operation_bytes(kind=kind, put=MANY))
    for version, what in enumerate(("lines", "sheets"), 1):
        row = bytes((version,)) + bytes(8 + 2 + HEAD_BYTES)
        for i, kind in enumerate(PageKind):
            with pytest.raises(CorruptError, match=f"{what} of {kind.name} at byte .* 0 are left"):
                decode_head_row(row + bytes(4 * i) + MANY, "head row")
    for kind in PageKind:
        with pytest.raises(CorruptError, match=f"lines of {kind.name} at byte .* 0 are left"):
            decode_sheet(bytes((1, kind)) + bytes(8) + MANY, "sheet")


# ---- runs ---------------------------------------------------------------------------------------


def runs_bytes(*runs: tuple[int, int]) -> bytes:
    """Runs of (first, length), whether they may be or not."""
    count = len(runs)
    return struct.pack(
        f"<I{count}Q{count}I", count, *(first for first, _ in runs), *(size for _, size in runs)
    )


#: (runs, how the refusal goes on)
BAD_RUNS: list[tuple[list[tuple[int, int]], str]] = [
    ([(5, 0)], "cannot be"),
    ([(1, 1), (5, 0)], "cannot be"),
    ([(5, 0), (5, 1)], "cannot be"),
    ([(0, RUN_KEYS_MAX + 1)], "cannot be"),
    ([(0, RUN_KEYS_MAX), (RUN_KEYS_MAX + 5, 1)], "cannot be"),
    ([(0, 2**32 - 1)] * 3, "cannot be"),
    ([(5, 1), (4, 1)], "do not rise"),
    ([(5, 1), (5, 1)], "do not rise"),
    ([(5, 3), (7, 1)], "do not rise"),
    ([(5, 3), (8, 1)], "do not rise"),  # they touch
    ([(1, 1), (9, 2), (3, 1)], "do not rise"),
    ([(U64_MAX, 1)], "do not rise"),
    ([(U64_MAX - 1, 2)], "do not rise"),
    ([(U64_MAX - 1, 3)], "do not rise"),  # beyond the last u64, to 0
    ([(U64_MAX - 1, 9), (20, 1)], "do not rise"),  # beyond it, and rising from there
]


@pytest.mark.parametrize(("runs", "words"), BAD_RUNS)
def test_runs_that_no_encoder_makes_are_corrupt(runs: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(CorruptError, match=f"it at byte .* has runs that {words}"):
        read_runs(Reader(runs_bytes(*runs), "runs"), "it")
    with pytest.raises(CorruptError, match=f"removed at byte .* has runs that {words}"):
        decode_queue_operation(operation_bytes(runs=runs_bytes(*runs)))


def test_too_many_keys_are_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def allocate(*_: Any, **__: Any) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(np, "repeat", allocate)
    monkeypatch.setattr(np, "arange", allocate)
    with pytest.raises(CorruptError, match="cannot be"):
        read_runs(Reader(runs_bytes((0, 2**32 - 1)), "runs"), "it")
    # A list that may be stored costs a few megabytes, however few bytes name it.
    assert RUN_KEYS_MAX * 8 <= 32 << 20


def test_the_most_keys_of_one_list_are_fine_and_one_more_is_refused() -> None:
    found = read_runs(Reader(runs_bytes((7, RUN_KEYS_MAX)), "runs"), "it")
    assert (len(found), found[0], found[-1]) == (RUN_KEYS_MAX, 7, 7 + RUN_KEYS_MAX - 1)
    assert encode_runs(found) == runs_bytes((7, RUN_KEYS_MAX))
    with pytest.raises(InvalidError, match=f"at most {RUN_KEYS_MAX}"):
        encode_runs(np.arange(RUN_KEYS_MAX + 1, dtype=np.uint64))


def test_the_last_keys_there_can_be_are_read_back() -> None:
    last = keys(0, U64_MAX - 3, U64_MAX - 2, U64_MAX - 1)
    assert encode_runs(last) == runs_bytes((0, 1), (U64_MAX - 3, 3))
    assert read_runs(Reader(encode_runs(last), "runs"), "it").tolist() == last.tolist()


@pytest.mark.parametrize(
    "wrong", [(5, 5), (5, 4), (1, 2, 2, 3), (U64_MAX - 1, 0), (U64_MAX,)], ids=str
)
def test_keys_that_could_not_be_read_back_are_a_bug(wrong: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match=r"rise|nobody"):
        encode_runs(keys(*wrong))


def test_no_keys_have_no_runs() -> None:
    assert encode_runs(NO_KEYS) == bytes(4)
    assert read_runs(Reader(bytes(4), "runs"), "it").tolist() == []


# ---- values that do not fit ---------------------------------------------------------------------


@pytest.mark.parametrize("field", QueueHead.__struct_fields__)
@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_number_of_the_head_that_does_not_fit_is_refused(field: str, value: int) -> None:
    head = QueueHead(**{field: value})
    with pytest.raises(InvalidError, match="does not fit a u64"):
        encode_queue_operation(QueueOperation(head))
    with pytest.raises(InvalidError, match="does not fit a u64"):
        encode_head_row(HeadRow(0, "q", head, NO_SHEETS))


@pytest.mark.parametrize(
    "operation",
    [
        QueueOperation(QueueHead(), ("a",) * 65_536),
        QueueOperation(QueueHead(), ("a" * 65_536,)),
        QueueOperation(QueueHead(), ("\udcff",)),
        QueueOperation(QueueHead(), (), (Delta(PageKind.DONE, 2**64),)),
        QueueOperation(QueueHead(), (), (Delta(PageKind.DONE, -1),)),
        QueueOperation(QueueHead(), (), (Delta(PageKind.AVAILABLE, 1, 256),)),
    ],
    ids=["consumers", "long name", "surrogate", "page", "page below 0", "priority"],
)
def test_an_operation_that_does_not_fit_is_refused(operation: QueueOperation) -> None:
    with pytest.raises(InvalidError):
        encode_queue_operation(operation)


@pytest.mark.parametrize(("sequence", "name"), [(-1, "q"), (2**64, "q"), (0, "\udcff")])
def test_a_head_row_that_does_not_fit_is_refused(sequence: int, name: str) -> None:
    with pytest.raises(InvalidError):
        encode_head_row(HeadRow(sequence, name, QueueHead(), NO_SHEETS))


@pytest.mark.parametrize("sequence", [-1, 2**64])
def test_a_sheet_that_does_not_fit_is_refused(sequence: int) -> None:
    with pytest.raises(InvalidError):
        encode_sheet(SheetRow(PageKind.DONE, sequence, np.zeros(1, LINES[PageKind.DONE])))


def test_parts_are_put_together_also_where_there_are_none() -> None:
    for kind in PageKind:
        assert join(FORMS[kind], []).dtype == FORMS[kind]
        parts = [np.zeros(1, FORMS[kind]), np.ones(1, FORMS[kind])]
        together = join(FORMS[kind], parts)
        assert together.dtype == FORMS[kind]
        assert together.tolist() == parts[0].tolist() + parts[1].tolist()
