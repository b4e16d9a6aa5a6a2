"""The Python API of queues, once: `penstock.aio` shows these classes, blockingqueue.py makes them
block.

Contract     As api.py. Durations are seconds; what is kept in whole milliseconds or seconds is
             rounded up. Batches answer with one truth per message: False where the receipt is
             stale.
Lost broker  Looking, claiming, extending, pausing and playing go on by themselves, and so does
             publishing if every message has a dedup_id. A claim whose answer was lost has begun a
             lease that nobody holds: its messages come again when that ends. Whatever settles or
             removes (ack, fail, release, purge, redrive) is an UnavailableError: doing it again
             does no harm, but its answer may be False or 0 although it happened.
Not here     Messages to publish (publish.py), the loop of a consumer (consume.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from msgspec import UNSET, UnsetType

from penstock.broker.queueanswers import Page, QueueMessage
from penstock.client.checks import check_bool, check_int, milliseconds
from penstock.client.consume import LEFT, Holding, How, Manner, reason_of
from penstock.client.handles import AsyncHandle, Handle
from penstock.client.link import QueueErrand
from penstock.client.publish import seconds_up, time_of
from penstock.client.queuebackend import QueueBackend
from penstock.client.queueshapes import (
    Attempt,
    DoneMessage,
    FailedMessage,
    QueuedMessage,
    QueueInfo,
    Redriven,
)
from penstock.client.thread import Work
from penstock.codec.scalars import U16_MAX
from penstock.errors import InvalidError
from penstock.queue.backoff import Backoff, check_backoff
from penstock.queue.state import queue_name
from penstock.queue.stats import Stats

if TYPE_CHECKING:
    from penstock.client.api import AsyncDatabase

R = TypeVar("R")
M = TypeVar("M")


class ClaimedFields(QueuedMessage):
    """What claimed messages have besides what all have."""

    __slots__ = ("_owner",)

    def __init__(self, found: QueueMessage, owner: Holding | None = None) -> None:
        self._found = found
        self._owner = owner  # the loop it was handed out by, which keeps its lease

    @property
    def claimed_at(self) -> datetime:
        return time_of(self._found.claimed_at_ms)

    @property
    def lease_deadline(self) -> datetime:
        """As it was when the message was claimed."""
        return time_of(self._found.lease_deadline_ms)

    @property
    def receipt(self) -> str:
        """Proves who holds the lease; needed to settle the message."""
        return self._found.receipt

    def _settle(self) -> None:
        """It is being settled by hand: its loop has nothing more to do with it."""
        if self._owner is not None:
            self._owner.forget(self.receipt)


class AsyncClaimedMessage(ClaimedFields):
    """A message under a lease: it is nobody else's until that ends."""

    __slots__ = ("_queue",)

    def __init__(
        self, queue: AsyncQueue, found: QueueMessage, owner: Holding | None = None
    ) -> None:
        super().__init__(found, owner)
        self._queue = queue

    def ack(self) -> Work[bool]:
        """It is done. False: the receipt is stale, and nothing happened."""
        return _first(self._queue.ack([self]))

    def fail(self, delay: float | None = None, reason: str | None = None) -> Work[bool]:
        """The attempt failed: it comes again, after `delay` seconds or as the queue backs off, and
        after the last attempt it has failed. False: the receipt is stale."""
        return _first(self._queue.fail([self], delay=delay, reason=reason))

    def extend(self, seconds: float) -> Work[bool]:
        """Let the lease last so long from now. False: the receipt is stale."""
        return _first(self._queue.extend([self], seconds))

    def release(self) -> Work[bool]:
        """Give it back; that counts no attempt. False: the receipt is stale."""
        return _first(self._queue.release([self]))


async def _first(truths: Awaitable[list[bool]]) -> bool:
    return (await truths)[0]


