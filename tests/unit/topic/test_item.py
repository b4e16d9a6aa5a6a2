"""Slots of shard keys: the same in every process and for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InvalidError
from penstock.topic.item import hash_keys, prepare_push, slot_of, slots_of

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "topicslots.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_key_has_the_slot_it_always_had(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key"])
    hashes, keyed = hash_keys([key])
    assert keyed is None
    assert f"{int(hashes[0]):016x}" == vector["hash"]
    for slots, slot in vector["slots"].items():
        assert slot_of(key, int(slots)) == slot
        assert slots_of(hashes, keyed, 12345, int(slots)).tolist() == [slot]


def test_the_hash_is_that_of_the_reference_implementation() -> None:
    """XXH3's own values, which no seed of a process can change."""
    known = {b"a": 0xE6C632B61E964E1F, b"abc": 0x78AF5F94892F3950}
    assert {key: int(hash_keys([key])[0][0]) for key in known} == known


def test_another_process_gives_the_same_slots() -> None:
    keys = [f"key-{i}" for i in range(100)]
    program = (
        "from penstock.topic.item import prepare_push, slots_of\n"
        f"p = prepare_push([b''] * 100, {keys!r})\n"
        "print(slots_of(p.hashes, p.keyed, 0, 32).tolist())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    push = prepare_push([b""] * 100, keys)
    assert json.loads(told) == slots_of(push.hashes, push.keyed, 0, 32).tolist()


def test_without_a_key_messages_spread_evenly() -> None:
    push = prepare_push([b"x"] * 64)
    slots = slots_of(push.hashes, push.keyed, 1000, 32)
    assert np.bincount(slots, minlength=32).tolist() == [2] * 32


def test_an_empty_key_is_none() -> None:
    one, other = prepare_push([b"x"] * 3, ["", None, b""]), prepare_push([b"x"] * 3)
    mine = slots_of(one.hashes, one.keyed, 7, 32)
    assert mine.tolist() == slots_of(other.hashes, other.keyed, 7, 32).tolist() == [7, 8, 9]


def test_keys_and_none_in_one_batch() -> None:
    push = prepare_push([b"x"] * 3, ["k", None, b"k"])
    slots = slots_of(push.hashes, push.keyed, 100, 32).tolist()
    assert slots == [slot_of(b"k", 32), 101 % 32, slot_of(b"k", 32)]


@pytest.mark.parametrize(
    ("data", "keys", "what"),
    [
        ([b"a"], ["k", "l"], "1 messages have 2 shard keys"),
        (["text"], ["k"], "data is bytes, not str"),
        ([b"a"], [7], "message 0: a shard key is text or bytes"),
        ([b"a", b"b"], ["", "\ud800"], "message 1: shard key .* is not valid text"),
        ([b"a"], ["k" * 65_536], "a shard key of 65536 bytes; at most 65535"),
    ],
)
def test_what_cannot_be_pushed_is_refused(data: Any, keys: Any, what: str) -> None:
    with pytest.raises(InvalidError, match=what):
        prepare_push(data, keys)
