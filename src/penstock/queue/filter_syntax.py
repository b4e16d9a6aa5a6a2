"""Filter text to tree: the grammar. Pure.

    or         and {OR and}
    and        not {AND not}
    not        NOT not | predicate
    predicate  sum [compared sum | IS [NOT] (NULL | TRUE | FALSE) | [NOT] BETWEEN sum AND sum
               | [NOT] IN (literal {, literal}) | [NOT] LIKE string [ESCAPE string]]
    sum        product {(+ | -) product}
    product    sign {(* | / | %) sign}
    sign       - sign | + number | primary
    primary    literal | name | (or) | CASE {WHEN or THEN or} [ELSE or] END | CAST(or AS type)
               | COALESCE(or {, or}) | LOWER(or) | UPPER(or) | LENGTH(or)

Contract     parse(source, kind) -> a tree of that kind; InvalidError, with the place, for any
             other text. Names are headers, as written; `"quoted"` if they are no plain word. Names
             with a leading underscore are metadata (META), or refused.
Not here     Kinds and limits (filter_cursor.py), words (filter_lexer.py), places (filter_tokens).
"""

from __future__ import annotations

from penstock.queue.filter_cursor import Cursor, Part
from penstock.queue.filter_like import pieces
from penstock.queue.filter_nodes import (
    CALLS,
    CASTS,
    META,
    And,
    Arithmetic,
    Between,
    Call,
    Case,
    Cast,
    Coalesce,
    Compare,
    Header,
    In,
    IsNull,
    IsTruth,
    Kind,
    Like,
    Literal,
    Meta,
    Negate,
    Node,
    Not,
    Or,
)
from penstock.queue.filter_number import number_of
from penstock.queue.filter_text import AND, ARITHMETIC, NOT, OR, PREDICATE, SUM
from penstock.queue.filter_tokens import Source, Token, TokenClass

_COMPARED = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_PREDICATES = frozenset(("IS", "NOT", "IN", "BETWEEN", "LIKE"))
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


def parse(source: Source, kind: Kind) -> Node:
    try:
        read = Cursor(source)
        part = _expression(read, OR)
        read.expect_end()
        return read.coerced(part, kind).node
    except RecursionError:
        # Only if the caller's own stack was nearly full; DEPTH_MAX is met long before.
        raise source.error("nested too deep", 0, 0) from None


def _expression(read: Cursor, weakest: int) -> Part:
    """Reads on as long as operators bind at least as strongly as `weakest`."""
    # Binding of what was read last: a predicate is no operand of another one or of a sum.
    ceiling = ARITHMETIC["*"]
    if weakest <= NOT and read.is_at(TokenClass.WORD, "NOT"):
        left, ceiling = _negation(read), AND
    else:
        left = _signed(read)
    while True:
        token = read.token
        if token.cls is TokenClass.SYMBOL:
            binding = PREDICATE if token.text in _COMPARED else ARITHMETIC.get(token.text, 0)
        elif token.cls is TokenClass.WORD:
            binding = {"OR": OR, "AND": AND}.get(token.text, 0)
            if token.text in _PREDICATES:
                binding = PREDICATE
        else:
            binding = 0
        if not weakest <= binding <= ceiling:
            return left
        if binding == PREDICATE:
            left, ceiling = _predicate(read, left), AND
        elif binding >= SUM:
            left, ceiling = _arithmetic(read, left, binding), binding
        else:
            left, ceiling = _connective(read, left, binding), binding


def _negation(read: Cursor) -> Part:
    start = read.take().start
    read.deeper()
    inner = read.coerced(_expression(read, NOT), Kind.BOOLEAN)
    read.depth -= 1
    return read.part(Not(inner.node), Kind.BOOLEAN, start, inner)


def _connective(read: Cursor, left: Part, binding: int) -> Part:
    """All parts of a chain at once: it is one node, however long."""
    cls, word = (And, "AND") if binding == AND else (Or, "OR")
    parts = [read.coerced(left, Kind.BOOLEAN)]
    while read.accept(TokenClass.WORD, word):
        parts.append(read.coerced(_expression(read, binding + 1), Kind.BOOLEAN))
    nodes: list[Node] = []
    for part in parts:
        nodes += part.node.parts if isinstance(part.node, cls) else (part.node,)
    return read.part(cls(tuple(nodes)), Kind.BOOLEAN, left.start, *parts)


def _arithmetic(read: Cursor, left: Part, binding: int) -> Part:
    operator = read.take().text
    a = read.coerced(left, Kind.NUMBER)
    b = read.coerced(_expression(read, binding + 1), Kind.NUMBER)
    return read.part(Arithmetic(operator, a.node, b.node), Kind.NUMBER, left.start, a, b)


