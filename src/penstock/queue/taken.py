"""Which messages are still needed: how many queues took each, and are not done with it.

Contract     `Taken` collects what one draft does: messages are taken by queues, released by them,
             gone. Pages over the offsets of the metadata log (codec/taken.py), changed by
             operations like those of queues. What dies here is removed in the background
             (reclaim.py), and only there.
Settings     `reclaim` is an option of the metadata log: "done" (default) lets go of a message once
             every queue that took it is done with it; "retention" keeps it until its retention.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from penstock.codec.keys import Kind, head_key, page_key
from penstock.codec.operations import Operation, Owner, PagedView
from penstock.codec.queueoperation import Keys
from penstock.codec.taken import (
    DEAD,
    TakenOperation,
    TakenPage,
    applied,
    decode_taken_head,
    decode_taken_operation,
    decode_taken_page,
    empty_page,
    encode_taken_operation,
    touched,
)
from penstock.log.catalogue import LogName, NameState, States, load_name
from penstock.log.decision import StateKey, Timer, View
from penstock.log.state import LogState
from penstock.log.state import state_key as log_state_key
from penstock.queue.arrays import rising

#: The metadata log of RFC 0001; no command that names streams can reach it.
METADATA = LogName(Kind.INTERNAL, b"opendata-queue/messages/metadata")

#: Dead messages wait so long, so that many of a page are removed together.
RECLAIM_MS = 1000

Reclaim = Literal["done", "retention"]


class TakenHead(msgspec.Struct, frozen=True):
    sequence: int


def owner_of(log_id: int) -> Owner:
    return Owner(PagedView.TAKEN, log_id)


def head_state_key(log_id: int) -> StateKey:
    return ("taken", log_id)


def page_state_key(log_id: int, number: int) -> StateKey:
    return ("taken page", (log_id, number))


def reclaim_due(number: int, at_ms: int) -> Timer:
    return Timer(at_ms, ("reclaim", number))


def reclaim_of(name: NameState) -> Reclaim:
    options = {} if name.row is None else dict(name.row.options)
    return "retention" if options.get("reclaim") == "retention" else "done"


async def load_head(view: View, log_id: int) -> TakenHead:
    head: TakenHead | None = view.state(head_state_key(log_id))
    if head is None:
        # Before the row: one that is written meanwhile contains what leaves the tail by that.
        operations = view.operations(owner_of(log_id))
        value = await view.store.get(head_key(log_id))
        sequence = 0 if value is None else decode_taken_head(value)
        for operation in operations:
            sequence = max(sequence, operation.sequence)
        head = TakenHead(sequence)
        view.keep(head_state_key(log_id), head)
    return head


async def load_taken_page(view: View, log_id: int, number: int) -> TakenPage:
    page: TakenPage | None = view.state(page_state_key(log_id, number))
    if page is None:
        none = empty_page(number)
        log: LogState | None = view.state(log_state_key(log_id))
        if log is not None and none.first >= log.next:
            return none  # behind every message: nobody took anything there
        operations = view.operations(owner_of(log_id))  # before the row, as in `load_head`
        value = await view.store.get(page_key(log_id, number))
        page = none if value is None else decode_taken_page(number, value)
        for operation in operations:
            if operation.sequence > page.sequence and number in pages_of(operation):
                body = decode_taken_operation(operation.body)
                page = applied(page, body, operation.sequence)
        view.keep(page_state_key(log_id, number), page)
    return page


def pages_of(operation: Operation) -> frozenset[int]:
    if operation.pages is None:
        pages = frozenset(touched(decode_taken_operation(operation.body)))
        msgspec.structs.force_setattr(operation, "pages", pages)
        return pages
    return operation.pages


class Taken:
    """What one draft does to takers."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._log_id: int | None = None
        self._head = TakenHead(0)
        self._pages: dict[int, TakenPage] = {}
        self._operation = TakenOperation()
        self._some = False  # something is in it
        self.timers: list[Timer] = []

    async def take(self, log_id: int, offsets: Keys, counts: Keys) -> None:
        """So many queues took each of these; rising. Those without a taker need no mention."""
        some = counts > 0
        if not some.all():
            offsets, counts = offsets[some], counts[some]
        if len(offsets):
            await self._do(
                log_id,
                TakenOperation(taken=offsets.astype(np.uint64), counts=counts.astype(np.uint16)),
            )

    async def release(self, offsets: Keys) -> None:
        """A queue is done with these. Whether they may go then is asked when they are removed: the
        setting may change."""
        name = await load_name(self._view, METADATA)
        assert name.row is not None, "a queue has messages of this log"
        if len(offsets):
            await self._do(name.row.id, TakenOperation(released=np.sort(offsets)))

    async def remove(self, log_id: int, offsets: Keys) -> None:
        """Payload and metadata of these are gone."""
        if len(offsets):
            await self._do(log_id, TakenOperation(gone=rising(offsets)))

    async def _do(self, log_id: int, operation: TakenOperation) -> None:
        if self._log_id is None:
            self._head = await load_head(self._view, log_id)
            self._log_id = log_id
        for number in touched(operation):
            page = self._pages.get(number) or await load_taken_page(self._view, log_id, number)
            self._pages[number] = applied(page, operation, page.sequence)
            if len(operation.released) and (self._pages[number].slots == DEAD).any():
                self.timers.append(reclaim_due(number, self._view.now_ms + RECLAIM_MS))
        self._operation = _merged(self._operation, operation) if self._some else operation
        self._some = True

    def finish(self) -> tuple[tuple[Operation, ...], States]:
        if self._log_id is None:
            return (), {}
        log_id, sequence = self._log_id, self._head.sequence + 1
        states: States = {head_state_key(log_id): TakenHead(sequence)}
        for number, page in self._pages.items():
            states[page_state_key(log_id, number)] = msgspec.structs.replace(
                page, sequence=sequence
            )
        body = encode_taken_operation(self._operation)
        pages = frozenset(self._pages)
        return (Operation(owner_of(log_id), sequence, body, pages),), states


def _merged(first: TakenOperation, second: TakenOperation) -> TakenOperation:
    """Both as one. A draft takes, or releases, or removes; each message once in each."""
    taken = np.concatenate((first.taken, second.taken))
    order = np.argsort(taken)
    released = np.concatenate((first.released, second.released))
    unique, times = np.unique(released, return_counts=True)
    assert (times <= 1).all(), "two queues release in two requests"
    return TakenOperation(
        taken[order],
        np.concatenate((first.counts, second.counts))[order],
        unique,
        np.union1d(first.gone, second.gone) if len(second.gone) else first.gone,
    )


def offsets_of(page: TakenPage, value: int) -> Keys:
    """Offsets on this page whose takers are this."""
    found: Keys = np.flatnonzero(page.slots == value).astype(np.uint64) + np.uint64(page.first)
    return found
