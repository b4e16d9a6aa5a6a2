"""The matcher gives each queue what its filter would take row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.filter import Filter, Rows, parse_filter
from penstock.queue.filter_text import quoted
from penstock.queue.matcher import PYTHON_ROWS_MAX, Matcher
from property.test_filter import batches, filters, listed, many, spaced

calm = settings(many, max_examples=200)

# Few names and values, so that filters and rows often meet.
names = st.sampled_from(["a", "A", "region", '"NULL"'])
VALUES = ["5", "+5", "a", "", "abc", "-0", "0", "%"]
strings = st.sampled_from(VALUES).map(quoted)
digits = st.sampled_from(["5", "0", "-0.0", "5e0", "6"])

anchor = st.one_of(
    spaced(names, "=", strings),
    spaced(strings, "=", names),
    spaced(names, "=", digits),
    spaced(names, "IN (", listed(strings, 5), ")"),
    spaced(names, "IN (", listed(digits, 5), ")"),
)
anchored = st.one_of(
    anchor,
    spaced(anchor, "AND", anchor),
    spaced(anchor, "AND (", filters, ")"),
    spaced("(", filters, ") AND", anchor),
    spaced(anchor, "OR", anchor),
    spaced("NOT", anchor),
)
# More rows than the Python back end is used for, or fewer.
crowds = st.lists(
    st.dictionaries(st.sampled_from(["a", "A", "region", "NULL"]), st.sampled_from(VALUES)),
    min_size=PYTHON_ROWS_MAX // 2,
    max_size=2 * PYTHON_ROWS_MAX,
)


def rows_of(found: list[dict[str, str]]) -> Rows:
    numbers = np.arange(len(found), dtype=np.int64)
    return Rows(numbers, numbers, numbers, numbers, numbers, found)


@calm
@given(
    st.lists(st.one_of(st.none(), filters, anchored, anchored), max_size=20),
    st.one_of(batches(10), crowds.map(rows_of), crowds.map(rows_of)),
)
def test_each_key_gets_what_its_filter_takes(queues: list[str | None], rows: Rows) -> None:
    parsed: dict[int, Filter | None] = {
        key: None if text is None else parse_filter(text) for key, text in enumerate(queues)
    }
    expected = {}
    for key, each in parsed.items():
        taken = [i for i in range(len(rows)) if each is None or each.matches(rows.row(i))]
        if taken:
            expected[key] = taken
    found = Matcher(parsed).route(rows)
    assert {key: positions.tolist() for key, positions in found.items()} == expected
    assert all(positions.dtype == np.intp for positions in found.values())
