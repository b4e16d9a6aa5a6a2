"""Sources: making and finding them, their schema, their lists."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from penstock.source import lists
from penstock.source.lists import describe, files, list_sources, publishes
from penstock.source.requests import (
    BadAnnouncement,
    FailAnnouncements,
    ListFiles,
    ListPublishes,
    MarkExported,
    OpenSource,
    PutSchema,
    SchemaInfo,
)
from unit.log.driver import LogDriver, TickView
from unit.source.driver import ANNA, SourceDriver, whole


async def test_a_source_is_made_once_and_found_by_its_name(world: SourceDriver) -> None:
    again = await world.ask(OpenSource("events", "file:///tables/events"))
    other = await world.ask(OpenSource("other", "file:///tables/events"))
    assert again.id == world.source
    assert other.id != world.source
    assert [each.name for each in (await list_sources(TickView(world.log))).sources] == [
        "events",
        "other",
    ]
    assert (await describe(TickView(world.log), "other")).id == other.id
    with pytest.raises(NotFoundError, match="no source 'nobody'"):
        await describe(TickView(world.log), "nobody")


async def test_two_who_make_it_in_one_commit_have_the_same_source() -> None:
    driver = SourceDriver(await LogDriver.open())
    first, second = await driver.together(OpenSource("s", "t"), OpenSource("s", "t"))
    assert first == second
    await driver.sound()


async def test_a_source_is_found_after_everything_was_forgotten(world: SourceDriver) -> None:
    world.log.forget()
    assert (await world.ask(OpenSource("events", "file:///tables/events"))).id == world.source


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (OpenSource("events", "file:///elsewhere"), "loads into file:///tables/events"),
        (OpenSource("events", "file:///tables/events", identity="version"), "files by uri"),
    ],
)
async def test_another_table_or_identity_is_a_conflict(
    world: SourceDriver, request_: OpenSource, what: str
) -> None:
    with pytest.raises(ConflictError, match=what):
        await world.ask(request_)


def as_format(format: str) -> OpenSource:
    return OpenSource("events", "file:///tables/events", format=format)


async def test_the_format_is_remembered_and_another_is_a_conflict_once_something_is_published(
    world: SourceDriver,
) -> None:
    assert (await world.ask(as_format(""))).format == "", "nobody told it"
    assert (await world.ask(as_format("json"))).format == "json"
    world.log.forget()
    # No file has a position yet.
    assert (await world.ask(as_format("parquet"))).format == "parquet"
    await world.open_shard(ANNA)
    await world.publish(ANNA, whole())
    with pytest.raises(ConflictError, match="reads its files as parquet, not as json"):
        await world.ask(as_format("json"))
    assert (await world.ask(as_format(""))).format == "parquet", "who says nothing changes nothing"
    assert (await describe(TickView(world.log), "events")).format == "parquet"
    assert [each.format for each in (await list_sources(TickView(world.log))).sources] == [
        "parquet"
    ]
    await world.sound()


async def test_a_source_that_was_made_without_a_format_takes_the_next_that_it_is_told(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, whole())
    assert (await world.ask(as_format("csv"))).format == "csv"
    with pytest.raises(ConflictError, match="as csv, not as json"):
        await world.ask(as_format("json"))


async def test_two_who_make_it_in_one_commit_with_two_formats() -> None:
    driver = SourceDriver(await LogDriver.open())
    made = await driver.together(*(OpenSource("s", "t", format=each) for each in ("json", "csv")))
    assert [each.format for each in made] == ["json", "csv"]
    await driver.sound()


async def test_the_other_settings_are_those_of_whoever_opened_it_last(world: SourceDriver) -> None:
    asked = OpenSource("events", "file:///tables/events", prune_count=7, max_failures=2)
    changed = await world.ask(asked)
    assert (changed.prune_count, changed.max_failures) == (7, 2)
    await world.ask(asked)
    assert world.log.written[-1] == {}, "nothing changed, nothing is written"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"name": ""}, "source name of 0 bytes"),
        ({"name": "n" * 256}, "source name of 256 bytes"),
        ({"table": ""}, "a table of 0 bytes"),
        ({"format": "x" * 70_000}, "a format of 70,000 bytes"),
        ({"prune_age_ms": -1}, "prune_age_ms"),
        ({"prune_count": -1}, "prune_count"),
        ({"horizon_ms": 2**64}, "horizon_ms"),
        ({"max_failures": 2**32}, "max_failures"),
    ],
)
async def test_settings_that_make_no_sense_are_invalid(
    world: SourceDriver, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidError, match=what):
        await world.ask(OpenSource(**({"name": "s", "table": "t"} | options)))


async def test_a_window_shorter_than_the_queues_memory_is_warned_about(
    world: SourceDriver,
) -> None:
    day = 86_400_000
    asked = OpenSource("short", "t", prune_age_ms=3 * day, horizon_ms=14 * day)
    warning = (await world.ask(asked)).warning
    assert "remembered for 3 days" in warning
    assert "for 14 days" in warning
    assert (await world.ask(OpenSource("long", "t", horizon_ms=0))).warning == ""


# -- the schema


async def test_a_schema_is_compared_and_set(world: SourceDriver) -> None:
    put = await world.ask(PutSchema(world.source, 0, "a INT"))
    assert put == SchemaInfo(1, "a INT", written=True)
    lost = await world.ask(PutSchema(world.source, 0, "b INT"))
    assert lost == SchemaInfo(1, "a INT", written=False)
    assert await world.ask(PutSchema(world.source, 1, "a INT, b INT")) == SchemaInfo(
        2, "a INT, b INT", written=True
    )
    info = await world.info()
    assert (info.schema_version, info.schema) == (2, "a INT, b INT")


async def test_the_same_schema_again_is_the_same_version(world: SourceDriver) -> None:
    request = PutSchema(world.source, 0, "a INT")
    first, second = await world.together(request, request)
    assert first == second == SchemaInfo(1, "a INT", written=True)


async def test_a_schema_is_text_of_bounded_length(world: SourceDriver) -> None:
    with pytest.raises(InvalidError, match="a schema of 0 bytes"):
        await world.ask(PutSchema(world.source, 0, ""))
    with pytest.raises(InvalidError, match="a schema of"):
        await world.ask(PutSchema(world.source, 0, "x" * (4 << 20) + "x"))


# -- what was published


async def test_the_exported_mark_only_rises_and_never_above_what_is_published(
    world: SourceDriver,
) -> None:
    for n in (1, 2):
        await world.open_shard(ANNA, f"s3://b/{n}")
        await world.publish(ANNA, whole(f"s3://b/{n}"))
    assert (await world.ask(MarkExported(world.source, 2))).exported == 2
    assert (await world.ask(MarkExported(world.source, 1))).exported == 2
    with pytest.raises(InvalidError, match="-1"):
        await world.ask(MarkExported(world.source, -1))
    with pytest.raises(ConflictError, match="the table is newer than the location"):
        await world.ask(MarkExported(world.source, 3))


async def test_publishes_come_in_parts_without_gaps(
    world: SourceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        await world.open_shard(ANNA, f"s3://b/{n}")
        await world.publish(ANNA, whole(f"s3://b/{n}"), splits=2)
    view = TickView(world.log)
    two = await publishes(view, ListPublishes(world.source, 1, 2))
    assert [row.sequence for row in two.rows] == [2, 3]
    assert two.published == 5
    assert (await publishes(view, ListPublishes(world.source, 5))).rows == []
    monkeypatch.setattr(lists, "LISTED_SPLITS", 3)
    short = await publishes(view, ListPublishes(world.source, 0))
    assert [row.sequence for row in short.rows] == [1, 2]


async def test_a_publish_that_is_missing_is_corrupt_not_a_gap(world: SourceDriver) -> None:
    from penstock.codec.keys import published_key
    from penstock.log.decision import Decision, Step

    for n in (1, 2):
        await world.open_shard(ANNA, f"s3://b/{n}")
        await world.publish(ANNA, whole(f"s3://b/{n}"))
    view = TickView(world.log)
    kept = await world.log.store.get(published_key(world.source, 1))

    def put(value: bytes | None) -> Step:
        key = published_key(world.source, 1)
        return Step(lambda view, now: Decision(writes={key: value}))

    await world.log.do(put(None))
    with pytest.raises(CorruptError, match="publish 1 of source 'events' is missing"):
        await publishes(view, ListPublishes(world.source, 0))
    await world.log.do(put(kept))


# -- files


async def test_files_are_listed_in_order_by_phase_prefix_and_in_parts(
    world: SourceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"s3://b/{n}" for n in range(6)]
    await world.open_shards(ANNA, *reversed(ids))
    await world.publish(ANNA, *(whole(each) for each in ids[:2]))
    await world.ask(FailAnnouncements(world.source, [BadAnnouncement("d", "t", "e")]))
    assert [each.id for each in await world.files()] == ["announcement:d", *ids]
    assert [each.id for each in await world.files(phase="eof")] == ids[:2]
    assert [each.id for each in await world.files(phase="failed")] == ["announcement:d"]
    assert [each.id for each in await world.files(prefix="s3://b/3")] == ["s3://b/3"]
    assert [each.id for each in await world.files(prefix="s3://b/", after="s3://b/3")] == ids[4:]
    assert await world.files(prefix="s3://b/1", after="s3://b/5") == []

    monkeypatch.setattr(lists, "SCANNED_ROWS", 2)
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        asked = ListFiles(world.source, "eof", after=after, limit=1)
        part = await files(TickView(world.log), asked)
        found += [each.id for each in part.shards]
        after = part.after
    assert found == ids[:2]
    short = await files(TickView(world.log), ListFiles(world.source, "open", after=ids[0]))
    assert ([each.id for each in short.shards], short.after) == ([ids[2]], ids[2])


async def test_lists_have_limits(world: SourceDriver) -> None:
    for limit in (0, 10_001):
        with pytest.raises(InvalidError, match="a list has 1 to"):
            await world.files(limit=limit)
    with pytest.raises(InvalidError, match="publishes begin at 1"):
        await publishes(TickView(world.log), ListPublishes(world.source, -1))
    with pytest.raises(NotFoundError, match="no source 99"):
        await files(TickView(world.log), ListFiles(99))
