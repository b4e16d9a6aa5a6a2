"""A graph as data: named processors over streams, declared with decorators.

Contract     Each decorator checks what it is given at once (rules.py) and returns the function as
             it is. `check` looks at the whole: it runs before anything is started.
Cycles       through outputs or error streams are refused unless the graph allows them: what comes
             round again may never come to rest.
Not here     what is stored of it (state.py), how it runs (spark/).
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from penstock.errors import InvalidError
from penstock.graph.cycles import find_cycle
from penstock.graph.message import Stop
from penstock.graph.requests import Input, Kind, OnEvicted, Semantics, Topology
from penstock.graph.rules import (
    HASH_ARGUMENT,
    Function,
    check_arguments,
    check_topology,
    checked_aliases,
    checked_columns,
    checked_flag,
    checked_location,
    checked_name,
    checked_step_max,
    checked_stream,
    checked_streams,
    one_of,
)
from penstock.words import one_of_kind

F = TypeVar("F", bound=Function)

#: Where the runner is: the one place above this layer that is reached from here, by name.
RUNNER = "penstock.spark.graphs"


class _Inherit(Enum):
    INHERIT = "the graph's"


INHERIT: Final = _Inherit.INHERIT
Errors = str | None | _Inherit


class Processor(msgspec.Struct, frozen=True):
    topology: Topology
    function: Function
    frames: bool = False  # DataFrame -> DataFrame
    order_by: tuple[str, ...] = ()  # of frames: what their rows follow
    wants_hash: bool = False
    #: Of a source: whether it is told where to go on. One that is not is at least once.
    wants_position: bool = False
    step_max: int | None = None

    @property
    def name(self) -> str:
        return self.topology.processor


class Graph:
    """Processors over streams: sources, pipes, joins, alts, forks and sinks."""

    Stop = Stop

    def __init__(
        self,
        name: str,
        *,
        errors: str | None = None,
        semantics: Semantics = "exactly_once",
        cycles: bool = False,
    ) -> None:
        """`errors` is the stream for messages whose function failed; each processor may have its
        own. Without one they count as delivered and are only logged."""
        self.name = checked_name("graph", name)
        self.errors = None if errors is None else checked_stream(errors)
        self.semantics: Semantics = one_of("semantics", semantics, Semantics)
        self.cycles = checked_flag("cycles", cycles)
        self._processors: dict[str, Processor] = {}

    @property
    def processors(self) -> list[Processor]:
        """In the order of their declaration."""
        return list(self._processors.values())

    @property
    def topologies(self) -> list[Topology]:
        return [processor.topology for processor in self._processors.values()]

    # -- the kinds

    def source(
        self,
        output: str,
        *,
        name: str | None = None,
        errors: Errors = INHERIT,
        step_max: int | None = None,
    ) -> Callable[[F], F]:
        """`def feed(position)` yields (output, position) and goes on after the last committed
        position, None at first: exactly once. `def feed()` yields outputs: at least once."""

        def add(function: F) -> F:
            self._add("source", function, name, [], [output], errors, step_max=step_max)
            return function

        return add

    def pipe(
        self,
        source: str,
        output: str,
        *,
        name: str | None = None,
        errors: Errors = INHERIT,
        semantics: Semantics | None = None,
        on_evicted: OnEvicted = "stop",
        df: bool = False,
        order_by: str | Sequence[str] = (),
        step_max: int | None = None,
    ) -> Callable[[F], F]:
        """One message in, any number out: bytes, a Message, a list of them, or None."""

        def add(function: F) -> F:
            self._add(
                "pipe", function, name, [Input(source, source)], [output], errors,
                semantics, on_evicted, df, order_by, step_max,
            )  # fmt: skip
            return function

        return add

    def join(
        self,
        inputs: Mapping[str, str],
        output: str,
        *,
        name: str | None = None,
        errors: Errors = INHERIT,
        semantics: Semantics | None = None,
        on_evicted: OnEvicted = "stop",
        df: bool = False,
        order_by: str | Sequence[str] = (),
        step_max: int | None = None,
    ) -> Callable[[F], F]:
        """The k-th entry of each input, by position; `inputs`: argument -> stream."""
        aliases = checked_aliases(inputs)

        def add(function: F) -> F:
            self._add(
                "join", function, name, [Input(*pair) for pair in aliases.items()], [output],
                errors, semantics, on_evicted, df, order_by, step_max,
            )  # fmt: skip
            return function

        return add

    def alts(
        self,
        inputs: Sequence[str],
        output: str,
        *,
        name: str | None = None,
        errors: Errors = INHERIT,
        semantics: Semantics | None = None,
        on_evicted: OnEvicted = "stop",
        df: bool = False,
        order_by: str | Sequence[str] = (),
        step_max: int | None = None,
    ) -> Callable[[F], F]:
        """One message from whichever input has something; `message.stream` says which."""
        streams = checked_streams("inputs", inputs)

        def add(function: F) -> F:
            self._add(
                "alts", function, name, [Input(each, each) for each in streams], [output], errors,
                semantics, on_evicted, df, order_by, step_max,
            )  # fmt: skip
            return function

        return add

    def fork(
        self,
        source: str,
        outputs: Sequence[str],
        *,
        name: str | None = None,
        errors: Errors = INHERIT,
        semantics: Semantics | None = None,
        on_evicted: OnEvicted = "stop",
        df: bool = False,
        order_by: str | Sequence[str] = (),
        step_max: int | None = None,
    ) -> Callable[[F], F]:
        """One message in, outputs for several streams, all or none: a dict, stream -> output."""
        streams = checked_streams("outputs", outputs)

        def add(function: F) -> F:
            self._add(
                "fork", function, name, [Input(source, source)], streams, errors, semantics,
                on_evicted, df, order_by, step_max,
            )  # fmt: skip
            return function

        return add

    def sink(
        self,
        source: str,
        *,
        name: str | None = None,
        errors: Errors = INHERIT,
        semantics: Semantics | None = None,
        on_evicted: OnEvicted = "stop",
        df: bool = False,
        order_by: str | Sequence[str] = (),
        step_max: int | None = None,
    ) -> Callable[[F], F]:
        """Side effects: at least once. `delivery_hash`, the same on every attempt, is what makes
        them idempotent."""

        def add(function: F) -> F:
            self._add(
                "sink", function, name, [Input(source, source)], [], errors, semantics,
                on_evicted, df, order_by, step_max,
            )  # fmt: skip
            return function

        return add

    def _add(
        self,
        kind: Kind,
        function: Function,
        name: str | None,
        inputs: list[Input],
        outputs: list[str],
        errors: Errors,
        semantics: Semantics | None = None,
        on_evicted: OnEvicted = "stop",
        frames: bool = False,
        order_by: str | Sequence[str] = (),
        step_max: int | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidError(f"{one_of_kind(kind)} is a function, not {type(function).__name__}")
        named = checked_name("processor", name or str(getattr(function, "__name__", "")))
        topology = Topology(
            self.name, named, kind, inputs, outputs,
            errors=self.errors if isinstance(errors, _Inherit) else errors,
            semantics=one_of("semantics", semantics or self.semantics, Semantics),
            on_evicted=one_of("on_evicted", on_evicted, OnEvicted),
        )  # fmt: skip
        check_topology(topology)
        if named in self._processors:
            raise InvalidError(
                f"graph {self.name!r} has a processor {named!r} already", hint="give it a name="
            )
        checked_flag(f"{topology.id}: df", frames)
        ordered = checked_columns(topology.id, order_by)
        if ordered and not frames:
            raise InvalidError(f"{topology.id}: order_by is for df=True")
        if frames and topology.semantics == "at_most_once":
            raise InvalidError(f"{topology.id}: df=True cannot be at_most_once: Spark may run a "
                               "frame again")  # fmt: skip
        checked_step_max(f"{topology.id}: step_max", step_max)
        wants = check_arguments(topology, function, frames=frames)
        self._processors[named] = Processor(
            topology, function, frames, ordered, HASH_ARGUMENT in wants, "position" in wants,
            step_max,
        )  # fmt: skip

    # -- the whole

    def check(self) -> None:
        if not self._processors:
            raise InvalidError(f"graph {self.name!r} has no processors")
        cycle = None if self.cycles else find_cycle(self.topologies)
        if cycle is not None:
            raise InvalidError(
                f"graph {self.name!r} has a cycle: {' -> '.join(cycle)}",
                hint="break it, with another errors= if it is one of errors, or allow it: "
                "Graph(…, cycles=True)",
            )

    def run(
        self,
        location: str | Path,
        spark: Any = None,
        until: Literal["idle", "forever"] = "idle",
        **options: Any,
    ) -> Any:
        """Run it on Spark, embedded where no session is given, until there is nothing more to do
        or for ever."""
        self.check()
        checked_location(location)
        runner = importlib.import_module(RUNNER)
        return runner.run(self, location, spark=spark, until=until, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled without its processors: a function that says `graph.Stop` refers to the graph,
        and would take all the other functions to Spark's workers, and what those refer to."""
        return {**self.__dict__, "_processors": {}}

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__, _processors=dict(self._processors))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __repr__(self) -> str:
        return f"<penstock.Graph {self.name!r} of {len(self._processors)} processors>"
