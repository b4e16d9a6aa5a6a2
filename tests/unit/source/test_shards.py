"""Who owns a shard: opening, acquiring, beating, failing, releasing, reopening."""

from __future__ import annotations

import pytest

from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.source.requests import (
    AcquireShards,
    BadAnnouncement,
    Beat,
    Beaten,
    FailAnnouncements,
    FailShards,
    Failure,
    Move,
    OpenShards,
    Published,
    Refused,
    ReleaseShards,
    ReopenShard,
    Shard,
    ShardOpen,
    Shards,
    Takeover,
    position_text,
)
from unit.source.driver import ANNA, BERT, CARL, STALE_MS, SourceDriver, whole

A = "s3://b/a"


async def fail(world: SourceDriver, token: str, error: str, *, final: bool = False) -> Shard:
    asked = FailShards(world.source, token, [Failure(A, error, final)])
    (shard,) = (await world.ask(asked)).shards
    return shard


# -- opening


async def test_who_opens_first_owns_the_shard_and_the_others_are_told_whose_it_is(
    world: SourceDriver,
) -> None:
    first = await world.open_shard(ANNA)
    second = await world.open_shard(BERT)
    assert (first.mine, first.token, first.position, first.phase) == (True, ANNA, "BOF", "open")
    assert (second.mine, second.token, second.stale) == (False, ANNA, False)


async def test_two_who_open_in_the_same_commit_do_not_both_own_it(world: SourceDriver) -> None:
    both = [OpenShards(world.source, who, STALE_MS, [ShardOpen(A, A)]) for who in (ANNA, BERT)]
    first, second = await world.together(*both)
    assert [each.shards[0].mine for each in (first, second)] == [True, False]
    assert second.shards[0].token == ANNA


async def test_a_batch_is_one_commit_and_answers_in_its_order(world: SourceDriver) -> None:
    await world.open_shard(BERT, "s3://b/1")
    before = len(world.log.written)
    found = await world.open_shards(ANNA, "s3://b/2", "s3://b/1", "s3://b/0")
    assert [(each.id, each.mine) for each in found] == [
        ("s3://b/2", True),
        ("s3://b/1", False),
        ("s3://b/0", True),
    ]
    assert len(world.log.written) == before + 1


async def test_opening_remembers_what_the_first_opener_saw(world: SourceDriver) -> None:
    asked = [ShardOpen(A, "s3://b/a", etag, by) for etag, by in (("e1", "m1"), ("e2", "m2"))]
    for each in asked:
        await world.ask(OpenShards(world.source, ANNA, STALE_MS, [each]))
    found = await world.file()
    assert (found.uri, found.etag, found.announced_by) == ("s3://b/a", "e1", "m1")


async def test_opening_an_own_shard_again_refreshes_it_and_a_foreign_one_does_not(
    world: SourceDriver,
) -> None:
    opened = await world.open_shard(ANNA)
    world.clock.ms += 1000
    assert (await world.open_shard(BERT)).updated_ms == opened.updated_ms
    assert (await world.open_shard(ANNA)).updated_ms == opened.updated_ms + 1000


