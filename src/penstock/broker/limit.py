"""A time limit for what one task does again and again: one timer for many of them.

Contract     `with limit(seconds) as ends:` raises TimeoutError where the block is not over at
             `ends` (the loop's time), as `asyncio.timeout` does, and tells a cancellation from
             outside apart as that does. One block at a time.
Speed        A timer that was made and cancelled for each commit took five microseconds of it. Here
             one that was set stays, and looks again when it fires: it fires once per limit,
             however many blocks there were.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class Limit:
    __slots__ = ("_cancelling", "_ends", "_over", "_seconds", "_task", "_timer")

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None  # while a block runs
        self._seconds = self._ends = 0.0
        self._cancelling = 0  # how often the task had been asked to end when the block began
        self._over = False  # the task was cancelled here

    def __call__(self, seconds: float) -> Limit:
        self._seconds = seconds
        return self

    def __enter__(self) -> float:
        assert self._task is None, "one block at a time"
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._task, self._cancelling, self._over = task, task.cancelling(), False
        self._ends = loop.time() + self._seconds
        if self._timer is not None and self._timer.when() > self._ends:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(self._ends, self._look)
        return self._ends

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        assert task is not None, "the block began"
        if (
            self._over
            and task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise TimeoutError from error

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return  # the next block sets it again
        loop = asyncio.get_running_loop()
        if loop.time() < self._ends:
            self._timer = loop.call_at(self._ends, self._look)
        else:
            self._over = True
            self._task.cancel()
