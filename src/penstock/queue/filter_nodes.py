"""The tree of a filter: what both back ends evaluate. Pure.

Contract     Built by filter_syntax.py only, which has checked kinds, names and depth; a tree needs
             no further checks. Each node has one kind, known before any message is seen.
Invariants   An expression that can only be NULL is `Literal(None)`. A number is a finite float64
             and never -0.0. And and Or are flat: none directly holds another of its class.
Not here     Text to tree (filter_syntax), tree to text (filter_text), meaning (filter_python).
"""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.Enum):
    TEXT = "text"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    NULL = "NULL"


class Literal(msgspec.Struct, frozen=True):
    value: str | float | bool | None


class Header(msgspec.Struct, frozen=True):
    name: str  # as published, case-sensitive; NULL in a message that has no such header


class Meta(msgspec.Struct, frozen=True):
    name: str  # a key of META


class Cast(msgspec.Struct, frozen=True):
    node: Node
    source: Kind  # of `node`: TEXT or NUMBER, or NULL if it is Literal(None)
    to: str  # a value of CASTS
    implicit: bool  # not written by the user: it follows from what the value is used with


class Negate(msgspec.Struct, frozen=True):
    node: Node


class Arithmetic(msgspec.Struct, frozen=True):
    operator: str  # + - * / %
    left: Node
    right: Node


class Compare(msgspec.Struct, frozen=True):
    operator: str  # = <> < <= > >=
    left: Node
    right: Node
    kind: Kind  # of both sides


class Between(msgspec.Struct, frozen=True):
    node: Node
    low: Node
    high: Node
    kind: Kind  # of all three


class In(msgspec.Struct, frozen=True):
    node: Node
    values: tuple[str | float | None, ...]
    kind: Kind  # of the node and of each value that is not NULL


class Like(msgspec.Struct, frozen=True):
    node: Node
    pattern: str
    escape: str | None  # one character


class IsNull(msgspec.Struct, frozen=True):
    node: Node
    kind: Kind


class IsTruth(msgspec.Struct, frozen=True):
    node: Node
    truth: bool


class Not(msgspec.Struct, frozen=True):
    node: Node


class And(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


class Case(msgspec.Struct, frozen=True):
    whens: tuple[tuple[Node, Node], ...]  # condition, value
    otherwise: Node
    kind: Kind  # of all values


class Coalesce(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]
    kind: Kind


class Call(msgspec.Struct, frozen=True):
    name: str  # a key of CALLS
    node: Node  # text


Node = (
    Literal
    | Header
    | Meta
    | Cast
    | Negate
    | Arithmetic
    | Compare
    | Between
    | In
    | Like
    | IsNull
    | IsTruth
    | Not
    | And
    | Or
    | Case
    | Coalesce
    | Call
)

# What a filter may ask of a message besides its headers -> the field of Row and Rows.
META = {
    "_id": "id",
    "_created_at": "created_at_ms",
    "_received_at": "received_at_ms",
    "_visible_at": "visible_at_ms",
    "_retention": "retention_s",
}

# Functions of one text. Upper and lower case are those of ASCII, as in SQLite: what Unicode calls
# lower case differs between Arrow and Python, and between their versions.
CALLS = {"LOWER": Kind.TEXT, "UPPER": Kind.TEXT, "LENGTH": Kind.NUMBER}

# Names of types -> the three that there are: whole numbers, numbers, text.
CASTS = {
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "INT",
    "SMALLINT": "INT",
    "DOUBLE": "DOUBLE",
    "FLOAT": "DOUBLE",
    "REAL": "DOUBLE",
    "NUMERIC": "DOUBLE",
    "DECIMAL": "DOUBLE",
    "TEXT": "TEXT",
    "STRING": "TEXT",
    "VARCHAR": "TEXT",
    "CHAR": "TEXT",
}


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Literal() | Header() | Meta():
            return ()
        case Arithmetic() | Compare():
            return node.left, node.right
        case Between():
            return node.node, node.low, node.high
        case And() | Or() | Coalesce():
            return node.parts
        case Case():
            return (*(each for when in node.whens for each in when), node.otherwise)
        case _:
            return (node.node,)


def names(node: Node) -> frozenset[str]:
    """Headers that decide; metadata names too, which no header can have."""
    if isinstance(node, Header | Meta):
        return frozenset((node.name,))
    return frozenset().union(*map(names, children(node)))
