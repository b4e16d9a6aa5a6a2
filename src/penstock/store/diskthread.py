"""One daemon thread for calls that block on a disk.

Contract     Jobs run in order, off the event loop. A disk that hangs hangs this thread, never the
             loop: the caller's deadline ends the wait, and the thread settles its debts when it
             can. It is a daemon, so a hanging disk does not keep the process from ending. A job
             that its caller gave up runs to its end all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import PenstockError, UnavailableError

R = TypeVar("R")

#: With nothing to do for this long, the chore runs once.
IDLE_SECONDS = 0.01

_Done = Callable[[Any, BaseException | None], None]


class DiskThread:
    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], _Done] | None] = queue.SimpleQueue()
        #: Runs when the thread falls idle; a failure of it shows in the next job.
        self.chore: Callable[[], None] | None = None
        self._finished = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, job: Callable[[], R]) -> R:
        if self._finished:  # nothing would ever answer
            raise UnavailableError("the store was closed meanwhile")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return  # the caller gave up
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def done(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        self._jobs.put((job, done))
        return await future

    def teller(self, callback: Callable[[], None]) -> Callable[[], None]:
        """What a job may call to have this called on the loop that runs now."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(callback)

        return tell

    def finish(self, job: Callable[[], None]) -> None:
        """Run a last job whenever the earlier ones are through, then end. Does not wait."""
        self._finished = True
        self._jobs.put((job, lambda _result, _error: None))
        self._jobs.put(None)

    def _run(self) -> None:
        idle = False
        while True:
            try:
                item = self._jobs.get(timeout=None if idle else IDLE_SECONDS)
            except queue.Empty:
                idle = True
                if self.chore is not None:
                    with contextlib.suppress(OSError, PenstockError):
                        self.chore()
                continue
            if item is None:
                return
            idle = False
            job, done = item
            try:
                result = job()
            except BaseException as error:
                done(None, error)
            else:
                done(result, None)
            del item, job, done  # a job may hold a whole batch
