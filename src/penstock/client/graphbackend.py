"""What a broker can be asked about graphs: here (broker/graphs.py), or over a socket."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from penstock.client.bulkbackend import Argument
from penstock.errors import UnavailableError
from penstock.graph.requests import Look, Reply, Request, decode_reply, encode_request


class GraphBackend(Protocol):
    async def ask(self, request: Request) -> Reply: ...


class Asking(Protocol):
    """What of a Remote is used here."""

    async def ask_waiting(self, block_ms: int | None, *request: Argument) -> Any: ...


class RemoteGraphs:
    def __init__(self, remote: Asking) -> None:
        self._ask = remote.ask_waiting

    async def ask(self, request: Request) -> Reply:
        block_ms = request.block_ms if isinstance(request, Look) else 0
        reply = await self._ask(block_ms, "PENSTOCK.GRAPH", encode_request(request))
        try:
            return decode_reply(reply)
        except (msgspec.DecodeError, TypeError, UnicodeDecodeError) as error:
            raise UnavailableError(
                f"the broker's answer about a graph cannot be read: {error}",
                hint="is its version another one than this process has?",
            ) from None
