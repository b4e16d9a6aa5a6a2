"""A handle's line to the broker of its location: whichever process that is at the moment.

Contract     `run` gives a piece of work to the broker and answers with its result. When the broker
             is lost while the work is under way, work that may be done again (`again`: reads, and
             writes that carry a producer's sequence) is given to the next broker, within the call's
             own time; other work is an UnavailableError, outcome unknown. A call that begins while
             there is no broker waits for one. FencedError is for a process that was the broker and
             lost its epoch: once, for what it had under way; later calls go to the new broker.
In a row     Writes of one producer go one after the other: the next broker would refuse one that is
             sent again behind a later one.
Idle         A lost broker is replaced at once, not at the next call: idle handles take part in the
             election too. Those that never serve themselves have no part in it, and wait for a
             call: an idle one would start a process that nobody needs.
Close        waits for calls under way; those that only wait for entries are ended.
Not here     How a broker is found (places.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from penstock.broker.broker import Broker
from penstock.client.backend import Backend
from penstock.client.bulkbackend import BulkBackend
from penstock.client.graphbackend import GraphBackend
from penstock.client.queuebackend import QueueBackend
from penstock.client.sourcebackend import SourceBackend
from penstock.client.thread import Work
from penstock.client.topicbackend import TopicBackend
from penstock.client.wire import LostError
from penstock.clock import Clock
from penstock.errors import FencedError, InvalidError, PenstockError, UnavailableError

R = TypeVar("R")

_log = logging.getLogger("penstock")

#: Between the loss of a broker and the next try of a call that goes on by itself.
PAUSE_SECONDS = 0.02

#: The broker, and how many milliseconds of waiting are left.
Errand = Callable[[Backend, int | None], Awaitable[R]]
QueueErrand = Callable[[QueueBackend, int | None], Awaitable[R]]
TopicErrand = Callable[[TopicBackend, int | None], Awaitable[R]]
BulkErrand = Callable[[BulkBackend, int | None], Awaitable[R]]
SourceErrand = Callable[[SourceBackend, int | None], Awaitable[R]]
GraphErrand = Callable[[GraphBackend, int | None], Awaitable[R]]


class Doors(Protocol):
    """What can be asked of a broker, by view: of a Broker in this process, or a Remote."""

    @property
    def streams(self) -> Backend: ...

    @property
    def queues(self) -> QueueBackend: ...

    @property
    def topics(self) -> TopicBackend: ...

    @property
    def bulk(self) -> BulkBackend: ...

    @property
    def sources(self) -> SourceBackend: ...

    @property
    def graphs(self) -> GraphBackend: ...


class Seat:
    """A broker that was found, and how to let it go."""

    def __init__(
        self,
        doors: Doors,
        close: Callable[[], Awaitable[None]],
        *,
        broker: Broker | None = None,
        term: int = 0,
    ) -> None:
        self.doors = doors
        self.close = close
        self.broker = broker  # where it is in this process
        self.term = term
        self.hung = False  # it was lost because it gave no answer any more


class Place(Protocol):
    """Where a location's broker is looked for."""

    location: str
    #: Whether another broker can take the place of one that is lost.
    elects: bool
    #: Whether this process may become it.
    serves: bool

    async def reach(self, lost: Seat | None, on_lost: Callable[[Seat], None]) -> Seat: ...

    def trouble(self) -> str: ...


