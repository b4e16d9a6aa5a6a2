"""Tokens of a filter, and errors with their place. Pure.

Contract     Source.error names line and column, counted from 1 in characters, and the piece of the
             text that is wrong, cut if it is long.
Not here     Where tokens come from (filter_lexer.py).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidError

# Far above what people write, far below what stops a writer; the stored text obeys it too.
TEXT_BYTES_MAX = 16 * 1024
_QUOTE_MAX = 40


class TokenClass(enum.Enum):
    NAME = enum.auto()
    QUOTED = enum.auto()  # a name in double quotes
    STRING = enum.auto()
    NUMBER = enum.auto()
    WORD = enum.auto()  # one of RESERVED (filter_text.py), in upper case
    SYMBOL = enum.auto()
    END = enum.auto()


class Token(NamedTuple):
    cls: TokenClass
    text: str  # without quotes
    start: int
    end: int  # behind the last character


class Source(msgspec.Struct, frozen=True):
    what: str  # filter or priority: the first word of an error
    text: str

    def error(self, message: str, start: int, end: int) -> InvalidError:
        line = self.text.count("\n", 0, start) + 1
        column = start - self.text.rfind("\n", 0, start)
        piece = self.text[start:end]
        if len(piece) > _QUOTE_MAX:
            piece = piece[: _QUOTE_MAX - 1] + "…"
        place = f"{self.what}, line {line}, column {column}"
        return InvalidError(f"{place}: {message}: {piece!r}" if piece else f"{place}: {message}")
