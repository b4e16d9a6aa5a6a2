"""A draft: what one request does to the rows of a source, put together before it is decided.

Contract     `draft_step(body)` makes a step of a coroutine. The body runs in `load`, so it may read
             rows as it needs them; it changes nothing but the draft. `decide` hands the draft over
             as a decision: load and decide of a step run back to back within their tick, so that
             what the body saw, the tick's earlier writes included, is what it is decided on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from penstock.codec.keys import ended_key, shard_key, source_key, splits_key
from penstock.codec.shard import ShardRow, decode_shard, encode_shard
from penstock.codec.source import SETTINGS, SourceRow, decode_source, encode_source
from penstock.codec.splits import SplitsRow, decode_splits, encode_splits
from penstock.errors import NotFoundError
from penstock.log.catalogue import States
from penstock.log.decision import Decision, Now, StateKey, Step, Timer, View
from penstock.log.place import Rows

#: Terminal shards are looked at for pruning at most so often, however many processes end some.
PRUNE_MS = 60_000


def prune_key(source_id: int) -> StateKey:
    return ("prune", source_id)


class Draft:
    def __init__(self, view: View) -> None:
        self.view = view
        self.now_ms = view.now_ms
        self.rows: Rows = {}
        self.states: States = {}
        self.timers: list[Timer] = []
        self._sources: dict[int, SourceRow] = {}

    async def row(self, key: bytes) -> bytes | None:
        if key in self.rows:
            return self.rows[key]
        await self.view.fetch(key)
        return self.view.row(key)

    async def source(self, source_id: int) -> SourceRow:
        if source_id not in self._sources:
            value = await self.row(source_key(source_id, SETTINGS))
            if value is None:
                raise NotFoundError(f"there is no source {source_id}")
            self._sources[source_id] = decode_source(value)
        return self._sources[source_id]

    def put_source(self, source_id: int, row: SourceRow) -> None:
        """Encoded once, with the decision: a publish may count thousands of shards in it."""
        self._sources[source_id] = row
        self.rows[source_key(source_id, SETTINGS)] = None

    async def shard(self, source_id: int, identity: str) -> ShardRow | None:
        value = await self.row(shard_key(source_id, identity.encode()))
        return None if value is None else decode_shard(value)

    async def shards(self, source_id: int, ids: Sequence[str]) -> list[ShardRow | None]:
        return [await self.shard(source_id, each) for each in ids]

    async def put_shard(
        self, source_id: int, identity: str, row: ShardRow, before: ShardRow | None
    ) -> None:
        """With the index of terminal ones, and the source's counts of them."""
        key = identity.encode()
        self.rows[shard_key(source_id, key)] = encode_shard(row)
        was, ends = before is not None and before.terminal, row.terminal
        if before is not None and was:
            self.rows[ended_key(source_id, before.updated_ms, key)] = None
        if ends:
            self.rows[ended_key(source_id, row.updated_ms, key)] = b""
            self.timers.append(Timer(self.now_ms + PRUNE_MS, prune_key(source_id)))
        if was or ends:
            source = counted(await self.source(source_id), before, -1)
            self.put_source(source_id, counted(source, row, 1))

    async def drop_shard(self, source_id: int, identity: str, before: ShardRow) -> None:
        key = identity.encode()
        self.rows[shard_key(source_id, key)] = None
        self.rows[ended_key(source_id, before.updated_ms, key)] = None
        self.put_source(source_id, counted(await self.source(source_id), before, -1))

    async def staging(self, source_id: int, staging_id: int) -> SplitsRow | None:
        value = await self.row(splits_key(source_id, staging_id))
        return None if value is None else decode_splits(value)

    def put_staging(self, source_id: int, staging_id: int, row: SplitsRow) -> None:
        self.rows[splits_key(source_id, staging_id)] = encode_splits(row)

    def decision(self, reply: Any) -> Decision:
        for source_id, row in self._sources.items():
            if (key := source_key(source_id, SETTINGS)) in self.rows:
                self.rows[key] = encode_source(row)
        return Decision(reply, self.rows, self.states, tuple(self.timers))


def counted(source: SourceRow, shard: ShardRow | None, by: int) -> SourceRow:
    """The source with so many more terminal shards like this one."""
    if shard is None or not shard.terminal:
        return source
    if shard.phase is shard.phase.EOF:
        return msgspec.structs.replace(source, done=source.done + by)
    return msgspec.structs.replace(source, failed=source.failed + by)


Body = Callable[[Draft], Awaitable[Any]]


def draft_step(body: Body, size: int = 0) -> Step:
    drafts: list[tuple[Draft, Any]] = []

    async def load(view: View) -> None:
        draft = Draft(view)
        drafts[:] = [(draft, await body(draft))]

    def decide(view: View, now: Now) -> Decision:
        draft, reply = drafts[0]
        assert draft.now_ms == now.ms, "decided in the tick that loaded it"
        return draft.decision(reply)

    return Step(decide, load, size)
