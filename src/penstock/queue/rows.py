"""What filters and priorities see of messages: one row, or a batch in columns. Pure.

Contract     Times are epoch milliseconds, retention is in seconds. A header that a message does
             not have is NULL. Columns that filters ask for are built once per batch and kept, so
             a thousand filters on one header read it once.
Invariants   All columns of a batch have one length. A batch is not changed after it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.queue.filter_number import doubles, numbers_of


class Row(msgspec.Struct, frozen=True):
    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_s: int
    headers: Mapping[str, str]


class Rows:
    """A batch of messages."""

    def __init__(
        self,
        ids: NDArray[np.int64],
        created_at_ms: NDArray[np.int64],
        received_at_ms: NDArray[np.int64],
        visible_at_ms: NDArray[np.int64],
        retention_s: NDArray[np.int64],
        headers: Sequence[Mapping[str, str]],
    ) -> None:
        self.ids = ids
        self.created_at_ms = created_at_ms
        self.received_at_ms = received_at_ms
        self.visible_at_ms = visible_at_ms
        self.retention_s = retention_s
        self.headers = headers
        columns = (ids, created_at_ms, received_at_ms, visible_at_ms, retention_s)
        assert all(len(column) == len(headers) for column in columns)
        self._rows: list[Row | None] = [None] * len(headers)
        self._texts: dict[str, list[str | None]] = {}
        self._headers: dict[str, Any] = {}
        self._numbers: dict[str, Any] = {}
        self._meta: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.headers)

    def row(self, i: int) -> Row:
        found = self._rows[i]
        if found is None:
            found = self._rows[i] = Row(
                id=int(self.ids[i]),
                created_at_ms=int(self.created_at_ms[i]),
                received_at_ms=int(self.received_at_ms[i]),
                visible_at_ms=int(self.visible_at_ms[i]),
                retention_s=int(self.retention_s[i]),
                headers=self.headers[i],
            )
        return found

    def texts(self, name: str) -> list[str | None]:
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = [headers.get(name) for headers in self.headers]
        return found

    def header(self, name: str) -> Any:
        """A StringArray; NULL where the header is missing."""
        found = self._headers.get(name)
        if found is None:
            found = self._headers[name] = pa.array(self.texts(name), pa.string())
        return found

    def numbers(self, name: str) -> Any:
        """The header as a DoubleArray; NULL where it is missing or no number."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = numbers_of(self.header(name))
        return found

    def meta(self, field: str) -> Any:
        """A field of Row as a DoubleArray."""
        found = self._meta.get(field)
        if found is None:
            column = self.ids if field == "id" else getattr(self, field)
            found = self._meta[field] = doubles(column)
        return found
