"""Filters and priorities of queues: SQL expressions over headers and metadata. Pure.

    region = 'eu' AND amount > 100                     takes a message or not
    CASE WHEN vip = 'yes' THEN 1 ELSE 5 END            its priority in the queue

Contract     parse_filter and parse_priority raise InvalidError, with line and column, for any text
             that is none, and nothing else. `text` is canonical: what is stored, and reading it
             gives it again. The grammar stands in filter_syntax.py, the meaning of NULL and of
             arithmetic in filter_python.py, what counts as a number in filter_number.py.
Names        A name is a header, text, NULL if the message has none. `_id`, `_created_at`,
             `_received_at`, `_visible_at` (epoch milliseconds) and `_retention` (seconds) are
             numbers. All numbers are float64, so ids above 2^53 are compared rounded.
Priority     A whole number from 0 to 255, lower ones first. NULL, text that is no number, a
             fraction and anything outside are 128.
Invariants   matches and select agree for every row, and so do of and column.
Not here     Which queue takes what (matcher.py).
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.codec.scalars import U16_MAX
from penstock.errors import InvalidError
from penstock.queue.filter_arrow import OfRows, compile_batch
from penstock.queue.filter_nodes import META, Kind, Node, names
from penstock.queue.filter_number import number_of
from penstock.queue.filter_python import OfRow, compile_row
from penstock.queue.filter_syntax import parse
from penstock.queue.filter_text import render
from penstock.queue.filter_tokens import TEXT_BYTES_MAX, Source
from penstock.queue.rows import Row, Rows

__all__ = [
    "DEFAULT_PRIORITY",
    "Filter",
    "Priority",
    "Row",
    "Rows",
    "check_header_name",
    "header_priorities",
    "header_priority",
    "parse_filter",
    "parse_priority",
]

DEFAULT_PRIORITY = 128
PRIORITY_MAX = 255
PRIORITY_HEADER = "priority"


@lru_cache(256)  # names come again and again; what is refused is looked at anew
def check_header_name(name: str) -> None:
    """Whether a message may be published with it."""
    if not name:
        raise InvalidError("a header name is empty")
    if name.startswith("_"):
        raise InvalidError(f"header {name!r}: names with a leading underscore are metadata")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidError(f"header {name!r} is not valid Unicode") from None
    if size > U16_MAX:
        raise InvalidError(f"a header name has {size} bytes; at most {U16_MAX} are allowed")


class Filter:
    def __init__(self, text: str) -> None:
        self.node, self.text = _read(text, "filter", Kind.BOOLEAN)
        self.headers = names(self.node) - META.keys()

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    # The back ends are built when they are first needed: of most filters, one never is.
    @cached_property
    def _of_row(self) -> OfRow:
        return compile_row(self.node)

    @cached_property
    def _of_rows(self) -> OfRows:
        return compile_batch(self.node, Kind.BOOLEAN)

    def matches(self, row: Row) -> bool:
        """NULL is no match."""
        return self._of_row(row) is True

    def select(self, rows: Rows) -> NDArray[np.bool_]:
        found = self._of_rows(rows)
        if isinstance(found, pa.Scalar):
            return np.full(len(rows), found.as_py() is True)
        chosen: NDArray[np.bool_] = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
        return chosen


class Priority:
    def __init__(self, text: str) -> None:
        self.node, self.text = _read(text, "priority", Kind.NUMBER)
        self.headers = names(self.node) - META.keys()

    def __repr__(self) -> str:
        return f"Priority({self.text!r})"

    @cached_property
    def _of_row(self) -> OfRow:
        return compile_row(self.node)

    @cached_property
    def _of_rows(self) -> OfRows:
        return compile_batch(self.node, Kind.NUMBER)

    def of(self, row: Row) -> int:
        return _priority(self._of_row(row))

    @property
    def says_nothing(self) -> bool:
        """A constant that is no priority, such as 300: every message would get the default."""
        return not names(self.node) and not _is_priority(self._of_row(Row(0, 0, 0, 0, 0, {})))

    def column(self, rows: Rows) -> NDArray[np.uint8]:
        found = self._of_rows(rows)
        if isinstance(found, pa.Scalar):
            return np.full(len(rows), _priority(found.as_py()), np.uint8)
        return _priorities(found)


def _read(text: str, what: str, kind: Kind) -> tuple[Node, str]:
    node = parse(Source(what, text), kind)
    canonical = render(node)
    # What is stored must be readable again: spaces and quotes may have been added.
    if (size := len(canonical.encode())) > TEXT_BYTES_MAX:
        raise InvalidError(f"{what}: {size} bytes in canonical form, over {TEXT_BYTES_MAX}")
    return node, canonical


def parse_filter(text: str) -> Filter:
    return Filter(text)


def parse_priority(text: str) -> Priority:
    return Priority(text)


def header_priority(row: Row) -> int:
    """For queues without an expression: the header `priority`."""
    text = row.headers.get(PRIORITY_HEADER)
    return DEFAULT_PRIORITY if text is None else _priority(number_of(text))


def header_priorities(rows: Rows) -> NDArray[np.uint8]:
    return _priorities(rows.numbers(PRIORITY_HEADER))


def _priority(number: float | None) -> int:
    return int(number) if _is_priority(number) else DEFAULT_PRIORITY


def _is_priority(number: float | None) -> TypeGuard[float]:
    return number is not None and 0 <= number <= PRIORITY_MAX and number == int(number)


def _priorities(column: pa.DoubleArray) -> NDArray[np.uint8]:
    numbers = column.to_numpy(zero_copy_only=False)  # NULL becomes NaN, which fails every test
    fits = (numbers >= 0) & (numbers <= PRIORITY_MAX) & (numbers == np.floor(numbers))
    return np.where(fits, numbers, DEFAULT_PRIORITY).astype(np.uint8)
