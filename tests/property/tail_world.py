"""Consumers of a topic and their broker on one event loop, where chance says how long everything
takes: what test_tail_order.py drives.

The broker is plain dicts and decides at once. Each request takes some turns of the loop to get
there, and its answer some turns back, independent of all others: as on connections of their own.
One seed is one run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from penstock.broker.topicanswers import (
    Acked,
    Beaten,
    Effect,
    Failure,
    Joined,
    Part,
    Polled,
    Refs,
    Released,
    TxWrite,
)
from penstock.client.handling import Manner
from penstock.client.tail import Tailing
from penstock.client.topicshapes import TopicMessage
from penstock.errors import NotFoundError, UnavailableError
from penstock.topic.state import topic_name

KEYS = 6
SLOTS = 3
#: An effect that the broker refuses.
REFUSED = TxWrite("refused", b"")


class Message(msgspec.Struct, eq=False):
    offset: int
    key: bytes
    slot: int
    run: int = 0  # the epoch under which it was handed out
    ended: str = ""
    attempts: int = 0


class Slot(msgspec.Struct, eq=False):
    owner: int = 0
    heir: int = 0
    epoch: int = 1


class Broker:
    """Raises AssertionError where what is done of a key is out of order."""

    def __init__(self, count: int, *, strict: bool) -> None:
        self.messages = [Message(i, b"k%d" % (i % KEYS), i % KEYS % SLOTS) for i in range(count)]
        self.slots = [Slot() for _ in range(SLOTS)]
        self.live: dict[str, int] = {}
        self.paused = False
        self.strict = strict  # what comes later of a key is not to be done before
        self.effects: list[int] = []
        self._tokens = itertools.count(1)

    # -- who has what

    def spread(self, *, fence: bool = False) -> None:
        live = list(self.live.values())
        for number, slot in enumerate(self.slots):
            owner = live[number % len(live)] if live else 0
            if slot.owner in live and self._busy(number) and not fence:
                slot.heir = owner if owner != slot.owner else 0
            elif owner != slot.owner:
                self._move(number, owner)

    def _busy(self, slot: int) -> bool:
        return any(each.run for each in self.messages if each.slot == slot)

    def _move(self, number: int, owner: int) -> None:
        slot = self.slots[number]
        slot.owner, slot.heir, slot.epoch = owner, 0, slot.epoch + 1
        for message in self.messages:
            if message.slot == number:
                message.run = 0

    def _hand_over(self) -> None:
        for number, slot in enumerate(self.slots):
            if slot.heir and not self._busy(number):
                self._move(number, slot.heir)

    def _require(self, consumer: str, token: int) -> None:
        if self.live.get(consumer) != token:
            raise NotFoundError("join again")

    def _held(self, token: int, offset: int, epoch: int) -> Message | None:
        message = self.messages[offset]
        slot = self.slots[message.slot]
        good = message.run == epoch == slot.epoch and slot.owner == token and not message.ended
        return message if good else None

    # -- what consumers ask

    async def join(self, name: object, consumer: str, **_: object) -> Joined:
        token = self.live[consumer] = next(self._tokens)
        self.spread()
        return Joined(token, [], 10_000, self.paused)

    async def describe(self, name: object) -> None:
        pass

    async def leave(self, name: object, consumer: str, token: int) -> bool:
        if self.live.get(consumer) != token:
            return False
        del self.live[consumer]
        self.spread()
        return True

    def expire(self, consumer: str) -> None:
        """Nobody hears of it any more."""
        self.live.pop(consumer, None)
        self.spread()

    async def beat(self, name: object, consumer: str, token: int) -> Beaten:
        self._require(consumer, token)
        mine = [i for i, each in enumerate(self.slots) if each.owner == token and not each.heir]
        return Beaten(self.paused, mine, [self.slots[i].epoch for i in mine])

    async def poll(
        self,
        name: object,
        consumer: str,
        token: int,
        count: int,
        *,
        wait_ms: int | None = 0,
        done: Sequence[Refs] = (),
    ) -> Polled:
        if done:
            await self.ack(name, consumer, token, done)
        for _ in range(60):
            self._require(consumer, token)
            if found := self._emit(token, count):
                break
            await asyncio.sleep(0)
        if not found:
            return Polled([], self.paused)
        part = Part(
            0,
            [each.offset for each in found],
            [each.run for each in found],
            [each.slot for each in found],
            [each.key for each in found],
            [b""] * len(found),
            [0] * len(found),
            {each.offset: each.attempts for each in found if each.attempts},
        )
        return Polled([part])

    def _emit(self, token: int, count: int) -> list[Message]:
        found: list[Message] = []
        for each in self.messages:
            slot = self.slots[each.slot]
            mine = slot.owner == token and not slot.heir and not self.paused
            if mine and not each.ended and not each.run and len(found) < count:
                each.run = slot.epoch
                found.append(each)
        return found

    async def ack(
        self,
        name: object,
        consumer: str,
        token: int,
        done: Sequence[Refs] = (),
        *,
        failures: Sequence[Failure] = (),
        max_attempts: int = 1,
        tx: Sequence[Effect] = (),
    ) -> Acked:
        refs = [pair for each in done for pair in zip(each.offsets, each.epochs, strict=True)]
        held = [self._held(token, *ref) for ref in refs]
        failed = [self._held(token, each.offset, each.epoch) for each in failures]
        if tx and not all([*held, *failed]):
            return Acked([False] * len(held), ["stale"] * len(failed), self.paused)
        if REFUSED in tx:
            raise NotFoundError("no such stream")
        for message in held:
            if message is not None:
                self._end(message, "acked")
        for effect in tx:
            assert isinstance(effect, TxWrite)
            self.effects.append(int(effect.data))
        told = [
            self._fail(message, failure, max_attempts)
            for message, failure in zip(failed, failures, strict=True)
        ]
        self._hand_over()
        return Acked([each is not None for each in held], told, self.paused)

    def _fail(self, message: Message | None, failure: Failure, most: int) -> str:
        if message is None:
            return "stale"
        message.attempts = max(message.attempts, failure.attempt)
        if message.attempts < most:
            return "again"
        self._end(message, "errored")
        return "errored"

    def _end(self, message: Message, how: str) -> None:
        if self.strict:
            before = [e for e in self.messages[: message.offset] if e.key == message.key]
            left = [each.offset for each in before if not each.ended]
            assert not left, f"{message.offset} is done before {left}"
        message.ended, message.run = how, 0

    async def release(
        self, name: object, consumer: str, token: int, given: Sequence[Refs]
    ) -> Released:
        taken: list[bool] = []
        for refs in given:
            for ref in zip(refs.offsets, refs.epochs, strict=True):
                message = self._held(token, *ref)
                taken.append(message is not None)
                if message is not None:
                    message.run = 0
        self._hand_over()
        return Released(taken)


class World:
    def __init__(
        self, seed: int, *, count: int, ack: bool, tx: bool, workers: int, lossy: bool, fenced: bool
    ) -> None:
        self.chance = random.Random(seed)
        # Elsewhere what was handled is told in any order: by a poll, or beside it.
        self.broker = Broker(count, strict=tx or not ack)
        self.tx = tx
        self.lossy = lossy
        #: Handlers of one key at once: only where nobody was taken for lost, or fenced.
        self.alone = ack and not lossy and not fenced
        self.fenced = fenced
        self.troubled = True
        self.manner = Manner("", 4, ack, tx, workers, 3, 10_000, None)
        self.running: Counter[bytes] = Counter()
        #: Messages of which a handler has come to its end, in whichever way.
        self.handled: set[int] = set()
        self.errors: list[BaseException] = []
        self._now = 1.0

    async def turns(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)

    # -- as Link, LoopThread and Clock

    async def run_topics(
        self,
        errand: Callable[[Any, int | None], Awaitable[Any]],
        *,
        again: bool,
        block_ms: int | None = 0,
    ) -> Any:
        if not again:
            return await self._poll(self._sent(errand))
        while True:
            answer = await self._sent(errand)
            if not self._lost():
                return answer

    async def _sent(self, errand: Callable[[Any, int | None], Awaitable[Any]]) -> Any:
        await self.turns(12)
        try:
            return await errand(self.broker, 0)
        except AssertionError as error:
            self.errors.append(error)
            raise
        finally:
            await self.turns(12)

    async def _poll(self, work: Coroutine[Any, Any, Any]) -> Any:
        """In this process whoever is cancelled gets what was found all the same."""
        inside = self.chance.random() < 0.5
        task = asyncio.ensure_future(work)
        try:
            answer = await (asyncio.shield(task) if inside else task)
        except asyncio.CancelledError:
            if not inside:
                raise
            answer = await task
            current = asyncio.current_task()
            assert current is not None
            current.uncancel()
        if self._lost():
            raise UnavailableError("the broker was lost")
        return answer

    def _lost(self) -> bool:
        return self.troubled and self.lossy and self.chance.random() < 0.05

    def post(self, callback: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def monotonic(self) -> float:
        """It goes on, and everybody is heard of in time."""
        self._now += 1e-6
        return self._now

    async def sleep(self, seconds: float) -> None:
        await self.turns(40)

    # -- consumers

    async def consume(self, name: str, stop: asyncio.Event) -> None:
        manner = msgspec.structs.replace(self.manner, consumer=name)
        world: Any = self
        tailing = Tailing(topic_name("t"), manner, world, world, world)
        await tailing.open()
        workers = [asyncio.ensure_future(self._work(tailing)) for _ in range(manner.workers)]
        await stop.wait()
        await tailing.close()
        await asyncio.wait(workers)
        for worker in workers:
            worker.result()
        self.broker.expire(name)
        if tailing.handling.error is not None:
            raise tailing.handling.error

    async def _work(self, tailing: Tailing) -> None:
        handling = tailing.handling
        while not handling.over:
            message = handling.begin(wait=False)
            if message is None:
                await asyncio.sleep(0)
                continue
            self._begun(message)
            await self.turns(8)
            self.running[message._key] -= 1
            how = self.chance.random()
            if how < 0.1:
                handling.fail(message, ValueError("no"))
                if message.attempt >= 3:
                    self.handled.add(message.offset)
                continue
            self.handled.add(message.offset)
            effects: list[Effect] = []
            if self.tx:
                effects.append(REFUSED if how < 0.2 else TxWrite("s", b"%d" % message.offset))
            handling.finish(message, effects)
        handling.ended()

    def _begun(self, message: TopicMessage) -> None:
        key, offset = message._key, message.offset
        self.running[key] += 1
        if self.alone and self.running[key] > 1:
            self.errors.append(AssertionError(f"{offset} is begun beside another one of its key"))
        before = {e.offset for e in self.broker.messages[:offset] if e.key == key}
        if self.manner.ack and (left := sorted(before - self.handled)):
            self.errors.append(AssertionError(f"{offset} is begun before {left}"))

    # -- what happens to them

    async def run(self) -> None:
        stop = {name: asyncio.Event() for name in "ab"}
        consumers = {"a": asyncio.ensure_future(self.consume("a", stop["a"]))}
        for _ in range(60):
            await self.turns(60)
            match self.chance.choice(("pause", "play", "play", "come", "go", "fence")):
                case "pause":
                    self.broker.paused = True
                case "play":
                    self.broker.paused = False
                case "come" if "b" not in consumers:
                    stop["b"] = asyncio.Event()
                    consumers["b"] = asyncio.ensure_future(self.consume("b", stop["b"]))
                case "go" if "b" in consumers:
                    stop["b"].set()
                    await consumers.pop("b")
                case "fence" if self.fenced:
                    # An uneven plan, so that something moves.
                    self.broker.live = dict(reversed(self.broker.live.items()))
                    self.broker.spread(fence=True)
        self.broker.paused = self.troubled = False
        for _ in range(100_000):
            if all(each.ended for each in self.broker.messages) or self.errors:
                break
            await asyncio.sleep(0)
        for name, consumer in consumers.items():
            stop[name].set()
            await consumer
