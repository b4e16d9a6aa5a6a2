"""Hints for work in the background on topics: what to look at, and from when on."""

from __future__ import annotations

from penstock.log.decision import Timer


def feed_due(name: str, at_ms: int) -> Timer:
    """Messages of the all-log have no references yet, or a replay goes on."""
    return Timer(at_ms, ("topic feed", name))


def beat_due(name: str, at_ms: int) -> Timer:
    """A consumer may have been silent for too long."""
    return Timer(at_ms, ("topic beat", name))
