"""The start of a run: what it refuses has changed nothing."""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import penstock
from penstock.errors import InvalidError, NotFoundError
from penstock.source.requests import ListSources
from penstock.spark import Ingest
from unit.spark.ingest.world import InProcessSpark, World

NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.struct([("x", pa.int64())])),
        ("tags", pa.list_(pa.string())),
        ("more", pa.map_(pa.string(), pa.int64())),
    ]
)


def made_by_the_writer(rule: str) -> pa.Schema:
    value = '{"expression": {"expression": "id > 5"}}'
    return pa.schema([pa.field("id", pa.int64(), metadata={rule: value})])


NEEDED = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (NESTED, {"format": "csv"}, "cannot hold the columns place, tags, more"),
        (NEEDED, {}, "wants a value in every row of id"),
        (NEEDED, {"format": "csv"}, "wants a value in every row of id"),
        (NEEDED, {"format": "text"}, "wants a value in every row of id"),
        (NEEDED, {"schema": pa.schema([("id", pa.int64())])}, "every row of id"),
        (made_by_the_writer("delta.invariants"), {}, "leaves to its writers: id"),
        (made_by_the_writer("delta.generationExpression"), {}, "leaves to its writers: id"),
        (made_by_the_writer("delta.identity.start"), {}, "leaves to its writers: id"),
        (
            pa.schema([("in", pa.list_(pa.struct(list(made_by_the_writer("delta.invariants")))))]),
            {},
            "leaves to its writers: in",
        ),
    ],
)
def test_a_table_that_was_there_and_cannot_be_loaded_into_is_refused_at_once(
    world: World, columns: pa.Schema, options: dict[str, Any], told: str
) -> None:
    DeltaTable.create(str(world.table_path), deltalake.Schema.from_arrow(columns))
    queue = world.database.create_queue("q", max_attempts=5)
    with pytest.raises(InvalidError, match=told):
        world.ingest(queue="q", **options).run(once=True)
    assert queue.describe().max_attempts == 5
    assert world.database.sources.ask(ListSources()).sources == []


def test_a_source_with_nested_columns_does_not_go_on_as_csv(world: World) -> None:
    world.write("a.json", {"id": 1, "tags": ["x"]})
    world.ingest().run(once=True)
    with pytest.raises(InvalidError, match="cannot hold the columns tags"):
        world.ingest(format="csv", prune_count=5).run(once=True)
    assert world.source().prune_count == 1_000_000


def test_text_goes_into_a_table_with_other_columns(world: World) -> None:
    DeltaTable.create(str(world.table_path), deltalake.Schema.from_arrow(NESTED))
    world.write("a.txt", b"one line")
    world.ingest(format="text").run(once=True)
    assert world.rows("value", "tags") == [("one line", None)]


def test_a_location_that_is_not_there_has_no_queue_and_is_not_made(world: World) -> None:
    wrong = world.folder / "typo"
    ingest = Ingest(wrong, "q", world.table_path, spark=InProcessSpark())  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="there is no such folder"):
        ingest.run(once=True)
    assert not wrong.exists()
    with pytest.raises(NotFoundError, match="is not a Penstock location"):
        Ingest(world.files, "q", world.table_path, spark=InProcessSpark()).run()  # type: ignore[arg-type]
    assert list(world.files.iterdir()) == []


def test_a_location_is_made_where_the_queue_lies_elsewhere(world: World) -> None:
    world.write("a.json", {"id": 1})
    new = world.folder / "new"
    ingest = Ingest(new, world.queue, world.table_path, spark=InProcessSpark())  # type: ignore[arg-type]
    assert ingest.run(once=True).files == 1
    with penstock.open(new) as database:
        assert len(database.sources.ask(ListSources()).sources) == 1


def test_a_run_after_one_that_was_stopped_runs(world: World) -> None:
    world.write("a.json", {"id": 1})
    ingest = world.ingest()
    ingest.stop()
    assert ingest.run().files == 0  # told before it began, it ends
    assert ingest.run(once=True).files == 1
