"""Upkeep of queues: leases that end, retention, backfills, the router, removing dead messages.

Contract     Chores for upkeep.py, by the first part of a timer's key:
                 ("lease", name)        a lease of this queue ended
                 ("retention", name)    messages of it expired, or done entries did
                 ("backfill", name)     a new queue that wants what was there before it
                 ("router", None)       messages were linked without routing
                 ("messages", None)     messages reached the end of their retention
                 ("reclaim", page)      messages that every queue is done with
                 ("orphans", None)      objects whose message was never committed
             With None in the place of the id each finds in the rows what timers would have told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.broker.commit import Committer, Shown
from penstock.clock import Clock
from penstock.codec.keys import (
    KeyType,
    Kind,
    open_key,
    pages_prefix,
    payload_key,
    prefix,
    prefix_end,
)
from penstock.codec.queueoperation import NO_KEYS, Keys
from penstock.codec.router import decode_expiry, decode_expiry_key
from penstock.codec.taken import DEAD, PAGE_SLOTS, TakenPage, decode_taken_page
from penstock.errors import ConflictError, NotFoundError
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, list_names, load_name, open_target
from penstock.log.decision import StateKey, Step, Timer
from penstock.log.evict import evict_step
from penstock.log.holes import plan_holes
from penstock.log.state import LogState
from penstock.queue.expire import clear_step
from penstock.queue.message import Fresh
from penstock.queue.reclaim import (
    Plan,
    dead_end,
    forget_pages_step,
    living_edge,
    plan_reclaim,
    reclaim_step,
    without,
)
from penstock.queue.route import backfill_step, catch_up_step
from penstock.queue.state import load_queue, queue_name
from penstock.queue.taken import (
    METADATA,
    load_taken_page,
    offsets_of,
    owner_of,
    page_state_key,
    pages_of,
    reclaim_due,
)
from penstock.queue.timers import backfill_due, queue_timers
from penstock.store.objects import Objects

#: Expired messages stay so long, for who claimed them in the last moment and is still reading.
GRACE_MS = 10_000
#: Objects without a message are left alone for so long: it may be about to be committed.
ORPHAN_MS = 3_600_000
EXPIRY_ROWS = 256
#: Pages of dead messages that go together.
RECLAIM_PAGES = 4


class QueueKeeping:
    def __init__(
        self,
        cache: NodeCache,
        clock: Clock,
        objects: Objects,
        fresh: Fresh,
        remind: Callable[[list[Timer]], None],
    ) -> None:
        self._cache = cache
        self._fresh = fresh
        self._clock = clock
        self._objects = objects
        self._remind = remind
        #: Objects, and when they were first seen.
        self._seen_s: dict[int, float] = {}
        self.chores = {
            "lease": self._clear,
            "retention": self._clear,
            "backfill": self._backfill,
            "router": self._route,
            "messages": self._expire_messages,
            "reclaim": self._reclaim,
            "orphans": self._collect_orphans,
        }

    async def _clear(self, committer: Committer, what: StateKey) -> None:
        if what[1] is None:
            if what[0] == "lease":
                await self._find(committer)
            return
        name = LogName(Kind.QUEUE, str(what[1]).encode())
        if not await _exists(committer, name):
            return
        more = True
        while more:
            (more,) = await committer.submit(clear_step(name))

    async def _find(self, committer: Committer) -> None:
        """Every queue: when its leases end, what expires, what its backfill still wants."""

        async def names(view: Shown) -> list[str]:
            return [name async for name, _ in list_names(view.store, Kind.QUEUE)]

        for name in await committer.read(names):

            async def timers(view: Shown, name: str = name) -> list[Timer]:
                try:
                    return queue_timers(await load_queue(view, queue_name(name)))
                except NotFoundError:
                    return []  # deleted since; the others are looked at all the same

            self._remind(await committer.read(timers))

    async def _backfill(self, committer: Committer, what: StateKey) -> None:
        if what[1] is None:
            return  # found with the leases
        name = LogName(Kind.QUEUE, str(what[1]).encode())
        if await _exists(committer, name):
            (more,) = await committer.submit(backfill_step(name, self._cache))
            if more:
                self._remind([backfill_due(str(what[1]))])  # others have their turn in between

    async def _route(self, committer: Committer, what: StateKey) -> None:
        more, some = True, False
        while more:
            (more,) = await committer.submit(catch_up_step(self._cache))
            some = some or more
        if some:
            # What died before the router came to it was left alone until now.
            self._remind(await committer.read(_pages_with_dead))

    # -- removing messages

    async def _expire_messages(self, committer: Committer, what: StateKey) -> None:
        """Those of many rows together, and then others have their turn."""
        rows, next_ms = await committer.read(_expired)
        if rows:
            offsets = np.unique(np.concatenate([offsets for _, offsets in rows]))
            await self._remove(committer, offsets, [key for key, _ in rows])
            await self._move_edge(committer)
        if next_ms is not None:
            self._remind([Timer(next_ms + GRACE_MS + 1, ("messages", None))])

    async def _reclaim(self, committer: Committer, what: StateKey) -> None:
        number = what[1]
        if number is None:
            self._remind(await committer.read(_pages_with_dead))
            return
        assert isinstance(number, int)

        async def dead(view: Shown) -> Keys:
            log = await open_target(view, METADATA)
            end = await dead_end(view)
            if log is None or (number + 1) * PAGE_SLOTS <= log.first or not end:
                return NO_KEYS
            parts = [offsets_of(await load_taken_page(view, log.log_id, number), DEAD)]
            for following in range(number + 1, number + RECLAIM_PAGES):
                page: TakenPage | None = view.state(page_state_key(log.log_id, following))
                if page is None or (page.slots < DEAD).any():
                    break
                # All of it is dead, so there is nothing to wait for.
                parts.append(offsets_of(page, DEAD))
            found = np.concatenate(parts)
            return found[found < np.uint64(end)]

        offsets = await committer.read(dead)
        if len(offsets):
            await self._remove(committer, offsets)
        await self._move_edge(committer)

    async def _remove(
        self, committer: Committer, offsets: Keys, rows: Sequence[bytes] = ()
    ) -> None:
        """Payloads and metadata of these; `rows`, which asked for it, go with the last of them."""
        after_ms = max((decode_expiry_key(key)[0] for key in rows), default=-1)
        while True:

            async def plan(
                view: Shown, offsets: Keys = offsets
            ) -> tuple[int, Plan, Any, list[Step]] | None:
                log = await open_target(view, METADATA)
                if log is None:
                    return None
                offsets = offsets[offsets >= log.first]
                found = await plan_reclaim(view, log.log_id, offsets, self._cache, self._fresh)
                edge = await living_edge(view, log, found.offsets)
                moved = _move(log, edge)
                # What is evicted in the same commit needs no holes.
                kept = found.offsets[found.offsets >= edge] if moved else found.offsets
                holes = await plan_holes(view.store, log, kept.tolist())
                return log.log_id, found, holes, moved

            planned = await committer.read(plan)
            if planned is None:
                return
            log_id, found, (punch, unpunched), moved = planned
            rest = offsets[offsets > found.offsets[-1]] if len(found.offsets) else offsets[:0]
            asked = () if len(rest) else rows
            step = reclaim_step(
                log_id,
                without(found.offsets, unpunched),
                punch,
                payloads=found.rows,
                done=() if unpunched else asked,
                after_ms=after_ms,
            )
            try:
                again, *_ = await committer.submit(step, *moved)
            except ConflictError:
                continue  # it came into a tick that began long ago; the next one is younger
            for number in found.objects:
                await self._objects.delete(number)
            await self._punch(committer, [*again, *unpunched], asked)
            offsets = rest
            if not len(offsets):
                return

    async def _punch(self, committer: Committer, left: list[int], rows: Sequence[bytes]) -> None:
        """The metadata of these, whose payloads went already; `rows` go with the last of them."""
        while left:

            async def plan(view: Shown, left: list[int] = left) -> Any:
                log = await open_target(view, METADATA)
                return None if log is None else (log, await plan_holes(view.store, log, left))

            planned = await committer.read(plan)
            if planned is None:
                return
            log, (punch, unpunched) = planned
            offsets = np.unique(np.array(left, np.uint64))
            offsets = without(offsets[offsets >= log.first], unpunched)
            step = reclaim_step(log.log_id, offsets, punch, done=() if unpunched else rows)
            (again,) = await committer.submit(step)
            left = [*again, *unpunched]

    async def _move_edge(self, committer: Committer) -> None:
        """Evict from the metadata log what is gone at its beginning."""

        async def plan(view: Shown) -> list[Step]:
            log = await open_target(view, METADATA)
            return [] if log is None else _move(log, await living_edge(view, log))

        steps = await committer.read(plan)
        if steps:
            await committer.submit(*steps)

    # -- objects

    async def _collect_orphans(self, committer: Committer, what: StateKey) -> None:
        """Objects whose message was never committed: their broker died in between."""
        self._remind([Timer(committer.now_ms() + ORPHAN_MS, ("orphans", None))])
        # Not by the wall clock, which may jump while a message is on its way.
        now_s = self._clock.monotonic()
        numbers = await self._objects.numbers()
        self._seen_s = {number: self._seen_s.get(number, now_s) for number in numbers}
        for number in numbers:
            old = now_s - self._seen_s[number] >= ORPHAN_MS / 1000
            if old and not await committer.read(
                lambda view, number=number: _has_payload(view, number)  # type: ignore[misc]
            ):
                await self._objects.delete(number)


def _move(log: LogState, edge: int) -> list[Step]:
    """Steps that evict what lies below this edge, if it is a page of takers at least."""
    low, high = log.first // PAGE_SLOTS, edge // PAGE_SLOTS
    if low == high:
        return []
    return [evict_step(METADATA, up_to=edge - 1), forget_pages_step(log.log_id, low, high)]


async def _has_payload(view: Shown, number: int) -> bool:
    return await view.store.get(payload_key(number)) is not None


async def _exists(committer: Committer, name: LogName) -> bool:
    async def query(view: Shown) -> bool:
        return (await load_name(view, name)).row is not None

    return await committer.read(query)


async def _expired(view: Shown) -> tuple[list[tuple[bytes, Keys]], int | None]:
    """Rows whose deadline is over, with their offsets; and the first deadline after that."""
    due_ms = view.now_ms - GRACE_MS
    found: list[tuple[bytes, Keys]] = []
    low = prefix(KeyType.EXPIRY)
    async for rows in view.store.scan(low, prefix_end(low)):
        for key, value in rows:
            deadline_ms, first = decode_expiry_key(key)
            if deadline_ms >= due_ms:
                return found, deadline_ms
            count = decode_expiry(value)
            found.append((key, np.arange(first, first + count, dtype=np.uint64)))
            if len(found) >= EXPIRY_ROWS:
                return found, deadline_ms
    return found, None


async def _pages_with_dead(view: Shown) -> list[Timer]:
    log = await open_target(view, METADATA)
    if log is None:
        return []
    # Pages that operations touched may have no row yet.
    numbers = {
        number
        for operation in view.operations(owner_of(log.log_id))
        for number in pages_of(operation)
    }
    low = pages_prefix(log.log_id)
    async for rows in view.store.scan(low + b"\x00", prefix_end(low)):
        for key, value in rows:
            reader = open_key(key, KeyType.PAGE)
            reader.u64_key("owner id")
            number = reader.u64_key("page")
            if (decode_taken_page(number, value).slots == DEAD).any():
                numbers.add(number)
    return [reclaim_due(number, 0) for number in sorted(numbers)]
