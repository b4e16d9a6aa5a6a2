"""Golden bytes and damage of the router's rows.

The vectors are {"row", "name", "value", "hex", "note"}, written from the drawing in the codec file
and not from the encoders' output. They are never edited.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.codec import keys
from penstock.codec.router import (
    decode_cursor,
    decode_expiry,
    decode_expiry_key,
    encode_cursor,
    encode_expiry,
)
from penstock.errors import CorruptError, InvalidError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "router.json").read_text())

CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "cursor": (encode_cursor, decode_cursor),
    "expiry": (encode_expiry, decode_expiry),
}

every_vector = pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda vector: f"{vector['row']}: {vector['name']}"
)


def test_every_codec_has_vectors() -> None:
    assert {vector["row"] for vector in VECTORS} == set(CODECS)


@every_vector
def test_each_vector_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    encode, decode = CODECS[vector["row"]]
    golden = bytes.fromhex(vector["hex"])
    assert encode(vector["value"]).hex(" ") == golden.hex(" ")
    assert decode(golden) == vector["value"]


@every_vector
def test_every_truncation_and_every_longer_row_is_corrupt(vector: dict[str, Any]) -> None:
    raw, decode = bytes.fromhex(vector["hex"]), CODECS[vector["row"]][1]
    for end in range(len(raw)):
        with pytest.raises(CorruptError):
            decode(raw[:end])
    with pytest.raises(CorruptError, match="left over"):
        decode(raw + b"\x00")


@every_vector
@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_corrupt(vector: dict[str, Any], version: int) -> None:
    raw = bytes((version,)) + bytes.fromhex(vector["hex"])[1:]
    with pytest.raises(CorruptError, match=f"is {version}, not 1"):
        CODECS[vector["row"]][1](raw)


def test_numbers_that_do_not_fit_are_refused() -> None:
    for offset in (-1, 2**64):
        with pytest.raises(InvalidError, match="offset does not fit a u64"):
            encode_cursor(offset)
    for count in (-1, 2**32):
        with pytest.raises(InvalidError, match="messages does not fit a u32"):
            encode_expiry(count)


def test_an_expiry_key_says_when_and_from_which_offset_on() -> None:
    key = keys.expiry_key(1000, 258)
    assert decode_expiry_key(key) == (1000, 258)
    for end in range(len(key)):
        with pytest.raises(CorruptError):
            decode_expiry_key(key[:end])
    with pytest.raises(CorruptError, match="left over"):
        decode_expiry_key(key + b"\x00")
    with pytest.raises(CorruptError, match="type NODE at byte 1, expected EXPIRY"):
        decode_expiry_key(keys.node_key(1000, 258))
