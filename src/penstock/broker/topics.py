"""Topic requests: pushing, tailing, supervising, looking.

Contract     Each method is one request of a door. What it replies with is durable. `push` and
             `join` make a missing topic (`push` not with `create=False`); everything else about one
             that does not exist is a NotFoundError.
Not here     Requests of consumers (topictails.py), what a request decides (topic/).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType

from penstock.broker.commit import Committer, Shown
from penstock.broker.queues import Queues
from penstock.broker.staged import must_stage, stage_bodies
from penstock.broker.topicanswers import (
    ConsumerInfo,
    Replay,
    ShardInfo,
    TopicError,
    TopicInfo,
    TopicStats,
)
from penstock.broker.topicjoint import PushJoints
from penstock.broker.topictails import ANSWER_BYTES, TopicTails
from penstock.clock import Clock
from penstock.codec.keys import KeyType, Kind, error_key, open_key, prefix_end, topic_prefix
from penstock.codec.node import Body, decode_node, node_value
from penstock.codec.topicerror import ErrorRow, decode_error
from penstock.errors import CorruptError, InvalidError, UnavailableError
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, list_names, load_name
from penstock.log.joint import may_join
from penstock.log.link import link_step
from penstock.log.seek import seek_time
from penstock.log.state import LogState
from penstock.stream.config import config_of
from penstock.stream.glob import compile_glob
from penstock.topic.admin import configure_step, delete_step
from penstock.topic.item import PreparedPush
from penstock.topic.look import members, shard_list, topic_counters
from penstock.topic.members import HEARTBEAT_MS, pause_step, rebalance_step, token_of
from penstock.topic.push import Pushed, make_step, push_step
from penstock.topic.read import read_messages
from penstock.topic.replay import replay_step
from penstock.topic.state import TopicState, missing, slots_of_row, topic_name, topic_state_key

__all__ = ["HEARTBEAT_MS", "Topics", "topic_name"]

ERRORS_MAX = 10_000


class Topics(TopicTails):
    def __init__(
        self, committer: Committer, cache: NodeCache, clock: Clock, queues: Queues
    ) -> None:
        super().__init__(committer, cache, clock, queues)
        self._joints = PushJoints(committer, self._keep)

    # -- producing

    async def push(
        self, name: LogName, push: PreparedPush, *, create: bool = True, slots: int | None = None
    ) -> range:
        """All of them in one commit (`topic.item.prepare_push` makes the batch). `slots` is for a
        topic that is made by this, None: 32; another number than the topic has is an
        InvalidError. -> their offsets"""
        if may_join(push.bodies):
            return await self._joints.push((name, create, slots), push)
        self._joints.close(name)
        if must_stage(push.bodies):
            return await self._push_staged(name, push, create=create, slots=slots)
        step = push_step(name, push, create=create, slots=slots)
        (pushed,) = await self._committer.submit(step)
        self._keep(pushed, push.bodies)
        offsets: range = pushed.offsets
        return offsets

    def _keep(self, pushed: Pushed, bodies: Sequence[Body]) -> None:
        """Where somebody will ask for them in this moment, spare him the way to the store. What an
        offset of a topic holds never changes, so they cannot be outdated."""
        state: TopicState | None = self._committer.states.get(topic_state_key(pushed.topic))
        if state is None or not state.consumers or state.head.paused:
            return
        first = pushed.offsets.start
        for body in bodies:
            value = node_value(body, first, pushed.time_ms)
            self._cache.keep(pushed.topic, decode_node(value, f"node {first}"), set())
            first += body.count

    async def _push_staged(
        self, name: LogName, push: PreparedPush, *, create: bool, slots: int | None
    ) -> range:
        """A large batch in commits that hold nobody up; the last, small one makes it visible. Its
        references come behind, some thousands at a time (topickeeping.py)."""
        make = make_step(name, create=create, slots=slots)
        await self._committer.submit(make)  # refused before anything is staged
        try:
            async with asyncio.timeout(self._committer.deadline):
                staging_id = await stage_bodies(self._committer, push.bodies)
                link = link_step(staging_id, [(name, [0])])
                _, (offsets,) = await self._committer.submit(make, link)
        except TimeoutError:
            raise UnavailableError(
                f"a batch of {push.size:,} bytes was not pushed in time", hint="push smaller ones"
            ) from None
        return offsets  # type: ignore[no-any-return]

    # -- supervising

    async def play(self, name: LogName) -> None:
        await self._committer.submit(pause_step(name, paused=False))

    async def rebalance(self, name: LogName) -> int:
        """Spread the slots evenly, now: running messages of those that move are fenced. -> how many
        slots moved"""
        (moved,) = await self._committer.submit(rebalance_step(name))
        return int(moved)

    async def replay(
        self,
        name: LogName,
        start: int,
        end: int | None = None,
        *,
        unit: Literal["offset", "time"] = "offset",
    ) -> Replay:
        """Deliver start <= message < end once more; times are ms since 1970, no end is now."""
        if unit == "time":
            if end is not None and end < start:
                raise InvalidError("a replay ends before it begins")

            _, log = await self._look(name)

            async def query(view: Shown) -> tuple[int, int | None]:
                low = await seek_time(view.store, log, start)
                return low, None if end is None else await seek_time(view.store, log, end)

            start, end = await self._committer.read(query)
        (begun,) = await self._committer.submit(replay_step(name, start, end))
        return Replay(begun.id, begun.first, begun.end)

    async def configure(
        self,
        name: LogName,
        *,
        max_count: int | UnsetType | None = UNSET,
        max_bytes: int | UnsetType | None = UNSET,
        max_age_ms: int | UnsetType | None = UNSET,
    ) -> None:
        """What the all-log keeps; None is no limit, and what is not given stays as it is. What is
        not acknowledged is kept in any case."""
        await self._committer.submit(
            configure_step(name, max_count=max_count, max_bytes=max_bytes, max_age_ms=max_age_ms)
        )

    async def delete(self, name: LogName) -> bool:
        """-> whether there was such a topic"""
        (existed,) = await self._committer.submit(delete_step(name))
        return bool(existed)

    # -- looking

    async def names(self, pattern: str = "*") -> list[str]:
        matches = compile_glob(pattern)

        async def query(view: Shown) -> list[str]:
            return [name async for name, _ in list_names(view.store, Kind.TOPIC) if matches(name)]

        return await self._committer.read(query)

    async def describe(self, name: LogName) -> TopicInfo:
        async def query(view: Shown) -> TopicInfo:
            row = (await load_name(view, name)).row
            if row is None:
                raise missing(name)
            config = config_of(row)
            return TopicInfo(
                name.name.decode(),
                slots_of_row(row),
                row.created_at_ms,
                config.max_count,
                config.max_bytes,
                config.max_age_ms,
            )

        return await self._committer.read(query)

    async def stats(self, name: LogName) -> TopicStats:
        state, log = await self._look(name)
        counters = topic_counters(state, log)
        return TopicStats(
            inserted=counters.inserted,
            routed=counters.routed,
            emitted=counters.emitted,
            acked=counters.acked,
            errored=counters.errored,
            redelivered=counters.redelivered,
            replayed=counters.replayed,
            waiting=counters.waiting,
            running=counters.running,
            replays=len(state.replays),
            consumers=len(state.consumers),
            shards=len(shard_list(state)),
            slots=state.slots,
            paused=state.head.paused,
            first=log.first,
            next=log.next,
        )

    async def consumers(self, name: LogName) -> list[ConsumerInfo]:
        state, _ = await self._look(name)
        return [
            ConsumerInfo(
                member.name,
                member.slots,
                self.signs.known_ms(state.id, token_of(state.id, member.number))
                or member.joined_ms,
                member.zombie,
                member.heartbeat_ms,
            )
            for member in members(state)
        ]

    async def shards(self, name: LogName) -> list[ShardInfo]:
        state, _ = await self._look(name)
        return [
            ShardInfo(
                slot=each.slot,
                generation=each.generation,
                consumer=each.consumer,
                owner=each.owner,
                draining=each.draining,
                first=each.first,
                end=each.end,
                inserted=each.counters.inserted,
                routed=each.counters.routed,
                emitted=each.counters.emitted,
                acked=each.counters.acked,
                errored=each.counters.errored,
                redelivered=each.counters.redelivered,
                replayed=each.counters.replayed,
                running=each.counters.running,
            )
            for each in shard_list(state)
        ]

    async def errors(
        self, name: LogName, start: int = 0, count: int = 1000, *, job: int = 0
    ) -> list[TopicError]:
        """Failures of handlers, by offset and replay, from `start` and `job` on: at most so many,
        and fewer where their messages are large; none at the end alone."""
        if start < 0 or count < 0 or job < 0:
            raise InvalidError("start, count and replay are not negative")
        while True:
            state, log = await self._look(name)
            try:
                return await self._errors(state, log, (start, job), count)
            except CorruptError:
                topic, now = await self._look(name)
                if (topic.id, now.first) == (state.id, log.first):
                    raise
                # It was trimmed or made anew since: what is gone now is no more than that.

    async def _errors(
        self, state: TopicState, log: LogState, start: tuple[int, int], count: int
    ) -> list[TopicError]:
        async def query(view: Shown) -> list[TopicError]:
            low = error_key(state.id, *start)
            high = prefix_end(topic_prefix(KeyType.ERROR, state.id))
            rows: list[tuple[int, int, ErrorRow]] = []
            async for part in view.store.scan(low, high):
                rows += [(*_error_place(key), decode_error(value)) for key, value in part]
                if len(rows) >= min(count, ERRORS_MAX):
                    break
            return await _errors(view, log, rows[: min(count, ERRORS_MAX)], self._cache)

        return await self._committer.read(query)


def _error_place(key: bytes) -> tuple[int, int]:
    """-> (offset, space)"""
    reader = open_key(key, KeyType.ERROR)
    reader.u64_key("topic id")
    found = reader.u64_key("offset"), reader.u64_key("space")
    reader.end()
    return found


async def _errors(
    view: Shown, log: LogState, rows: Sequence[tuple[int, int, ErrorRow]], cache: NodeCache
) -> list[TopicError]:
    offsets = np.unique(np.array([offset for offset, _, _ in rows], np.int64))
    there = offsets[offsets >= log.first]
    found = await read_messages(view.store, log, there, cache=cache, size_max=ANSWER_BYTES)
    if len(found.data) < len(there):
        # The rest is for another request, which begins there.
        rows = [row for row in rows if row[0] < there[len(found.data)]]
        there = there[: len(found.data)]
    contents = dict(zip(there.tolist(), zip(found.keys, found.data, strict=True), strict=True))
    gone: tuple[bytes, bytes | None] = b"", None
    errors: list[TopicError] = []
    room = ANSWER_BYTES
    for offset, space, row in rows:
        shard_key, data = contents.get(offset, gone)
        room -= len(data or b"")
        if errors and room < 0:
            break  # one message may have failed in many replays
        errors.append(
            TopicError(
                offset=offset,
                shard_key=shard_key,
                data=data,
                time_ms=row.time_ms,
                consumer=row.consumer,
                error=row.error,
                attempts=row.attempts,
                final=row.final,
                job=space,
            )
        )
    return errors
