"""Hints for work in the background on streams (chores.py): what to look at, and from when on."""

from __future__ import annotations

from penstock.log.decision import Timer


def group_due(log_id: int, name: str, at_ms: int) -> Timer:
    """Entries of this group expire."""
    return Timer(at_ms, ("group", (log_id, name)))


def retain_due(log_id: int, at_ms: int) -> Timer:
    """This stream has more than it should keep."""
    return Timer(at_ms, ("retain", log_id))


def compact_due(log_id: int, at_ms: int) -> Timer:
    """Entries of this stream are superseded by newer ones of the same tag."""
    return Timer(at_ms, ("compact", log_id))
