"""Entries to measure with: made before the clock starts, the same for every run.

Contract     `make_batches` returns `count` batches of `batch` entries; the data of each entry is
             exactly `size_bytes` long. The log stores the JSON-like data in about a quarter of
             its size and random data in all of it: a result must name its kind of data.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

Entry = tuple[str, bytes]

_WORDS = ("basket", "checkout", "search", "product", "detail", "account", "invoice", "review")
#: Below this a JSON event with its fields has no room.
SIZE_BYTES_MIN = 80


class Payload(StrEnum):
    JSON = "json"
    RANDOM = "random"


def make_batches(
    payload: Payload, *, size_bytes: int, batch: int, count: int, seed: int = 1
) -> list[list[Entry]]:
    assert size_bytes >= SIZE_BYTES_MIN
    generator = np.random.default_rng(seed)
    entries = _json_entries if payload is Payload.JSON else _random_entries
    return [entries(generator, size_bytes, batch) for _ in range(count)]


def _random_entries(generator: np.random.Generator, size_bytes: int, count: int) -> list[Entry]:
    data = generator.bytes(size_bytes * count)
    return [
        (f"u{user:04d}", data[place * size_bytes : (place + 1) * size_bytes])
        for place, user in enumerate(generator.integers(0, 10_000, count).tolist())
    ]


def _json_entries(generator: np.random.Generator, size_bytes: int, count: int) -> list[Entry]:
    text = " ".join(_WORDS) + " "
    # Long enough to start at any of its words and still fill an entry.
    text *= size_bytes // len(text) + 2
    numbers = generator.integers(0, (10_000, 100_000, 5_000, len(_WORDS)), (count, 4))
    return [_json_entry(size_bytes, text, *row) for row in numbers.tolist()]


def _json_entry(size_bytes: int, text: str, user: int, item: int, ms: int, word: int) -> Entry:
    tag, what = f"u{user:04d}", _WORDS[word]
    start = f'{{"user":"{tag}","item":{item},"ms":{ms},"what":"{what}","note":"'
    note = text[text.index(what) :][: size_bytes - len(start) - 2]
    return tag, f'{start}{note}"}}'.encode()
