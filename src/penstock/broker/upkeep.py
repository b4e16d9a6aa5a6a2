"""Upkeep: what is done behind the requests, in commits of its own: merge, collect, fold, revoke.

Contract     `remind` takes the hints that decisions give; after opening, the same hints are
             rebuilt from rows: every chore is called once with None for its id. One chore at a
             time, so that requests never wait behind more than one of its commits.
Failures     A store that is down is tried again later. Rows that cannot be read are reported,
             once per reminder, and left alone: whoever reads them gets the CorruptError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from penstock.broker.commit import Committer, Shown
from penstock.clock import Clock
from penstock.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
    UnavailableError,
)
from penstock.log.chores import pending_chores, pending_merges, plan_chore
from penstock.log.decision import StateKey, Step, Timer
from penstock.log.merge import plan_merge
from penstock.log.once import plan_expire
from penstock.log.state import LogState, read_log, state_key

_log = logging.getLogger("penstock")

#: How often idempotency rows that expired are looked for.
EXPIRE_MS = 3_600_000
EXPIRE: StateKey = ("expire", None)
#: Look for what waits in the rows.
FIND: StateKey = ("find", None)
#: How many runs of one log are merged in one commit: under load they are closed faster than commits
#: follow each other.
MERGED_RUNS = 8
RETRY_MS = 1000


#: Does what a hint says, by the first part of its key; what the log layer knows is built in.
Chore = Callable[[Committer, StateKey], Awaitable[None]]


class Upkeep:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._chores: dict[str, Chore] = {}
        self._due: dict[StateKey, int] = {}
        #: While it waits: what for, and how it knows the time.
        self._until_ms: float | None = None
        self._now_ms: Callable[[], int] = lambda: 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, chores: Mapping[str, Chore]) -> None:
        self._chores |= chores

    def start(self, committer: Committer) -> None:
        self._now_ms = committer.now_ms
        self._task = asyncio.get_running_loop().create_task(self._run(committer))

    def remind(self, timers: list[Timer]) -> None:
        """Every commit does: whoever waits is woken only for what is due before that."""
        earliest = math.inf
        for timer in timers:
            self._due[timer.what] = min(timer.at_ms, self._due.get(timer.what, timer.at_ms))
            earliest = min(earliest, timer.at_ms)
        until_ms = self._until_ms
        # The clock may have jumped over it.
        if until_ms is not None and (earliest < until_ms or until_ms <= self._now_ms()):
            self._wake.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def look_again(self) -> None:
        """After an opening: hints may have been lost with the memory that held them."""
        self.remind([Timer(0, FIND), Timer(0, EXPIRE)])
        self.remind([Timer(0, (chore, None)) for chore in self._chores])

    async def _run(self, committer: Committer) -> None:
        while True:
            self._wake.clear()
            now_ms = committer.now_ms()
            due = [what for what, at_ms in self._due.items() if at_ms <= now_ms]
            for what in due:
                del self._due[what]
                if not await self._attempt(committer, self._do(committer, what)):
                    self.remind([Timer(now_ms + RETRY_MS, what)])
            if not due:
                await self._wait(now_ms)

    async def _wait(self, now_ms: int) -> None:
        """Until somebody reminds us, or the next chore is due."""
        next_ms = min(self._due.values(), default=None)
        self._until_ms = math.inf if next_ms is None else next_ms
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    None if next_ms is None else max(next_ms - now_ms, 1) / 1000
                ):
                    await self._wake.wait()
        finally:
            self._until_ms = None

    async def _attempt(self, committer: Committer, work: Awaitable[None]) -> bool:
        """Whether it is done; False: try again later. Fenced and closed end the upkeep."""
        try:
            await work
        except (UnavailableError, ConflictError):
            return False
        except NotFoundError:
            pass  # what it was about was deleted meanwhile
        except CorruptError as error:
            _log.error("upkeep: %s", error)
        except Exception as error:
            if committer.finished:
                raise asyncio.CancelledError from error
            # A bug. It must not end the upkeep of everything else, nor go unheard.
            _log.exception("upkeep failed")
            return False
        return True

    async def _find(self, committer: Committer) -> None:
        """What timers would have told, from the rows; in parts, each within the deadline."""

        async def query(view: Shown) -> list[Timer]:
            return [timer async for timer in pending_chores(view.store)]

        self.remind(await committer.read(query))
        after: bytes | None = b""
        while after is not None:
            start = after
            due, after = await committer.read(
                lambda view, start=start: pending_merges(view.store, start)  # type: ignore[misc]
            )
            self.remind(due)

    async def _do(self, committer: Committer, what: StateKey) -> None:
        if what == FIND:
            return await self._find(committer)
        if what == EXPIRE:
            return await self._expire(committer)
        if what[0] in self._chores:
            return await self._chores[what[0]](committer, what)
        more = True
        while more:
            steps = await committer.read(lambda view: _plan(view, what, self._clock))
            if not steps:
                return
            more = all(await committer.submit(*steps))

    async def _expire(self, committer: Committer) -> None:
        now_ms = committer.now_ms()
        self.remind([Timer(now_ms + EXPIRE_MS, EXPIRE)])
        after: bytes | None = b""
        while after is not None:
            start = after
            step, after = await committer.read(
                lambda view, start=start: plan_expire(view.store, start, now_ms)  # type: ignore[misc]
            )
            if step is not None:
                await committer.submit(step)


async def _plan(view: Shown, what: StateKey, clock: Clock) -> list[Step]:
    if what[0] == "merge":
        return await _plan_merges(view, what, clock)
    step = await plan_chore(view.store, what)
    return [] if step is None else [step]


async def _plan_merges(view: Shown, what: StateKey, clock: Clock) -> list[Step]:
    log_id = what[1]
    assert isinstance(log_id, int)
    state: LogState | None = view.state(state_key(log_id)) or await read_log(view.store, log_id)
    if state is None:
        return []
    steps = []
    for run in state.closed[:MERGED_RUNS]:
        await clock.sleep(0)  # building a node takes a while: let requests go first
        step = await plan_merge(view.store, msgspec.structs.replace(state, closed=(run,)))
        if step is not None:
            steps.append(step)
    return steps
