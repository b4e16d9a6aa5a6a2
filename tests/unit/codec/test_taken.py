"""Golden bytes, damage and changes of what is stored of takers.

The vectors are {"row", "name", "value", "hex", "note"}, written from the drawing in the codec file
and not from the encoders' output. They are never edited. Where "hex" is a list, its parts stand
behind each other, and "0000 x 5" is five times 0000.
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

from penstock.codec import queueoperation
from penstock.codec.scalars import U64_MAX
from penstock.codec.taken import (
    DEAD,
    GONE,
    PAGE_SLOTS,
    TAKERS_MAX,
    TakenOperation,
    TakenPage,
    applied,
    decode_taken_head,
    decode_taken_operation,
    decode_taken_page,
    empty_page,
    encode_taken_head,
    encode_taken_operation,
    encode_taken_page,
    touched,
)
from penstock.errors import CorruptError, InvalidError
from unit.codec.test_queueoperation import BAD_RUNS, MANY, keys, runs_bytes

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "taken.json").read_text())
PAGE = 3  # a page's number is in its key, so that a decoder is told


def golden_bytes(parts: str | list[str]) -> bytes:
    found = b""
    for part in [parts] if isinstance(parts, str) else parts:
        raw, _, times = part.partition(" x ")
        found += bytes.fromhex(raw) * int(times or 1)
    return found


def operation(
    taken: dict[int, int] | None = None,
    released: tuple[int, ...] = (),
    gone: tuple[int, ...] = (),
) -> TakenOperation:
    took = taken or {}
    counts = np.array(list(took.values()), np.uint16)
    return TakenOperation(keys(*took), counts, keys(*released), keys(*gone))


def page_of(number: int, slots: dict[int, int], sequence: int = 0) -> TakenPage:
    page = TakenPage(number, sequence, np.zeros(PAGE_SLOTS, np.uint16))
    for slot, takers in slots.items():
        page.slots[slot] = takers
    return page


def build(row: str, value: Any) -> Any:
    match row:
        case "page":
            slots = {int(slot): takers for slot, takers in value["slots"].items()}
            return page_of(PAGE, slots, value["sequence"])
        case "operation":
            taken = dict(zip(value["taken"], value["counts"], strict=True))
            return operation(taken, value["released"], value["gone"])
    return value


CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "page": (encode_taken_page, lambda data: decode_taken_page(PAGE, data)),
    "head row": (encode_taken_head, decode_taken_head),
    "operation": (encode_taken_operation, decode_taken_operation),
}


def plain(value: Any) -> Any:
    """Comparable: structs with arrays have no equality of their own."""
    if isinstance(value, TakenPage | TakenOperation):
        return {
            name: (item.dtype, item.tolist()) if isinstance(item, np.ndarray) else item
            for name, item in msgspec.structs.asdict(value).items()
        }
    return value


def slots_of(page: TakenPage) -> dict[int, int]:
    """Those that are not 0."""
    return {int(at): int(page.slots[at]) for at in np.flatnonzero(page.slots)}


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
    value, golden = build(vector["row"], vector["value"]), golden_bytes(vector["hex"])
    assert encode(value).hex(" ") == golden.hex(" ")
    assert plain(decode(golden)) == plain(value)


@vectors()
def test_every_truncation_and_every_longer_row_is_corrupt(vector: dict[str, Any]) -> None:
    raw, decode = golden_bytes(vector["hex"]), CODECS[vector["row"]][1]
    for end in range(len(raw)):
        with pytest.raises(CorruptError):
            decode(raw[:end])
    with pytest.raises(CorruptError, match="left over"):
        decode(raw + b"\x00")


@vectors("page", "head row")
@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_corrupt(vector: dict[str, Any], version: int) -> None:
    raw = bytes((version,)) + golden_bytes(vector["hex"])[1:]
    with pytest.raises(CorruptError, match=f"is {version}, not 1"):
        CODECS[vector["row"]][1](raw)


@pytest.mark.parametrize("where", ["taken", "released", "gone"])
@pytest.mark.parametrize(("runs", "words"), BAD_RUNS)
def test_runs_that_no_encoder_makes_are_corrupt(
    where: str, runs: list[tuple[int, int]], words: str
) -> None:
    before = {"taken": 0, "released": 1, "gone": 2}[where]
    with pytest.raises(CorruptError, match=f"{where} at byte .* has runs that {words}"):
        decode_taken_operation(bytes(4 * before) + runs_bytes(*runs))


def test_counts_are_checked_before_anything_is_allocated() -> None:
    for i, where in enumerate(("taken", "released", "gone")):
        with pytest.raises(CorruptError, match=f"firsts of {where} at byte {4 * i + 4} needs"):
            decode_taken_operation(bytes(4 * i) + MANY)


def test_each_offset_that_is_taken_has_its_count() -> None:
    with pytest.raises(CorruptError, match="counts at byte 16 needs 6 bytes, 4 are left"):
        decode_taken_operation(runs_bytes((5, 3)) + struct.pack("<HH", 1, 1))
    odd = TakenOperation(keys(1, 2), np.ones(1, np.uint16))
    with pytest.raises(AssertionError, match="parallel"):
        encode_taken_operation(odd)


@pytest.mark.parametrize("sequence", [-1, 2**64])
def test_a_sequence_that_does_not_fit_is_refused(sequence: int) -> None:
    with pytest.raises(InvalidError, match="does not fit a u64"):
        encode_taken_head(sequence)
    with pytest.raises(InvalidError, match="does not fit a u64"):
        encode_taken_page(page_of(0, {}, sequence))


def test_an_offset_released_twice_in_one_operation_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="rise"):
        encode_taken_operation(operation(released=(5, 5)))


# ---- changes: (takers before, operation, takers after), all of offset 5 -------------------------

CHANGES = {
    "taken by two": (0, operation({5: 2}), 2),
    "taken again": (2, operation({5: 3}), 5),
    "one is done with it": (2, operation(released=(5,)), 1),
    "the last one is done with it": (1, operation(released=(5,)), DEAD),
    "taken and released at once": (0, operation({5: 1}, (5,)), DEAD),
    "released by one and taken by another at once": (1, operation({5: 1}, (5,)), 1),
    "released though nobody took it": (0, operation(released=(5,)), 0),
    "released though dead": (DEAD, operation(released=(5,)), DEAD),
    "released though gone": (GONE, operation(released=(5,)), GONE),
    "taken though dead": (DEAD, operation({5: 1}), 1),
    "taken though gone": (GONE, operation({5: 1}), GONE),
    "gone when dead": (DEAD, operation(gone=(5,)), GONE),
    "gone by its retention": (3, operation(gone=(5,)), GONE),
    "gone though nobody took it": (0, operation(gone=(5,)), GONE),
    "taken, released and gone at once": (0, operation({5: 1}, (5,), (5,)), GONE),
    "one less than the most": (TAKERS_MAX - 2, operation({5: 1}), TAKERS_MAX - 1),
    "the most": (TAKERS_MAX - 1, operation({5: 1}), TAKERS_MAX),
    "more than can be counted": (TAKERS_MAX, operation({5: 1}), TAKERS_MAX),
    "far more than can be counted": (1000, operation({5: 65_535}), TAKERS_MAX),
    "one less than the most is released": (
        TAKERS_MAX - 1,
        operation(released=(5,)),
        TAKERS_MAX - 2,
    ),
    # Nobody knows how many took it, so that counting down could end while one still needs it.
    "one of too many is done with it": (TAKERS_MAX, operation(released=(5,)), TAKERS_MAX),
}


@pytest.mark.parametrize(("before", "change", "after"), CHANGES.values(), ids=CHANGES)
def test_takers_after_a_change(before: int, change: TakenOperation, after: int) -> None:
    neighbours = {4: 7, 6: 8}
    page = page_of(0, neighbours | {5: before})
    found = applied(page, change, 9)
    expected = neighbours | ({5: after} if after else {})
    assert (found.number, found.sequence, slots_of(found)) == (0, 9, expected)
    assert int(page.slots[5]) == before  # a page is replaced, never changed


def test_a_page_takes_its_own_offsets_and_no_others() -> None:
    edges = {1023: 1, 1024: 2, 1025: 3, 2047: 4, 2048: 5}
    change = operation(edges)
    assert touched(change) == [0, 1, 2]
    found = {number: slots_of(applied(empty_page(number), change, 1)) for number in range(4)}
    assert found == {0: {1023: 1}, 1: {0: 2, 1: 3, 1023: 4}, 2: {0: 5}, 3: {}}


def test_every_list_of_an_operation_touches_pages() -> None:
    assert touched(operation({5: 1}, (2048, 2049), (7000,))) == [0, 2, 6]
    assert touched(operation()) == []


def test_the_last_page_of_all_is_a_page_like_the_others() -> None:
    change = operation({U64_MAX - 1: 2}, gone=(U64_MAX - 3,))
    (number,) = touched(change)
    page = empty_page(number)
    assert page.first + PAGE_SLOTS - 1 == U64_MAX
    assert slots_of(applied(page, change, 1)) == {1022: 2, 1020: GONE}
    assert slots_of(applied(empty_page(number - 1), change, 1)) == {}


def test_a_decoded_page_can_be_applied_to() -> None:
    stored = encode_taken_page(page_of(PAGE, {0: 1}))
    page = decode_taken_page(PAGE, stored)
    assert slots_of(applied(page, operation(released=(page.first,)), 1)) == {0: DEAD}
    assert encode_taken_page(page) == stored


def test_marks_are_apart_from_every_number_of_takers() -> None:
    assert (TAKERS_MAX, DEAD, GONE) == (65_533, 65_534, 65_535)
    assert TAKERS_MAX < DEAD < GONE <= np.iinfo(np.uint16).max
    assert queueoperation.RUN_KEYS_MAX >= PAGE_SLOTS
