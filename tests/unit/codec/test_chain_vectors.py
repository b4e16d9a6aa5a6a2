"""Golden bytes of the chain and of the journal, assembled from the drawings in codec/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.codec.chain import (
    ChainRecord,
    chain_hash,
    decode_batch,
    decode_chain,
    encode_batch,
    encode_chain,
)
from penstock.codec.journal import (
    COMMIT,
    MARK,
    JournalHead,
    SegmentHeader,
    SegmentName,
    decode_head,
    decode_header,
    decode_record,
    encode_head,
    encode_header,
    encode_record,
)
from penstock.errors import CorruptError

VECTORS = Path(__file__).parents[2] / "vectors"


def vector(file: str, name: str) -> tuple[dict[str, Any], bytes]:
    (found,) = [v for v in json.loads((VECTORS / file).read_text()) if v["name"] == name]
    return found["value"], bytes.fromhex(found["hex"]).ljust(found.get("padded_to", 0), b"\0")


def test_a_batch() -> None:
    value, raw = vector("chain.json", "batch")
    writes = [
        (bytes.fromhex(k), None if v is None else bytes.fromhex(v)) for k, v in value["writes"]
    ]
    assert encode_batch(writes) == raw
    assert decode_batch(raw) == writes


def test_a_chain_record() -> None:
    value, raw = vector("chain.json", "chain record")
    record = ChainRecord(
        value["n"],
        value["time_ms"],
        bytes.fromhex(value["previous"]),
        bytes.fromhex(value["hash"]),
        value["oldest"],
    )
    assert encode_chain(record) == raw
    assert decode_chain(raw) == record


def test_the_hash_of_a_commit() -> None:
    value, raw = vector("chain.json", "hash")
    batch = bytes.fromhex(value["batch"])
    assert chain_hash(bytes.fromhex(value["previous"]), value["n"], value["time_ms"], batch) == raw


def test_a_segment_header() -> None:
    value, raw = vector("journal.json", "segment header")
    header = SegmentHeader(**{**value, "store_id": bytes.fromhex(value["store_id"])})
    assert encode_header(header) == raw
    assert decode_header(raw, "segment") == header


@pytest.mark.parametrize(("name", "kind"), [("commit", COMMIT), ("mark", MARK)])
def test_a_journal_record(name: str, kind: int) -> None:
    value, raw = vector("journal.json", name)
    previous, body = bytes.fromhex(value["previous"]), bytes.fromhex(value.get("body", ""))
    digest = (
        chain_hash(previous, value["n"], value["time_ms"], body)
        if kind == COMMIT
        else bytes.fromhex(value["hash"])
    )
    chain = ChainRecord(value["n"], value["time_ms"], previous, digest)
    assert encode_record(kind, value["epoch"], chain, body, value["salt"]) == raw
    found = decode_record(raw, 0, value["salt"])
    assert found is not None
    assert (found.kind, found.epoch, found.chain, found.body) == (kind, value["epoch"], chain, body)
    assert found.end == len(raw)
    assert decode_record(raw, 0, value["salt"] + 1) is None


def test_a_journal_head() -> None:
    value, raw = vector("journal.json", "head")
    head = JournalHead(
        bytes.fromhex(value["store_id"]),
        value["epoch"],
        value["start_n"],
        bytes.fromhex(value["start_hash"]),
        value["covered_n"],
        bytes.fromhex(value["covered_hash"]),
        value["closed"],
        tuple(SegmentName(*segment) for segment in value["segments"]),
    )
    assert encode_head(head) == raw
    assert decode_head(raw, "head") == head


@pytest.mark.parametrize(
    ("file", "name", "decode"),
    [
        ("chain.json", "chain record", decode_chain),
        ("journal.json", "segment header", lambda raw: decode_header(raw, "segment")),
        ("journal.json", "head", lambda raw: decode_head(raw, "head")),
    ],
)
def test_every_truncation_and_every_changed_byte_is_corruption(
    file: str, name: str, decode: Any
) -> None:
    _, raw = vector(file, name)
    used = len(raw.rstrip(b"\0"))
    for size in range(used):
        with pytest.raises(CorruptError):
            decode(raw[:size])
    for place in range(used):
        with pytest.raises(CorruptError):
            decode(raw[:place] + bytes((raw[place] ^ 0x40,)) + raw[place + 1 :])
