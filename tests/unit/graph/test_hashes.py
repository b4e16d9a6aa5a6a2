"""Delivery hashes: golden vectors whose bytes were laid out by hand, and what must differ."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.graph.hashes import (
    HASH_BYTES,
    joined_hashes,
    message_hash,
    message_hashes,
    row_hash,
    source_hash,
    step_hash,
)

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "hashes.json").read_text()
)


def hash_of(kind: str, value: dict[str, Any]) -> bytes:
    match kind:
        case "message":
            inputs = [(stream_id, offset) for stream_id, offset in value["inputs"]]
            return message_hash(value["id"], inputs, value.get("ordinal"))
        case "source":
            return source_hash(value["id"], bytes.fromhex(value["position"]), value.get("ordinal"))
        case "step":
            ranges = [(stream_id, start, end) for stream_id, start, end in value["ranges"]]
            return step_hash(value["id"], value["step"], ranges, value.get("chosen"))
        case "row":
            return row_hash(bytes.fromhex(value["step"]), value["ordinal"])
    raise AssertionError(kind)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_hash_is_that_of_its_canonical_bytes(vector: dict[str, Any]) -> None:
    canonical = bytes.fromhex(vector["bytes"])
    person = vector["person"].encode()
    assert blake2b(canonical, digest_size=16, person=person).hexdigest() == vector["hash"]
    assert hash_of(vector["kind"], vector["value"]).hex() == vector["hash"]


def test_no_two_vectors_have_one_hash_and_all_have_128_bits() -> None:
    hashes = [vector["hash"] for vector in VECTORS]
    assert len(set(hashes)) == len(hashes)
    assert {len(bytes.fromhex(each)) for each in hashes} == {HASH_BYTES} == {16}


def test_many_hashes_at_once_are_the_same_ones() -> None:
    assert message_hashes("g/p", 7, range(3, 6)) == [
        message_hash("g/p", [(7, offset)]) for offset in range(3, 6)
    ]
    assert joined_hashes("g/p", [(9, range(0, 3)), (7, range(5, 8))]) == [
        message_hash("g/p", [(7, 5 + k), (9, k)]) for k in range(3)
    ]
    assert message_hashes("g/p", 7, []) == []


def test_the_order_in_which_inputs_are_named_does_not_matter_and_all_else_does() -> None:
    base = message_hash("g/p", [(7, 5), (9, 6)])
    assert message_hash("g/p", [(9, 6), (7, 5)]) == base
    others = {
        message_hash("g/q", [(7, 5), (9, 6)]),
        message_hash("g/p", [(7, 6), (9, 5)]),
        message_hash("g/p", [(7, 5)]),
        message_hash("g/p", [(7, 5), (9, 6)], 0),
        message_hash("g/p", [(7, 5), (9, 6)], 1),
    }
    assert len(others | {base}) == 6


def test_the_hash_of_a_message_does_not_depend_on_the_step() -> None:
    whole = message_hashes("g/p", 7, range(100))
    parts = [digest for low in range(0, 100, 7)
             for digest in message_hashes("g/p", 7, range(low, min(low + 7, 100)))]  # fmt: skip
    assert whole == parts
    assert len(set(whole)) == 100


@pytest.mark.parametrize("name", ["", "x" * 65_536])
def test_an_id_that_cannot_be_hashed_is_invalid(name: str) -> None:
    with pytest.raises(InvalidError, match="cannot be hashed"):
        message_hash(name, [(1, 1)])
