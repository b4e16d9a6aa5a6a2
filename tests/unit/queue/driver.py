"""A driver for tests of queues: steps on the memory store, one tick per call, a clock that is set.

Requests that a broker makes in parts are made in parts here too, so that a test can stop between
any two commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.codec.queueoperation import PageKind
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.queue.admin import create_step, delete_step, purge_step
from penstock.queue.check import check_queues
from penstock.queue.flush import (
    head_step,
    pages_step,
    plan_flush,
    plan_taken_flush,
    taken_head_step,
    taken_pages_step,
)
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.lease import (
    ack_step,
    claim_step,
    extend_step,
    fail_step,
    leases_of,
    release_step,
)
from penstock.queue.page import Page
from penstock.queue.publish import publish_step
from penstock.queue.receipt import LEASE
from penstock.queue.state import QueueState, load_page, load_queue, queue_name, read_lines
from penstock.queue.stats import Stats, stats_step
from penstock.store.memory import MemoryDisk
from unit.log.driver import LogDriver

Q = queue_name("q")


class Lease(NamedTuple):
    queue: int
    message_id: int
    number: int


class QueueDriver(LogDriver):
    @classmethod
    async def start(cls, disk: MemoryDisk | None = None, **options: Any) -> QueueDriver:
        """With the queue `q`, which fails at once and has no wait between attempts."""
        driver = await cls.open(disk)
        assert isinstance(driver, QueueDriver)
        if disk is None:
            await driver.create("q", **({"backoff": 0} | options))
        return driver

    async def create(self, name: str, start: Any = "new", **options: Any) -> int:
        step = create_step(queue_name(name), options, start=start, secret=bytes(32))
        return int(await self.do(step))

    async def publish(self, *items: Item | bytes, **options: Any) -> list[int]:
        batch = [item if isinstance(item, Item) else Item(item, **options) for item in items]
        published = await self.do(publish_step(PreparedBatch(batch)))
        return list(published.ids)

    async def claim(self, count: int, name: str = "q", **options: Any) -> list[Lease]:
        step = claim_step(queue_name(name), count, **({"consumer": "me"} | options))
        claimed = await self.do(step)
        return [Lease(*lease) for lease in leases_of(claimed.queue, claimed.entries).tolist()]

    async def ack(self, *leases: Lease, name: str = "q") -> list[bool]:
        return list(await self.do(ack_step(queue_name(name), np.array(list(leases), LEASE))))

    async def fail(self, *leases: Lease, **options: Any) -> list[bool]:
        return list(await self.do(fail_step(Q, np.array(list(leases), LEASE), **options)))

    async def release(self, *leases: Lease) -> list[bool]:
        return list(await self.do(release_step(Q, np.array(list(leases), LEASE))))

    async def extend(self, *leases: Lease, ms: int) -> list[bool]:
        return list(await self.do(extend_step(Q, np.array(list(leases), LEASE), ms)))

    async def stats(self, name: str = "q") -> Stats:
        stats: Stats = await self.do(stats_step(queue_name(name)))
        return stats

    async def purge(self) -> int:
        purged = await self.do(purge_step(Q))
        count: int = purged.count
        while purged.more:
            purged = await self.do(purge_step(Q, purged.bounds))
            count += purged.count
        return count

    async def delete(self, name: str = "q") -> bool:
        while (gone := await self.do(delete_step(queue_name(name)))) is None:
            pass
        return bool(gone)

    # -- rows

    async def queue(self, name: str = "q") -> QueueState:
        """From rows and operations alone."""
        return await load_queue(await self.rows_alone(), queue_name(name))

    async def rows_alone(self) -> RowView:
        tail = Tail()
        await tail.load(self.store)
        return RowView(self.store, tail)

    async def pages(self, kind: PageKind, name: str = "q") -> list[Page]:
        view = await self.rows_alone()
        state = await load_queue(view, queue_name(name))
        return [
            await load_page(
                view,
                state,
                kind,
                int(line["page"]),
                int(line["priority"]) if kind is PageKind.AVAILABLE else 0,
            )
            async for lines in read_lines(view, state, kind)
            for line in lines
        ]

    async def ids(self, kind: PageKind, name: str = "q") -> list[int]:
        return [i for page in await self.pages(kind, name) for i in page.entries["message_id"]]

    async def keys(self, kind: KeyType) -> list[bytes]:
        low = prefix(kind)
        found = self.store.scan(low, prefix_end(low))
        return [key async for rows in found for key, _ in rows]

    async def flush(self) -> None:
        """Everything: pages, heads; the records stay, as if it died before they were trimmed."""
        for owner in self.tail.owners():
            operations = self.tail.of(owner)
            if owner.view.name == "QUEUE":
                for part in plan_flush(operations).parts():
                    await self.do(pages_step(owner.id, part))
                await self.do(head_step(owner.id))
            else:
                for numbers in plan_taken_flush(operations)[1]:
                    await self.do(taken_pages_step(owner.id, numbers))
                await self.do(taken_head_step(owner.id))

    async def restarted(self) -> QueueDriver:
        """Another process, on the same rows."""
        driver = await QueueDriver.start(self.disk)
        driver.clock.ms = self.clock.ms
        await driver.tail.load(driver.store)
        return driver

    async def clean(self) -> None:
        assert await check_queues(self.store) == []


def small_pages(monkeypatch: pytest.MonkeyPatch, entries: int = 4) -> None:
    for module in ("page", "place", "expire"):
        monkeypatch.setattr(f"penstock.queue.{module}.PAGE_ENTRIES", entries)
    for module in ("page", "lease", "check"):
        monkeypatch.setattr(f"penstock.queue.{module}.FLIGHT_LEASES", entries)

    monkeypatch.setattr("penstock.queue.lines.SHEET_LINES", 3)


def messages(count: int, **options: Any) -> Sequence[Item]:
    return [Item(b"%d" % i, **options) for i in range(count)]
