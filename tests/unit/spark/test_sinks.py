"""Ready-made sinks: each row once, however often, in whatever pieces and by whomever it comes."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from penstock.errors import InvalidError, PenstockError, UnavailableError
from penstock.spark import sinkfile, sinks
from penstock.spark.sinkdelta import DeltaTarget
from penstock.spark.sinkfile import FileTarget
from penstock.spark.sinks import Delivery, Offsets, Row, TableSink, Target, Written, offsets_of
from penstock.spark.sinksqlite import SqliteTarget


def deliver(
    target: Target,
    values: Sequence[Any],
    *,
    start: int = 0,
    source: str = "one",
    failed: Collection[int] = (),
) -> None:
    """A step with a row per message, from `start` on, but for those that failed or gave none."""
    target.prepare()
    rows = [
        Row(offset, offset.to_bytes(16, "big"), target.encode(value))
        for offset, value in enumerate(values, start)
        if offset not in failed
    ]
    target.write(Delivery("g/p", source, start + len(values), rows, start))


def numbers(low: int, high: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(low, high)]


class Place:
    """A target, and what is in it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = folder / kind
        self.target: Target
        match kind:
            case "sqlite":
                self.target = SqliteTarget(self.path, "t")
            case "delta":
                self.target = DeltaTarget(str(self.path), pa.schema([("n", pa.int64())]))
            case _:
                self.target = FileTarget(self.path)

    def found(self) -> list[int]:
        match self.target:
            case SqliteTarget():
                with closing(sqlite3.connect(self.path)) as table:
                    return [n for (n,) in table.execute("SELECT n FROM t ORDER BY n")]
            case DeltaTarget():
                column = DeltaTable(str(self.path)).to_pyarrow_table().column("n")
                return sorted(column.to_pylist())
            case _:
                return [int(line[5:-1]) for line in self.path.read_text().splitlines()]


