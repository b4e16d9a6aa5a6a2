"""Graphs as text and as Mermaid's flowcharts."""

from __future__ import annotations

from penstock.cli.graph_picture import in_order, mermaid, rows
from penstock.graph import Graph, Message
from penstock.graph.requests import Topology


def declared() -> list[Topology]:
    graph = Graph("g", errors="oops")

    @graph.sink("c", on_evicted="skip")
    def last(message: Message) -> None: ...

    @graph.join({"x": "a", "y": "b"}, "c", errors=None, semantics="at_least_once")
    def middle(x: Message, y: Message) -> None: ...

    @graph.source("a")
    def first(position: object) -> None: ...

    return graph.topologies


def test_processors_stand_behind_those_that_feed_them() -> None:
    assert [each.processor for each in in_order(declared())] == ["first", "middle", "last"]


def test_cycles_are_drawn_too() -> None:
    graph = Graph("g", cycles=True)

    @graph.pipe("a", "b")
    def there(message: Message) -> None: ...

    @graph.pipe("b", "a")
    def back(message: Message) -> None: ...

    assert [each.processor for each in in_order(graph.topologies)] == ["there", "back"]


def test_rows_say_who_reads_and_writes_what_and_how_safely() -> None:
    assert rows(declared(), {"first": "at least once: it takes no position"}) == [
        ("", "first", "source", "a", "oops", "at least once: it takes no position"),
        ("x=a, y=b", "middle", "join", "c", "", "at least once"),
        ("c", "last", "sink", "", "oops", "at least once, with a hash; skips what is evicted"),
    ]


def test_a_picture_has_streams_processors_and_what_waits() -> None:
    assert mermaid(declared(), {("middle", "b"): 1200}).splitlines() == [
        "flowchart LR",
        '  s0(["a"])',
        '  s1(["oops"])',
        '  s2(["b"])',
        '  s3(["c"])',
        '  p0[/"first<br/>source"/]',
        "  p0 --> s0",
        "  p0 -.-> s1",
        '  p1["middle<br/>join"]',
        "  s0 --> p1",
        "  s2 -->|1,200| p1",
        "  p1 --> s3",
        '  p2[\\"last<br/>sink"\\]',
        "  s3 --> p2",
        "  p2 -.-> s1",
    ]


def test_names_cannot_break_out_of_a_picture() -> None:
    topology = Topology("g", 'x"]; y', "pipe", [], ["<b>"])
    picture = mermaid([topology])
    assert '["x#34;#93;#59; y<br/>pipe"]' in picture
    assert "<b>" not in picture
