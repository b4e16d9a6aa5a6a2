"""`penstock serve`: the broker of a location, for clients that speak RESP.

Contract     Opens the location as its one writer, listens, prints one line (or one JSON object)
             when it is ready, and serves until SIGTERM or SIGINT, or until nobody was connected for
             `--idle-exit` seconds; then also when nobody is connected and somebody wants the folder
             for himself. It ends in order: commands in flight are answered, the store is
             closed, exit 0.
Safety       Loopback by default. An address that others can reach needs a password, from a file or
             the environment: on the command line every user of the machine could read it.
Not here     the protocol and its limits (server/).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from penstock.broker.broker import Broker
from penstock.broker.commit import DEADLINE_SECONDS
from penstock.cli.config import load_config
from penstock.cli.options import LOCATION_DEFAULT, Json, configured_location, nobody_said
from penstock.cli.output import print_json_line
from penstock.client.host import serve_folder
from penstock.clock import Clock, SystemClock
from penstock.errors import FencedError, InvalidError, UnavailableError
from penstock.server.serve import Server
from penstock.store.location import folder_of

RESP_DEFAULT = "127.0.0.1:7379"
#: How often `--idle-exit` looks.
IDLE_LOOK_SECONDS = 0.25


class Ready(msgspec.Struct, frozen=True):
    """What `--json` prints when clients may come."""

    location: str
    host: str | None  # None: not on TCP
    port: int | None
    pid: int


Address = tuple[str, int]


def _configured(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """What [serve] of penstock.toml says, where nobody said anything else."""
    if nobody_said(context, parameter):
        found = getattr(load_config().serve, parameter.name or "")
        return value if found is None else found
    return value


ServedLocation = Annotated[
    str,
    typer.Argument(
        envvar="PENSTOCK_LOCATION",
        metavar="LOCATION",
        help="A folder, s3://bucket/prefix, or memory://.",
        callback=configured_location,
    ),
]
Resp = Annotated[
    str,
    typer.Option(
        "--resp",
        metavar="HOST:PORT",
        help="Where to listen; none for nowhere.",
        callback=_configured,
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="F",
        help="Clients must give what the first line says.",
        callback=_configured,
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="PENSTOCK_PASSWORD",
        show_envvar=True,
        help="The same, for all to see; better in the environment or a file.",
    ),
]


def serve(
    location: ServedLocation = LOCATION_DEFAULT,
    resp: Resp = RESP_DEFAULT,
    idle_exit: Annotated[
        float | None,
        typer.Option("--idle-exit", metavar="S", help="End after S seconds without a client."),
    ] = None,
    password_file: PasswordFile = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Serve a location to redis-cli, redis-py and whatever else speaks RESP."""
    start(
        location, resp, password_file=password_file, password=password, idle_exit=idle_exit,
        as_json=as_json,
    )  # fmt: skip


def start(
    location: str,
    resp: str,
    *,
    password_file: Path | None = None,
    password: str | None = None,
    idle_exit: float | None = None,
    as_json: bool = False,
    greet: Callable[[Address | None], None] = lambda _: None,
) -> None:
    """Check the options, then serve until the end; `greet` is called when clients may come."""
    address = parse_address(resp)
    if password_file is not None:
        password = read_password(password_file)
    elif password is not None and not password:
        raise InvalidError("the password is empty", hint="leave it out, or choose one")
    if idle_exit is not None and not idle_exit >= 0:
        raise InvalidError(f"--idle-exit is at least 0, not {idle_exit}")
    if address is not None and password is None:
        require_loopback(address[0])
    raise_file_limit()
    uvloop.run(
        run(location, address, password=password, idle_exit=idle_exit, as_json=as_json, greet=greet)
    )


def parse_address(text: str) -> Address | None:
    """HOST:PORT, [IPV6]:PORT, or none."""
    if text == "none":
        return None
    host, colon, port = text.rpartition(":")
    known = colon and port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 65535
    try:
        host.encode("idna")
    except UnicodeError:  # Python would look such a name up with this very error
        known = False
    if not known:
        raise InvalidError(f"'{text}' is not an address", hint=f"HOST:PORT, such as {RESP_DEFAULT}")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def require_loopback(host: str) -> None:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host == "localhost":
        return
    raise InvalidError(
        f"{host} can be reached from other machines, and there is no password",
        hint="give --password-file or PENSTOCK_PASSWORD, or listen on 127.0.0.1",
    )


def read_password(file: Path) -> str:
    try:
        password = file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"the password file cannot be read: {error}") from None
    if not password:
        raise InvalidError(f"{file} has no password in its first line")
    return password