@pytest.fixture(params=["sqlite", "delta", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def test_a_step_that_comes_again_adds_nothing(place: Place) -> None:
    for _ in range(3):
        deliver(place.target, numbers(0, 10))
    assert place.found() == list(range(10))


def test_a_step_that_comes_again_in_other_pieces_adds_what_is_missing(place: Place) -> None:
    deliver(place.target, numbers(0, 10))
    deliver(place.target, numbers(0, 4))
    deliver(place.target, numbers(4, 12), start=4)
    deliver(place.target, numbers(8, 15), start=8)
    assert place.found() == list(range(15))


def test_a_message_that_failed_once_is_added_when_its_step_comes_again(place: Place) -> None:
    deliver(place.target, numbers(0, 10), failed={2, 3, 7})
    assert place.found() == [0, 1, 4, 5, 6, 8, 9]
    deliver(place.target, numbers(0, 5), failed={3, 4})  # narrowed; 4 is there, and stays
    deliver(place.target, numbers(0, 5))
    assert sorted(place.found()) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    for _ in range(2):
        deliver(place.target, numbers(5, 12), start=5)
    assert sorted(place.found()) == list(range(12))


def test_steps_that_come_again_in_any_pieces_lose_nothing_and_double_nothing(place: Place) -> None:
    """Each step is tried some times, and what fails in the last try alone may be missing."""
    chance = random.Random(7)
    start, settled = 0, set[int]()
    for _ in range(25):
        end = start + chance.randrange(1, 9)
        for _ in range(chance.randrange(3)):
            failed = {n for n in range(start, end) if chance.random() < 0.3}
            deliver(place.target, numbers(start, end), start=start, failed=failed)
            end = chance.randrange(start + 1, end + 1)  # narrowed, or not
        failed = {n for n in range(start, end) if chance.random() < 0.3}
        deliver(place.target, numbers(start, end), start=start, failed=failed)
        settled |= failed
        start = end
    found = place.found()
    assert len(found) == len(set(found))
    assert set(range(start)) - settled <= set(found)
    assert settled - set(found)  # some failed in every try


def test_what_gave_no_row_is_forgotten_when_its_step_is_committed() -> None:
    """It does not come again; else what is remembered would grow for ever."""
    written = Written(10, frozenset({2, 7}))
    step = Delivery("g/p", "one", 12, [Row(10, b"", None)], 5)
    assert written.after(step) == Written(12, frozenset({7, 11}))


def test_what_gave_no_row_is_kept_as_bits() -> None:
    """A sink that leaves half of its messages out has as many gaps as rows."""
    assert offsets_of(Offsets()) == frozenset()
    for left in (frozenset[int](), {0}, {7, 9}, {1 << 40, (1 << 40) + 9}, set(range(100))):
        assert offsets_of(Written(0, frozenset(left)).kept) == left
    half = Written(0, frozenset(n for n in range(500_000) if random.Random(n).random() < 0.5))
    assert offsets_of(half.kept) == half.left
    assert len(half.kept.bits) < 500_000 // 8 * 1.1
    with pytest.raises(InvalidError, match="damaged"):
        offsets_of(Offsets(0, b"no zlib"))


def test_steps_without_rows_leave_everything_as_it_is(place: Place) -> None:
    deliver(place.target, numbers(0, 2))
    place.target.write(Delivery("g/p", "one", 50, []))
    deliver(place.target, numbers(50, 52), start=50)
    assert place.found() == [0, 1, 50, 51]


def test_a_folder_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    for target in (SqliteTarget(tmp_path / "no" / "x", "t"), FileTarget(tmp_path / "no" / "x")):
        with pytest.raises(InvalidError, match="is no folder"):
            target.prepare()


# -- SQLite


def test_sqlite_columns_come_as_rows_need_them(tmp_path: Path) -> None:
    target = SqliteTarget(tmp_path / "x.db", 'odd "name"')
    now = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    deliver(target, [{"a": 1, "b": b"x"}])
    deliver(
        target,
        [{"A": True, 'q"': "t"}, {"when": now, "day": date(2026, 1, 2), "list": [1], "b": None}],
        start=1,
    )
    with closing(sqlite3.connect(tmp_path / "x.db")) as table:
        table.row_factory = sqlite3.Row
        rows = [dict(row) for row in table.execute('SELECT * FROM "odd ""name"""')]
    assert [row["a"] for row in rows] == [1, 1, None]
    assert rows[0]["delivery_hash"] == "0" * 32
    assert rows[1]['q"'] == "t"
    assert (rows[2]["when"], rows[2]["day"], rows[2]["list"]) == (
        "2026-01-02T03:04:00+00:00", "2026-01-02", "[1]",
    )  # fmt: skip


@pytest.mark.parametrize(
    "value", [b"bytes", {"n": 1 << 63}, {"n": object()}, {1: 2}, {"": 1}, {"Delivery_Hash": "x"}]
)
def test_sqlite_refuses_rows_that_cannot_be_stored(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidError):
        SqliteTarget(tmp_path / "x.db", "t").encode(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"order": "a\udcff"}, "not UTF-8"),
        ({"\udcff": 1}, "no name of a column"),
        ({"list": ["a\udcff"]}, "cannot be told in JSON"),
        ({"x": float("nan")}, "column x: NaN would become NULL"),
        ({"A": 1, "a": 2}, "'A' and 'a' are one"),
        ({f"c{n}": n for n in range(2000)}, "2,001 columns"),
        ({"x" * (1 << 20): 1}, "names of a row"),
    ],
)
def test_what_sqlite_would_refuse_is_the_error_of_its_message(
    tmp_path: Path, value: Any, why: str
) -> None:
    target = SqliteTarget(tmp_path / "x.db", "t")
    target.prepare()
    with pytest.raises(InvalidError, match=why):
        target.encode(value)


def test_sqlite_takes_as_many_columns_as_it_can_and_no_more(tmp_path: Path) -> None:
    names = ", ".join(f"c{n}" for n in range(1998))
    with closing(sqlite3.connect(tmp_path / "x.db")) as table, table:
        table.execute(f"CREATE TABLE t (delivery_hash TEXT PRIMARY KEY NOT NULL, {names})")
    target = SqliteTarget(tmp_path / "x.db", "t")
    target.prepare()
    with pytest.raises(InvalidError, match="2,001 columns"):
        target.encode({"two": "more", "columns": 1})
    deliver(target, [{"last": 1}, {"C7": "known"}])
    with pytest.raises(InvalidError, match="2,001 columns"):
        deliver(target, [{"one": "more"}], start=2)
    # Each would fit, but both do not: it takes steps that are smaller to tell which one is it.
    with pytest.raises(UnavailableError, match="too many columns"):
        target.write(Delivery("g/p", "one", 3, [Row(2, b"2" * 16, {"one": "more"})]))


