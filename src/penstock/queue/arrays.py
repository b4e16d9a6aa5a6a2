"""From numpy to Arrow, whole columns at a time. Pure.

Contract     `cut_out` copies pieces of a blob into an array, in one pass of Arrow's own. `instants`
             are what Python and Spark can show: a time outside of their calendar becomes the
             nearest day in it. `deadlines` are null where they never come.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.scalars import I64_MAX, NEVER_MS
from penstock.errors import CorruptError

Ints = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
Whole = TypeVar("Whole", np.int64, np.uint64)

INSTANT = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.string())


def _ms(day: datetime) -> int:
    return int(day.timestamp()) * 1000


#: A day from either end of Python's calendar, so that no time zone leads out of it.
FIRST_MS = _ms(datetime(1, 1, 2, tzinfo=UTC))
LAST_MS = _ms(datetime(9999, 12, 31, tzinfo=UTC))


def cut_out(blob: pa.Buffer, begin: Ints, end: Ints) -> pa.Array:
    """The pieces begin <= byte < end as a binary array; they rise and do not overlap."""
    count = len(begin)
    if not count:
        return pa.array([], pa.binary())
    # Every second element of this array is a piece, the others lie between them.
    edges = np.empty(2 * count, np.int32)
    edges[0::2], edges[1::2] = begin, end
    assert (edges[1:] >= edges[:-1]).all(), "else this is no array of Arrow's"
    table = pa.py_buffer(edges)
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, table, blob])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2)))


def instants(ms: npt.NDArray[np.int64]) -> pa.Array:
    within = np.clip(np.ascontiguousarray(ms, np.int64), FIRST_MS, LAST_MS)
    return pa.Array.from_buffers(INSTANT, len(within), [None, pa.py_buffer(within * 1000)])


def deadlines(ms: npt.NDArray[np.int64]) -> pa.Array:
    ms = np.ascontiguousarray(ms, np.int64)
    never = ms == NEVER_MS
    if not never.any():
        return instants(ms)
    valid = pa.py_buffer(np.packbits(~never, bitorder="little"))
    micros = pa.py_buffer(np.clip(ms, FIRST_MS, LAST_MS) * 1000)
    return pa.Array.from_buffers(INSTANT, len(ms), [valid, micros])


def whole(numbers: npt.NDArray[np.uint64], what: str) -> pa.Array:
    """Unsigned numbers as signed ones, which is what Spark has."""
    numbers = np.ascontiguousarray(numbers, np.uint64)
    if len(numbers) and int(numbers.max()) > I64_MAX:
        raise CorruptError(f"{what} {int(numbers.max())} is larger than any that was given out")
    return pa.array(numbers.view(np.int64))


def rising(numbers: npt.NDArray[Whole]) -> npt.NDArray[Whole]:
    """Each of them once, in order; `numpy.unique` spends far longer on those that are so."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers
    numbers = np.sort(numbers)
    first = np.ones(len(numbers), np.bool_)
    first[1:] = numbers[1:] != numbers[:-1]
    return numbers[first]


def places(found: Truths) -> pa.Array:
    """For each: its place among those that were found, null where it was not. To take by."""
    return pa.array(np.cumsum(found) - 1, pa.int64(), mask=~found)
