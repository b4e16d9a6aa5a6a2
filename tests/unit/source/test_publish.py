"""Publishing: all of it in one commit, or nothing; once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from penstock.codec.keys import KeyType, key_type
from penstock.errors import InvalidError
from penstock.source.requests import (
    FailShards,
    Failure,
    Move,
    Publish,
    Published,
    PutSchema,
    Refused,
    ReopenShard,
    RevokeStagings,
    Split,
    position_text,
)
from penstock.source.requests import Staging as StagingInfo
from unit.source.driver import ANNA, BERT, STALE_MS, SourceDriver, whole

A = "s3://b/a"


async def test_splits_positions_and_the_sequence_are_one_commit(world: SourceDriver) -> None:
    await world.open_shards(ANNA, "s3://b/1", "s3://b/2")
    request = await world.publishing(ANNA, whole("s3://b/1", 3), whole("s3://b/2", 4), splits=2)
    assert await world.ask(request) == Published(1)
    written = {key_type(key) for key in world.log.written[-1]}
    assert {KeyType.SHARD, KeyType.ENDED, KeyType.PUBLISHED, KeyType.SOURCE} <= written
    (row,) = await world.published()
    assert (row.sequence, row.splits) == (1, request.splits)
    assert [(each.position, each.phase, each.rows) for each in await world.files()] == [
        ("EOF", "eof", 3),
        ("EOF", "eof", 4),
    ]
    assert (await world.info()).done == 2


async def test_sequences_are_dense(world: SourceDriver) -> None:
    for n in range(1, 4):
        await world.open_shard(ANNA, f"s3://b/{n}")
        assert await world.publish(ANNA, whole(f"s3://b/{n}")) == Published(n)
    assert [row.sequence for row in await world.published()] == [1, 2, 3]
    assert [row.sequence for row in await world.published(after=2)] == [3]


async def test_a_large_file_moves_in_several_publishes(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    places = ["BOF", position_text(100), position_text(250), "EOF"]
    for start, end in pairwise(places):
        assert isinstance(await world.publish(ANNA, Move(A, start, end, 10)), Published)
    assert ((await world.file()).rows, (await world.file()).phase) == (30, "eof")


@pytest.mark.parametrize("start", [position_text(0), position_text(99), position_text(101), "BOF"])
async def test_a_start_that_is_not_the_stored_position_refuses_all(
    world: SourceDriver, start: str
) -> None:
    await world.open_shards(ANNA, A, "s3://b/other")
    await world.publish(ANNA, Move(A, "BOF", position_text(100), 10))
    answer = await world.publish(ANNA, whole("s3://b/other"), Move(A, start, "EOF", 5))
    assert answer == Refused("shards", [A])
    assert (await world.file("s3://b/other")).position == "BOF", "all or nothing"
    assert (await world.file()).rows == 10
    assert len(await world.published()) == 1


async def test_one_foreign_shard_refuses_the_whole_publish_and_is_named(
    world: SourceDriver,
) -> None:
    await world.open_shards(ANNA, "s3://b/1", "s3://b/2")
    await world.open_shard(BERT, "s3://b/3")
    moves = [whole(f"s3://b/{n}") for n in (1, 2, 3, 4)]
    assert await world.publish(ANNA, *moves) == Refused("shards", ["s3://b/3", "s3://b/4"])
    assert await world.published() == []
    assert {each.position for each in await world.files()} == {"BOF"}


async def test_the_same_publish_again_gets_its_first_answer_and_does_nothing(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    request = await world.publishing(ANNA, whole())
    assert await world.ask(request) == Published(1)
    await world.open_shard(ANNA, "s3://b/later")
    await world.publish(ANNA, whole("s3://b/later"))
    assert await world.ask(request) == Published(1)
    assert world.log.written[-1] == {}
    assert (await world.file()).rows == 1


async def test_the_same_publish_twice_in_one_commit_is_one_publish(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    request = await world.publishing(ANNA, whole())
    assert await world.together(request, request) == [Published(1), Published(1)]
    assert len(await world.published()) == 1


async def test_a_refused_publish_stays_refused(world: SourceDriver) -> None:
    """Its runner has discarded the splits: what was refused must not come true later."""
    await world.open_shard(BERT)
    request = await world.publishing(ANNA, whole())
    assert await world.ask(request) == Refused("shards", [A])
    world.clock.ms += STALE_MS
    assert (await world.acquire(ANNA, BERT)).mine
    assert await world.ask(request) == Refused("shards", [A])
    assert await world.published() == []


async def test_a_refused_publish_revokes_its_staging(world: SourceDriver) -> None:
    await world.open_shard(BERT)
    staging = await world.stage(ANNA)
    await world.publish(ANNA, whole(), staging=staging)
    found = await world.ask(RevokeStagings(world.source, BERT))
    assert [each.id for each in found.stagings] == [staging]
    await world.open_shard(ANNA, "s3://b/mine")
    again = await world.publish(ANNA, whole("s3://b/mine"), staging=staging)
    assert again == Refused("staging", [])


async def test_a_publish_needs_a_live_staging_of_its_own(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    foreign, revoked = await world.stage(BERT), await world.stage(ANNA)
    await world.ask(RevokeStagings(world.source, ANNA, [revoked]))
    for staging in (foreign, revoked, 99):
        assert await world.publish(ANNA, whole(), staging=staging) == Refused("staging", [])
    assert (await world.file()).position == "BOF"
    published = await world.publish(BERT, whole(), staging=foreign)
    assert published == Refused("shards", [A]), "the staging of another was not touched"


async def test_a_publish_ends_its_staging(world: SourceDriver) -> None:
    await world.open_shards(ANNA, "s3://b/1", "s3://b/2")
    staging = await world.stage(ANNA)
    await world.publish(ANNA, whole("s3://b/1"), staging=staging)
    again = await world.publish(ANNA, whole("s3://b/2"), staging=staging)
    assert again == Refused("staging", [])
    assert (await world.ask(RevokeStagings(world.source, ANNA, [staging]))).stagings == []


async def test_an_empty_file_ends_without_a_split_and_without_a_sequence(
    world: SourceDriver,
) -> None:
    await world.open_shards(ANNA, "s3://b/1", "s3://b/empty")
    await world.publish(ANNA, whole("s3://b/1"))
    assert await world.publish(ANNA, whole("s3://b/empty", 0), splits=0) == Published(1)
    assert (await world.file("s3://b/empty")).phase == "eof"
    assert [row.sequence for row in await world.published()] == [1]


async def test_a_staging_of_which_nothing_was_published_is_to_be_cleaned(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    staging = await world.stage(ANNA)
    assert await world.publish(ANNA, whole(), staging=staging, splits=0) == Published(0)
    found = await world.ask(RevokeStagings(world.source, BERT))
    assert found.stagings == [StagingInfo(staging, ANNA, world.clock.ms, world.clock.ms)]


async def test_a_publish_with_an_older_schema_is_refused(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await world.ask(PutSchema(world.source, 0, "a INT"))
    assert await world.publish(ANNA, whole(), schema_version=0) == Refused("schema", [])
    assert await world.publish(ANNA, whole(), schema_version=2) == Refused("schema", [])
    assert await world.publish(ANNA, whole(), schema_version=1) == Published(1)
    assert (await world.published())[0].schema_version == 1


async def test_nobody_publishes_what_ended_or_was_given_up(world: SourceDriver) -> None:
    await world.open_shards(ANNA, "s3://b/1", "s3://b/2")
    await world.publish(ANNA, whole("s3://b/1"))
    assert await world.publish(ANNA, whole("s3://b/1")) == Refused("shards", ["s3://b/1"])
    await world.ask(FailShards(world.source, ANNA, [Failure("s3://b/2", "no")]))
    assert await world.publish(ANNA, whole("s3://b/2")) == Refused("shards", ["s3://b/2"])


BASE = Publish(1, ANNA, "p", 1, 0, [Split("s", 1, 1)], [Move(A, "BOF", "EOF", 1)])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"token": ""}, "token is 32 hex digits"),
        ({"publish_id": ""}, "publish id of 0 bytes"),
        ({"publish_id": "p" * 256}, "publish id of 256 bytes"),
        ({"moves": []}, "moves at least one shard"),
        ({"moves": [whole(), whole()]}, "moves a shard twice"),
        ({"moves": [Move(A, "EOF", "EOF", 1)]}, "not forward"),
        ({"moves": [Move(A, position_text(5), position_text(5), 1)]}, "not forward"),
        ({"moves": [Move(A, position_text(5), "BOF", 1)]}, "not forward"),
        ({"moves": [Move(A, "5", "EOF", 1)]}, "BOF, EOF or 20 digits"),
        ({"moves": [Move(A, "BOF", "9" * 20, 1)]}, "BOF, EOF or 20 digits"),
        ({"moves": [Move(A, "BOF", "EOF", -1)]}, "-1 rows"),
        ({"staging": None}, "staged before they are published"),
        ({"splits": [Split("s", 1, 1)] * 2}, "split is published twice"),
        ({"splits": [Split("", 1, 1)]}, "path of a split of 0 bytes"),
        ({"splits": [Split("s", -1, 1)]}, "-1 rows"),
        ({"splits": [Split("s", 1, 1, "\ud800")]}, "not valid text"),
        ({"publish_id": "\ud800"}, "not valid text"),
        ({"moves": [Move("\ud800", "BOF", "EOF", 1)]}, "not valid text"),
        ({"splits": [Split(str(n), 1, 1) for n in range(100_001)]}, "at most 100,000"),
        ({"splits": [Split(str(n), 1, 1, "x" * 1_000_000) for n in range(26)]}, "at most 25,165"),
        ({"moves": [Move(A, "BOF", position_text(1), 1, "")]}, "version of 0 bytes"),
    ],
)
async def test_a_publish_that_makes_no_sense_is_invalid_and_writes_nothing(
    world: SourceDriver, change: dict[str, Any], what: str
) -> None:
    before = len(world.log.written)
    with pytest.raises(InvalidError, match=what):
        await world.ask(msgspec.structs.replace(BASE, **change))
    assert len(world.log.written) == before


async def test_a_part_keeps_the_version_of_its_file_and_the_end_keeps_no_error(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    await world.ask(FailShards(world.source, ANNA, [Failure(A, "for now")]))
    await world.open_shard(ANNA)
    await world.publish(ANNA, Move(A, "BOF", position_text(5), 1, "v1"))
    shard = await world.file()
    assert (shard.etag, shard.error) == ("v1", "")
    await world.publish(ANNA, Move(A, position_text(5), "EOF", 1))
    assert (await world.file()).etag == "v1"
    await world.sound()


async def test_who_reopens_a_file_that_is_known_by_its_name_takes_it_as_it_is(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, Move(A, "BOF", position_text(5), 1, "v1"))
    await world.ask(FailShards(world.source, ANNA, [Failure(A, "changed", True)]))
    (reopened,) = (await world.ask(ReopenShard(world.source, A))).shards
    assert (reopened.position, reopened.etag) == (position_text(5), None)


async def test_a_list_of_publishes_is_of_bounded_size(
    world: SourceDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        await world.open_shard(ANNA, f"s3://b/{n}")
        await world.publish(ANNA, whole(f"s3://b/{n}"))
    assert [row.sequence for row in await world.published()] == [1, 2, 3]
    monkeypatch.setattr("penstock.source.lists.LISTED_BYTES", 1)
    assert [row.sequence for row in await world.published()] == [1]
    assert [row.sequence for row in await world.published(1)] == [2]