def made(path: Path, columns: str, *, options: str = "") -> SqliteTarget:
    """A table that somebody made before."""
    with closing(sqlite3.connect(path)) as table, table:
        table.execute(f"CREATE TABLE t ({columns}) {options}")
    return SqliteTarget(path, "t")


HASH = "delivery_hash TEXT PRIMARY KEY NOT NULL"


def stored(path: Path, columns: str = "n") -> list[Any]:
    with closing(sqlite3.connect(path)) as table:
        return list(table.execute(f"SELECT {columns} FROM t ORDER BY delivery_hash"))


def test_sqlite_writes_all_of_a_step_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made(tmp_path / "x.db", f"{HASH}, n")
    insert = SqliteTarget._insert

    def half(self: SqliteTarget, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        insert(self, connection, rows[:1])
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteTarget, "_insert", half)
        with pytest.raises(UnavailableError, match="disk I/O"):
            deliver(target, [{"n": 1}, {"n": 2}])
    assert stored(tmp_path / "x.db") == []


@pytest.mark.parametrize("columns", ["n", "delivery_hash, n, PRIMARY KEY (delivery_hash, n)"])
def test_sqlite_refuses_a_table_without_the_hash_as_its_key(tmp_path: Path, columns: str) -> None:
    target = made(tmp_path / "x.db", columns)
    with pytest.raises(InvalidError, match="no primary key delivery_hash"):
        deliver(target, [{"n": 1}])


def test_sqlite_looks_at_the_columns_of_a_table_before_a_row_is_taken(tmp_path: Path) -> None:
    target = made(
        tmp_path / "x.db",
        f"{HASH}, n INTEGER NOT NULL, d NOT NULL DEFAULT 7, twice AS (n * 2), "
        "kept AS (n) STORED NOT NULL",
    )
    target.prepare()
    for value, why in (
        ({}, "column n cannot be null"),
        ({"N": None}, "column N cannot be null"),
        ({"n": 1, "d": None}, "column d cannot be null"),
        ({"n": 1, "twice": 2}, "column twice is made of others"),
        ({"n": 1, "Kept": 1}, "column Kept is made of others"),
    ):
        with pytest.raises(InvalidError, match=why):
            target.encode(value)
    deliver(target, [{"N": 1}, {"n": 2, "d": 8, "new": 3}])
    assert stored(tmp_path / "x.db", "n, d, twice, kept, new") == [
        (1, 7, 2, 1, None), (2, 8, 4, 2, 3),
    ]  # fmt: skip


def test_sqlite_widens_a_strict_table(tmp_path: Path) -> None:
    target = made(tmp_path / "x.db", f"{HASH}, n INTEGER", options="STRICT")
    deliver(target, [{"n": 1, "any": "007"}, {"n": 2, "any": b"x"}])
    assert stored(tmp_path / "x.db", "n, any") == [(1, "007"), (2, b"x")]
    target.prepare()
    rows = [Row(2, b"2" * 16, target.encode({"n": "text"}))]
    assert list(target.write(Delivery("g/p", "one", 3, rows, 2))) == [2]


def test_rows_that_break_a_rule_of_a_table_are_refused_message_by_message(tmp_path: Path) -> None:
    target = made(tmp_path / "x.db", f"{HASH}, n UNIQUE CHECK (n > 0)")
    target.prepare()

    def row(offset: int, n: int, ordinal: int = 0) -> Row:
        return Row(offset, b"%08d%08d" % (offset, ordinal), target.encode({"n": n}))

    # Of message 2 one row would do, and of 3 another message has the number already.
    rows = [row(0, 1), row(1, -1), row(2, 2), row(2, 0, 1), row(3, 1), row(4, 5)]
    step = Delivery("g/p", "one", 5, rows)
    for _ in range(2):  # it comes again, after a crash
        refused = target.write(step)
        assert {offset: str(error) for offset, error in refused.items()} == {
            1: "table t refuses the row: CHECK constraint failed: n > 0",
            2: "table t refuses the row: CHECK constraint failed: n > 0",
            3: "table t refuses the row: UNIQUE constraint failed: t.n",
        }
        assert stored(tmp_path / "x.db") == [(1,), (5,)]


