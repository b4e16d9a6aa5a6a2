"""Golden bytes and damage of the rows of sources.

The vectors are {"row", "name", "value", "hex", "note"}, written from the drawings in the codec
files and not from the encoders' output. They are never edited.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.codec import keys
from penstock.codec.keys import KeyType
from penstock.codec.published import PublishedRow, SplitRow, decode_published, encode_published
from penstock.codec.shard import (
    Place,
    ShardKind,
    ShardPhase,
    ShardRow,
    decode_ended_key,
    decode_shard,
    decode_shard_key,
    encode_shard,
)
from penstock.codec.source import (
    IdentityBy,
    SchemaRow,
    SourceRow,
    decode_format,
    decode_schema,
    decode_source,
    encode_format,
    encode_schema,
    encode_source,
)
from penstock.codec.splits import (
    SplitsPhase,
    SplitsRow,
    decode_splits,
    decode_splits_key,
    encode_splits,
)
from penstock.errors import CorruptError, InvalidError

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "sources.json").read_text())


class Codec(NamedTuple):
    build: Callable[[dict[str, Any]], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _fields(value: dict[str, Any], **kinds: Callable[[Any], Any]) -> dict[str, Any]:
    return value | {name: kind(value[name]) for name, kind in kinds.items()}


def _token(value: Any) -> bytes:
    return bytes.fromhex(value["hex"])


CODECS = {
    "source": Codec(
        lambda value: SourceRow(**_fields(value, identity=IdentityBy)),
        encode_source,
        decode_source,
    ),
    "schema": Codec(lambda value: SchemaRow(**value), encode_schema, decode_schema),
    "format": Codec(lambda value: value["format"], encode_format, decode_format),
    "shard": Codec(
        lambda value: ShardRow(
            **_fields(value, kind=ShardKind, phase=ShardPhase, place=Place, token=_token)
        ),
        encode_shard,
        decode_shard,
    ),
    "published": Codec(
        lambda value: PublishedRow(
            **_fields(value, splits=lambda rows: tuple(SplitRow(*row) for row in rows))
        ),
        encode_published,
        decode_published,
    ),
    "splits": Codec(
        lambda value: SplitsRow(**_fields(value, phase=SplitsPhase, token=_token)),
        encode_splits,
        decode_splits,
    ),
}

every_vector = pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda vector: f"{vector['row']}: {vector['name']}"
)


def test_every_codec_has_vectors() -> None:
    assert {vector["row"] for vector in VECTORS} == set(CODECS)


@every_vector
def test_each_vector_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    codec = CODECS[vector["row"]]
    value, golden = codec.build(vector["value"]), bytes.fromhex(vector["hex"])
    assert codec.encode(value).hex(" ") == golden.hex(" ")
    assert codec.decode(golden) == value


@every_vector
def test_every_truncation_and_every_longer_row_is_corrupt(vector: dict[str, Any]) -> None:
    raw, decode = bytes.fromhex(vector["hex"]), CODECS[vector["row"]].decode
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
        CODECS[vector["row"]].decode(raw)


@every_vector
def test_any_changed_byte_is_refused_or_another_value_with_that_encoding(
    vector: dict[str, Any],
) -> None:
    raw, codec = bytes.fromhex(vector["hex"]), CODECS[vector["row"]]
    for at in range(len(raw)):
        for flipped in (0x01, 0x80, 0xFF):
            damaged = raw[:at] + bytes((raw[at] ^ flipped,)) + raw[at + 1 :]
            try:
                value = codec.decode(damaged)
            except CorruptError:
                continue
            assert codec.encode(value) == damaged


SHARD = CODECS["shard"].build(VECTORS[3]["value"])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"place": Place.EOF}, "place .* EOF in the phase open"),
        ({"phase": ShardPhase.EOF}, "place .* BOF in the phase eof"),
        ({"offset": 5}, "offset .* 5 at BOF"),
    ],
)
def test_a_position_that_contradicts_the_rest_of_its_row_is_corrupt(
    change: dict[str, Any], what: str
) -> None:
    with pytest.raises(CorruptError, match=what):
        decode_shard(encode_shard(msgspec.structs.replace(SHARD, **change)))


def test_a_token_has_sixteen_bytes() -> None:
    for token in (b"", bytes(15), bytes(17)):
        with pytest.raises(InvalidError, match="16 bytes"):
            encode_shard(msgspec.structs.replace(SHARD, token=token))
        with pytest.raises(InvalidError, match="16 bytes"):
            encode_splits(SplitsRow(SplitsPhase.LIVE, token, 1, 1, 1, "k"))


def test_keys_of_shards_stagings_and_ends_read_back_and_damage_is_named() -> None:
    cases: list[tuple[bytes, Callable[[bytes], Any], Any]] = [
        (keys.shard_key(5, b"a\x00\xc3\xbc"), decode_shard_key, (5, "a\x00ü")),
        (keys.ended_key(5, 258, b"a"), decode_ended_key, (5, 258, "a")),
        (keys.splits_key(5, 7), decode_splits_key, (5, 7)),
    ]
    for key, decode, value in cases:
        assert decode(key) == value
        for end in range(len(key)):
            with pytest.raises(CorruptError):
                decode(key[:end])
        with pytest.raises(CorruptError, match="left over"):
            decode(key + b"\x00")
        with pytest.raises(CorruptError, match="expected"):
            decode(keys.node_key(1, 2))


def test_an_identity_that_is_no_text_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="identity is not UTF-8"):
        decode_shard_key(keys.shard_key(5, b"\xff"))


def test_a_scan_over_one_source_sees_no_other() -> None:
    low = keys.source_prefix(KeyType.SHARD, 5)
    high = keys.prefix_end(low)
    assert low <= keys.shard_key(5, b"") <= keys.shard_key(5, b"\xff" * 9) < high
    assert not any(low <= keys.shard_key(other, b"") < high for other in (4, 6, 2**64 - 1))
