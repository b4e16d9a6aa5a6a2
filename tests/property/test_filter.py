"""Filters: two back ends that agree, a text that reads back, and no text that breaks the reader."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import sqlglot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from penstock.errors import InvalidError
from penstock.queue.filter import (
    Filter,
    Rows,
    header_priorities,
    header_priority,
    parse_filter,
    parse_priority,
)
from penstock.queue.filter_arrow import compile_batch
from penstock.queue.filter_nodes import Kind, Node
from penstock.queue.filter_python import compile_row
from penstock.queue.filter_syntax import parse
from penstock.queue.filter_text import quoted
from penstock.queue.filter_tokens import Source

# The machine may be busy, so no example is judged by its time.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(calm, max_examples=300)

# Few, so that a filter and a message often speak of the same header. The last ones must be quoted.
NAMES = [
    "a",
    "A",
    "region",
    "région",
    "date",
    "lower",
    "content-type",
    "NULL",
    "x y",
    'q"q',
    "%",
    "é\n",
]
VALUES = [
    *(
        "",
        "5",
        "-5",
        "+5",
        "5.",
        "5.0",
        ".5",
        "0.5",
        "-0",
        "1e3",
        "1E-3",
        "1e999",
        "-1e999",
        "1e-400",
    ),
    *(
        "nan",
        "inf",
        "-Infinity",
        "0x10",
        "1_0",
        "1,5",
        " 5",
        "5 ",
        "5\n",
        "\n5",
        "+-5",
        "e5",
        ".",
        "+",
    ),
    *(
        "9007199254740993",
        "9" * 400,
        "1" + "0" * 308,
        "5e-324",
        "٣",
        "\u0665",
        "true",
        "NULL",
        "null",
    ),
    *(
        "a",
        "A",
        "abc",
        "ABC",
        "aBc",
        "ä",
        "Ä",
        "İ",
        "\u0131",
        "ß",
        "ς",
        "ǆ",
        "😀",
        "a😀b",
        "\x00",
        "a\x00b",
    ),
    *(
        "%",
        "_",
        "a%b",
        "a_b",
        "\\",
        "a\\",
        "'",
        '"',
        "''",
        "a\nb",
        "a\r\n",
        "\u2028",
        ".*",
        "[a]",
        "^a$",
    ),
]
NUMBERS = ["0", "1", "2", "-2", "3", "0.5", "7", "-7.5", "100", "1e308", "-1e308", "1e-308", "300"]
PATTERNS = [
    "%a%a",
    "a%a",
    "%ab%b",
    "%_b%b",
    "",
    "%",
    "_",
    "%%",
    "a%",
    "%a",
    "%a%",
    "a%b",
    "_%_",
    "%_a%",
    "a_c",
    "%\n%",
    "A_",
    "^a$",
    "[a]%",
]

plain_text = st.text(st.characters(codec="utf-8"), max_size=6)
texts = st.one_of(st.sampled_from(VALUES), plain_text)
WHOLE = [*range(-3, 10), 128, 255, 256, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1_700_000_000_000]


@st.composite
def batches(draw: st.DrawFn, rows_max: int = 50) -> Rows:
    """Filled from a seed: drawing each value costs so much that there would be few of them."""
    size = draw(st.integers(0, rows_max))
    values = [*VALUES, *NUMBERS, *draw(st.lists(plain_text, max_size=5))]
    world = random.Random(draw(st.integers(0, 2**32)))

    def header() -> str:
        return world.choice(world.choice((values, NUMBERS)))

    columns = [np.array(world.choices(WHOLE, k=size), np.int64) for _ in range(5)]
    found = [{name: header() for name in NAMES if world.random() < 0.8} for _ in range(size)]
    return Rows(columns[0], columns[1], columns[2], columns[3], columns[4], found)


names = st.sampled_from(NAMES).map(
    lambda name: name if name.isidentifier() and name != "NULL" else quoted(name, '"')
)
meta = st.sampled_from(["_id", "_created_at", "_received_at", "_visible_at", "_retention"])
strings = texts.map(quoted)
digits = st.one_of(
    st.sampled_from(
        ["0", "5", "-5", "0.5", ".5", "5.", "1e3", "128", "255", "1e308", "5e-324", "-0"]
    ),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)


def listed(items: st.SearchStrategy[str], size: int) -> st.SearchStrategy[str]:
    return st.lists(st.one_of(items, st.just("NULL")), min_size=1, max_size=size).map(", ".join)


def spaced(*parts: st.SearchStrategy[str] | str) -> st.SearchStrategy[str]:
    each = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*each).map(" ".join)


def text_expressions(depth: int) -> st.SearchStrategy[str]:
    leaf = st.one_of(names, names, strings, st.just("NULL"))
    if not depth:
        return leaf
    inner = text_expressions(depth - 1)
    numeric = number_expressions(depth - 1)
    return st.one_of(
        leaf,
        inner.map(lambda text: f"({text})"),
        spaced(st.sampled_from(["LOWER(", "upper("]), inner, ")"),
        spaced("CAST(", st.one_of(inner, numeric), "AS", st.sampled_from(["TEXT", "varchar"]), ")"),
        spaced("COALESCE(", inner, ",", inner, ")"),
        spaced("CASE WHEN", conditions(depth - 1), "THEN", inner, "ELSE", inner, "END"),
        spaced("CASE WHEN", conditions(depth - 1), "THEN", inner, "END"),
    )


def number_expressions(depth: int) -> st.SearchStrategy[str]:
    leaf = st.one_of(meta, digits, digits, st.just("CAST(a AS DOUBLE)"))
    if not depth:
        return leaf
    inner = st.one_of(number_expressions(depth - 1), names)
    sure = number_expressions(depth - 1)
    return st.one_of(
        leaf,
        spaced(inner, st.sampled_from(list("+-*/%")), inner),
        spaced("(", inner, st.sampled_from(list("+-*/%")), inner, ")"),
        spaced("-", inner),
        spaced("LENGTH(", text_expressions(depth - 1), ")"),
        spaced("CAST(", st.one_of(inner, text_expressions(depth - 1)), "AS INT )"),
        spaced("COALESCE(", inner, ",", sure, ")"),
        spaced("CASE WHEN", conditions(depth - 1), "THEN", inner, "ELSE", sure, "END"),
    )


def conditions(depth: int) -> st.SearchStrategy[str]:
    word, number = text_expressions(max(depth - 1, 0)), number_expressions(max(depth - 1, 0))
    negation = st.sampled_from(["", "NOT"])
    compared = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
    leaf = st.one_of(
        spaced(word, compared, word),
        spaced(number, compared, number),
        spaced(names, compared, number),
        spaced(number, compared, names),
        spaced(word, negation, "IN (", listed(strings, 40), ")"),
        spaced(st.one_of(number, names), negation, "IN (", listed(digits, 40), ")"),
        spaced(word, negation, "BETWEEN", word, "AND", word),
        spaced(names, negation, "BETWEEN", number, "AND", number),
        spaced(word, negation, "LIKE", st.one_of(st.sampled_from(PATTERNS), texts).map(quoted)),
        spaced(word, "LIKE", plain_text.map(lambda text: quoted(f"{text}!%!_%")), "ESCAPE '!'"),
        spaced(st.one_of(word, number), "IS", negation, "NULL"),
        st.sampled_from(["TRUE", "FALSE", "NULL"]),
    )
    if not depth:
        return leaf
    inner = conditions(depth - 1)
    grouped = inner.map(lambda text: f"({text})")
    return st.one_of(
        leaf,
        spaced(inner, st.sampled_from(["AND", "OR", "and"]), inner),
        spaced(grouped, st.sampled_from(["AND", "OR"]), grouped),
        spaced("NOT", inner),
        spaced(grouped, st.sampled_from(["=", "<>"]), grouped),
        spaced(grouped, "IS", negation, st.sampled_from(["TRUE", "FALSE", "NULL"])),
        spaced("CASE WHEN", inner, "THEN", inner, "ELSE", inner, "END"),
        spaced("COALESCE(", inner, ",", inner, ")"),
    )


# Simple parts in every arrangement: what binds more strongly, and what is NULL then.
logic = st.recursive(
    st.sampled_from(["TRUE", "NULL", "a > 1", "A = '2'", "region IS NULL", "_id % 2 = 0"]),
    lambda inner: st.one_of(
        spaced(inner, "AND", inner, "OR", inner),
        spaced(inner, "AND (", inner, "OR", inner, ")"),
        spaced("NOT", inner, st.sampled_from(["AND", "OR"]), inner),
        spaced("NOT (", inner, ")"),
        spaced(
            "CASE WHEN", inner, "THEN", inner, "WHEN", inner, "THEN", inner, "ELSE", inner, "END"
        ),
    ),
    max_leaves=10,
)
filters = st.one_of(logic, logic, conditions(0), conditions(1), conditions(2), conditions(3))
numbers = st.one_of(names, *map(number_expressions, (1, 1, 2, 3)))
words = st.one_of(*map(text_expressions, (0, 1, 2, 3)))


def values_by_row(node: Node, rows: Rows) -> list[object]:
    of_row = compile_row(node)
    return [of_row(rows.row(i)) for i in range(len(rows))]


def values_by_batch(node: Node, kind: Kind, rows: Rows) -> list[object]:
    found = compile_batch(node, kind)(rows)
    if hasattr(found, "as_py"):
        return [found.as_py()] * len(rows)
    listed: list[object] = found.to_pylist()
    return listed


def same(text: str, kind: Kind, rows: Rows) -> None:
    node = parse(Source("test", text), kind)
    by_row, by_batch = values_by_row(node, rows), values_by_batch(node, kind, rows)
    # By their repr: 0 and -0, 1 and True are different here.
    assert list(map(repr, by_row)) == list(map(repr, by_batch)), text


@many
@given(filters, batches())
def test_both_back_ends_find_the_same_true_false_and_null(text: str, rows: Rows) -> None:
    same(text, Kind.BOOLEAN, rows)


@many
@given(filters, batches())
def test_a_filter_takes_the_same_rows_one_by_one_and_together(text: str, rows: Rows) -> None:
    found = parse_filter(text)
    chosen = found.select(rows)
    assert chosen.dtype == np.bool_
    assert chosen.tolist() == [found.matches(rows.row(i)) for i in range(len(rows))]


@many
@given(numbers, batches())
def test_numbers_and_priorities_are_the_same_in_both_back_ends(text: str, rows: Rows) -> None:
    same(text, Kind.NUMBER, rows)
    priority = parse_priority(text)
    assert parse_priority(priority.text).node == priority.node
    column = priority.column(rows)
    assert column.dtype == np.uint8
    assert column.tolist() == [priority.of(rows.row(i)) for i in range(len(rows))]


@many
@given(words, batches())
def test_texts_are_the_same_in_both_back_ends(text: str, rows: Rows) -> None:
    same(text, Kind.TEXT, rows)


@calm
@given(st.lists(texts))
def test_the_header_priority_is_the_same_in_both_back_ends(values: Sequence[str]) -> None:
    zeros = np.zeros(len(values), np.int64)
    rows = Rows(zeros, zeros, zeros, zeros, zeros, [{"priority": value} for value in values])
    found = header_priorities(rows).tolist()
    assert found == [header_priority(rows.row(i)) for i in range(len(rows))]


@many
@given(filters)
def test_the_canonical_text_reads_back_as_the_same_tree(text: str) -> None:
    found = parse_filter(text)
    again = parse_filter(found.text)
    assert (again.text, again.node, again.headers) == (found.text, found.node, found.headers)


@many
@given(filters)
def test_sqlglot_understands_a_filter_as_we_do(text: str) -> None:
    """Its own parser as a judge: what it puts in parentheses must be the same to us."""
    found = parse_filter(text)
    assert parse_filter(parenthesised(text)).node == found.node
    assert parse_filter(parenthesised(found.text)).node == found.node


OPERATORS = (exp.Binary, exp.Unary, exp.Between, exp.In)


def parenthesised(text: str) -> str:
    """As sqlglot reads it, with parentheses around each operation."""
    root = exp.Paren(this=sqlglot.parse_one(text))
    for node in reversed(list(root.find_all(*OPERATORS))):  # inner ones first
        if isinstance(node, exp.Paren) or isinstance(node.parent, exp.Escape):
            continue
        around = exp.Paren()
        node.replace(around)
        around.set("this", node)
    return root.sql()


PLACE = re.compile(r"(filter|priority), line \d+, column \d+: .|filter: \d+ bytes", re.DOTALL)


def read_or_refused(text: str) -> Filter | None:
    try:
        found = parse_filter(text)
    except InvalidError as error:
        refusal = str(error)
    else:
        assert parse_filter(found.text).text == found.text
        return found
    assert PLACE.match(refusal), refusal
    return None


@many
@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    read_or_refused(text)


PIECES = [
    *(
        "AND",
        "or",
        "NOT",
        "IN",
        "(",
        ")",
        "((",
        "))",
        ",",
        "'",
        '"',
        "'x'",
        '"x"',
        "=",
        "<",
        "!",
        "--",
        "/*",
    ),
    *(
        "CASE",
        "WHEN",
        "END",
        "CAST(",
        "AS",
        "IS",
        "NULL",
        "BETWEEN",
        "LIKE",
        "ESCAPE",
        "%",
        "*",
        "-",
        "+",
    ),
    *(
        "?",
        ":a",
        "@a",
        "$1",
        ";",
        ".",
        "..",
        "1e",
        "0x1",
        "{#",
        "#}",
        "{{",
        "`",
        "[",
        "]",
        "\\",
        "\n",
        "\x00",
    ),
    *(
        "SELECT",
        "(SELECT 1)",
        "_x",
        "_id",
        "é",
        "\ud800",
        "::int",
        "||",
        "over ()",
        "interval '1'",
        "²",
        "٣",
    ),
]


@many
@given(
    filters, st.lists(st.tuples(st.integers(0), st.integers(0, 4), st.sampled_from(["", *PIECES])))
)
def test_a_damaged_filter_is_read_or_refused_with_its_place(
    text: str, damage: list[tuple[int, int, str]]
) -> None:
    for at, size, piece in damage:
        start = at % (len(text) + 1)
        text = text[:start] + piece + text[start + size :]
    read_or_refused(text)


@calm
@given(st.lists(st.sampled_from(["a", "=", "1", "'x'", *PIECES]), max_size=12))
def test_any_row_of_tokens_is_read_or_refused_with_its_place(tokens: list[str]) -> None:
    read_or_refused(" ".join(tokens))
