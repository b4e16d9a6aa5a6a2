"""Stagings: what may be deleted, and not before nobody can publish it."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidError
from penstock.source.requests import (
    Beat,
    BeginStaging,
    FinishStagings,
    Published,
    Refused,
    RevokeStagings,
)
from unit.source.driver import ANNA, BERT, STALE_MS, SourceDriver, whole


async def revoke(world: SourceDriver, token: str, ids: list[int] | None = None) -> list[int]:
    found = await world.ask(RevokeStagings(world.source, token, ids))
    return [each.id for each in found.stagings]


async def finish(world: SourceDriver, *ids: int) -> list[int]:
    found = await world.ask(FinishStagings(world.source, list(ids)))
    return [each.id for each in found.stagings]


async def test_the_same_key_again_is_the_same_staging_while_it_lives(world: SourceDriver) -> None:
    first = await world.stage(ANNA, "k")
    assert await world.stage(ANNA, "k") == first
    assert await world.stage(ANNA, "other") == first + 1
    await revoke(world, ANNA, [first])
    assert await world.stage(ANNA, "k") == first + 2
    await finish(world, first)


async def test_only_stagings_of_the_silent_are_revoked(world: SourceDriver) -> None:
    silent = await world.stage(ANNA)
    world.clock.ms += STALE_MS - 1
    alive = await world.stage(BERT)
    assert await revoke(world, BERT) == []
    world.clock.ms += 1
    assert await revoke(world, BERT) == [silent]
    await world.ask(Beat(world.source, BERT, [], [alive]))
    world.clock.ms += STALE_MS - 1
    assert await revoke(world, ANNA) == [silent], "it stays until its files are gone"


async def test_an_own_staging_can_be_given_up_and_a_foreign_one_cannot(
    world: SourceDriver,
) -> None:
    mine, foreign = await world.stage(ANNA), await world.stage(BERT)
    assert await revoke(world, ANNA, [mine, foreign]) == [mine]
    await world.open_shard(BERT)
    assert await world.publish(BERT, whole(), staging=foreign) == Published(1)


async def test_a_revoked_staging_cannot_be_published_and_goes_when_it_is_finished(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    staging = await world.stage(ANNA)
    world.clock.ms += STALE_MS
    assert await revoke(world, BERT) == [staging]
    # Anna was stopped, and wakes up: her splits may be half deleted by now.
    assert await world.publish(ANNA, whole(), staging=staging) == Refused("staging", [])
    assert await finish(world, staging) == [staging]
    assert await finish(world, staging) == []
    assert await revoke(world, BERT) == []


async def test_a_live_staging_cannot_be_finished(world: SourceDriver) -> None:
    staging = await world.stage(ANNA)
    assert await finish(world, staging) == []
    await world.open_shard(ANNA)
    assert await world.publish(ANNA, whole(), staging=staging) == Published(1)


async def test_a_publish_in_the_same_commit_as_the_revocation_is_refused(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    request = await world.publishing(ANNA, whole())
    world.clock.ms += STALE_MS
    revoked, answer = await world.together(RevokeStagings(world.source, BERT), request)
    assert [each.id for each in revoked.stagings] == [request.staging]
    assert answer == Refused("staging", [])


async def test_a_revocation_in_the_same_commit_as_the_publish_finds_nothing(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    request = await world.publishing(ANNA, whole())
    world.clock.ms += STALE_MS
    answer, revoked = await world.together(request, RevokeStagings(world.source, BERT))
    assert answer == Published(1)
    assert revoked.stagings == []


async def test_a_staging_needs_a_key(world: SourceDriver) -> None:
    with pytest.raises(InvalidError, match="key of 0 bytes"):
        await world.ask(BeginStaging(world.source, ANNA, STALE_MS, ""))
