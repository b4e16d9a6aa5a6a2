"""What the matcher asks of filters: a thousand queues are not a thousand evaluations."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.queue.filter import Filter, Row, Rows, parse_filter
from penstock.queue.matcher import PYTHON_ROWS_MAX, Matcher
from unit.queue.test_filter import rows_of


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of a filter for each time it was evaluated."""
    found: list[str] = []
    matches, select = Filter.matches, Filter.select

    def counted_matches(self: Filter, row: Row) -> bool:
        found.append(self.text)
        return matches(self, row)

    def counted_select(self: Filter, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        found.append(self.text)
        return select(self, rows)

    monkeypatch.setattr(Filter, "matches", counted_matches)
    monkeypatch.setattr(Filter, "select", counted_select)
    return found


def routed(matcher: Matcher[int], rows: Rows) -> dict[int, list[int]]:
    return {key: positions.tolist() for key, positions in matcher.route(rows).items()}


@pytest.mark.parametrize(
    "form", ["region = 'r{}'", "'r{}' = region", "region IN ('r{}', 'x', NULL)", "shard = {}"]
)
def test_queues_told_apart_by_a_value_are_looked_up(form: str, evaluated: list[str]) -> None:
    matcher = Matcher({key: parse_filter(form.format(key)) for key in range(1000)})
    rows = rows_of(*({"region": f"r{i}", "shard": f"{i}.0"} for i in range(100)), {})
    assert routed(matcher, rows) == {i: [i] for i in range(100)}
    assert evaluated == []


def test_other_parts_are_evaluated_on_the_rows_in_question_only(evaluated: list[str]) -> None:
    form = "amount > 10 AND region = 'r{}'"
    matcher = Matcher({key: parse_filter(form.format(key)) for key in range(1000)})
    rows = rows_of(*({"region": f"r{i}", "amount": str(i)} for i in range(20)))
    assert routed(matcher, rows) == {i: [i] for i in range(11, 20)}
    assert sorted(evaluated) == sorted(form.format(i) for i in range(20))


@pytest.mark.parametrize(("size", "times"), [(5, 5), (PYTHON_ROWS_MAX + 1, 1)])
def test_equal_filters_are_evaluated_once(size: int, times: int, evaluated: list[str]) -> None:
    texts = ("a > 1", "(a)>1.0")
    matcher = Matcher({key: parse_filter(texts[key % 2]) for key in range(1000)})
    rows = rows_of(*({"a": "2"} for _ in range(size)))
    everything = list(range(size))
    assert routed(matcher, rows) == {key: everything for key in range(1000)}
    assert evaluated == ["a > 1"] * times


def test_constants_are_decided_once(evaluated: list[str]) -> None:
    texts = {0: "FALSE", 1: "TRUE", 2: "NULL", 3: "1 + 1 = 2", 4: "NULL = 1"}
    matcher = Matcher({key: parse_filter(text) for key, text in texts.items()} | {5: None})
    evaluated.clear()
    everything = [0, 1]
    assert routed(matcher, rows_of({}, {"a": "1"})) == dict.fromkeys((1, 3, 5), everything)
    assert evaluated == []


def test_the_rarest_of_several_values_is_looked_up(evaluated: list[str]) -> None:
    matcher = Matcher({0: parse_filter("kind IN ('a', 'b') AND region = 'eu'")})
    rows = rows_of({"kind": "a", "region": "us"}, {"kind": "b", "region": "eu"})
    assert routed(matcher, rows) == {0: [1]}
    assert len(evaluated) == 1


def test_many_rows_in_question_are_evaluated_together(evaluated: list[str]) -> None:
    matcher = Matcher({0: parse_filter("amount > 10 AND region = 'eu'")})
    size = 3 * PYTHON_ROWS_MAX
    rows = rows_of(
        *({"region": "eu" if i % 2 else "us", "amount": str(i)} for i in range(size)),
    )
    assert routed(matcher, rows) == {0: [i for i in range(size) if i % 2 and i > 10]}
    assert len(evaluated) == 1


def test_an_or_or_a_not_is_no_value_to_look_up() -> None:
    texts = {0: "a = 'x' OR b = 'y'", 1: "NOT a = 'x'", 2: "a <> 'x'", 3: "a = b"}
    matcher = Matcher({key: parse_filter(text) for key, text in texts.items()})
    rows = rows_of({"a": "x"}, {"b": "y"}, {"a": "y", "b": "y"}, {})
    assert routed(matcher, rows) == {0: [0, 1, 2], 1: [2], 2: [2], 3: [2]}


def test_a_list_of_nothing_but_null_takes_nothing() -> None:
    assert routed(Matcher({0: parse_filter("a IN (NULL)")}), rows_of({"a": "x"}, {})) == {}


def test_rows_of_several_values_come_in_order_and_cannot_be_changed() -> None:
    matcher = Matcher({0: parse_filter("a IN ('x', 'y')"), 1: None})
    found = matcher.route(rows_of({"a": "y"}, {"a": "x"}, {}, {"a": "y"}))
    assert found[0].tolist() == [0, 1, 3]
    for positions in found.values():
        assert positions.dtype == np.intp
        with pytest.raises(ValueError, match="read-only"):
            positions[0] = 9


def test_no_rows_and_no_queues_route_nothing() -> None:
    assert Matcher[int]({}).route(rows_of({})) == {}
    assert Matcher({0: None, 1: parse_filter("a = 1")}).route(rows_of()) == {}
