"""The command of sources: PENSTOCK.SOURCE with a request of source/requests.py, in JSON.

Contract     Its words become a request and its answer becomes JSON; what is no request is an
             InvalidError that says where.
"""

from __future__ import annotations

import msgspec

from penstock.broker.sources import Sources
from penstock.codec.resp import encode
from penstock.errors import InvalidError
from penstock.server.resp.command import NO_KEYS, Command
from penstock.source.requests import SourceRequest

SOURCE_COMMANDS = (
    Command(
        "PENSTOCK.SOURCE", 2, ("write",), NO_KEYS, "generic",
        "Asks about the files of a source: opens, acquires, publishes, lists.", "json",
        since="0.5.0",
    ),
)  # fmt: skip

_REQUESTS: msgspec.json.Decoder[SourceRequest] = msgspec.json.Decoder(SourceRequest)


def parse_source(words: list[bytes]) -> SourceRequest:
    try:
        return _REQUESTS.decode(words[1])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"this is no request about a source: {error}") from None


SOURCE_PARSERS = {"PENSTOCK.SOURCE": parse_source}


async def run(request: SourceRequest, sources: Sources, protocol: int) -> bytes:
    return encode(msgspec.json.encode(await sources.ask(request)), protocol)
