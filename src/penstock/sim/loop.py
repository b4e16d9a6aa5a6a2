"""An event loop in virtual time: nothing sleeps, nothing else runs, one schedule per seed.

Contract     When nothing is ready, time jumps to the next timer. There are no threads, sockets or
             signals. `made` is called for every task, so that a simulated process can be killed
             with all of its tasks.
Invariants   V1  the order of callbacks depends on nothing but the callbacks themselves: the garbage
                 collector, which ends generators whenever it likes, is off while the loop runs
             V2  a world in which nothing can happen any more is an error, and so is one in which
                 time stands still for ever
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

#: Rounds of the loop at one instant: far more than any request needs.
ROUNDS_MAX = 30_000


class StandstillError(Exception):
    """Nothing can happen any more, or time stands still."""


class OverError(Exception):
    """There is no point in going on."""


class _Selector:
    """Stands where the loop would wait for sockets: here time passes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._rounds = 0

    def select(self, timeout: float | None) -> list[Any]:
        if self._loop.over():
            raise OverError
        self._rounds = 0 if timeout else self._rounds + 1
        if timeout is None:
            raise StandstillError("everybody waits, and there is no timer")
        if self._rounds > ROUNDS_MAX:
            raise StandstillError(f"time stands still at {self._loop.time():.3f}")
        self._loop.seconds += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, made: Callable[[asyncio.Task[Any], Context | None], None]) -> None:
        super().__init__()
        self.seconds = 0.0
        self._selector = _Selector(self)
        self._made = made
        #: Asked before anything else happens: whether the run ends here.
        self.over: Callable[[], bool] = lambda: False

    def time(self) -> float:
        return self.seconds

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        self._made(task, context)
        return task

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody must be woken."""


def run(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run to the end, then end everything that is left over."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    task, over = loop.create_task(main), loop.over
    # Not between the end of `main` and the moment at which the loop hears of it.
    loop.over = lambda: over() and not task.done()
    try:
        return loop.run_until_complete(task)
    finally:
        try:
            _end(loop)
        finally:
            loop.close()
            if collecting:
                gc.enable()


def _end(loop: VirtualLoop) -> None:
    loop.over = lambda: False
    left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
