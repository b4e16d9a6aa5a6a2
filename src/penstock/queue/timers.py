"""Hints for work on queues in the background (broker/queuekeeping.py)."""

from __future__ import annotations

from penstock.codec.queueoperation import PageKind
from penstock.codec.scalars import NEVER_MS
from penstock.log.decision import Timer
from penstock.queue.state import Lines, QueueState


def queue_timers(state: QueueState, lines: Lines | None = None) -> list[Timer]:
    """When to look at this queue: its first lease ends, its first available message expires, its
    first done entry is forgotten."""
    lines = state.lines if lines is None else lines
    found: list[Timer] = []
    deadlines = lines[PageKind.IN_FLIGHT]["deadline_ms"]
    if len(deadlines):
        found.append(Timer(int(deadlines.min()), ("lease", state.name)))
    available = lines[PageKind.AVAILABLE]["retention_ms"]
    if len(available) and (first := int(available.min())) != NEVER_MS:
        found.append(Timer(first + 1, ("retention", state.name)))
    done = lines[PageKind.DONE]["first_ms"]
    keep_ms = 1000 * state.settings.done_retention_s
    if len(done) and keep_ms:
        found.append(Timer(int(done.min()) + keep_ms + 1, ("retention", state.name)))
    if state.head.backfill < state.head.backfill_end:
        found.append(backfill_due(state.name))
    return found


def backfill_due(name: str) -> Timer:
    return Timer(0, ("backfill", name))