class AsyncQueue(AsyncHandle):
    """Messages that are claimed by one consumer at a time, until they are acknowledged."""

    def __init__(self, database: AsyncDatabase, name: str) -> None:
        self._name = queue_name(name)
        self._database = database
        self._closed = False
        self.name = name

    def _require(self) -> None:
        if self._closed:
            raise InvalidError(f"the handle on queue {self.name!r} is closed")
        self._database._require()

    def _run(
        self, errand: QueueErrand[R], *, again: bool = False, block_ms: int | None = 0
    ) -> Work[R]:
        self._require()
        return self._database._run_queues(errand, again=again, block_ms=block_ms)

    # -- claiming

    def claim(
        self,
        n: int = 1,
        wait: float = 0,
        lease: float | None = None,
        consumer: str | None = None,
    ) -> Work[list[AsyncClaimedMessage]]:
        """Up to `n` messages, under a lease of `lease` seconds or as the queue has it.

        Where there are none, `wait` waits so many seconds for the first one.
        """
        return self._claimed(self._claim(n, wait, lease, consumer))

    async def _claimed(self, claim: Work[list[QueueMessage]]) -> list[AsyncClaimedMessage]:
        return [AsyncClaimedMessage(self, found) for found in await claim]

    def _claim(
        self,
        n: int = 1,
        wait: float = 0,
        lease: float | None = None,
        consumer: str | None = None,
    ) -> Work[list[QueueMessage]]:
        check_int("n", n)
        check_consumer(consumer)
        lease_ms = None if lease is None else finite_ms("lease", lease)
        name = self._name
        return self._run(
            lambda queues, left_ms: queues.claim(
                name, n, wait_ms=left_ms, lease_ms=lease_ms, consumer=consumer
            ),
            again=True,
            block_ms=milliseconds("wait", wait),
        )

    def peek(self, n: int = 1) -> Work[list[QueuedMessage]]:
        """The messages that would be claimed next; nothing happens to them."""
        check_int("n", n)
        name = self._name

        async def look(queues: QueueBackend, _: int | None) -> list[QueuedMessage]:
            return [QueuedMessage(found) for found in await queues.peek(name, n)]

        return self._run(look, again=True)

    # -- settling

    def ack(self, messages: Messages) -> Work[list[bool]]:
        """They are done. -> for each whether its receipt was good"""
        listed = _listed(messages)
        receipts = _receipts(listed)
        work = self._run(lambda queues, _: queues.ack(self._name, receipts))
        _mark(listed)
        return work

    def fail(
        self, messages: Messages, delay: float | None = None, reason: str | None = None
    ) -> Work[list[bool]]:
        """The attempts failed: they come again, after `delay` seconds or as the queue backs off.
        -> for each whether its receipt was good"""
        listed = _listed(messages)
        receipts = _receipts(listed)
        delay_ms = None if delay is None else finite_ms("delay", delay)
        if reason is not None and not isinstance(reason, str):
            raise InvalidError(f"reason is text, not {type(reason).__name__}")
        work = self._run(
            lambda queues, _: queues.fail(
                self._name, receipts, delay_ms=delay_ms, reason=reason or ""
            )
        )
        _mark(listed)
        return work

    def extend(self, messages: Messages, seconds: float) -> Work[list[bool]]:
        """Let the leases last so long from now. -> for each whether its receipt was good"""
        receipts, lease_ms = _receipts(_listed(messages)), finite_ms("seconds", seconds)
        return self._run(
            lambda queues, _: queues.extend(self._name, receipts, lease_ms), again=True
        )

    def release(self, messages: Messages) -> Work[list[bool]]:
        """Give them back; that counts no attempt. -> for each whether its receipt was good"""
        listed = _listed(messages)
        receipts = _receipts(listed)
        work = self._run(lambda queues, _: queues.release(self._name, receipts))
        _mark(listed)
        return work

    # -- the loop of a consumer

    @overload
    def consume(
        self,
        handler: None = None,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float | None = None,
        heartbeat: float | None = None,
        idle: float | None = None,
    ) -> AsyncConsumer: ...

    @overload
    def consume(
        self,
        handler: Callable[[AsyncClaimedMessage], Awaitable[object]],
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float | None = None,
        heartbeat: float | None = None,
        idle: float | None = None,
    ) -> Work[None]: ...

    def consume(
        self,
        handler: Callable[[AsyncClaimedMessage], Awaitable[object]] | None = None,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float | None = None,
        heartbeat: float | None = None,
        idle: float | None = None,
    ) -> AsyncConsumer | Work[None]:
        """One message after the other, for ever, or until there was none for `idle` seconds.

        A message is acknowledged when the loop asks for the next one. `with` around the loop tells
        an exception from the end: then the message is failed with the exception's text, and
        acknowledged if the block ends without one. A loop without `with` cannot tell them apart:
        left by `break` or by an exception, its last message counts as a failed attempt, unless it
        was settled by hand. With a `handler`, a message is acknowledged when that returns and
        failed when it raises.

        Up to `prefetch` messages are claimed ahead; those that were not begun are given back at the
        end. Leases are extended at a third of their length, or every `heartbeat` seconds; 0 turns
        that off.
        """
        messages = AsyncConsumer(self, self._hold(consumer, prefetch, lease, heartbeat, idle))
        return messages if handler is None else _handle(messages, handler)

    def _hold(
        self,
        consumer: str | None,
        prefetch: int,
        lease: float | None,
        heartbeat: float | None,
        idle: float | None,
    ) -> Holding:
        self._require()
        check_consumer(consumer)
        check_int("prefetch", prefetch, least=1)
        session = self._database._session
        if heartbeat is not None:
            finite_ms("heartbeat", heartbeat)
        manner = Manner(
            consumer=consumer or generated(session.clock.entropy(3)),
            prefetch=prefetch,
            lease_ms=None if lease is None else finite_ms("lease", lease),
            heartbeat=heartbeat,
            idle_ms=None if idle is None else milliseconds("idle", idle),
        )
        holding = Holding(self._name, manner, session.link, session.thread, session.clock)
        session.closers.add(holding.close)
        return holding

    # -- looking

    def stats(self) -> Work[Stats]:
        """available (claimable now), delayed, in_flight, done, failed; and how many there ever
        were: routed, acked, expired, purged."""
        return self._run(lambda queues, _: queues.stats(self._name), again=True)

    def describe(self) -> Work[QueueInfo]:
        """The settings."""
        name = self._name

        async def described(queues: QueueBackend, _: int | None) -> QueueInfo:
            return QueueInfo.of(await queues.describe(name))

        return self._run(described, again=True)

    def done(self) -> Pages[DoneMessage]:
        """The messages that are done, as long as the queue keeps them; page by page."""
        self._require()
        return Pages(self, lambda queues, at: queues.done(self._name, at), DoneMessage.of)

    def failed(self) -> Pages[FailedMessage]:
        """The messages that have failed for good; page by page."""
        self._require()
        return Pages(self, lambda queues, at: queues.failed(self._name, at), FailedMessage.of)

    def attempts(self, message_id: int) -> Work[list[Attempt]]:
        """The failed attempts of a message, oldest first."""
        check_int("message_id", message_id)
        name = self._name

        async def found(queues: QueueBackend, _: int | None) -> list[Attempt]:
            return list(map(Attempt.of, await queues.attempts(name, message_id)))

        return self._run(found, again=True)

    # -- the queue itself

    def redrive(self, ids: Iterable[int] | None = None) -> Work[Redriven]:
        """Make failed messages available again, all or these, with no attempts on their account.
        -> how many; `.expired` were left out because their retention is over"""
        chosen = None if ids is None else _ids(ids)
        name = self._name

        async def redriven(queues: QueueBackend, _: int | None) -> Redriven:
            return Redriven.of(await queues.redrive(name, chosen))

        return self._run(redriven)

    def pause(self) -> Work[None]:
        """Stop claims; everything else goes on."""
        return self._run(lambda queues, _: queues.pause(self._name), again=True)

    def play(self) -> Work[None]:
        """End a pause."""
        return self._run(lambda queues, _: queues.play(self._name), again=True)

    def purge(self, *, failed: bool = False) -> Work[int]:
        """Remove what is available, delayed and in flight; or, with `failed`, the messages that
        have failed for good. -> how many"""
        check_bool("failed", failed)
        return self._run(lambda queues, _: queues.purge(self._name, failed=failed))

    def alter(
        self,
        *,
        filter: str | UnsetType | None = UNSET,
        priority: str | UnsetType | None = UNSET,
        lease: float | UnsetType = UNSET,
        max_lease: float | UnsetType = UNSET,
        max_attempts: int | UnsetType = UNSET,
        backoff: float | Backoff | UnsetType | None = UNSET,
        done_retention: float | UnsetType = UNSET,
    ) -> Work[None]:
        """Change the settings that are given. Messages that are in the queue stay there."""
        options = queue_options(
            filter=filter,
            priority=priority,
            lease=lease,
            max_lease=max_lease,
            max_attempts=max_attempts,
            backoff=backoff,
            done_retention=done_retention,
        )
        return self._run(lambda queues, _: queues.alter(self._name, **options))

    async def close(self) -> None:
        """Give up this handle; the queue and the location stay open."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self.name!r} of {self._database.location!r}>"


# ---- arguments --------------------------------------------------------------------------------

Messages = Iterable[ClaimedFields | str] | ClaimedFields | str
_MESSAGE = (ClaimedFields, str)


def _listed(messages: object) -> list[ClaimedFields | str]:
    if isinstance(messages, _MESSAGE):
        return [messages]
    if isinstance(messages, bytes) or not isinstance(messages, Iterable):
        raise InvalidError(f"messages are a list, not {type(messages).__name__}")
    found = list(messages)
    for message in found:
        if not isinstance(message, _MESSAGE):
            raise InvalidError(
                f"a claimed message or its receipt is needed, not {type(message).__name__}"
            )
    return found


def _receipts(messages: list[ClaimedFields | str]) -> list[str]:
    return [each if isinstance(each, str) else each._found.receipt for each in messages]


def _mark(messages: list[ClaimedFields | str]) -> None:
    for message in messages:
        if not isinstance(message, str):
            message._settle()


def _ids(ids: object) -> list[int]:
    if isinstance(ids, int | str | bytes) or not isinstance(ids, Iterable):
        raise InvalidError(f"ids are a list, not {ids!r}")
    found = list(ids)
    for each in found:
        check_int("id", each)
    return found


def finite_ms(what: str, seconds: object) -> int:
    ms = milliseconds(what, seconds)
    if ms is None:
        raise InvalidError(f"{what} is finite")
    return ms


def check_consumer(consumer: object) -> None:
    if consumer is not None and not isinstance(consumer, str):
        raise InvalidError(f"consumer is text, not {type(consumer).__name__}")


def generated(entropy: bytes) -> str:
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{entropy.hex()}"


def queue_options(**given: Any) -> dict[str, Any]:
    """Settings as the API has them -> as a broker takes them."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is UNSET:
            continue
        match name:
            case "filter" | "priority":
                if value is not None and not isinstance(value, str):
                    raise InvalidError(f"{name} is SQL text, not {type(value).__name__}")
                # An empty text would be a different thing in each door.
                if value is not None and not value.strip():
                    raise InvalidError(f"{name} is empty", hint="None is no expression")
                options[name] = value
            case "lease" | "max_lease":
                options[f"{name}_ms"] = finite_ms(name, value)
            case "max_attempts":
                check_int(name, value, most=U16_MAX)
                options[name] = value
            case "backoff":
                options[name] = check_backoff(value)
            case _:
                options["done_retention_s"] = seconds_up(name, value)
    return options


