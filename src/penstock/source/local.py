"""What one runner has in its hands: messages it received, and the shards they name. Pure.

Contract     `add` takes a message with what opening its shards told; the other calls report what
             became of shards. Each answers with the messages that are through: to acknowledge, or
             to drop without acknowledging. Nothing is acknowledged before all its shards are
             terminal.
States       of a shard: add --> [ready] -- take --> [reading] -- sent --> [awaiting commit]
                                   ^----------- again ---------'---------------'
                                                               '<--- resume ---'
                         end, from any of them --> [completed]; drop --> not ours any more
Many files   in one message: one that another process works on, or that failed and is to be tried
             again, only keeps the message from being acknowledged. The others are loaded.
Duplicates   A shard is read once however many messages name it; each of them waits for it. A
             message that is delivered again while it is here keeps its shards, under the new lease.
Bounded      `room` says how many more shards may come; completed ones are remembered, as ids, up to
             a number. That is for telling duplicates in a report, not for deciding: somebody may
             have reopened a shard, so what to do with one is asked of the broker each time.
Not here     Leases (visibility.py), what to do with a shard (coordinate.py), calls (the runner's).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum

import msgspec

from penstock.source.coordinate import Course, course_of
from penstock.source.queueport import Received
from penstock.source.requests import Shard

CAPACITY = 10_000
REMEMBERED = 100_000


class Work(Enum):
    READY = "ready"
    READING = "reading"
    AWAITING = "awaiting commit"


class Through(msgspec.Struct, frozen=True):
    """Messages that nothing is left to do for."""

    acknowledge: list[Received] = []
    drop: list[Received] = []  # they come again, to whoever


class _Held:
    """A message, and which of its shards are not through."""

    __slots__ = ("blocked", "received", "waits_for")

    def __init__(self, received: Received) -> None:
        self.received = received
        self.waits_for: set[str] = set()
        self.blocked = False  # something of it is not ours to finish


class _Work:
    __slots__ = ("messages", "shard", "work")

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.work = Work.READY
        self.messages: set[str] = set()


class Local:
    def __init__(self, *, capacity: int = CAPACITY, remembered: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._remembered = remembered
        self._messages: dict[str, _Held] = {}
        self._shards: dict[str, _Work] = {}
        self._completed: OrderedDict[str, None] = OrderedDict()

    # -- asking

    @property
    def room(self) -> int:
        """How many more shards may come in; one message may bring more than that."""
        return max(0, self._capacity - len(self._shards))

    @property
    def idle(self) -> bool:
        return not self._messages

    def completed(self, shard_id: str) -> bool:
        """It was terminal when this process saw it last."""
        return shard_id in self._completed

    def working(self, *works: Work) -> list[Shard]:
        """Those in these states; all without any. For heartbeats."""
        return [each.shard for each in self._shards.values() if not works or each.work in works]

    def held(self) -> list[Received]:
        """The messages here, under their newest leases."""
        return [each.received for each in self._messages.values()]

    def messages_of(self, shard_id: str) -> list[Received]:
        work = self._shards.get(shard_id)
        return [] if work is None else [self._messages[each].received for each in work.messages]

    # -- what happens

    def add(self, received: Received, shards: Iterable[Shard]) -> Through:
        """A message, and its shards as they are after opening (and acquiring) them."""
        held = self._messages.get(received.id)
        if held is None:
            held = self._messages[received.id] = _Held(received)
        held.received = received
        held.blocked = False  # what blocked it may be over
        for shard in shards:
            match course_of(shard):
                case Course.DONE:
                    self._remember(shard.id)
                case Course.READ:
                    work = self._shards.setdefault(shard.id, _Work(shard))
                    work.messages.add(received.id)
                    held.waits_for.add(shard.id)
                case Course.ACQUIRE | Course.DROP:
                    held.blocked = True
        return self._through([received.id])

    def take(self, limit: int) -> list[Shard]:
        """Up to so many that are ready, in the order in which they came: they are read now."""
        found: list[Shard] = []
        for each in self._shards.values():
            if len(found) >= limit:
                break
            if each.work is Work.READY:
                each.work = Work.READING
                found.append(each.shard)
        return found

    def sent(self, shard_ids: Iterable[str]) -> None:
        """All of them was read; the commit is on its way."""
        for shard_id in shard_ids:
            work = self._shards[shard_id]
            assert work.work is Work.READING, f"{shard_id} is {work.work.value}"
            work.work = Work.AWAITING

    def resume(self, shard_ids: Iterable[str]) -> None:
        """The commit was refused for what they are; they are read once more, right now."""
        for shard_id in shard_ids:
            self._shards[shard_id].work = Work.READING

    def again(self, shards: Iterable[Shard]) -> None:
        """To be read (on) from these positions: a part was published, or a publish was refused."""
        for shard in shards:
            work = self._shards[shard.id]
            work.shard, work.work = shard, Work.READY

    def end(self, shard_ids: Iterable[str]) -> Through:
        """They are terminal, and that is durable."""
        touched: list[str] = []
        for shard_id in shard_ids:
            self._remember(shard_id)
            touched += self._leave(shard_id, blocks=False)
        return self._through(touched)

    def drop(self, shard_ids: Iterable[str]) -> Through:
        """They are not ours any more, or failed and are tried again when they come again."""
        touched: list[str] = []
        for shard_id in shard_ids:
            touched += self._leave(shard_id, blocks=True)
        return self._through(touched)

    def _leave(self, shard_id: str, *, blocks: bool) -> list[str]:
        work = self._shards.pop(shard_id, None)
        if work is None:
            return []
        for message_id in work.messages:
            held = self._messages[message_id]
            held.waits_for.discard(shard_id)
            held.blocked |= blocks
        return list(work.messages)

    def _remember(self, shard_id: str) -> None:
        self._completed[shard_id] = None
        self._completed.move_to_end(shard_id)
        while len(self._completed) > self._remembered:
            self._completed.popitem(last=False)

    def _through(self, message_ids: Iterable[str]) -> Through:
        through = Through([], [])
        for message_id in dict.fromkeys(message_ids):
            held = self._messages[message_id]
            if not held.waits_for:
                del self._messages[message_id]
                (through.drop if held.blocked else through.acknowledge).append(held.received)
        return through
