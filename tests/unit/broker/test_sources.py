"""Sources behind a broker: in process and over the wire, its upkeep, and a lost commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.client.sources import Sources
from penstock.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from penstock.source.draft import PRUNE_MS
from penstock.source.requests import (
    AcquireShards,
    BadAnnouncement,
    Beat,
    Beaten,
    BeginStaging,
    FailAnnouncements,
    FailShards,
    Failure,
    FinishStagings,
    GetSchema,
    GetSource,
    ListFiles,
    ListPublishes,
    ListSources,
    MarkExported,
    Move,
    OpenShards,
    OpenSource,
    Publish,
    Published,
    PutSchema,
    Refused,
    ReleaseShards,
    ReopenShard,
    RevokeStagings,
    SchemaInfo,
    ShardOpen,
    Split,
    Takeover,
    token_text,
)
from penstock.store.memory import Fault, Lose
from unit.broker.driver import BrokerWorld

ANNA, BERT = token_text(b"a" * 16), token_text(b"b" * 16)
A = "s3://b/a ü\x00"


@pytest.fixture(params=["in process", "over the socket"])
def sources(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sources]:
    with penstock.open(tmp_path / "d") as db:
        if request.param == "in process":
            yield db.sources
            return
        with penstock.open(tmp_path / "d") as other:
            assert other._session.link.broker is None
            yield other.sources


def test_every_request_is_answered_the_same_in_process_and_over_the_socket(
    sources: Sources,
) -> None:
    made = sources.ask(OpenSource("events", "file:///t", max_failures=2))
    source = made.id
    assert sources.ask(GetSource("events")) == made
    assert sources.ask(ListSources()).sources == [made]
    assert sources.ask(GetSchema(source)) == SchemaInfo(0, "")
    assert sources.ask(PutSchema(source, 0, "a INT")) == SchemaInfo(1, "a INT", written=True)
    (shard,) = sources.ask(OpenShards(source, ANNA, 60_000, [ShardOpen(A, A)])).shards
    assert (shard.id, shard.mine, shard.position) == (A, True, "BOF")
    (other,) = sources.ask(AcquireShards(source, BERT, 60_000, [Takeover(A, ANNA)])).shards
    assert (other.mine, other.token) == (False, ANNA)
    (staging,) = sources.ask(BeginStaging(source, ANNA, 60_000, "k")).stagings
    assert sources.ask(Beat(source, ANNA, [A], [staging.id])) == Beaten([], [])
    refused = Publish(source, BERT, "p0", None, 1, [], [Move(A, "BOF", "EOF", 2)])
    assert sources.ask(refused) == Refused("shards", [A])
    split = Split("x.parquet", 2, 99, '{"numRecords":2}')
    publish = Publish(source, ANNA, "p1", staging.id, 1, [split], [Move(A, "BOF", "EOF", 2)])
    assert sources.ask(publish) == Published(1)
    assert sources.ask(publish) == Published(1)
    listed = sources.ask(ListPublishes(source, 0))
    assert [(row.sequence, row.splits) for row in listed.rows] == [(1, [split])]
    assert sources.ask(MarkExported(source, 1)).exported == 1
    (reopened,) = sources.ask(ReopenShard(source, A, force=True)).shards
    assert reopened.phase == "open"
    (mine,) = sources.ask(OpenShards(source, BERT, 60_000, [ShardOpen(A, A)])).shards
    assert mine.mine
    (released,) = sources.ask(ReleaseShards(source, BERT, [A])).shards
    assert released.token == ""
    sources.ask(OpenShards(source, BERT, 60_000, [ShardOpen(A, A)]))
    (failed,) = sources.ask(FailShards(source, BERT, [Failure(A, "no", final=True)])).shards
    assert (failed.phase, failed.error) == ("failed", "no")
    bad = FailAnnouncements(source, [BadAnnouncement("d", "{", "no JSON")])
    assert sources.ask(bad).shards[0].kind == "announcement"
    assert [each.phase for each in sources.ask(ListFiles(source)).shards] == ["failed", "failed"]
    (own,) = sources.ask(BeginStaging(source, ANNA, 60_000, "k2")).stagings
    assert sources.ask(RevokeStagings(source, ANNA, [own.id])).stagings[0].id == own.id
    assert sources.ask(FinishStagings(source, [own.id])).stagings[0].id == own.id


def test_errors_are_of_the_same_kind_in_process_and_over_the_socket(sources: Sources) -> None:
    sources.ask(OpenSource("events", "file:///t"))
    with pytest.raises(NotFoundError, match="no source 'nobody'"):
        sources.ask(GetSource("nobody"))
    with pytest.raises(ConflictError, match="loads into"):
        sources.ask(OpenSource("events", "file:///other"))
    with pytest.raises(InvalidError, match="token is 32 hex digits"):
        sources.ask(OpenShards(1, "x", 1, []))


def test_shards_survive_a_restart(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "d") as db:
        source = db.sources.ask(OpenSource("events", "t")).id
        db.sources.ask(OpenShards(source, ANNA, 60_000, [ShardOpen(A, A)]))
        db.sources.ask(Publish(source, ANNA, "p", None, 0, [], [Move(A, "BOF", "EOF", 0)]))
    with penstock.open(tmp_path / "d") as db:
        assert db.sources.ask(GetSource("events")).done == 1
        (shard,) = db.sources.ask(OpenShards(source, BERT, 60_000, [ShardOpen(A, A)])).shards
        assert (shard.phase, shard.mine) == ("eof", False)
        again = Publish(source, ANNA, "p", None, 0, [], [Move(A, "BOF", "EOF", 0)])
        assert db.sources.ask(again) == Published(0)


# -- upkeep


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> BrokerWorld:
    return BrokerWorld(monkeypatch)


async def load(broker: Broker, source: int, *ids: str) -> None:
    opened = [ShardOpen(each, each) for each in ids]
    await broker.sources.ask(OpenShards(source, ANNA, 60_000, opened))
    moves = [Move(each, "BOF", "EOF", 1) for each in ids]
    await broker.sources.ask(Publish(source, ANNA, ids[0], None, 0, [], moves))


async def count(broker: Broker, source: int) -> int:
    return len((await broker.sources.ask(ListFiles(source))).shards)


async def test_what_is_too_old_is_forgotten_by_itself_and_not_before_a_minute(
    world: BrokerWorld,
) -> None:
    broker = await world.open()
    made = await broker.sources.ask(OpenSource("s", "t", prune_age_ms=1000, horizon_ms=0))
    await load(broker, made.id, "s3://b/1", "s3://b/2")
    await world.pass_ms(broker, 1000)
    assert await count(broker, made.id) == 2, "debounced"
    await world.pass_ms(broker, PRUNE_MS - 1000)
    assert await count(broker, made.id) == 0
    await broker.close()


async def test_a_long_window_moves_on_by_itself(world: BrokerWorld) -> None:
    broker = await world.open()
    made = await broker.sources.ask(OpenSource("s", "t", prune_age_ms=600_000, horizon_ms=0))
    await load(broker, made.id, "s3://b/1")
    await world.pass_ms(broker, PRUNE_MS)
    await load(broker, made.id, "s3://b/2")
    await world.pass_ms(broker, 600_000 - PRUNE_MS)
    assert await count(broker, made.id) == 1
    await world.pass_ms(broker, PRUNE_MS)
    assert await count(broker, made.id) == 0
    await broker.close()


async def test_after_a_restart_windows_move_on(world: BrokerWorld) -> None:
    broker = await world.open(upkeep=False)
    made = await broker.sources.ask(OpenSource("s", "t", prune_age_ms=1000, horizon_ms=0))
    await load(broker, made.id, "s3://b/1")
    await broker.close()
    world.clock.pass_ms(5000)
    broker = await world.open()
    assert await count(broker, made.id) == 0
    await broker.close()


# -- a commit that is lost


async def test_a_publish_whose_commit_was_lost_is_repeated_without_harm(
    world: BrokerWorld,
) -> None:
    broker = await world.open(upkeep=False)
    source = (await broker.sources.ask(OpenSource("s", "t"))).id
    await broker.sources.ask(OpenShards(source, ANNA, 60_000, [ShardOpen(A, A)]))
    (staging,) = (await broker.sources.ask(BeginStaging(source, ANNA, 60_000, "k"))).stagings
    split = Split("x.parquet", 1, 1)
    publish = Publish(source, ANNA, "p", staging.id, 0, [split], [Move(A, "BOF", "EOF", 1)])
    for fault in (Fault(before=[Lose()]), Fault(after=[Lose()])):
        world.faults.next("commit", fault)
        with pytest.raises(UnavailableError):
            await broker.sources.ask(publish)
        await world.settle()
    assert await broker.sources.ask(publish) == Published(1)
    assert len((await broker.sources.ask(ListPublishes(source, 0))).rows) == 1
    await broker.close()
