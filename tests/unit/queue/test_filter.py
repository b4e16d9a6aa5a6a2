"""What filters mean, case by case, in both back ends."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import InvalidError
from penstock.queue.filter import (
    DEFAULT_PRIORITY,
    Row,
    Rows,
    check_header_name,
    header_priorities,
    header_priority,
    parse_filter,
    parse_priority,
)

HEADERS = {
    "region": "eu",
    "amount": "150",
    "empty": "",
    "bad": "12x",
    "huge": "1e999",
    "Case": "MiXed",
    "content-type": "text/plain",
    "NULL": "a header",
    "_": "never published",
    "percent": "50%",
    "lines": "a\nb",
    "smile": "a😀b",
    "turkish": "İIßi",
    "a.b": "dot",
}
# id, created at, received at, visible at, retention
META = (7, 1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002, 3600)
ROW = Row(*META, HEADERS)


def rows_of(*headers: dict[str, str]) -> Rows:
    columns = [np.full(len(headers), value, np.int64) for value in META]
    return Rows(columns[0], columns[1], columns[2], columns[3], columns[4], headers)


ROWS = rows_of(HEADERS, HEADERS)

# T is true, F is false, N is NULL: each is asked as it is, negated, and for NULL.
MEANING = """
T  region = 'eu'
F  region = 'EU'
F  region <> 'eu'
N  missing = 'eu'
N  missing <> 'eu'
N  region = NULL
N  NULL = NULL
T  amount > 100
T  amount = 150
T  amount = 150.0
F  amount = '150.0'
T  amount > '1'
T  amount < '2'
F  amount < 2
N  bad > 1
N  empty = 0
T  empty = ''
N  huge > 1
T  huge = '1e999'
T  region < 'ev' AND 'ev' > region
T  "content-type" = 'text/plain'
T  "NULL" = 'a header'
T  "a.b" = 'dot'
T  "region" = region
N  Region = 'eu'
T  _id = 7
T  "_id" = 7
T  _id = '7'
T  _created_at = 1700000000000
T  _received_at = 1700000000001
T  _visible_at - _created_at = 2
T  _retention = 60 * 60
T  region IN ('us', 'eu')
F  region IN ('us', 'de')
N  region IN ('us', NULL)
T  region IN ('eu', NULL)
F  region NOT IN ('eu', NULL)
N  region NOT IN ('us', NULL)
N  missing IN ('us')
T  amount IN (1, 150)
T  amount IN ('1', 150)
F  amount IN ('1', '150.0')
T  amount BETWEEN 100 AND 150
F  amount NOT BETWEEN 100 AND 150
F  amount BETWEEN 150 AND 100
F  amount BETWEEN '2' AND '3'
N  amount BETWEEN missing AND 200
F  amount BETWEEN missing AND 100
T  region BETWEEN 'a' AND 'z'
T  region LIKE 'e%'
T  region LIKE '_u'
T  region LIKE 'eu'
F  region LIKE 'EU'
F  region LIKE 'e'
F  region NOT LIKE '%u%'
T  region LIKE '%'
T  empty LIKE '%'
F  empty LIKE '_'
N  missing LIKE '%'
T  percent LIKE '50!%' ESCAPE '!'
F  region LIKE '!%' ESCAPE '!'
T  lines LIKE 'a_b'
T  lines LIKE 'a%b'
T  smile LIKE 'a_b'
F  smile LIKE 'a__b'
T  region IS NOT NULL
F  region IS NULL
T  missing IS NULL
T  bad + 1 IS NULL
T  (missing = 'x') IS NULL
F  (missing = 'x') IS TRUE
T  (missing = 'x') IS NOT TRUE
T  (region = 'us') IS FALSE
F  (missing = 'x') IS FALSE
T  (missing = 'x') IS NOT FALSE
T  TRUE
F  FALSE
N  NULL
F  FALSE AND missing = 'x'
F  missing = 'x' AND FALSE
N  TRUE AND missing = 'x'
T  missing = 'x' OR TRUE
N  missing = 'x' OR FALSE
T  TRUE OR FALSE AND FALSE
T  FALSE AND TRUE OR TRUE
F  FALSE AND (TRUE OR TRUE)
T  NOT region = 'us' AND amount > 1
T  NOT FALSE = TRUE
T  1 + 2 * 3 = 7
T  (1 + 2) * 3 = 9
T  10 - 4 - 3 = 3
T  7 / 2 = 3.5
T  7 % 3 = 1
T  -7 % 3 = -1
T  -amount = -150
T  - -amount = 150
T  amount - -1 = 151
T  +5 = 5
N  amount / 0 > 1
N  0 / 0 = 0
N  amount % 0 = 0
N  amount * 1e308 > 1
T  amount + '1' = 151
T  CAST(amount AS INT) = 150
T  CAST('2.9' AS INT) = 2
T  CAST(-2.9 AS INTEGER) = -2
N  CAST(bad AS DOUBLE) = 12
T  CAST(amount AS TEXT) = '150'
T  CAST(150 AS TEXT) = '150'
T  CAST(0.5 AS VARCHAR) = '0.5'
T  CAST(-0.4 AS INT) = 0
T  CAST(CAST(-0.4 AS INT) AS TEXT) = '0'
T  CASE WHEN amount > 100 THEN region = 'eu' ELSE FALSE END
N  CASE WHEN missing = 'x' THEN TRUE END
T  CASE WHEN region = 'eu' THEN 1 WHEN amount = 150 THEN 2 ELSE 3 END = 1
T  CASE WHEN missing = 'x' THEN 1 WHEN TRUE THEN 2 ELSE 3 END = 2
T  COALESCE(missing, region) = 'eu'
T  COALESCE(bad, 5) = 5
T  COALESCE(missing, NULL) IS NULL
T  LOWER("Case") = 'mixed'
T  UPPER("Case") = 'MIXED'
T  lower(turkish) = 'İißi'
T  UPPER(turkish) = 'İIßI'
T  LENGTH(smile) = 3
N  LENGTH(missing) = 0
T  (region = 'eu') = (amount = 150)
T  (region = 'eu') <> FALSE
"""
CASES = [line.split(maxsplit=1) for line in MEANING.strip().splitlines()]


def answers(text: str) -> set[bool]:
    found = parse_filter(text)
    return {found.matches(ROW), *found.select(ROWS).tolist()}


@pytest.mark.parametrize(("expected", "text"), CASES, ids=[case[1] for case in CASES])
def test_a_filter_means_what_sql_says(expected: str, text: str) -> None:
    asked = [answers(text), answers(f"NOT ({text})"), answers(f"({text}) IS NULL")]
    assert asked == [{expected == "T"}, {expected == "F"}, {expected == "N"}]


CANONICAL = """
region='eu'                                     | region = 'eu'
((region)) = 'eu' and (a != 1 or b <> 2)        | region = 'eu' AND (a <> 1 OR b <> 2)
a = 1 AND (b = 2 AND c = 3)                     | a = 1 AND b = 2 AND c = 3
not (a in ('x', 'x', 'y'))                      | a NOT IN ('x', 'y')
not a is null                                   | a IS NOT NULL
not (not (a = 1))                               | NOT NOT a = 1
"a" = 'it''s' and "A b" = 1.50                  | a = 'it''s' AND "A b" = 1.5
"and" = 'x' AND "Null" = 'y'                    | "and" = 'x' AND "Null" = 'y'
région = 'x' AND "q""q" = ''                    | "région" = 'x' AND "q""q" = ''
a - (b - c) - d = 1e3                           | a - (b - c) - d = 1000
(a * b) / c = -(-(d))                           | a * b / c = - -d
-(5) = a                                        | -5 = a
_id = '7'                                       | _id = 7
cast(a as varchar) = 'x'                        | CAST(a AS TEXT) = 'x'
case when a = 1 then true end                   | CASE WHEN a = 1 THEN TRUE ELSE NULL END
(a not like 'x%' escape '!') = true             | (a NOT LIKE 'x%' ESCAPE '!') = TRUE
a = 1e22 OR a = 123456789012345680              | a = 1e+22 OR a = 1.2345678901234568e+17
"""


@pytest.mark.parametrize(
    ("text", "canonical"),
    [[part.strip() for part in line.split("|")] for line in CANONICAL.strip().splitlines()],
)
def test_the_stored_text_is_canonical(text: str, canonical: str) -> None:
    assert parse_filter(text).text == canonical
    assert parse_filter(canonical).text == canonical


def test_a_filter_names_the_headers_it_reads() -> None:
    found = parse_filter("a = 1 AND (\"B b\" IN ('x') OR LOWER(c) LIKE 'd%') AND _id > 5")
    assert found.headers == {"a", "B b", "c"}
    assert parse_priority("CASE WHEN vip = 'yes' THEN 1 ELSE 5 END").headers == {"vip"}


def test_a_name_that_only_unicode_calls_a_keyword_is_a_header() -> None:
    # Upper-cased it is IS: a dotless i, and a long s.
    for name in ("\u0131s", "i\u017f"):
        found = parse_filter(f"{name} = 'x'")
        assert found.text == f"\"{name}\" = 'x'"
        assert found.headers == {name}


PRIORITIES = """
5                                          5
0                                          0
255                                        255
256                                        128
-1                                         128
1.5                                        128
NULL                                       128
'7'                                        7
amount                                     150
bad                                        128
missing                                    128
huge                                       128
amount / 100                               128
CAST(amount / 100 AS INT)                  1
CASE WHEN region = 'eu' THEN 1 ELSE 5 END  1
CASE WHEN region = 'us' THEN 1 END         128
COALESCE(missing, 9)                       9
_id + 1                                    8
amount / 0                                 128
"""


@pytest.mark.parametrize(
    ("text", "expected"), [line.rsplit(maxsplit=1) for line in PRIORITIES.strip().splitlines()]
)
def test_a_priority_is_a_whole_number_up_to_255_or_the_default(text: str, expected: str) -> None:
    found = parse_priority(text)
    column = found.column(ROWS)
    assert (found.of(ROW), column.tolist()) == (int(expected), [int(expected)] * 2)
    assert column.dtype == np.uint8
    assert parse_priority(found.text).text == found.text


def test_without_an_expression_the_header_priority_counts() -> None:
    values = ["5", "0", "255", "256", "-1", "1.5", "", "x", "+7", "1e2", "-0"]
    rows = rows_of(*({"priority": value} for value in values), {})
    expected = [5, 0, 255, 128, 128, 128, 128, 128, 7, 100, 0, DEFAULT_PRIORITY]
    assert header_priorities(rows).tolist() == expected
    assert [header_priority(rows.row(i)) for i in range(len(rows))] == expected


def test_a_priority_that_is_true_or_false_is_refused() -> None:
    with pytest.raises(InvalidError, match="priority, line 1, column 1: true or false where a num"):
        parse_priority("a = 1")


def test_an_empty_batch_has_no_answers() -> None:
    for text in ("TRUE", "a = 1", "a LIKE '%x_' AND _id % 2 = 0 AND CAST(_id AS TEXT) IN ('5')"):
        assert parse_filter(text).select(rows_of()).tolist() == []
    assert parse_priority("a").column(rows_of()).tolist() == []
    assert parse_priority("1").column(rows_of()).tolist() == []


def test_a_column_is_built_once_per_batch() -> None:
    rows = rows_of(HEADERS)
    assert rows.header("region") is rows.header("region")
    assert rows.numbers("amount") is rows.numbers("amount")
    assert rows.header("region").to_pylist() == ["eu"]
    assert rows.header("missing").to_pylist() == [None]
    assert rows.row(0) == ROW


@pytest.mark.parametrize("name", ["", "_", "_id", "_mine", "\ud800", "x" * 65_536, "é" * 32_768])
def test_a_header_name_that_filters_could_not_tell_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="header"):
        check_header_name(name)


@pytest.mark.parametrize("name", ["a", "a_", "NULL", "content-type", " ", "\x00", "x" * 65_535])
def test_any_other_header_name_is_fine(name: str) -> None:
    check_header_name(name)
