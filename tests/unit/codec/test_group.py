"""Golden bytes and damage of what is stored of groups: rows, pages, operations, their record.

The vectors are {"row", "name", "value", "hex", "note"}, written from the drawings in the codec
files and not from the encoders' output. They are never edited.
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

from penstock.codec.group import (
    OFFSET_MAX,
    OPERATION_OFFSETS,
    PAGE_SLOTS,
    GroupOperation,
    GroupRow,
    HeadRow,
    PageRow,
    decode_group,
    decode_group_operation,
    decode_head,
    decode_page,
    encode_group,
    encode_group_operation,
    encode_head,
    encode_page,
)
from penstock.codec.operations import (
    Operation,
    Owner,
    PagedView,
    decode_operations,
    encode_operations,
)
from penstock.errors import CorruptError, InvalidError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "group.json").read_text())
FORMS = {"slots": np.uint16, "deliveries": np.uint16}
LISTS = ("removed", "again", "fresh")


def build(row: str, value: Any) -> Any:
    match row:
        case "group":
            return GroupRow(**value)
        case "head":
            return HeadRow(**value)
        case "page":
            columns = ("slots", "deliveries", "retry", "expire")
            arrays: dict[str, Any] = {
                name: np.array(value[name], FORMS.get(name, np.int64)) for name in columns
            }
            return PageRow(value["sequence"], **arrays)
        case "operation":
            arrays = {name: np.array(value[name], np.int64) for name in LISTS}
            return GroupOperation(**(value | arrays))
        case "record":
            return [
                Operation(
                    Owner(PagedView[one.get("view", "GROUP")], one["id"]),
                    one["sequence"],
                    bytes.fromhex(one["body"]),
                )
                for one in value
            ]
    raise AssertionError(row)


CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "group": (encode_group, lambda data: decode_group(data, "group")),
    "head": (encode_head, lambda data: decode_head(data, "head")),
    "page": (encode_page, lambda data: decode_page(data, "page")),
    "operation": (encode_group_operation, decode_group_operation),
    "record": (encode_operations, decode_operations),
}


def plain(value: Any) -> Any:
    """Comparable: structs with arrays have no equality of their own."""
    if isinstance(value, PageRow | GroupOperation):
        return {
            name: item.tolist() if isinstance(item, np.ndarray) else item
            for name, item in msgspec.structs.asdict(value).items()
        }
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


@vectors()
def test_each_vector_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    encode, decode = CODECS[vector["row"]]
    value, golden = build(vector["row"], vector["value"]), bytes.fromhex(vector["hex"])
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


@vectors("group", "head", "page", "record")
@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_corrupt(vector: dict[str, Any], version: int) -> None:
    raw = bytes((version,)) + bytes.fromhex(vector["hex"])[1:]
    with pytest.raises(CorruptError, match=f"is {version}, not 1"):
        CODECS[vector["row"]][1](raw)


def page_bytes(*slots: int) -> bytes:
    count = len(slots)
    return struct.pack(
        f"<BQI{count}H{count}H{count}q{count}q",
        *(1, 1, count, *slots, *[1] * count, *[5] * count, *[6] * count),
    )


@pytest.mark.parametrize(
    "slots", [(1, 1), (2, 1), (0, 5, 4), (PAGE_SLOTS,), (0, 65535)], ids=lambda slots: str(slots)
)
def test_slots_of_a_page_rise_and_lie_in_it(slots: tuple[int, ...]) -> None:
    with pytest.raises(CorruptError, match="slots are not rising below 1024"):
        decode_page(page_bytes(*slots), "page")


def test_a_full_page_is_fine() -> None:
    assert len(decode_page(page_bytes(*range(PAGE_SLOTS)), "page").slots) == PAGE_SLOTS


def operation_bytes(*runs: tuple[int, int]) -> bytes:
    """An operation that removes these runs of (first, length)."""
    count = len(runs)
    packed = struct.pack(
        f"<I{count}Q{count}I", count, *(first for first, _ in runs), *(size for _, size in runs)
    )
    return struct.pack("<QQQqq", 0, 0, 0, 0, 0) + packed + bytes(8)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([(5, 0)], "cannot be"),
        ([(1, 1), (5, 0)], "cannot be"),
        ([(0, OPERATION_OFFSETS + 1)], "cannot be"),
        ([(0, OPERATION_OFFSETS), (OPERATION_OFFSETS + 5, 1)], "cannot be"),
        ([(0, 2**32 - 1)] * 3, "cannot be"),
        ([(OFFSET_MAX + 1, 1)], "cannot be"),
        ([(2**64 - 1, 1)], "cannot be"),
        ([(5, 1), (4, 1)], "do not rise"),
        ([(5, 3), (7, 1)], "do not rise"),
        ([(5, 1), (5, 1)], "do not rise"),
    ],
)
def test_runs_that_no_encoder_makes_are_corrupt(runs: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(CorruptError, match=f"removed at byte .* has runs that {words}"):
        decode_group_operation(operation_bytes(*runs))


def test_the_most_offsets_of_one_list_are_fine() -> None:
    found = decode_group_operation(operation_bytes((7, OPERATION_OFFSETS))).removed
    assert (len(found), found[0], found[-1]) == (OPERATION_OFFSETS, 7, 7 + OPERATION_OFFSETS - 1)
    encoded = encode_group_operation(GroupOperation(0, 0, 0, removed=found))
    assert encoded == operation_bytes((7, OPERATION_OFFSETS))


def test_counts_are_checked_before_anything_is_allocated() -> None:
    many = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptError, match="slots"):
        decode_page(b"\x01" + bytes(8) + many, "page")
    with pytest.raises(CorruptError, match="firsts of removed"):
        decode_group_operation(bytes(40) + many)
    with pytest.raises(CorruptError, match="view"):
        decode_operations(b"\x01" + many)


@pytest.mark.parametrize("view", [0, len(PagedView) + 1, 255])
def test_an_unknown_view_is_corrupt(view: int) -> None:
    operation = Operation(Owner(PagedView.GROUP, 1), 1, b"")
    raw = bytearray(encode_operations([operation]))
    raw[5] = view
    with pytest.raises(CorruptError, match=f"view at byte 5 is unknown: {view}"):
        decode_operations(bytes(raw))


def test_which_pages_an_operation_touches_is_not_stored() -> None:
    owner = Owner(PagedView.GROUP, 1)
    known = Operation(owner, 1, b"x", frozenset((1, 2)))
    assert decode_operations(encode_operations([known])) == [Operation(owner, 1, b"x", None)]


@pytest.mark.parametrize(
    "row",
    [
        GroupRow(-1, 1, ""),
        GroupRow(1, 2**64, ""),
        GroupRow(1, 1, "\udcff"),
        HeadRow(1, "g", 2**64, 0),
        HeadRow(1, "g", 0, -1),
        GroupOperation(-1, 0, 0),
        GroupOperation(0, 0, 0, retry_ms=2**63),
        GroupOperation(0, 0, 0, expire_ms=2**63),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_refused(row: Any) -> None:
    forms: dict[type, Any] = {
        GroupRow: encode_group,
        HeadRow: encode_head,
        GroupOperation: encode_group_operation,
    }
    with pytest.raises(InvalidError):
        forms[type(row)](row)
