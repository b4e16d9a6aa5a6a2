"""A consumer of a topic: registered, alive, polling ahead, settling what its handlers did.

Contract     `begin` gives a worker the next message (lanes.py: one key, one worker at a time), and
             `finish`, `fail` or `crash` take it back. What was finished is acknowledged together
             with the next poll, or after FLUSH_SECONDS; with effects (tx) at once, in the order in
             which messages were finished, each together with its own effects and acknowledgement in
             one commit. Several share a commit while the one before is on its way.
Failures     of a handler are told to the broker, which counts attempts; the key waits for its
             answer. An effect that the broker refuses is a failure of its handler: what was handled
             after it of the same key, and is not committed, is handled again after it.
Moved on     A slot may go to another consumer at any time. What was polled of it is dropped when
             that is known, and an acknowledgement of it is refused (`lost` counts those): with tx
             nothing happened then.
Alive        Nothing is begun that others may have taken for theirs: a process that was stopped for
             longer than its heartbeat asks the broker first.
Lost         Whoever was silent for too long (stopped, cut off) is not registered any more: it joins
             again, under the same name, and everything that it had polled before is dropped. A
             consumer whose name another process took, or whose topic was deleted, ends: `error`.
Threads      `begin`, `finish`, `fail`, `crash`, `stop` may be called from any thread; what is
             awaited runs on the loop of the handle, so that a busy handler keeps its registration.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.broker.topicanswers import Acked, Effect, Failure, Polled, Refs
from penstock.client.consume import reason_of, spawn
from penstock.client.lanes import Lanes
from penstock.client.link import Link
from penstock.client.thread import LoopThread
from penstock.client.topicbackend import TopicBackend
from penstock.client.topicshapes import TopicMessage
from penstock.clock import Clock
from penstock.errors import (
    ConflictError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.log.catalogue import LogName

R = TypeVar("R")

_log = logging.getLogger("penstock")

#: A poll waits so long for messages; then it is asked again.
POLL_MS = 30_000
#: Acknowledgements gather for so long, unless a poll takes them along before.
FLUSH_SECONDS = 0.02
#: Whatever failed because the broker was away is repeated after so long.
AGAIN_SECONDS = 0.2
#: So many messages with effects share a commit at most.
TX_TOGETHER = 100


class Manner(msgspec.Struct, frozen=True):
    """How a consumer wants its messages."""

    consumer: str
    batch_size: int
    ack: bool
    tx: bool
    workers: int
    max_attempts: int
    heartbeat_ms: int
    slots: int | None


class Result(msgspec.Struct, frozen=True):
    """What became of a message."""

    message: TopicMessage
    effects: list[Effect] = []
    error: str | None = None  # its handler failed


class Tailing:
    def __init__(
        self, name: LogName, manner: Manner, link: Link, thread: LoopThread, clock: Clock
    ) -> None:
        self.name = name
        self.manner = manner
        self._topic = name.name.decode()
        self._link = link
        self._thread = thread
        self._clock = clock
        #: Guards what follows: workers and the loop use it. Workers wait on it.
        self._changed = threading.Condition()
        self._lanes = Lanes(keyed=manner.workers > 1)
        self._results: list[Result] = []
        self._told = False  # the loop knows that there are results
        self._hungry = False  # the loop waits for room
        self._full = False  # the last poll gave as many as it could
        self._stopped = False
        #: Until when (monotonic) nobody can have taken this consumer for dead.
        self._sure_until = 0.0
        self._doubting = False  # and the loop is asked to find out
        #: Messages that had moved on when they were acknowledged, or before they were begun.
        self.lost = 0
        #: Why it ended by itself.
        self.error: BaseException | None = None
        #: Told whenever a worker may find something new to do; from any thread.
        self.on_change: Callable[[], None] = lambda: None
        # On the loop only.
        self._token = 0
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._broken: asyncio.Future[PenstockError] | None = None
        self._running: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    # -- from any thread

    def begin(self, *, wait: bool = True) -> TopicMessage | None:
        """The next message; None at the end, or where there is none and nobody waits."""
        with self._changed:
            while True:
                if self._stopped:
                    return None
                message = self._lanes.take() if self._is_sure() else None
                if message is not None:
                    break
                if not wait:
                    return None
                self._changed.wait()
            hungry = self._is_fed()
        if hungry:
            self._thread.post(self._room.set)
        return message

    def _is_sure(self) -> bool:
        """Whether what was polled is this consumer's for certain. One that was stopped has to ask:
        others may have taken its share meanwhile."""
        if self._clock.monotonic() < self._sure_until:
            return True
        if self._lanes.waiting and not self._doubting:
            self._doubting = True
            self._thread.post(self._beat_soon)
        return False

    @property
    def ended(self) -> bool:
        return self._stopped

    def finish(self, message: TopicMessage, effects: list[Effect]) -> None:
        """Its handler has returned."""
        with self._changed:
            good = self._lanes.handled(message)
            self._lanes.free(message)
            if good and self.manner.ack:
                self._results.append(Result(message, effects))
        self._tell()

    def fail(self, message: TopicMessage, error: Exception, *, counts: bool = True) -> None:
        """Its handler has raised. One that does not count is left as it is: it comes again."""
        text = reason_of(error)
        with self._changed:
            good = self._lanes.handled(message)
            if not (good and counts):
                self._lanes.free(message)
            elif self.manner.ack:
                self._results.append(Result(message, error=text))  # its lane waits for the answer
            else:
                # It was acknowledged when it was handed out: nobody but this consumer can try.
                again = message.attempt < self.manner.max_attempts
                message.attempt += 1
                self._lanes.free(message, again=again)
                _log.warning("the handler of %r failed: %s", message, text)
        self._tell()

    def crash(self, message: TopicMessage, error: BaseException) -> None:
        """A worker is at its end, and so is the consumer; the message comes to another one."""
        with self._changed:
            self._lanes.handled(message)
            self._lanes.free(message)
            self.error = error
        self.stop()
        self._tell()

    def stop(self) -> None:
        """Nothing more is begun. What runs is finished and settled, then its slots move on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.on_change()
        self._thread.post(self._close_soon)

    def _tell(self) -> None:
        """Something was handled: let the loop know, and another worker."""
        with self._changed:
            told = self._told or not self._results
            self._told = self._told or bool(self._results)
            hungry = self._is_fed()
            idle = self._stopped and not self._lanes.running
            if self._lanes.ready:
                self._changed.notify()
        if self._lanes.ready:
            self.on_change()
        if not told:
            self._thread.post(self._flush_soon)
        if hungry:
            self._thread.post(self._room.set)
        if idle:
            self._thread.post(self._idle.set)

    def _is_fed(self) -> bool:
        """Whether the loop waits for room, and there is some: then it is told once."""
        if self._hungry and self._has_room():
            self._hungry = False
            return True
        return False

    def _has_room(self) -> bool:
        lanes, manner = self._lanes, self.manner
        if self._full:  # there is more: fetch it while these are handled
            return lanes.waiting <= manner.batch_size // 2
        return lanes.waiting == 0 and lanes.running < manner.workers

    # -- the registration, on the loop

    async def open(self) -> None:
        """Join, and begin."""
        await self._join()
        self._running = spawn(self._run())

    async def _join(self) -> None:
        manner, begun = self.manner, self._clock.monotonic()
        joined = await self._link.run_topics(
            lambda topics, _: topics.join(
                self.name,
                manner.consumer,
                heartbeat_ms=manner.heartbeat_ms,
                slots=manner.slots,
            ),
            again=True,
        )
        self._token = joined.token
        self._heard(begun)
        self._broken = asyncio.get_running_loop().create_future()

    async def _run(self) -> None:
        try:
            while True:
                error = await self._serve()
                if error is None or not await self._join_again(error):
                    return
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        """It cannot go on. Whoever waits for the consumer's end, or brings it about, is told."""
        _log.error("consumer %s of topic %s ends: %s", self.manner.consumer, self._topic, error)
        self.error = error
        self._break(UnavailableError("the consumer has ended"))
        self.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that nobody waits for: if it fails, that is the end."""
        task = spawn(work)
        task.add_done_callback(partial(self._ended, self._token))
        return task

    def _ended(self, token: int, task: asyncio.Task[None]) -> None:
        if task.cancelled() or not isinstance(error := task.exception(), Exception):
            return
        if not isinstance(error, PenstockError):
            self._end(error)
        elif token == self._token:  # else it is about a registration of before
            self._break(error)

    async def _serve(self) -> PenstockError | None:
        """Until it is stopped, or its registration is gone."""
        broken = self._broken
        assert broken is not None
        self._polling = spawn(self._poll_for_ever())
        beating = spawn(self._beat_for_ever())
        try:
            await asyncio.wait(
                {self._polling, beating, broken}, return_when=asyncio.FIRST_COMPLETED
            )
            if broken.done():
                return broken.result()
            for task in (self._polling, beating):
                if task.done() and not task.cancelled() and (error := task.exception()):
                    if isinstance(error, PenstockError):
                        return error
                    raise error
            # Stopped: signs of life until what runs is settled (`_close` ends this).
            await asyncio.wait({beating, broken}, return_when=asyncio.FIRST_COMPLETED)
            return broken.result() if broken.done() else None
        finally:
            self._polling.cancel()
            beating.cancel()

    async def _join_again(self, error: PenstockError) -> bool:
        """After a loss: everything that was polled comes again, to whoever has its slot then. ->
        whether it is registered; else it was stopped meanwhile"""
        if isinstance(error, ConflictError | InvalidError):
            raise error  # another process has this name now
        with self._changed:
            gone = self._lanes.clear() + len(self._results)
            self.lost += gone
            self._results.clear()
        if self._stopped:
            return False
        _log.warning(
            "consumer %s of topic %s joins again, %d messages are left to others: %s",
            self.manner.consumer, self._topic, gone, error,
        )  # fmt: skip
        while not self._stopped:
            try:
                if isinstance(error, NotFoundError):
                    # Joining would make it: whoever deleted a topic does not expect that.
                    await self._ask(lambda topics: topics.describe(self.name))
                await self._join()
                return True
            except UnavailableError as trouble:
                _log.warning("consumer %s: %s", self.manner.consumer, trouble)
                await self._clock.sleep(AGAIN_SECONDS)
        return False

    def _break(self, error: PenstockError) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(error)

    def _ask(self, errand: Callable[[TopicBackend], Awaitable[R]]) -> Awaitable[R]:
        return self._link.run_topics(lambda topics, _: errand(topics), again=True)

    async def _beat_for_ever(self) -> None:
        interval = self.manner.heartbeat_ms / 3000
        while True:
            await self._clock.sleep(interval)
            await self._beat()

    def _beat_soon(self) -> None:
        self._spawn(self._beat())

    def _heard(self, asked: float) -> None:
        """The broker has answered what was asked at this moment: it knows that we live."""
        with self._changed:
            self._sure_until = max(self._sure_until, asked + self.manner.heartbeat_ms / 1000)
            doubting, self._doubting = self._doubting, False
            if doubting:
                self._changed.notify_all()
        if doubting:
            self.on_change()

    async def _beat(self) -> None:
        token, asked = self._token, self._clock.monotonic()
        try:
            beaten = await self._ask(
                lambda topics: topics.beat(self.name, self.manner.consumer, token)
            )
        except (UnavailableError, FencedError) as error:
            _log.warning("consumer %s gave no sign of life: %s", self.manner.consumer, error)
            with self._changed:
                self._doubting = False  # the next beat tells
            return
        if token != self._token:
            return
        if beaten.paused:
            dropped = self._drop(lambda message: True)
        else:
            epochs = dict(zip(beaten.slots, beaten.epochs, strict=True))
            dropped = self._drop(lambda message: epochs.get(message._slot) != message._epoch)
        self._heard(asked)  # only now: what has moved on is not begun
        await self._release(dropped)

    async def _give_back(self) -> None:
        """The topic is paused."""
        await self._release(self._drop(lambda message: True))

    def _drop(self, gone: Callable[[TopicMessage], bool]) -> list[TopicMessage]:
        """What nobody has begun, and others are to have; there is room for more then."""
        if not self.manner.ack:
            return []  # it was acknowledged when it was handed out: nobody else gets it
        with self._changed:
            dropped = self._lanes.drop(gone)
            fed = self._is_fed()
        if fed:
            self._room.set()
        return dropped

    async def _release(self, dropped: Sequence[TopicMessage]) -> None:
        """Who gets a slot waits until what is running of it is settled or given back."""
        if not dropped:
            return
        token = self._token
        released = await self._ask(
            lambda topics: topics.release(self.name, self.manner.consumer, token, refs_of(dropped))
        )
        self.lost += released.taken.count(False)

    # -- polling, on the loop

    async def _poll_for_ever(self) -> None:
        while not self._stopped:
            await self._await_room()
            asked = self._clock.monotonic()
            try:
                polled = await self._poll()
            except (UnavailableError, FencedError) as error:
                # What it has emitted is nobody's: only a new registration brings it again.
                raise UnavailableError(f"a poll was lost: {error}") from error
            self._heard(asked)
            count = sum(len(part.offsets) for part in polled.parts)
            with self._changed:
                self._full = count >= self.manner.batch_size
                self._lanes.add(self._messages(polled))
                self._changed.notify(self._lanes.ready)
            if count:
                self.on_change()
            if polled.paused:
                await self._give_back()

    async def _await_room(self) -> None:
        self._room.clear()
        with self._changed:
            self._hungry = not self._has_room()
            hungry = self._hungry
        if hungry:
            await self._room.wait()

    async def _poll(self) -> Polled:
        manner, token = self.manner, self._token
        done = self._take_done()
        asked = False

        def poll(topics: TopicBackend, left_ms: int | None) -> Awaitable[Polled]:
            nonlocal asked
            if asked:  # the link goes on by itself where it only waited; here that is not known
                raise UnavailableError("the broker was lost")
            asked = True
            return topics.poll(
                self.name,
                manner.consumer,
                token,
                manner.batch_size,
                wait_ms=left_ms,
                settle=not manner.ack,
                done=done,
            )

        return await self._link.run_topics(poll, again=False, block_ms=POLL_MS)

    def _take_done(self) -> list[Refs]:
        """What a poll may take along: what was finished, without effects or failures."""
        if self.manner.tx or (self._flushing is not None and not self._flushing.done()):
            return []
        with self._changed:
            done = [each.message for each in self._results if each.error is None]
            self._results = [each for each in self._results if each.error is not None]
        return refs_of(done)

    def _messages(self, polled: Polled) -> list[TopicMessage]:
        topic = self._topic
        found: list[TopicMessage] = []
        for part in polled.parts:
            job, failed = part.job, part.attempts
            columns = zip(
                part.offsets, part.epochs, part.slots, part.keys, part.data, part.times_ms,
                strict=True,
            )  # fmt: skip
            found += [TopicMessage(topic, job, *fields) for fields in columns]
            if failed:
                for message in found[-len(part.offsets) :]:
                    message.attempt += failed.get(message.offset, 0)
        return found

    # -- settling, on the loop

    def _flush_soon(self) -> None:
        if self._flushing is not None and not self._flushing.done():
            return
        with self._changed:
            failed = any(each.error is not None for each in self._results)
            idle = not self._lanes.waiting and not self._hungry
        if self.manner.tx or failed or idle or self._stopped:
            self._flush_now()
        elif self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(
                FLUSH_SECONDS, self._flush_now
            )

    def _flush_now(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flushing is None or self._flushing.done():
            self._flushing = self._spawn(self._flush())

    async def _flush(self) -> None:
        while True:
            with self._changed:
                results, self._results = self._results, []
                if not results:
                    self._told = False
                    return
            token = self._token
            try:
                if self.manner.tx:
                    await self._settle_in_order(results)
                else:
                    self._settled(results, await self._ack(results))
            except (UnavailableError, FencedError) as error:
                _log.warning("consumer %s settles later: %s", self.manner.consumer, error)
                with self._changed:
                    if token == self._token:
                        self._results = results + self._results
                if self._stopped:
                    return
                await self._clock.sleep(AGAIN_SECONDS)
            except PenstockError as error:
                if token == self._token:
                    self._break(error)
                    return

    async def _ack(self, results: Sequence[Result]) -> Acked:
        manner, token, asked = self.manner, self._token, self._clock.monotonic()
        done = refs_of([each.message for each in results if each.error is None])
        failures = [failure_of(each) for each in results if each.error is not None]
        effects = [effect for each in results for effect in each.effects]
        acked = await self._ask(
            lambda topics: topics.ack(
                self.name,
                manner.consumer,
                token,
                done,
                failures=failures,
                max_attempts=manner.max_attempts,
                tx=effects,
            )
        )
        self._heard(asked)
        return acked

    def _settled(self, results: Sequence[Result], acked: Acked) -> None:
        failed = [each.message for each in results if each.error is not None]
        with self._changed:
            self.lost += acked.taken.count(False) + acked.failed.count("stale")
            for message, answer in zip(failed, acked.failed, strict=True):
                message.attempt += answer == "again"
                self._lanes.free(message, again=answer == "again")
            self._changed.notify(self._lanes.ready)
        if failed:
            self.on_change()
        if acked.paused:
            self._spawn(self._give_back())

    async def _settle_in_order(self, results: list[Result]) -> None:
        """One commit after the other, so that no message of a key is settled before an earlier
        one. Whatever is left when this raises is put back by whoever called: `results` shrinks."""
        alone = 0
        while results:
            part = _part(results, 1 if alone else TX_TOGETHER)
            if part[0].error is None:
                refused = await self._commit(part)
                if refused is not None and len(part) > 1:
                    alone = len(part)  # nothing was done: find out whose fault it is
                    continue
                if refused:
                    results[0] = Result(part[0].message, error=refused)
                    continue
            else:
                await self._settle_failure(results)
            del results[: len(part)]
            alone = max(0, alone - 1)

    async def _commit(self, part: Sequence[Result]) -> str | None:
        """-> None; or why nothing was done: an error, or empty where one has moved on"""
        try:
            acked = await self._ack(part)
        except (UnavailableError, FencedError):
            raise
        except PenstockError as error:
            await self._require_registration()
            return reason_of(error)
        if acked.paused:
            self._spawn(self._give_back())
        if all(acked.taken):
            return None
        if len(part) == 1:
            self.lost += 1
        return ""

    async def _require_registration(self) -> None:
        """An effect was refused, or is this consumer not registered any more? Then this raises."""
        token = self._token
        await self._ask(lambda topics: topics.beat(self.name, self.manner.consumer, token))

    async def _settle_failure(self, results: list[Result]) -> None:
        """The first of these. If it comes again, so does what came after it of its key."""
        first = results[0].message
        acked = await self._ack(results[:1])
        if acked.failed != ["again"]:
            self._settled(results[:1], acked)
            return
        with self._changed:
            first.attempt += 1
            key = self._lanes._key(first)
            again = [first]
            for pending in (results, self._results):
                mine = [
                    each for each in pending
                    if each.message is not first and self._lanes._key(each.message) == key
                ]  # fmt: skip
                again += [each.message for each in mine]
                pending[:] = [each for each in pending if each not in mine]
            self._lanes.redo(again)
            self._changed.notify(self._lanes.ready)
        self.on_change()
        if acked.paused:
            self._spawn(self._give_back())

    # -- the end, on the loop

    def _close_soon(self) -> None:
        if self._closing is None:
            self._closing = spawn(self._close())

    async def close(self) -> None:
        """Finish and settle what runs, and leave."""
        self.stop()
        self._close_soon()
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        with self._changed:
            busy = self._lanes.running > 0
        if busy:
            await self._idle.wait()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        self._flush_now()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        try:
            if self._broken is not None and not self._broken.done():
                token = self._token
                await self._ask(lambda topics: topics.leave(self.name, self.manner.consumer, token))
        except PenstockError as error:
            _log.warning("consumer %s left without a word: %s", self.manner.consumer, error)
        finally:
            if self._running is not None:
                self._running.cancel()
                await asyncio.wait({self._running})


def refs_of(messages: Sequence[TopicMessage]) -> list[Refs]:
    """One for each job."""
    jobs = {message._job for message in messages}
    if len(jobs) > 1:
        parts = [[message for message in messages if message._job == job] for job in sorted(jobs)]
    else:
        parts = [list(messages)] if messages else []
    return [
        Refs(
            [message.offset for message in part],
            [message._epoch for message in part],
            part[0]._job,
        )
        for part in parts
    ]


def failure_of(result: Result) -> Failure:
    message = result.message
    assert result.error is not None
    return Failure(message.offset, message._epoch, result.error, message._job)


def _part(results: Sequence[Result], most: int) -> list[Result]:
    """Those at the beginning that may share a commit: finished ones, or one failure."""
    if results[0].error is not None:
        return [results[0]]
    part: list[Result] = []
    for each in results[:most]:
        if each.error is not None:
            break
        part.append(each)
    return part
