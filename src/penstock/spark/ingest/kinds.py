"""Arrow's several types for one thing. Pure.

Contract     plain_type(kind): the same without views and dictionaries, and with one type for all
             lists, at any depth. Arrow cannot `take` from views, and its cast from a list view to a
             list writes an offset too few, so fit.plain makes such arrays, not a cast.
             octets_type(kind): the same with binary for text, at any depth.
             instants(file): the schema of a Parquet file in which INT96 are instants. Spark writes
             its TIMESTAMP so by default, in UTC, and the format has no place for a zone.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    return _remade(kind, _plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and pa.types.is_string_view(kind.storage_type):
        return pa.string()  # JSON
    return _PLAIN.get(kind, kind)


def octets_type(kind: pa.DataType) -> pa.DataType:
    texts = (pa.types.is_string, pa.types.is_large_string)
    return _remade(kind, lambda leaf: pa.binary() if any(is_(leaf) for is_ in texts) else leaf)


def instants(file: pq.ParquetFile) -> pa.Schema:
    leaves = [file.schema.column(at).physical_type for at in range(len(file.schema))]
    if "INT96" not in leaves:
        return file.schema_arrow
    # Both schemas have their leaves in the same order.
    left = iter(leaves)

    def instant(kind: pa.DataType) -> pa.DataType:
        if isinstance(kind, pa.BaseExtensionType):
            _remade(kind.storage_type, instant)  # just to pass over its leaves
            return kind
        int96 = next(left, None) == "INT96" and pa.types.is_timestamp(kind)
        return pa.timestamp(kind.unit, "UTC") if int96 else kind

    return pa.schema([(field.name, _remade(field.type, instant)) for field in file.schema_arrow])


def _remade(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Of other leaves. All may be null, as they may in Delta: below a null even those that a file
    requires are."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _remade(each.type, leaf)) for each in kind])
    if pa.types.is_map(kind):
        key = _remade(kind.key_type, leaf)
        return pa.map_(key, _remade(kind.item_type, leaf))
    if is_list(kind):
        return pa.list_(pa.field("element", _remade(kind.value_type, leaf)))
    return leaf(kind)
