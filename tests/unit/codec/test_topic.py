"""Golden bytes and damage of what is stored of topics: heads, pages, operations, errors.

The vectors are {"row", "name", "value", "hex", "note"}, written from the drawings in the codec
files and not from the encoders' output. They are never edited.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.codec.topic import (
    COUNTERS,
    OPEN_END,
    PAGE_OFFSETS,
    SHARD,
    SLOTS_MAX,
    Attempt,
    Consumer,
    Space,
    TopicHead,
    TopicPageRow,
    decode_topic,
    decode_topic_page,
    encode_topic,
    encode_topic_page,
)
from penstock.codec.topicerror import ErrorRow, decode_error, encode_error
from penstock.codec.topicoperation import (
    SpacePart,
    TopicOperation,
    decode_topic_operation,
    encode_topic_operation,
)
from penstock.errors import CorruptError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "topic.json").read_text())


def build(row: str, value: Any) -> Any:
    match row:
        case "head":
            return build_head(value)
        case "page":
            return TopicPageRow(
                value["sequence"],
                np.array(value["places"], np.uint16),
                np.array(value["slots"], np.uint16),
                np.array(value["epochs"], np.uint32),
            )
        case "operation":
            return TopicOperation(
                value["routed"],
                np.array(value["rows"], np.uint32),
                build_shards(value["shards"]),
                None if value["head"] is None else build_head(value["head"]),
                tuple(build_part(part) for part in value["parts"]),
            )
        case "error":
            return ErrorRow(**value)
    raise AssertionError(row)


def build_shards(rows: list[dict[str, int]]) -> Any:
    names = SHARD.names or ()
    return np.array([tuple(row[name] for name in names) for row in rows], SHARD)


def build_head(value: dict[str, Any]) -> TopicHead:
    return TopicHead(
        sequence=value["sequence"],
        name=value["name"],
        shards=build_shards(value["shards"]),
        routed=value["routed"],
        number=value["number"],
        paused=value["paused"],
        consumers=tuple(Consumer(**each) for each in value["consumers"]),
        folded=tuple(value["folded"]),
        spaces=tuple(Space(*each) for each in value["spaces"]),
        attempts=tuple(Attempt(*each) for each in value["attempts"]),
    )


def build_part(value: dict[str, Any]) -> SpacePart:
    return SpacePart(
        value["space"],
        value["fed"],
        value["added_first"],
        np.array(value["added"], np.uint16),
        np.array(value["marked"], np.int64),
        np.array(value["epochs"], np.uint32),
        np.array(value["done"], np.int64),
    )


CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "head": (encode_topic, lambda data: decode_topic(data, "head")),
    "page": (encode_topic_page, lambda data: decode_topic_page(data, "page")),
    "operation": (encode_topic_operation, decode_topic_operation),
    "error": (encode_error, decode_error),
}


def plain(value: Any) -> Any:
    """Comparable: structs with arrays have no equality of their own."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        return {name: plain(item) for name, item in fields.items()}
    return value


vectors = pytest.mark.parametrize(
    "vector",
    [pytest.param(vector, id=f"{vector['row']}: {vector['name']}") for vector in VECTORS],
)


def test_every_codec_has_vectors() -> None:
    assert {vector["row"] for vector in VECTORS} == set(CODECS)


@vectors
def test_each_vector_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    encode, decode = CODECS[vector["row"]]
    value, golden = build(vector["row"], vector["value"]), bytes.fromhex(vector["hex"])
    assert encode(value).hex(" ") == golden.hex(" ")
    assert plain(decode(golden)) == plain(value)


@vectors
def test_every_truncation_and_every_longer_row_is_corrupt(vector: dict[str, Any]) -> None:
    raw, decode = bytes.fromhex(vector["hex"]), CODECS[vector["row"]][1]
    for end in range(len(raw)):
        with pytest.raises(CorruptError):
            decode(raw[:end])
    with pytest.raises(CorruptError, match="left over"):
        decode(raw + b"\x00")


