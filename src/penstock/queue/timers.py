"""Hints for work on queues in the background (broker/queuekeeping.py)."""

from __future__ import annotations

from penstock.codec.queueoperation import PageKind
from penstock.codec.scalars import NEVER_MS
from penstock.log.decision import Timer
from penstock.queue.lines import AllLines
from penstock.queue.state import QueueState


def queue_timers(state: QueueState, lines: AllLines | None = None) -> list[Timer]:
    """When to look at this queue: its first lease ends, its first available message expires, its
    first done entry is forgotten."""
    lines = state.lines if lines is None else lines
    found: list[Timer] = []
    deadline_ms = lines[PageKind.IN_FLIGHT].least("deadline_ms", NEVER_MS)
    if deadline_ms != NEVER_MS:
        found.append(Timer(deadline_ms, ("lease", state.name)))
    retention_ms = lines[PageKind.AVAILABLE].least("retention_ms", NEVER_MS)
    if retention_ms != NEVER_MS:
        found.append(Timer(retention_ms + 1, ("retention", state.name)))
    keep_ms = 1000 * state.settings.done_retention_s
    if keep_ms:
        done_ms = lines[PageKind.DONE].least("first_ms", NEVER_MS)
        if done_ms != NEVER_MS:
            found.append(Timer(done_ms + keep_ms + 1, ("retention", state.name)))
    if state.head.backfill < state.head.backfill_end:
        found.append(backfill_due(state.name))
    return found


def backfill_due(name: str) -> Timer:
    return Timer(0, ("backfill", name))
