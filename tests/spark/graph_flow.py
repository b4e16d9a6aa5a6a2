"""A graph of all kinds over numbers, and what plain Python makes of the same numbers.

Contract     `flow(limit)` is the graph: its source counts up to the number in the file `limit`.
             `expected(n)` is what each stream holds when n numbers are through, entry for entry;
             of the alts, and what is below it, only which entries there are.

    count -> raw -> clean -> cleaned -> split -> left  -> pair (join) -> pairs -> keep (SQLite)
                      |                       -> right    either (alts) -> all
                      '-> errors
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.graph import Graph, Message
from penstock.spark import sinks

#: One in so many numbers fails.
BAD = 97


def flow(limit: Path, table: Path) -> Graph:
    graph = Graph("flow", errors="errors")

    @graph.source("raw")
    def count(position: int | None) -> Iterator[tuple[Message, int]]:
        for n in range(0 if position is None else position + 1, int(limit.read_text())):
            yield Message(b"%d" % n, tag=f"t{n % 7}"), n

    @graph.pipe("raw", "cleaned")
    def clean(message: Message) -> Message | list[bytes] | None:
        n = int(message.data)
        if n % BAD == 0:
            raise ValueError(f"{n} is bad")
        if n % 5 == 0:
            return [b"%d a" % n, b"%d b" % n]
        return None if n % 11 == 0 else message

    @graph.fork("cleaned", ["left", "right"])
    def split(message: Message) -> dict[str, Message | list[Message]]:
        if message.offset % 3 == 0:
            return {"left": message, "right": message}
        return {"left" if message.offset % 3 == 1 else "right": [message]}

    @graph.join({"a": "left", "b": "right"}, "pairs")
    def pair(a: Message, b: Message) -> bytes:
        return a.data + b"|" + b.data

    @graph.alts(["left", "right"], "all")
    def either(message: Message) -> Message:
        return Message(message.data, tag=f"{message.stream} {message.offset}")

    @graph.sink("pairs")
    @sinks.sqlite(table, table="pairs")
    def keep(message: Message) -> dict[str, object]:
        return {"n": message.offset, "pair": message.data.decode()}

    return graph


def expected(n: int) -> dict[str, list[tuple[str, bytes]]]:
    """(tag, data) of each stream; of errors the offset in raw instead of data."""
    raw = [(f"t{i % 7}", b"%d" % i) for i in range(n)]
    cleaned: list[tuple[str, bytes]] = []
    errors: list[tuple[str, bytes]] = []
    for i, (tag, data) in enumerate(raw):
        if i % BAD == 0:
            errors.append(("clean", b"%d" % i))
        elif i % 5 == 0:
            cleaned += [("", data + b" a"), ("", data + b" b")]
        elif i % 11:
            cleaned.append((tag, data))
    left = [entry for i, entry in enumerate(cleaned) if i % 3 != 2]
    right = [entry for i, entry in enumerate(cleaned) if i % 3 != 1]
    pairs = [("", a + b"|" + b) for (_, a), (_, b) in zip(left, right, strict=False)]
    both = [
        (f"{name} {i}", data)
        for name, entries in (("left", left), ("right", right))
        for i, (_, data) in enumerate(entries)
    ]
    return {
        "raw": raw,
        "cleaned": cleaned,
        "errors": errors,
        "left": left,
        "right": right,
        "pairs": pairs,
        "all": both,
    }
