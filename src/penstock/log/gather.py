"""Fragments, and entries that came alone, put end to end as one body. Pure.

Contract     `Gathered` takes what comes in the order of its offsets; `body()` has all of it. Dead
             entries stay dead, a column that holds nothing is left out.
Speed        Columns are joined whole and their tables counted through at once: an object for every
             entry, made only to be joined again, was most of what a merge cost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.codec.node import (
    Body,
    Column,
    Node,
    body_columns,
    build_body,
    decode_node,
    node_value,
)
from penstock.log.batch import column, column_signature, is_large

_TABLE = struct.Struct("<II")
_TIME = struct.Struct("<q")


class Gathered:
    def __init__(self) -> None:
        self.count = 0
        self._counts: list[int] = []
        self._data: list[Column | None] = []
        self._tags: list[Column | None] = []
        self._metas: list[Column | None] = []
        #: Of each part: the time of all its entries, or one after the other as a node has them.
        self._times: list[int | bytes] = []
        self._last_ms = 0
        self._dead: list[npt.NDArray[np.int64]] = []

    def add_entries(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Tag and data of each: one part, however many there are."""
        if len(entries) == 1:  # most are alone, and without the price of arrays
            ((tag, data),) = entries
            self._add(1, _column(data), _column(tag) if tag else None, None, 0)
            return
        tags, datas = zip(*entries, strict=True)
        tagged = column(tags, "tag") if any(tags) else None
        self._add(len(entries), column(datas, "data"), tagged, None, 0)

    def add_body(self, body: Body, time_ms: int = 0) -> None:
        columns = body_columns(body)
        if columns is None:
            self.add_node(decode_node(node_value(body, 0, time_ms), "a body in memory"))
        else:
            self._add(body.count, *columns, time_ms)
            self._last_ms = time_ms

    def add_node(self, node: Node) -> None:
        alive = node.alive()
        if alive is not None:
            self._dead.append((~alive).nonzero()[0] + self.count)
        times = node.time_ms if node.times is None else node.times.tobytes()
        self._add(node.count, *node.columns(), times)
        self._last_ms = node.last_ms()

    def _add(
        self,
        count: int,
        data: Column | None,
        tags: Column | None,
        metas: Column | None,
        times: int | bytes,
    ) -> None:
        self.count += count
        self._counts.append(count)
        self._data.append(data)
        self._tags.append(tags)
        self._metas.append(metas)
        self._times.append(times)

    @property
    def last_ms(self) -> int:
        """The time of the newest entry."""
        return self._last_ms

    def body(self, *, compress: bool | None = None) -> Body | None:
        """None where every entry is dead. Small ones are compressed only where that is asked for:
        they will be merged."""
        dead = sum(map(len, self._dead))
        if dead == self.count:
            return None
        validity = None
        if dead:
            alive = np.ones(self.count, np.bool_)
            alive[np.concatenate(self._dead)] = False
            validity = np.packbits(alive, bitorder="little").tobytes()
        data, tags, metas = (
            _joined(columns, self._counts) for columns in (self._data, self._tags, self._metas)
        )
        if compress is None:
            compress = is_large(self.count, len(data[1]) + len(tags[1]))
        return build_body(
            self.count,
            data,
            tags=tags if tags[1] else None,
            meta=metas if metas[1] else None,
            validity=validity,
            times=self._joined_times(),
            compress=compress,
            signature=column_signature(self.count, tags) if tags[1] and compress else 0,
        )

    def _joined_times(self) -> bytes | None:
        """None where all are the same."""
        if len(set(self._times)) == 1 and isinstance(self._times[0], int):
            return None
        return b"".join(
            _TIME.pack(time) * count if isinstance(time, int) else time
            for time, count in zip(self._times, self._counts, strict=True)
        )


def _column(item: bytes) -> Column:
    return _TABLE.pack(0, len(item)), item


def _joined(columns: Sequence[Column | None], counts: Sequence[int]) -> Column:
    first = columns[0]
    if len(columns) == 1 and first:
        return first
    if not any(columns):
        return b"", b""
    tables = b"".join(
        [
            each[0] if each else bytes(4 * count + 4)
            for each, count in zip(columns, counts, strict=True)
        ]
    )
    sizes = np.diff(np.frombuffer(tables, "<u4"))
    if len(counts) > 1:
        # Between two tables there is no entry.
        sizes = np.delete(sizes, np.cumsum(np.array(counts[:-1]) + 1) - 1)
    table = np.zeros(len(sizes) + 1, "<u4")
    np.cumsum(sizes, out=table[1:])
    return table.tobytes(), b"".join([each[1] for each in columns if each])
