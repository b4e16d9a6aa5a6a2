"""One RESP3 connection of the Python client: pipelined requests, replies in order.

Contract     `ask` sends a request and awaits its reply. An error reply becomes one of the six
             kinds. When the connection ends, everything that waits is a LostError: the broker may
             or may not have done it. A request that nobody waits for any more keeps its place in
             the row, so that the next reply goes to the next request. What a server would not read
             is not sent: it would end the connection, and with it everybody else's requests.
Forks        A child must not hold its parent's sockets open (broker and clients tell the end of the
             other by them): `forks.py` is told every address that is used here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis

from penstock.client import forks
from penstock.codec.resp import Limits
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

KINDS: dict[str, type[PenstockError]] = {
    "INVALID": InvalidError,
    "NOTFOUND": NotFoundError,
    "CONFLICT": ConflictError,
    "UNAVAILABLE": UnavailableError,
    "FENCED": FencedError,
    "CORRUPT": CorruptError,
    # Redis' own words for the same.
    "ERR": InvalidError,
    "NOPERM": InvalidError,
}
#: Redis' words for a password are about its commands; here it comes from the environment.
_PASSWORD_TROUBLE = {
    "NOAUTH": "the broker asks for a password",
    "WRONGPASS": "the broker refuses the password",
}
#: What a server takes as one request.
_LIMITS = Limits()
#: Where to find a broker: the path of a Unix socket, or host and port.
Address = str | tuple[str, int]


class LostError(Exception):
    """The broker went away. What was asked of it may or may not have happened."""


#: What the parser gives while a reply is not complete; a reply may be False itself.
_MORE = object()


class _ReplyError(Exception):
    pass


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=_ReplyError, notEnoughData=_MORE)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        #: Done when the connection has ended.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, address: Address, *, password: str | None = None) -> Connection:
        """Connect and say hello; OSError where nobody listens."""
        loop = asyncio.get_running_loop()
        forks.add_address(address)
        if isinstance(address, str):
            _, connection = await loop.create_unix_connection(cls, address)
        else:
            _, connection = await loop.create_connection(cls, *address)
        try:
            auth = ("AUTH", "default", password) if password else ()
            await connection.ask("HELLO", "3", *auth)
        except BaseException:
            connection.close()
            raise
        return connection

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # a host may be given by name, a socket has a number
            forks.add_address((peer[0], peer[1]))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _MORE:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close()  # whoever listens there does not speak RESP

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(LostError("the broker closed the connection"))
        self._waiting.clear()

    # -- asking

    async def ask(self, *request: str | bytes | int) -> Any:
        """One request, one reply."""
        return await self.send(request)

    async def send(self, request: Sequence[str | bytes | int]) -> Any:
        if self._transport is None or self.ended.done() or self._transport.is_closing():
            raise LostError("the connection is closed")
        try:
            packed = hiredis.pack_command(tuple(request))  # type: ignore[arg-type]
        except UnicodeEncodeError as error:
            raise InvalidError(f"{error.object!r} is not valid text: {error.reason}") from None
        _check_size(request, len(packed))
        # Only now: replies are told apart by their order alone.
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._transport.write(packed)
        reply = await waiter
        if isinstance(reply, _ReplyError):
            raise error_of(str(reply))
        return reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def alive(self) -> bool:
        return not self.ended.done()


def _check_size(request: Sequence[str | bytes | int], packed_bytes: int) -> None:
    longest = 0
    if packed_bytes > _LIMITS.bulk_bytes:
        longest = max(len(word) for word in request if isinstance(word, str | bytes))
    for size, most, what in (
        (len(request), _LIMITS.arguments, "words in a request"),
        (longest, _LIMITS.bulk_bytes, "bytes in one piece"),
        (packed_bytes, _LIMITS.frame_bytes, "bytes in a request"),
    ):
        if size > most:
            raise InvalidError(
                f"{size:,} {what}; over a socket at most {most:,} fit",
                hint="in smaller parts, or in the process that is the broker",
            )


def discard(opening: asyncio.Future[Connection]) -> None:
    """Nobody waits for this connection any more, however its opening ends."""
    opening.cancel()
    opening.add_done_callback(_drop)


def _drop(opening: asyncio.Future[Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def error_of(text: str) -> PenstockError | LostError:
    """The error that an error reply stands for: `-KIND text [hint]`."""
    word, _, rest = text.partition(" ")
    if word in _PASSWORD_TROUBLE:
        return InvalidError(_PASSWORD_TROUBLE[word], hint="set PENSTOCK_PASSWORD to the server's")
    kind = KINDS.get(word)
    if kind is None or text == "ERR internal error":
        return UnavailableError(f"the broker answered: {text}")
    message, bracket, hint = rest.rpartition(" [")
    if kind is FencedError:
        # The broker lost its epoch, this process did not: the call goes to the next broker.
        return LostError(rest)
    if bracket and hint.endswith("]"):
        return kind(message, hint=hint[:-1])
    return kind(rest)


def password_from_environment() -> str | None:
    return os.environ.get("PENSTOCK_PASSWORD") or None