async def test_a_shard_is_stale_when_its_owner_was_silent_for_as_long_as_it_said(
    world: SourceDriver,
) -> None:
    await world.open_shards(ANNA, A, stale_ms=5000)
    world.clock.ms += 4999
    assert not (await world.open_shard(BERT)).stale
    world.clock.ms += 1
    assert (await world.open_shard(BERT)).stale


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (OpenShards(1, "x", 1, []), "token is 32 hex digits"),
        (OpenShards(1, "0" * 32, 1, []), "not all 0"),
        (OpenShards(1, ANNA, 0, []), "stale_ms is 1 to"),
        (OpenShards(1, ANNA, 1, [ShardOpen("", "u")]), "id of 0 bytes"),
        (OpenShards(1, ANNA, 1, [ShardOpen("i" * 4097, "u")]), "id of 4,097 bytes"),
        (OpenShards(1, ANNA, 1, [ShardOpen("i", "")]), "URI of 0 bytes"),
        (OpenShards(1, ANNA, 1, [ShardOpen("i", "\ud800")]), "not valid text"),
        (OpenShards(1, ANNA, 1, [ShardOpen("announcement:x", "u")]), "id of an announcement"),
        (OpenShards(1, ANNA, 1, [ShardOpen("i", "u")] * 10_001), "at most 10,000"),
        (AcquireShards(1, ANNA, 1, [Takeover("i", "")]), "token is 32 hex digits"),
        (Beat(1, "A" * 32, []), "token is 32 hex digits"),
        (Beat(1, ANNA, ["\ud800"]), "not valid text"),
        (AcquireShards(1, ANNA, 1, [Takeover("\ud800", BERT)]), "not valid text"),
        (ReleaseShards(1, ANNA, ["\ud800"]), "not valid text"),
        (ReleaseShards(1, ANNA, ["i"], {"j": "e"}), "is not released"),
        (FailShards(1, ANNA, [Failure("\ud800", "e")]), "not valid text"),
        (FailAnnouncements(1, [BadAnnouncement("\ud800", "t", "e")]), "not valid text"),
        (FailShards(1, ANNA, [Failure("i", "e")] * 2), "named twice"),
        (ReopenShard(1, "announcement:x", True), "cannot be loaded"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_writes_nothing(
    world: SourceDriver, request_: OpenShards, what: str
) -> None:
    before = len(world.log.written)
    with pytest.raises(InvalidError, match=what):
        await world.ask(request_)
    assert len(world.log.written) == before


async def test_a_source_that_does_not_exist_is_not_found(world: SourceDriver) -> None:
    with pytest.raises(NotFoundError, match="no source 99"):
        await world.ask(OpenShards(99, ANNA, 1, [ShardOpen("i", "u")]))


# -- acquiring


async def test_a_stale_shard_is_acquired_at_its_position(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, Move(A, "BOF", position_text(700), 7))
    world.clock.ms += STALE_MS
    taken = await world.acquire(BERT, ANNA)
    assert (taken.mine, taken.token, taken.position, taken.rows) == (
        True,
        BERT,
        position_text(700),
        7,
    )


async def test_of_two_acquirers_one_has_it_and_the_other_sees_who(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    world.clock.ms += STALE_MS
    both = [AcquireShards(world.source, who, STALE_MS, [Takeover(A, ANNA)]) for who in (BERT, CARL)]
    first, second = await world.together(*both)
    assert [each.shards[0].mine for each in (first, second)] == [True, False]
    assert second.shards[0].token == BERT


async def test_a_shard_that_was_just_acquired_cannot_be_taken_at_once(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    world.clock.ms += STALE_MS
    await world.acquire(BERT, ANNA)
    assert not (await world.open_shard(CARL)).stale
    assert not (await world.acquire(CARL, BERT)).mine
    world.clock.ms += STALE_MS - 1
    assert not (await world.acquire(CARL, BERT)).mine
    world.clock.ms += 1
    assert (await world.acquire(CARL, BERT)).mine


async def test_an_owner_who_gave_a_sign_of_life_meanwhile_keeps_its_shard(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    world.clock.ms += STALE_MS
    assert (await world.open_shard(BERT)).stale
    await world.ask(Beat(world.source, ANNA, [A]))
    found = await world.acquire(BERT, ANNA)
    assert (found.mine, found.token) == (False, ANNA)


async def test_acquiring_twice_after_a_lost_answer_is_acquiring_once(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    world.clock.ms += STALE_MS
    assert (await world.acquire(BERT, ANNA)).mine
    world.clock.ms += 10
    again = await world.acquire(BERT, ANNA)
    assert (again.mine, again.updated_ms) == (True, world.clock.ms)


async def test_a_shard_is_acquired_only_from_the_owner_it_was_seen_with(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    world.clock.ms += STALE_MS
    await world.acquire(BERT, ANNA)
    world.clock.ms += STALE_MS
    found = await world.acquire(CARL, ANNA)
    assert (found.mine, found.token, found.stale) == (False, BERT, True)


async def test_two_runners_who_both_believe_to_own_a_shard_and_only_one_can_publish(
    world: SourceDriver,
) -> None:
    """The race of the specification: the loser finds out at its commit, and leaves no rows."""
    await world.open_shard(ANNA)
    world.clock.ms += STALE_MS
    assert (await world.acquire(BERT, ANNA)).mine  # Anna was only asleep, and reads on
    assert await world.publish(ANNA, whole()) == Refused("shards", [A])
    assert await world.publish(BERT, whole()) == Published(1)
    assert [len(row.splits) for row in await world.published()] == [1]
    assert (await world.file()).rows == 1


async def test_terminal_shards_are_nobodys_to_acquire(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, whole())
    world.clock.ms += 10 * STALE_MS
    found = await world.acquire(BERT, ANNA)
    assert (found.mine, found.stale, found.phase) == (False, False, "eof")


async def test_nothing_touches_a_shard_that_ended(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, whole())
    ended = await world.file()
    world.clock.ms += 1000
    await world.open_shard(ANNA)
    await world.acquire(ANNA, ANNA)
    await world.ask(Beat(world.source, ANNA, [A]))
    await world.ask(ReleaseShards(world.source, ANNA, [A]))
    await fail(world, ANNA, "too late")
    assert await world.file() == ended


async def test_what_nobody_remembers_is_left_out_of_the_answer(world: SourceDriver) -> None:
    asked = AcquireShards(world.source, BERT, STALE_MS, [Takeover("s3://b/none", ANNA)])
    assert await world.ask(asked) == Shards([])


# -- signs of life


async def test_a_beat_refreshes_own_shards_and_names_those_that_are_lost(
    world: SourceDriver,
) -> None:
    await world.open_shards(ANNA, "s3://b/1", "s3://b/2", "s3://b/3")
    await world.open_shard(BERT, "s3://b/4")
    await world.publish(ANNA, whole("s3://b/3"))
    mine, ended = await world.stage(ANNA), await world.stage(BERT)
    world.clock.ms += 1000
    ids = [f"s3://b/{n}" for n in range(1, 6)]
    assert await world.ask(Beat(world.source, ANNA, ids, [mine, ended, 99])) == Beaten(
        lost=["s3://b/3", "s3://b/4", "s3://b/5"], lost_stagings=[ended, 99]
    )
    times = {each.id: each.updated_ms for each in await world.files()}
    assert times["s3://b/1"] == times["s3://b/2"] == world.clock.ms
    assert times["s3://b/3"] == times["s3://b/4"] == world.clock.ms - 1000


async def test_a_beaten_shard_does_not_become_stale(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    for _ in range(5):
        world.clock.ms += STALE_MS - 1
        await world.ask(Beat(world.source, ANNA, [A]))
    assert not (await world.open_shard(BERT)).stale


async def test_a_released_shard_belongs_to_whoever_opens_it_next(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, Move(A, "BOF", position_text(5), 5))
    (released,) = (await world.ask(ReleaseShards(world.source, ANNA, [A]))).shards
    assert (released.token, released.mine, released.failures) == ("", False, 0)
    taken = await world.open_shard(BERT)
    assert (taken.mine, taken.position) == (True, position_text(5))
    (kept,) = (await world.ask(ReleaseShards(world.source, ANNA, [A]))).shards
    assert kept.token == BERT, "it is not Anna's to release any more"


async def test_why_a_shard_was_released_is_kept_and_counts_nothing(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    reasons = {A: "connection refused"}
    (released,) = (await world.ask(ReleaseShards(world.source, ANNA, [A], reasons))).shards
    assert (released.token, released.failures, released.error) == ("", 0, "connection refused")
    assert (await world.open_shard(BERT)).error == "connection refused"
    await world.ask(ReleaseShards(world.source, BERT, [A]))  # for no reason to speak of
    assert (await world.open_shard(ANNA)).error == "connection refused"
    await world.publish(ANNA, Move(A, "BOF", "EOF", 1))
    assert (await world.open_shard(ANNA)).error == ""


# -- failures


async def test_failures_are_counted_in_the_row_and_the_last_one_is_terminal() -> None:
    world = await SourceDriver.open(max_failures=3)
    for n in (1, 2):
        await world.open_shard(ANNA)
        failed = await fail(world, ANNA, f"attempt {n}")
        assert (failed.phase, failed.failures, failed.token) == ("open", n, "")
    await world.open_shard(BERT)
    failed = await fail(world, BERT, "attempt 3")
    assert (failed.phase, failed.failures, failed.error) == ("failed", 3, "attempt 3")
    assert (await world.info()).failed == 1
    assert (await world.open_shard(CARL)).phase == "failed"
    await world.sound()


async def test_a_takeover_is_no_failure(world: SourceDriver) -> None:
    """Kills and drops must not make a healthy file fail."""
    await world.open_shard(ANNA)
    owner = ANNA
    for who in (BERT, CARL, ANNA, BERT, CARL, ANNA):
        world.clock.ms += STALE_MS
        assert (await world.acquire(who, owner)).mine
        owner = who
    assert ((await world.file()).failures, (await world.file()).phase) == (0, "open")


async def test_only_the_owner_can_fail_a_shard_and_a_lost_answer_counts_once(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    assert (await fail(world, BERT, "not mine")).failures == 0
    assert (await fail(world, ANNA, "mine")).failures == 1
    assert (await fail(world, ANNA, "mine")).failures == 1


async def test_a_final_failure_ends_a_shard_at_once(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    failed = await fail(world, ANNA, "replaced", final=True)
    assert (failed.phase, failed.failures) == ("failed", 1)


async def test_with_no_limit_a_shard_is_tried_for_ever() -> None:
    world = await SourceDriver.open(max_failures=0)
    for n in range(1, 20):
        await world.open_shard(ANNA)
        assert (await fail(world, ANNA, "again")).failures == n
    assert (await world.file()).phase == "open"


async def test_progress_begins_the_count_of_failures_anew(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await fail(world, ANNA, "once")
    await world.open_shard(ANNA)
    await world.publish(ANNA, Move(A, "BOF", position_text(5), 5))
    assert (await world.file()).failures == 0


async def test_a_long_error_is_cut_and_one_that_is_no_text_is_shown(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    failed = await fail(world, ANNA, "\ud800" + "x" * 100_000)
    assert failed.error.startswith("\\ud800xxx")
    assert len(failed.error) == 4000


async def test_a_malformed_announcement_is_a_failed_row_keyed_by_its_digest(
    world: SourceDriver,
) -> None:
    asked = FailAnnouncements(
        world.source, [BadAnnouncement("d1", "{oops", "not JSON", "message 7")]
    )
    (shard,) = (await world.ask(asked)).shards
    assert (shard.id, shard.kind, shard.phase) == ("announcement:d1", "announcement", "failed")
    assert (shard.text, shard.error, shard.announced_by) == ("{oops", "not JSON", "message 7")
    world.clock.ms += 5
    (again,) = (await world.ask(asked)).shards
    assert (again.failures, again.opened_ms) == (2, shard.opened_ms)
    assert (await world.info()).failed == 1


# -- once more


async def test_a_failed_shard_that_is_reopened_goes_on_where_it_stood(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, Move(A, "BOF", position_text(5), 5))
    await fail(world, ANNA, "broken", final=True)
    (shard,) = (await world.ask(ReopenShard(world.source, A))).shards
    assert (shard.phase, shard.position, shard.rows, shard.failures, shard.error) == (
        "open",
        position_text(5),
        5,
        0,
        "",
    )
    assert (await world.info()).failed == 0
    assert (await world.open_shard(BERT)).mine


async def test_a_loaded_shard_is_reopened_by_force_only_and_from_its_beginning(
    world: SourceDriver,
) -> None:
    await world.open_shard(ANNA)
    await world.publish(ANNA, whole(rows=9))
    with pytest.raises(InvalidError, match="is loaded"):
        await world.ask(ReopenShard(world.source, A))
    (shard,) = (await world.ask(ReopenShard(world.source, A, force=True))).shards
    assert (shard.phase, shard.position, shard.rows) == ("open", "BOF", 0)
    assert (await world.info()).done == 0
    await world.open_shard(BERT)
    assert await world.publish(BERT, whole(rows=9)) == Published(2)


async def test_a_shard_that_somebody_works_on_is_not_reopened(world: SourceDriver) -> None:
    await world.open_shard(ANNA)
    with pytest.raises(ConflictError, match="is being loaded"):
        await world.ask(ReopenShard(world.source, A, force=True))
    world.clock.ms += STALE_MS
    (shard,) = (await world.ask(ReopenShard(world.source, A))).shards
    assert (shard.phase, shard.token) == ("open", "")
    assert await world.publish(ANNA, whole()) == Refused("shards", [A])


async def test_what_is_not_remembered_is_reopened_by_force_only(world: SourceDriver) -> None:
    with pytest.raises(NotFoundError, match="not remembered"):
        await world.ask(ReopenShard(world.source, A))
    assert await world.ask(ReopenShard(world.source, A, force=True)) == Shards([])