@vectors
def test_damage_is_told_as_such_or_decodes_to_a_value(vector: dict[str, Any]) -> None:
    """Never another exception, whichever byte it hits; and what decodes encodes back."""
    encode, decode = CODECS[vector["row"]]
    raw = bytes.fromhex(vector["hex"])
    chance = random.Random(7)
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] = chance.randrange(256)
        try:
            value = decode(bytes(damaged))
        except CorruptError:
            continue
        assert encode(value) == damaged


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_corrupt(version: int) -> None:
    for vector in VECTORS:
        if vector["row"] == "operation":
            continue  # the record around it has a version
        raw = bytes((version,)) + bytes.fromhex(vector["hex"])[1:]
        with pytest.raises(CorruptError, match=f"is {version}, not 1"):
            CODECS[vector["row"]][1](raw)


def shards(*rows: dict[str, int]) -> Any:
    whole = [dict.fromkeys(SHARD.names or (), 0) | {"end": OPEN_END} | row for row in rows]
    return build_shards(whole)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "order of their slots"),
        ([{"slot": 1}], "order of their slots"),
        ([{"slot": 0}, {"slot": 2}], "order of their slots"),
        ([{"slot": 0}, {"slot": 1}, {"slot": 0}], "order of their slots"),
        ([{"slot": 0, "end": 5}], "is open, and no other"),
        ([{"slot": 0}, {"slot": 0, "generation": 1}], "is open, and no other"),
        ([{"end": 9}, {"first": 8, "generation": 1}], "overlap"),
        ([{"first": -1}], "overlap"),
        ([{"end": 9, "generation": 2}, {"first": 9, "generation": 2}], "do not rise"),
    ],
)
def test_shards_that_cannot_be_are_corrupt(rows: list[dict[str, int]], what: str) -> None:
    raw = encode_topic(TopicHead(0, "t", shards(*rows)))
    with pytest.raises(CorruptError, match=what):
        decode_topic(raw, "head")


def test_a_slot_that_is_too_high_is_corrupt() -> None:
    many = shards(*({"slot": slot} for slot in range(SLOTS_MAX + 1)))
    with pytest.raises(CorruptError, match="too high"):
        decode_topic(encode_topic(TopicHead(0, "t", many)), "head")
    page = TopicPageRow(
        1, np.array([0], np.uint16), np.array([SLOTS_MAX], np.uint16), np.array([0])
    )
    with pytest.raises(CorruptError, match="too high"):
        decode_topic_page(encode_topic_page(page), "page")


@pytest.mark.parametrize(
    ("spaces", "what"),
    [
        ([], "is not the live one"),
        ([(3, 0, OPEN_END, 0)], "is not the live one"),
        ([(0, 0, 7, 0)], "is not the live one"),
        ([(0, 0, OPEN_END, 0), (1, 5, 9, 4)], "beyond its ends"),
        ([(0, 0, OPEN_END, 0), (1, 5, 9, 10)], "beyond its ends"),
        ([(0, 0, OPEN_END, 0), (1, 0, 9, 1), (1, 0, 9, 1)], "have one number"),
    ],
)
def test_spaces_that_cannot_be_are_corrupt(
    spaces: list[tuple[int, int, int, int]], what: str
) -> None:
    head = TopicHead(0, "t", shards({}), spaces=tuple(Space(*each) for each in spaces))
    with pytest.raises(CorruptError, match=what):
        decode_topic(encode_topic(head), "head")


@pytest.mark.parametrize("places", [[3, 3], [4, 2], [PAGE_OFFSETS]])
def test_places_that_do_not_rise_are_corrupt(places: list[int]) -> None:
    none = np.zeros(len(places), np.uint16)
    raw = encode_topic_page(
        TopicPageRow(1, np.array(places, np.uint16), none, none.astype(np.uint32))
    )
    with pytest.raises(CorruptError, match="not rising"):
        decode_topic_page(raw, "page")


@pytest.mark.parametrize("offsets", [[3, 3], [4, 2]])
def test_offsets_of_an_operation_rise(offsets: list[int]) -> None:
    part = SpacePart(0, 9, done=np.array(offsets, np.int64))
    with pytest.raises(CorruptError, match="does not rise"):
        decode_topic_operation(encode_topic_operation(TopicOperation(0, parts=(part,))))


def test_the_counters_are_those_of_a_shard() -> None:
    assert set(COUNTERS) <= set(SHARD.names or ())
    assert SHARD.itemsize == 110
