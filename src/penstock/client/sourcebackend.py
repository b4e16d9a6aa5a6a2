"""What a broker can be asked about sources: here (broker/sources.py), or over a socket."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, cast

import msgspec

from penstock.client.bulkbackend import Argument
from penstock.codec.resp import Limits
from penstock.errors import InvalidError, UnavailableError
from penstock.source.requests import Ask, SourceAnswer

R = TypeVar("R")

_ANSWERS = msgspec.json.Decoder(SourceAnswer)


class SourceBackend(Protocol):
    async def ask(self, request: Ask[R]) -> R: ...


class Asking(Protocol):
    """What of a Remote is used here."""

    async def ask(self, *request: Argument) -> Any: ...


class RemoteSources:
    def __init__(self, remote: Asking) -> None:
        self._ask = remote.ask

    async def ask(self, request: Ask[R]) -> R:
        try:
            encoded = msgspec.json.encode(request)
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidError(f"a source request is told in JSON: {error}") from None
        if len(encoded) > Limits().bulk_bytes:
            # The broker would take it for noise, and end the connection.
            raise InvalidError(
                f"a request of {len(encoded):,} bytes; at most {Limits().bulk_bytes:,} are allowed",
                hint="ask for less at once",
            )
        reply = await self._ask("PENSTOCK.SOURCE", encoded)
        try:
            return cast(R, _ANSWERS.decode(reply))
        except (msgspec.DecodeError, TypeError, UnicodeDecodeError) as error:
            raise UnavailableError(
                f"the broker's answer about a source cannot be read: {error}",
                hint="is its version another one than this process has?",
            ) from None
