"""Golden bytes: each vector encodes to exactly its bytes and decodes back to its value.

The vectors of records are {"name", "value", "hex", "note"}; the note says which bytes are which.
They were written from RFC 0001's text, not from the encoders' output, and are never edited.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.codec import (
    attempts,
    catalogue,
    idblock,
    keys,
    metadata,
    payload,
    queueconfig,
    queuestate,
    scalars,
)

VECTORS = Path(__file__).parents[2] / "vectors"


def read_vectors(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())
    return vectors


def pairs(items: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in items)


def entries(rows: list[list[int]], form: np.dtype[np.void]) -> queuestate.Entries:
    return np.array([tuple(row) for row in rows], form)


def build_payload(value: Any) -> payload.Payload:
    match value:
        case {"bytes": data}:
            return payload.BytesPayload(bytes.fromhex(data))
        case {"uri": uri}:
            return payload.UriPayload(uri)
        case {"block": items}:
            return payload.payload_of([bytes.fromhex(item) for item in items])
        case _:
            raise AssertionError(value)


def build_active(value: Any) -> queuestate.ActiveBucket:
    return queuestate.ActiveBucket(
        available=entries(value["available"], queuestate.AVAILABLE),
        in_flight=entries(value["in_flight"], queuestate.IN_FLIGHT),
        consumers=tuple(value["consumers"]),
        operation=value["operation"],
    )


def build_list(value: Any, form: np.dtype[np.void]) -> queuestate.ListBucket:
    return queuestate.ListBucket(entries(value["entries"], form), value["operation"])


def build_attempts(value: Any) -> tuple[attempts.Attempt, ...]:
    return tuple(
        attempts.Attempt(consumer, ended_at_ms, attempts.Ending(ending), reason)
        for consumer, ended_at_ms, ending, reason in value
    )


def with_options(form: type[Any], value: dict[str, Any]) -> Any:
    return form(**(value | {"options": pairs(value["options"])}))


#: file: (value from JSON, encode, decode)
RECORDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "payload": (build_payload, payload.encode_payload, payload.decode_payload),
    "metadata": (
        lambda value: metadata.Metadata(**(value | {"headers": pairs(value["headers"])})),
        metadata.encode_metadata,
        metadata.decode_metadata,
    ),
    "active": (build_active, queuestate.encode_active, queuestate.decode_active),
    "done": (
        lambda value: build_list(value, queuestate.DONE),
        queuestate.encode_done,
        queuestate.decode_done,
    ),
    "failed": (
        lambda value: build_list(value, queuestate.FAILED),
        queuestate.encode_failed,
        queuestate.decode_failed,
    ),
    "attempts": (build_attempts, attempts.encode_attempts, attempts.decode_attempts),
    "queueconfig": (
        lambda value: with_options(queueconfig.QueueConfig, value),
        queueconfig.encode_queue_config,
        queueconfig.decode_queue_config,
    ),
    "idblock": (
        lambda value: idblock.IdBlock(**value),
        idblock.encode_id_block,
        idblock.decode_id_block,
    ),
    "catalogue": (
        lambda value: with_options(catalogue.CatalogueRow, value),
        catalogue.encode_catalogue_row,
        catalogue.decode_catalogue_row,
    ),
}


@pytest.mark.parametrize(
    ("record", "vector"),
    [
        pytest.param(record, vector, id=f"{record}: {vector['name']}")
        for record in RECORDS
        for vector in read_vectors(record)
    ],
)
def test_a_record_has_exactly_its_golden_bytes(record: str, vector: dict[str, Any]) -> None:
    build, encode, decode = RECORDS[record]
    value, golden = build(vector["value"]), bytes.fromhex(vector["hex"])
    assert encode(value).hex(" ") == golden.hex(" ")
    assert decode(golden) == value


def argument(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def encode_scalar(kind: str, value: Any) -> bytes:
    if kind == "terminated":
        return scalars.encode_terminated(value)
    if kind == "array":
        return scalars.encode_array([scalars.encode_utf8(item, "item") for item in value], "it")
    encoded: bytes = getattr(scalars, f"encode_{kind}")(value, "it")
    return encoded


def decode_scalar(kind: str, data: bytes) -> Any:
    reader = scalars.Reader(data, "vector")
    if kind == "array":
        value: Any = reader.array(lambda r: r.utf8("item"), "it")
    else:
        value = getattr(reader, kind)("it")
    reader.end()
    return value


@pytest.mark.parametrize("vector", read_vectors("scalars"), ids=lambda vector: vector["name"])
def test_a_scalar_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    kind, value = vector["value"]["type"], argument(vector["value"]["of"])
    golden = bytes.fromhex(vector["hex"])
    assert encode_scalar(kind, value).hex(" ") == golden.hex(" ")
    assert decode_scalar(kind, golden) == value


@pytest.mark.parametrize("vector", read_vectors("keys"), ids=lambda vector: vector["name"])
def test_a_key_has_exactly_its_golden_bytes(vector: dict[str, Any]) -> None:
    build = getattr(keys, vector["value"]["builder"])
    key: bytes = build(*map(argument, vector["value"]["args"]))
    assert key.hex(" ") == bytes.fromhex(vector["hex"]).hex(" ")


def test_every_key_builder_has_a_golden_vector() -> None:
    builders = {
        name
        for name, value in vars(keys).items()
        if inspect.isfunction(value)
        and value.__module__ == keys.__name__
        and name.endswith(("_key", "prefix"))
        and not name.startswith(("open_", "decode_"))
    }
    assert builders == {vector["value"]["builder"] for vector in read_vectors("keys")}


def test_every_key_type_has_a_golden_vector() -> None:
    found = {keys.key_type(bytes.fromhex(vector["hex"])) for vector in read_vectors("keys")}
    assert found == set(keys.KeyType)
