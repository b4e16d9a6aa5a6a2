"""Upkeep of streams: expiry in groups, retention, compaction.

Contract     Chores for upkeep.py, by the first part of a timer's key:
                 ("group", (log id, name))   entries of this group expired
                 ("retain", log id)          this stream has more than it should keep
                 ("compact", log id)         tags of this stream came again
             With None in the place of the id each finds in the rows what timers would have told.
             `changed` is told of every commit, and reminds the upkeep where a limit may be reached;
             at most once in a while per stream, so that a stream of small writes is not doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.broker.commit import Committer, Shown
from penstock.broker.pagekeeping import flush_topic
from penstock.codec.keys import KeyType, Kind, open_key, prefix, prefix_end
from penstock.codec.scalars import NEVER_MS
from penstock.log.cache import NodeCache
from penstock.log.catalogue import NameState, list_names
from penstock.log.decision import StateKey, Timer
from penstock.log.hold import lowest_hold
from penstock.log.holes import plan_holes
from penstock.log.state import LogState, load_log
from penstock.stream.compact import TAGS_MAX, compactable, learn, superseded
from penstock.stream.config import StreamConfig, config_of
from penstock.stream.deliver import deliver_step
from penstock.stream.retain import plan_retain
from penstock.stream.timers import compact_due, group_due, retain_due

#: How long after a write limits are looked at: many writes share one look.
RETAIN_MS = 500
COMPACT_MS = 1000
#: A topic keeps what is not acknowledged, whatever its limits say: look again.
TOPIC_MS = 5000
#: A compaction reads the whole stream: for each moment of work it rests so many.
COMPACT_REST = 10


class _Kept(msgspec.Struct):
    config: StreamConfig
    topic: bool = False
    compacted: int = 0  # everything below was compacted
    rest_ms: int = 0  # no compaction before


class Keeping:
    def __init__(
        self, committer: Committer, cache: NodeCache, remind: Callable[[list[Timer]], None]
    ) -> None:
        self._committer = committer
        self._cache = cache
        self._remind = remind
        self._kept: dict[int, _Kept] = {}
        self.chores = {
            "group": self._expire_group,
            "retain": self._retain,
            "compact": self._compact,
        }

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit."""
        for key, state in states.items():
            if key[0] == "name" and isinstance(state, NameState) and state.row is not None:
                assert isinstance(key[1], tuple)
                self._configured(key[1][0], state.row.id, config_of(state.row))
            elif key[0] == "log" and isinstance(key[1], int) and key[1] in self._kept:
                self._grown(key[1], state)

    def _configured(self, kind: Kind, log_id: int, config: StreamConfig) -> None:
        if not config.limits and not config.compact:
            self._kept.pop(log_id, None)
            return
        kept = self._kept.setdefault(log_id, _Kept(config, kind is Kind.TOPIC))
        kept.config = config
        self._remind([retain_due(log_id, 0), compact_due(log_id, 0)])

    def _grown(self, log_id: int, state: LogState | None) -> None:
        if state is None:
            del self._kept[log_id]
            return
        kept, now_ms = self._kept[log_id], self._committer.now_ms()
        timers: list[Timer] = []
        if kept.config.limits:
            timers.append(retain_due(log_id, now_ms + RETAIN_MS))
        if kept.config.compact and state.next > kept.compacted:
            timers.append(compact_due(log_id, max(now_ms + COMPACT_MS, kept.rest_ms)))
        if timers:
            self._remind(timers)

    # -- the chores

    async def _expire_group(self, committer: Committer, what: StateKey) -> None:
        if what[1] is None:
            self._remind(await committer.read(_all_groups))
            return
        assert isinstance(what[1], tuple)
        log_id, name = what[1]
        group = name.encode()
        moved = True
        while moved:
            step = deliver_step(log_id, group, 0, cache=self._cache, make=False)
            (delivered,) = await committer.submit(step)
            moved = delivered.moved
        if delivered.expire_ms != NEVER_MS:
            self._remind([group_due(log_id, name, delivered.expire_ms)])

    async def _retain(self, committer: Committer, what: StateKey) -> None:
        if what[1] is None:
            await self._find_configured(committer)
            return
        log_id = what[1]
        assert isinstance(log_id, int)
        kept = self._kept.get(log_id)
        if kept is None or not kept.config.limits:
            return
        now_ms = committer.now_ms()
        if kept.topic:
            await flush_topic(committer, log_id)

        async def query(view: Shown) -> Any:
            state = await load_log(view, log_id)
            if state is None:
                return None, None
            step, look_ms = await plan_retain(view.store, state, kept.config, now_ms)
            held = lowest_hold(state)
            if kept.topic and look_ms is None and held is not None and held < state.next:
                look_ms = now_ms + TOPIC_MS  # acknowledging does not change the log
            return step, look_ms

        step, look_ms = await committer.read(query)
        if step is not None:
            await committer.submit(step)
        if look_ms is not None:
            # At least a moment later: a hold may keep what is too old.
            self._remind([retain_due(log_id, max(look_ms, now_ms + RETAIN_MS))])

    async def _find_configured(self, committer: Committer) -> None:
        async def query(view: Shown) -> list[tuple[Kind, int, StreamConfig]]:
            return [
                (kind, row.id, config_of(row))
                for kind in (Kind.STREAM, Kind.TOPIC)
                async for _, row in list_names(view.store, kind)
                if row.options
            ]

        for kind, log_id, config in await committer.read(query):
            self._configured(kind, log_id, config)

    async def _compact(self, committer: Committer, what: StateKey) -> None:
        log_id = what[1]
        if log_id is None:
            return  # the look for limits finds these too
        assert isinstance(log_id, int)
        kept = self._kept.get(log_id)
        if kept is None or not kept.config.compact:
            return
        begun_ms = committer.now_ms()
        state = await committer.read(lambda view: load_log(view, log_id))
        # What comes meanwhile asks for a compaction of its own.
        goal = 0 if state is None else state.next
        while (low := kept.compacted) < goal:
            last: dict[bytes, int] = {}
            end = await self._learn(committer, log_id, low, goal, last)
            looked = await self._replace(committer, log_id, last, end)
            # What a hold kept is looked at again when the stream grows.
            kept.compacted = max(low, looked)
            if kept.compacted == low:
                break
        now_ms = committer.now_ms()
        kept.rest_ms = now_ms + COMPACT_REST * (now_ms - begun_ms)

    async def _learn(
        self, committer: Committer, log_id: int, low: int, high: int, last: dict[bytes, int]
    ) -> int:
        """As many tags as memory may hold. -> the end of what was looked at"""
        at = low
        while at < high and len(last) < TAGS_MAX:

            async def part(view: Shown, at: int = at) -> int:
                state = await load_log(view, log_id)
                return high if state is None else await learn(view.store, state, at, high, last)

            at = await committer.read(part)
        return at

    async def _replace(
        self, committer: Committer, log_id: int, last: dict[bytes, int], high: int
    ) -> int:
        """Take away what these tags replace. -> the end of what was looked at"""
        at, more = 0, True
        while more:

            async def part(view: Shown, at: int = at) -> tuple[list[int], int, bool]:
                state = await load_log(view, log_id)
                end = at if state is None else min(high, compactable(state))
                if state is None or at >= end:
                    return [], at, False
                dead, looked = await superseded(view.store, state, last, at, end)
                return dead, looked, looked < end

            dead, at, more = await committer.read(part)
            await self._punch(committer, log_id, dead)
        return at

    async def _punch(self, committer: Committer, log_id: int, dead: list[int]) -> None:
        left = dead
        while left:

            async def plan(view: Shown, offsets: list[int] = left) -> Any:
                state = await load_log(view, log_id)
                return (None, []) if state is None else await plan_holes(view.store, state, offsets)

            step, left = await committer.read(plan)
            if step is not None:
                (again,) = await committer.submit(step)
                left = [*again, *left]


async def _all_groups(view: Shown) -> list[Timer]:
    found: list[Timer] = []
    low = prefix(KeyType.GROUP)
    async for rows in view.store.scan(low, prefix_end(low)):
        for key, _ in rows:
            reader = open_key(key, KeyType.GROUP)
            log_id = reader.u64_key("log id")
            found.append(group_due(log_id, reader.terminated("name").decode(), 0))
    return found