def again(target: SqliteTarget, values: Sequence[Any], times: int = 2) -> list[dict[int, str]]:
    """-> what is refused each time that a step comes, with a row per message or a list of them"""
    target.prepare()
    rows = [
        Row(offset, b"%08d%08d" % (offset, ordinal), target.encode(each))
        for offset, value in enumerate(values)
        for ordinal, each in enumerate(sinks.values_of(value))
    ]
    step = Delivery("g/p", "one", len(values), rows)
    return [
        {offset: str(error) for offset, error in target.write(step).items()} for _ in range(times)
    ]


def test_sqlite_does_not_ask_a_trigger_about_rows_that_are_there(tmp_path: Path) -> None:
    """SQLite fires those BEFORE an insert also where the row conflicts, and is left out then."""
    target = made(tmp_path / "x.db", f"{HASH}, n")
    with closing(sqlite3.connect(tmp_path / "x.db")) as table, table:
        table.execute("CREATE TABLE seen (n)")
        table.execute(
            "CREATE TRIGGER budget BEFORE INSERT ON t "
            "WHEN (SELECT coalesce(sum(n), 0) FROM t) + new.n > 100 "
            "BEGIN SELECT raise(ABORT, 'over budget'); END"
        )
        table.execute(
            "CREATE TRIGGER note BEFORE INSERT ON t BEGIN INSERT INTO seen VALUES (new.n); END"
        )
    # Of message 1 there is a row that would do, and one that would not.
    first, second = again(target, [{"n": 40}, [{"n": 30}, {"n": 31}], {"n": 60}, {"n": 1}])
    assert first == second
    assert first == dict.fromkeys((1, 3), "table t refuses the row: over budget")
    assert stored(tmp_path / "x.db") == [(40,), (60,)]
    with closing(sqlite3.connect(tmp_path / "x.db")) as table:
        assert table.execute("SELECT n FROM seen").fetchall() == [(40,), (60,)]
        # Refused before, and never committed as an error: now there is room.
        table.execute("DROP TRIGGER budget")
    assert again(target, [{"n": 40}, [{"n": 30}, {"n": 31}], {"n": 60}, {"n": 1}]) == [{}, {}]
    assert sorted(stored(tmp_path / "x.db")) == [(1,), (30,), (31,), (40,), (60,)]


def test_sqlite_rows_that_replace_others_do_so_in_order_however_often_they_come(
    tmp_path: Path,
) -> None:
    target = made(tmp_path / "x.db", f"{HASH}, k UNIQUE ON CONFLICT REPLACE, n CHECK (n > 0), more")
    values = [{"k": 1, "n": 1}, {"k": 1, "n": 2, "more": 2}, {"k": 2, "n": 1}, {"k": 1, "n": 3}]
    assert again(target, values) == [{}, {}]
    assert sorted(stored(tmp_path / "x.db", "k, n")) == [(1, 3), (2, 1)]
    why = {4: "table t refuses the row: CHECK constraint failed: n > 0"}
    assert again(target, [*values, {"k": 1, "n": 0}]) == [why, why]
    assert sorted(stored(tmp_path / "x.db", "k, n")) == [(1, 3), (2, 1)]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("delivery_hash INTEGER PRIMARY KEY, n", ""),
        ("delivery_hash BLOB PRIMARY KEY, n ANY", "STRICT"),
        ("delivery_hash INT PRIMARY KEY, n ANY", "STRICT"),
    ],
)
def test_sqlite_refuses_a_table_whose_key_takes_no_hash(
    tmp_path: Path, columns: str, options: str
) -> None:
    target = made(tmp_path / "x.db", columns, options=options)
    with pytest.raises(InvalidError, match=r"is of type (INTEGER|BLOB|INT), and holds no hash"):
        target.prepare()


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("delivery_hash PRIMARY KEY, n", ""),
        ("delivery_hash BLOB PRIMARY KEY, n", "WITHOUT ROWID"),
        ("delivery_hash ANY PRIMARY KEY, n ANY", "STRICT"),
        ("Delivery_Hash text PRIMARY KEY, n ANY", "STRICT, WITHOUT ROWID"),
    ],
)
def test_sqlite_takes_any_table_whose_key_holds_a_hash(
    tmp_path: Path, columns: str, options: str
) -> None:
    target = made(tmp_path / "x.db", columns, options=options)
    assert again(target, [{"n": 1}, {"n": 2}]) == [{}, {}]
    assert stored(tmp_path / "x.db") == [(1,), (2,)]


