"""The export against its table: another exporter comes in between, at the worst moment.

Each time the other one brings everything into the table, and a user then deletes it. Whoever
commits the same splits once more brings deleted rows back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.clock import SystemClock
from penstock.errors import CorruptError, InvalidError, PenstockError, UnavailableError
from penstock.source.requests import ListSources, PublishRow, Split
from penstock.spark.ingest.delta import DeltaTarget, storage_options
from penstock.spark.ingest.schema import table_schema, to_text
from unit.spark.ingest.world import World

COLUMNS = pa.schema([("id", pa.int64())])


class Exporter:
    """One of several processes that export the same two publishes."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self.target = DeltaTarget(str(table), "app", SystemClock(), lambda _: None)

    def __call__(self) -> int:
        return self.target.export(self._publishes, lambda: to_text(COLUMNS), lambda _: None)

    def _publishes(self, after: int, limit: int) -> Sequence[PublishRow]:
        return [
            PublishRow(number, 1, 0, [self._split(number)]) for number in (1, 2) if number > after
        ]

    def _split(self, number: int) -> Split:
        path = self._table / f"splits/{number}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = pa.table({"id": [number]})
            for field in list(table_schema(COLUMNS))[1:]:
                rows = rows.append_column(field, pa.nulls(1, field.type))
            pq.write_table(rows, path)
        return Split(f"splits/{number}.parquet", 1, path.stat().st_size)


def ids(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())


def once(first: Callable[[], object]) -> Callable[[], object]:
    """The other one comes in between once; its own export is not disturbed."""
    left = [first]
    return lambda: left.pop()() if left else None


def another(table: Path) -> Callable[[], object]:
    def comes() -> None:
        assert Exporter(table)() == 2
        DeltaTable(table).delete()
        assert ids(table) == []

    return once(comes)


def test_a_transaction_is_of_the_version_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    DeltaTable.create(table, table_schema(COLUMNS))
    commit, between = DeltaTarget._commit, another(table)

    def overtaken(self: DeltaTarget, handle: Any, rows: Sequence[PublishRow]) -> None:
        between()
        commit(self, handle, rows)

    monkeypatch.setattr(DeltaTarget, "_commit", overtaken)
    assert Exporter(table)() == 0
    assert ids(table) == []


def test_whatever_is_committed_in_between_the_export_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    DeltaTable.create(table, table_schema(COLUMNS))
    row = pa.Table.from_pylist([{"id": 7}], schema=table_schema(COLUMNS))
    between = once(lambda: deltalake.write_deltalake(table, row, mode="append"))
    commit, versions = DeltaTarget._commit, []

    def overtaken(self: DeltaTarget, handle: Any, rows: Sequence[PublishRow]) -> None:
        versions.append(handle.version())
        between()
        commit(self, handle, rows)

    monkeypatch.setattr(DeltaTarget, "_commit", overtaken)
    assert Exporter(table)() == 2
    assert versions == [0, 1]  # not tried again on a version that nobody has looked at
    assert ids(table) == [1, 2, 7]


@pytest.mark.parametrize("there", [False, True], ids=["created", "widened"])
def test_a_table_that_was_loaded_again_may_have_it_all_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    table = tmp_path / "t"
    if there:  # a column is missing
        DeltaTable.create(table, pa.schema(list(table_schema(COLUMNS))[1:]))
    prepare, load, between = DeltaTarget._prepare, deltalake.DeltaTable, another(table)

    def overtaken(self: DeltaTarget, handle: Any, wanted: pa.Schema) -> Any:
        def loaded(*arguments: Any, **more: Any) -> DeltaTable:
            between()  # it is created or widened; now it is loaded again
            return load(*arguments, **more)

        class Slow:
            DeltaTable = staticmethod(loaded)
            Schema = deltalake.Schema

        loaded.create = load.create  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self, "_delta", Slow)
            return prepare(self, handle, wanted)

    monkeypatch.setattr(DeltaTarget, "_prepare", overtaken)
    assert Exporter(table)() == 0
    assert ids(table) == []


def test_a_way_of_writing_that_guards_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    assert storage_options("/a/folder") is None
    with pytest.raises(InvalidError, match="AWS_S3_ALLOW_UNSAFE_RENAME"):
        storage_options("s3://bucket/table")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "false")
    assert storage_options("s3://bucket/table") is not None


# -- tables that cannot be read


def a_file(table: Path) -> None:
    table.write_text("not a table")


def a_damaged_log(table: Path) -> None:
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020}.json").write_text("garbage\n")


def a_log_that_is_a_file(table: Path) -> None:
    table.mkdir()
    (table / "_delta_log").write_text("not a folder")


BROKEN: list[tuple[Callable[[Path], None], type[PenstockError], str]] = [
    (a_file, InvalidError, r"is a file\nhint: a table is a folder"),
    (
        a_damaged_log,
        CorruptError,
        r"its log cannot be read: Kernel error: Json error: [^\n]*\nhint: restore",
    ),
    (a_log_that_is_a_file, UnavailableError, r"Generic LocalFileSystem error: [^\n\x1b]*directory"),
]


@pytest.mark.parametrize(("spoil", "kind", "told"), BROKEN)
def test_a_table_that_cannot_be_read_says_why(
    tmp_path: Path, spoil: Callable[[Path], None], kind: type[PenstockError], told: str
) -> None:
    spoil(tmp_path / "table")
    target = Exporter(tmp_path / "table").target
    for ask in (target.columns, target.version, lambda: target.check(COLUMNS)):
        with pytest.raises(kind, match=told):
            ask()


@pytest.mark.parametrize(("spoil", "kind", "told"), BROKEN)
def test_a_run_into_a_table_that_cannot_be_read_makes_no_source(
    world: World, spoil: Callable[[Path], None], kind: type[PenstockError], told: str
) -> None:
    world.write("a.json", {"id": 1})
    spoil(world.table_path)
    with pytest.raises(kind):
        world.ingest().run(once=True)
    assert world.database.sources.ask(ListSources()).sources == []
    assert len(world.queue) == 1


def test_an_export_goes_on_when_the_table_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = Exporter(tmp_path / "table")
    load, errors = exporter.target._load, [OSError("away"), DeltaError("half of a log")]

    def sometimes() -> Any:
        if errors:
            raise errors.pop()
        return load()

    monkeypatch.setattr(exporter.target, "_load", sometimes)
    assert exporter() == 2
    assert (ids(tmp_path / "table"), errors) == ([1, 2], [])
