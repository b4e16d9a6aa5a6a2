"""Retention: entries go by count, bytes and age, behind the writes (TCONFIG).

Contract     `plan_retain` finds where the stream should begin and returns the step that moves its
             edge there, if it must move, and when to look again because of age. Holds stop it
             (log/hold.py), and then it does not look for what they keep.
"""

from __future__ import annotations

from penstock.log.decision import Step
from penstock.log.evict import first_by_bytes, trim_step
from penstock.log.hold import trimmed_first
from penstock.log.read import read_nodes
from penstock.log.seek import seek_time
from penstock.log.state import LogState
from penstock.store.port import Store
from penstock.stream.config import StreamConfig


async def plan_retain(
    store: Store, state: LogState, config: StreamConfig, now_ms: int
) -> tuple[Step | None, int | None]:
    """-> the step, and when the next entry is too old"""
    first = state.first
    if config.max_count is not None:
        first = max(first, state.next - config.max_count)
    if config.max_bytes is not None and trimmed_first(state, state.next) > state.first:
        first = max(first, await first_by_bytes(store, state, config.max_bytes))
    look_ms = None
    if config.max_age_ms is not None:
        first = max(first, await seek_time(store, state, now_ms - config.max_age_ms))
        async for node, start, _ in read_nodes(store, state, first, first + 1):
            look_ms = node.time_list(start, start + 1)[0] + config.max_age_ms
    first = trimmed_first(state, first)
    return (trim_step(state.log_id, before=first) if first > state.first else None), look_ms
