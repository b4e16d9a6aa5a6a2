"""What files hold decides what is inferred: it must not ruin a source, or keep others from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from penstock.errors import CorruptError, InvalidError
from penstock.spark.ingest import jsonlines, readers, schema, task
from penstock.spark.ingest.jsonvalues import convert, load_line, type_of
from penstock.spark.ingest.lines import split_lines
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.schema import (
    LEVELS_MAX,
    as_stored,
    delta_type,
    from_text,
    given_schema,
    settle,
)
from unit.spark.ingest.world import World


def deep_line(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def deep_type(levels: int) -> pa.DataType:
    kind = pa.int64()
    for _ in range(levels):
        kind = pa.struct([("a", kind)])
    return kind


def depth(kind: pa.DataType) -> int:
    return (
        1 + max(depth(kind.field(at).type) for at in range(kind.num_fields))
        if kind.num_fields
        else 0
    )


@pytest.mark.parametrize("levels", [30, 60, 200, 900, 5000])
def test_a_deep_line_ruins_no_source_and_its_depths_are_text(world: World, levels: int) -> None:
    world.write("deep.json", deep_line(levels))
    world.write("good.json", {"id": 1})
    report = world.ingest().run(once=True)
    assert (report.files, report.rows, report.failed) == (2, 2, 0)
    world.write("more.json", {"id": 2})
    assert world.ingest().run(once=True).files == 1
    assert world.ids() == [1, 2, None]
    table = DeltaTable(world.table_path).to_pyarrow_table()
    assert max(depth(field.type) for field in table.schema) <= LEVELS_MAX
    (row,) = [row for row in table.to_pylist() if row["id"] is None]
    if levels < 300:
        value = row["a"]
        for _ in range(LEVELS_MAX):
            value = value["a"]
        assert value == deep_line(levels - LEVELS_MAX - 1).decode()
        assert row["_rescued_data"] is None
    else:
        assert row["_rescued_data"] == deep_line(levels).decode()


def test_both_ways_of_inferring_stop_at_the_same_depth() -> None:
    for levels in (LEVELS_MAX, LEVELS_MAX + 1, 50):
        line = deep_line(levels)
        (quick,) = jsonlines.infer(split_lines(line + b"\n", None))
        assert quick.type == type_of(load_line(line)["a"])
        assert depth(quick.type) == min(levels - 1, LEVELS_MAX)
    array = b'{"a":' + b"[" * 50 + b"]" * 50 + b"}"
    (quick,) = jsonlines.infer(split_lines(array + b"\n", None))
    assert quick.type == type_of(load_line(array)["a"])
    assert depth(quick.type) == LEVELS_MAX


def test_a_value_too_deep_to_be_written_does_not_fit() -> None:
    assert convert(load_line(deep_line(400)), pa.string()) == (None, False)


def test_a_field_twice_is_inferred_without_a_name_of_ours() -> None:
    lines = split_lines(b'{"a":1,"a":2}\n', None)
    assert jsonlines.infer(lines) == pa.schema([("a", pa.int64())])


def test_a_deep_parquet_file_is_loaded(world: World) -> None:
    path = world.files / "a.parquet"
    value: Any = 7
    for _ in range(50):
        value = {"a": value}
    pq.write_table(pa.table({"id": [1], "d": pa.array([value], deep_type(50))}), path)
    world.queue.send(str(path))
    assert world.ingest(format="parquet").run(once=True).rows == 1
    ((number, rescued),) = world.rows("id", "_rescued_data")
    assert number == 1
    assert json.loads(rescued) == {"d": value}


def test_columns_that_could_not_be_read_back_are_refused_and_nothing_is_stored(
    world: World,
) -> None:
    columns = pa.schema([("a", deep_type(60))])
    with pytest.raises(InvalidError, match="cannot be stored"):
        as_stored(columns)
    with pytest.raises(InvalidError, match="cannot be stored"):
        given_schema(columns)
    with pytest.raises(InvalidError):
        world.ingest(schema=columns).run(once=True)
    world.write("a.json", {"id": 1})
    assert world.ingest().run(once=True).files == 1


def test_a_stored_schema_that_cannot_be_read_is_corrupt() -> None:
    for text in ("", "{", "[]", '{"type":"struct","fields":[{"name":"a"}]}', "null"):
        with pytest.raises(CorruptError):
            from_text(text)


def test_types_of_every_kind_are_cut_at_the_same_depth() -> None:
    wraps: list[Callable[[pa.DataType], pa.DataType]] = [
        lambda kind: pa.struct([("a", kind)]),
        pa.list_,
        pa.large_list,
        pa.list_view,
        lambda kind: pa.list_(kind, 2),
        lambda kind: pa.map_(pa.string(), kind),
    ]
    for wrap in wraps:
        kind = pa.int64()
        for _ in range(3):
            kind = wrap(kind)
        assert delta_type(schema.shallow(kind, 3)) == delta_type(kind)
        assert schema.shallow(kind, 0) == pa.string()
        assert delta_type(schema.shallow(kind, 2)) == delta_type(wrap(wrap(pa.string())))
        assert as_stored(settle(pa.schema([("a", schema.shallow(kind, 2))])))


def test_more_fields_than_a_table_may_have_are_rescued(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "FIELDS_MAX", 10)
    wide = {"id": 1, **{f"k{n:02}": n for n in range(20)}}
    world.write("wide.json", wide)
    assert world.ingest(evolve=True).run(once=True).rows == 1
    world.write("other.json", {"id": 2, "new": 1}, {"id": 3, "k00": 5})
    assert world.ingest(evolve=True).run(once=True).rows == 2
    names = DeltaTable(world.table_path).to_pyarrow_table().schema.names
    assert names == ["id", *(f"k{n:02}" for n in range(9)), "_rescued_data", "_file", "_position"]
    assert world.rows("id", "k00", "_rescued_data") == [
        (1, 0, json.dumps(wide)),
        (2, None, '{"id": 2, "new": 1}'),
        (3, 5, None),
    ]


def test_a_struct_with_more_fields_than_there_is_room_for_is_text(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "FIELDS_MAX", 10)
    struct = {f"k{n}": n for n in range(10)}
    world.write("wide.json", {"id": 1, "s": struct, "t": {"u": 1}})
    world.ingest().run(once=True)
    assert world.rows("id", "s", "t", "_rescued_data") == [
        (1, json.dumps(struct).replace(" ", ""), {"u": 1}, None)
    ]


def objects_in_one_line(n: int) -> Any:
    return {"id": n, "l": [{f'{n} {m}" x': m} for m in range(80)] if n < 3 else []}


OWN_NAMES: list[Callable[[int], Any]] = [
    objects_in_one_line,
    lambda n: {"id": n, f"k{n}": n},
    lambda n: {"id": n, f"k{n % 60}": n},
    lambda n: {"id": n, "u": {f":k{n}": {"x": n}}},
    lambda n: {"id": n, "l": [{f'k{n} " {m}': m} for m in range(5)]},
    lambda n: {"id": n, "s": f'{{"k{n}": 1}}'},
]


@pytest.mark.parametrize("make", OWN_NAMES)
def test_lines_with_names_of_their_own_do_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Any]
) -> None:
    lines = split_lines(b"\n".join(json.dumps(make(n)).encode() for n in range(400)), None)
    known = pa.schema([("id", pa.int64())])
    inferred, rows = jsonlines.infer(lines), jsonlines.parse(lines, known).to_pylist()
    largest = [0]
    read = jsonlines._read

    def counting(*given: Any) -> pa.Table | None:
        table = read(*given)
        if table is not None:
            largest[0] = max(largest[0], sum(cells(each) for each in table.columns))
        return table

    monkeypatch.setattr(jsonlines, "_read", counting)
    monkeypatch.setattr(jsonlines, "CELLS_MAX", 4000)
    for motley in (jsonlines._motley, lambda _: False):  # which is for speed alone
        monkeypatch.setattr(jsonlines, "_motley", motley)
        assert set(jsonlines.infer(lines)) == set(inferred)
        assert jsonlines.parse(lines, known).to_pylist() == rows
    assert 0 < largest[0] <= 4000


def cells(column: pa.ChunkedArray | pa.Array) -> int:
    """Places that Arrow made, at all levels."""
    if isinstance(column, pa.ChunkedArray):
        return sum(cells(each) for each in column.chunks)
    if pa.types.is_struct(column.type):
        return len(column) + sum(cells(each) for each in column.flatten())
    return len(column) + (cells(column.flatten()) if pa.types.is_list(column.type) else 0)


def test_a_file_whose_lines_have_names_of_their_own_is_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "FIELDS_MAX", 10)
    world.write("users.json", *({f"user{n}": n} for n in range(500)))
    world.write("good.json", {"id": 1})
    assert world.ingest().run(once=True).rows == 501
    table = DeltaTable(world.table_path).to_pyarrow_table()
    assert table.num_columns == 10 + 3
    columns, rescued = table.schema.names[:10], table["_rescued_data"].to_pylist()
    assert [json.loads(each).keys() & set(columns) for each in rescued if each] == [set()] * 491


def test_a_struct_of_more_fields_than_there_is_room_for_is_merged_to_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema, "FIELDS_MAX", 3)
    kinds = [pa.struct([(f"k{n}", pa.int64()), ("x", pa.int64())]) for n in range(4)]
    merged = kinds[0]
    for kind in kinds[1:]:
        merged = schema.merge_types(merged, kind)
    assert merged == pa.string()
    assert schema.merge_types(kinds[0], kinds[1]).num_fields == 3


@pytest.mark.parametrize("reading", ["json", "csv", "parquet"])
def test_rows_of_many_columns_are_read_few_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch, reading: Literal["json", "csv", "parquet"]
) -> None:
    monkeypatch.setattr(readers, "CELLS_MAX", 40)
    columns = pa.schema([(f"k{n}", pa.int64()) for n in range(20)])
    path = world.files / "a"
    text = {"json": '{"k1":1}\n' * 5, "csv": ",".join(columns.names) + "\n" + "1\n" * 5}
    if reading == "parquet":
        pq.write_table(pa.table({"k1": [1] * 5}), path)
    else:
        path.write_text(text[reading])
    reader = readers.PieceReader(Piece(0, f"file://{path}"), readers.Reading(reading))
    tables = list(reader.tables(columns))
    assert [len(table) for table in tables] == [2, 2, 1]
    positions = pa.concat_tables(tables)["_position"].to_pylist()
    assert positions == sorted(set(positions))
    assert reader.infer().names


def test_a_name_of_thousands_of_characters_is_no_column(world: World) -> None:
    line = {"id": 1, "x" * 5000: 2, "s": {"y" * 5000: 1, "z": 3}}
    world.write("a.json", line)
    assert world.ingest().run(once=True).failed == 0
    assert world.rows("id", "s", "_rescued_data") == [(1, {"z": 3}, json.dumps(line))]


# -- what is refused, for what is in one file


def test_a_file_whose_columns_the_table_cannot_have_fails_alone(world: World) -> None:
    world.write("a.json", {"id": 1})
    world.ingest(evolve=True).run(once=True)
    table = DeltaTable(world.table_path)
    table.alter.add_columns([Field("x", PrimitiveType("string"))])
    for n in range(2, 7):
        world.write(f"{n}.json", {"id": n, "x": 5} if n == 4 else {"id": n})
    report = world.ingest(evolve=True).run(once=True)
    assert (report.files, report.failed) == (4, 1)
    assert world.ids() == [1, 2, 3, 5, 6]
    shard = world.shards()["4.json"]
    assert (shard.phase, shard.failures) == ("failed", 1)
    assert "has the column 'x' as string, the data as int64" in shard.error
    assert len(world.queue) == 0


def test_a_table_that_is_refused_meanwhile_is_no_failure_of_a_file(world: World) -> None:
    world.write("a.json", {"id": 1})
    world.ingest(evolve=True).run(once=True)
    world.write("b.json", {"id": 2, "b": 1})

    def constrain() -> None:
        DeltaTable(world.table_path).alter.add_constraint({"positive": "id > 0"})

    world.spark.before = constrain
    with pytest.raises(InvalidError, match="constraints that are not checked"):
        world.ingest(evolve=True).run(once=True)
    shard = world.shards()["b.json"]
    assert (shard.phase, shard.failures, shard.token) == ("open", 0, "")
    assert len(world.queue) == 1


def test_a_file_whose_publish_is_refused_as_invalid_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        world.write(f"{n}.json", {"id": n}, *([{"id": 6}] if n == 3 else []))
    world.write("damaged.json.gz", b"not compressed")
    statistics = task.statistics

    def heavy(metadata: Any, schema: pa.Schema) -> str:
        text = statistics(metadata, schema)
        return text if json.loads(text)["maxValues"]["id"] < 6 else text + " " * (1 << 20)

    monkeypatch.setattr(task, "statistics", heavy)
    report = world.ingest(max_failures=2).run(once=True)
    assert (report.files, report.failed) == (5, 2)
    assert world.ids() == [0, 1, 2, 4, 5]
    shard = world.shards()["3.json"]
    assert (shard.phase, shard.failures) == ("failed", 1)
    assert "the stats of a split" in shard.error
    assert len(world.queue) == 0
    assert len(world.splits()) == DeltaTable(world.table_path).get_add_actions().num_rows


def test_statistics_are_of_the_first_columns_and_of_ours(world: World) -> None:
    world.write("a.json", {f"k{n:02}": n for n in range(40)})
    world.ingest().run(once=True)
    (path,) = (world.table_path / "_delta_log").glob("*1.json")
    (added,) = [
        json.loads(line)["add"] for line in path.read_text().splitlines() if '"add"' in line
    ]
    found = json.loads(added["stats"])
    first = {f"k{n:02}": n for n in range(32)}
    assert found["minValues"] == found["maxValues"] == first | {"_position": 0}
    assert set(found["nullCount"]) == {*first, "_position", "_file", "_rescued_data"}
    assert found["numRecords"] == 1
