"""What a source's generator yields, pulled in a thread of its own.

Contract     `Pull.gather(take, …)` calls `take` with each value that comes, until that says that it
             is full, the generator has ended or failed, or `seconds` are over since the first one:
             so what has come does not wait for what comes next. While nothing comes, `check` is
             called now and then, and what it raises ends the gathering. `over` says that nothing
             will come any more, `failure` why, where the generator raised.
Order        The generator goes on only while somebody gathers. What it yields when the time is over
             is the first value of the next gathering.
The end      `close` lets go of it. A generator that waits for something cannot be interrupted: it
             ends at its next yield, and its thread keeps no process alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock.clock import SystemClock

#: How often `check` is called while nothing comes.
CHECK_SECONDS = 0.1

_NOTHING = object()

Take = Callable[[Any], bool]


class Pull:
    def __init__(
        self,
        begin: Callable[[], Iterator[Any]],
        name: str,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """`begin` is called in the thread too: it is code of somebody else as well."""
        self._begin = begin
        self._clock = SystemClock()
        self._turn = threading.Condition()
        self._take: Take | None = None  # of who gathers, until it is full
        self._taken = 0
        self._closed = False
        self.over = False
        self.failure: BaseException | None = None
        self._thread = thread(target=self._pull, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        with self._turn:
            self._closed = True
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

    def _pull(self) -> None:
        failure: BaseException | None = None
        try:
            self._hand_over_all()
        except BaseException as error:
            failure = error  # whoever gathers raises it
        with self._turn:
            self.over, self.failure = True, failure
            self._turn.notify_all()

    def _hand_over_all(self) -> None:
        values = self._begin()
        while self._wanted():
            value = next(values, _NOTHING)
            if value is _NOTHING or not self._hand_over(value):
                return

    def _wanted(self) -> bool:
        """Waits until somebody gathers; False: never again."""
        if self._take is not None and not self._closed:
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
        while self._take is None and not self._closed:
            self._turn.wait()
        return None if self._closed else self._take
