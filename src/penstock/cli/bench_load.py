"""Many connections that each send one command after another: a load that costs the client little.

Both servers get the same: commands packed beforehand, replies only counted. A stock client would
spend more time than either server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import hiredis
import uvloop

from penstock.clock import perf_counter


def pack(*args: bytes) -> bytes:
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]
    return packed


class _Caller(asyncio.Protocol):
    def __init__(self, command: bytes, until: float, done: asyncio.Future[int]) -> None:
        self._command = command
        self._until = until
        self._done = done
        self._count = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._command)

    def data_received(self, data: bytes) -> None:
        # One short reply per command: a line, or a bulk string of two.
        assert self._transport is not None
        if data[:1] == b"-":
            self._finish(RuntimeError(data.decode(errors="replace").strip()))
        elif perf_counter() >= self._until:
            self._count += 1
            self._finish(None)
        else:
            self._count += 1
            self._transport.write(self._command)

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(error or ConnectionError("the server closed the connection"))

    def _finish(self, error: Exception | None) -> None:
        if not self._done.done():
            if error is None:
                self._done.set_result(self._count)
            else:
                self._done.set_exception(error)
        if self._transport is not None:
            self._transport.close()


async def _load(port: int, commands: Sequence[bytes], seconds: float) -> float:
    loop = asyncio.get_running_loop()
    begun = perf_counter()
    done = [loop.create_future() for _ in commands]
    for command, result in zip(commands, done, strict=True):
        await loop.create_connection(
            lambda command=command, result=result: _Caller(  # type: ignore[misc]
                command, begun + seconds, result
            ),
            "127.0.0.1",
            port,
        )
    count: int = sum(await asyncio.gather(*done))
    return count / (perf_counter() - begun)


def load_per_s(port: int, commands: Sequence[bytes], seconds: float) -> float:
    """One connection per command, each sending it again and again. -> commands per second"""
    return uvloop.run(_load(port, commands, seconds))
