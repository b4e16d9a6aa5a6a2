"""A graph as text and as a Mermaid picture. Pure.

Contract     `rows` gives a line per processor, in the order in which messages pass them: what it
             reads, its name and kind, what it writes, and how safely. `mermaid` gives a flowchart
             that GitHub and other pages draw: streams are round, processors are boxes, ways to
             error streams are dotted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.graph.requests import Topology

_SHAPES = {"source": ('[/"', '"/]'), "sink": ('[\\"', '"\\]')}
_BOX = ('["', '"]')


def in_order(topologies: Sequence[Topology]) -> list[Topology]:
    """Sources first; whoever reads a stream behind those who write it. Cycles are left as given."""
    left, ordered = list(topologies), list[Topology]()
    while left:
        unwritten = {stream for each in left for stream in _written(each)}
        ready = [e for e in left if not unwritten.intersection(i.stream for i in e.inputs)]
        for each in ready or left[:1]:
            ordered.append(each)
            left.remove(each)
    return ordered


def rows(
    topologies: Sequence[Topology], delivery: Mapping[str, str]
) -> list[tuple[str, str, str, str, str, str]]:
    """reads, processor, kind, writes, errors, delivery; `delivery`: of those that are known."""
    return [
        (
            ", ".join(_read(each)),
            each.processor,
            each.kind,
            ", ".join(each.outputs),
            each.errors or "",
            delivery.get(each.processor) or delivery_of(each),
        )
        for each in in_order(topologies)
    ]


def _read(topology: Topology) -> list[str]:
    return [
        each.stream if each.alias == each.stream else f"{each.alias}={each.stream}"
        for each in topology.inputs
    ]


def delivery_of(topology: Topology, word: str = "") -> str:
    """`word`: how often a message comes, where more is known than the topology tells."""
    if not word and topology.kind == "sink" and topology.semantics == "exactly_once":
        word = "at least once, with a hash"
    word = word or topology.semantics.replace("_", " ")
    return f"{word}; skips what is evicted" if topology.on_evicted == "skip" else word


def _written(topology: Topology) -> list[str]:
    return [*topology.outputs, *([topology.errors] if topology.errors else [])]


def mermaid(
    topologies: Sequence[Topology], lags: Mapping[tuple[str, str], int] | None = None
) -> str:
    """`lags`: (processor, stream) -> messages that wait; shown on their arrows."""
    streams: dict[str, str] = {}
    for each in in_order(topologies):
        for stream in (*(i.stream for i in each.inputs), *_written(each)):
            streams.setdefault(stream, f"s{len(streams)}")
    lines = ["flowchart LR"]
    lines += [f'  {key}(["{_escaped(name)}"])' for name, key in streams.items()]
    for number, each in enumerate(in_order(topologies)):
        key = f"p{number}"
        begin, end = _SHAPES.get(each.kind, _BOX)
        lines.append(f"  {key}{begin}{_escaped(each.processor)}<br/>{each.kind}{end}")
        for one in each.inputs:
            lag = (lags or {}).get((each.processor, one.stream), 0)
            arrow = f"-->|{lag:,}|" if lag else "-->"
            lines.append(f"  {streams[one.stream]} {arrow} {key}")
        lines += [f"  {key} --> {streams[stream]}" for stream in each.outputs]
        if each.errors is not None:
            lines.append(f"  {key} -.-> {streams[each.errors]}")
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    """Mermaid's own way: everything that could end a label, as its number."""
    return "".join(char if char.isalnum() or char in "-_. " else f"#{ord(char)};" for char in name)
