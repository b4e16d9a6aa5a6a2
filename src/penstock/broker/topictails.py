"""What consumers of a topic ask: joining, polling, acknowledging, leaving. The part of `Topics`
about them.

Contract     As in topics.py. `join` gives a token, which names the registration. A consumer that is
             not registered any more (it was silent for too long, or left) gets a NotFoundError:
             join again. One whose name another process took meanwhile gets a ConflictError: stop.
             Signs of life are kept in memory alone (topickeeping.py).
Polls        One that may wait stands in the consumer's line (turns.py) and is asked again when a
             commit brings something for it. What was marked as emitted and cannot be answered with
             is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.broker.commit import Committer, Shown
from penstock.broker.queues import Queues
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
)
from penstock.broker.topiceffects import effect_steps
from penstock.broker.topicsigns import Signs
from penstock.broker.turns import Turns
from penstock.clock import Clock
from penstock.codec.keys import Kind
from penstock.errors import CorruptError, InvalidError, PenstockError
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, NameState, name_state_key
from penstock.log.decision import StateKey
from penstock.log.state import LogState, load_log
from penstock.topic.ack import Failed, ack_step
from penstock.topic.given import Given, StaleError, given
from penstock.topic.look import look_step
from penstock.topic.members import (
    HEARTBEAT_MS,
    join_step,
    leave_step,
    pause_step,
    registered,
    require,
    running,
    token_of,
)
from penstock.topic.poll import Emitted, Picked, give_back_step, poll_step
from penstock.topic.read import read_messages
from penstock.topic.shards import epochs_of, open_rows, served, waiting
from penstock.topic.state import TopicState, missing, topic_state_key

#: An answer holds messages until it is so large.
ANSWER_BYTES = 16 << 20
#: How long `pause` waits for what runs.
PAUSE_MS = 10_000

#: Who polls: the topic, the consumer's name, its token.
Poller = tuple[LogName, str, int]


class TopicTails:
    def __init__(
        self, committer: Committer, cache: NodeCache, clock: Clock, queues: Queues
    ) -> None:
        self._committer = committer
        self._cache = cache
        self._clock = clock
        self._queues = queues
        self.signs = Signs()
        self._turns = Turns(self._available)
        #: Who waits for messages of a topic, and how often.
        self._pollers: dict[LogName, Counter[Poller]] = {}
        #: Who waits until nothing of a topic runs any more.
        self._quiet: dict[int, list[asyncio.Future[None]]] = {}

    # -- requests

    async def join(
        self,
        name: LogName,
        consumer: str,
        *,
        heartbeat_ms: int = HEARTBEAT_MS,
        slots: int | None = None,
    ) -> Joined:
        """Register, and get a share of the slots. A consumer of this name that is registered is
        replaced: what it holds moves on."""
        step = join_step(name, consumer, heartbeat_ms=heartbeat_ms, slots=slots)
        (joined,) = await self._committer.submit(step)
        self._heard(name, joined.token)
        return Joined(joined.token, joined.slots, heartbeat_ms, joined.paused)

    async def beat(self, name: LogName, consumer: str, token: int) -> Beaten:
        """A sign of life, as are poll, ack and release. Costs no commit."""
        state, _ = await self._look(name)
        known = require(state, consumer, token)
        self.signs.heard(state.id, token, self._committer.now_ms())
        slots = np.flatnonzero(served(state.head.shards, known.number))
        epochs = epochs_of(state.head.shards)[slots]
        return Beaten(state.head.paused, slots.tolist(), epochs.tolist())

    async def poll(
        self,
        name: LogName,
        consumer: str,
        token: int,
        count: int,
        *,
        wait_ms: int | None = 0,
        done: Sequence[Refs] = (),
        alive: bool = False,
    ) -> Polled:
        """Up to `count` messages, marked as emitted. `done` is acked in the same commit, before;
        what is stale of it is left alone, silently. Waiting is a sign of life for whoever is
        `alive` and has nothing to settle; else beat meanwhile. One poll per consumer at a time."""
        first = [ack_step(name, consumer, token, _given(done))] if done else []
        emitted: list[Emitted] = []

        async def ask() -> int:
            more = True
            while more:
                step = poll_step(name, consumer, token, count)
                reply = self._committer.request(*first, step)
                try:
                    *_, found = await asyncio.shield(reply)
                except asyncio.CancelledError:
                    lost = partial(self._lost, name, consumer, token)
                    reply.add_done_callback(lost)
                    raise
                first.clear()
                emitted[:] = [found]
                more = found.more
            return sum(len(part.offsets) for part in found.parts)

        found = await ask()
        self._heard(name, token)
        if not found and wait_ms != 0:
            seconds = None if wait_ms is None else wait_ms / 1000
            poller = name, consumer, token
            sign = (
                self.signs.waiting(emitted[0].topic, token) if alive else contextlib.nullcontext()
            )
            with self._in_line(poller), sign:
                found = await self._turns.wait(poller, ask, count, seconds) or 0
            if alive:
                self._heard(name, token)  # its time begins with the answer
        if not found:
            return Polled([], await self._paused(name))
        return await self._answer(name, consumer, token, emitted[0])

    def _lost(
        self, name: LogName, consumer: str, token: int, reply: asyncio.Future[list[Any]]
    ) -> None:
        """Whoever asked does not wait any more: nobody has these."""
        if not reply.cancelled() and reply.exception() is None:
            emitted: Emitted = reply.result()[-1]
            self._give_back(name, consumer, token, emitted.parts)

    async def _answer(self, name: LogName, consumer: str, token: int, emitted: Emitted) -> Polled:
        """The messages of these references; what is not answered with is given back."""
        parts: list[Part] = []
        given_back = list(emitted.parts)
        try:
            room = ANSWER_BYTES
            for i, picked in enumerate(emitted.parts):
                # Each gets its share of the room: a replay of large messages holds no live one up.
                share = room // (len(emitted.parts) - i)
                part, size = await self._part(emitted.topic, picked, share)
                room -= size
                parts.append(part)
            given_back = [
                _rest(picked, len(part.offsets))
                for picked, part in zip(emitted.parts, parts, strict=True)
                if len(part.offsets) < len(picked.offsets)
            ]
        except CorruptError:
            state, _ = await self._look(name)
            if state.id != emitted.topic:
                raise missing(name) from None  # deleted meanwhile, and made again
            raise
        finally:
            self._give_back(name, consumer, token, given_back)
        return Polled(parts)

    async def _part(self, topic_id: int, picked: Picked, room: int) -> tuple[Part, int]:
        async def query(view: Shown) -> Any:
            log = await load_log(view, topic_id)
            if log is None:
                raise CorruptError(f"log {topic_id} of a topic that is there is missing")
            return await read_messages(
                view.store, log, picked.offsets, cache=self._cache, size_max=max(room, 1)
            )

        found = await self._committer.read(query)
        n = len(found.data)
        part = Part(
            job=picked.space,
            offsets=picked.offsets[:n].tolist(),
            epochs=picked.epochs[:n].tolist(),
            slots=picked.slots[:n].tolist(),
            keys=found.keys,
            data=found.data,
            times_ms=found.times_ms,
            attempts=picked.attempts,
        )
        return part, sum(map(len, found.data))

    def _give_back(self, name: LogName, consumer: str, token: int, parts: Sequence[Picked]) -> None:
        if not parts:
            return
        named = [Given(part.space, part.offsets, part.epochs) for part in parts]
        undo = [part.fresh for part in parts]
        step = give_back_step(name, consumer, token, named, undo)
        with contextlib.suppress(PenstockError):  # else they come again when the consumer is gone
            self._committer.request(step).add_done_callback(_ignore)

    async def ack(
        self,
        name: LogName,
        consumer: str,
        token: int,
        done: Sequence[Refs] = (),
        *,
        failures: Sequence[Failure] = (),
        max_attempts: int = 1,
        tx: Sequence[Effect] = (),
    ) -> Acked:
        """With effects (`tx`) all or nothing: where one message is stale, none is acked and nothing
        is written. Without, each for itself."""
        step = ack_step(
            name,
            consumer,
            token,
            _given(done),
            failures=[
                Failed(each.offset, each.epoch, each.error, each.job, each.attempt)
                for each in failures
            ],
            max_attempts=max_attempts,
            strict=bool(tx),
        )
        begun = self._clock.monotonic()
        effects = await effect_steps(self._queues, tx)
        try:
            settled, *_ = await self._committer.submit(step, *effects, begun=begun)
        except StaleError:
            count = sum(len(each.offsets) for each in done)
            return Acked([False] * count, ["stale"] * len(failures), await self._paused(name))
        self._heard(name, token)
        return Acked(settled.taken, settled.failed, settled.paused)

    async def release(
        self, name: LogName, consumer: str, token: int, given: Sequence[Refs]
    ) -> Released:
        """Give back what was polled and not begun: it is emitted again, to whoever has its slot."""
        step = give_back_step(name, consumer, token, _given(given))
        (taken,) = await self._committer.submit(step)
        self._heard(name, token)
        return Released(taken)

    async def leave(self, name: LogName, consumer: str, token: int) -> bool:
        """Its slots move on at once, with what it has not acknowledged. -> whether it was there"""
        (was_there,) = await self._committer.submit(leave_step(name, consumer, token))
        return bool(was_there)

    def _heard(self, name: LogName, token: int) -> None:
        state = self._known(name)
        if state is not None:
            self.signs.heard(state.id, token, self._committer.now_ms())

    async def pause(self, name: LogName, *, wait_ms: int = PAUSE_MS) -> bool:
        """Returns once nothing more will be handed out: what was polled before is acked or given
        back, or its time is over. -> whether nothing runs any more"""
        if wait_ms < 0:
            raise InvalidError(f"wait_ms {wait_ms} is negative")
        (left,) = await self._committer.submit(pause_step(name, paused=True))
        state = self._known(name)
        if not left or state is None:
            return not left
        quiet = asyncio.get_running_loop().create_future()
        self._quiet.setdefault(state.id, []).append(quiet)
        try:
            if running(state):  # else it ended before we were heard
                await asyncio.wait([quiet], timeout=wait_ms / 1000)
            else:
                quiet.set_result(None)
            if quiet.done():
                quiet.result()  # or why nothing more is told here
            return quiet.done()
        finally:
            quiet.cancel()
            self._quiet[state.id].remove(quiet)
            if not self._quiet[state.id]:
                del self._quiet[state.id]

    async def _paused(self, name: LogName) -> bool:
        state, _ = await self._look(name)
        return state.head.paused

    async def _look(self, name: LogName) -> tuple[TopicState, LogState]:
        (found,) = await self._committer.submit(look_step(name))
        return found  # type: ignore[no-any-return]

    # -- who waits

    def _known(self, name: LogName) -> TopicState | None:
        """As far as memory has it."""
        known: NameState | None = self._committer.states.get(name_state_key(name))
        if known is None or known.row is None:
            return None
        state: TopicState | None = self._committer.states.get(topic_state_key(known.row.id))
        return state

    def _available(self, poller: Poller) -> int:
        name, consumer, token = poller
        state = self._known(name)
        if state is None or registered(state, consumer, token) is None:
            return 1  # to find out
        return _offers(state).get(token, 0)

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit: stir those that it may serve."""
        for key, state in states.items():
            match key:
                case ("topic", int(topic_id)):
                    if isinstance(state, TopicState):
                        self._stir(LogName(Kind.TOPIC, state.name.encode()))
                    if state is None or not running(state):
                        self._is_quiet(topic_id)
                case ("name", (Kind.TOPIC, bytes(text))):
                    self._stir(LogName(Kind.TOPIC, text))  # deleted: who waits hears of it

    def _stir(self, name: LogName) -> None:
        if name not in self._pollers:
            return
        # What there is, once for all: a thousand may wait, and this is after every commit.
        state = self._known(name)
        live = {} if state is None else _tokens(state)
        offers = {} if state is None else _offers(state)
        for poller in list(self._pollers[name]):
            _, consumer, token = poller
            if live.get(consumer) != token or token in offers:
                self._turns.stir(poller)

    @contextlib.contextmanager
    def _in_line(self, poller: Poller) -> Iterator[None]:
        name = poller[0]
        pollers = self._pollers.setdefault(name, Counter())
        pollers[poller] += 1
        try:
            yield
        finally:
            pollers[poller] -= 1
            if not pollers[poller]:
                del pollers[poller]
            if not pollers:
                del self._pollers[name]

    def _is_quiet(self, topic_id: int) -> None:
        for quiet in self._quiet.get(topic_id, ()):
            if not quiet.done():
                quiet.set_result(None)

    @property
    def waiting(self) -> int:
        return len(self._turns)

    def reopened(self) -> None:
        """Whatever memory knew is gone: everybody who waits looks again."""
        self.signs.clear()
        for poller in self._turns.waiting():
            self._turns.stir(poller)

    def finished(self, error: PenstockError) -> None:
        self._turns.end(error)
        for waiters in self._quiet.values():
            for quiet in waiters:
                if not quiet.done():
                    quiet.set_exception(error)