@pytest.mark.parametrize(
    "columns",
    [
        "n, total AS (json_extract(n, '$.total')) STORED",
        "n CHECK (json_extract(n, '$.total') > 0)",
        "n, UNIQUE (n)); CREATE INDEX i ON t (json_extract(n, '$.total')",
    ],
)
def test_a_row_on_which_an_expression_of_a_table_fails_is_refused(
    tmp_path: Path, columns: str
) -> None:
    target = SqliteTarget(tmp_path / "x.db", "t")
    with closing(sqlite3.connect(target.path)) as table, table:
        table.executescript(f"CREATE TABLE t ({HASH}, {columns});")
    why = {1: "table t refuses the row: malformed JSON"}
    assert again(target, [{"n": '{"total": 1}'}, {"n": "none"}, {"n": '{"total": 2}'}]) == [why] * 2
    assert len(stored(tmp_path / "x.db")) == 2


def test_a_table_that_no_row_can_be_inserted_into_refuses_none(tmp_path: Path) -> None:
    target = made(tmp_path / "x.db", f"{HASH}, n")
    with closing(sqlite3.connect(tmp_path / "x.db")) as table, table:
        table.execute("CREATE TRIGGER log AFTER INSERT ON t BEGIN INSERT INTO gone VALUES (1); END")
    with pytest.raises(UnavailableError, match=r"no such table: main\.gone"):
        deliver(target, [{"n": 1}, {"n": 2}])
    assert stored(tmp_path / "x.db") == []


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("n UNIQUE ON CONFLICT ROLLBACK", "UNIQUE constraint failed: t.n"),
        ("n); CREATE TRIGGER one BEFORE INSERT ON t WHEN EXISTS (SELECT 1 FROM t WHERE n = new.n) "
         "BEGIN SELECT raise(ROLLBACK, 'there is one'); END; CREATE TABLE u (n", "there is one"),
    ],
)  # fmt: skip
def test_a_rule_that_gives_up_the_transaction_is_named(
    tmp_path: Path, columns: str, why: str
) -> None:
    target = SqliteTarget(tmp_path / "x.db", "t")
    with closing(sqlite3.connect(target.path)) as table, table:
        table.executescript(f"CREATE TABLE t ({HASH}, {columns});")
    with pytest.raises(InvalidError, match=f"gives up all of a step: {why}"):
        deliver(target, [{"n": 1}, {"n": 1}])
    assert stored(tmp_path / "x.db") == []


def test_a_rule_that_fails_without_undoing_leaves_nothing_of_a_refused_row(tmp_path: Path) -> None:
    target = made(tmp_path / "x.db", f"{HASH}, n")
    with closing(sqlite3.connect(tmp_path / "x.db")) as table, table:
        table.execute(
            "CREATE TRIGGER late AFTER INSERT ON t WHEN new.n < 0 "
            "BEGIN SELECT raise(FAIL, 'negative'); END"
        )
    why = {1: "table t refuses the row: negative"}
    assert again(target, [{"n": 1}, {"n": -1}, {"n": 2}]) == [why, why]
    assert stored(tmp_path / "x.db") == [(1,), (2,)]


# -- Delta


def test_delta_rows_fit_the_schema_or_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int32(), nullable=False), ("s", pa.string())])
    target = DeltaTarget(str(tmp_path / "t"), schema)
    assert target.encode({"n": 1}) == {"n": 1}
    for wrong in ({"n": "x"}, {"n": 1 << 40}, {"s": "x"}, {"n": 1, "more": 2}, b"x"):
        with pytest.raises(InvalidError):
            target.encode(wrong)


