"""Settling what the handlers of a consumer did: acknowledgements, failures, effects.

Contract     `soon` is told that there are results. What was finished is acknowledged together with
             the next poll (`take_along`), or after FLUSH_SECONDS; failures at once. With effects
             (tx) everything is settled at once and in the order in which it was handled, each
             message together with its own effects in one commit; several share a commit while the
             one before is on its way.
Failures     The broker counts attempts, and the key waits for its answer. An effect that it refuses
             is a failure of its handler: what was handled after it of the same key, and is not
             committed, is handled again after it.
Lost broker  Everything is asked again. What is acknowledged twice is refused the second time, and
             so are its effects: it counts as lost although it was not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from penstock.broker.topicanswers import Acked, Effect, Failure, Refs
from penstock.client.consume import reason_of
from penstock.client.handling import Handling, Result, failure_of, refs_of
from penstock.client.topicshapes import TopicMessage
from penstock.clock import Clock
from penstock.errors import CorruptError, FencedError, PenstockError, UnavailableError

_log = logging.getLogger("penstock")

#: Acknowledgements gather for so long, unless a poll takes them along before.
FLUSH_SECONDS = 0.02
#: Whatever failed because the broker was away is repeated after so long.
AGAIN_SECONDS = 0.2
#: So many messages with effects share a commit at most.
TX_TOGETHER = 100


class Registration(Protocol):
    """What of a consumer's registration is used here."""

    @property
    def token(self) -> int: ...

    def ack(
        self, done: list[Refs], failures: list[Failure], effects: list[Effect]
    ) -> Awaitable[Acked]: ...

    async def require(self) -> None:
        """Raises where this consumer is not registered any more."""

    def broken(self, error: PenstockError) -> None:
        """The registration is gone, or cannot be used."""

    def give_back(self, dropped: Sequence[TopicMessage]) -> None:
        """Nobody begins these here."""

    def moved(self) -> None:
        """Some slot has: find out which."""


class Settler:
    def __init__(
        self,
        handling: Handling,
        registration: Registration,
        clock: Clock,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._handling = handling
        self._registration = registration
        self._clock = clock
        self._spawn = spawn
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._along: list[Refs] = []  # what the last poll was to acknowledge

    @property
    def _busy(self) -> bool:
        return self._flushing is not None and not self._flushing.done()

    def soon(self) -> None:
        if self._busy:
            return
        if self._handling.is_urgent:
            self._now()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._now)

    def _now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy:
            self._flushing = self._spawn(self._flush())

    def take_along(self) -> list[Refs]:
        """What a poll may acknowledge: what was finished, without effects or failures."""
        free = not (self._handling.manner.tx or self._busy)
        self._along = refs_of(self._handling.take_done()) if free else []
        return self._along

    async def give_up_poll(self) -> None:
        """The last poll was cancelled, perhaps before the broker had it: what went along is said
        once more. What is refused now counted before, or has moved on."""
        along, self._along = self._along, []
        if along:
            with contextlib.suppress(PenstockError):  # then they come again, to others
                await self._registration.ack(along, [], [])

    async def finish(self) -> None:
        """Settle everything, or as much as the broker lets."""
        for _ in range(2):  # what is on its way, then what came meanwhile
            if self._flushing is not None:
                await asyncio.wait({self._flushing})
            self._now()
        assert self._flushing is not None
        await asyncio.wait({self._flushing})

    async def _flush(self) -> None:
        handling = self._handling
        while results := handling.take_results():
            token = self._registration.token
            try:
                if handling.manner.tx:
                    await self._settle_in_order(results)
                else:
                    self._settled(results, await self._ack(results))
            except (UnavailableError, FencedError) as error:
                _log.warning("consumer %s settles later: %s", handling.manner.consumer, error)
                if token == self._registration.token:
                    handling.put_back(results)
                if handling.stopped:
                    return
                await self._clock.sleep(AGAIN_SECONDS)
            except PenstockError as error:
                if token == self._registration.token:
                    self._registration.broken(error)

    async def _ack(self, results: Sequence[Result]) -> Acked:
        acked = await self._registration.ack(
            refs_of([each.message for each in results if each.error is None]),
            [failure_of(each) for each in results if each.error is not None],
            [effect for each in results for effect in each.effects],
        )
        if not all(acked.taken) or "stale" in acked.failed:
            self._handling.doubt()  # what comes after it has moved on too
            self._registration.moved()
        return acked

    def _settled(self, results: Sequence[Result], acked: Acked) -> None:
        self._handling.lost += acked.taken.count(False) + acked.failed.count("stale")
        failed = [each.message for each in results if each.error is not None]
        dropped = self._handling.answered(failed, acked.failed, paused=acked.paused)
        self._registration.give_back(dropped)

    # -- with effects

    async def _settle_in_order(self, results: list[Result]) -> None:
        """One commit after the other, so that no message of a key is settled before an earlier
        one. What is settled leaves `results`: the rest is there when this raises."""
        alone = 0
        while results:
            part = _part(results, 1 if alone else TX_TOGETHER)
            if part[0].error is not None:
                await self._settle_failure(results)
            else:
                refused = await self._commit(part)
                if refused is not None and len(part) > 1:
                    alone = len(part)  # nothing was done: find out whose fault it is
                    continue
                if refused:
                    results[0] = Result(part[0].message, error=refused)
                    continue
            del results[: len(part)]
            alone = max(0, alone - 1)

    async def _commit(self, part: Sequence[Result]) -> str | None:
        """-> None; or why nothing was done: an error, or empty where one has moved on"""
        try:
            acked = await self._ack(part)
        except (UnavailableError, FencedError, CorruptError):
            raise
        except PenstockError as error:
            # An effect was refused; or is this consumer not registered any more?
            await self._registration.require()
            return reason_of(error)
        lost = acked.taken.count(False)
        if lost and len(part) > 1 and any(each.effects for each in part):
            return ""
        self._settled(part, acked)
        return None

    async def _settle_failure(self, results: list[Result]) -> None:
        """The first of these. If it comes again, so does what came after it of its key."""
        acked = await self._ack(results[:1])
        if acked.failed == ["again"]:
            first = results[0].message
            dropped = self._handling.redo(first, results, paused=acked.paused)
            self._registration.give_back(dropped)
        else:
            self._settled(results[:1], acked)


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
