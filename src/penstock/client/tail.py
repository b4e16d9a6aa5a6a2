"""A consumer of a topic: registered, alive, polling ahead.

Contract     `open` joins; from then on messages come to the workers (handling.py), and what these
             did is settled (settle.py), until `close`: that finishes what runs, settles it, and
             leaves. A poll asks for more when half of a full one is begun, else when a worker has
             nothing to do.
Moved on     A slot may go to another consumer at any time. What was polled of it and is not begun
             is given back when that is known, and an acknowledgement of it is refused.
Order        What is given back comes again, and nothing of its slot may be begun before that. So
             what a poll brings of it that was asked before goes back too, and the next poll is
             asked when the broker has answered: requests may overtake each other.
Lost         Whoever was silent for too long (stopped, cut off) is not registered any more: it joins
             again, under the same name, and everything that it had polled before is dropped; so
             does one whose poll was lost with its broker. A consumer whose name another process
             took, whose topic was deleted or is damaged, ends: `handling.error`.
Threads      Everything here runs on the loop of the handle, so that a busy handler keeps its
             registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.broker.topicanswers import Acked, Effect, Failure, Polled, Refs
from penstock.client.consume import spawn
from penstock.client.handling import Handling, Manner, refs_of
from penstock.client.link import Link
from penstock.client.settle import AGAIN_SECONDS, Settler
from penstock.client.thread import LoopThread
from penstock.client.topicbackend import TopicBackend
from penstock.client.topicshapes import TopicMessage
from penstock.clock import Clock
from penstock.errors import (
    ConflictError,
    CorruptError,
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
#: However long its heartbeat, a consumer beats so often: the answer tells of a pause, and of slots
#: that others are to have.
BEAT_SECONDS_MAX = 3.0


class Tailing:
    def __init__(
        self, name: LogName, manner: Manner, link: Link, thread: LoopThread, clock: Clock
    ) -> None:
        self.name = name
        self.manner = manner
        self._link = link
        self._clock = clock
        self.handling = handling = Handling(manner, clock, thread.post)
        self._settling = Settler(handling, self, clock, self._spawn)
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        handling.on_results = self._settling.soon
        handling.on_claims = self._claim_soon
        handling.on_room = self._room.set
        handling.on_idle = self._idle.set
        handling.on_doubt = self.moved
        handling.on_stop = self._close_soon
        #: Names the registration.
        self.token = 0
        self._joined = 0.0  # when, monotonic
        self._gone: asyncio.Future[PenstockError] | None = None
        self._running: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()
        #: Slots of which something was given back since the last poll was asked.
        self._given_back: set[int] = set()

    @property
    def _topic(self) -> str:
        return self.name.name.decode()

    # -- the registration

    async def open(self) -> None:
        """Join, and begin."""
        await self._join()
        self._running = spawn(self._run())

    async def _join(self) -> None:
        manner, asked = self.manner, self._clock.monotonic()
        joined = await self._ask(
            lambda topics: topics.join(
                self.name, manner.consumer, heartbeat_ms=manner.heartbeat_ms, slots=manner.slots
            )
        )
        self.token, self._joined = joined.token, self._clock.monotonic()
        self._gone = asyncio.get_running_loop().create_future()
        self._asking = None  # that was about the registration before
        self.handling.heard(asked, slots=True)

    async def _run(self) -> None:
        try:
            while True:
                error = await self._serve()
                if not await self._join_again(error):
                    return
        except Exception as error:
            self._end(error)

    async def _serve(self) -> PenstockError:
        """Until its registration is gone. -> why"""
        gone = self._gone
        assert gone is not None
        self._polling = self._spawn(self._poll_for_ever(gone))
        beating = self._spawn(self._beat_for_ever())
        try:
            # When it is stopped, signs of life until what runs is settled (`_close` ends this).
            await asyncio.wait({gone})
            return gone.result()
        finally:
            self._polling.cancel()
            beating.cancel()

    async def _join_again(self, error: PenstockError) -> bool:
        """After a loss: everything that was polled comes again, to whoever has its slot then. ->
        whether it is registered; else it was stopped meanwhile"""
        if isinstance(error, ConflictError | InvalidError | CorruptError):
            raise error  # another process has this name now; or it would only come again
        lost = self.handling.clear()
        if not self.handling.stopped:
            _log.warning(
                "consumer %s of topic %s joins again, %d messages are left to others: %s",
                self.manner.consumer, self._topic, lost, error,
            )  # fmt: skip
        if self._clock.monotonic() < self._joined + AGAIN_SECONDS:
            await self._clock.sleep(AGAIN_SECONDS)  # whatever it is, it is not asked all the time
        while not self.handling.stopped:
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

    def broken(self, error: PenstockError) -> None:
        """The registration is gone, or cannot be used."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(error)

    def _end(self, error: Exception) -> None:
        """It cannot go on. Whoever waits for the consumer's end, or brings it about, is told."""
        _log.error("consumer %s of topic %s ends: %s", self.manner.consumer, self._topic, error)
        self.handling.error = error
        self.broken(UnavailableError("the consumer has ended"))
        self.handling.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that nobody waits for: its failure is that of the registration."""
        task = spawn(work)
        task.add_done_callback(partial(self._ended, self.token))
        return task

    def _ended(self, token: int, task: asyncio.Task[None]) -> None:
        if task.cancelled() or not isinstance(error := task.exception(), Exception):
            return
        if not isinstance(error, PenstockError):
            self._end(error)
        elif token == self.token:  # else it is about a registration of before
            self.broken(error)

    def _ask(self, errand: Callable[[TopicBackend], Awaitable[R]]) -> Awaitable[R]:
        return self._link.run_topics(lambda topics, _: errand(topics), again=True)

    # -- signs of life

    async def _beat_for_ever(self) -> None:
        interval = min(self.manner.heartbeat_ms / 3000, BEAT_SECONDS_MAX)
        while True:
            await self._clock.sleep(interval)
            await self._beat()

    async def _beat(self) -> bool:
        """-> whether it was heard"""
        token, asked = self.token, self._clock.monotonic()
        try:
            beaten = await self._ask(
                lambda topics: topics.beat(self.name, self.manner.consumer, token)
            )
        except (UnavailableError, FencedError) as error:
            _log.warning("consumer %s gave no sign of life: %s", self.manner.consumer, error)
            return False
        if token != self.token:
            return False
        if beaten.paused:
            dropped = self.handling.drop(lambda message: True)
        else:
            epochs = dict(zip(beaten.slots, beaten.epochs, strict=True))
            dropped = self.handling.drop(
                lambda message: epochs.get(message._slot) != message._epoch
            )
        self.handling.heard(asked, slots=True)  # only now: what has moved on is not begun
        self.give_back(dropped)
        return True

    def moved(self) -> None:
        """Perhaps a slot has: ask now which are ours."""
        if self._asking is None or self._asking.done():
            self._asking = self._spawn(self._find_out())

    async def _find_out(self) -> None:
        """Nothing is begun before that: the next beat may be hours away."""
        while not (self.handling.stopped or await self._beat()):
            await self._clock.sleep(AGAIN_SECONDS)

    def paused(self) -> None:
        """The topic is: what was not begun is for later."""
        self.give_back(self.handling.drop(lambda message: True))

    def give_back(self, dropped: Sequence[TopicMessage]) -> None:
        """These were polled, and nobody begins them here: they are the broker's to hand out. Who
        gets a slot waits until what is running of it is settled or given back."""
        if not dropped:
            return
        self._given_back.update(message._slot for message in dropped)
        task = self._spawn(self._release(self.token, dropped))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, token: int, dropped: Sequence[TopicMessage]) -> None:
        released = await self._ask(
            lambda topics: topics.release(self.name, self.manner.consumer, token, refs_of(dropped))
        )
        self.handling.lost += released.taken.count(False)

    async def require(self) -> None:
        """Raises where this consumer is not registered any more."""
        token = self.token
        await self._ask(lambda topics: topics.beat(self.name, self.manner.consumer, token))

    # -- messages

    async def _poll_for_ever(self, gone: asyncio.Future[PenstockError]) -> None:
        """Until it is stopped, or its registration is gone: who polls in its own process may not
        hear that it is cancelled."""
        while not (self.handling.stopped or gone.done()):
            self._room.clear()
            if self.handling.wants_room():
                await self._room.wait()
            if self._releasing:
                await asyncio.wait(self._releasing)
                continue  # it may have gone wrong, or there may be more
            self._given_back.clear()
            asked = self._clock.monotonic()
            try:
                polled = await self._poll()
            except (UnavailableError, FencedError) as error:
                # What it has emitted is nobody's: only a new registration brings it again.
                raise UnavailableError(f"a poll was lost: {error}") from error
            if gone.done():
                return  # these are not ours any more
            self.handling.heard(asked)
            messages = _messages(self._topic, polled)
            back = [each for each in messages if each._slot in self._given_back]
            self.handling.add([each for each in messages if each._slot not in self._given_back])
            self.give_back(back)
            if polled.paused:
                self.paused()

    async def _poll(self) -> Polled:
        manner, token = self.manner, self.token
        done = self._settling.take_along()
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
                done=done,
            )

        return await self._link.run_topics(poll, again=False, block_ms=POLL_MS)

    def _claim_soon(self) -> None:
        self._spawn(self._claim())

    async def _claim(self) -> None:
        """Acknowledge what workers are about to get, and let them have it."""
        while claims := self.handling.take_claims():
            token = self.token
            try:
                acked = await self.ack(refs_of(claims), [], [])
            except PenstockError as error:
                # Whether they count is not known. At most once: nobody here handles them.
                if token == self.token:
                    self.handling.withdraw()
                self.handling.claimed(claims, [False] * len(claims))
                if token != self.token:
                    continue  # those that wait now are of the registration since
                fenced = isinstance(error, FencedError)
                self.broken(UnavailableError(str(error)) if fenced else error)
                return
            if acked.paused:
                self.paused()  # first: else what is next is claimed meanwhile
            self.handling.claimed(claims, acked.taken)
            if not all(acked.taken):
                self.moved()

    async def ack(self, done: list[Refs], failures: list[Failure], effects: list[Effect]) -> Acked:
        manner, token, asked = self.manner, self.token, self._clock.monotonic()
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
        if all(acked.taken) and "stale" not in acked.failed:
            self.handling.heard(asked)  # else it may be about one that is registered no more
        return acked

    # -- the end

    def _close_soon(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = spawn(self._close())
        return self._closing

    async def close(self) -> None:
        """Finish and settle what runs, and leave."""
        self.handling.stop()
        await asyncio.shield(self._close_soon())

    async def _close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        await self._settling.give_up_poll()
        if not self.handling.idle:
            await self._idle.wait()
        await self._settling.finish()
        try:
            if self._gone is not None and not self._gone.done():
                token = self.token
                await self._ask(lambda topics: topics.leave(self.name, self.manner.consumer, token))
        except PenstockError as error:
            _log.warning("consumer %s left without a word: %s", self.manner.consumer, error)
        finally:
            if self._running is not None:
                self._running.cancel()
                await asyncio.wait({self._running})


def _messages(topic: str, polled: Polled) -> list[TopicMessage]:
    found: list[TopicMessage] = []
    for part in polled.parts:
        columns = zip(
            part.offsets, part.epochs, part.slots, part.keys, part.data, part.times_ms,
            strict=True,
        )  # fmt: skip
        messages = [TopicMessage(topic, part.job, *fields) for fields in columns]
        if part.attempts:
            for message in messages:
                message.attempt += part.attempts.get(message.offset, 0)
        found += messages
    return found
