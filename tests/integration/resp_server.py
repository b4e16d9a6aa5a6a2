"""A RESP server in a thread of the test, on a uvloop of its own, over a location in memory.

Contract     Clients connect from the test's threads or processes. `call` runs a function on the
             server's loop and gives its result. Leaving checks that nothing is left behind: no
             connection, no task, no unhandled exception, and nothing in the log unless a test says
             that it expects it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import uvloop

from penstock.broker.broker import Broker
from penstock.server.limits import Limits
from penstock.server.serve import Server

PATIENCE_SECONDS = 60.0
_numbers = itertools.count(1)


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class RespServer:
    def __init__(
        self,
        *,
        limits: Limits | None = None,
        password: str | None = None,
        location: str | None = None,
    ) -> None:
        self._limits = limits
        self._password = password
        # A location in memory is the process's, so each server has its own.
        self._location = location or f"memory://resp-{next(_numbers)}"
        self._log = _Records()
        self._unhandled: list[dict[str, Any]] = []
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._leftovers: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.expects_log = False
        self.port = 0

    def __enter__(self) -> Self:
        for name in ("penstock", "asyncio"):
            logging.getLogger(name).addHandler(self._log)
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)
        for name in ("penstock", "asyncio"):
            logging.getLogger(name).removeHandler(self._log)
        if error is not None:
            return
        assert not self._thread.is_alive(), "the server does not close"
        if self._failure is not None:
            raise self._failure
        assert self._unhandled == []
        assert self._leftovers == []
        if not self.expects_log:
            assert self.log == []

    @property
    def log(self) -> list[str]:
        return [record.getMessage() for record in self._log.records]

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, context: self._unhandled.append(context))
        self._stop = asyncio.Event()
        self.broker = await Broker.open(self._location, deadline=30)
        before = asyncio.all_tasks()
        self.server = Server(self.broker, password=self._password, limits=self._limits)
        self.port = await self.server.listen_tcp()
        self._ready.set()
        await self._stop.wait()
        await self.server.close()
        if self.server.connections:
            self._leftovers.append(f"{self.server.connections} connections")
        for _ in range(100):  # tasks that were cancelled need a turn to end
            await asyncio.sleep(0.01)
            left = [t for t in asyncio.all_tasks() - before if "_work" in repr(t)]
            if not left:
                break
        else:
            self._leftovers += map(repr, left)
        await self.broker.close()

    # -- talking

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = function()
            return await result if isinstance(result, Awaitable) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_SECONDS)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds on the server's loop."""

        async def run() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition():
                    await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(2 * PATIENCE_SECONDS)

    def connect(self) -> Wire:
        return Wire(self.port)


class Wire:
    """A bare connection: bytes out, lines in."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def words(self, *words: bytes) -> None:
        self.send(frame(*words))

    def line(self) -> bytes:
        """One line of a reply without its end; empty at the end of the connection."""
        return self._file.readline().removesuffix(b"\r\n")

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            return self._file.read()
        except ConnectionError:
            return b""

    def ask(self, *words: bytes) -> bytes:
        """For replies of one line."""
        self.words(*words)
        return self.line()


def frame(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
