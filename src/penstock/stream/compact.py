"""Compaction by tag: of each tag the last entry stays, the others become holes (TCONFIG COMPACT).

Contract     `learn` reads the entries that came since the last time, `superseded` then finds what
             they replace among all that may be compacted; log/holes.py takes those away. An entry
             without a tag always stays; so does everything from the lowest hold on.
Parts        Both read a part of the stream and say where it ended: a part is over long before a
             deadline, however long the stream is, and others have their turn after every node.
Memory       At most TAGS_MAX tags are learned at a time, by who calls; about DEAD_MAX offsets are
             found at a time.
"""

from __future__ import annotations

from penstock.clock import give_way
from penstock.log.hold import lowest_hold
from penstock.log.read import Piece, read_nodes
from penstock.log.state import LogState
from penstock.store.port import Store

TAGS_MAX = 1_000_000
#: Offsets of one round of holes.
DEAD_MAX = 10_000
#: What one part reads before it ends: entries, bytes.
COMPACT_ENTRIES = 50_000
COMPACT_BYTES = 32 << 20


class _Part:
    """How much was read."""

    def __init__(self) -> None:
        self._entries = 0
        self._bytes = 0

    def full(self, piece: Piece) -> bool:
        """Whether it is enough, now that this was read too."""
        node, start, stop = piece
        self._entries += stop - start
        self._bytes += node.memory_bytes
        return self._entries >= COMPACT_ENTRIES or self._bytes >= COMPACT_BYTES


async def learn(store: Store, state: LogState, low: int, high: int, last: dict[bytes, int]) -> int:
    """Note the last offset of each tag, from `low` on and below `high`. -> the end of this part"""
    part = _Part()
    async for piece in read_nodes(store, state, low, high):
        node, start, stop = piece
        alive = node.alive()
        for i, tag in enumerate(node.tag_list(start, stop), start):
            if tag and (alive is None or alive[i]):
                last[tag] = node.first + i
        await give_way()
        if part.full(piece) or len(last) >= TAGS_MAX:
            return node.first + stop
    return high


async def superseded(
    store: Store, state: LogState, last: dict[bytes, int], low: int, high: int
) -> tuple[list[int], int]:
    """Offsets from `low` on and below `high` whose tag comes again later, in order; and the end of
    this part."""
    part = _Part()
    dead: list[int] = []
    async for piece in read_nodes(store, state, low, high):
        node, start, stop = piece
        alive = node.alive()
        for i, tag in enumerate(node.tag_list(start, stop), start):
            later = last.get(tag) if tag else None
            if later is not None and node.first + i < later and (alive is None or alive[i]):
                dead.append(node.first + i)
        await give_way()
        if part.full(piece) or len(dead) >= DEAD_MAX:
            return dead, node.first + stop
    return dead, high


def compactable(state: LogState) -> int:
    """The end of what may be compacted."""
    held = lowest_hold(state)
    return state.next if held is None else min(held, state.next)
