"""The server: listens, admits connections, and ends them in order.

Contract     One broker, one event loop. `listen_tcp`, `listen_bound` and `listen_unix` may each be
             called more than once. `close` stops accepting, lets commands in flight finish for a
             bounded time, then closes every connection; the broker stays open, it is the caller's.
Not here     the protocol (resp/), who may serve a location (broker/), the process (cli/serve.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from pathlib import Path

import msgspec

from penstock.broker.broker import Broker
from penstock.clock import Clock, SystemClock
from penstock.server.limits import Limits
from penstock.server.resp.connection import Connection

__all__ = ["Counts", "Limits", "Server"]

#: Connections that the kernel keeps for us while we are busy.
BACKLOG = 4096


class Counts(msgspec.Struct):
    """What INFO tells."""

    connections: int = 0  # ever
    commands: int = 0
    blocked: int = 0  # now
    rejected: int = 0  # connections beyond the limit
    protocol_errors: int = 0
    internal_errors: int = 0
    cut_unread: int = 0  # clients that did not read
    cut_waiting: int = 0  # that sent too much while they were blocked
    cut_unfinished: int = 0  # whose requests did not end


class Server:
    def __init__(
        self,
        broker: Broker,
        *,
        password: str | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.broker = broker
        self.password = password
        self.limits = limits or Limits()
        self.clock = clock or SystemClock()
        self.started = self._idle_since = self.clock.monotonic()
        self.run_id = self.clock.entropy(20).hex()
        self.counts = Counts()
        self.clients: dict[int, Connection] = {}
        self.port = 0  # of the first TCP address
        self._ids = itertools.count(1)
        self._listeners: list[asyncio.AbstractServer] = []
        self._unfinished_bytes = 0
        self._empty: asyncio.Event | None = None  # while closing

    # -- listening

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """-> the actual port"""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(self), host, port, backlog=BACKLOG, reuse_address=True
        )
        self._listeners.append(listener)
        actual: int = listener.sockets[0].getsockname()[1]
        self.port = self.port or actual
        return actual

    async def listen_bound(self, bound: socket.socket) -> int:
        """On a socket that has its address already, which becomes this server's. -> its port"""
        loop = asyncio.get_running_loop()
        self._listeners.append(
            await loop.create_server(lambda: Connection(self), sock=bound, backlog=BACKLOG)
        )
        actual: int = bound.getsockname()[1]
        self.port = self.port or actual
        return actual

    async def listen_unix(self, path: str | os.PathLike[str]) -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_unix_server(
            lambda: Connection(self), str(Path(path)), backlog=BACKLOG
        )
        self._listeners.append(listener)

    @property
    def connections(self) -> int:
        return len(self.clients)

    @property
    def idle_seconds(self) -> float:
        """Since the last connection ended; 0 while there are any."""
        return 0.0 if self.clients else self.clock.monotonic() - self._idle_since

    # -- what connections tell

    def next_id(self) -> int:
        return next(self._ids)

    @property
    def closing(self) -> bool:
        return self._empty is not None

    def admit(self, connection: Connection) -> bool:
        self.counts.connections += 1
        if len(self.clients) >= self.limits.connections:
            self.counts.rejected += 1
            return False
        self.clients[connection.id] = connection
        return True

    def dismiss(self, connection: Connection, held_bytes: int) -> None:
        self._unfinished_bytes -= held_bytes
        if self.clients.pop(connection.id, None) is None:
            return
        if not self.clients:
            self._idle_since = self.clock.monotonic()
            if self._empty is not None:
                self._empty.set()

    def hold(self, more_bytes: int) -> bool:
        """Account for unfinished requests. -> whether there is room for them"""
        self._unfinished_bytes += more_bytes
        return more_bytes <= 0 or self._unfinished_bytes <= self.limits.unfinished_bytes

    # -- the end

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._empty = self._empty or asyncio.Event()
        for connection in list(self.clients.values()):
            connection.shut()
        if not await self._emptied():
            for connection in list(self.clients.values()):
                connection.cut()
            await self._emptied()
        # It waits for connections that the loop still counts: those are cut, and nobody needs them.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.close_seconds):
                for listener in self._listeners:
                    await listener.wait_closed()
        self._listeners.clear()

    async def _emptied(self) -> bool:
        assert self._empty is not None
        if not self.clients:
            return True
        try:
            async with asyncio.timeout(self.limits.close_seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
