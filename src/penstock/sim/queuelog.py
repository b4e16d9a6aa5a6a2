"""The truth about queues: every message and where it is in each queue, fed with each commit.

Contract     `committed` looks at each commit as it becomes durable, whoever wrote it and whether or
             not anybody will be told: there is no "unknown outcome" in here. What callers ask for
             is announced before (`messages.send`, `purge_asked`, `delete_asked`); what they are
             told is compared with what some commit during their call did (queuetold.py).
Invariants   U1  in queuemessages.py
             U2  it enters, in the commit that publishes it, every queue that must have it, and no
                 other; each once; a backfill gives what was there, and no more
             U3  it is in one place; every move is allowed (queuemoves.py)
             U4  a claim takes the first ones: by priority, then visible at, then id
             U5  the head's numbers say what happened: nothing is lost or counted twice
             U6  takers are counted as queues take and release; nothing is removed that a queue
                 needs
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from penstock.codec.catalogue import decode_catalogue_row
from penstock.codec.keys import KeyType, Kind, config_key, head_key, key_type, router_key
from penstock.codec.operations import Operation, PagedView, decode_operations
from penstock.codec.queueconfig import decode_queue_config
from penstock.codec.queueoperation import (
    KEY_FIELD,
    PageKind,
    QueueHead,
    QueueOperation,
    decode_head_row,
    decode_queue_operation,
)
from penstock.codec.taken import decode_taken_operation
from penstock.log.catalogue import decode_name_key
from penstock.queue.config import Settings, settings_of
from penstock.queue.state import queue_id
from penstock.queue.taken import METADATA
from penstock.sim.clock import SimClock
from penstock.sim.peek import at_once, peek
from penstock.sim.process import SimDisk
from penstock.sim.queuemessages import Message, Messages
from penstock.sim.queuemoves import Move, Rules, Where, judge
from penstock.sim.trace import Trace
from penstock.store.objects import MemoryObjects
from penstock.store.port import Writes


class Held(msgspec.Struct):
    """One message in one queue."""

    where: Where | None  # None: it was there, and left
    n: int  # since this commit
    paged_n: int = 0  # the last commit that put it on another page
    failures: int = 0  # attempts that are remembered


class Effect(msgspec.Struct):
    """What one operation did."""

    n: int
    queue: int
    moves: dict[Move, dict[int, int]]  # message -> the lease that it was about
    claimed: list[tuple[int, Where]]  # in the order of lease numbers
    alive: set[int]  # leases that lived until then
    told: set[int]  # leases that callers were told of


class Queue:
    def __init__(self, number: int, name: str, settings: Settings, head: QueueHead) -> None:
        self.id = number
        self.name = name
        self.settings = settings
        self.made_n = 0
        self.altered_n = 0  # the last commit that changed its settings
        self.head = head
        self.sequence = 0
        self.messages: dict[int, Held] = {}
        #: Every page, naively: (kind, page) -> key -> message and entry.
        self.pages: dict[tuple[PageKind, int], dict[int, tuple[int, Where]]] = {}

    def holding(self, *kinds: PageKind) -> dict[int, Where]:
        return {
            number: held.where
            for number, held in self.messages.items()
            if held.where is not None and held.where.kind in kinds
        }

    def available(self, now_ms: int) -> list[int]:
        """What could be claimed now, in the order of claims."""
        ready = [
            (where.priority, where.visible_ms, number)
            for number, where in self.holding(PageKind.AVAILABLE).items()
            if where.visible_ms <= now_ms <= where.deadline_ms
        ]
        return [number for _, _, number in sorted(ready)]


class QueueLog:
    def __init__(
        self, disk: SimDisk, clock: SimClock, trace: Trace, objects: MemoryObjects
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._trace = trace
        self.messages = Messages(disk, clock, trace, objects)
        self.queues: dict[int, Queue] = {}
        self.names: dict[str, int] = {}
        self.effects: list[Effect] = []
        self.times: dict[int, int] = {0: 0}  # of commits
        self.purge_asked: set[str] = set()
        self.delete_asked: set[str] = set()
        self._log_id: int | None = None
        #: When messages go, and the last commit that changed it.
        self.reclaims = True  # what is done with may go
        self._kept = False  # it may stay, in the commit that is looked at

    def queue(self, name: str) -> Queue | None:
        number = self.names.get(name)
        return None if number is None else self.queues[number]

    def living(self) -> list[Queue]:
        return [self.queues[number] for number in self.names.values()]

    def _wrong(self, n: int, text: str) -> None:
        self._trace.fail(f"queues, commit {n}: {text}")

    # -- commits

    def committed(self, n: int, writes: Writes, time_ms: int) -> None:
        rows = dict(writes)
        self.times[n] = time_ms
        named: set[str] = set()
        self._kept = not self.reclaims
        self._settings(n, writes, rows, named)
        self._kept = self._kept or not self.reclaims
        owners = {None: 0} | {q.name: q.id for q in self.living() if q.name not in named}
        new = self.messages.published(n, writes, time_ms, self._log_id, owners)
        taken: Counter[int] = Counter()
        released: Counter[int] = Counter()
        for key, value in writes:
            if key_type(key) is not KeyType.OPERATIONS or value is None:
                continue
            for operation in decode_operations(value):
                if operation.owner.view is PagedView.QUEUE:
                    self._operation(n, operation.owner.id, operation, time_ms, taken, released)
                elif operation.owner.view is PagedView.TAKEN:
                    self._takers(n, operation.body, time_ms, taken, released, named)
        if +taken or +released:
            self._wrong(n, f"{taken} were taken and {released} released, and are not counted")
        self._deleted(rows)
        self._routed(n, new, named)

    def _settings(
        self, n: int, writes: Writes, rows: dict[bytes, bytes | None], named: set[str]
    ) -> None:
        """Queues that are made, and settings that change."""
        for key, value in writes:
            if key_type(key) is not KeyType.NAME:
                continue
            kind, name = decode_name_key(key)
            if kind is Kind.INTERNAL and name.encode() == METADATA.name and value is not None:
                row = decode_catalogue_row(value)
                self._log_id = row.id
                self.reclaims = dict(row.options).get("reclaim", "done") == "done"
            if kind is not Kind.QUEUE:
                continue
            named.add(name)
            if value is not None:
                self._made(n, name, decode_catalogue_row(value).id, rows)
        for queue in self.living():
            config = rows.get(config_key(queue_id(queue.name, queue.id)))
            if config is not None and queue.name not in named:
                queue.settings = settings_of(decode_queue_config(config))
                queue.altered_n = n
                self._trace.add(f"  queue {queue.name} altered: {queue.settings}")

    def _made(self, n: int, name: str, number: int, rows: dict[bytes, bytes | None]) -> None:
        head = rows.get(head_key(number))
        config = rows.get(config_key(queue_id(name, number)))
        if head is None or config is None or number in self.queues:
            self._wrong(n, f"queue {name} [{number}] is made without rows, or twice")
            return
        settings = settings_of(decode_queue_config(config))
        queue = Queue(number, name, settings, decode_head_row(head, "head").head)
        # What was altered in the very commit that made it shows only its end.
        queue.made_n = queue.altered_n = n
        self.queues[number] = queue
        self.names[name] = number
        self._trace.add(f"  queue {name} [{number}] made: {settings} {queue.head}")

    def _deleted(self, rows: dict[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            if key_type(key) is KeyType.NAME and value is None:
                kind, name = decode_name_key(key)
                if kind is Kind.QUEUE:
                    self.names.pop(name, None)
                    self._trace.add(f"  queue {name} deleted")

    # -- U2: who takes what

    def takes(self, queue: Queue, message: Message) -> bool:
        """By its filter, or because it is addressed."""
        if message.about.to is not None:
            return message.about.to == queue.name
        wanted = queue.settings.filter
        return wanted is None or wanted.matches(message.row)

    def _behind(self) -> bool:
        return at_once(peek(self._disk, self._clock).get(router_key())) is not None

    def _routed(self, n: int, new: list[Message], named: set[str]) -> None:
        if not new or self._behind():
            return
        for queue in self.living():
            if queue.altered_n == n and queue.name not in named:
                continue  # by the old filter or by the new one
            for message in new:
                must = message.offset >= queue.head.start and self.takes(queue, message)
                if must and message.id not in queue.messages:
                    self._wrong(n, f"message {message.id} did not come to {queue.name}")

    def _entered(
        self, n: int, queue: Queue, number: int, where: Where, filled: range, time_ms: int
    ) -> str | None:
        message = self.messages.by_id.get(number)
        if message is None:
            return "nobody published it"
        late = message.offset in filled
        if not late and (message.n != n and not self._behind()):
            return "it enters after the commit that published it"
        if not late and message.offset < queue.head.start:
            return "it is older than the queue"
        if late and message.about.to is not None:
            return "it is addressed, and came with a backfill"
        if late and ((message.dead and not self._kept) or message.deadline_ms < time_ms):
            return "nobody needed it any more"
        visible_ms, priority = message.about.visible_at_ms, where.priority
        if queue.altered_n != n:
            if not self.takes(queue, message):
                return "the queue does not want it"
            priority = self._priority(queue, message)
        wanted = Where(
            PageKind.AVAILABLE,
            priority,
            0,
            visible_ms,
            message.deadline_ms,
            message.offset,
        )
        return None if where == wanted else f"it enters as {where}, not as {wanted}"

    def _priority(self, queue: Queue, message: Message) -> int:
        expression = queue.settings.priority
        if expression is not None:
            return expression.of(message.row)
        text = dict(message.about.headers).get("priority", "")
        number = int(text) if text.isdigit() else 128
        return number if number <= 255 else 128

    def _backfilled(self, n: int, queue: Queue, filled: range, time_ms: int) -> None:
        if queue.altered_n == n:
            return
        for offset in filled:
            message = self.messages.by_offset.get(offset)
            if message is None or message.id in queue.messages or message.about.to is not None:
                continue
            needed = not message.dead and message.deadline_ms >= time_ms
            if needed and self.takes(queue, message):
                self._wrong(n, f"the backfill of {queue.name} left out message {message.id}")

    # -- U3, U4, U5: what an operation does

    def _operation(
        self,
        n: int,
        number: int,
        operation: Operation,
        time_ms: int,
        taken: Counter[int],
        released: Counter[int],
    ) -> None:
        queue = self.queues.get(number)
        if queue is None:
            return  # made and deleted in this very commit
        sequence, body = operation.sequence, decode_queue_operation(operation.body)
        if sequence != queue.sequence + 1:
            self._wrong(n, f"{queue.name}: operation {sequence} follows {queue.sequence}")
        queue.sequence = sequence
        touched = self._apply(n, queue, body)
        effect = Effect(n, queue.id, {}, [], set(), set())
        filled = range(queue.head.backfill, body.head.backfill)
        entered = 0
        rules = self._rules(n, queue, time_ms)
        for message_id in sorted(touched):
            places = [where for _, where in _found(queue, message_id)]
            if len(places) > 1:
                self._wrong(n, f"{queue.name}: message {message_id} is at {places}")
                return
            after = places[0] if places else None
            held = queue.messages.get(message_id)
            if held is None:
                wrong = (
                    "it leaves, and was never there"
                    if after is None
                    else self._entered(n, queue, message_id, after, filled, time_ms)
                )
                queue.messages[message_id] = Held(after, n)
                entered += 1
                if message_id in self.messages.by_id:
                    taken[self.messages.by_id[message_id].offset] += 1
                if wrong is not None:
                    self._wrong(n, f"{queue.name}, message {message_id}: {wrong}")
                continue
            self._move(n, queue, message_id, held, after, rules, effect, released)
        self._count(n, queue, body.head, effect, entered, time_ms)
        if body.head.purged > queue.head.purged:  # then nothing else leaves
            left = effect.moves.get(Move.LEFT, {})
            released.update(self.messages.by_id[m].offset for m in left)
        self._first(n, queue, effect, time_ms)
        queue.head = body.head
        self._backfilled(n, queue, filled, time_ms)
        story = {move.value: found for move, found in effect.moves.items()}
        self._trace.add(f"  {queue.name} #{sequence} entered {entered} {story}")
        self.effects.append(effect)

    def _rules(self, n: int, queue: Queue, time_ms: int) -> Rules:
        altered, settings = queue.altered_n == n, queue.settings
        return Rules(
            time_ms,
            queue.head.next_lease,
            None if altered else settings.max_attempts,
            None if altered else 1000 * settings.done_retention_s,
            settings.paused and not altered,
            queue.name in self.delete_asked,
        )

    def _apply(self, n: int, queue: Queue, body: QueueOperation) -> set[int]:
        """The deltas, on naive pages. -> the messages that they are about"""
        touched: set[int] = set()
        for delta in body.deltas:
            page = queue.pages.setdefault((delta.kind, delta.page), {})
            for key in delta.removed.tolist():
                if key not in page:
                    self._wrong(n, f"{queue.name}: {key} is not on {delta.kind!r} {delta.page}")
                    continue
                touched.add(page.pop(key)[0])
            for entry in () if delta.put is None else delta.put:
                key, message_id = int(entry[KEY_FIELD[delta.kind]]), int(entry["message_id"])
                if key in page and delta.kind is not PageKind.IN_FLIGHT:
                    self._wrong(n, f"{queue.name}: {key} is twice on {delta.kind!r} {delta.page}")
                page[key] = message_id, _where(delta.kind, entry)
                touched.add(message_id)
        return touched

    def _move(
        self,
        n: int,
        queue: Queue,
        message_id: int,
        held: Held,
        after: Where | None,
        rules: Rules,
        effect: Effect,
        released: Counter[int],
    ) -> None:
        before = held.where
        if before is None:
            self._wrong(n, f"{queue.name}: message {message_id} had left, and is back: {after}")
            return
        move = judge(before, after, rules)
        if isinstance(move, str):
            text = f"{before} became {after} at {rules.now_ms}: {move}"
            self._wrong(n, f"{queue.name}, message {message_id}: {text}")
            return
        effect.moves.setdefault(move, {})[message_id] = before.lease
        if before.lease_ms > rules.now_ms:
            effect.alive.add(before.lease)
        if move is Move.SAME:
            held.paged_n = n
            return
        if move is Move.CLAIMED and after is not None:
            effect.claimed.append((message_id, after))
        if move in (Move.RETURNED, Move.FAILED) or (move is Move.CLAIMED and before.lease):
            held.failures += 1
        if move is Move.DONE:
            released[self.messages.by_id[message_id].offset] += 1
        held.where, held.n = after, n

    def _count(
        self, n: int, queue: Queue, head: QueueHead, effect: Effect, entered: int, time_ms: int
    ) -> None:
        before, moves = queue.head, effect.moves
        left = moves.get(Move.LEFT, {})
        purged, expired = head.purged - before.purged, head.expired - before.expired
        # A lease that ended after the retention may be the last move of what is purged.
        old = [m for m in left if self.messages.by_id[m].deadline_ms < time_ms]
        told = (head.routed - before.routed, head.done - before.done, head.failed - before.failed)
        failed = len(moves.get(Move.FAILED, {})) + len(moves.get(Move.WORN, {}))
        truth = (entered, len(moves.get(Move.DONE, {})), failed)
        if told != truth or purged + expired != len(left) or expired > len(old):
            text = f"counts {told}, {purged} purged, {expired} expired; truly {truth}, left {left}"
            self._wrong(n, f"{queue.name} {text}, {old} of them old")
        if purged and queue.name not in self.purge_asked | self.delete_asked:
            self._wrong(n, f"{queue.name}: {purged} are purged, and nobody asked for it")
        leases = range(before.next_lease, head.next_lease)
        effect.claimed.sort(key=lambda found: found[1].lease)
        if [where.lease for _, where in effect.claimed] != list(leases):
            self._wrong(n, f"{queue.name}: {effect.claimed} were claimed under {leases}")
        here = [where.kind for held in queue.messages.values() if (where := held.where)]
        kept = sum(kind is not PageKind.DONE for kind in here)
        if head.routed != kept + head.done + head.expired + head.purged:
            self._wrong(n, f"{queue.name} holds {kept} of {head}")

    def _first(self, n: int, queue: Queue, effect: Effect, time_ms: int) -> None:
        """U4. Leases are numbered in the order of the answer."""
        taken = [(w.priority, w.visible_ms, m) for m, w in effect.claimed]
        if taken != sorted(taken):
            self._wrong(n, f"{queue.name}: claimed in the order {taken}")
        left = queue.available(time_ms) if taken else []
        if left:
            where = queue.messages[left[0]].where
            assert where is not None, "it is available"
            if (where.priority, where.visible_ms, left[0]) < taken[-1]:
                self._wrong(n, f"{queue.name}: {taken} were claimed before {left[0]} {where}")

    # -- U6

    def _takers(
        self,
        n: int,
        body: bytes,
        time_ms: int,
        taken: Counter[int],
        released: Counter[int],
        named: set[str],
    ) -> None:
        """What the operations of this request must have told. The last part of a deletion has no
        operation: the queue is gone."""
        operation = decode_taken_operation(body)
        counts = dict(zip(operation.taken.tolist(), operation.counts.tolist(), strict=True))
        if counts != dict(+taken):
            self._wrong(n, f"takers are {counts}, truly {+taken}")
        for offset, count in counts.items():
            message = self.messages.by_offset[offset]
            message.takers += count
            message.dead_ms = None  # a new queue may want what the others are done with
        let_go = Counter(operation.released.tolist())
        if (+released) - let_go:
            self._wrong(n, f"{+released} are done with, and {let_go} released")
        more = let_go - released
        if more and not named:
            self._wrong(n, f"{more} are released, and nobody is done with them")
        for offset in let_go:
            message = self.messages.by_offset[offset]
            message.takers -= 1
            if message.takers == 0 and not message.dead:
                message.dead_ms = time_ms
            if message.takers < 0:
                self._wrong(n, f"message {message.id} is released more often than it was taken")
        for offset in operation.gone.tolist():
            self._gone(n, self.messages.by_offset[offset], time_ms)
        taken.clear()
        released.clear()

    def _gone(self, n: int, message: Message, time_ms: int) -> None:
        message.gone = True
        if message.deadline_ms < time_ms:
            return
        needed = [
            queue.name
            for queue in self.living()
            if (held := queue.messages.get(message.id)) is not None
            and held.where is not None
            and held.where.kind is not PageKind.DONE
        ]
        if needed or not message.dead:
            self._wrong(n, f"{message} is removed, and {needed} need it")


def _found(queue: Queue, message_id: int) -> list[tuple[int, Where]]:
    return [
        (number, where)
        for page in queue.pages.values()
        for number, where in page.values()
        if number == message_id
    ]


_FIELDS = {
    "priority": "priority",
    "attempts": "attempts",
    "visible_at_ms": "visible_ms",
    "retention_deadline_ms": "deadline_ms",
    "offset": "offset",
    "lease_number": "lease",
    "lease_deadline_ms": "lease_ms",
    "claimed_at_ms": "claimed_ms",
    "done_at_ms": "ended_ms",
    "failed_at_ms": "ended_ms",
}


def _where(kind: PageKind, entry: np.void) -> Where:
    names = entry.dtype.names or ()
    return Where(kind, **{_FIELDS[name]: int(entry[name]) for name in names if name in _FIELDS})
