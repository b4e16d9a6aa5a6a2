"""The event loop behind a handle: one thread, and two ways in.

Contract     `call` runs a coroutine on the loop and waits for it, from any thread but the loop's
             own; `hop` awaits it from another event loop. A forked child has no such thread: there
             every call is an InvalidError, at once.
             The loop is uvloop's: with it a lone durable write took 0.49-0.55 ms
             instead of 0.63-0.70 in alternating runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import uvloop

from penstock.errors import InvalidError

STOP_SECONDS = 5.0

R = TypeVar("R")
Work = Coroutine[Any, Any, R]

#: Never collected before it is stopped: in a forked child the end of a loop would reach into the
#: epoll set that it shares with its parent.
_running: set[LoopThread] = set()


class _Call(Generic[R]):
    """One coroutine on its way. Lighter than asyncio.run_coroutine_threadsafe, whose two futures
    cost a lone write a tenth of its time."""

    __slots__ = ("_done", "_task", "_work")

    def __init__(self, work: Work[R]) -> None:
        self._work = work
        self._task: asyncio.Task[R] | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[R]) -> None:
        self._done.release()

    def wait(self, loop: asyncio.AbstractEventLoop) -> R:
        try:
            self._done.acquire()
        except BaseException:  # Ctrl-C: the caller gives up, so the call must not go on unseen
            loop.call_soon_threadsafe(self._cancel)
            raise
        assert self._task is not None, "it is done"
        if self._task.cancelled():
            raise InvalidError("the location was closed while the call was under way")
        return self._task.result()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def not_in_a_fork() -> InvalidError:
    return InvalidError(
        "this handle belongs to the process that opened it, not to a fork of it",
        hint="open the location in the child",
    )


class LoopThread:
    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        #: Held while a call enters the loop, so that none enters behind the last one. Reentrant: a
        #: consumer that is collected in this very moment makes a call of its own.
        self._entry = threading.RLock()
        self._stopped = False
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Work[R]) -> R:
        """Run it, and wait for what it returns or raises."""
        self._check(work)
        call = _Call(work)
        self._enter(work, call)
        return call.wait(self._loop)

    async def hop(self, work: Work[R]) -> R:
        """The same from another event loop; a caller that is cancelled cancels the work."""
        self._check(work)
        home = asyncio.get_running_loop()
        done: asyncio.Future[None] = home.create_future()
        call = _Hop(work, home, done)
        self._enter(work, call)
        try:
            await done
        except asyncio.CancelledError:
            if not done.done() or done.cancelled():
                self._loop.call_soon_threadsafe(call._cancel)
                raise
        return call.wait(self._loop)

    def _check(self, work: Work[R]) -> None:
        if os.getpid() != self._pid:
            work.close()
            raise not_in_a_fork()
        if threading.get_ident() == self._thread.ident:
            work.close()
            raise InvalidError("a blocking call on the broker's own thread would wait for itself")

    def _enter(self, work: Work[R], call: _Call[R]) -> None:
        with self._entry:
            if self._stopped:
                work.close()
                raise InvalidError("the location is closed", hint="open it again")
            self._loop.call_soon_threadsafe(call.start)

    def post(self, callback: Callable[[], object]) -> None:
        """Let the loop call it soon, unless it has ended; waits for nothing."""
        if os.getpid() != self._pid:
            return
        if threading.get_ident() == self._thread.ident:
            self._loop.call_soon(callback)
            return
        with self._entry:
            if not self._stopped:
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the thread, and whatever still runs on its loop."""
        if os.getpid() != self._pid:
            return
        with self._entry:
            if self._stopped:
                return
            self._stopped = True
            last = _Call(_cancel_others())
            self._loop.call_soon_threadsafe(last.start)
        last.wait(self._loop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        _running.discard(self)


class _Hop(_Call[R]):
    """A call that is awaited on its caller's own loop."""

    __slots__ = ("_home", "_told")

    def __init__(
        self, work: Work[R], home: asyncio.AbstractEventLoop, told: asyncio.Future[None]
    ) -> None:
        super().__init__(work)
        self._home = home
        self._told = told

    def _finish(self, task: asyncio.Task[R]) -> None:
        super()._finish(task)
        if not self._home.is_closed():
            self._home.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self._told.done():
            self._told.set_result(None)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:  # one that does not let itself be ended must not keep the program from ending
        await asyncio.wait(others, timeout=STOP_SECONDS)
    # What they began because they were cancelled: the end of an engine. It calls back from a thread
    # of its own, and a call into a Python that is ending aborts the process.
    late = asyncio.all_tasks() - {asyncio.current_task()} - others
    if late:
        await asyncio.wait(late, timeout=STOP_SECONDS)
