"""Election: how a process that wants a folder's broker finds it, or becomes it.

Contract     `look` is one step of a search: it gives the folder's lock to a process that should
             serve, or says at which socket to knock, or to wait. The searcher says what came of the
             knocking. A holder of the lock that gives no sign of life for SILENCE_SECONDS is
             overtaken: the next term is made and locked. The store's epoch does the rest.
Silence      is counted in ticks of the searcher's own clock, each worth at most TICK_SECONDS: a
             searcher that was stopped itself must not take its own sleep for the broker's.
Not here     Sockets and pings (client/seek.py), the files (lock.py), safety of data (store/epoch).
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.broker.lock import (
    PLACE,
    FolderLock,
    HeldError,
    highest_term,
    lock_path,
    socket_path,
)
from penstock.clock import Clock
from penstock.errors import UnavailableError

#: A broker that answers nothing for so long is stopped or hangs.
SILENCE_SECONDS = 5.0
#: How much of the silence one look at the clock can add.
TICK_SECONDS = 0.5
#: What `sun_path` of a socket address holds, without its closing NUL.
SOCKET_BYTES_MAX = 107


class Knock(msgspec.Struct, frozen=True):
    """Somebody has the lock: see whether it answers at its socket."""

    term: int


class Wait(msgspec.Struct, frozen=True):
    """Look again soon."""

    reason: str


class Silence:
    """How long nothing was heard, as far as this process was awake to hear it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self.seconds = 0.0

    def tick(self) -> float:
        now = self._clock.monotonic()
        self.seconds += min(now - self._last, TICK_SECONDS)
        self._last = now
        return self.seconds

    def heard(self) -> None:
        self._last = self._clock.monotonic()
        self.seconds = 0.0

    @property
    def too_long(self) -> bool:
        return self.seconds >= SILENCE_SECONDS


class Election:
    """One search of one process for the broker of one folder."""

    def __init__(self, folder: Path, clock: Clock, *, serves: bool = True) -> None:
        self._folder = folder
        self._serves = serves
        self.silence = Silence(clock)
        #: The lock file's term and time when it was last seen to change.
        self._sign: tuple[int, int] = (0, 0)

    def suspect(self, term: int) -> None:
        """The broker of this term was silent for too long before this search began."""
        self._watch()
        if self._sign[0] == term:
            self.silence.seconds = SILENCE_SECONDS

    def look(self) -> FolderLock | Knock | Wait:
        """The lock: serve. Knock: try that socket, `silence` goes on unless it answers."""
        self._watch()
        if not self._serves:
            return Knock(self._sign[0]) if self._sign[0] else Wait("nobody ever served here")
        over = self._sign[0] if self.silence.too_long else None
        try:
            lock = FolderLock(self._folder, over=over, serves=True)
        except HeldError as held:
            if not held.serves:  # it works by itself, as `penstock check` does, and gives no signs
                self.silence.heard()
                return Wait(str(held))
            return Knock(held.term)
        self.silence.heard()
        return lock

    def overdue(self, term: int) -> bool:
        """While knocking at this term: is it time to stop that and look again?"""
        self._watch()
        return self.silence.too_long or self._sign[0] != term

    def _watch(self) -> None:
        term = highest_term(self._folder)
        try:
            moved_ns = os.stat(lock_path(self._folder, term)).st_mtime_ns
        except FileNotFoundError:
            moved_ns = 0
        if (term, moved_ns) != self._sign:
            self._sign = (term, moved_ns)
            self.silence.heard()
        else:
            self.silence.tick()


class SocketName:
    """The address of a term's socket; through the open folder where the path is too long."""

    def __init__(self, folder: Path, term: int) -> None:
        path = socket_path(folder, term)
        self._descriptor: int | None = None
        self.address = str(path)
        if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
            try:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                self._descriptor = os.open(folder / PLACE, flags)
            except OSError as error:
                raise UnavailableError(f"{folder}: {error.strerror}") from error
            self.address = f"/proc/self/fd/{self._descriptor}/{path.name}"

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> SocketName:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
