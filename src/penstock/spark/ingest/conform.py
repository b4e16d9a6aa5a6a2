"""Columns that have types already (Parquet) into those of a table. Pure.

Contract     conform(batch, columns): the same rows. A value that is the same in its column's type
             is in its column (fit.py); one that is not, and those of columns that the table has
             not, are in `_rescued_data`, a JSON object of just those, each as the file has it.
             Columns that are missing are null. Text that is no UTF-8 is no value of a text column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spark.ingest.fit import Mask, fit, plain, valid
from penstock.spark.ingest.kinds import octets_type
from penstock.spark.ingest.legible import legible, rescued_text
from penstock.spark.ingest.schema import RESCUED


def conform(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """-> the columns, then _rescued_data. The table has each name once."""
    schema = pa.schema([*columns, pa.field(RESCUED, pa.string())])
    batches = [_conform(batch, columns, schema) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


def _conform(batch: pa.RecordBatch, columns: pa.Schema, schema: pa.Schema) -> pa.RecordBatch:
    given = dict(zip(batch.schema.names, map(plain, batch.columns), strict=True))
    arrays: list[pa.Array] = []
    rescued: dict[str, tuple[pa.Array, Mask]] = {}
    for field in columns:
        if field.name not in given:
            arrays.append(pa.nulls(len(batch), field.type))
            continue
        array, lost = fit(_readable(given[field.name]), field.type)
        arrays.append(array)
        rescued[field.name] = (given[field.name], lost)
    known = set(columns.names)
    rescued |= {name: (array, valid(array)) for name, array in given.items() if name not in known}
    return pa.RecordBatch.from_arrays([*arrays, _texts(rescued, len(batch))], schema=schema)


def _readable(array: pa.Array) -> pa.Array:
    """Text as octets, if some of it is no UTF-8. Arrow does not look when it reads and writes; most
    readers do, and one such value would keep them from the whole table."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return fit(array, octets_type(array.type))[0]
    return array


def _texts(rescued: dict[str, tuple[pa.Array, Mask]], rows: int) -> pa.Array:
    found: dict[int, dict[str, Any]] = {}
    for name, (given, lost) in rescued.items():
        at = np.flatnonzero(lost)
        if not len(at):
            continue
        for row, value in zip(at.tolist(), legible(given.take(pa.array(at))), strict=True):
            found.setdefault(row, {})[name] = value
    texts: list[str | None] = [None] * rows
    for row, values in found.items():
        texts[row] = rescued_text(values)
    return pa.array(texts, pa.string())
