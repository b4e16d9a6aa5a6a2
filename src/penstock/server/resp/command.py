"""What is told about one command, and checked before its words are parsed.

Contract     Arity counts the name; a negative one is a minimum. `keys` are the first and last
             position of keys and the step between them, 0 for none, as in Redis. `syntax` is what a
             person reads, and each of its pieces is one argument in COMMAND DOCS.
"""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidError

Keys = tuple[int, int, int]
NO_KEYS: Keys = (0, 0, 0)
ONE_KEY: Keys = (1, 1, 1)
ALL_KEYS: Keys = (1, -1, 1)


class Command(msgspec.Struct, frozen=True):
    name: str
    arity: int
    flags: tuple[str, ...]
    keys: Keys
    group: str
    summary: str
    syntax: str = ""
    subcommands: tuple[str, ...] = ()
    since: str = "0.2.0"

    @property
    def usage(self) -> str:
        return f"{self.name} {self.syntax}".rstrip()

    def check_arity(self, count: int) -> None:
        if count != self.arity and (self.arity > 0 or count < -self.arity):
            raise InvalidError(
                f"wrong number of arguments for '{self.name.lower()}' command", hint=self.usage
            )

    def pieces(self) -> list[str]:
        """The syntax cut at its spaces, but not inside brackets."""
        found: list[str] = []
        depth = 0
        for word in self.syntax.split():
            if depth:
                found[-1] += f" {word}"
            else:
                found.append(word)
            depth += word.count("[") - word.count("]")
        return found
