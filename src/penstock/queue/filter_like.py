"""LIKE: `%` is any text, `_` any one character, case counts. Pure.

Contract     like_matcher(pattern, escape) -> function from text to bool. It looks for the pieces
             between the `%` from left to right, each as early as possible, and never goes back: a
             pattern such as '%a%a%a%b' costs no more than text times pattern, where a backtracking
             regular expression would stop the writer for hours.
             pieces(pattern, escape) raises ValueError if the pattern ends in its escape character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# A run without %: its characters, None for any one.
Piece = tuple[str | None, ...]


def pieces(pattern: str, escape: str | None) -> list[Piece]:
    """The runs between the % signs: one more than there are signs."""
    found: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("the pattern ends in its escape character")
            found[-1].append(escaped)
        elif character == "%":
            found.append([])
        else:
            found[-1].append(None if character == "_" else character)
    return [tuple(piece) for piece in found]


def plain(piece: Piece) -> str | None:
    """The piece as text, if it has no wildcard."""
    return None if None in piece else "".join(each or "" for each in piece)


def expression(piece: Piece) -> str:
    """As a regular expression, with . for any character; both re and RE2 read it."""
    return "".join("." if each is None else re.escape(each) for each in piece)


def like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    first, *others = pieces(pattern, escape)
    if not others:
        return _whole(first)
    *middle, last = others
    starts, ends = _start(first), _end(last)
    finders = [_find(piece) for piece in middle if piece]
    shortest, tail = len(first) + len(last), len(last)

    def matches(text: str) -> bool:
        if len(text) < shortest or not starts(text) or not ends(text):
            return False
        at, end = len(first), len(text) - tail
        for find in finders:
            at = find(text, at, end)
            if at < 0:
                return False
        return True

    return matches


def _compiled(piece: Piece) -> re.Pattern[str]:
    return re.compile(expression(piece), re.DOTALL)


def _whole(piece: Piece) -> Callable[[str], bool]:
    text = plain(piece)
    if text is not None:
        return text.__eq__
    fullmatch = _compiled(piece).fullmatch
    return lambda value: fullmatch(value) is not None


def _start(piece: Piece) -> Callable[[str], bool]:
    text = plain(piece)
    if text is not None:
        return lambda value: value.startswith(text)
    match = _compiled(piece).match
    return lambda value: match(value) is not None


def _end(piece: Piece) -> Callable[[str], bool]:
    text = plain(piece)
    if text is not None:
        return lambda value: value.endswith(text)
    match, size = _compiled(piece).match, len(piece)
    return lambda value: match(value, len(value) - size) is not None


def _find(piece: Piece) -> Callable[[str, int, int], int]:
    """-> (text, from, to) -> where the first match ends; -1: there is none."""
    text = plain(piece)
    if text is not None:
        size = len(text)

        def find(value: str, at: int, end: int) -> int:
            found = value.find(text, at, end)
            return found if found < 0 else found + size

        return find
    search = _compiled(piece).search

    def find_wild(value: str, at: int, end: int) -> int:
        found = search(value, at, end)
        return -1 if found is None else found.end()

    return find_wild