def _predicate(read: Cursor, left: Part) -> Part:
    token = read.take()
    if token.cls is TokenClass.SYMBOL:
        return _compared(read, left, _COMPARED[token.text])
    if token.text == "IS":
        return _judged(read, left)
    negated = token.text == "NOT"
    if negated:
        if read.token.cls is not TokenClass.WORD or read.token.text not in _PREDICATES:
            read.unexpected("IN, BETWEEN or LIKE is expected")
        token = read.take()
    match token.text:
        case "BETWEEN":
            found = _between(read, left)
        case "IN":
            found = _listed(read, left)
        case "LIKE":
            found = _like(read, left)
        case _:
            read.refuse("IN, BETWEEN or LIKE is expected", token)
    return _negated(read, found) if negated else found


def _negated(read: Cursor, part: Part) -> Part:
    return read.part(Not(part.node), Kind.BOOLEAN, part.start, part)


def _compared(read: Cursor, left: Part, operator: str) -> Part:
    kind, (a, b) = read.unified(left, _expression(read, SUM))
    found = read.part(Compare(operator, a.node, b.node, kind), Kind.BOOLEAN, left.start, a, b)
    if kind is Kind.BOOLEAN and operator not in ("=", "<>"):
        read.refuse("true and false have no order", found)
    return found


def _judged(read: Cursor, left: Part) -> Part:
    negated = read.accept(TokenClass.WORD, "NOT")
    if read.token.cls is not TokenClass.WORD or read.token.text not in _CONSTANTS:
        read.unexpected("NULL, TRUE or FALSE is expected")
    truth = _CONSTANTS[read.take().text]
    node: Node
    if truth is None:
        node = IsNull(left.node, left.kind)
    else:
        left = read.coerced(left, Kind.BOOLEAN)
        node = IsTruth(left.node, truth)
    found = read.part(node, Kind.BOOLEAN, left.start, left)
    return _negated(read, found) if negated else found


def _between(read: Cursor, left: Part) -> Part:
    low = _expression(read, SUM)
    read.word("AND")
    kind, (of, low, high) = read.unified(left, low, _expression(read, SUM))
    node = Between(of.node, low.node, high.node, kind)
    found = read.part(node, Kind.BOOLEAN, left.start, of, low, high)
    if kind is Kind.BOOLEAN:
        read.refuse("true and false have no order", found)
    return found


def _listed(read: Cursor, left: Part) -> Part:
    read.symbol("(")
    items = [_constant(read)]
    while read.accept(TokenClass.SYMBOL, ","):
        items.append(_constant(read))
    read.symbol(")")
    kind, (of, *values) = read.unified(left, *items)
    if kind is Kind.BOOLEAN:
        read.refuse("true or false in a list", left)
    literals: dict[str | float | None, None] = {}
    for value in values:
        assert isinstance(value.node, Literal)
        literals[value.node.value] = None
    return read.part(In(of.node, tuple(literals), kind), Kind.BOOLEAN, left.start, of)


def _constant(read: Cursor) -> Part:
    found = _signed(read)
    if not isinstance(found.node, Literal):
        read.refuse("a list holds literals only", found)
    return found


def _like(read: Cursor, left: Part) -> Part:
    of = read.coerced(left, Kind.TEXT)
    pattern, escape = _string(read, "LIKE"), None
    if read.accept(TokenClass.WORD, "ESCAPE"):
        escape = _string(read, "ESCAPE")
        if len(escape.text) != 1:
            read.refuse("ESCAPE takes one character", escape)
    character = None if escape is None else escape.text
    try:
        pieces(pattern.text, character)
    except ValueError as error:
        read.refuse(str(error), pattern)
    return read.part(Like(of.node, pattern.text, character), Kind.BOOLEAN, left.start, of)


def _string(read: Cursor, taker: str) -> Token:
    if read.token.cls is not TokenClass.STRING:
        read.unexpected(f"{taker} takes a string literal")
    return read.take()


def _signed(read: Cursor) -> Part:
    token = read.token
    if token.cls is not TokenClass.SYMBOL or token.text not in ("+", "-"):
        return _primary(read)
    sign = read.take()
    follows = read.token
    is_number = follows.cls is TokenClass.NUMBER or follows[:2] == (TokenClass.SYMBOL, ".")
    if sign.text == "+":
        if not is_number:
            read.unexpected("a number is expected after +")
        return _primary(read)._replace(start=sign.start)
    if not is_number:
        read.deeper()
    inner = read.coerced(_primary(read) if is_number else _signed(read), Kind.NUMBER)
    if not is_number:
        read.depth -= 1
    if isinstance(inner.node, Literal) and isinstance(inner.node.value, float):
        # 0 - x, so that there is no -0.
        return read.part(Literal(0.0 - inner.node.value), Kind.NUMBER, sign.start)
    return read.part(Negate(inner.node), Kind.NUMBER, sign.start, inner)


