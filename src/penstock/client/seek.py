"""Finding the broker of a folder: knock at its socket, or come back with the lock to serve.

Contract     `seek` ends with the folder's lock (this process should serve), or with a connection
             that answered. It never gives up by itself: the caller cancels it. With `outside` it
             never takes the lock; where nobody serves it starts `penstock serve` as a process of
             its own, which ends by itself when it is not used. One that ends otherwise, and would
             again, is told at once, in its own words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.broker.election import TICK_SECONDS, Election, Knock, SocketName
from penstock.broker.lock import PLACE, FolderLock
from penstock.client.wire import Connection, LostError, discard, password_from_environment
from penstock.clock import Clock
from penstock.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

#: Between two looks while nobody answers; a takeover waits for about one of these.
LOOK_SECONDS = 0.02
#: An outside broker that nobody uses ends after this.
IDLE_EXIT_SECONDS = 30
#: Between two starts of an outside broker that ended without serving.
START_AGAIN_SECONDS = 1.0
LOG_NAME = "serve.log"
#: How a command tells an error (cli/output.py).
_ERROR = "penstock: "
_HINT = "hint: "


class Answered(msgspec.Struct, frozen=True):
    """Somebody serves: the connection that said hello, and the name that leads there."""

    heart: Connection
    name: SocketName
    term: int


async def seek(
    folder: Path,
    *,
    clock: Clock,
    suspect: int | None = None,
    outside: bool = False,
    on_wait: Callable[[str], None] = lambda reason: None,
) -> FolderLock | Answered:
    """`suspect` is the term of a broker that was silent for too long already."""
    election = Election(folder, clock, serves=not outside)
    if suspect is not None:
        election.suspect(suspect)
    starter = Starter(folder, clock) if outside else None
    while True:
        seen = election.look()
        if isinstance(seen, FolderLock):
            return seen
        if isinstance(seen, Knock):
            answered = await _knock(folder, seen.term, election)
            if answered is not None:
                return answered
        else:
            on_wait(seen.reason)
        if starter is not None:
            starter.start()
        await clock.sleep(LOOK_SECONDS)


async def _knock(folder: Path, term: int, election: Election) -> Answered | None:
    """None when nobody listens there, or when it is time to look again."""
    name = SocketName(folder, term)
    knocking = asyncio.ensure_future(
        Connection.open(name.address, password=password_from_environment())
    )
    answered = None
    try:
        while not knocking.done() and not election.overdue(term):
            await asyncio.wait({knocking}, timeout=TICK_SECONDS)
        if knocking.done():
            answered = Answered(knocking.result(), name, term)
    except (OSError, LostError):
        pass  # it ends, or has not begun to listen
    finally:
        if answered is None:
            discard(knocking)
            name.close()
    return answered


class Outside(subprocess.Popen[bytes]):
    """A process that lives on when this one ends, as it should: `Popen` would warn of it."""

    def __del__(self) -> None:
        if getattr(self, "pid", None) is not None:  # else it never began
            self.poll()


#: Kept so that their end is noticed: until then, one that ended is still in the system's list.
_started: list[Outside] = []

#: What the exit codes of the command line mean, as far as trying again cannot help.
_KINDS: dict[int, type[PenstockError]] = {
    2: InvalidError,
    3: NotFoundError,
    4: ConflictError,
    7: CorruptError,
}
#: It was not used, it was told to end, it was too slow or too late: another may do better.
_AGAIN = (0, 5, 6, -signal.SIGHUP, -signal.SIGINT, -signal.SIGKILL, -signal.SIGTERM)
#: Of a broker that broke, so many lines are told.
LAST_LINES = 3


class Starter:
    """Starts an outside broker, once at a time."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._log = folder / PLACE / LOG_NAME
        self._clock = clock
        self._process: Outside | None = None
        self._begun = 0.0
        self._log_bytes = 0  # before it began

    def start(self) -> None:
        """Nobody answers: start one, unless one was started and may still begin to listen."""
        now = self._clock.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is not None and code not in _AGAIN:
                raise self._failure(code)
            if code is None or now - self._begun < START_AGAIN_SECONDS:
                return
        self._begun = now
        with contextlib.suppress(OSError):
            self._log_bytes = self._log.stat().st_size
        self._process = start_outside(self._folder)

    def _failure(self, code: int) -> PenstockError:
        """What it said, as if this process had found it out: `penstock: …`, then `  hint: …`."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            said = self._log.read_bytes()[self._log_bytes :].decode(errors="replace")
            lines = [line.rstrip() for line in said.splitlines() if line.strip()]
        kind = _KINDS.get(code)
        at = next((n for n in reversed(range(len(lines))) if lines[n].startswith(_ERROR)), None)
        if kind is None or at is None:
            last = " / ".join(line.strip() for line in lines[-LAST_LINES:])
            return (kind or UnavailableError)(
                f"{self._folder}: its broker ended with {code}: {last or 'without a word'}",
                hint=f"see {self._log}",
            )
        message = lines[at].removeprefix(_ERROR)
        if str(self._folder) not in message:
            message = f"{self._folder}: {message}"
        after = lines[at + 1].strip() if at + 1 < len(lines) else ""
        hint = after.removeprefix(_HINT) if after.startswith(_HINT) else None
        return kind(message, hint=hint)


def start_outside(folder: Path) -> Outside:
    """`penstock serve`, detached: it lives on when this process ends."""
    # -P: what lies in the working folder of a user must not be taken for a module of Python.
    command = [sys.executable, "-P", "-m", "penstock", "serve", str(folder)]
    command += ["--resp", "none", "--idle-exit", str(IDLE_EXIT_SECONDS)]
    _started[:] = [process for process in _started if process.poll() is None]
    try:
        (folder / PLACE).mkdir(parents=True, exist_ok=True)
        log = os.open(
            folder / PLACE / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise UnavailableError(f"{folder}: {error.strerror}", hint="check the folder") from error
    try:
        process = Outside(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    _started.append(process)
    return process
