from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.garbage import decode_garbage, encode_garbage
from penstock.codec.keys import garbage_key
from penstock.codec.logrow import LogRow, decode_log, encode_log
from penstock.codec.once import OnceRow, decode_hold, decode_once, encode_hold, encode_once
from penstock.codec.staging import (
    Part,
    Phase,
    Reserved,
    StagingRow,
    decode_staging,
    encode_staging,
)
from penstock.errors import CorruptError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "logrows.json").read_text())


def encode_vector(row: str, value: dict[str, Any]) -> bytes:
    match row:
        case "log":
            return encode_log(LogRow(**value))
        case "once":
            answer = bytes.fromhex(value["answer"])
            return encode_once(OnceRow(value["sequence"], value["expires_ms"], answer))
        case "hold":
            return encode_hold(value["offset"])
        case "garbage":
            return encode_garbage(bytes.fromhex(value["end_key"]))
        case "staging":
            return encode_staging(staging(value))
    raise AssertionError(row)


def staging(value: dict[str, Any]) -> StagingRow:
    return StagingRow(
        Phase(value["phase"]),
        value["lease_ms"],
        value["deadline_ms"],
        value["linked_ms"],
        tuple((writer, tuple(counts)) for writer, counts in value["writers"]),
        tuple(Part(*part) for part in value["parts"]),
        tuple(Reserved(*ids) for ids in value["reserved"]),
    )


def decode(row: str, data: bytes) -> Any:
    match row:
        case "log":
            return decode_log(data, 1)
        case "once":
            return decode_once(data)
        case "hold":
            return decode_hold(data)
        case "garbage":
            return decode_garbage(garbage_key(b"\x01\x0b"), data)
        case "staging":
            return decode_staging(data, 1)
    raise AssertionError(row)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["row"])
def test_each_vector_encodes_to_its_bytes_and_back(vector: dict[str, Any]) -> None:
    raw = encode_vector(vector["row"], vector["value"])
    assert raw.hex() == vector["hex"]
    found, value = decode(vector["row"], raw), vector["value"]
    match vector["row"]:
        case "log":
            assert found == LogRow(**value)
        case "once":
            assert found == OnceRow(5, 1000, b"ab")
        case "hold":
            assert found == value["offset"]
        case "garbage":
            assert found == (b"\x01\x0b", b"\x01\x0c")
        case "staging":
            assert found == staging(value)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["row"])
def test_every_truncation_and_every_longer_row_is_corrupt(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    for end in range(len(raw)):
        with pytest.raises(CorruptError):
            decode(vector["row"], raw[:end])
    with pytest.raises(CorruptError, match="left over"):
        decode(vector["row"], raw + b"\x00")


@given(row=st.sampled_from(["log", "once", "hold", "garbage", "staging"]), data=st.binary())
def test_arbitrary_bytes_are_a_value_or_corrupt(row: str, data: bytes) -> None:
    for raw in (data, b"\x01" + data, b"\x02" + data):
        with contextlib.suppress(CorruptError):
            decode(row, raw)


def test_an_edge_below_the_lowest_row_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="lowest 2 is above first 1"):
        decode_log(encode_log(LogRow(first=1, lowest=2)), 1)
