"""Queue requests: publishing, claiming, settling, setting up.

Contract     Each method is one request of a door. What it replies with is durable. A claim that may
             wait is answered at once where there is something and nobody waits for it; else it
             stands in the queue's line (turns.py), so that no other one that waits overtakes it,
             and is asked again when messages arrive, become visible or come back. One that does not
             wait takes what is there. Payloads over
             INLINE_BYTES become objects before their message is committed; one whose message never
             was is collected after a while.
Parts        A batch that is larger than PART_BYTES is committed in parts, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np

from penstock.broker.commit import Committer, Shown
from penstock.broker.queueahead import Ahead
from penstock.broker.queueanswers import (
    DoneMessage,
    FailedMessage,
    Page,
    QueueInfo,
    QueueMessage,
)
from penstock.broker.queuereading import Found, Reading
from penstock.broker.turns import Turns
from penstock.clock import Clock
from penstock.codec.attempts import Attempt
from penstock.codec.keys import Kind, secret_key
from penstock.codec.queueoperation import PageKind
from penstock.codec.queuestate import IN_FLIGHT, Entries
from penstock.codec.scalars import NEVER_MS
from penstock.errors import CorruptError, InvalidError, PenstockError
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, NameState, list_names, load_name, name_state_key
from penstock.log.decision import StateKey, Step
from penstock.queue.admin import (
    Bounds,
    Purged,
    alter_step,
    configure_step,
    create_step,
    delete_step,
    purge_step,
)
from penstock.queue.allqueues import ALL_QUEUES, AllQueues, load_all_queues
from penstock.queue.expire import clear_step
from penstock.queue.item import (
    INLINE_BYTES,
    PAYLOAD_BYTES_MAX,
    Item,
    PreparedBatch,
    payloads_of,
)
from penstock.queue.lease import (
    Claimed,
    ack_step,
    check_lease,
    claim_step,
    extend_step,
    fail_step,
    leases_of,
    release_step,
)
from penstock.queue.lists import Redriven, list_page, read_attempts, redrive_step
from penstock.queue.message import Content
from penstock.queue.peek import peek_step
from penstock.queue.publish import (
    publish_step,
    reserve_step,
    spilled_uri,
)
from penstock.queue.receipt import KEY_BYTES, SECRET, make_receipts, open_receipts
from penstock.queue.state import (
    QueueState,
    load_queue,
    next_ms,
    queue_name,
    queue_state_key,
)
from penstock.queue.stats import Stats, claimable, stats_step
from penstock.store.objects import Objects
from penstock.stream.glob import compile_glob

PART_BYTES = 4 << 20
#: What a message costs in a commit besides its own bytes, and what it costs in each queue.
_MESSAGE_BYTES = 200
_ENTRY_BYTES = 36
#: An answer holds messages until it is so large.
ANSWER_BYTES = 128 << 20
#: Failed messages are listed so many at a time, until they are so large together.
LIST_COUNT = 4
LIST_BYTES = 16 << 20
NONE = np.zeros(0, IN_FLIGHT)
NO_BOUNDS = Bounds(0, 0, 0)


class Queues:
    def __init__(
        self, committer: Committer, cache: NodeCache, clock: Clock, objects: Objects
    ) -> None:
        self._committer = committer
        self._cache = cache
        self._clock = clock
        self._objects = objects
        self._reading = Reading(committer, cache, objects)
        self._ahead = Ahead(committer, self._reading)
        self.fresh = self._reading.fresh
        self._secret: bytes | None = None
        self._turns = Turns(self._available, self._set_alarm)
        self._due_ms: dict[LogName, int] = {}
        self._alarms: dict[LogName, asyncio.TimerHandle] = {}
        self._generated = 0
        self._process = clock.entropy(4).hex()

    # -- setting up

    async def create(
        self, name: LogName, *, start: Literal["first", "new"] = "new", **options: Any
    ) -> None:
        secret = self._clock.entropy(KEY_BYTES)
        await self._committer.submit(create_step(name, options, start=start, secret=secret))

    async def alter(self, name: LogName, **options: Any) -> None:
        await self._committer.submit(alter_step(name, options))

    async def pause(self, name: LogName) -> None:
        await self.alter(name, paused=True)

    async def play(self, name: LogName) -> None:
        await self.alter(name, paused=False)

    async def delete(self, name: LogName) -> bool:
        while True:
            (existed,) = await self._committer.submit(delete_step(name))
            if existed is not None:
                self._ahead.forget(name)
                return bool(existed)

    async def purge(self, name: LogName, *, failed: bool = False) -> int:
        """What is available, delayed and in flight when it begins, or what has failed by then, and
        perhaps what comes while it runs. -> how many"""
        purged = Purged(0, NO_BOUNDS, more=True)
        count = 0
        while purged.more:
            bounds = None if purged.bounds is NO_BOUNDS else purged.bounds
            (purged,) = await self._committer.submit(purge_step(name, bounds, failed=failed))
            count += purged.count
        return count

    async def configure(self, *, reclaim: Literal["done", "retention"]) -> None:
        await self._committer.submit(configure_step(reclaim))

    async def names(self, pattern: str = "*") -> list[str]:
        matches = compile_glob(pattern)

        async def query(view: Shown) -> list[str]:
            return [name async for name, _ in list_names(view.store, Kind.QUEUE) if matches(name)]

        return await self._committer.read(query)

    async def describe(self, name: LogName) -> QueueInfo:
        async def query(view: Shown) -> QueueInfo:
            state = await load_queue(view, name)
            row = (await load_name(view, name)).row
            settings = state.settings
            return QueueInfo(
                name=state.name,
                filter=settings.filter_text,
                priority=settings.priority_text,
                lease_ms=settings.lease_ms,
                max_lease_ms=settings.max_lease_ms,
                max_attempts=settings.max_attempts,
                backoff=settings.backoff,
                done_retention_s=settings.done_retention_s,
                paused=settings.paused,
                created_ms=0 if row is None else row.created_at_ms,
            )

        return await self._committer.read(query)

    async def stats(self, name: LogName) -> Stats:
        while True:
            (stats,) = await self._committer.submit(stats_step(name))
            if not stats.more:
                return stats  # type: ignore[no-any-return]

    # -- publishing

    async def publish(self, items: Sequence[Item]) -> list[int]:
        """-> an id for each, in their order"""
        begun = self._clock.monotonic()
        each = await self._message_bytes()
        if (whole := _whole(items, each)) is not None:
            return await self._publish(whole, begun)
        ids: list[int] = []
        for batch in await self._prepared(items, each):
            ids += await self._publish(batch)
        return ids

    async def prepared(self, items: Sequence[Item]) -> list[PreparedBatch]:
        """What `publish` would commit: for those who commit it together with something else."""
        each = await self._message_bytes()
        if (whole := _whole(items, each)) is not None:
            return [whole]
        return await self._prepared(items, each)

    async def _publish(self, batch: PreparedBatch, begun: float | None = None) -> list[int]:
        (published,) = await self._committer.submit(publish_step(batch), begun=begun)
        self._reading.fresh.add(published)
        ids: list[int] = published.ids
        return ids

    async def _message_bytes(self) -> int:
        """What a message costs besides its own bytes: it may enter every queue there is."""
        known: AllQueues | None = self._committer.states.get(ALL_QUEUES)
        if known is None:
            known = await self._committer.read(load_all_queues)
        return _MESSAGE_BYTES + _ENTRY_BYTES * len(known.names)

    async def _prepared(self, items: Sequence[Item], each: int) -> list[PreparedBatch]:
        """A large batch in parts, its large payloads as objects."""
        # Refused before anything is done.
        PreparedBatch([_shrunk(item) for item in items])
        await self._require({item.to for item in items if item.to is not None})
        if all(len(item.payload) <= INLINE_BYTES for item in items):
            return [PreparedBatch(part) for part in _parts(items, each)]
        # All of them get their ids now, so that they are in order.
        (ids,) = await self._committer.submit(reserve_step(len(items)))
        spilled = [
            await self._spilled(item, number) for item, number in zip(items, ids, strict=True)
        ]
        return [PreparedBatch(part) for part in _parts(spilled, each)]

    async def _require(self, names: set[str]) -> None:
        """Raise unless all these queues exist."""

        async def query(view: Shown) -> None:
            for name in sorted(names):
                await load_queue(view, queue_name(name))

        if names:
            await self._committer.read(query)

    async def _spilled(self, item: Item, number: int) -> Item:
        """With this id; a large payload becomes an object."""
        if len(item.payload) <= INLINE_BYTES:
            return msgspec.structs.replace(item, reserved=number)
        await self._objects.put(number, item.payload)
        uri = spilled_uri(number, item.payload)
        return msgspec.structs.replace(item, payload=b"", uri=uri, reserved=number)

    # -- claiming

    async def claim(
        self,
        name: LogName,
        count: int,
        *,
        wait_ms: int | None = 0,
        lease_ms: int | None = None,
        consumer: str | None = None,
    ) -> list[QueueMessage]:
        step = self._claim_step(name, count, consumer, lease_ms)
        claimed: list[Claimed] = []

        async def ask() -> int:
            found = Claimed(0, NONE, more=True)
            while found.more:
                found = await self._lease(name, step())
            claimed[:] = [found]
            self._due_ms[name] = found.next_ms
            return len(found.entries)

        waits = wait_ms != 0 and count > 0
        found = 0
        try:
            if not waits or (name not in self._turns and self._available(name)):
                found = await ask()
            if waits and not found:
                await self._committer.read(lambda view: _may_wait(view, name, lease_ms))
                seconds = None if wait_ms is None else wait_ms / 1000
                found = await self._turns.wait(name, ask, count, seconds) or 0
        finally:
            self._left(name)
        if waits and not found:
            await self._committer.verify()  # whoever lost the location does not answer
        return await self._given(name, claimed[0]) if claimed else []

    async def _lease(self, name: LogName, step: Step) -> Claimed:
        """What the step leases; where its caller goes away meanwhile, that is given back."""
        reply = self._committer.request(step)
        try:
            (found,) = await asyncio.shield(reply)
        except asyncio.CancelledError:
            reply.add_done_callback(partial(self._return, name))
            raise
        claimed: Claimed = found
        return claimed

    def _return(self, name: LogName, reply: asyncio.Future[list[Any]]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            (claimed,) = reply.result()
            self._give_back(name, claimed, claimed.entries)

    async def _given(self, name: LogName, claimed: Claimed) -> list[QueueMessage]:
        """The messages of these leases; who cannot be given them holds none."""
        try:
            return await self._claimed(name, claimed)
        except CorruptError:
            raise  # they stay leased: given back they would be the next ones again
        except BaseException:
            self._give_back(name, claimed, claimed.entries)
            raise

    def _claim_step(
        self, name: LogName, count: int, consumer: str | None, lease_ms: int | None
    ) -> Any:
        if consumer is None:
            self._generated += 1
            consumer = f"consumer-{self._process}-{self._generated}"
        who = consumer

        def step() -> Step:
            return claim_step(name, count, consumer=who, lease_ms=lease_ms)

        step()  # whatever is wrong with it is told before anybody waits
        return step

    async def _claimed(self, name: LogName, claimed: Claimed) -> list[QueueMessage]:
        """As many as one answer may hold; the leases of the others are given back. One that cannot
        be read stays leased, and fails like one that is never acknowledged."""
        entries = claimed.entries
        if not len(entries):
            return []
        key = await self._key()
        receipts = make_receipts(key, leases_of(claimed.queue, entries))
        columns: list[list[Any]] = [*_columns(entries, _CLAIMED), receipts]
        messages, end, damage = await self._messages(entries, columns)
        self._ahead.claimed(name, entries)
        self._give_back(name, claimed, entries[end:])
        if damage is not None and not messages:
            raise damage
        return messages

    async def _messages(
        self, entries: Entries, columns: Sequence[list[Any]]
    ) -> tuple[list[QueueMessage], int, CorruptError | None]:
        """As many as one answer may hold, without those that are gone: whose retention ended in
        this moment. -> also how far they go, and what was damaged among them"""
        messages: list[QueueMessage] = []
        size = end = 0
        damage: CorruptError | None = None
        async for part in self._reading.parts(entries):
            fields = [column[end : end + len(part)] for column in columns]
            whole = [each for each in part if each is not None and each.payload is not None]
            more = sum(len(each.payload or b"") for each in whole)
            if len(whole) == len(part) and size + more <= ANSWER_BYTES:  # nearly always
                messages += map(_message, whole, *fields)
                size += more
                end += len(part)
                continue
            for known, *values in zip(part, *fields, strict=True):
                found: Found = known
                if known is not None and known.uri is not None:
                    found = await self._reading.whole(known)
                if isinstance(found, Content):
                    messages.append(_message(found, *values))
                    size += len(found.payload or b"")
                elif found is not None:
                    damage = found
                end += 1
                if size > ANSWER_BYTES:
                    return messages, end, damage
        return messages, end, damage

    def _give_back(self, name: LogName, claimed: Claimed, entries: Entries) -> None:
        if len(entries):
            leases = leases_of(claimed.queue, entries)
            with contextlib.suppress(PenstockError):  # else they come again when they end
                self._committer.request(release_step(name, leases)).add_done_callback(_heard)

    async def peek(self, name: LogName, count: int) -> list[QueueMessage]:
        """The messages that would be claimed next."""
        if count < 0:
            raise InvalidError(f"count {count} is negative")

        (peeked,) = await self._committer.submit(peek_step(name, count))
        while peeked.more:
            await self._committer.submit(clear_step(name))
            (peeked,) = await self._committer.submit(peek_step(name, count))
        return (await self._messages(peeked.entries, _columns(peeked.entries, _AVAILABLE)))[0]

    # -- settling

    async def ack(self, name: LogName, receipts: Sequence[str]) -> list[bool]:
        return await self._settle(receipts, lambda leases: ack_step(name, leases))

    async def fail(
        self,
        name: LogName,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> list[bool]:
        return await self._settle(
            receipts, lambda leases: fail_step(name, leases, delay_ms=delay_ms, reason=reason)
        )

    async def release(self, name: LogName, receipts: Sequence[str]) -> list[bool]:
        return await self._settle(receipts, lambda leases: release_step(name, leases))

    async def extend(self, name: LogName, receipts: Sequence[str], lease_ms: int) -> list[bool]:
        return await self._settle(receipts, lambda leases: extend_step(name, leases, lease_ms))

    async def _settle(self, receipts: Sequence[str], make_step: Any) -> list[bool]:
        """One truth per receipt; forged ones are as stale as old ones."""
        begun = self._clock.monotonic()
        key = await self._key()
        leases, good = open_receipts(key, receipts)
        (found,) = await self._committer.submit(make_step(leases), begun=begun)
        truths = iter(found)
        return [each and next(truths) for each in good]

    async def _key(self) -> bytes:
        """The key of receipts. There is one as soon as there is a queue."""
        if self._secret is None:

            async def query(view: Shown) -> bytes | None:
                return await view.store.get(secret_key(SECRET))

            found = await self._committer.read(query)
            if found is None:
                return bytes(KEY_BYTES)  # no queue was ever made, so no receipt either
            if len(found) != KEY_BYTES:
                raise CorruptError(f"key of receipts: {len(found)} bytes, not {KEY_BYTES}")
            self._secret = found
        return self._secret

    # -- lists

    async def done(self, name: LogName, after: int = 0) -> Page:
        async def query(view: Shown) -> Page:
            listed = await list_page(view, name, PageKind.DONE, after)
            messages = [
                DoneMessage(
                    int(entry["message_id"]), int(entry["done_at_ms"]), int(entry["attempts"])
                )
                for entry in listed.entries
            ]
            return Page(messages, listed.next)

        return await self._committer.read(query)

    async def failed(self, name: LogName, after: int = 0) -> Page:
        listed = await self._committer.read(
            lambda view: list_page(view, name, PageKind.FAILED, after)
        )
        messages: list[FailedMessage] = []
        size = 0
        for at in range(0, len(listed.entries), LIST_COUNT):
            if size > LIST_BYTES:
                return Page(messages, listed.after(at))
            for message in await self._failed(name, listed.entries[at : at + LIST_COUNT]):
                messages.append(message)
                size += _size_of(message)
        return Page(messages, listed.next)

    async def _failed(self, name: LogName, entries: Entries) -> list[FailedMessage]:
        ids = entries["message_id"].tolist()

        async def query(view: Shown) -> list[tuple[Attempt, ...]]:
            return [await read_attempts(view, name, number) for number in ids]

        history = await self._committer.read(query)
        now_ms = self._committer.now_ms()
        messages: list[FailedMessage] = []
        contents = [found async for part in self._reading.parts(entries) for found in part]
        for entry, attempts, found in zip(entries, history, contents, strict=True):
            known = None if found is None else await self._reading.whole(found)
            expired = int(entry["retention_deadline_ms"]) < now_ms
            if isinstance(known, CorruptError) and not expired:
                raise known
            if isinstance(known, Content) and not expired:
                content = known
            else:
                content = Content(None, None, {}, 0, 0)
            messages.append(
                FailedMessage(
                    int(entry["message_id"]),
                    int(entry["failed_at_ms"]),
                    int(entry["attempts"]),
                    int(entry["priority"]),
                    content.payload,
                    content.uri,
                    content.headers,
                    attempts,
                )
            )
        return messages

    async def attempts(self, name: LogName, message_id: int) -> tuple[Attempt, ...]:
        return await self._committer.read(lambda view: read_attempts(view, name, message_id))

    async def redrive(self, name: LogName, ids: Collection[int] | None = None) -> Redriven:
        count = expired = 0
        after: int | None = 0
        while after is not None:
            (part,) = await self._committer.submit(redrive_step(name, ids, after))
            count += part.count
            expired += part.expired
            after = part.next
        return Redriven(count, expired, None)

    # -- who waits

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit: stir the queues that it may serve."""
        if not len(self._turns):
            return
        for key, state in states.items():
            match key:
                case ("queue", int()) if isinstance(state, QueueState):
                    self._turns.stir(LogName(Kind.QUEUE, state.name.encode()))
                case ("name", (Kind.QUEUE, bytes(text))):
                    self._turns.stir(LogName(Kind.QUEUE, text))  # deleted: who waits hears of it

    def _available(self, name: LogName) -> int:
        known: NameState | None = self._committer.states.get(name_state_key(name))
        state: QueueState | None = (
            None
            if known is None or known.row is None
            else self._committer.states.get(queue_state_key(known.row.id))
        )
        if state is None:
            return 1  # to find out
        now_ms = self._committer.now_ms()
        if state.settings.paused:
            self._due_ms[name] = NEVER_MS  # playing it stirs those who wait
            return 0
        self._due_ms[name] = next_ms(state.lines)
        ended = state.lines[PageKind.IN_FLIGHT].least("deadline_ms", NEVER_MS) <= now_ms
        return claimable(state.lines[PageKind.AVAILABLE], now_ms) + ended

    def _set_alarm(self, name: LogName) -> None:
        self._drop_alarm(name)
        at_ms = self._due_ms.get(name, NEVER_MS)
        if at_ms == NEVER_MS:
            return
        seconds = max(at_ms - self._committer.now_ms(), 0) / 1000 + 0.001
        self._alarms[name] = asyncio.get_running_loop().call_later(
            min(seconds, 3600.0), self._turns.stir, name
        )

    def _drop_alarm(self, name: LogName) -> None:
        alarm = self._alarms.pop(name, None)
        if alarm is not None:
            alarm.cancel()

    def _left(self, name: LogName) -> None:
        if name not in self._turns:
            self._drop_alarm(name)
            self._due_ms.pop(name, None)

    @property
    def waiting(self) -> int:
        return len(self._turns)

    def reopened(self) -> None:
        """Whatever memory knew is gone: everybody who waits looks again."""
        self._reading.clear()
        self._ahead.clear()
        for name in self._turns.waiting():
            self._turns.stir(name)

    def finished(self, error: PenstockError) -> None:
        self._ahead.clear()
        self._turns.end(error)


