"""Queues against dicts and lists (queue_model.py): every rule is done to both, through a broker.

After each rule everything is rebuilt from nothing but rows and operations and compared; what the
broker has in memory must say the same; and queue/check.py finds nothing. The upkeep is stopped: its
chores are rules, so that they run at any moment, and die at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.broker.broker import Broker
from penstock.codec.keys import KeyType, open_key, prefix, prefix_end
from penstock.codec.metadata import decode_metadata
from penstock.codec.operations import Owner, PagedView
from penstock.codec.payload import PayloadBlock, decode_payload
from penstock.codec.queueoperation import FORMS, LINES, PageKind, join
from penstock.codec.queuestate import HISTORY
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.catalogue import open_target
from penstock.log.check import check_log
from penstock.log.decision import Step
from penstock.log.pages import Tail, trim_step
from penstock.log.read import read
from penstock.log.rowview import RowView
from penstock.queue import flush
from penstock.queue.backoff import Backoff
from penstock.queue.check import check_queues
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.lease import (
    ack_step,
    claim_step,
    extend_step,
    fail_step,
    release_step,
)
from penstock.queue.lists import read_attempts
from penstock.queue.message import Fresh
from penstock.queue.page import Page
from penstock.queue.publish import publish_step
from penstock.queue.receipt import LEASE, Leases, make_receipts, open_receipts
from penstock.queue.state import QueueState, load_page, load_queue, queue_name, read_lines
from penstock.queue.stats import Stats
from penstock.queue.taken import METADATA
from penstock.store.memory import MemoryDisk, MemoryStore
from penstock.store.objects import MemoryObjects
from penstock.stream.check import check_groups
from property.queue_model import (
    DEDUP_MS,
    ENDED_PAGES,
    FILTERS,
    FLIGHT_LEASES,
    PRIORITIES,
    ROUTE_COUNT,
    Entry,
    Message,
    Model,
    Options,
    Queue,
    Receipt,
    deadline_of,
)
from unit.broker.driver import StepClock, upkeep_of

T = TypeVar("T")

NAMES = ["a", "b", "c\x00"]
PAGE_ENTRIES, PAGE_SLOTS, INLINE_BYTES = 4, 8, 50

#: So small that a few messages fill pages, blocks and parts of work.
SMALL = {
    "penstock.queue.page.PAGE_ENTRIES": PAGE_ENTRIES,
    "penstock.queue.place.PAGE_ENTRIES": PAGE_ENTRIES,
    "penstock.queue.expire.PAGE_ENTRIES": PAGE_ENTRIES,
    "penstock.queue.page.FLIGHT_LEASES": FLIGHT_LEASES,
    "penstock.queue.lease.FLIGHT_LEASES": FLIGHT_LEASES,
    "penstock.queue.check.FLIGHT_LEASES": FLIGHT_LEASES,
    "penstock.queue.lines.SHEET_LINES": 8,
    "penstock.queue.lease.ENDED_PAGES": ENDED_PAGES,
    "penstock.queue.expire.CLEAR_PAGES": 2,
    "penstock.queue.lists.REDRIVE_PAGES": 2,
    "penstock.queue.admin.PURGE_PAGES": 2,
    "penstock.queue.route.ROUTE_COUNT": ROUTE_COUNT,
    "penstock.queue.flush.FLUSH_PAGES": 2,
    "penstock.queue.flush.TAKEN_PAGES": 2,
    "penstock.queue.reclaim.RECLAIM_COUNT": 5,
    "penstock.queue.reclaim.EDGE_PAGES": 2,
    "penstock.queue.publish.BLOCK_COUNT": 6,
    "penstock.queue.item.INLINE_BYTES": INLINE_BYTES,
    "penstock.broker.queues.INLINE_BYTES": INLINE_BYTES,
    "penstock.broker.queuekeeping.EXPIRY_ROWS": 2,
    "penstock.log.pages.TAIL_RECORDS": 6,
    "penstock.codec.taken.PAGE_SLOTS": PAGE_SLOTS,
    "penstock.queue.reclaim.PAGE_SLOTS": PAGE_SLOTS,
    "penstock.queue.route.PAGE_SLOTS": PAGE_SLOTS,
    "penstock.queue.flush.PAGE_SLOTS": PAGE_SLOTS,
    "penstock.queue.check_messages.PAGE_SLOTS": PAGE_SLOTS,
    "penstock.broker.queuekeeping.PAGE_SLOTS": PAGE_SLOTS,
}

names = st.sampled_from(NAMES)
counts = st.one_of(st.integers(0, 4), st.integers(0, 30))
leases = st.none() | st.sampled_from([1, 30, 1000])
consumers = st.sampled_from(["x", "y", "z" * 255])
delays = st.none() | st.sampled_from([0, 1, 30])
options = st.fixed_dictionaries(
    {},
    optional={
        "filter": st.sampled_from(list(FILTERS)),
        "priority": st.sampled_from(list(PRIORITIES)),
        "lease_ms": st.sampled_from([10, 40, 1000]),
        "max_lease_ms": st.sampled_from([1000, 5000]),
        "max_attempts": st.sampled_from([0, 1, 1, 3]),
        "backoff": st.sampled_from([0.0, 0.02, Backoff(0.01, 3.0, 0.05, 0.0)]),
        "done_retention_s": st.sampled_from([0, 1, 3]),
    },
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "color": st.sampled_from(["red", "blue"]),
        "priority": st.sampled_from(["0", "5", "128", "255"]),
    },
)


@st.composite
def items(draw: st.DrawFn, to: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "payload": draw(st.sampled_from([b"", b"x", b"y" * INLINE_BYTES, b"z" * 60])),
        "headers": draw(headers),
    }
    kind = draw(st.integers(0, 9))
    if kind in (1, 2):
        found["delay_ms"] = draw(st.sampled_from([1, 30, 2000]))
    if kind == 3:
        found["visible_at_ms"] = draw(st.sampled_from([0, 999_990, 1_000_050, 1_000_000]))
    if kind in (4, 5):
        found["retention_s"] = draw(st.sampled_from([1, 2, 5]))
    if kind in (6, 7):
        found["dedup_id"] = draw(st.sampled_from(["d", "e"]))
    if kind in (7, 8) and to:
        found["to"] = draw(st.sampled_from(list(to)))
    if kind == 9:
        found["created_at_ms"] = 7
    return found


class Crash(BaseException):
    """The process is dead."""


def _shown(page: Page) -> list[tuple[object, ...]]:
    """Entries with the names of consumers: their numbers are the page's own. A row holds names, so
    a page that was read from one may number them otherwise than the page that was written."""
    rows = [tuple(row) for row in page.entries.tolist()]
    if page.kind is not PageKind.IN_FLIGHT:
        return rows
    return [(*row[:-1], page.consumers[row[-1]]) for row in rows]


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.patches = contextlib.ExitStack()
        for what, value in SMALL.items():
            self.patches.enter_context(patch(what, value))
        self.model = Model()
        self.clock = StepClock()
        self.disk = MemoryDisk()
        self.objects = MemoryObjects()
        self.receipts: list[Receipt] = []
        self.broker: Broker | None = None
        #: A flush under way: whose, up to which sequence, and the steps that are left.
        self.flushing: tuple[Owner, int, list[Step]] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self) -> Broker:
        async def opener(after: int | None) -> MemoryStore:
            return await MemoryStore.open(self.disk, clock=self.clock)

        broker = await Broker.start(opener, self.clock, deadline=30, objects=self.objects)
        await upkeep_of(broker).stop()
        broker.queues._reading.fresh = Fresh(3000)  # some are found there, others are read
        return broker

    @property
    def q(self) -> Any:
        assert self.broker is not None
        return self.broker.queues

    @property
    def committer(self) -> Any:
        assert self.broker is not None
        return self.broker.committer

    @property
    def now_ms(self) -> int:
        return int(self.committer.now_ms())

    @initialize(data=st.data(), states_max=st.sampled_from([4096, 4096, 8]))
    def open(self, data: st.DataObject, states_max: int) -> None:
        self.patches.enter_context(patch("penstock.broker.memory.STATES_MAX", states_max))
        self.broker = self.run(self._open())
        for name in NAMES[:2]:
            self.create(name, data.draw(options), "new")
        self.publish(data, 12)

    # -- setting up

    @rule(name=names, given=options, start=st.sampled_from(["first", "first", "new"]))
    def create(self, name: str, given: dict[str, Any], start: Any) -> None:
        wanted = Options(**given)
        full = {field: getattr(wanted, field) for field in Options.__struct_fields__}
        del full["paused"]
        known = self.model.queues.get(name)
        work = self.q.create(queue_name(name), start=start, **full)
        if known is not None:
            if _same(wanted, known.options):
                self.run(work)
            else:
                with pytest.raises(ConflictError):
                    self.run(work)
            return
        self.run(work)
        end = len(self.model.messages)
        queue = Queue(name, wanted, end)
        if start == "first":
            queue.backfill, queue.backfill_end = self.log_first(), end
        self.model.queues[name] = queue

    def log_first(self) -> int:
        async def find() -> int:
            log = await open_target(RowView(self.store, Tail()), METADATA)
            return 0 if log is None else log.first

        return self.run(find())

    @property
    def store(self) -> Any:
        return self.committer._require_store()

    @rule(name=names, given=options)
    def alter(self, name: str, given: dict[str, Any]) -> None:
        queue = self.model.queues.get(name)
        work = self.q.alter(queue_name(name), **given)
        if queue is None:
            with pytest.raises(NotFoundError):
                self.run(work)
            return
        self.run(work)
        queue.options = _changed(queue.options, given)

    @rule(name=names, paused=st.sampled_from([True, False, False]))
    def pause_or_play(self, name: str, paused: bool) -> None:
        queue = self.model.queues.get(name)
        if queue is not None:
            self.run(self.q.pause(queue_name(name)) if paused else self.q.play(queue_name(name)))
            queue.options = _changed(queue.options, {"paused": paused})

    @rule(name=names, sure=st.integers(0, 3), crash=st.none() | st.integers(0, 3))
    def delete(self, name: str, sure: int, crash: int | None) -> None:
        if sure:
            return
        queue = self.model.queues.get(name)
        gone = self.dying(crash, self.q.delete(queue_name(name)))
        if gone is not None:
            assert gone is (queue is not None)
        if queue is None:
            return
        if gone is None and self.run(self.rows_of(name)) is not None:
            self.adopt(queue, {PageKind.AVAILABLE, PageKind.IN_FLIGHT, PageKind.FAILED})
            return
        for entry in (*queue.available.values(), *queue.flight.values(), *queue.failed):
            self.model.release(entry.message)
        del self.model.queues[name]

    @rule(
        name=names,
        sure=st.integers(0, 2),
        crash=st.none() | st.integers(0, 3),
        failed=st.booleans(),
    )
    def purge(self, name: str, sure: int, crash: int | None, failed: bool) -> None:
        queue = self.model.queues.get(name)
        if sure or queue is None:
            return
        self.stats(name)
        held = list(queue.failed)
        if not failed:
            held = [*queue.available.values(), *queue.flight.values()]
        purged = self.dying(crash, self.q.purge(queue_name(name), failed=failed))
        if purged is None:
            kinds = {PageKind.FAILED} if failed else {PageKind.AVAILABLE, PageKind.IN_FLIGHT}
            self.adopt(queue, kinds)
            return
        assert purged == len(held)
        self.model.take_away(queue, held)

    def adopt(self, queue: Queue, kinds: set[PageKind]) -> None:
        """A purge died: whatever is gone is purged, and the rest is as it was."""
        rows = self.run(self.rows_of(queue.name))
        assert rows is not None
        left = {int(entry["message_id"]) for kind in kinds for entry in rows[1][kind]}
        held = [*queue.failed] if PageKind.FAILED in kinds else []
        if PageKind.AVAILABLE in kinds:
            held += [*queue.available.values(), *queue.flight.values()]
        gone = [entry for entry in held if entry.id not in left]
        self.model.take_away(queue, gone)

    def dying(self, crash: int | None, work: Coroutine[Any, Any, T]) -> T | None:
        """Do it; or die behind so many commits, open again, and give None."""
        if crash is None:
            return self.run(work)
        submit, left = self.committer.submit, [crash]

        async def counted(*steps: Step, begun: float | None = None) -> list[Any]:
            if not left[0]:
                raise Crash
            left[0] -= 1
            found: list[Any] = await submit(*steps, begun=begun)
            return found

        with patch.object(self.committer, "submit", counted), contextlib.suppress(Crash):
            return self.run(work)
        self.crash()
        return None

    @rule(reclaim=st.sampled_from(["done", "retention"]), sure=st.integers(0, 4))
    def configure(self, reclaim: Any, sure: int) -> None:
        if not sure:
            self.run(self.q.configure(reclaim=reclaim))
            self.model.reclaim = reclaim

    # -- publishing

    @rule(data=st.data(), most=st.sampled_from([1, 4, 20]))
    def publish(self, data: st.DataObject, most: int) -> None:
        batch = self.drawn_items(data, most)
        ids = self.run(self.q.publish(batch))
        self.published(batch, ids)

    def drawn_items(self, data: st.DataObject, most: int) -> list[Item]:
        drawn = data.draw(st.lists(items(tuple(self.model.queues)), min_size=1, max_size=most))
        return [Item(**each) for each in drawn]

    @rule(name=names, data=st.data())
    def publish_to_nobody(self, name: str, data: st.DataObject) -> None:
        if name not in self.model.queues:
            with pytest.raises(NotFoundError):
                self.run(self.q.publish([Item(b"first"), Item(b"second", to=name)]))

    def published(self, batch: Sequence[Item], ids: Sequence[int]) -> None:
        now_ms = self.now_ms
        known = {message.id for message in self.model.messages}
        assert len(ids) == len(batch)
        for item, number in zip(batch, ids, strict=True):
            key = None
            if item.dedup_id is not None:
                key = (self.model.queues[item.to] if item.to else None, item.dedup_id)
                first, until_ms = self.model.dedups.get(key, (0, 0))
                if until_ms > now_ms:
                    assert number == first
                    continue
            assert number not in known
            known.add(number)
            visible = now_ms + item.delay_ms if item.visible_at_ms is None else item.visible_at_ms
            message = Message(
                number,
                len(self.model.messages),
                item.payload,
                dict(item.headers),
                item.to,
                now_ms if item.created_at_ms is None else item.created_at_ms,
                now_ms,
                visible,
                deadline_of(now_ms, item.retention_s),
            )
            self.model.messages.append(message)
            if key is not None:
                self.model.dedups[key] = (number, now_ms + DEDUP_MS)
            self.model.route(message)

    # -- claiming and settling

    @rule(name=names, count=counts, lease_ms=leases, consumer=consumers)
    def claim(self, name: str, count: int, lease_ms: int | None, consumer: str) -> None:
        queue = self.model.queues.get(name)
        work = self.q.claim(queue_name(name), count, lease_ms=lease_ms, consumer=consumer)
        if queue is None:
            with pytest.raises(NotFoundError):
                self.run(work)
            return
        limit = queue.options.max_attempts
        found = self.run(work)
        expected = self.model.claim(queue, count, consumer, lease_ms, self.now_ms)
        assert [_message(message) for message in found] == [_expected(e) for e in expected]
        for message, entry in zip(found, expected, strict=True):
            assert message.visible_at_ms <= self.now_ms <= entry.message.deadline_ms
            assert limit == 0 or entry.attempts <= limit
            self.receipts.append(Receipt(queue, entry.lease, entry.id, message.receipt))

    @rule(name=names, count=counts)
    def peek(self, name: str, count: int) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        found = self.run(self.q.peek(queue_name(name), count))
        ready = [
            entry
            for entry in queue.in_order()
            if entry.visible_ms <= self.now_ms <= entry.message.deadline_ms
        ]
        assert [(m.id, m.payload, m.headers, m.attempts) for m in found] == [
            (e.id, e.message.payload, e.message.headers, e.attempts) for e in ready[:count]
        ]

    def drawn_receipts(self, data: st.DataObject, name: str) -> list[Receipt]:
        """Mostly good ones; old ones, those of other queues, doubled and forged ones too."""
        good = self.good_receipts(name)
        forged = [
            Receipt(None, 0, 0, _receipt_text(b"k" * 32, 1, 1, 1)),
            Receipt(None, 0, 0, "nonsense"),
            Receipt(None, 0, 0, ""),
        ]
        kinds = [good, good, good, self.receipts[-40:], forged]
        source = [each for kind in kinds for each in kind]
        return data.draw(st.lists(st.sampled_from(source), max_size=12))

    def good_receipts(self, name: str) -> list[Receipt]:
        queue = self.model.queues.get(name)
        return [
            receipt
            for receipt in self.receipts
            if queue is not None and receipt.queue is queue and receipt.lease in queue.flight
        ]

    @precondition(lambda self: self.model.queues)
    @rule(
        data=st.data(),
        count=counts,
        how=st.sampled_from(["ack", "fail", "fail", "fail", "release", "expire"]),
        part=st.sampled_from([1, 1, 2, 3]),
    )
    def work(self, data: st.DataObject, count: int, how: str, part: int) -> None:
        """Consumers as they are: claim some, settle what they have, in any order."""
        name = data.draw(st.sampled_from(sorted(self.model.queues)))
        queue = self.model.queues[name]
        self.claim(name, count, None, data.draw(consumers))
        chosen = data.draw(st.permutations(self.good_receipts(name)))[::part]
        texts, log = _texts(chosen), queue_name(name)
        match how:
            case "ack":
                self.settle(
                    name, self.q.ack(log, texts), lambda q: self.model.ack(q, chosen, self.now_ms)
                )
            case "fail":
                self.settle(
                    name,
                    self.q.fail(log, texts, delay_ms=0),
                    lambda q: self.model.fail(q, chosen, 0, "", self.now_ms),
                )
            case "release":
                self.settle(
                    name,
                    self.q.release(log, texts),
                    lambda q: self.model.give_up(q, chosen, self.now_ms),
                )
            case _:
                self.clock.pass_ms(queue.options.lease_ms)

    @precondition(lambda self: self.model.queues)
    @rule(data=st.data(), count=st.integers(1, 12), then=st.sampled_from(["redrive", "lists", ""]))
    def fail_for_good(self, data: st.DataObject, count: int, then: str) -> None:
        """The same messages fail until they are failed, and may come round again."""
        name = data.draw(st.sampled_from(sorted(self.model.queues)))
        queue = self.model.queues[name]
        for _ in range(queue.options.max_attempts):
            self.claim(name, count, None, "failing")
            chosen = self.good_receipts(name)
            self.settle(
                name,
                self.q.fail(queue_name(name), _texts(chosen), delay_ms=0, reason="no"),
                lambda q, chosen=chosen: self.model.fail(q, chosen, 0, "no", self.now_ms),
            )
        self.clock.pass_ms(data.draw(st.sampled_from([0, 1, 1001])))
        if then == "redrive":
            self.redrive(name, data, None)
        elif then == "lists":
            self.lists(name)

    def settle(self, name: str, work: Coroutine[Any, Any, list[bool]], model: Any) -> None:
        if name not in self.model.queues:
            with pytest.raises(NotFoundError):
                self.run(work)
            return
        found = self.run(work)
        assert found == model(self.model.queues[name])

    @rule(name=names, data=st.data())
    def ack(self, name: str, data: st.DataObject) -> None:
        chosen = self.drawn_receipts(data, name)
        self.settle(
            name,
            self.q.ack(queue_name(name), _texts(chosen)),
            lambda queue: self.model.ack(queue, chosen, self.now_ms),
        )

    @rule(name=names, data=st.data(), delay_ms=delays, reason=st.sampled_from(["", "why"]))
    def fail(self, name: str, data: st.DataObject, delay_ms: int | None, reason: str) -> None:
        chosen = self.drawn_receipts(data, name)
        self.settle(
            name,
            self.q.fail(queue_name(name), _texts(chosen), delay_ms=delay_ms, reason=reason),
            lambda queue: self.model.fail(queue, chosen, delay_ms, reason, self.now_ms),
        )

    @rule(name=names, data=st.data())
    def release(self, name: str, data: st.DataObject) -> None:
        chosen = self.drawn_receipts(data, name)
        self.settle(
            name,
            self.q.release(queue_name(name), _texts(chosen)),
            lambda queue: self.model.give_up(queue, chosen, self.now_ms),
        )

    @rule(name=names, data=st.data(), lease_ms=st.sampled_from([1, 50, 1000, 6000]))
    def extend(self, name: str, data: st.DataObject, lease_ms: int) -> None:
        chosen = self.drawn_receipts(data, name)
        work = self.q.extend(queue_name(name), _texts(chosen), lease_ms)
        queue = self.model.queues.get(name)
        if queue is not None and lease_ms > queue.options.max_lease_ms:
            with pytest.raises(InvalidError):
                self.run(work)
            return
        self.settle(name, work, lambda q: self.model.extend(q, chosen, lease_ms, self.now_ms))

    @rule(data=st.data())
    def busy_tick(self, data: st.DataObject) -> None:
        """Several requests share a commit, pages are written in it too."""
        if not self.model.queues:
            return
        done: list[tuple[Step, Any]] = []
        for kind in data.draw(st.lists(st.sampled_from("ppcccaafrxw"), min_size=2, max_size=7)):
            name = data.draw(st.sampled_from(sorted(self.model.queues)))
            queue, log = self.model.queues[name], queue_name(name)
            chosen = [r for r in self.drawn_receipts(data, name) if r.queue is not None]
            held = self.opened(chosen)
            match kind:
                case "p":
                    batch = self.drawn_items(data, 5)
                    batch = [i for i in batch if len(i.payload) <= INLINE_BYTES]
                    if batch:
                        step = publish_step(PreparedBatch(batch))
                        done.append((step, lambda r, b=batch: self.published(b, r.ids)))
                case "c":
                    count, consumer = data.draw(counts), data.draw(consumers)
                    step = claim_step(log, count, consumer=consumer)

                    def claimed(
                        reply: Any, queue: Queue = queue, count: int = count, who: str = consumer
                    ) -> None:
                        expected = self.model.claim(queue, count, who, None, self.now_ms)
                        found = reply.entries
                        assert found["message_id"].tolist() == [e.id for e in expected]
                        for entry in expected:
                            text = _receipt_text(bytes(32), reply.queue, entry.id, entry.lease)
                            self.receipts.append(Receipt(queue, entry.lease, entry.id, text))

                    done.append((step, claimed))
                case "a":
                    done.append((ack_step(log, held), self.same_as(Model.ack, queue, chosen)))
                case "f":
                    step = fail_step(log, held, delay_ms=5)
                    done.append((step, self.same_as(Model.fail, queue, chosen, 5, "")))
                case "r":
                    done.append(
                        (release_step(log, held), self.same_as(Model.give_up, queue, chosen))
                    )
                case "x":
                    step = extend_step(log, held, 70)
                    done.append((step, self.same_as(Model.extend, queue, chosen, 70)))
                case _:
                    done += [(step, lambda _: None) for step in self.drawn_flush(data)]
        if not done:
            return

        async def submit() -> list[Any]:
            requests = [self.committer.request(step) for step, _ in done]
            return [(await request)[0] for request in requests]

        before = self.committer.applied_n
        for reply, (_, compare) in zip(self.run(submit()), done, strict=True):
            compare(reply)
        assert self.committer.applied_n <= before + 1

    def same_as(self, model: Any, *arguments: Any) -> Any:
        def compare(reply: Any) -> None:
            assert reply == model(self.model, *arguments, self.now_ms)

        return compare

    def opened(self, receipts: Sequence[Receipt]) -> Leases:
        leases, good = open_receipts(bytes(32), _texts(receipts))
        assert all(good), "only good ones are opened"
        return leases

    def drawn_flush(self, data: st.DataObject) -> list[Step]:
        """Writing an owner's pages, or some of them, needs no head behind it."""
        if not self.committer.tail.owners():
            return []
        owner = data.draw(st.sampled_from(self.committer.tail.owners()))
        return self.flush_steps(owner)[1][:-1]

    # -- lists

    @rule(name=names)
    def stats(self, name: str) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            with pytest.raises(NotFoundError):
                self.run(self.q.stats(queue_name(name)))
            return
        now_ms = self.now_ms
        self.model.clear(queue, now_ms)
        visible = sum(entry.visible_ms <= now_ms for entry in queue.available.values())
        assert self.run(self.q.stats(queue_name(name))) == Stats(
            available=visible,
            delayed=len(queue.available) - visible,
            in_flight=len(queue.flight),
            done=len(queue.done),
            failed=len(queue.failed),
            routed=queue.routed,
            acked=queue.acked,
            expired=queue.expired,
            purged=queue.purged,
            paused=queue.options.paused,
            backfilling=queue.backfill < queue.backfill_end,
        )

    @rule(name=names)
    def lists(self, name: str) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        done = list(self.paged(self.q.done, name))
        assert [(m.id, m.done_at_ms, m.attempts) for m in done] == [
            (entry.id, entry.ended_ms, entry.attempts) for entry in queue.done
        ]
        failed = list(self.paged(self.q.failed, name))
        assert [(m.id, m.failed_at_ms, m.attempts, m.priority) for m in failed] == [
            (entry.id, entry.ended_ms, entry.attempts, entry.priority) for entry in queue.failed
        ]
        for message, entry in zip(failed, queue.failed, strict=True):
            over = entry.over(self.now_ms)
            assert message.payload == (None if over else entry.message.payload)
            assert list(message.history) == queue.history[entry.id]

    def paged(self, read: Any, name: str) -> Iterator[Any]:
        after: int | None = 0
        while after is not None:
            page = self.run(read(queue_name(name), after))
            yield from page.messages
            after = page.next

    @rule(name=names, data=st.data(), crash=st.none() | st.integers(0, 2))
    def redrive(self, name: str, data: st.DataObject, crash: int | None) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        ids = None
        some: bool = data.draw(st.booleans())
        if some and queue.failed:
            known = st.sampled_from([entry.id for entry in queue.failed])
            ids = data.draw(st.sets(known | st.integers(0, 50), max_size=5))
        now_ms = self.now_ms
        found = self.dying(crash, self.q.redrive(queue_name(name), ids))
        if found is None:
            rows = self.run(self.rows_of(name))
            assert rows is not None
            left = set(rows[1][PageKind.FAILED]["message_id"].tolist())
            self.model.redrive(queue, {e.id for e in queue.failed} - left, now_ms)
            return
        assert (found.count, found.expired) == self.model.redrive(queue, ids, now_ms)

    # -- time

    @rule(ms=st.one_of(st.integers(1, 5), st.integers(1, 60), st.sampled_from([1000, 2001])))
    def time_passes(self, ms: int) -> None:
        self.clock.pass_ms(ms)

    @rule(data=st.data(), early=st.sampled_from([-1, 0, 1]))
    def time_comes(self, data: st.DataObject, early: int) -> None:
        """The very millisecond at which something is due."""
        times = {
            time
            for queue in self.model.queues.values()
            for time in (
                *(entry.lease_ms for entry in queue.flight.values()),
                *(entry.visible_ms for entry in queue.available.values()),
                *(entry.message.deadline_ms for entry in queue.available.values()),
                *(entry.message.deadline_ms for entry in queue.flight.values()),
            )
        }
        coming = sorted(ms for ms in times if self.now_ms < ms < self.now_ms + 10_000)
        if coming:
            ms = data.draw(st.sampled_from(coming)) + early - self.now_ms
            self.clock.pass_ms(max(ms, 0))

    @rule(ms=st.sampled_from([-5000, -60, 50, 12_000, DEDUP_MS, 7_200_000]))
    def the_wall_clock_jumps(self, ms: int) -> None:
        self.clock.wall += ms

    # -- work behind the requests

    def due(self) -> list[Any]:
        assert self.broker is not None
        return sorted(upkeep_of(self.broker)._due, key=repr)

    @precondition(lambda self: self.due())
    @rule(data=st.data(), crash=st.none() | st.integers(0, 3))
    def chore(self, data: st.DataObject, crash: int | None) -> None:
        self.do_chore(data.draw(st.sampled_from(self.due())), crash)

    @rule()
    def chores(self) -> None:
        for _ in range(3):
            for what in self.due():
                if what in self.due():
                    self.do_chore(what, None)
        assert self.run(check_log(self.store)) == []

    def do_chore(self, what: Any, crash: int | None) -> None:
        assert self.broker is not None
        upkeep = upkeep_of(self.broker)
        at_ms = upkeep._due.pop(what)
        if what[0] in ("lease", "retention", "backfill"):
            crash = None  # how far it came would be seen
            queue = self.model.queues.get(what[1] or "")
            # Too early, or its queue was deleted since: nothing happens.
            if queue is not None and what[0] == "backfill":
                self.model.backfill(queue, self.now_ms, self.run(self.readable()))
            elif queue is not None:
                self.model.clear(queue, self.now_ms)
        elif what[0] == "pages":
            self.flushing = None  # one at a time
        assert at_ms >= 0
        self.dying(crash, upkeep._do(self.committer, what))

    async def readable(self) -> set[int]:
        """Messages whose metadata and payload are there."""
        log = await open_target(RowView(self.store, Tail()), METADATA)
        assert log is not None
        entries = await read(self.store, log, log.first, log.next - log.first)
        found = {decode_metadata(entry.data).message_id for entry in entries if entry is not None}
        low = prefix(KeyType.PAYLOAD)
        stored: set[int] = set()
        async for rows in self.store.scan(low, prefix_end(low)):
            for key, value in rows:
                first = open_key(key, KeyType.PAYLOAD).u64_key("message id")
                record = decode_payload(value)
                count = record.count if isinstance(record, PayloadBlock) else 1
                stored.update(range(first, first + count))
        return found & stored

    @precondition(lambda self: self.committer.tail.owners())
    @rule(data=st.data())
    def flush_with_work_between(self, data: st.DataObject) -> None:
        """A whole flush, and after each of its commits something else or nothing."""
        self.flush_begins(data)
        while self.flushing is not None:
            self.flush_goes_on()
            name = data.draw(names)
            match data.draw(st.sampled_from("pcaro")):
                case "p":
                    self.publish(data, 5)
                case "c":
                    self.claim(name, data.draw(counts), None, "x")
                case "a":
                    self.ack(name, data)
                case "r":
                    self.fail(name, data, 0, "")
            self.rows_say_what_the_model_says()
        if data.draw(st.booleans()):
            self.trim()
        if data.draw(st.booleans()):
            self.crash()

    @precondition(lambda self: self.flushing is None and self.committer.tail.owners())
    @rule(data=st.data())
    def flush_begins(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.committer.tail.owners()))
        self.flushing = (owner, *self.flush_steps(owner))

    def flush_steps(self, owner: Owner) -> tuple[int, list[Step]]:
        operations = self.committer.tail.of(owner)
        if owner.view is PagedView.TAKEN:
            sequence, parts = flush.plan_taken_flush(operations)
            steps = [flush.taken_pages_step(owner.id, part) for part in parts]
            return sequence, [*steps, flush.taken_head_step(owner.id)]
        plan = flush.plan_flush(operations)
        steps = [flush.pages_step(owner.id, part) for part in plan.parts()]
        return plan.sequence, [*steps, flush.head_step(owner.id)]

    @precondition(lambda self: self.flushing is not None)
    @rule()
    def flush_goes_on(self) -> None:
        assert self.flushing is not None
        owner, sequence, steps = self.flushing
        (reply,) = self.run(self.committer.submit(steps.pop(0)))
        if not steps:
            self.committer.tail.flushed(owner, None if reply is False else sequence)
            self.flushing = None

    @rule()
    def trim(self) -> None:
        numbers = self.committer.tail.unneeded()
        assert self.run(self.committer.submit(trim_step(numbers))) == [len(numbers)]
        self.committer.tail.trimmed(numbers)

    # -- memory is bounded, and processes die

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        kinds = data.draw(
            st.sets(st.sampled_from(["queue", "queue page", "queues", "taken", "taken page"]))
        )
        for key in list(self.committer.states._states):
            if key[0] in kinds:
                self.committer.states.put(key, None)

    @rule()
    def crash(self) -> None:
        self.flushing = None
        self.broker = self.run(self._open())

    @rule()
    def close_and_open(self) -> None:
        assert self.broker is not None
        self.flushing = None
        self.run(self.broker.close())
        self.broker = self.run(self._open())

    # -- what holds

    async def rows_of(self, name: str) -> tuple[QueueState, dict[PageKind, Any]] | None:
        """The queue, from rows and operations alone; None: there is none."""
        tail = Tail()
        await tail.load(self.store)
        view = RowView(self.store, tail)
        try:
            state = await load_queue(view, queue_name(name))
        except NotFoundError:
            return None
        self.rebuilt = view
        found: dict[PageKind, Any] = {}
        for kind in PageKind:
            parts = []
            for line in await all_lines(view, state, kind):
                priority = int(line["priority"]) if kind is PageKind.AVAILABLE else 0
                page = await load_page(view, state, kind, int(line["page"]), priority)
                parts.append(page.entries)
                if kind is PageKind.IN_FLIGHT:
                    self.holders |= {
                        int(e["lease_number"]): page.consumers[e["consumer"]] for e in page.entries
                    }
            found[kind] = np.concatenate([np.zeros(0, FORMS[kind]), *parts])
        return state, found

    @invariant()
    def rows_say_what_the_model_says(self) -> None:
        for name in NAMES:
            self.holders: dict[int, str] = {}
            rows = self.run(self.rows_of(name))
            queue = self.model.queues.get(name)
            assert (rows is None) == (queue is None)
            if rows is not None and queue is not None:
                self.compare(queue, *rows)
                self.compare_memory(rows[0])

    def compare(self, queue: Queue, state: QueueState, found: dict[PageKind, Any]) -> None:
        head = state.head
        assert (
            head.next_lease,
            head.routed,
            head.done,
            head.failed,
            head.expired,
            head.purged,
            head.start,
        ) == (
            queue.next_lease,
            queue.routed,
            queue.acked,
            queue.failures,
            queue.expired,
            queue.purged,
            queue.start,
        )
        assert (head.backfill < head.backfill_end) == (queue.backfill < queue.backfill_end)
        fields = ["message_id", "priority", "visible_at_ms", "attempts", "offset"]
        assert _columns(found[PageKind.AVAILABLE], fields) == [
            (e.id, e.priority, e.visible_ms, e.attempts, e.message.offset, e.history)
            for e in queue.in_order()
        ]
        fields = ["lease_number", "message_id", "attempts", "claimed_at_ms", "lease_deadline_ms"]
        assert _columns(found[PageKind.IN_FLIGHT], fields) == [
            (e.lease, e.id, e.attempts, e.claimed_ms, e.lease_ms, e.history)
            for e in sorted(queue.flight.values(), key=lambda e: e.lease)
        ]
        assert self.holders == {e.lease: e.consumer for e in queue.flight.values()}
        assert _columns(found[PageKind.DONE], ["message_id", "done_at_ms", "attempts"]) == [
            (e.id, e.ended_ms, e.attempts, e.history) for e in queue.done
        ]
        fields = ["message_id", "failed_at_ms", "attempts", "priority"]
        assert _columns(found[PageKind.FAILED], fields) == [
            (e.id, e.ended_ms, e.attempts, e.priority, e.history) for e in queue.failed
        ]
        for message_id, history in queue.history.items():
            log = queue_name(queue.name)
            known = self.run(read_attempts(self.rebuilt, log, message_id))
            assert list(known) == history

    def compare_memory(self, state: QueueState) -> None:
        states = self.committer.states._states
        known: QueueState | None = states.get(("queue", state.id))
        if known is not None:
            assert known.sequence == state.sequence
            assert known.head == state.head
            for kind in PageKind:
                mine = self.run(all_lines(self.rebuilt, known, kind))
                assert mine.tolist() == self.run(all_lines(self.rebuilt, state, kind)).tolist()
        for (what, where), page in states.items():
            if what == "queue page" and where[0] == state.id:
                rebuilt = self.run(
                    load_page(self.rebuilt, state, page.kind, page.number, page.priority)
                )
                assert _shown(page) == _shown(rebuilt)

    @invariant()
    def is_clean(self) -> None:
        assert self.run(check_queues(self.store)) == []
        assert self.run(check_groups(self.store)) == []

    def teardown(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.patches.close()


async def all_lines(view: RowView, state: QueueState, kind: PageKind) -> Any:
    return join(LINES[kind], [lines async for lines in read_lines(view, state, kind)])


def _same(wanted: Options, known: Options) -> bool:
    return _changed(wanted, {"paused": False}) == _changed(known, {"paused": False})


def _changed(before: Options, given: dict[str, Any]) -> Options:
    fields = {field: getattr(before, field) for field in Options.__struct_fields__}
    return Options(**(fields | given))


def _receipt_text(key: bytes, queue: int, message_id: int, lease: int) -> str:
    return make_receipts(key, np.array([(queue, message_id, lease)], LEASE))[0]


def _texts(receipts: Sequence[Receipt]) -> list[str]:
    return [receipt.text for receipt in receipts]


def _message(message: Any) -> tuple[Any, ...]:
    return (
        message.id,
        message.payload,
        message.uri,
        dict(message.headers),
        message.priority,
        message.attempts,
        message.created_at_ms,
        message.received_at_ms,
        message.lease_deadline_ms,
    )


def _expected(entry: Entry) -> tuple[Any, ...]:
    message = entry.message
    return (
        entry.id,
        message.payload,
        None,
        message.headers,
        entry.priority,
        entry.attempts,
        message.created_ms,
        message.received_ms,
        entry.lease_ms,
    )


def _columns(entries: Any, fields: list[str]) -> list[tuple[Any, ...]]:
    columns = [entries[field].tolist() for field in fields]
    return list(zip(*columns, (entries["flags"] & HISTORY != 0).tolist(), strict=True))


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestQueues = QueueMachine.TestCase
TestQueues.settings = _settings(60, 30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_queues_for_longer() -> None:
    run_state_machine_as_test(QueueMachine, settings=_settings(1500, 60))
