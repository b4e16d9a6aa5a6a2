"""Queues for callers that wait: claimed messages, lists, the loop of a consumer.

Contract     Each call is its namesake of queue.py. A consumer's messages are handed out in the
             caller's thread, and only claiming more of them goes to the loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from penstock.broker.queueanswers import QueueMessage
from penstock.client.blocking import Blocking, blocking, blocking_as
from penstock.client.consume import LEFT, Holding, How, reason_of
from penstock.client.handles import Handle
from penstock.client.queue import (
    AsyncClaimedMessage,
    AsyncQueue,
    ClaimedFields,
    Pages,
    last_words,
)
from penstock.client.thread import LoopThread, Work
from penstock.errors import PenstockError

M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")


def _blocking_message(
    method: Callable[Concatenate[AsyncClaimedMessage, P], Work[R]],
) -> Callable[Concatenate[ClaimedMessage, P], R]:
    @wraps(method)
    def call(self: ClaimedMessage, /, *args: P.args, **kwargs: P.kwargs) -> R:
        inner = AsyncClaimedMessage(self._queue._inner, self._found, self._owner)
        return self._queue._thread.call(method(inner, *args, **kwargs))

    return call


class ClaimedMessage(ClaimedFields):
    """A message under a lease: it is nobody else's until that ends."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Queue, found: QueueMessage, owner: Holding | None = None) -> None:
        # As the base class does: a claim makes many of these.
        self._found, self._owner, self._queue = found, owner, queue

    ack = _blocking_message(AsyncClaimedMessage.ack)
    fail = _blocking_message(AsyncClaimedMessage.fail)
    extend = _blocking_message(AsyncClaimedMessage.extend)
    release = _blocking_message(AsyncClaimedMessage.release)


def _claimed(queue: Queue, found: list[QueueMessage]) -> list[ClaimedMessage]:
    return [ClaimedMessage(queue, each) for each in found]


def _paged(method: Callable[[AsyncQueue], Pages[M]]) -> Callable[[Queue], BlockingPages[M]]:
    @wraps(method)
    def call(self: Queue) -> BlockingPages[M]:
        return BlockingPages(method(self._inner), self._thread)

    return call


class Queue(Blocking[AsyncQueue]):
    """Messages that are claimed by one consumer at a time, until they are acknowledged."""

    def __init__(self, inner: AsyncQueue, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.name = inner.name

    claim = blocking_as(AsyncQueue._claim, _claimed, like=AsyncQueue.claim)
    peek = blocking(AsyncQueue.peek)
    ack = blocking(AsyncQueue.ack)
    fail = blocking(AsyncQueue.fail)
    extend = blocking(AsyncQueue.extend)
    release = blocking(AsyncQueue.release)
    stats = blocking(AsyncQueue.stats)
    describe = blocking(AsyncQueue.describe)
    attempts = blocking(AsyncQueue.attempts)
    redrive = blocking(AsyncQueue.redrive)
    pause = blocking(AsyncQueue.pause)
    play = blocking(AsyncQueue.play)
    purge = blocking(AsyncQueue.purge)
    alter = blocking(AsyncQueue.alter)

    done = _paged(AsyncQueue.done)
    failed = _paged(AsyncQueue.failed)

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
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        handler: Callable[[ClaimedMessage], object],
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float | None = None,
        heartbeat: float | None = None,
        idle: float | None = None,
    ) -> None: ...

    @wraps(AsyncQueue.consume)
    def consume(
        self, handler: Callable[[ClaimedMessage], object] | None = None, **manner: Any
    ) -> Consumer | None:
        messages = Consumer(self, self._inner._hold(**{**_MANNER, **manner}))
        if handler is None:
            return messages
        with messages:
            for message in messages:
                try:
                    handler(message)
                except Exception as error:
                    messages._settle("fail", reason_of(error))
        return None


_MANNER: dict[str, Any] = {
    "consumer": None,
    "prefetch": 100,
    "lease": None,
    "heartbeat": None,
    "idle": None,
}


class BlockingPages(Iterator[M], Generic[M]):
    """A list of a queue, one page at a time behind the scenes."""

    def __init__(self, inner: Pages[M], thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread
        self._found: list[M] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> M:
        while not self._found:
            page = self._thread.call(self._inner.page())
            if page is None:
                raise StopIteration
            self._found = page[::-1]
        return self._found.pop()


class Consumer(Handle):
    """The messages of `consume`: an endless iterator."""

    def __init__(self, queue: Queue, holding: Holding) -> None:
        self._queue = queue
        self._holding = holding
        self._current: ClaimedMessage | None = None
        self._closed = False

    @property
    def lost(self) -> int:
        """How many messages were lost to time, or to somebody else, before they were settled."""
        return self._holding.lost

    def stop(self) -> None:
        """End the loop after the message that is being worked on; from any thread."""
        self._holding.stop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ClaimedMessage:
        holding = self._holding
        current, self._current = self._current, None
        if current is not None:
            holding.finish(current.receipt)
        if self._closed:
            raise StopIteration
        while (found := holding.begin()) is None:
            self._queue._inner._require()
            if not self._queue._thread.call(holding.refill()):
                self.close()
                raise StopIteration
        self._current = ClaimedMessage(self._queue, found, holding)
        return self._current

    def _settle(self, how: How, reason: str) -> None:
        """The message that is being worked on, unless it was settled by hand."""
        current, self._current = self._current, None
        if current is not None:
            self._queue._thread.call(self._holding.settle(current.receipt, how, reason))

    def _end(self, how: How, reason: str) -> None:
        self._settle(how, reason)
        if not self._closed:
            self._closed = True
            self._queue._inner._database._session.closers.discard(self._holding.close)
            self._queue._thread.call(self._holding.close())

    def close(self) -> None:
        """End the loop now: the message that is being worked on counts as a failed attempt, those
        that were not begun are given back."""
        self._end("fail", LEFT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(*last_words(error))

    def __del__(self) -> None:
        """A loop that was left: what it held is given back before the program goes on."""
        if self._closed or sys.is_finalizing():
            return
        current = self._current
        try:
            self.close()
        except PenstockError:
            # The location is closed, or this is its own thread.
            self._holding.abandon(None if current is None else current.receipt)