_CLAIMED = [
    "message_id", "priority", "attempts", "visible_at_ms", "claimed_at_ms", "lease_deadline_ms",
]  # fmt: skip
_AVAILABLE = _CLAIMED[:4]


def _columns(entries: Entries, fields: Sequence[str]) -> list[list[int]]:
    return [entries[field].tolist() for field in fields]


def _message(
    content: Content,
    message_id: int,
    priority: int,
    attempts: int,
    visible_at_ms: int,
    claimed_at_ms: int = 0,
    lease_deadline_ms: int = 0,
    receipt: str = "",
) -> QueueMessage:
    return QueueMessage(
        message_id,
        content.payload,
        content.uri,
        content.headers,
        priority,
        attempts,
        content.created_at_ms,
        content.received_at_ms,
        visible_at_ms,
        claimed_at_ms,
        lease_deadline_ms,
        receipt,
        content.dedup_id,
    )


def _size_of(message: FailedMessage) -> int:
    told = sum(len(each.reason) + len(each.consumer) for each in message.history)
    headers = sum(map(len, message.headers)) + sum(map(len, message.headers.values()))
    return len(message.payload or b"") + headers + told


async def _may_wait(view: Shown, name: LogName, lease_ms: int | None) -> None:
    """Whatever is wrong with a claim is told before it waits."""
    check_lease((await load_queue(view, name)).settings, lease_ms)


