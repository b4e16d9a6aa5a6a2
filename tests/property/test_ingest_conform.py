"""Typed columns: whatever the file's type and the table's, a value is kept or it is rescued."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark.ingest.conform import conform
from penstock.spark.ingest.schema import delta_type

calm = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]
MOMENTS = st.datetimes(datetime.fromisoformat("1700-01-01"), datetime.fromisoformat("2200-01-01"))


def whole(kind: pa.DataType, low: int, high: int) -> Typed:
    return kind, st.integers(low, high) | st.integers(0, 9) | st.sampled_from([low, high])


def decimals(precision: int, scale: int) -> Typed:
    top = 10**precision - 1
    values = st.integers(-top, top) | st.integers(-99, 99)
    return pa.decimal128(precision, scale), values.map(lambda n: Decimal(f"{n}e-{scale}"))


LEAVES: list[Typed] = [
    (pa.bool_(), st.booleans()),
    whole(pa.int8(), -(2**7), 2**7 - 1),
    whole(pa.int32(), -(2**31), 2**31 - 1),
    whole(pa.int64(), -(2**63), 2**63 - 1),
    whole(pa.uint16(), 0, 2**16 - 1),
    whole(pa.uint64(), 0, 2**64 - 1),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.sampled_from([1.0, 0.1, 1e300, 2.0**63, -0.5])),
    decimals(5, 2),
    decimals(18, 0),
    decimals(38, 10),
    (pa.string(), st.text(max_size=4) | st.sampled_from(["1", "1.5", "true", "2026-01-01"])),
    (pa.large_string(), st.text(max_size=4)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b"])),
    (pa.binary(), st.binary(max_size=4)),
    (pa.date32(), st.dates()),
    (pa.timestamp("s"), MOMENTS.map(lambda at: at.replace(microsecond=0))),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("ns"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    (pa.time64("us"), st.times()),
]


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def struct(fields: dict[str, Typed]) -> Typed:
        kind = pa.struct([(name, kind) for name, (kind, _) in fields.items()])
        return kind, st.fixed_dictionaries({name: maybe(of) for name, (_, of) in fields.items()})

    def array(make: Any) -> Any:
        return lambda typed: (make(typed[0]), st.lists(maybe(typed[1]), max_size=3))

    def mapping(typed: tuple[Typed, Typed]) -> Typed:
        (key, keys), (item, items) = typed
        pairs = st.lists(st.tuples(keys, maybe(items)), max_size=3)
        return pa.map_(key, item), pairs

    leaf = st.sampled_from([each for each in LEAVES if not pa.types.is_dictionary(each[0])])
    return (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(struct)
        | inner.map(array(pa.list_))
        | inner.map(array(pa.large_list))
        | inner.map(array(pa.list_view))
        | inner.map(array(pa.large_list_view))
        | inner.map(
            lambda typed: (pa.list_(typed[0], 2), st.tuples(maybe(typed[1]), maybe(typed[1])))
        )
        | st.tuples(leaf, inner).map(mapping)
    )


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TYPED = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)
TARGETS = TYPED.map(lambda typed: delta_type(typed[0]))


def same(given: Any, kept: Any) -> bool:
    """Whether what was kept is what was given, in the words of Python."""
    match given:
        case None:
            return kept is None
        case dict():
            fields = given.keys() | kept.keys()
            return all(same(given.get(name), kept.get(name)) for name in fields)
        case list() | tuple():
            return len(given) == len(kept) and all(map(same, given, kept))
        case bool():
            return kept is given or kept == str(given).lower()
        case int():
            return Decimal(kept) == given
        case float():
            found = float(kept)
            return found == given or np.float32(found) == given or math.isnan(found + given)
        case Decimal():
            # With as many digits as were given: 0.01 is in no float, but it comes back from one.
            return Decimal(kept).quantize(given, context=Context(prec=80)) == given
        case str() | bytes():
            raw = [each.encode() if isinstance(each, str) else each for each in (given, kept)]
            return raw[0] == raw[1]
        case datetime():
            return (datetime.fromisoformat(kept) if isinstance(kept, str) else kept) == given
        case date():
            if isinstance(kept, datetime):
                return kept == datetime.combine(given, time())
            return (date.fromisoformat(kept) if isinstance(kept, str) else kept) == given
    return isinstance(given, time) and time.fromisoformat(kept) == given


@calm
@given(st.data(), TYPED, TARGETS)
def test_a_value_is_kept_or_it_is_rescued(data: Any, typed: Typed, target: pa.DataType) -> None:
    kind, values = typed
    rows = data.draw(st.lists(maybe(values), min_size=1, max_size=6))
    # A slice, for the arrays that are read are slices too.
    array = pa.array([*rows, *rows], kind).slice(len(rows) // 2, len(rows))
    table = conform(pa.table({"x": array}), pa.schema([("x", target)]))
    table.validate(full=True)
    for value, row in zip(array.to_pylist(), table.to_pylist(), strict=True):
        if row["_rescued_data"] is None:
            assert same(value, row["x"]), (kind, value, target, row)
        else:
            assert list(json.loads(row["_rescued_data"])) == ["x"]
            assert value is not None


@calm
@given(st.data(), TYPED)
def test_what_a_column_was_inferred_from_fits_it(data: Any, typed: Typed) -> None:
    kind, values = typed
    rows = data.draw(st.lists(maybe(values), min_size=1, max_size=6))
    array = pa.array(rows, kind)
    table = conform(pa.table({"x": array}), pa.schema([("x", delta_type(kind))]))
    assert table["_rescued_data"].null_count == len(rows)
    assert all(map(same, array.to_pylist(), table["x"].to_pylist()))
