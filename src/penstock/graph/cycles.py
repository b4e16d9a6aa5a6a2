"""Cycles of a graph: from a stream through processors back to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.graph.requests import Topology


def find_cycle(topologies: Sequence[Topology]) -> list[str] | None:
    """A way round, as streams and processors in turn, or None. Error streams are outputs too."""
    onward: dict[str, list[tuple[str, str]]] = {}
    for topology in topologies:
        ends = [*topology.outputs, *((topology.errors,) if topology.errors else ())]
        for each in topology.inputs:
            onward.setdefault(each.stream, []).extend((topology.processor, end) for end in ends)
    done: set[str] = set()
    for start in onward:
        path: list[str] = [start]  # streams at even places, the processors between them
        stack = [iter(onward[start])]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                done.add(path.pop())
                del path[-1:]  # the processor that led to it
                continue
            processor, stream = step
            if stream in path[::2]:
                begin = path[::2].index(stream) * 2
                return [*path[begin:], processor, stream]
            if stream not in done:
                path += [processor, stream]
                stack.append(iter(onward.get(stream, ())))
    return None