# ---- pages ------------------------------------------------------------------------------------


class Pages(AsyncIterator[M], Generic[M]):
    """A list of a queue, one page at a time behind the scenes."""

    def __init__(
        self,
        queue: AsyncQueue,
        ask: Callable[[QueueBackend, int], Awaitable[Page]],
        shape: Callable[[Any], M],
    ) -> None:
        self._queue = queue
        self._ask = ask
        self._shape = shape
        self._found: list[M] = []
        self._next: int | None = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        while not self._found:
            page = await self.page()
            if page is None:
                raise StopAsyncIteration
            self._found = page[::-1]
        return self._found.pop()

    async def page(self) -> list[M] | None:
        """The next ones; None at the end."""
        at = self._next
        if at is None:
            return None
        page = await self._queue._run(lambda queues, _: self._ask(queues, at), again=True)
        self._next = page.next
        return [self._shape(found) for found in page.messages]


# ---- the loop ---------------------------------------------------------------------------------


def last_words(error: BaseException | None) -> tuple[How, str]:
    """What becomes of the message at which a `with` block ended."""
    if error is None:
        return "ack", ""
    if isinstance(error, Exception):
        return "fail", reason_of(error)
    return "release", ""  # interrupted: it says nothing about the message


class AsyncConsumer(Handle):
    """The messages of `consume`: an endless iterator."""

    def __init__(self, queue: AsyncQueue, holding: Holding) -> None:
        self._queue = queue
        self._holding = holding
        self._current: AsyncClaimedMessage | None = None
        self._closed = False

    @property
    def lost(self) -> int:
        """How many messages were lost to time, or to somebody else, before they were settled."""
        return self._holding.lost

    def stop(self) -> None:
        """End the loop after the message that is being worked on; from any thread."""
        self._holding.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncClaimedMessage:
        holding = self._holding
        current, self._current = self._current, None
        if current is not None:
            holding.finish(current.receipt)
        if self._closed:
            raise StopAsyncIteration
        while (found := holding.begin()) is None:
            self._queue._require()
            if not await self._run(holding.refill()):
                await self.close()
                raise StopAsyncIteration
        self._current = AsyncClaimedMessage(self._queue, found, holding)
        return self._current

    def _run(self, work: Work[R]) -> Work[R]:
        return self._queue._database._runner(work)

    async def _settle(self, how: How, reason: str) -> None:
        """The message that is being worked on, unless it was settled by hand."""
        current, self._current = self._current, None
        if current is not None:
            await self._run(self._holding.settle(current.receipt, how, reason))

    async def _end(self, how: How, reason: str) -> None:
        await self._settle(how, reason)
        if not self._closed:
            self._closed = True
            self._queue._database._session.closers.discard(self._holding.close)
            await self._run(self._holding.close())

    async def close(self) -> None:
        """End the loop now: the message that is being worked on counts as a failed attempt, those
        that were not begun are given back."""
        await self._end("fail", LEFT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(*last_words(error))

    def __del__(self) -> None:
        if not self._closed:
            self._queue._database._session.closers.discard(self._holding.close)
            current = self._current
            self._holding.abandon(None if current is None else current.receipt)


async def _handle(
    messages: AsyncConsumer, handler: Callable[[AsyncClaimedMessage], Awaitable[object]]
) -> None:
    async with messages:
        async for message in messages:
            try:
                await handler(message)
            except Exception as error:
                await messages._settle("fail", reason_of(error))
