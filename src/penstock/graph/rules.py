"""What a processor has to be: names, streams, kinds, the arguments of its function. Pure.

Contract     Whatever is wrong is an InvalidError that names the processor. Decorators ask as soon
             as one is declared; the broker asks again, whoever declares it.
Rules        R1  A processor's name is unique within its graph; graph and processor names have no
                 "/", for the id that messages are hashed with is `graph/processor`.
             R2  A processor reads a stream once. Its outputs and its error stream are different.
             R3  A kind has its number of inputs and outputs.
             R4  The arguments of a function fit its kind: one message; of a join, one argument per
                 alias; of a source, `position` or nothing. `delivery_hash` may be asked for by all
                 others.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from penstock.codec.catalogue import NAME_BYTES_MAX, check_name
from penstock.errors import InvalidError
from penstock.graph.requests import Kind, OnEvicted, Semantics, Topology
from penstock.words import one_of_kind

Function = Callable[..., Any]

HASH_ARGUMENT: Final = "delivery_hash"
_CHOICES: Final = {"kind": Kind, "semantics": Semantics, "on_evicted": OnEvicted}


def check_processor_name(graph: str, processor: str) -> None:
    """R1."""
    checked_name("graph", graph)
    checked_name("processor", processor)
    if len(f"{graph}/{processor}".encode()) > NAME_BYTES_MAX:
        raise InvalidError(
            f"'{graph}/{processor}': both together have at most {NAME_BYTES_MAX - 1} bytes"
        )


def check_topology(topology: Topology) -> None:
    """What can be said of one processor alone; for the broker too, whoever declares it."""
    check_processor_name(topology.graph, topology.processor)
    who = topology.id
    for field in ("kind", "semantics", "on_evicted"):
        one_of(f"{who}: {field}", getattr(topology, field), _CHOICES[field])
    streams = [each.stream for each in topology.inputs]
    for stream in (*streams, *topology.outputs):
        checked_stream(stream)
    if topology.errors is not None:
        checked_stream(topology.errors)
    aliases = [each.alias for each in topology.inputs]
    for alias in aliases:
        check_name("input", alias)
    for what, names in (("input", streams), ("input", aliases), ("output", topology.outputs)):
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise InvalidError(f"{who}: {what} {twice!r} is named twice")
    if topology.errors is not None and topology.errors in topology.outputs:
        raise InvalidError(
            f"{who}: {topology.errors!r} is an output and the error stream",
            hint="a message has an output or an error: give errors= another stream, or None",
        )
    a_kind = one_of_kind(topology.kind)
    low, high = {"source": (0, 0), "join": (2, None), "alts": (2, None)}.get(topology.kind, (1, 1))
    if len(streams) < low or (high is not None and len(streams) > high):
        raise InvalidError(f"{who}: {a_kind} with {len(streams)} inputs")
    low, high = {"sink": (0, 0), "fork": (1, None)}.get(topology.kind, (1, 1))
    if len(topology.outputs) < low or (high is not None and len(topology.outputs) > high):
        raise InvalidError(f"{who}: {a_kind} with {len(topology.outputs)} outputs")


def check_arguments(topology: Topology, function: Function, *, frames: bool) -> set[str]:
    """R4. -> those that are asked for by name"""
    who = topology.id
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidError(f"{who}: functions are plain ones, not async")
    if topology.kind != "source" and inspect.isgeneratorfunction(function):
        raise InvalidError(f"{who}: a function returns its outputs, as a list where there are many")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return set()  # a builtin tells nothing
    named = {each.name for each in parameters}
    wants = {HASH_ARGUMENT} & named
    if topology.kind == "source":
        if HASH_ARGUMENT in wants:
            raise InvalidError(f"{who}: a source has no {HASH_ARGUMENT}: it has no message")
        wants |= {"position"} if parameters else set()
    expected = _expected(topology, parameters)
    bound: dict[str, None] = dict.fromkeys(wants & {HASH_ARGUMENT})
    signature = inspect.signature(function)
    try:
        if topology.kind == "join":
            signature.bind(**dict.fromkeys(expected), **bound)
        else:
            signature.bind(*expected, **bound)
    except TypeError as error:
        takes = ", ".join(expected) or "nothing"
        raise InvalidError(
            f"{who}: the function of {one_of_kind(topology.kind)} is called with {takes}: {error}"
        ) from None
    if frames and HASH_ARGUMENT in wants:
        raise InvalidError(f"{who}: a frame has no {HASH_ARGUMENT}: its rows carry their own")
    return wants


def _expected(topology: Topology, parameters: list[inspect.Parameter]) -> list[str]:
    match topology.kind:
        case "join":
            return [each.alias for each in topology.inputs]
        case "source":
            return ["position"] if parameters else []
        case _:
            return ["message"]


def checked_name(word: str, name: str) -> str:
    check_name(word, name)
    if "/" in name:
        raise InvalidError(f"{word} name {name!r} has a '/'", hint="it parts graph and processor")
    return name


def checked_stream(name: str) -> str:
    check_name("stream", name)
    return name


def checked_streams(what: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidError(f"{what} are a list of streams")
    return list(names)


def checked_aliases(inputs: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(inputs, Mapping):
        raise InvalidError("a join's inputs are a dict: argument -> stream")
    for alias in inputs:
        if not isinstance(alias, str):
            raise InvalidError(f"an argument of a join's function is a name, not {alias!r}")
    return inputs


def checked_columns(who: str, names: str | Sequence[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else names
    if not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise InvalidError(f"{who}: order_by is a column or a list of them, not {names!r}")
    return tuple(found)


def checked_flag(what: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidError(f"{what} is True or False, not {value!r}")
    return value


def checked_step_max(what: str, value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidError(f"{what} is a number from 1 on, not {value!r}")
    return value


def checked_location(location: str | Path) -> str:
    if not isinstance(location, str | Path) or not str(location):
        raise InvalidError(
            f"a location is a folder or a URL, not {location!r}", hint='graph.run("./data")'
        )
    return str(location)


def one_of(what: str, value: Any, choices: Any) -> Any:
    if value not in get_args(choices):
        raise InvalidError(f"{what} is one of {', '.join(get_args(choices))}, not {value!r}")
    return value
