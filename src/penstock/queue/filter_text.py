"""The canonical text of a filter: what is stored. Pure.

Contract     Reading the text gives the same tree. Keywords are upper case, names are quoted only
             if they must be, parentheses stand only where they are needed.
"""

from __future__ import annotations

import re

from penstock.queue.filter_nodes import (
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
    Like,
    Literal,
    Meta,
    Negate,
    Node,
    Not,
    Or,
)
from penstock.queue.filter_number import text_of

# Words that are no names unless they are quoted.
_OPERATORS = ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS")
RESERVED = frozenset(
    (*_OPERATORS, "NULL", "TRUE", "FALSE", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "AS")
)

# How strongly an operator binds; filter_syntax.py reads with the same numbers.
OR, AND, NOT, PREDICATE, SUM, PRODUCT, SIGN, PRIMARY = range(1, 9)
ARITHMETIC = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT}

_plain_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def render(node: Node) -> str:
    return _write(node)[0]


def quoted(text: str, quote: str = "'") -> str:
    return quote + text.replace(quote, quote * 2) + quote


def _at(node: Node, binding: int) -> str:
    """The node as an operand of something that binds as strongly as `binding`."""
    text, own = _write(node)
    return text if own >= binding else f"({text})"


def _write(node: Node) -> tuple[str, int]:
    """-> the text and how strongly its outermost operator binds."""
    match node:
        case Literal():
            return _literal(node.value)
        case Header(name) | Meta(name):
            if _plain_name(name) and name.upper() not in RESERVED:
                return name, PRIMARY
            return quoted(name, '"'), PRIMARY
        case Cast():
            if node.implicit:
                return _write(node.node)
            return f"CAST({render(node.node)} AS {node.to})", PRIMARY
        case Negate():
            operand = _at(node.node, SIGN)
            # Two minus signs side by side would begin a comment.
            return ("- " if operand.startswith("-") else "-") + operand, SIGN
        case Arithmetic(operator):
            own = ARITHMETIC[operator]
            return f"{_at(node.left, own)} {operator} {_at(node.right, own + 1)}", own
        case Not():
            if isinstance(node.node, Between | In | Like | IsNull | IsTruth):
                return _predicate(node.node, "NOT "), PREDICATE
            return f"NOT {_at(node.node, NOT)}", NOT
        case And():
            return " AND ".join(_at(part, NOT) for part in node.parts), AND
        case Or():
            return " OR ".join(_at(part, AND) for part in node.parts), OR
        case Case():
            whens = " ".join(
                f"WHEN {render(when)} THEN {render(then)}" for when, then in node.whens
            )
            return f"CASE {whens} ELSE {render(node.otherwise)} END", PRIMARY
        case Coalesce():
            return f"COALESCE({', '.join(map(render, node.parts))})", PRIMARY
        case Call():
            return f"{node.name}({render(node.node)})", PRIMARY
        case _:
            return _predicate(node, ""), PREDICATE


def _predicate(node: Compare | Between | In | Like | IsNull | IsTruth, negation: str) -> str:
    match node:
        case Compare():
            return f"{_at(node.left, SUM)} {node.operator} {_at(node.right, SUM)}"
        case Between():
            bounds = f"{_at(node.low, SUM)} AND {_at(node.high, SUM)}"
            return f"{_at(node.node, SUM)} {negation}BETWEEN {bounds}"
        case In():
            values = ", ".join(_literal(value)[0] for value in node.values)
            return f"{_at(node.node, SUM)} {negation}IN ({values})"
        case Like():
            escape = "" if node.escape is None else f" ESCAPE {quoted(node.escape)}"
            return f"{_at(node.node, SUM)} {negation}LIKE {quoted(node.pattern)}{escape}"
        case IsNull():
            return f"{_at(node.node, SUM)} IS {negation}NULL"
        case IsTruth():
            return f"{_at(node.node, SUM)} IS {negation}{'TRUE' if node.truth else 'FALSE'}"


def _literal(value: str | float | bool | None) -> tuple[str, int]:
    match value:
        case None:
            return "NULL", PRIMARY
        case bool():
            return ("TRUE" if value else "FALSE"), PRIMARY
        case str():
            return quoted(value), PRIMARY
        case _:
            return text_of(value), SIGN if value < 0 else PRIMARY
