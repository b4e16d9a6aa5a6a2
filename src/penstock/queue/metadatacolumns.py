"""Metadata records (codec/metadata.py) as columns, without a loop over messages. Pure.

The records lie in one blob. All of them are read at once, step by step: the fixed fields, then the
first header of every record that has one, then the second, and so on; then our tail. Texts are cut
out of the blob by Arrow, which checks that they are UTF-8.

Contract     Equal to `decode_metadata` of each record. Where that raises CorruptError, so does
             this, with what it says about the first such record. Without `headers`, the texts of
             headers are stepped over and not looked at.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.metadata import decode_metadata
from penstock.errors import CorruptError
from penstock.queue.arrays import HEADERS, Ints, cut_out, places

Bytes = npt.NDArray[np.uint8]

_FIXED = np.dtype(
    [
        ("message_id", "<u8"),
        ("created_at_ms", "<i8"),
        ("received_at_ms", "<i8"),
        ("visible_at_ms", "<i8"),
        ("retention_s", "<u4"),
        ("headers", "u1"),
    ]
)
_TO, _DEDUP_ID = 1, 2


class Records(msgspec.Struct, frozen=True, eq=False):
    """Records in a blob of less than 2 GiB: begin <= byte < end, rising."""

    blob: bytes
    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.begin)


class MetadataColumns(msgspec.Struct, frozen=True, eq=False):
    fixed: npt.NDArray[np.void]  # of _FIXED, one per record
    to: pa.Array  # string; null: filters decide
    headers: pa.Array | None  # map<string, string>, in the producer's order


class _MalformedError(Exception):
    """Some record is not what an encoder made."""


def metadata_columns(records: Records, *, headers: bool = True) -> MetadataColumns:
    try:
        return _decode(records, headers)
    except (_MalformedError, pa.ArrowInvalid):
        raise _told(records) from None


def _told(records: Records) -> CorruptError:
    """What the plain decoder says. Slow, and nothing waits for it: the read is over."""
    for begin, end in zip(records.begin.tolist(), records.end.tolist(), strict=True):
        try:
            decode_metadata(records.blob[begin:end])
        except CorruptError as error:
            return error
    raise AssertionError("the plain decoder finds nothing wrong")


def _decode(records: Records, headers: bool) -> MetadataColumns:
    count, blob = len(records), pa.py_buffer(records.blob)
    if not count:
        none = pa.array([], HEADERS) if headers else None
        return MetadataColumns(np.zeros(0, _FIXED), pa.array([], pa.string()), none)
    raw = np.frombuffer(records.blob, np.uint8)
    at, end = records.begin, records.end
    _require(at + _FIXED.itemsize <= end)
    windows = np.lib.stride_tricks.sliding_window_view(raw, _FIXED.itemsize)
    fixed = windows[at].view(_FIXED)[:, 0]
    at = at + _FIXED.itemsize
    counts = fixed["headers"].astype(np.int64)
    firsts = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    at, edges = _step_over_headers(raw, at, end, counts, firsts)
    to = _tails(raw, blob, at, end)
    maps = _maps(blob, edges, counts, firsts) if headers else None
    return MetadataColumns(fixed, to, maps)


def _require(truths: npt.NDArray[np.bool_]) -> None:
    if not truths.all():
        raise _MalformedError


def _text(raw: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """A Utf8 that begins at each of these places. -> where its text begins and ends"""
    begin = at + 2
    _require(begin <= end)
    # Two bytes from any place on, aligned or not.
    lengths = np.ndarray((len(raw) - 1,), "<u2", raw, strides=(1,))
    stop = begin + lengths[at]
    _require(stop <= end)
    return begin, stop


def _step_over_headers(
    raw: Bytes, at: Ints, end: Ints, counts: Ints, firsts: Ints
) -> tuple[Ints, Ints]:
    """-> where the records go on; and of each header, message by message: where its name begins and
    ends, and its value"""
    edges = np.empty((int(firsts[-1]), 4), np.int64)
    at = at.copy()
    having = np.flatnonzero(counts)
    rank = 0
    while len(having):
        name, name_end = _text(raw, at[having], end[having])
        value, value_end = _text(raw, name_end, end[having])
        edges[firsts[having] + rank] = np.stack((name, name_end, value, value_end), axis=1)
        at[having] = value_end
        rank += 1
        having = having[counts[having] > rank]
    return at, edges


def _maps(blob: pa.Buffer, edges: Ints, counts: Ints, firsts: Ints) -> pa.Array:
    names = cut_out(blob, edges[:, 0], edges[:, 1]).cast(pa.string())
    values = cut_out(blob, edges[:, 2], edges[:, 3]).cast(pa.string())
    if int(counts.max()) > 1:
        _check_once(names, counts, firsts)
    offsets = pa.array(firsts.astype(np.int32))
    return pa.MapArray.from_arrays(offsets, names, values)


def _check_once(names: pa.Array, counts: Ints, firsts: Ints) -> None:
    """A message has a header once."""
    known = names.dictionary_encode()
    codes = known.indices.to_numpy().astype(np.uint64)
    having = np.flatnonzero(counts)
    if len(known.dictionary) <= 64:
        # One bit for each name, nearly always: many times faster than sorting.
        bits = np.bitwise_or.reduceat(np.uint64(1) << codes, firsts[having])
        _require(np.bitwise_count(bits) == counts[having])
        return
    pairs = np.repeat(np.arange(len(counts), dtype=np.uint64), counts) << np.uint64(32) | codes
    pairs.sort()
    _require(pairs[1:] != pairs[:-1])


def _tails(raw: Bytes, blob: pa.Buffer, at: Ints, end: Ints) -> pa.Array:
    """Our tail. -> `to` of each record"""
    having = np.flatnonzero(at < end)
    if not len(having):
        return pa.nulls(len(at), pa.string())
    present = raw[at[having]]
    _require((present > 0) & (present <= _TO | _DEDUP_ID))
    at = at.copy()
    at[having] += 1
    to = having[present & _TO != 0]
    begin, stop = _text(raw, at[to], end[to])
    at[to] = stop
    keyed = having[present & _DEDUP_ID != 0]
    key, key_stop = _text(raw, at[keyed], end[keyed])
    at[keyed] = key_stop
    _require(at == end)
    cut_out(blob, key, key_stop).cast(pa.string())  # checked, and nobody asks for it
    addressed = np.zeros(len(at), np.bool_)
    addressed[to] = True
    return cut_out(blob, begin, stop).cast(pa.string()).take(places(addressed))
