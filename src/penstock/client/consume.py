"""What a consumer's loop holds: messages claimed ahead, their leases, acknowledgements on the way.

Contract     `begin` gives the next message, `refill` claims more, `finish` says that one is done.
             Acknowledgements gather while the last ones are on their way; all are sent before
             `refill` waits, and before `close` returns. `close` releases what was not begun.
Leases       Everything that is held (claimed ahead, or being worked on) is extended at a third of
             its lease. A message whose lease was lost is never handed out and never acknowledged:
             somebody else may have it. One whose lease could have ended unseen (the process was
             stopped) is extended before it is handed out.
Threads      `begin`, `finish`, `forget`, `stop` may be called from any thread; what is awaited runs
             on the loop of the handle, so that a busy consumer keeps its leases.
Lost broker  Everything here may be repeated, and is: an acknowledgement that was repeated may count
             as lost although it was not.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Any, Literal

import msgspec

from penstock.broker.queueanswers import QueueMessage
from penstock.client.link import Link
from penstock.client.queuebackend import QueueBackend
from penstock.client.thread import LoopThread
from penstock.clock import Clock
from penstock.errors import InvalidError, NotFoundError, PenstockError
from penstock.log.catalogue import LogName
from penstock.queue.lease import REASON_BYTES_MAX

_log = logging.getLogger("penstock")

#: A heartbeat that failed is repeated after so long at most.
BEAT_AGAIN_SECONDS = 1.0
LEFT = "the loop was left while the message was being worked on"

How = Literal["ack", "fail", "release"]


class Manner(msgspec.Struct, frozen=True):
    """How a consumer wants its messages."""

    consumer: str
    prefetch: int
    lease_ms: int | None  # None: as the queue has it
    heartbeat: float | None  # seconds; None: a third of the lease; 0: never
    idle_ms: int | None  # the loop ends after so long without a message; None: never


class Holding:
    def __init__(
        self, name: LogName, manner: Manner, link: Link, thread: LoopThread, clock: Clock
    ) -> None:
        self._name = name
        self._manner = manner
        self._link = link
        self._thread = thread
        self._clock = clock
        #: Guards what follows: two threads use it.
        self._lock = threading.Lock()
        self._ahead: deque[QueueMessage] = deque()
        #: Until when (monotonic) the lease of a receipt lives at least.
        self._leases: dict[str, float] = {}
        self._finished: list[str] = []
        self._told = False  # the loop knows that there are finished ones
        self._stopped = False
        #: Leases that were lost, to time or to somebody else.
        self.lost = 0
        # On the loop only.
        self._lease_ms = 0
        self._beating: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None

    # -- from any thread

    def begin(self) -> QueueMessage | None:
        """None: ask `refill`."""
        with self._lock:
            if self._stopped or not self._ahead:
                return None
            if self._leases[self._ahead[0].receipt] <= self._clock.monotonic():
                return None
            return self._ahead.popleft()

    def finish(self, receipt: str) -> None:
        """It is done: acknowledge it soon, unless its lease was lost."""
        with self._lock:
            if self._leases.pop(receipt, None) is None:
                return
            self._finished.append(receipt)
            told, self._told = self._told, True
        if not told:
            self._thread.post(self._flush_soon)

    def forget(self, receipt: str) -> None:
        """Somebody settles it by itself."""
        with self._lock:
            self._leases.pop(receipt, None)

    def stop(self) -> None:
        """Nothing more is begun."""
        self._stopped = True
        self._thread.post(self._stop_claiming)

    def abandon(self, current: str | None) -> None:
        """Close it without waiting for that; `current` is being worked on."""
        self._thread.post(lambda: spawn(self._abandoned(current)))

    # -- claiming, on the loop

    async def refill(self) -> bool:
        """-> whether there is something to begin; False at the end"""
        if self._ahead and not self._stopped:
            await self._beat()  # their time was over: which of them are still ours?
            if self._ahead:
                return True
        if not self._stopped:
            self._flush_soon()
            await self._claim(0)
            if not self._ahead:
                await self._flushed()
                await self._claim(self._manner.idle_ms)
        if self._stopped or not self._ahead:
            await self._give_back()
            await self._flushed()
            return False
        return True

    async def _claim(self, wait_ms: int | None) -> None:
        """In a task of its own, which keeps what it claimed even if nobody waits for it."""
        if self._stopped:
            return  # whoever stops it later finds the task
        claiming = self._claiming = spawn(self._claim_more(wait_ms))
        try:
            await asyncio.wait({claiming})
        except asyncio.CancelledError:
            claiming.cancel()
            raise
        if not claiming.cancelled():
            claiming.result()
        elif not self._stopped:
            raise InvalidError("the location was closed while the call was under way")

    async def _claim_more(self, wait_ms: int | None) -> None:
        manner = self._manner

        async def claim(queues: QueueBackend, left_ms: int | None) -> list[QueueMessage]:
            return await queues.claim(
                self._name,
                manner.prefetch,
                wait_ms=left_ms,
                lease_ms=manner.lease_ms,
                consumer=manner.consumer,
            )

        begun = self._clock.monotonic()
        found = await self._link.run_queues(claim, again=True, block_ms=wait_ms)
        if not found:
            return
        lease_ms = found[0].lease_deadline_ms - found[0].claimed_at_ms
        # Not from now on: nobody knows how long the answer lay here unheard.
        until = begun + lease_ms / 1000
        with self._lock:
            self._ahead += found
            self._leases.update((message.receipt, until) for message in found)
        if lease_ms != self._lease_ms or self._beating is None or self._beating.done():
            self._lease_ms = lease_ms
            self._begin_beating()

    def _stop_claiming(self) -> None:
        if self._claiming is not None:
            self._claiming.cancel()

    # -- leases, on the loop

    def _begin_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._manner.heartbeat != 0:
            self._beating = spawn(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        interval = self._manner.heartbeat or self._lease_ms / 3000
        pause = interval
        while self._leases or not self._stopped:
            await self._clock.sleep(pause)
            try:
                await self._beat()
                pause = interval
            except PenstockError as error:
                _log.warning("leases were not extended: %s", error)
                pause = min(interval, BEAT_AGAIN_SECONDS)

    async def _beat(self) -> None:
        with self._lock:
            receipts = list(self._leases)
        if not receipts:
            return
        until = self._clock.monotonic() + self._lease_ms / 1000
        try:
            extended = await self._link.run_queues(
                lambda queues, _: queues.extend(self._name, receipts, self._lease_ms), again=True
            )
        except NotFoundError:
            extended = [False] * len(receipts)  # the queue is gone, and its leases with it
        except InvalidError:
            # The longest lease was made shorter meanwhile: ours are, from now on.
            info = await self._link.run_queues(
                lambda queues, _: queues.describe(self._name), again=True
            )
            if info.max_lease_ms >= self._lease_ms:
                raise
            self._lease_ms = info.max_lease_ms
            await self._beat()
            return
        with self._lock:
            for receipt, ours in zip(receipts, extended, strict=True):
                if receipt not in self._leases:
                    continue  # finished meanwhile
                if ours:
                    self._leases[receipt] = until
                else:
                    del self._leases[receipt]
                    self.lost += 1
            self._ahead = deque(each for each in self._ahead if each.receipt in self._leases)

    # -- settling, on the loop

    async def settle(self, receipt: str, how: How, reason: str = "") -> None:
        """The message that is being worked on."""
        with self._lock:
            if self._leases.pop(receipt, None) is None:
                return
        await self._settle([receipt], how, reason)

    async def _settle(self, receipts: list[str], how: How, reason: str = "") -> None:
        """Whatever goes wrong: their leases end, and they come again."""

        async def settled(queues: QueueBackend, _: int | None) -> list[bool]:
            match how:
                case "ack":
                    return await queues.ack(self._name, receipts)
                case "fail":
                    return await queues.fail(self._name, receipts, reason=_cut(reason))
                case "release":
                    return await queues.release(self._name, receipts)

        try:
            found = await self._link.run_queues(settled, again=True)
        except PenstockError as error:
            _log.warning("%d messages will come again: %s", len(receipts), error)
            found = [False] * len(receipts)
        if how != "release":
            self.lost += found.count(False)

    def _flush_soon(self) -> None:
        if self._finished and (self._flushing is None or self._flushing.done()):
            self._flushing = spawn(self._flush())

    async def _flush(self) -> None:
        while True:
            with self._lock:
                receipts, self._finished = self._finished, []
                if not receipts:
                    self._told = False
                    return
            await self._settle(receipts, "ack")

    async def _flushed(self) -> None:
        self._flush_soon()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})

    # -- the end, on the loop

    async def _give_back(self) -> None:
        with self._lock:
            receipts = [message.receipt for message in self._ahead]
            self._ahead.clear()
            for receipt in receipts:
                self._leases.pop(receipt, None)
        if receipts:
            await self._settle(receipts, "release")

    async def _abandoned(self, current: str | None) -> None:
        if current is not None:
            await self.settle(current, "fail", LEFT)
        await self.close()

    async def close(self) -> None:
        """Send what is finished, release what was not begun."""
        self._stopped = True
        self._stop_claiming()
        if self._claiming is not None:
            await asyncio.wait({self._claiming})
        await self._flushed()
        await self._give_back()
        if self._beating is not None and not self._leases:
            self._beating.cancel()


_tasks: set[asyncio.Task[Any]] = set()


def spawn(work: Any) -> asyncio.Task[Any]:
    """A task that is not collected before it ends, and whose failure is somebody's to look at."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()


def _cut(reason: str) -> str:
    raw = reason.encode("utf-8", "backslashreplace")
    return raw[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def reason_of(error: BaseException) -> str:
    """An exception in one line that can be stored, whatever its author made of it."""
    try:
        text = str(error).encode("utf-8", "backslashreplace").decode()
    except Exception as broken:
        text = f"its text cannot be had ({type(broken).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