def _tokens(state: TopicState) -> dict[str, int]:
    """Of the live consumers."""
    return {each.name: token_of(state.id, each.number) for each in state.consumers}


def _offers(state: TopicState) -> dict[int, int]:
    """By token: about how many messages it could be handed now; who is left out surely none."""
    found: Counter[int] = Counter()
    if state.head.paused:
        return found
    shards = state.head.shards
    rows, left = open_rows(shards), waiting(shards)
    there = np.flatnonzero((left > 0) & (shards["heir"][rows] == 0))
    owners = shards["owner"][rows[there]].tolist()
    for owner, count in zip(owners, left[there].tolist(), strict=True):
        found[token_of(state.id, owner)] += count
    if state.replays:
        # Not all of them need be of a consumer's slots: asking tells.
        replays = sum(state.references(space.id).count for space in state.replays)
        replays -= int(shards["replaying"].sum())
        if replays > 0:
            found.update(dict.fromkeys(_tokens(state).values(), replays))
    return found


def _given(refs: Sequence[Refs]) -> list[Given]:
    return [given(each.offsets, each.epochs, each.job) for each in refs]


def _rest(picked: Picked, n: int) -> Picked:
    return Picked(
        picked.space, picked.offsets[n:], picked.slots[n:], picked.epochs[n:], picked.fresh[n:]
    )


def _ignore(reply: asyncio.Future[list[Any]]) -> None:
    """Nobody waits for it; an error is none that anybody could do something about."""
    if not reply.cancelled():
        reply.exception()
