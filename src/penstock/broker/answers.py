"""What stream requests answer with."""

from __future__ import annotations

import msgspec

from penstock.codec.catalogue import CatalogueRow
from penstock.log.read import Message, Piece
from penstock.log.state import LogState
from penstock.stream.config import NO_CONFIG, StreamConfig, config_of


class StreamInfo(msgspec.Struct, frozen=True):
    first: int  # the lowest offset that can be read
    last: int  # the highest; first - 1 when there is none
    length: int  # how many there are
    bytes: int  # as stored, in whole nodes
    created_ms: int | None = None  # None: never written
    config: StreamConfig = NO_CONFIG
    groups: int = 0  # consumer groups; counted by `info` alone


def stream_info(state: LogState | None, row: CatalogueRow | None = None) -> StreamInfo:
    if state is None:
        return StreamInfo(first=0, last=-1, length=0, bytes=0)
    return StreamInfo(
        state.first,
        state.next - 1,
        state.length,
        state.stored_bytes,
        None if row is None else row.created_at_ms,
        config_of(row),
    )


class Found(msgspec.Struct, frozen=True):
    """An answer to a read, and the stream as it was then."""

    info: StreamInfo
    messages: list[Message | None]


class FoundByGroup(msgspec.Struct, frozen=True):
    info: StreamInfo
    pieces: list[Piece]  # all of them living

    @property
    def count(self) -> int:
        return sum(stop - start for _, start, stop in self.pieces)


class FoundNodes(msgspec.Struct, frozen=True):
    info: StreamInfo
    low: int  # the offsets that the answer stands for; what no piece covers is evicted
    high: int
    pieces: list[Piece]  # a node, and which of its entries, the end exclusive
