"""What a source's generators yield, pulled in one thread of their own, one after the other.

Contract     `Puller.begin(make)` has a generator made, in the thread; then `gather(take, …)` calls
             `take` with each value that comes, until that says that it is full, the generator has
             ended or failed, or `seconds` are over since the first one: so what has come does not
             wait for what comes next. While nothing comes, `check` is called now and then, and what
             it raises ends the gathering. `over` says that nothing will come any more, `failure`
             why, where the generator raised.
One thread   for all generators of a source, also after a failure: what its function keeps from call
             to call may belong to a thread.
Order        A generator goes on only while somebody gathers. What it yields when the time is over
             is the first value of the next gathering.
The end      `let_go` ends a generator, and so does a `take` that raises; `close` ends the thread
             too. It is closed in the thread, before anybody hears of its end. A generator that
             waits for something cannot be interrupted: it ends at its next yield (`is_busy` until
             then), and its thread keeps no process alive.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock.clock import SystemClock

#: How often `check` is called while nothing comes.
CHECK_SECONDS = 0.1

_NOTHING = object()

Take = Callable[[Any], bool]
Make = Callable[[], Iterator[Any]]


class Puller:
    def __init__(
        self, name: str, thread: Callable[..., threading.Thread] = threading.Thread
    ) -> None:
        self._name = name
        self._new_thread = thread
        self._thread: threading.Thread | None = None
        self._clock = SystemClock()
        self._turn = threading.Condition()
        self._make: Make | None = None  # of the next generator, until it is made
        self._take: Take | None = None  # of who gathers, until it is full
        self._taken = 0
        self._wanted = False  # the generator that is under way
        self._closed = False
        self.is_busy = False  # with a generator
        self.over = False
        self.failure: BaseException | None = None

    def begin(self, make: Make) -> None:
        """`make` is called in the thread too: it is code of somebody else as well."""
        with self._turn:
            assert not self.is_busy, "one generator at a time"
            self._make, self._wanted, self.is_busy = make, True, True
            self.over, self.failure = False, None
            self._turn.notify_all()
            if self._thread is None:
                self._thread = self._new_thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def let_go(self) -> None:
        with self._turn:
            self._wanted = False
            self._turn.notify_all()

    def close(self) -> None:
        with self._turn:
            self._closed, self._wanted = True, False
            self._turn.notify_all()

    def gather(self, take: Take, seconds: float, check: Callable[[], None]) -> None:
        with self._turn:
            self._take, self._taken = take, 0
            self._turn.notify_all()
            try:
                while not self._taken and not self.over:
                    self._turn.wait(CHECK_SECONDS)
                    check()
                end = self._clock.monotonic() + seconds
                while self._take is not None and not self.over:
                    left = end - self._clock.monotonic()
                    if left <= 0:
                        break
                    self._turn.wait(left)
            finally:
                self._take = None

    # -- in the thread

    def _work(self) -> None:
        while (make := self._next()) is not None:
            failure: BaseException | None = None
            try:
                self._hand_over_all(make)
            except BaseException as error:
                failure = error  # whoever gathers raises it
            del make  # with all that it refers to, before anybody hears of the end
            with self._turn:
                self.over, self.failure, self.is_busy = True, failure, False
                self._turn.notify_all()

    def _next(self) -> Make | None:
        with self._turn:
            while self._make is None and not self._closed:
                self._turn.wait()
            make, self._make = self._make, None
            return make

    def _hand_over_all(self, make: Make) -> None:
        values = make()
        try:
            while self._is_wanted():
                value = next(values, _NOTHING)
                if value is _NOTHING or not self._hand_over(value):
                    return
        finally:
            # By hand: a failure refers to it for as long as somebody keeps that.
            if inspect.isgenerator(values):
                values.close()

    def _is_wanted(self) -> bool:
        """Waits until somebody gathers; False: never again."""
        if self._take is not None and self._wanted:
            return True  # the usual case, without the lock: that the time is over may come late
        with self._turn:
            return self._awaited() is not None

    def _hand_over(self, value: Any) -> bool:
        with self._turn:
            take = self._awaited()
            if take is None:
                return False
            full = take(value)
            self._taken += 1
            if full:
                self._take = None
            if full or self._taken == 1:
                self._turn.notify_all()
            return True

    def _awaited(self) -> Take | None:
        while self._take is None and self._wanted:
            self._turn.wait()
        return self._take if self._wanted else None
