"""Patterns for names, as in Redis' KEYS: * ? [abc] [a-c] [^a] and \\ to take the next as it is.

Translated to a regular expression; whatever the pattern, matching is linear in practice because a
run of stars is one star.
"""

from __future__ import annotations

import re
from collections.abc import Callable


def compile_glob(pattern: str) -> Callable[[str], bool]:
    found = re.compile(_translate(pattern), re.DOTALL)
    return lambda name: found.fullmatch(name) is not None


def _translate(pattern: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            if not parts or parts[-1] != ".*?":
                parts.append(".*?")
        elif char == "?":
            parts.append(".")
        elif char == "[":
            part, at = _class(pattern, at)
            parts.append(part)
        else:
            if char == "\\" and at < len(pattern):
                char = pattern[at]
                at += 1
            parts.append(re.escape(char))
    return "".join(parts)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """A set of characters, and where the pattern goes on; one that never ends ends with it."""
    negated = pattern[at : at + 1] == "^"
    at += negated
    ranges: list[str] = []
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "\\" and at + 1 < len(pattern):
            at += 1
        low = high = pattern[at]
        if at + 2 < len(pattern) and pattern[at + 1] == "-" and pattern[at + 2] != "]":
            high = pattern[at + 2]
            at += 2
        low, high = min(low, high), max(low, high)
        ranges.append(f"{re.escape(low)}-{re.escape(high)}")
        at += 1
    if not ranges:
        return ("." if negated else "(?!)"), at + 1
    return f"[{'^' if negated else ''}{''.join(ranges)}]", at + 1