def _heard(reply: asyncio.Future[list[Any]]) -> None:
    """Nobody waits for it; an error is none that anybody could do something about."""
    if not reply.cancelled():
        reply.exception()


def _bytes_of(item: Item) -> int:
    """What it is in a commit."""
    headers = item.headers
    return len(item.payload) + sum(map(len, headers)) + sum(map(len, headers.values()))


def _whole(items: Sequence[Item], each: int) -> PreparedBatch | None:
    """All of them, where they are one commit without objects."""
    sizes = list(map(len, payloads_of(items)))
    if not items or max(sizes) > INLINE_BYTES or sum(sizes) + each * len(items) > PART_BYTES:
        return None
    batch = PreparedBatch(items)
    return batch if batch.size + each * len(items) <= PART_BYTES else None


def _shrunk(item: Item) -> Item:
    """As it will be when a large payload is an object: for checking."""
    if len(item.payload) > PAYLOAD_BYTES_MAX:
        raise InvalidError(
            f"payload of {len(item.payload):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are allowed",
            hint="put it somewhere yourself and publish its penstock.URI",
        )
    return item if len(item.payload) <= INLINE_BYTES else msgspec.structs.replace(item, payload=b"")


def _parts(items: Sequence[Item], each: int) -> list[Sequence[Item]]:
    parts: list[Sequence[Item]] = []
    begin = size = 0
    for i, item in enumerate(items):
        mine = _bytes_of(item) + each
        size += mine
        if size > PART_BYTES and i > begin:
            parts.append(items[begin:i])
            begin, size = i, mine
    parts.append(items[begin:])
    return parts if items else []
