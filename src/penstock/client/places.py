"""Where the broker of a location is: in this process, in a folder's election, behind an address.

memory://, s3://…       this process is the broker, and fences whoever was
a folder                whoever opens first serves; the others connect
penstock://host:port    a broker somewhere else
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from penstock.broker.broker import Broker
from penstock.broker.lock import FolderLock
from penstock.client import forks
from penstock.client.host import Host
from penstock.client.link import Place, Seat
from penstock.client.remote import Remote
from penstock.client.seek import Answered, seek
from penstock.client.wire import Connection, LostError, password_from_environment
from penstock.clock import Clock
from penstock.errors import InvalidError, UnavailableError
from penstock.store.folder import Durability
from penstock.store.location import folder_of

SCHEME = "penstock://"
PORT_DEFAULT = 7379
#: Between two tries to reach a broker behind an address.
AGAIN_SECONDS = 0.1

OnLost = Callable[[Seat], None]


def place_of(
    location: str, *, clock: Clock, durability: Durability, deadline: float, outside: bool
) -> Place:
    if durability not in ("power", "os"):
        raise InvalidError(f"durability is 'power' or 'os', not {durability!r}")
    if location.startswith(SCHEME):
        return Network(location, clock=clock, deadline=deadline)
    folder = folder_of(location)
    if folder is None:
        return Solo(location, clock=clock, durability=durability, deadline=deadline)
    return Folder(folder, clock=clock, durability=durability, deadline=deadline, outside=outside)


class Solo:
    """No election: this process is the broker until it closes or is fenced."""

    elects = False
    serves = True

    def __init__(
        self, location: str, *, clock: Clock, durability: Durability, deadline: float
    ) -> None:
        self.location = location
        self._clock = clock
        self._durability = durability
        self._deadline = deadline

    async def reach(self, lost: Seat | None, on_lost: OnLost) -> Seat:
        forks.store_opened()
        broker = await Broker.open(
            self.location, durability=self._durability, deadline=self._deadline, clock=self._clock
        )
        return Seat(broker, broker.close, broker=broker)

    def trouble(self) -> str:
        return "the store did not open in time"  # there is nothing else to wait for


class Folder:
    elects = True

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        durability: Durability,
        deadline: float,
        outside: bool,
    ) -> None:
        self.location = str(folder)
        self._folder = folder
        self._clock = clock
        self._durability: Durability = durability
        self._deadline = deadline
        self._outside = outside
        self.serves = not outside
        self._trouble = ""

    async def reach(self, lost: Seat | None, on_lost: OnLost) -> Seat:
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidError(f"{self._folder} is a file", hint="name a folder")
        found = await seek(
            self._folder,
            clock=self._clock,
            suspect=lost.term if lost is not None and lost.hung else None,
            # SlateDB hangs in a fork of a process that had opened a store.
            outside=self._outside or not forks.may_open_stores(),
            on_wait=self._note,
        )
        if isinstance(found, FolderLock):
            return await self._serve(found, on_lost)
        return self._connect(found, on_lost)

    async def _serve(self, lock: FolderLock, on_lost: OnLost) -> Seat:
        host = await Host.open(
            lock,
            clock=self._clock,
            durability=self._durability,
            deadline=self._deadline,
            on_fenced=lambda: on_lost(seat),
        )
        broker = host.broker
        seat = Seat(broker, host.close, broker=broker, term=host.term)
        return seat

    def _connect(self, found: Answered, on_lost: OnLost) -> Seat:
        return remote_seat(
            Remote(
                found.heart,
                found.name.address,
                clock=self._clock,
                deadline=self._deadline,
                password=password_from_environment(),
                name=found.name,
            ),
            on_lost,
            term=found.term,
        )

    def _note(self, reason: str) -> None:
        self._trouble = reason

    def trouble(self) -> str:
        return self._trouble


class Network:
    elects = True
    serves = False

    def __init__(self, location: str, *, clock: Clock, deadline: float) -> None:
        self.location = location
        parts = urlsplit(location)
        try:
            port = parts.port or PORT_DEFAULT
        except ValueError:
            raise InvalidError(f"{location}: the port is not a number up to 65535") from None
        try:
            (parts.hostname or "").encode("idna")
        except UnicodeError:
            raise InvalidError(f"{location!r} has no valid host") from None
        if not parts.hostname or parts.path not in ("", "/") or parts.username or parts.query:
            raise InvalidError(f"{location!r} is not an address", hint="penstock://host:port")
        self._address = (parts.hostname, port)
        self._clock = clock
        self._deadline = deadline
        self._trouble = ""
        self._reached = False

    async def reach(self, lost: Seat | None, on_lost: OnLost) -> Seat:
        password = password_from_environment()
        while True:
            try:
                async with asyncio.timeout(self._deadline):
                    heart = await Connection.open(self._address, password=password)
                break
            except (OSError, LostError) as error:
                self._trouble = str(error) or "it does not answer"
                if not self._reached:  # at first: a wrong address is told at once
                    raise UnavailableError(
                        f"{self.location}: {self._trouble}", hint="check the address"
                    ) from None
            await self._clock.sleep(AGAIN_SECONDS)
        self._reached = True
        return remote_seat(
            Remote(
                heart,
                self._address,
                clock=self._clock,
                deadline=self._deadline,
                password=password,
            ),
            on_lost,
        )

    def trouble(self) -> str:
        return self._trouble


def remote_seat(remote: Remote, on_lost: OnLost, *, term: int = 0) -> Seat:
    async def close() -> None:
        remote.close()

    def lost() -> None:
        seat.hung = remote.hung
        on_lost(seat)

    seat = Seat(remote, close, term=term)
    remote.on_lost = lost
    return seat
