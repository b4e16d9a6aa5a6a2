"""The dedup window: what is forgotten, when, and what never is."""

from __future__ import annotations

import pytest

from penstock.errors import NotFoundError
from penstock.log.decision import Timer
from penstock.source import pruning
from penstock.source.draft import PRUNE_MS
from penstock.source.lists import publishes
from penstock.source.pruning import Pruned
from penstock.source.requests import (
    BadAnnouncement,
    FailAnnouncements,
    FailShards,
    Failure,
    ListPublishes,
    MarkExported,
    ReopenShard,
)
from unit.log.driver import TickView
from unit.source.driver import ANNA, STALE_MS, SourceDriver, whole


async def load(world: SourceDriver, *ids: str) -> None:
    await world.open_shards(ANNA, *ids)
    await world.publish(ANNA, *(whole(each) for each in ids))


async def left(world: SourceDriver) -> list[str]:
    return [each.id for each in await world.files()]


async def test_a_terminal_shard_is_forgotten_when_it_is_old_enough() -> None:
    world = await SourceDriver.open(prune_age_ms=600_000, horizon_ms=0)
    await load(world, "s3://b/1")
    await world.open_shard(ANNA, "s3://b/2")
    await world.ask(FailShards(world.source, ANNA, [Failure("s3://b/2", "no", final=True)]))
    await world.ask(FailAnnouncements(world.source, [BadAnnouncement("d", "t", "e")]))
    due = world.clock.ms + 600_000
    world.clock.ms = due - 1
    assert await world.prune() == Pruned(0, next_ms=due - 1 + PRUNE_MS)
    world.clock.ms = due
    assert await world.prune() == Pruned(3, next_ms=None)
    assert await left(world) == []
    info = await world.info()
    assert (info.done, info.failed) == (0, 0)
    await world.sound()


async def test_a_shard_that_has_not_ended_is_never_forgotten() -> None:
    world = await SourceDriver.open(prune_age_ms=0, prune_count=0, horizon_ms=0)
    await world.open_shards(ANNA, "s3://b/1", "s3://b/2")
    await world.ask(FailShards(world.source, ANNA, [Failure("s3://b/2", "once")]))
    world.clock.ms += 100 * STALE_MS
    assert await world.prune() == Pruned(0, next_ms=None)
    assert len(await left(world)) == 2


async def test_above_the_count_the_oldest_go_but_none_that_may_be_announced_again() -> None:
    world = await SourceDriver.open(prune_age_ms=10**12, prune_count=2, horizon_ms=10_000)
    for n in range(5):
        await load(world, f"s3://b/{n}")
        world.clock.ms += 2000
    # They ended 10, 8, 6, 4 and 2 s ago: three are too many, one of them is beyond the horizon.
    assert (await world.prune()).removed == 1
    assert await left(world) == [f"s3://b/{n}" for n in range(1, 5)]
    world.clock.ms += 10_000
    assert (await world.prune()).removed == 2
    assert await left(world) == ["s3://b/3", "s3://b/4"], "no more than are too many"
    await world.sound()


async def test_a_forgotten_file_is_loaded_again_when_it_is_announced_again() -> None:
    world = await SourceDriver.open(prune_age_ms=1000, horizon_ms=0)
    await load(world, "s3://b/1")
    world.clock.ms += 1000
    await world.prune()
    again = await world.open_shard(ANNA, "s3://b/1")
    assert (again.mine, again.position) == (True, "BOF")


async def test_a_shard_that_is_reopened_in_the_same_commit_stays() -> None:
    from penstock.broker.sources import source_step

    world = await SourceDriver.open(prune_age_ms=1000, horizon_ms=0)
    await load(world, "s3://b/1", "s3://b/2")
    world.clock.ms += 1000
    reopen = source_step(ReopenShard(world.source, "s3://b/1", force=True))
    _, pruned = await world.log.submit(reopen, pruning.prune_step(world.source))
    assert pruned.removed == 1
    assert await left(world) == ["s3://b/1"]
    await world.sound()


async def test_much_is_forgotten_in_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PRUNED_ROWS", 3)
    world = await SourceDriver.open(prune_age_ms=1000, horizon_ms=0)
    await load(world, *(f"s3://b/{n}" for n in range(8)))
    world.clock.ms += 1000
    removed = []
    pruned = Pruned(0, world.clock.ms)
    while pruned.next_ms == world.clock.ms:
        pruned = await world.prune()
        removed.append(pruned.removed)
        await world.sound()
    assert removed == [3, 3, 2]
    assert await left(world) == []


async def test_publishes_are_forgotten_when_the_table_has_them_and_they_are_old() -> None:
    world = await SourceDriver.open(prune_age_ms=600_000, horizon_ms=0)
    for n in (1, 2, 3):
        await load(world, f"s3://b/{n}")
    world.clock.ms += 600_000
    assert (await world.prune()).removed == 3, "the shards; nothing is exported"
    assert len(await world.published()) == 3
    await world.ask(MarkExported(world.source, 2))
    assert (await world.prune()).removed == 2
    assert (await world.info()).first_publish == 3
    assert [row.sequence for row in await world.published(after=2)] == [3]
    with pytest.raises(NotFoundError, match="publishes 1 to 2 of 'events' are not remembered"):
        await publishes(TickView(world.log), ListPublishes(world.source, 0))
    await world.sound()


async def test_ends_remind_the_broker_once_a_minute_at_most(world: SourceDriver) -> None:
    await load(world, "s3://b/1", "s3://b/2")
    due = Timer(world.clock.ms + PRUNE_MS, ("prune", world.source))
    assert set(world.log.timers) == {due}