class Link:
    def __init__(self, place: Place, *, clock: Clock, deadline: float) -> None:
        self._place = place
        self._clock = clock
        self._deadline = deadline
        self._seat: Seat | None = None
        self._lost: Seat | None = None
        self._finding: asyncio.Task[Seat] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        #: Calls that wait for entries, and those of them that the loss of the broker woke up.
        self._waits: set[asyncio.Task[Any]] = set()
        self._woken: set[asyncio.Task[Any]] = set()
        #: Whose turn it is in each row; kept by those who wait for it.
        self._rows: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._closed = False

    @property
    def broker(self) -> Broker | None:
        """The broker, where it is in this process."""
        return None if self._seat is None else self._seat.broker

    async def open(self) -> None:
        await self._await_seat(self._clock.monotonic() + self._deadline, sent=False)

    # -- calls

    def run(self, errand: Errand[R], *, again: bool, block_ms: int | None = 0) -> Work[R]:
        return self._run(lambda seat, left_ms: errand(seat.doors.streams, left_ms), again, block_ms)

    async def run_in_row(self, errand: Errand[R], row: Hashable) -> R:
        """Work that may be done again, after all that was begun before it in this row."""
        task, begun = asyncio.current_task(), self._clock.monotonic()
        assert task is not None
        self._require_open()
        turn = self._rows.setdefault(row, asyncio.Lock())
        self._calls.add(task)  # from now on: closing waits for those that wait for their turn
        try:
            async with turn:
                return await self._run(
                    lambda seat, left_ms: errand(seat.doors.streams, left_ms), True, 0, begun
                )
        finally:
            self._calls.discard(task)

    def run_queues(
        self, errand: QueueErrand[R], *, again: bool, block_ms: int | None = 0
    ) -> Work[R]:
        return self._run(lambda seat, left_ms: errand(seat.doors.queues, left_ms), again, block_ms)

    def run_topics(
        self, errand: TopicErrand[R], *, again: bool, block_ms: int | None = 0
    ) -> Work[R]:
        return self._run(lambda seat, left_ms: errand(seat.doors.topics, left_ms), again, block_ms)

    def run_bulk(self, errand: BulkErrand[R], *, again: bool) -> Work[R]:
        return self._run(lambda seat, left_ms: errand(seat.doors.bulk, left_ms), again, 0)

    def run_sources(self, errand: SourceErrand[R], *, again: bool) -> Work[R]:
        return self._run(lambda seat, left_ms: errand(seat.doors.sources, left_ms), again, 0)

    def run_graphs(self, errand: GraphErrand[R], *, again: bool, block_ms: int) -> Work[R]:
        return self._run(lambda seat, left_ms: errand(seat.doors.graphs, left_ms), again, block_ms)

    async def _run(
        self,
        errand: Callable[[Seat, int | None], Awaitable[R]],
        again: bool,
        block_ms: int | None,
        begun: float | None = None,
    ) -> R:
        task = asyncio.current_task()
        assert task is not None
        calls = self._calls if block_ms == 0 else self._waits
        calls.add(task)
        waited = begun is not None  # in a row, since before a close perhaps
        begun = self._clock.monotonic() if begun is None else begun
        sent = False
        try:
            while True:
                seat, left_ms = self._seat, block_ms
                if seat is None or sent or not waited:
                    self._require_open()
                if seat is None or sent:
                    until = None if block_ms is None else begun + self._deadline + block_ms / 1000
                    seat = await self._await_seat(until, sent=sent)
                    waited_ms = int((self._clock.monotonic() - begun) * 1000)
                    left_ms = None if block_ms is None else max(0, block_ms - waited_ms)
                sent = True
                try:
                    return await errand(seat, left_ms)
                except LostError as error:
                    self.lose(seat)
                    if not again:
                        raise UnavailableError(f"the broker was lost: {error}") from None
                    # A broker that is fenced and does not know it yet is found again at once.
                    await self._clock.sleep(PAUSE_SECONDS)
                    late = self._clock.monotonic() - begun - self._deadline
                    if block_ms is not None and late > block_ms / 1000:
                        raise UnavailableError(f"the broker was lost: {error}") from None
                except FencedError:
                    if not self._place.elects:
                        raise
                    self.lose(seat)
                    if not again:
                        raise
                except asyncio.CancelledError:
                    if task not in self._woken:
                        raise
                    self._woken.discard(task)
                    if task.uncancel() > 0:
                        raise
        finally:
            calls.discard(task)
            self._woken.discard(task)

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidError(f"{self._place.location} is closed", hint="open it again")

    # -- finding a broker

    async def _await_seat(self, until: float | None, *, sent: bool) -> Seat:
        if self._seat is not None:
            return self._seat
        finding = self._find_soon()
        timeout = None if until is None else max(0.0, until - self._clock.monotonic())
        await asyncio.wait({finding}, timeout=timeout)
        if not finding.done():
            text = f"{self._place.location}: no broker answers"
            if trouble := self._place.trouble():
                text = f"{text}: {trouble}"
            raise UnavailableError(text, hint=None if sent else "retry later; nothing was written")
        if finding.cancelled():
            raise InvalidError(f"{self._place.location} is closed", hint="open it again")
        return finding.result()

    def _find_soon(self) -> asyncio.Task[Seat]:
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(self._find())
            self._finding.add_done_callback(_look_at)
        return self._finding

    async def _find(self) -> Seat:
        while True:
            try:
                seat = await self._place.reach(self._lost, self.lose)
                break
            except FencedError as error:
                if not self._place.elects:
                    raise
                _log.info("%s: another broker was faster: %s", self._place.location, error)
        self._lost = None
        self._seat = seat
        return seat

    def lose(self, seat: Seat) -> None:
        """This broker is gone, or fenced: let it go, and look for the next one."""
        if self._seat is not seat or not self._place.elects:
            return
        self._seat, self._lost = None, seat
        leaving = asyncio.get_running_loop().create_task(_leave(seat))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if seat.broker is not None:
            # Nobody will serve those who wait there: they go on at the next broker. Who brings the
            # news goes on by itself.
            for task in self._waits - {asyncio.current_task()}:
                self._woken.add(task)
                task.cancel()
        if self._place.serves and not self._closed:
            self._find_soon()

    # -- the end

    async def close(self) -> None:
        self._closed = True
        for task in self._waits:
            task.cancel()
        under_way = self._calls | self._waits
        if under_way:
            await asyncio.wait(under_way, timeout=self._deadline)
        if self._finding is not None and not self._finding.done():
            self._finding.cancel()
            await asyncio.wait({self._finding})
        seat, self._seat = self._seat, None
        if self._leaving:
            await asyncio.wait(self._leaving)
        if seat is not None:
            await seat.close()


async def _leave(seat: Seat) -> None:
    try:
        await seat.close()
    except PenstockError as error:
        _log.info("closing a lost broker: %s", error)


def _look_at(finding: asyncio.Task[Seat]) -> None:
    """Whoever waits for it hears of it; where nobody does, the next call tries again."""
    if not finding.cancelled() and (error := finding.exception()) is not None:
        _log.info("no broker was found: %s", error)
