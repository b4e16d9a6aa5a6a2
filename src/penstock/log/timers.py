"""Hints for work in the background (chores.py): what to look at, and from when on."""

from __future__ import annotations

from penstock.log.decision import Timer


def merge_due(log_id: int, at_ms: int) -> Timer:
    return Timer(at_ms, ("merge", log_id))


def garbage_due(at_ms: int) -> Timer:
    return Timer(at_ms, ("collect", None))


def staging_due(staging_id: int, at_ms: int) -> Timer:
    return Timer(at_ms, ("staging", staging_id))
