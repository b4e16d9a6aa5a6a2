"""Compaction by tag: of each tag the last entry stays, the others become holes (TCONFIG COMPACT).

Contract     `learn` reads the entries that came since the last time, `superseded` then finds what
             they replace among all that may be compacted; log/holes.py takes those away. An entry
             without a tag always stays; so does everything from the lowest hold on.
Memory       At most TAGS_MAX tags are learned at a time: who has more goes on from where it ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.log.hold import lowest_hold
from penstock.log.read import read_nodes
from penstock.log.state import LogState
from penstock.store.port import Store

TAGS_MAX = 1_000_000
#: Offsets of one round of holes.
DEAD_MAX = 10_000


async def learn(store: Store, state: LogState, low: int) -> tuple[dict[bytes, int], int]:
    """The last offset of each tag from `low` on, and the end of what was looked at."""
    last: dict[bytes, int] = {}
    async for node, start, stop in read_nodes(store, state, low, state.next):
        alive = node.alive()
        for i, tag in enumerate(node.tag_list(start, stop), start):
            if tag and (alive is None or alive[i]):
                last[tag] = node.first + i
        if len(last) >= TAGS_MAX:
            return last, node.first + stop
    return last, state.next


async def superseded(
    store: Store, state: LogState, last: dict[bytes, int], high: int
) -> AsyncIterator[list[int]]:
    """Offsets below `high` whose tag comes again later, a list at a time."""
    dead: list[int] = []
    async for node, start, stop in read_nodes(store, state, state.first, high):
        alive = node.alive()
        for i, tag in enumerate(node.tag_list(start, stop), start):
            later = last.get(tag) if tag else None
            if later is not None and node.first + i < later and (alive is None or alive[i]):
                dead.append(node.first + i)
        if len(dead) >= DEAD_MAX:
            yield dead
            dead = []
    if dead:
        yield dead


def compactable(state: LogState) -> int:
    """The end of what may be compacted."""
    held = lowest_hold(state)
    return state.next if held is None else min(held, state.next)
