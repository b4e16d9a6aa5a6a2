"""Reading ahead: what a queue gives next is in memory when it is asked for.

Contract     A claim whose messages are older than what memory has of the latest ones begins the
             read of those behind them, while the consumer handles its own. One read at a time.
             What it reads are caches: nothing is given to anybody, and a claim that comes earlier
             reads for itself.
Failures     are not told here: whoever claims these messages meets them again.
"""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np

from penstock.broker.commit import Committer, Shown
from penstock.broker.queuereading import Reading
from penstock.codec.queueoperation import PageKind, join
from penstock.codec.queuestate import AVAILABLE, Entries
from penstock.errors import PenstockError
from penstock.log.catalogue import LogName
from penstock.queue.state import QueueState, check_page, load_page, load_queue

#: Messages, from the next one on, and the pages where they are looked for.
AHEAD_COUNT = 8192
AHEAD_PAGES = 64


class Ahead:
    def __init__(self, committer: Committer, reading: Reading) -> None:
        self._committer = committer
        self._reading = reading
        #: How many messages are claimed before more is read: half of what was, as far as we know.
        self._left: dict[LogName, int] = {}
        self._task: asyncio.Task[None] | None = None

    def claimed(self, name: LogName, entries: Entries) -> None:
        if self._reading.are_fresh(entries):
            self._left.pop(name, None)
            return
        self._left[name] = self._left.get(name, 0) - len(entries)
        if self._left[name] < 0 and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._read(name))

    async def _read(self, name: LogName) -> None:
        async def query(view: Shown) -> int:
            entries = await _next(view, await load_queue(view, name), AHEAD_COUNT)
            read = await self._reading.ahead(view, entries)
            # Of all that there is nothing more is read before it is claimed.
            all_there_is = read == len(entries) < AHEAD_COUNT
            return read if all_there_is else read // 2

        try:
            self._left[name] = await self._committer.read(query)
        except PenstockError:
            self._left.pop(name, None)

    def forget(self, name: LogName) -> None:
        """The queue is deleted."""
        self._left.pop(name, None)

    def clear(self) -> None:
        """After a reopening, and at the end."""
        self._left.clear()
        if self._task is not None:
            self._task.cancel()


async def _next(view: Shown, state: QueueState, count: int) -> Entries:
    """About those that are claimed next. Commits go on beside this, so some may be missing and some
    come twice; who must know them takes a step (queue/peek.py). A page that is not as its line says
    ends this, so that memory does not keep it: claims look at those of the store alone."""
    told = state.lines[PageKind.AVAILABLE]
    lines, check = told.here(), partial(check_page, state.name, told)
    parts: list[Entries] = []
    for line in lines[lines["first_visible_ms"] <= view.now_ms][:AHEAD_PAGES]:
        if count <= 0:
            break
        number, priority = int(line["page"]), int(line["priority"])
        page = await load_page(view, state, PageKind.AVAILABLE, number, priority, check)
        entries = page.entries
        seen = entries[: np.searchsorted(entries["visible_at_ms"], view.now_ms, "right")]
        living = seen[seen["retention_deadline_ms"] >= view.now_ms][:count]
        parts.append(living)
        count -= len(living)
    return join(AVAILABLE, parts)
