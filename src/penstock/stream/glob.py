"""Patterns for names, as in Redis' KEYS: * ? [abc] [a-c] [^a] and \\ to take the next as it is.

Translated to a regular expression that cannot explode: what stands between two stars is taken where
it comes first, for good (an atomic group), because a later place would leave less for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.errors import InvalidError

#: A name has 255 bytes at most, which may be written as [xx] each; translating what a client may
#: send at most would take minutes, and everybody would wait.
PATTERN_MAX = 1024


def compile_glob(pattern: str) -> Callable[[str], bool]:
    check_patterns(pattern)
    found = re.compile(_translate(pattern), re.DOTALL)
    return lambda name: found.fullmatch(name) is not None


def check_patterns(*patterns: str) -> None:
    """Of one request: its patterns together have as many characters as one may have."""
    size = sum(map(len, patterns))
    if size > PATTERN_MAX:
        raise InvalidError(f"patterns of {size:,} characters; at most {PATTERN_MAX:,}")


def _translate(pattern: str) -> str:
    pieces: list[list[str]] = [[]]  # what stands between the stars
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            pieces.append([])
        elif char == "?":
            pieces[-1].append(".")
        elif char == "[":
            part, at = _class(pattern, at)
            pieces[-1].append(part)
        else:
            if char == "\\" and at < len(pattern):
                char = pattern[at]
                at += 1
            pieces[-1].append(re.escape(char))
    first, *rest = ("".join(piece) for piece in pieces)
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + ".*" + last


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
