"""Columns that have types already (Parquet) into those of a table. Pure.

Contract     conform(batch, columns): the same rows. A column is cast where every value keeps its
             meaning; values that do not, and columns that the table has not, go into
             `_rescued_data` as a JSON object of just those. Columns that are missing are null.
"""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.ingest.schema import RESCUED, delta_type


def conform(batch: pa.Table, columns: pa.Schema) -> pa.Table:
    """-> the columns, then _rescued_data"""
    arrays: list[Any] = []
    rescued: dict[str, tuple[Any, np.ndarray[Any, np.dtype[np.bool_]]]] = {}
    for field in columns:
        if field.name not in batch.column_names:
            arrays.append(pa.nulls(len(batch), field.type))
            continue
        given = batch.column(field.name)
        array = cast(given, field.type)
        if array is None:
            array = pa.nulls(len(batch), field.type)
            rescued[field.name] = (given, given.is_valid().to_numpy())
        arrays.append(array)
    for name in batch.column_names:
        if name not in columns.names:
            given = batch.column(name)
            rescued[name] = (given, given.is_valid().to_numpy())
    return pa.Table.from_arrays(
        [*arrays, _texts(rescued, len(batch))],
        schema=pa.schema([*columns, pa.field(RESCUED, pa.string())]),
    )


def cast(given: Any, kind: pa.DataType) -> Any:
    """None: some value would not survive it, or there is no such cast."""
    if given.type == kind:
        return given
    natural = delta_type(given.type)
    if pa.types.is_string(kind) and natural == kind and not _is_text(given.type):
        # Types that Delta has not (times of day, durations): their text.
        return pa.chunked_array([[_text(each) for each in given.to_pylist()]], kind)
    try:
        if pa.types.is_timestamp(given.type) and pa.types.is_timestamp(kind):
            # Nanoseconds below a microsecond are cut: Delta's times are in microseconds.
            return (
                pc.cast(given, kind, safe=False) if bool(given.type.tz) == bool(kind.tz) else None
            )
        return pc.cast(given, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _texts(
    rescued: dict[str, tuple[Any, np.ndarray[Any, np.dtype[np.bool_]]]], rows: int
) -> pa.Array:
    texts: list[str | None] = [None] * rows
    found: dict[int, dict[str, Any]] = {}
    for name, (given, valid) in rescued.items():
        at = np.flatnonzero(valid)
        for row, value in zip(at.tolist(), given.take(pa.array(at)).to_pylist(), strict=True):
            found.setdefault(row, {})[name] = value
    for row, values in found.items():
        texts[row] = json.dumps(values, ensure_ascii=False, default=_plain)
    return pa.array(texts, pa.string())


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
    return str(value)
