"""This process is the broker of a folder: the broker, its server, and a watch over its term.

Contract     `open` takes a lock that was won (seek.py), opens the store, which fences whoever had
             it, and only then listens: who finds the socket finds a broker that can answer. The
             lock is given back last. While it opens and closes it gives signs of life.
             `take_lock` gets the lock from a broker that only lives while it is used.
Watch        A process that was stopped and overtaken must not keep readers waiting who will never
             be served: twice a second, and so right after it wakes up, it looks whether the term
             and the epoch are still its own, and ends otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from penstock.broker.broker import Broker
from penstock.broker.election import SocketName
from penstock.broker.lock import FolderLock, HeldError, leave_path
from penstock.client import forks
from penstock.client.seek import LOOK_SECONDS, Answered, seek
from penstock.clock import Clock
from penstock.errors import FencedError, PenstockError, UnavailableError
from penstock.server.serve import Server
from penstock.store.folder import Durability

_log = logging.getLogger("penstock")

WATCH_SECONDS = 0.5
#: How long the server may take to say goodbye; then its connections end with the process' own.
CLOSE_SECONDS = 15.0


class Host:
    def __init__(self, broker: Broker, lock: FolderLock, clock: Clock) -> None:
        self.broker = broker
        self.server = Server(broker)
        self._lock = lock
        self._clock = clock
        self._name: SocketName | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.term = lock.term
        #: Another broker took over: this one answers nothing any more.
        self.fenced = False

    @classmethod
    async def open(
        cls,
        lock: FolderLock,
        *,
        clock: Clock,
        durability: Durability,
        deadline: float,
        while_used: bool = False,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> Host:
        """`while_used`: it will end when nobody is connected, and tells so (lock.py)."""
        beating = asyncio.get_running_loop().create_task(_beat(lock, clock))
        try:
            forks.store_opened()
            broker = await Broker.open(
                str(lock.folder), durability=durability, deadline=deadline, clock=clock, lock=lock
            )
            host = cls(broker, lock, clock)
            try:
                await host._listen(while_used)
            except BaseException:
                await host.close()
                raise
        except BaseException:
            lock.release()
            raise
        finally:
            beating.cancel()
        host._watcher = asyncio.get_running_loop().create_task(host._watch(on_fenced))
        return host

    def asked_to_leave(self) -> bool:
        return self._lock.asked_to_leave()

    async def _listen(self, while_used: bool) -> None:
        self._lock.sweep()
        if while_used:
            with contextlib.suppress(OSError):  # a full disk: then nobody asks it to leave
                self._lock.note(serves=True, while_used=True)
        self._name = SocketName(self._lock.folder, self.term)
        forks.add_address(self._name.address)
        try:
            await self.server.listen_unix(self._name.address)
        except OSError as error:
            # A file system without sockets: this process works alone, and the lock says so.
            _log.warning("%s: other processes cannot connect: %s", self._lock.folder, error)
            self._lock.note(serves=False)

    async def _watch(self, on_fenced: Callable[[], None]) -> None:
        while True:
            await self._clock.sleep(WATCH_SECONDS)
            try:
                # The lock first: who took it may have died before it took the store, which then
                # says "another process is taking over" for ever.
                if self._lock.overtaken():
                    raise self.broker.committer.fence("another process serves this location")
                await self.broker.committer.verify()
            except FencedError:
                self.fenced = True
                on_fenced()
                return
            except (PenstockError, OSError):
                # A store that does not answer heals by itself. A damaged one does not: this goes
                # on serving, so that everybody who asks hears of the damage and not of silence.
                continue

    async def close(self) -> None:
        """Answer what was asked, stop listening, close the store, give the lock back."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        beating = asyncio.get_running_loop().create_task(_beat(self._lock, self._clock))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.server.close()
            if not self.fenced:  # else the newcomer has removed it, and may listen there
                with contextlib.suppress(OSError):
                    self._lock.sweep()
        finally:
            try:
                await self.broker.close()
            finally:
                beating.cancel()
                self._lock.release()
                if self._name is not None:
                    self._name.close()


async def serve_folder(
    folder: Path,
    *,
    clock: Clock,
    deadline: float,
    durability: Durability = "power",
    while_used: bool = False,
    on_fenced: Callable[[], None] = lambda: None,
) -> Host:
    """Become the broker of a folder, or say who is: for a process that has nothing else to do."""
    reasons = ["nobody gives it up"]
    try:
        async with asyncio.timeout(deadline):
            found = await seek(folder, clock=clock, on_wait=reasons.append)
    except TimeoutError:
        raise UnavailableError(f"{folder}: {reasons[-1]}") from None
    if isinstance(found, Answered):
        found.heart.close()
        found.name.close()
        served = UnavailableError(
            f"{folder} is served by another process", hint="connect to it, or close it there"
        )
        if while_used:  # as that one may be: they would chase each other
            raise served
        try:
            found = await take_lock(folder, clock=clock, deadline=deadline, serves=True)
        except HeldError:
            raise served from None
    return await Host.open(
        found,
        clock=clock,
        durability=durability,
        deadline=deadline,
        while_used=while_used,
        on_fenced=on_fenced,
    )


async def take_lock(
    folder: Path,
    *,
    clock: Clock,
    deadline: float,
    serves: bool = False,
    on_wait: Callable[[], None] = lambda: None,
) -> FolderLock:
    """The folder's lock; HeldError where another process keeps it. A broker that a command started
    is asked to end, and waited for as long as it is used."""
    until = clock.monotonic() + deadline
    asked: Path | None = None
    try:
        while True:
            try:
                return FolderLock(folder, serves=serves)
            except HeldError as held:
                if not held.while_used or clock.monotonic() >= until:
                    raise
                if asked != (wanted := leave_path(folder, held.term)):
                    with contextlib.suppress(OSError):  # then it ends by itself, later
                        wanted.touch()
                    asked = wanted
                    on_wait()
            await clock.sleep(LOOK_SECONDS)
    finally:
        if asked is not None:
            with contextlib.suppress(OSError):
                asked.unlink(missing_ok=True)


async def _beat(lock: FolderLock, clock: Clock) -> None:
    while True:
        lock.beat()
        await clock.sleep(WATCH_SECONDS)
