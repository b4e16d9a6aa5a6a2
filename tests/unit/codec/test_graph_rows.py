"""Rows of graphs: golden bytes, and no bytes that raise anything but CorruptError."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.backing import (
    AttemptRow,
    BackingRow,
    ChoiceRow,
    RangeRow,
    SnapshotRow,
    WrittenRow,
    decode_backing,
    encode_backing,
)
from penstock.codec.processor import (
    Counts,
    OnEvicted,
    ProcessorKind,
    ProcessorRow,
    Reset,
    Semantics,
    TailerRow,
    decode_processor,
    encode_processor,
)
from penstock.errors import CorruptError, InvalidError

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "graphs.json").read_text()
)


def written(value: list[Any] | None) -> WrittenRow | None:
    if value is None:
        return None
    stream, log_id, first, end, meta = value
    return WrittenRow(stream, log_id, first, end, bytes.fromhex(meta))


def row_of(row: str, value: dict[str, Any]) -> BackingRow | ProcessorRow:
    match row:
        case "snapshot":
            return SnapshotRow(
                value["epoch"], value["processor_id"], value["step"],
                tuple(RangeRow(*each) for each in value["ranges"]),
            )  # fmt: skip
        case "choice":
            return ChoiceRow(**value)
        case "attempt":
            outputs = tuple(found for each in value["outputs"] if (found := written(each)))
            return AttemptRow(
                value["epoch"], value["step"], bytes.fromhex(value["step_hash"]), outputs,
                written(value["errors"]), value["nil"],
            )  # fmt: skip
        case "processor":
            fields = dict(value)
            fields["kind"] = ProcessorKind(value["kind"])
            fields["semantics"] = Semantics(value["semantics"])
            fields["on_evicted"] = OnEvicted(value["on_evicted"])
            fields["reset"] = Reset(value["reset"])
            fields["uid"] = bytes.fromhex(value["uid"])
            fields["counts"] = Counts(*value["counts"])
            position = value["position"]
            fields["position"] = None if position is None else bytes.fromhex(position)
            fields["inputs"] = tuple(TailerRow(*each) for each in value["inputs"])
            fields["outputs"] = tuple(value["outputs"])
            return ProcessorRow(**fields)
    raise AssertionError(row)


def encode(row: BackingRow | ProcessorRow) -> bytes:
    return encode_processor(row) if isinstance(row, ProcessorRow) else encode_backing(row)


def decode(row: str, data: bytes) -> BackingRow | ProcessorRow:
    return decode_processor(data, 1) if row == "processor" else decode_backing(data, "record")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['row']} {vector['name']}")
def test_each_vector_encodes_to_its_bytes_and_back(vector: dict[str, Any]) -> None:
    row, golden = row_of(vector["row"], vector["value"]), bytes.fromhex(vector["hex"])
    assert encode(row).hex(" ") == golden.hex(" ")
    assert decode(vector["row"], golden) == row


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['row']} {vector['name']}")
def test_cut_or_longer_bytes_are_corrupt(vector: dict[str, Any]) -> None:
    golden = bytes.fromhex(vector["hex"])
    for size in range(len(golden)):
        with pytest.raises(CorruptError):
            decode(vector["row"], golden[:size])
    with pytest.raises(CorruptError, match="left over"):
        decode(vector["row"], golden + b"\x00")


@given(st.sampled_from(VECTORS), st.data())
def test_changed_bytes_are_another_row_or_corrupt_and_nothing_else(
    vector: dict[str, Any], data: st.DataObject
) -> None:
    golden = bytearray.fromhex(vector["hex"])
    for _ in range(data.draw(st.integers(1, 3))):
        golden[data.draw(st.integers(0, len(golden) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptError):
        found = decode(vector["row"], bytes(golden))
        assert encode(found) == bytes(golden)  # each value has one encoding


@given(st.binary(max_size=200), st.sampled_from(["processor", "snapshot"]))
def test_any_bytes_are_a_row_or_corrupt(raw: bytes, row: str) -> None:
    with contextlib.suppress(CorruptError):
        decode(row, b"\x01" + raw)


def test_what_cannot_be_kept_is_refused_before_it_is_written() -> None:
    with pytest.raises(InvalidError, match="step hash of 3 bytes"):
        encode_backing(AttemptRow(1, 0, b"abc"))
    with pytest.raises(InvalidError, match="meta of 65536 bytes"):
        encode_backing(AttemptRow(1, 0, b"", (WrittenRow("s", 1, 0, 1, bytes(65536)),)))
    row = row_of("processor", VECTORS[-1]["value"])
    assert isinstance(row, ProcessorRow)
    with pytest.raises(InvalidError, match="uid of 2 bytes"):
        encode_processor(
            ProcessorRow("g/p", row.kind, row.semantics, row.on_evicted, b"ab", (), ())
        )
