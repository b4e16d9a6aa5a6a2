"""What is no filter is refused, with its place; what is too large or too deep too."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from penstock.errors import InvalidError
from penstock.queue.filter import parse_filter, parse_priority
from penstock.queue.filter_cursor import DEPTH_MAX
from penstock.queue.filter_tokens import TEXT_BYTES_MAX

# line:column, the message, the text
REFUSED = """
1:5  | the quote is not closed: "'x"                       | a = 'x
1:9  | the quote is not closed                             | a = 1 + "x
1:4  | a value is expected, but the text ends              | a =
1:5  | unexpected: '?'                                     | a = ?
1:5  | unexpected: ':'                                     | a = :b
1:5  | unexpected: '@'                                     | a = @b
1:5  | unexpected: '$1'                                    | a = $1
1:6  | unexpected: ';'                                     | a = 1; b = 2
1:6  | unexpected: ';'                                     | a = 1;
1:7  | comments are not supported: '--'                    | a = 1 -- b
1:5  | comments are not supported: '--'                    | a = --1
1:3  | comments are not supported: '/*'                    | a /* b */ = 1
1:9  | comments are not supported                          | {# b #} a = 1
1:1  | unknown function: 'now'                             | now() = 1
1:1  | unknown function: 'abs'                             | abs(a) = 1
1:5  | unknown function: 'EXISTS'                          | NOT EXISTS (SELECT 1)
1:13 | ) is expected: '1'                                     | a = (SELECT 1)
1:7  | a list holds literals only: 'SELECT'                | a IN (SELECT b FROM c)
1:7  | a list holds literals only: 'b'                     | a IN (b)
1:7  | unexpected: ')'                                     | a IN ()
1:6  | ( is expected: 'b'                                  | a IN b
1:1  | unknown function: 'sum'                             | sum(a) OVER () > 1
1:11 | unexpected: 'OVER'                                  | LENGTH(a) OVER () > 1
1:1  | names with a leading underscore are                 | _x = 1
1:1  | names with a leading underscore are                 | "_X" = 1
1:1  | an empty name                                       | "" = 1
1:2  | a name with a dot needs double quotes: '.'          | a.b = 1
1:1  | text where true or false is expected: 'a'           | a
1:5  | text where true or false is expected: 'a'           | NOT a
1:1  | a number where true or false is expected: 'a + 1'   | a + 1
1:9  | a number where true or false is expected: '(1)'     | TRUE OR (1)
1:5  | true or false where text is expected: 'TRUE'        | a = TRUE
1:1  | true or false where a number is expected            | (a = 'x') + 1 = 2
1:1  | true and false have no order                        | (a = 'x') < TRUE
1:10 | not a number, and used with one: "'x'"              | _id + 1 ='x'
1:1  | not a number, and used with one: "'1_0'"            | '1_0' * 2 = 20
1:10 | not a number, and used with one: "'x'"              | a IN (1, 'x')
1:5  | not a number that float64 can hold: '1e999'         | a = 1e999
1:5  | not a number that float64 can hold: '1e'            | a = 1e
1:6  | unexpected: 'x10'                                   | a = 0x10
1:6  | unexpected: '_000'                                  | a = 1_000
1:7  | unexpected: '='                                     | a = 1 = 2
1:11 | unexpected: '='                                     | a IS NULL = TRUE
1:13 | AND is expected: '2'                                | a BETWEEN 1 2
1:7  | IN, BETWEEN or LIKE is expected: 'NULL'             | a NOT NULL
1:9  | unexpected: "'y'"                                    | a = 'x' 'y'
1:6  | NULL, TRUE or FALSE is expected: 'DISTINCT'         | a IS DISTINCT FROM 1
1:3  | unexpected: 'ILIKE'                                 | a ILIKE 'x'
1:8  | LIKE takes a string literal: 'b'                    | a LIKE b
1:8  | the pattern ends in its escape character            | a LIKE 'x!' ESCAPE '!'
1:19 | ESCAPE takes one character                          | a LIKE 'x' ESCAPE '!!'
1:11 | unknown type                                        | CAST(a AS DATE) = 1
1:18 | ) is expected: '('                                  | CAST(a AS VARCHAR(5)) = 'x'
1:6  | WHEN is expected: 'a'                               | CASE a WHEN 1 THEN TRUE END
1:26 | END is expected, but the text ends                  | CASE WHEN a = 1 THEN TRUE
1:3  | unexpected: '|'                                     | a || b = 'x'
1:2  | unexpected: ':'                                    | a::int = 1
1:2  | a number is expected after +: 'a'                   | +a = 1
1:1  | unexpected: ')'                                     | )
1:9  | ) is expected, but the text ends                    | ((a = 1)
"""


def table() -> list[tuple[str, str, str]]:
    rows = [line.split(" | ", 2) for line in REFUSED.strip().splitlines()]
    return [(row[0].strip(), row[1].strip(), row[2].strip() if row[2:] else "") for row in rows]


@pytest.mark.parametrize(("place", "message", "text"), table())
def test_what_is_no_filter_is_refused_with_its_place(place: str, message: str, text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_filter(text)
    line, column = place.split(":")
    assert str(caught.value).startswith(f"filter, line {line}, column {column}: {message}")


def test_the_place_counts_lines_and_characters() -> None:
    with pytest.raises(InvalidError, match="line 3, column 11: unexpected: '='"):
        parse_filter("a = 'é\n'\n  OR \"😀\" == 1")
    with pytest.raises(
        InvalidError, match="line 1, column 1: a value is expected, but the text ends"
    ):
        parse_filter("")


def test_a_long_piece_is_cut() -> None:
    with pytest.raises(InvalidError) as caught:
        parse_filter(f"a = 1 + '{'x' * 1000}'")
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    "deep",
    [
        lambda n: "(" * n + "a = 1" + ")" * n,
        lambda n: "NOT " * n + "a = 1",
        lambda n: "- " * n + "a = 1",
        lambda n: "a" + " + a" * n + " = 1",
        lambda n: "COALESCE(" * n + "a" + ")" * n + " = 'x'",
        lambda n: "CASE WHEN " * n + "a = 1" + " THEN TRUE END" * n,
        lambda n: "CAST(" * n + "a" + " AS INT)" * n + " = 1",
        lambda n: "(" * n + "a = 1" + " OR b = 2 AND c = 3)" * n,
        lambda n: "a IN (" + "(" * n + "1" + ")" * n + ")",
    ],
)
def test_what_nests_too_deep_is_refused_and_never_overflows(deep: object) -> None:
    assert callable(deep)
    found = parse_filter(deep(DEPTH_MAX // 2 - 2))
    assert parse_filter(found.text).text == found.text
    for levels in (DEPTH_MAX + 1, 300, 600):
        with pytest.raises(InvalidError, match=f"nested deeper than {DEPTH_MAX} levels"):
            parse_filter(deep(levels))


def test_a_stack_that_is_nearly_full_is_no_reason_for_another_error() -> None:
    def sink(levels: int) -> None:
        if levels:
            sink(levels - 1)
        else:
            parse_filter("(" * 60 + "a = 1" + ")" * 60)

    used = len(inspect.stack())
    sink(10)
    with pytest.raises(InvalidError, match="nested too deep"):
        sink(sys.getrecursionlimit() - used - 120)


def test_long_chains_and_lists_are_not_deep() -> None:
    for text in (
        " AND ".join(f"a{i} = 1" for i in range(1000)),
        " OR ".join(f"a{i} = 1" for i in range(1000)),
        f"a IN ({', '.join(map(str, range(2500)))})",
        f"CASE {' '.join(f'WHEN a = {i} THEN TRUE' for i in range(600))} ELSE FALSE END",
    ):
        found = parse_filter(text)
        assert found.text == text


def test_a_text_over_the_limit_is_refused_also_if_only_its_stored_form_is() -> None:
    fits = "a = '" + "x" * (TEXT_BYTES_MAX - 6) + "'"
    assert len(parse_filter(fits).text.encode()) == TEXT_BYTES_MAX
    with pytest.raises(InvalidError, match="filter: 16385 bytes"):
        parse_filter(fits.replace("x'", "xx'"))
    with pytest.raises(InvalidError, match="filter: 16385 bytes"):
        parse_filter(fits.replace("x'", "é'"))
    with pytest.raises(InvalidError, match="bytes in canonical form"):
        parse_filter(fits.replace(" = ", "=").replace("x'", "xx'"))


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidError, match="line 1, column 6: not valid Unicode"):
        parse_filter("a = '\ud800'")


def test_a_priority_is_named_as_such() -> None:
    with pytest.raises(InvalidError, match=r"^priority, line 1, column 5: unexpected: '\)'"):
        parse_priority("1 + )")


def test_sqlglot_is_loaded_with_the_first_filter_and_not_before() -> None:
    code = (
        "import sys, penstock.queue.matcher as m; print('sqlglot' in sys.modules);"
        "m.Filter('a = 1'); print('sqlglot' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