def test_delta_tables_that_exist_say_their_columns_themselves(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    with pytest.raises(InvalidError, match="nothing says its columns"):
        DeltaTarget(path).prepare()
    write_deltalake(path, pa.table({"n": [7], "s": ["there"]}))
    deliver(DeltaTarget(path), [{"n": 8}])
    assert sorted(DeltaTable(path).to_pyarrow_table().column("n").to_pylist()) == [7, 8]
    given = DeltaTarget(path, pa.schema([("n", pa.int32())]))
    deliver(given, [{"n": 9, "s": "too"}], start=1)
    DeltaTable(path).alter.add_columns([Field("more", PrimitiveType("long"))])
    deliver(given, [{"n": 10, "more": 1}], start=2)
    assert DeltaTable(path).to_pyarrow_table().sort_by("n").to_pylist()[2:] == [
        {"n": 9, "s": "too", "more": None},
        {"n": 10, "s": None, "more": 1},
    ]


def test_delta_refuses_what_a_struct_has_no_field_for() -> None:
    """It would be gone without a word."""
    point = pa.struct([("x", pa.int64())])
    target = DeltaTarget(
        "t",
        pa.schema(
            [("one", point), ("many", pa.list_(point)), ("named", pa.map_(pa.string(), point))]
        ),
    )
    target.encode({"one": {"x": 1}, "many": [{"x": 1}, None, {}], "named": {"a": {"x": 1}}})
    for row in (
        {"one": {"x": 1, "y": 2}},
        {"one": [("x", 1), ("y", 2)]},
        {"many": [{"x": 1}, {"y": 2}]},
        {"named": {"a": {"x": 1}, "b": {"x": 1, "y": 2}}},
        {"named": [("b", {"y": 2})]},
    ):
        with pytest.raises(InvalidError, match="has no field 'y'"):
            target.encode(row)


def test_delta_refuses_the_fraction_of_an_integer() -> None:
    """1.5 would be 1, and nobody would know."""
    many = pa.list_(pa.int32())
    target = DeltaTarget("t", pa.schema([("n", pa.int64()), ("many", many)]))
    target.encode({"n": 2.0, "many": [Decimal(3), np.float32(4), None]})
    for row in (
        {"n": 1.5},
        {"n": Decimal("1.5")},
        {"many": [1, np.float32(1.5)]},
        {"many": np.array([0.5])},
    ):
        with pytest.raises(InvalidError, match="has a fraction"):
            target.encode(row)


def test_delta_writers_of_other_processors_do_not_hide_rows(tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    deliver(target, numbers(0, 5), source="one")
    deliver(target, numbers(0, 5), source="other")
    assert DeltaTable(target.path).to_pyarrow_table().num_rows == 10


def test_delta_looks_again_when_somebody_wrote_the_same_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = DeltaTarget(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    deliver(target, numbers(0, 2))
    append = DeltaTarget._append
    late: list[bool] = []

    def overtaken(self: DeltaTarget, table: DeltaTable, *rest: Any) -> None:
        if not late:
            late.append(True)
            deliver(target, numbers(2, 6), start=2)  # a driver that was stopped and woke up
        append(self, table, *rest)

    monkeypatch.setattr(DeltaTarget, "_append", overtaken)
    deliver(target, numbers(2, 8), start=2)
    assert sorted(DeltaTable(target.path).to_pyarrow_table().column("n").to_pylist()) == [*range(8)]


def test_delta_finds_what_failed_behind_the_commits_of_others(tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    deliver(target, numbers(0, 4), failed={2})
    deliver(target, numbers(0, 4), source="other", failed={1})
    for _ in range(11):
        write_deltalake(target.path, pa.table({"n": [-1]}), mode="append")
    deliver(target, numbers(0, 4))
    found = DeltaTable(target.path).to_pyarrow_table().column("n").to_pylist()
    assert sorted(n for n in found if n >= 0) == [0, 0, 1, 2, 2, 3, 3]


def test_delta_says_so_when_it_cannot_know_what_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = DeltaTarget(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    deliver(target, numbers(0, 2))
    past = CommitProperties(
        app_transactions=[Transaction("old", 2)], custom_metadata={"penstock": "{not ours"}
    )
    write_deltalake(target.path, pa.table({"n": [0, 1]}), mode="append", commit_properties=past)
    deliver(target, numbers(0, 4), source="old")
    assert "does not say any more" in caplog.text
    found = DeltaTable(target.path).to_pyarrow_table().column("n").to_pylist()
    assert sorted(found) == [0, 0, 1, 1, 2, 3]


def test_delta_does_not_take_an_older_note_for_what_was_written_last(tmp_path: Path) -> None:
    """A version before notes wrote into the table once more: 2 may be among its rows."""
    target = DeltaTarget(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    deliver(target, numbers(0, 4), failed={2})
    later = CommitProperties(app_transactions=[Transaction("one", 6)])
    rows = pa.table({"n": [2, 4, 5]})
    write_deltalake(target.path, rows, mode="append", commit_properties=later)
    deliver(target, numbers(0, 6))
    found = DeltaTable(target.path).to_pyarrow_table().column("n").to_pylist()
    assert sorted(found) == list(range(6))


def test_delta_tables_that_forget_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    forgets = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable.create(path, pa.schema([("n", pa.int64())]), configuration=forgets)
    with pytest.raises(InvalidError, match="forgets"):
        DeltaTarget(path).prepare()


# -- file


def test_a_file_gets_lines(tmp_path: Path) -> None:
    deliver(FileTarget(tmp_path / "f"), [b"bytes", "täxt", {"a": 1}, b""])
    assert (tmp_path / "f").read_bytes() == 'bytes\ntäxt\n{"a":1}\n\n'.encode()
    for wrong in (b"two\nlines", 7):
        with pytest.raises(InvalidError):
            FileTarget(tmp_path / "f").encode(wrong)


@pytest.mark.parametrize("written", [0, 3, 99])
def test_a_step_that_died_between_the_lines_and_the_mark_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    target = FileTarget(tmp_path / "f")
    deliver(target, numbers(0, 3))

    def dies(handle: int, data: bytes, at: int) -> None:
        os.pwrite(handle, data[:written], at)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sinkfile, "_write_all", dies)
        with pytest.raises(KeyboardInterrupt):
            deliver(target, numbers(3, 9), start=3)
    deliver(target, numbers(3, 6), start=3)
    assert Place("f", tmp_path).found() == list(range(6))


def test_a_first_step_that_dies_before_its_mark_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it dies: nothing is in the file that no mark tells of."""
    target = FileTarget(tmp_path / "f")
    put = FileTarget._put_mark
    for good in range(3):
        left = [True] * good

        def full(self: FileTarget, mark: sinkfile.Mark, left: list[bool] = left) -> None:
            if not left:
                raise OSError(28, "No space left on device")
            left.pop()
            put(self, mark)

        with monkeypatch.context() as patched:
            patched.setattr(FileTarget, "_put_mark", full)
            if good < 2:
                with pytest.raises(UnavailableError, match="No space left"):
                    deliver(target, numbers(0, 3))
            else:
                deliver(target, numbers(0, 3))
    deliver(target, numbers(0, 5))
    assert Place("f", tmp_path).found() == list(range(5))


def test_a_mark_from_before_failures_were_remembered_is_read(tmp_path: Path) -> None:
    target = FileTarget(tmp_path / "f")
    deliver(target, numbers(0, 3))
    target.mark_path.write_text('{"processor":"g/p","source":"one","end":3,"length":24}')
    deliver(target, numbers(0, 5))
    assert Place("f", tmp_path).found() == list(range(5))


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine\n")
    with pytest.raises(InvalidError, match="was not written by this sink"):
        deliver(FileTarget(tmp_path / "f"), [b"x"])
    assert (tmp_path / "f").read_text() == "mine\n"
    deliver(FileTarget(tmp_path / "g"), [b"x"])
    with pytest.raises(InvalidError, match="written by g/p"):
        deliver(FileTarget(tmp_path / "g"), [b"x"], source="another")
    (tmp_path / "g").write_text("")
    with pytest.raises(InvalidError, match="had 2 when"):
        deliver(FileTarget(tmp_path / "g"), [b"x", b"y"])


def test_two_processes_do_not_write_one_file_at_once(tmp_path: Path) -> None:
    target = FileTarget(tmp_path / "f")
    with target._locked(), pytest.raises(UnavailableError, match="another process"):
        deliver(target, [b"x"])
    deliver(target, [b"x"])
    assert (tmp_path / "f").read_bytes() == b"x\n"


# -- what a graph gets


def test_a_decorated_function_keeps_its_name_and_arguments(tmp_path: Path) -> None:
    import inspect

    @sinks.file(tmp_path / "f")
    def keep(message: object, delivery_hash: str) -> bytes:
        return b"x"

    assert isinstance(keep, TableSink)
    assert keep.__name__ == "keep"  # type: ignore[attr-defined]
    assert list(inspect.signature(keep).parameters) == ["message", "delivery_hash"]
    assert keep(1, delivery_hash="h") == b"x"
    with pytest.raises(PenstockError):
        sinks.sqlite(tmp_path / "x.db", table="sqlite_mine")
