"""Sources over the memory store: one tick per call, a clock that the test sets, the invariants
looked at after every test."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from penstock.broker.sources import SourceWrite, source_step
from penstock.source.check import check_sources
from penstock.source.lists import describe, files, publishes
from penstock.source.pruning import Pruned, prune_step
from penstock.source.requests import (
    AcquireShards,
    Ask,
    BeginStaging,
    ListFiles,
    ListPublishes,
    Move,
    OpenShards,
    OpenSource,
    Publish,
    Published,
    PublishRow,
    Refused,
    Shard,
    ShardOpen,
    SourceInfo,
    Split,
    Takeover,
)
from unit.log.driver import LogDriver, TickView

R = TypeVar("R")

ANNA, BERT, CARL = ("a" * 32, "b" * 32, "c" * 32)
STALE_MS = 120_000


class SourceDriver:
    def __init__(self, log: LogDriver) -> None:
        self.log = log
        self.clock = log.clock
        self.source = 0
        self._publishes = 0

    @classmethod
    async def open(cls, **options: Any) -> SourceDriver:
        driver = cls(await LogDriver.open())
        made = await driver.ask(OpenSource("events", "file:///tables/events", **options))
        driver.source = made.id
        return driver

    async def ask(self, request: Ask[R]) -> R:
        return cast(R, await self.log.do(source_step(cast(SourceWrite, request))))

    async def together(self, *requests: Ask[Any]) -> list[Any]:
        """In one tick: each sees what the earlier ones write."""
        return await self.log.submit(*(source_step(cast(SourceWrite, each)) for each in requests))

    async def sound(self) -> None:
        assert await check_sources(self.log.store) == []

    # -- shorter words for what nearly every test does

    async def open_shards(self, token: str, *ids: str, stale_ms: int = STALE_MS) -> list[Shard]:
        asked = OpenShards(self.source, token, stale_ms, [ShardOpen(each, each) for each in ids])
        return (await self.ask(asked)).shards

    async def open_shard(self, token: str, shard: str = "s3://b/a") -> Shard:
        (found,) = await self.open_shards(token, shard)
        return found

    async def acquire(self, token: str, old: str, shard: str = "s3://b/a") -> Shard:
        asked = AcquireShards(self.source, token, STALE_MS, [Takeover(shard, old)])
        (found,) = (await self.ask(asked)).shards
        return found

    async def stage(self, token: str, key: str = "") -> int:
        self._publishes += 1
        asked = BeginStaging(self.source, token, STALE_MS, key or f"staging {self._publishes}")
        (found,) = (await self.ask(asked)).stagings
        return found.id

    async def publish(
        self,
        token: str,
        *moves: Move,
        staging: int | None = None,
        splits: int = 1,
        publish_id: str = "",
        schema_version: int = 0,
    ) -> Published | Refused:
        return await self.ask(
            await self.publishing(
                token,
                *moves,
                staging=staging,
                splits=splits,
                publish_id=publish_id,
                schema_version=schema_version,
            )
        )

    async def publishing(
        self,
        token: str,
        *moves: Move,
        staging: int | None = None,
        splits: int = 1,
        publish_id: str = "",
        schema_version: int = 0,
    ) -> Publish:
        """The request, with a staging of its own unless it is given."""
        if staging is None and splits:
            staging = await self.stage(token)
        self._publishes += 1
        return Publish(
            self.source,
            token,
            publish_id or f"publish {self._publishes}",
            staging,
            schema_version,
            [Split(f"s{staging}-{i}.parquet", 1, 100) for i in range(splits)],
            list(moves),
        )

    async def files(self, **options: Any) -> list[Shard]:
        return (await files(TickView(self.log), ListFiles(self.source, **options))).shards

    async def file(self, shard: str = "s3://b/a") -> Shard:
        (found,) = [each for each in await self.files() if each.id == shard]
        return found

    async def info(self) -> SourceInfo:
        return await describe(TickView(self.log), "events")

    async def published(self, after: int = 0) -> list[PublishRow]:
        return (await publishes(TickView(self.log), ListPublishes(self.source, after))).rows

    async def prune(self) -> Pruned:
        return cast(Pruned, await self.log.do(prune_step(self.source)))


def whole(shard: str = "s3://b/a", rows: int = 1) -> Move:
    return Move(shard, "BOF", "EOF", rows)
