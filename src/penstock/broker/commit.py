"""The one commit: the only place that writes to a store.

Contract     `submit(steps)` decides and commits; it returns when the commit is durable, or
             raises. One commit is in flight; what arrives meanwhile shares the next one. The
             steps of one submit are all in or all out; a refused submit leaves the others of its
             tick untouched.
Invariants   C1  Replies leave after the commit they report is durable, in order; refusals too,
                 for they may rest on what the same tick writes.
                 What only makes them ready (`meanwhile`) may run while the commit is on its way.
             C2  Memory and reads show durable commits only: states are replaced after the commit.
             C3  Every call ends within the deadline: it waits for its tick at most half of it,
                 and a tick takes at most the other half. Where that half is over before anything
                 was sent to the store, nothing was written, and the handle goes on.
             C4  An unknown outcome ends the store handle and all states; both are rebuilt.
             C5  Fenced means finished: nothing is answered any more, reads included. Reopening
                 takes the location only from the epoch that this committer owned itself.
Time         A tick's time is read once, from the ticker that goes on from the last commit's time.
Not here     What a step decides (log/ and the views), how a batch becomes durable (store/).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import msgspec
import xxhash

from penstock.broker.limit import Limit
from penstock.broker.memory import States
from penstock.clock import Clock, Ticker
from penstock.codec.keys import operations_key
from penstock.codec.operations import Operation, Owner, encode_operations
from penstock.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    PenstockError,
    UnavailableError,
)
from penstock.log.decision import Decision, Now, StateKey, Step, Timer
from penstock.log.pages import Tail
from penstock.store.port import RefusedError, StoppedError, Store

R = TypeVar("R")

_log = logging.getLogger("penstock")

DEADLINE_SECONDS = 30.0
#: A tick stops taking requests in when its batch has this size.
TICK_BYTES = 8 << 20
#: More than this waiting, in requests or in bytes that they hold: new ones are turned away at once.
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 256 << 20
BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
#: A handle that was lost sooner counts as another attempt that failed: reopening did not help, and
#: who reads the same again after every opening would have the location opened without a pause.
LASTING_SECONDS = 5.0

#: Opens the store; the argument is the epoch to take over from, None at first.
Opener = Callable[[int | None], Awaitable[Store]]


#: Told what will be replied once it is durable, while it is on its way: to make ready, no more.
#: Maybe never, and maybe for nothing.
Meanwhile = Callable[[list[Any]], None]


class Request:
    __slots__ = ("begun", "meanwhile", "reply", "size", "steps", "waits")

    def __init__(
        self,
        steps: tuple[Step, ...],
        reply: asyncio.Future[list[Any]],
        begun: float,
        meanwhile: Meanwhile | None,
    ) -> None:
        self.steps = steps
        self.reply = reply
        self.begun = begun  # monotonic seconds
        self.meanwhile = meanwhile
        self.size = sum(step.size for step in steps)
        self.waits = True  # for its tick

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


#: What a tick has for a request: replies, or why it was refused.
Outcome = tuple[Request, list[Any] | Exception]


class Shown:
    """The view of one submit: memory and store, under what the tick and the submit itself wrote."""

    def __init__(self, committer: Committer, store: Store, tick: Shown | None, now_ms: int) -> None:
        self._committer = committer
        self.now_ms = now_ms
        self._tick = tick
        self._at_n = committer.applied_n
        self.store = store
        self.writes: dict[bytes, bytes | None] = {}
        self.states: dict[StateKey, Any] = {}
        self.timers: list[Timer] = []
        self.done: list[Operation] = []
        self._fetched: dict[bytes, bytes | None] = {}
        self._kept: dict[StateKey, Any] = {}

    def state(self, key: StateKey) -> Any | None:
        if key in self.states:
            return self.states[key]
        if self._tick is not None and key in self._tick.states:
            return self._tick.states[key]
        state = self._committer.states.get(key)
        if state is None:
            return self._kept.get(key)
        # Memory is bounded: it may drop this before the step that loaded it decides.
        self._kept[key] = state
        return state

    def committed(self, key: StateKey) -> Any | None:
        return self._committer.states.get(key)

    def row(self, key: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        if self._tick is not None and key in self._tick.writes:
            return self._tick.writes[key]
        return self._fetched[key]

    def operations(self, owner: Owner) -> list[Operation]:
        return self._committer.tail.of(owner)

    async def fetch(self, *keys: bytes) -> None:
        for key in keys:
            if key not in self._fetched:
                self._fetched[key] = await self.store.get(key)

    def keep(self, key: StateKey, state: Any) -> None:
        known = self._committer.states.get(key)
        if known is not None:
            self._kept[key] = known  # memory may drop it before the step decides
            return
        self._kept[key] = state
        # What a read loaded while a commit went through may be older than that commit, and what it
        # loaded from a handle that is lost may be older than anything: good enough for the read,
        # but not for memory.
        if self._at_n == self._committer.applied_n and self._committer.has(self.store):
            self._committer.states.put(key, state)

    def add(self, decision: Decision) -> None:
        self.writes.update(decision.writes)
        self.states.update(decision.states)
        self.timers.extend(decision.timers)
        self.done.extend(decision.operations)

    def take_in(self, submit: Shown) -> int:
        self.writes.update(submit.writes)
        self.states.update(submit.states)
        self.timers.extend(submit.timers)
        self.done.extend(submit.done)
        size = sum(len(value) for value in submit.writes.values() if value is not None)
        return size + sum(len(operation.body) for operation in submit.done)


class Health(msgspec.Struct):
    """What a dashboard or a test may ask."""

    commits: int = 0
    requests: int = 0
    refused: int = 0
    unknown_outcomes: int = 0
    reopened: int = 0


class Committer:
    def __init__(
        self,
        opener: Opener,
        clock: Clock,
        *,
        deadline: float = DEADLINE_SECONDS,
        on_commit: Callable[[Collection[bytes]], None] = lambda keys: None,
        on_timers: Callable[[list[Timer]], None] = lambda timers: None,
        on_open: Callable[[], None] = lambda: None,
        on_states: Callable[[dict[StateKey, Any]], None] = lambda states: None,
        on_finish: Callable[[PenstockError], None] = lambda error: None,
    ) -> None:
        self._opener = opener
        self._clock = clock
        self.deadline = deadline
        self._on_commit = on_commit
        self._on_timers = on_timers
        self._on_open = on_open
        self._on_states = on_states
        self._on_finish = on_finish
        self._store: Store | None = None
        self._ticker: Ticker | None = None
        self._epoch: int | None = None
        #: Seeds of ticks are drawn from this: the kernel is slower than a hash.
        self._secret = clock.entropy(16)
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._drain: asyncio.Task[None] | None = None
        self._limit = Limit()  # of a tick
        self._reopening: asyncio.Task[None] | None = None
        self._finished: PenstockError | None = None
        self._closing = False
        self._lost: Store | None = None  # a handle that is given up, until it is abandoned
        self._attempts = 0  # to reopen, since a handle lasted
        self._opened_at = 0.0  # monotonic seconds
        self._down: PenstockError | None = None
        self.states = States()
        self.tail = Tail()
        self.applied_n = 0
        self.health = Health()

    async def open(self) -> None:
        """Open the store, once. Errors are the caller's; later failures are healed here."""
        try:
            async with asyncio.timeout(self.deadline):
                await self._open()
        except TimeoutError:
            raise UnavailableError("the store did not open in time", hint="retry later") from None
        except StoppedError as error:
            raise _told(error) from error

    async def _open(self) -> None:
        store = await self._opener(self._epoch)
        try:
            await self.tail.load(store)
            if self._finished is not None:
                raise self._finished
        except BaseException:
            await store.abandon()  # else it would live on, and nobody would have it
            raise
        head = store.head()
        self.states.clear()  # C4, whatever came in since
        self._store = store
        self._epoch = store.epoch
        self._opened_at = self._clock.monotonic()
        self._ticker = Ticker(self._clock, head.time_ms)
        self.applied_n = head.n
        self._on_open()

    # -- reads

    async def read(self, query: Callable[[Shown], Awaitable[R]]) -> R:
        """Run a query over durable rows and states. It may keep states that it loads."""
        store = self._require_store()
        try:
            async with asyncio.timeout(self.deadline):
                try:
                    result = await query(Shown(self, store, None, self.now_ms()))
                except (UnavailableError, StoppedError):
                    raise
                except PenstockError:
                    # C5: a refusal rests on rows, too, which may be another's by now, or gone.
                    await store.verify()
                    raise
                await store.verify()
        except TimeoutError:
            raise UnavailableError("the store did not answer in time", hint="retry later") from None
        except FencedError as error:
            if store is not self._store and self._finished is None:
                raise UnavailableError("the store was reopened", hint="retry now") from None
            raise self._finish(error) from None
        except InvalidError:
            if self._finished is not None:
                raise self._finished from None  # it ended meanwhile, and its handle with it
            if store is not self._store:
                raise UnavailableError("the store was reopened", hint="retry now") from None
            raise
        except (UnavailableError, StoppedError) as error:
            if self._finished is not None:
                raise self._finished from None
            # The handle cannot read any more: only another one can.
            self._lose(store, UnavailableError(str(error)))  # nobody else asked for what is damaged
            if isinstance(error, StoppedError):
                raise _told(error) from error
            raise
        return result

    async def verify(self) -> None:
        """Raise FencedError, and end everything, where the location is another's by now."""
        await self.read(_nothing)

    # -- writes

    async def submit(self, *steps: Step, begun: float | None = None) -> list[Any]:
        """`begun` is when the call began (monotonic), where it looked something up before it came
        here: its deadline counts from there, so that a call with two parts has one all the same."""
        return await self.request(*steps, begun=begun)

    def request(
        self, *steps: Step, begun: float | None = None, meanwhile: Meanwhile | None = None
    ) -> asyncio.Future[list[Any]]:
        """The same, without waiting: the place in the order is taken at once."""
        return self.enqueue(*steps, begun=begun, meanwhile=meanwhile).reply

    def enqueue(
        self, *steps: Step, begun: float | None = None, meanwhile: Meanwhile | None = None
    ) -> Request:
        """The same for one that may take in more until its tick decides it: see `enlarge`."""
        self._require_store()
        if self._closing:
            raise InvalidError("the location is being closed", hint="open it again")
        self._require_room(len(self._waiting))
        loop = asyncio.get_running_loop()
        now = self._clock.monotonic()
        if begun is not None and begun < now - self.deadline / 2:
            raise _too_slow()  # behind a tick it would hear of it only when that one is over
        since = now if begun is None else begun
        request = Request(steps, loop.create_future(), since, meanwhile)
        self._waiting.append(request)
        self._waiting_bytes += request.size
        if self._drain is None or self._drain.done():
            self._drain = loop.create_task(self._run())
        return request

    def enlarge(self, request: Request, size: int) -> None:
        """It holds on to so many bytes more. Refused as a request of its own would be."""
        if request.waits:
            self._require_room(0)
            request.size += size
            self._waiting_bytes += size

    def _require_room(self, waiting: int) -> None:
        if waiting >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
            raise UnavailableError(
                f"{len(self._waiting):,} requests of {self._waiting_bytes:,} bytes are waiting",
                hint="slow down and retry; nothing was written",
            )

    @property
    def epoch(self) -> int:
        return self._epoch or 0

    def has(self, store: Store) -> bool:
        """Whether this is the handle in use."""
        return store is self._store

    @property
    def finished(self) -> bool:
        """Whether nothing is answered any more: closed, fenced, or damaged."""
        return self._finished is not None

    @property
    def fenced(self) -> bool:
        return isinstance(self._finished, FencedError)

    def now_ms(self) -> int:
        assert self._ticker is not None, "open first"
        return self._ticker.now_ms()

    def _require_store(self) -> Store:
        if self._finished is not None:
            # One error that all are told: the frames of everybody who asked, with what he asked
            # for, would stay in its traceback.
            raise self._finished.with_traceback(None)
        if self._store is None:
            reason = self._down or "it is not open"
            raise UnavailableError(
                f"the store is not available: {reason}", hint="retry later; nothing was written"
            )
        return self._store

    async def _run(self) -> None:
        while self._waiting and self._store is not None:
            store = self._store
            accepted: list[Outcome] = []
            try:
                await self._tick(store, accepted)
            except asyncio.CancelledError:
                stopped = UnavailableError("the broker was stopped")
                self._fail(accepted, stopped)
                if store is self._store:  # C4: nobody knows what became of its commit
                    self._store, self._lost, self._down = None, store, stopped
                    self.states.clear()
                self._turn_away(stopped)
                raise
            except Exception as error:
                # A bug, in the middle of a tick: its callers hear of it, and memory is not trusted.
                _log.exception("a tick failed")
                for request, _ in accepted:
                    request.fail(error)
                if store is self._store:
                    self._lose(store, UnavailableError(f"the broker failed: {error!r}"))

    async def _tick(self, store: Store, accepted: list[Outcome]) -> None:
        assert self._ticker is not None, "a store was opened"
        seed = xxhash.xxh3_128_digest(self._secret + self.applied_n.to_bytes(8, "little"))
        now = Now(self._ticker.now_ms(), seed)
        tick = Shown(self, store, None, now.ms)
        sent = False
        try:
            with self._limit(self.deadline / 2) as ends:
                await self._decide(tick, now, accepted)
                if asyncio.get_running_loop().time() >= ends:
                    raise TimeoutError  # a commit would be cut off in the moment it begins
                sent = True
                record = b""
                if tick.done:
                    record = encode_operations(tick.done)
                    tick.writes[operations_key(self.applied_n + 1)] = record
                if tick.writes:
                    await store.commit(
                        self.applied_n + 1,
                        list(tick.writes.items()),
                        time_ms=now.ms,
                        epoch=store.epoch,
                        meanwhile=_made_ready(accepted),
                    )
                else:
                    await store.verify()
        except RefusedError as error:
            self.health.refused += 1
            self._fail(accepted, UnavailableError(str(error), hint=error.hint))
        except FencedError as error:
            if store is not self._store and self._finished is None:
                # A read lost this handle meanwhile, and the reopening fenced it: nobody else did.
                self._fail(accepted, UnavailableError("the store was reopened"))
            else:
                self._finish(error)
                self._fail(accepted, error)
        except (TimeoutError, PenstockError) as error:
            if isinstance(error, TimeoutError) and not sent:
                self.health.refused += 1
                self._fail(
                    accepted,
                    UnavailableError(
                        "what was asked for could not be looked up in time",
                        hint="ask for less at a time, or retry later; nothing was written",
                    ),
                )
                return
            if self._finished is not None:
                self._fail(accepted, self._finished)  # ended meanwhile, and its handle with it
                return
            text = str(error) or "the store did not answer in time"
            self._lose(store, UnavailableError(text))
            self._fail(
                accepted,
                _told(error) if isinstance(error, CorruptError) else UnavailableError(text),
            )
        else:
            self._apply(tick, len(record))
            for request, outcome in accepted:
                if isinstance(outcome, Exception):
                    request.fail(outcome)
                elif not request.reply.done():
                    request.reply.set_result(outcome)

    async def _decide(self, tick: Shown, now: Now, accepted: list[Outcome]) -> None:
        size = 0
        latest = self._clock.monotonic() - self.deadline / 2
        for request in self._waiting:
            if request.begun < latest:
                # C3: this tick may take the other half of the deadline. All of them hear it now, as
                # the requests in front of them may take that half alone.
                request.fail(_too_slow())
        while self._waiting and size < TICK_BYTES:
            request = self._next_waiting()
            if request.reply.done():
                continue  # just now, or the caller gave up before anything was decided
            submit = Shown(self, tick.store, tick, now.ms)
            replies: list[Any] = []
            accepted.append((request, replies))
            try:
                for step in request.steps:
                    if step.load is not None:
                        await step.load(submit)
                    decision = step.decide(submit, now)
                    submit.add(decision)
                    replies.append(decision.reply)
            except (FencedError, UnavailableError, StoppedError):
                raise  # the store's, not the request's
            except Exception as error:
                # It may have been refused because of what this tick writes: C1 holds for it too.
                accepted[-1] = request, error
                continue
            size += tick.take_in(submit)
            self.health.requests += 1

    def _apply(self, tick: Shown, record_bytes: int) -> None:
        if tick.writes:
            self.applied_n += 1
            if tick.done:
                self.tail.add(self.applied_n, tick.done, record_bytes)
            self.health.commits += 1
            self._on_commit(tick.writes.keys())
        for key, state in tick.states.items():
            self.states.put(key, state)
        if tick.timers:
            self._on_timers(tick.timers)
        if tick.states:
            self._on_states(tick.states)

    def _fail(self, accepted: list[Outcome], error: PenstockError) -> None:
        for request, _ in accepted:
            request.fail(error)

    # -- trouble

    def fence(self, reason: str) -> PenstockError:
        """The location is another's by now: end as if the store had said so. -> what all hear"""
        return self._finish(FencedError(reason))

    def _finish(self, error: PenstockError) -> PenstockError:
        """This committer lost its epoch: it answers nothing more."""
        if self._finished is None:
            self._finished = error
            store, self._store = self._store, None
            self.states.clear()
            self._turn_away(error)
            self._on_finish(error)
            if store is not None:
                self._lost = store
                self._reopening = asyncio.get_running_loop().create_task(store.abandon())
        return self._finished

    def _lose(self, store: Store, error: PenstockError) -> None:
        """The outcome is unknown: never go on with this handle or this memory."""
        self.health.unknown_outcomes += 1
        if self._store is not store:
            return
        self._store, self._lost = None, store
        self._down = error
        self.states.clear()
        self._turn_away(error)
        self._reopening = asyncio.get_running_loop().create_task(self._reopen(store))

    def _turn_away(self, error: PenstockError) -> None:
        while self._waiting:
            self._next_waiting().fail(error)

    def _next_waiting(self) -> Request:
        request = self._waiting.popleft()
        request.waits = False
        self._waiting_bytes -= request.size
        return request

    async def _reopen(self, lost: Store) -> None:
        await lost.abandon()
        self._lost = None
        if self._clock.monotonic() >= self._opened_at + LASTING_SECONDS:
            self._attempts = 0
        while self._finished is None:
            if self._attempts:
                last = len(BACKOFF_SECONDS) - 1
                await self._clock.sleep(BACKOFF_SECONDS[min(self._attempts - 1, last)])
            self._attempts += 1
            try:
                async with asyncio.timeout(self.deadline):
                    await self._open()
                self._down = None
                self.health.reopened += 1
                return
            except (FencedError, CorruptError) as error:
                self._finish(_told(error))  # damage does not heal by trying again
            except TimeoutError:
                self._down = UnavailableError("the store did not open in time")
            except PenstockError as error:
                self._down = error
            except Exception as error:
                _log.exception("reopening failed")
                self._down = UnavailableError(f"reopening failed: {error!r}")

    # -- the end

    async def close(self) -> None:
        """Finish what was accepted, then close the store. Later calls are an InvalidError."""
        self._closing = True  # what was accepted is finished, nothing more is
        try:
            if self._drain is not None and self._store is not None:
                await asyncio.wait([self._drain])  # which goes on where we are cancelled
        finally:
            self._closing = False
        if self._finished is None:
            self._finished = InvalidError("the location is closed", hint="open it again")
            self._on_finish(self._finished)
        self._turn_away(self._finished)
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
        if self._lost is not None:
            await self._lost.abandon()  # the task may have been cancelled before its first step
        store, self._store = self._store, None
        if store is not None:
            try:
                async with asyncio.timeout(self.deadline):
                    await store.close()
            except TimeoutError:
                await store.abandon()  # everything acknowledged is durable without it


def _made_ready(accepted: list[Outcome]) -> Callable[[], None] | None:
    """What can be done while the commit is on its way; None: nothing."""
    told = [
        (request.meanwhile, outcome)
        for request, outcome in accepted
        if request.meanwhile is not None and not isinstance(outcome, Exception)
    ]

    def make_ready() -> None:
        for meanwhile, replies in told:
            meanwhile(replies)

    return make_ready if told else None


def _told(error: PenstockError) -> PenstockError:
    """What callers hear: one of the six kinds, as they cannot do more about a lost handle."""
    return CorruptError(str(error)) if isinstance(error, StoppedError) else error


def _too_slow() -> UnavailableError:
    return UnavailableError(
        "the store is too slow for what is asked of it",
        hint="slow down and retry; nothing was written",
    )


async def _nothing(view: Shown) -> None:
    """A read that shows nothing: what it does is ask for the epoch."""