def raise_file_limit() -> None:
    """A connection is an open file, and the usual limit of 1024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def run(
    location: str,
    address: Address | None,
    *,
    password: str | None,
    idle_exit: float | None,
    as_json: bool,
    greet: Callable[[Address | None], None] = lambda _: None,
    clock: Clock | None = None,
) -> None:
    clock = clock or SystemClock()
    # First of all: where nobody can be served, no folder is made and nobody else is stopped.
    with signals() as stop, bound_to(address) as sockets:
        opening = take_seat(location, clock, while_used=idle_exit is not None, on_fenced=stop.set)
        seat = await unless_told(stop, opening)
        if seat is None:
            return
        try:
            server = Server(seat.broker, password=password, clock=clock)
            try:
                ports = [await server.listen_bound(each) for each in sockets]
                bound = address and (address[0], ports[0])
                announce(location, bound, as_json=as_json)
                greet(bound)
                doors = Doors([server, *seat.servers], seat.asked_to_leave)
                await until_told(stop, doors, idle_exit, clock)
            finally:
                await server.close()
        finally:
            await seat.close()
        if seat.fenced():
            raise FencedError(f"{location}: another process took over")


async def unless_told(stop: asyncio.Event, opening: Coroutine[Any, Any, Seat]) -> Seat | None:
    """Another process may have the folder for a while: who is told to end meanwhile, ends."""
    taking = asyncio.ensure_future(opening)
    told = asyncio.ensure_future(stop.wait())
    await asyncio.wait({taking, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if taking.done():
        return taking.result()
    taking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await taking).close()  # it was taken in this very moment
    return None


class Seat(msgspec.Struct, frozen=True):
    """The broker of the location, and the server of the folder's socket where there is one."""

    broker: Broker
    servers: list[Server]
    close: Callable[[], Awaitable[None]]
    fenced: Callable[[], bool]
    asked_to_leave: Callable[[], bool] = lambda: False


async def take_seat(
    location: str, clock: Clock, *, while_used: bool = False, on_fenced: Callable[[], None]
) -> Seat:
    """A folder has an election, in which processes that open it take part too (client/)."""
    folder = folder_of(location)
    if folder is None:
        broker = await Broker.open(
            location, deadline=DEADLINE_SECONDS, clock=clock, on_fenced=on_fenced
        )
        return Seat(broker, [], broker.close, lambda: broker.committer.fenced)
    host = await serve_folder(
        folder,
        clock=clock,
        deadline=DEADLINE_SECONDS,
        while_used=while_used,
        on_fenced=on_fenced,
    )
    return Seat(host.broker, [host.server], host.close, lambda: host.fenced, host.asked_to_leave)


class Doors:
    """Several servers of one broker: idle when all of them are."""

    def __init__(self, servers: list[Server], asked_to_leave: Callable[[], bool]) -> None:
        self._servers = servers
        self.asked_to_leave = asked_to_leave

    @property
    def connections(self) -> int:
        return sum(server.connections for server in self._servers)

    @property
    def idle_seconds(self) -> float:
        return min(server.idle_seconds for server in self._servers)


@contextlib.contextmanager
def bound_to(address: Address | None) -> Iterator[list[socket.socket]]:
    """Sockets that have the address and do not listen yet; a name may stand for several."""
    with contextlib.ExitStack() as stack:
        bound: list[socket.socket] = []
        try:
            for family, kind, protocol, _, where in _resolved(address):
                each = stack.enter_context(socket.socket(family, kind, protocol))
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                each.bind(where)
                bound.append(each)
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {shown(address)}: {error.strerror or error}",
                hint="is another server running? choose another --resp",
            ) from None
        yield bound


def _resolved(address: Address | None) -> Sequence[tuple[Any, Any, int, str, Any]]:
    if address is None:
        return ()
    return socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def shown(address: Address | None) -> str:
    if address is None:
        return "none"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"


@contextlib.contextmanager
def signals() -> Iterator[asyncio.Event]:
    """From here on SIGTERM and SIGINT are a wish, so that an opening store is closed as well."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def until_told(
    stop: asyncio.Event, doors: Doors, idle_exit: float | None, clock: Clock
) -> None:
    if idle_exit is None:
        await stop.wait()
        return
    while not stop.is_set() and doors.idle_seconds < idle_exit:
        if not doors.connections and doors.asked_to_leave():
            return
        # The last look is taken when the time is up, not a look later.
        left = idle_exit - doors.idle_seconds if not doors.connections else IDLE_LOOK_SECONDS
        waiting = asyncio.ensure_future(stop.wait())
        sleeping = asyncio.ensure_future(clock.sleep(min(left, IDLE_LOOK_SECONDS)))
        await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, sleeping):
            task.cancel()
        await asyncio.gather(waiting, sleeping, return_exceptions=True)


def announce(location: str, address: Address | None, *, as_json: bool) -> None:
    if as_json:
        host, port = address or (None, None)
        print_json_line(Ready(location, host, port, os.getpid()))
        return
    line = f"penstock serves {location}"
    if address is not None:
        line += f" on {shown(address)} (RESP)"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # whoever started us waits for this line
