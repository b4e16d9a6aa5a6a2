"""What must hold of queues at rest, and at the end: memory, rows and truth say the same.

Contract     `look` is asked inside `World.quiet`. `finish` ends a world: it looks, starts the
             broker again, looks again, and empties every queue.
Invariants   O7   what a broker answers is what the commits say; also a new broker, from rows alone
             O8   nobody waits while there is something for them, and they are served in turn
             O9   leases that ended are given up, what expired leaves, backfills end: also when
                  nobody asks
             O10  what a queue holds can be read; what nobody needs any more goes
             O11  every message comes to an end: done, failed, expired or purged, in each queue that
                  had to have it
             O12  check_queues finds nothing
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.broker.queueanswers import DoneMessage, FailedMessage, QueueMessage
from penstock.broker.queues import Queues
from penstock.codec.queueoperation import PageKind
from penstock.queue.check import check_queues
from penstock.queue.item import Item
from penstock.queue.state import queue_name
from penstock.queue.stats import Stats
from penstock.sim import queuetold as told
from penstock.sim.client import Client
from penstock.sim.oracle import PATIENCE, UPKEEP_SECONDS
from penstock.sim.peek import at_once, peek
from penstock.sim.queuelog import Queue
from penstock.sim.queues import ALL, CLAIM_CALLS, QueueCast, everything
from penstock.sim.world import World

T = TypeVar("T")

#: Timers are late by as much, in a calm world.
LATE_MS = 1000 * (PATIENCE - 1)
TURNS = "turns"


class QueueOracle(Client):
    def __init__(self, world: World, cast: QueueCast) -> None:
        super().__init__(world, "queue oracle")
        self.truth = world.queues
        self._plans = cast.plans

    async def look(self) -> None:
        await self._rest()
        now_ms = (await self.world.served()).now_ms()
        self._nobody_left(now_ms)
        for queue in self.truth.living():
            self._late(queue, now_ms)
            await self._stats(queue)
            await self._peek(queue)
            await self._lists(queue)
        self._removed(now_ms)
        self._readable((await self.world.served()).now_ms())
        self._rows()
        names = await self.insist_queues("queues", lambda queues: queues.names())
        if names != sorted(self.truth.names):
            self.fail(f"queues are {names}, truly {sorted(self.truth.names)}")

    def _rows(self) -> None:
        for finding in at_once(check_queues(peek(self.world.disk, self.world.clock))):
            self.fail(f"check: {finding.where}: {finding.what}")

    async def _rest(self) -> None:
        """Until one process has had its time."""
        while True:
            process = await self.world.served()
            epoch = process.epoch
            await asyncio.sleep(PATIENCE)
            # A process that lost the location while nobody asks it anything does not know.
            await self.insist_queues("queues", lambda queues: queues.names())
            head = self.world.disk.head.n
            if process.ready and process.epoch == epoch and process.applied_n == head:
                return

    async def _still(self, what: str, ask: Callable[[Queues], Awaitable[T]]) -> tuple[T, int, int]:
        """An answer that no commit came in between of, and the time before and after."""
        while True:
            n = self.world.disk.head.n
            result = await self.insist_queues(what, ask, calls=ALL)
            if n == self.world.disk.head.n:
                return result, self.began_ms, self.ended_ms

    # -- O8 and O9

    def _nobody_left(self, now_ms: int) -> None:
        now = self.world.loop.time()
        for name, blocked in self.world.blocked.items():
            if now - blocked.since < PATIENCE - 1 or not blocked.claims:
                continue
            if blocked.process is None or blocked.process.stopped:
                continue  # it can do nothing; its clients look for another broker (client/)
            queue = self.truth.queue(blocked.stream)
            if queue is None or queue.settings.paused:
                continue
            ready = queue.available(now_ms)
            due = [
                number
                for number, where in queue.holding(PageKind.AVAILABLE).items()
                if number in ready and where.visible_ms < now_ms - LATE_MS
            ]
            if due:
                self.fail(f"{name} waits since {blocked.since:.3f}, though {queue.name} has {due}")

    def _late(self, queue: Queue, now_ms: int) -> None:
        before_ms = now_ms - LATE_MS
        ended = [
            number
            for number, where in queue.holding(PageKind.IN_FLIGHT).items()
            if where.lease_ms < before_ms
        ]
        expired = [
            number
            for number, where in queue.holding(PageKind.AVAILABLE).items()
            if where.deadline_ms < before_ms
        ]
        keep_ms = 1000 * queue.settings.done_retention_s
        listed = [
            number
            for number, where in queue.holding(PageKind.DONE).items()
            if keep_ms and where.ended_ms + keep_ms < before_ms
        ]
        if ended or expired or listed:
            text = f"ended {ended}, expired {expired}, done long ago {listed}"
            self.fail(f"{queue.name} is left alone: {text}")
        if queue.head.backfill < queue.head.backfill_end:
            self.fail(f"{queue.name} waits for its backfill: {queue.head}")

    # -- O7

    async def _stats(self, queue: Queue) -> None:
        target = queue_name(queue.name)
        stats, began_ms, ended_ms = await self._still(
            f"stats {queue.name}", lambda queues: queues.stats(target)
        )
        available = queue.holding(PageKind.AVAILABLE)
        low, high = len(queue.available(began_ms)), len(queue.available(ended_ms))
        head = queue.head
        truth = Stats(
            available=min(max(stats.available, low), high),
            delayed=len(available) - stats.available,
            in_flight=len(queue.holding(PageKind.IN_FLIGHT)),
            done=len(queue.holding(PageKind.DONE)),
            failed=len(queue.holding(PageKind.FAILED)),
            routed=head.routed,
            acked=head.done,
            expired=head.expired,
            purged=head.purged,
            paused=queue.settings.paused,
            backfilling=False,
        )
        if stats != truth:
            self.fail(f"{queue.name} is told as {stats}, truly {truth}")
        info = await self.insist_queues("describe", lambda queues: queues.describe(target))
        settings = queue.settings
        got = (info.filter, info.priority, info.lease_ms, info.max_attempts, info.paused)
        wanted = (
            settings.filter_text,
            settings.priority_text,
            settings.lease_ms,
            settings.max_attempts,
            settings.paused,
        )
        if got != wanted:
            self.fail(f"{queue.name} is described as {info}, truly {wanted}")

    async def _peek(self, queue: Queue) -> None:
        target = queue_name(queue.name)
        found, began_ms, ended_ms = await self._still(
            f"peek {queue.name}", lambda queues: queues.peek(target, ALL)
        )
        ids = [message.id for message in found]
        first, last = queue.available(began_ms), queue.available(ended_ms)
        if ids not in (first, last) and not set(first) & set(last) <= set(ids) <= {*first, *last}:
            self.fail(f"{queue.name} shows {ids}, truly {first}")
        self._look_at(queue, found)

    def _look_at(self, queue: Queue, found: list[QueueMessage]) -> None:
        keys = [(message.priority, message.visible_at_ms, message.id) for message in found]
        if keys != sorted(keys):
            self.fail(f"{queue.name} shows {keys}")
        for message in found:
            where = queue.messages[message.id].where
            truth = self.truth.messages.by_id[message.id]
            wrong = "it left" if where is None else told.looks(truth, where, message)
            if wrong is not None:
                self.fail(f"{queue.name}: {wrong}")

    async def _lists(self, queue: Queue) -> None:
        target = queue_name(queue.name)

        async def done(queues: Queues) -> list[DoneMessage]:
            return await everything(queues, target, PageKind.DONE)

        async def failed(queues: Queues) -> list[FailedMessage]:
            return await everything(queues, target, PageKind.FAILED)

        listed, _, _ = await self._still(f"done of {queue.name}", done)
        got = {each.id: (each.done_at_ms, each.attempts) for each in listed}
        truth = queue.holding(PageKind.DONE)
        if got != {number: (w.ended_ms, w.attempts) for number, w in truth.items()}:
            self.fail(f"{queue.name}: done are {got}, truly {truth}")
        if len(got) != len(listed):
            self.fail(f"{queue.name}: somebody is done twice: {listed}")
        last, _, now_ms = await self._still(f"failed of {queue.name}", failed)
        self._failed(queue, last, now_ms)

    def _failed(self, queue: Queue, listed: list[FailedMessage], now_ms: int) -> None:
        truth = queue.holding(PageKind.FAILED)
        if sorted(each.id for each in listed) != sorted(truth):
            self.fail(f"{queue.name}: failed are {listed}, truly {truth}")
            return
        for each in listed:
            where, message = truth[each.id], self.truth.messages.by_id[each.id]
            got = (each.failed_at_ms, each.attempts, each.priority)
            payload = None if message.deadline_ms < now_ms else message.payload
            remembered = min(queue.messages[each.id].failures, self.world.limits["HISTORY_MAX"])
            same = got == (where.ended_ms, where.attempts, where.priority)
            if not same or each.payload != payload or len(each.history) != remembered:
                self.fail(f"{queue.name}: {each} failed, truly {where}, {remembered} attempts")

    # -- O10

    def _readable(self, now_ms: int) -> None:
        for queue in self.truth.living():
            kinds = (PageKind.AVAILABLE, PageKind.IN_FLIGHT, PageKind.FAILED)
            for number, where in queue.holding(*kinds).items():
                message = self.truth.messages.by_id[number]
                if where.deadline_ms < now_ms:
                    continue
                if self.truth.messages.payload(message) != message.payload:
                    self.fail(f"{queue.name} holds {message}, which cannot be read")

    def _removed(self, now_ms: int) -> None:
        limits = self.world.limits
        dead_ms = now_ms - LATE_MS - limits["RECLAIM_MS"]
        expired_ms = now_ms - LATE_MS - limits["GRACE_MS"]
        left = [
            message.id
            for message in self.truth.messages.by_id.values()
            if not message.gone
            and (
                (self.truth.reclaims and message.dead_ms is not None and message.dead_ms < dead_ms)
                or message.deadline_ms < expired_ms
            )
        ]
        if left:
            self.fail(f"nobody needs {left}, and they are still there")

    # -- the end

    async def finish(self) -> None:
        await self.look()
        await self._turns()
        await self.world.restart(kill=self.random.random() < 0.5)
        await self.look()
        for queue in self.truth.living():
            await self._drain(queue)
        await asyncio.sleep(UPKEEP_SECONDS)
        await self.look()
        await self.world.restart(kill=self.random.random() < 0.5)
        await asyncio.sleep(UPKEEP_SECONDS)
        await self.look()

    async def _drain(self, queue: Queue) -> None:
        """O11: whatever is held comes again, if only in the end."""
        target = queue_name(queue.name)
        await self.insist_queues(f"play {queue.name}", lambda queues: queues.play(target))
        until = self.world.loop.time() + 120
        while queue.holding(PageKind.AVAILABLE, PageKind.IN_FLIGHT):
            found = await self.insist_queues(
                f"drain {queue.name}",
                lambda queues: queues.claim(target, 7, wait_ms=2000, lease_ms=20_000),
                calls=CLAIM_CALLS + 1,
            )
            receipts = [message.receipt for message in found]
            if found:
                wrong = told.claimed(self.truth, queue.name, self.n, found)
                truths = await self.insist_queues(
                    f"ack {queue.name} {len(found)}",
                    lambda queues, receipts=receipts: queues.ack(target, receipts),  # type: ignore[misc]
                )
                if wrong is not None or not all(truths):
                    self.fail(f"{queue.name}: {wrong}, acknowledged {truths}")
            if self.world.loop.time() > until:
                held = queue.holding(PageKind.AVAILABLE, PageKind.IN_FLIGHT)
                self.fail(f"{queue.name} never ends: {held}")
                return

    async def _turns(self) -> None:
        """O8: who waits longest is served first, one message each."""
        target, process = queue_name(TURNS), await self.world.served()
        await self.insist_queues("create", lambda queues: queues.create(target, filter="false"))
        count = self.random.randrange(2, 6)
        served: list[int] = []

        async def wait(number: int) -> None:
            found = await process.call_queues(
                lambda queues: queues.claim(target, 1, wait_ms=None, lease_ms=3_600_000)
            )
            served.append(number)
            if len(found) != 1:
                self.fail(f"consumer {number} was served {found}")
            receipts = [message.receipt for message in found]
            await process.call_queues(lambda queues: queues.ack(target, receipts))

        tasks: list[asyncio.Task[None]] = []
        for number in range(count):
            tasks.append(asyncio.create_task(wait(number)))
            await asyncio.sleep(PATIENCE)  # until it stands in line: it looks the queue up before
        for i in range(count):
            item = Item(f"turns.{i}".encode(), to=TURNS, dedup_id=str(i))
            self.truth.messages.send([item], whole=False)
            await self.insist_queues(
                f"publish {item}",
                lambda queues, item=item: queues.publish([item]),  # type: ignore[misc]
            )
            await asyncio.sleep(PATIENCE)
        if served != list(range(count)):
            self.fail(f"{count} consumers waited in turn, and were served as {served}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
