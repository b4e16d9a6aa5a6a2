"""Writing pages behind the operations: groups, queues, takers, topics.

Contract     A chore for upkeep.py, ("pages", None): while the tail of operations is long
             (log/pages.py), the rows of the owners whose operations are the oldest are written,
             then the records that nobody needs go. `flush_queue` writes those of one queue now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.commit import Committer
from penstock.codec.operations import Owner, PagedView
from penstock.log.catalogue import LogName
from penstock.log.decision import StateKey, Timer
from penstock.log.pages import trim_step
from penstock.queue import flush as queues
from penstock.queue.expire import clear_step
from penstock.queue.state import load_queue, owner_of
from penstock.stream import flush as groups
from penstock.topic import flush as topics

PAGES: StateKey = ("pages", None)


class PageKeeping:
    def __init__(self, committer: Committer, remind: Callable[[list[Timer]], None]) -> None:
        self._committer = committer
        self._remind = remind
        self.chores = {"pages": self._write_pages}

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit."""
        if self._committer.tail.long:
            self._remind([Timer(0, PAGES)])

    async def _write_pages(self, committer: Committer, what: StateKey) -> None:
        tail = committer.tail
        while not tail.short:
            owner = tail.oldest()
            if owner is not None:
                tail.flushed(owner, await _flush(committer, owner))
            # At once: the tail is as long as its records, and they came meanwhile, too.
            while numbers := tail.unneeded():
                await committer.submit(trim_step(numbers))
                tail.trimmed(numbers)


async def flush_queue(committer: Committer, name: LogName) -> None:
    """Write what the queue's pages do not contain yet: before a checkpoint, so that its readers
    find little or nothing to apply. What time took away leaves first, so that they read what stats
    would say. The records stay until the chore trims them: one place does."""
    more = True
    while more:
        (more,) = await committer.submit(clear_step(name))
    queue = await committer.read(lambda view: load_queue(view, name))
    owner = owner_of(queue.id)
    if committer.tail.of(owner):
        committer.tail.flushed(owner, await _flush(committer, owner))


async def flush_topic(committer: Committer, topic_id: int) -> None:
    """The same of a topic: before its all-log is trimmed, which is held at what the rows need."""
    owner = Owner(PagedView.TOPIC, topic_id)
    if committer.tail.of(owner):
        committer.tail.flushed(owner, await _flush(committer, owner))


async def _flush(committer: Committer, owner: Owner) -> int | None:
    """-> the sequence that the rows contain now; None: the owner is gone"""
    operations = committer.tail.of(owner)
    exists: bool
    match owner.view:
        case PagedView.GROUP:
            group = groups.plan_flush(operations)
            for numbers in group.parts():
                await committer.submit(groups.pages_step(owner.id, numbers))
            (exists,) = await committer.submit(groups.head_step(owner.id))
            return group.sequence if exists else None
        case PagedView.QUEUE:
            queue = queues.plan_flush(operations)
            for places in queue.parts():
                await committer.submit(queues.pages_step(owner.id, places))
            (exists,) = await committer.submit(queues.head_step(owner.id))
            return queue.sequence if exists else None
        case PagedView.TAKEN:
            sequence, parts = queues.plan_taken_flush(operations)
            for part in parts:
                await committer.submit(queues.taken_pages_step(owner.id, part))
            await committer.submit(queues.taken_head_step(owner.id))
            return sequence
        case PagedView.TOPIC:
            topic = topics.plan_flush(operations)
            for references in topic.parts():
                await committer.submit(topics.pages_step(owner.id, references))
            (exists,) = await committer.submit(topics.head_step(owner.id))
            return topic.sequence if exists else None