def _primary(read: Cursor) -> Part:
    token = read.token
    match token.cls:
        case TokenClass.NUMBER:
            return _number(read, "")
        case TokenClass.STRING:
            read.take()
            return read.part(Literal(token.text), Kind.TEXT, token.start)
        case TokenClass.QUOTED:
            read.take()
            return _name(read, token)
        case TokenClass.NAME:
            read.take()
            if read.is_at(TokenClass.SYMBOL, "("):
                return _call(read, token)
            return _name(read, token)
        case TokenClass.WORD if token.text in _CONSTANTS:
            read.take()
            value = _CONSTANTS[token.text]
            kind = Kind.NULL if value is None else Kind.BOOLEAN
            return read.part(Literal(value), kind, token.start)
        case TokenClass.WORD if token.text in ("CASE", "CAST"):
            read.take()
            return _case(read, token) if token.text == "CASE" else _cast(read, token)
        case TokenClass.SYMBOL if token.text == "(":
            read.take()
            read.deeper()
            inner = _expression(read, OR)
            read.depth -= 1
            read.symbol(")")
            return inner._replace(start=token.start, end=read.tokens[read.at - 1].end)
        case TokenClass.SYMBOL if token.text == ".":
            read.take()
            if read.token.cls is TokenClass.NUMBER and read.token.start == token.end:
                return _number(read, ".")
            read.refuse("unexpected", token)
    read.unexpected("unexpected")


def _number(read: Cursor, before: str) -> Part:
    token = read.take()
    value = number_of(before + token.text)
    if value is None:
        read.refuse("not a number that float64 can hold", token)
    return read.part(Literal(value), Kind.NUMBER, token.start - len(before))


def _name(read: Cursor, token: Token) -> Part:
    if read.is_at(TokenClass.SYMBOL, "."):
        read.unexpected("a name with a dot needs double quotes")
    if not token.text:
        read.refuse("an empty name", token)
    if not token.text.startswith("_"):
        return read.part(Header(token.text), Kind.TEXT, token.start)
    if token.text not in META:
        read.refuse(f"names with a leading underscore are {', '.join(META)}; this one", token)
    return read.part(Meta(token.text), Kind.NUMBER, token.start)


def _call(read: Cursor, token: Token) -> Part:
    name = token.text.upper()
    if name not in CALLS and name != "COALESCE":
        read.refuse("unknown function", token)
    read.symbol("(")
    read.deeper()
    parts = [_expression(read, OR)]
    while name == "COALESCE" and read.accept(TokenClass.SYMBOL, ","):
        parts.append(_expression(read, OR))
    read.depth -= 1
    read.symbol(")")
    if name == "COALESCE":
        kind, parts = read.unified(*parts)
        if kind is Kind.NULL:
            return read.part(Literal(None), kind, token.start)
        nodes = tuple(part.node for part in parts)
        return read.part(Coalesce(nodes, kind), kind, token.start, *parts)
    of = read.coerced(parts[0], Kind.TEXT)
    return read.part(Call(name, of.node), CALLS[name], token.start, of)


def _cast(read: Cursor, token: Token) -> Part:
    read.symbol("(")
    read.deeper()
    inner = _expression(read, OR)
    read.depth -= 1
    if inner.kind is Kind.BOOLEAN:
        read.refuse("true or false cannot be cast", inner)
    read.word("AS")
    to = read.take() if read.token.cls is TokenClass.NAME else None
    if to is None:
        read.unexpected("a type is expected")
    if to.text.upper() not in CASTS:
        read.refuse("unknown type (INT, DOUBLE and TEXT are known)", to)
    read.symbol(")")
    name = CASTS[to.text.upper()]
    kind = Kind.TEXT if name == "TEXT" else Kind.NUMBER
    return read.part(Cast(inner.node, inner.kind, name, False), kind, token.start, inner)


def _case(read: Cursor, token: Token) -> Part:
    read.deeper()
    whens: list[Part] = []
    thens: list[Part] = []
    if not read.is_at(TokenClass.WORD, "WHEN"):
        read.unexpected("WHEN is expected")
    while read.accept(TokenClass.WORD, "WHEN"):
        whens.append(read.coerced(_expression(read, OR), Kind.BOOLEAN))
        read.word("THEN")
        thens.append(_expression(read, OR))
    if read.accept(TokenClass.WORD, "ELSE"):
        otherwise = _expression(read, OR)
    else:
        otherwise = Part(Literal(None), Kind.NULL, 1, token.start, token.end)
    read.word("END")
    read.depth -= 1
    kind, (otherwise, *thens) = read.unified(otherwise, *thens)
    if kind is Kind.NULL:
        return read.part(Literal(None), kind, token.start)
    pairs = tuple((when.node, then.node) for when, then in zip(whens, thens, strict=True))
    node = Case(pairs, otherwise.node, kind)
    return read.part(node, kind, token.start, otherwise, *whens, *thens)
