"""The words of a command: text, numbers, options. Pure.

Contract     Whatever is wrong is an InvalidError that says what; options carry the command's syntax
             as the hint. Options are words in any case, each at most once.
Not here     What a command's words mean (grammar.py, queue_grammar.py).
"""

from __future__ import annotations

from penstock.errors import InvalidError
from penstock.server.resp.commands import COMMANDS

#: Offsets, counts and times are this wide where they are stored.
NUMBER_MAX = (1 << 63) - 1


def text(word: bytes, what: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise InvalidError(f"{what} is not valid UTF-8: {word[:64]!r}") from None


def number(word: bytes, what: str, *, low: int = 0, high: int = NUMBER_MAX) -> int:
    # Python alone would take '1_0' and ' 1 '.
    value = int(word) if len(word) <= 20 and word.removeprefix(b"-").isdigit() else None
    if value is None or not -NUMBER_MAX - 1 <= value <= NUMBER_MAX:
        raise InvalidError(f"{what} is a whole number, not '{shown(word[:32])}'")
    if not low <= value <= high:
        raise InvalidError(f"{what} is at least {low}" if value < low else f"{what} is too large")
    return value


def shown(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


class Words:
    """What is left of a command."""

    __slots__ = ("at", "command", "seen", "words")

    def __init__(self, words: list[bytes], at: int) -> None:
        self.words = words
        self.at = at
        self.command = COMMANDS[words[0].upper().decode()]
        self.seen: set[bytes] = set()

    def more(self) -> bool:
        return self.at < len(self.words)

    def take(self, what: str) -> bytes:
        if self.at == len(self.words):
            raise self.wrong(f"{what} is missing")
        self.at += 1
        return self.words[self.at - 1]

    def take_many(self, count: int, what: str) -> list[bytes]:
        if self.at + count > len(self.words):
            raise self.wrong(f"{what} is missing")
        self.at += count
        return self.words[self.at - count : self.at]

    def option(self) -> bytes:
        """The next option's name, in capitals."""
        word = self.take("an option").upper()
        if word in self.seen:
            raise self.wrong(f"{shown(word[:32])} is given twice")
        self.seen.add(word)
        return word

    def has(self, option: bytes) -> bool:
        """Take this word, if it is the next one."""
        if self.more() and self.words[self.at].upper() == option:
            self.at += 1
            return True
        return False

    def end(self) -> None:
        """Nothing may follow."""
        if self.more():
            self.at += 1
            raise self.unknown()

    def unknown(self) -> InvalidError:
        word = shown(self.words[self.at - 1][:64])
        return self.wrong(f"'{word}' is not an option of {self.command.name}")

    def wrong(self, message: str) -> InvalidError:
        return InvalidError(message, hint=self.command.usage)
