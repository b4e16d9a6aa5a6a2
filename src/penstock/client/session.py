"""An opened location: its line to the broker, and the thread on which that runs.

Contract     `prepare` checks the options of `open`; then the caller runs `link.open()` on the
             thread, blocking or awaiting, and calls `opened`. Whatever a script forgot to close is
             closed, in order, when it ends. A forked child inherits nothing of it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from penstock.client.link import Link
from penstock.client.places import place_of
from penstock.client.thread import LoopThread, Work, not_in_a_fork
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidError, PenstockError
from penstock.store.folder import Durability

Serving = Literal["auto", "outside"]
DEADLINE_SECONDS = 30.0


class Session:
    def __init__(self, location: str, link: Link, clock: Clock) -> None:
        self.location = location
        self.link = link
        self.clock = clock
        #: What gives back what it holds before the line is closed: consumers.
        self.closers: set[Callable[[], Work[None]]] = set()
        self.thread = LoopThread("penstock-broker")
        self.closed = False
        self.pid = os.getpid()

    def opened(self) -> None:
        _sessions.add(self)

    def require(self) -> None:
        """Every call begins here. Whose handle it is comes first: closing it in a fork of its
        process closes nothing."""
        if os.getpid() != self.pid:
            raise not_in_a_fork()
        if self.closed:
            raise InvalidError(f"{self.location} is closed", hint="open it again")

    def begin_close(self) -> bool:
        """Whether it was open; from here on no call begins."""
        was_open, self.closed = not self.closed, True
        _sessions.discard(self)
        return was_open

    async def finish(self) -> None:
        """On the thread's loop: the end of everything that was begun."""
        for closer in list(self.closers):
            await closer()
        await self.link.close()

    def close(self) -> None:
        if self.begin_close():
            try:
                self.thread.call(self.finish())
            finally:
                self.thread.stop()


def prepare(
    location: str | Path, *, durability: Durability, deadline: float, broker: Serving
) -> Session:
    if not isinstance(location, str | Path):
        raise InvalidError(f"a location is text or a path, not {type(location).__name__}")
    if not isinstance(deadline, int | float) or isinstance(deadline, bool) or not deadline > 0:
        raise InvalidError(f"deadline is a positive number of seconds, not {deadline!r}")
    if broker not in ("auto", "outside"):
        raise InvalidError(f"broker is 'auto' or 'outside', not {broker!r}")
    clock = SystemClock()
    place = place_of(
        str(location),
        clock=clock,
        durability=durability,
        deadline=deadline,
        outside=broker == "outside",
    )
    return Session(str(location), Link(place, clock=clock, deadline=deadline), clock)


_sessions: set[Session] = set()


@atexit.register
def _close_all() -> None:
    for session in list(_sessions):
        if session.pid == os.getpid():
            with contextlib.suppress(PenstockError):
                session.close()
