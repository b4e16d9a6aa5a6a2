"""Where the reading of a filter stands, and what was understood so far. Pure.

Contract     A Cursor walks over the tokens; whatever does not fit is an InvalidError with its
             place. A Part is a tree with its kind, its height and where it stood.
Kinds        Headers are text. Text that meets a number is cast to one; a string literal that is
             none is refused then. Nothing else is cast by itself.
Invariants   Trees and texts nest at most DEPTH_MAX levels, so that neither reading nor evaluating
             runs out of stack. Sums count: `a + b + c` is two levels. AND, OR and IN do not.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from penstock.queue.filter_nodes import Cast, Kind, Literal, Node
from penstock.queue.filter_number import number_of
from penstock.queue.filter_tokens import Source, Token, TokenClass

DEPTH_MAX = 64


class Part(NamedTuple):
    """A piece of the text that was understood."""

    node: Node
    kind: Kind
    height: int  # of the tree
    start: int
    end: int


class Cursor:
    def __init__(self, source: Source) -> None:
        # Here, not above: sqlglot takes 0.1 s to load, and most processes never read a filter.
        from penstock.queue.filter_lexer import tokenize

        self.source = source
        self.tokens = tokenize(source)
        self.at = 0
        self.depth = 0

    # Tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def is_at(self, cls: TokenClass, text: str) -> bool:
        token = self.tokens[self.at]
        return token.cls is cls and token.text == text

    def take(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def accept(self, cls: TokenClass, text: str) -> bool:
        found = self.is_at(cls, text)
        self.at += found
        return found

    def word(self, text: str) -> None:
        if not self.accept(TokenClass.WORD, text):
            self.unexpected(f"{text} is expected")

    def symbol(self, text: str) -> None:
        if not self.accept(TokenClass.SYMBOL, text):
            self.unexpected(f"{text} is expected")

    def expect_end(self) -> None:
        if self.token.cls is not TokenClass.END:
            self.unexpected("unexpected")

    def unexpected(self, message: str) -> NoReturn:
        token = self.token
        if token.cls is TokenClass.END:
            message = message.replace("unexpected", "a value is expected") + ", but the text ends"
        raise self.source.error(message, token.start, token.end)

    def refuse(self, message: str, part: Part | Token) -> NoReturn:
        raise self.source.error(message, part.start, part.end)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.refuse(f"nested deeper than {DEPTH_MAX} levels", self.token)

    def part(self, node: Node, kind: Kind, start: int, *inner: Part) -> Part:
        """What was read from `start` to here."""
        height = 1 + max((each.height for each in inner), default=0)
        found = Part(node, kind, height, start, self.tokens[self.at - 1].end)
        if height > DEPTH_MAX:
            self.refuse(f"nested deeper than {DEPTH_MAX} levels", found)
        return found

    # Kinds

    def coerced(self, part: Part, kind: Kind) -> Part:
        if kind in (part.kind, Kind.NULL) or part.kind is Kind.NULL:
            return part
        if part.kind is not Kind.TEXT or kind is not Kind.NUMBER:
            self.refuse(f"{part.kind.value} where {kind.value} is expected", part)
        if not isinstance(part.node, Literal):
            cast = Cast(part.node, Kind.TEXT, "DOUBLE", implicit=True)
            return part._replace(node=cast, kind=kind)
        assert isinstance(part.node.value, str)
        number = number_of(part.node.value)
        if number is None:
            self.refuse("not a number, and used with one", part)
        return part._replace(node=Literal(number), kind=kind)

    def unified(self, *parts: Part) -> tuple[Kind, list[Part]]:
        """One kind for values that meet: numbers if one is, else what the first is."""
        kinds = [part.kind for part in parts if part.kind is not Kind.NULL]
        kind = Kind.NUMBER if Kind.NUMBER in kinds else next(iter(kinds), Kind.NULL)
        return kind, [self.coerced(part, kind) for part in parts]
