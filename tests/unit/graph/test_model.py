"""A graph as data: what its decorators take, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle

from penstock.errors import InvalidError
from penstock.graph import Graph, Message, Stop
from penstock.graph.cycles import find_cycle
from penstock.graph.model import RUNNER
from penstock.graph.requests import Input, Topology
from penstock.graph.rules import check_topology


def orders() -> Graph:
    """The example of the design."""
    graph = Graph("orders", errors="orders-errors")

    @graph.pipe("raw", "clean")
    def clean(message: Message) -> bytes:
        return message.data.strip()

    @graph.join({"o": "clean", "p": "payments"}, "paid")
    def pay(o: Message, p: Message) -> bytes:
        return o.data + b"|" + p.data

    @graph.alts(["eu", "us"], "all")
    def either(message: Message) -> Message:
        return message

    @graph.fork("paid", ["big", "small"])
    def split(message: Message) -> dict[str, Message]:
        return {"big" if len(message.data) > 100 else "small": message}

    @graph.sink("all")
    def store(message: Message, delivery_hash: str) -> None:
        pass

    @graph.source("raw")
    def feed(position: int | None) -> Any:
        yield b"...", 1

    assert clean(Message(b" x ")) == b"x"  # a decorated function is the function
    return graph


def test_the_example_of_the_design_is_this_data() -> None:
    graph = orders()
    graph.check()
    found = {each.name: each for each in graph.processors}
    assert list(found) == ["clean", "pay", "either", "split", "store", "feed"]
    errors = "orders-errors"
    assert [each.topology for each in graph.processors] == [
        Topology("orders", "clean", "pipe", [Input("raw", "raw")], ["clean"], errors),
        Topology(
            "orders", "pay", "join", [Input("o", "clean"), Input("p", "payments")], ["paid"], errors
        ),
        Topology(
            "orders", "either", "alts", [Input("eu", "eu"), Input("us", "us")], ["all"], errors
        ),
        Topology("orders", "split", "fork", [Input("paid", "paid")], ["big", "small"], errors),
        Topology("orders", "store", "sink", [Input("all", "all")], [], errors),
        Topology("orders", "feed", "source", [], ["raw"], errors),
    ]  # fmt: skip
    assert [each.name for each in graph.processors if each.wants_hash] == ["store"]
    assert found["feed"].wants_position
    assert graph.Stop is Stop
    copied = pickle.loads(pickle.dumps(Graph("g", errors="e", semantics="at_least_once")))
    assert (copied.name, copied.errors, copied.semantics) == ("g", "e", "at_least_once")
    assert "6 processors" in repr(graph)


def test_a_function_that_refers_to_its_graph_travels_without_the_others() -> None:
    """`raise graph.Stop(…)`: the others may have connections, or much data."""
    graph = Graph("g")
    lock = threading.Lock()

    @graph.source("raw")
    def feed(position: object) -> Any:
        with lock:
            yield b"x", 1

    @graph.pipe("raw", "clean")
    def clean(message: Message) -> bytes:
        raise graph.Stop("the service is away")

    there = pickle.loads(cloudpickle.dumps(clean))  # type: ignore[no-untyped-call]
    with pytest.raises(Stop, match="is away"):
        there(Message(b"x"))


class Shop(Graph):
    limit = 0


def test_a_graph_travels_with_what_else_it_has() -> None:
    graph = Shop("g", cycles=True)
    graph.limit = 5

    @graph.pipe("raw", "clean")
    def clean(message: Message) -> bytes | None:
        return message.data if int(message.data) > graph.limit else None

    there = pickle.loads(cloudpickle.dumps(clean))  # type: ignore[no-untyped-call]
    assert (there(Message(b"5")), there(Message(b"6"))) == (None, b"6")
    copied = pickle.loads(pickle.dumps(graph))
    assert (type(copied), copied.limit, copied.cycles) == (Shop, 5, True)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_graph_has_its_processors_and_grows_alone(copier: Any) -> None:
    graph = Shop("g", errors="e")
    graph.limit = 5
    graph.pipe("raw", "clean", name="one")(lambda message: None)
    graph.own = graph.Stop, graph  # type: ignore[attr-defined]
    copied = copier(graph)
    assert (type(copied), copied.limit, copied.errors) == (Shop, 5, "e")
    assert copied.topologies == graph.topologies
    copied.pipe("raw", "other", name="two")(lambda message: None)
    assert [each.name for each in graph.processors] == ["one"]
    assert [each.name for each in copied.processors] == ["one", "two"]


def test_errors_and_semantics_are_the_graphs_unless_a_processor_has_its_own() -> None:
    graph = Graph("g", errors="e", semantics="at_least_once")
    graph.pipe("a", "b", name="one")(str)
    graph.pipe("a", "b", name="two", errors=None, semantics="exactly_once")(str)
    graph.pipe("a", "b", name="three", errors="f", on_evicted="skip", step_max=7)(str)
    one, two, three = graph.processors
    assert (one.topology.errors, one.topology.semantics) == ("e", "at_least_once")
    assert (two.topology.errors, two.topology.semantics) == (None, "exactly_once")
    assert (three.topology.errors, three.topology.on_evicted, three.step_max) == ("f", "skip", 7)


def one(message: Message) -> bytes:
    return message.data


def two(a: Message, b: Message) -> bytes:
    return a.data


async def later(message: Message) -> bytes:
    return message.data


def many(message: Message) -> Any:
    yield message.data


def nothing() -> bytes:
    return b""


def hashed(delivery_hash: str, message: Message) -> bytes:
    return message.data


REFUSED: list[tuple[str, Callable[[Graph], Any]]] = [
    ("a pipe is a function, not int", lambda g: g.pipe("a", "b")(5)),  # type: ignore[type-var]
    ("an alts is a function", lambda g: g.alts(["a", "b"], "c")(5)),  # type: ignore[type-var]
    ("has a processor 'one' already", lambda g: (g.pipe("a", "b")(one), g.pipe("a", "c")(one))),
    ("processor name 'x/y' has a '/'", lambda g: g.pipe("a", "b", name="x/y")(one)),
    ("at most 254 bytes", lambda g: g.pipe("a", "b", name="x" * 254)(one)),
    ("stream name of 0 bytes", lambda g: g.pipe("", "b")(one)),
    ("stream name of 256 bytes", lambda g: g.pipe("a", "b" * 256)(one)),
    ("a stream name is text", lambda g: g.pipe("a", 5)(one)),  # type: ignore[arg-type]
    ("inputs are a dict", lambda g: g.join(["a", "b"], "c")(two)),  # type: ignore[arg-type]
    ("a join with 1 inputs", lambda g: g.join({"a": "a"}, "c")(lambda a: None)),
    ("an alts with 1", lambda g: g.alts(["a"], "c")(one)),
    ("inputs are a list", lambda g: g.alts("ab", "c")(one)),
    ("outputs are a list", lambda g: g.fork("a", "bc")(one)),
    ("a fork with 0 outputs", lambda g: g.fork("a", [])(one)),
    ("input 'a' is named twice", lambda g: g.alts(["a", "a"], "c")(one)),
    ("input 's' is named twice", lambda g: g.join({"a": "s", "b": "s"}, "c")(two)),
    ("output 'b' is named twice", lambda g: g.fork("a", ["b", "b"])(one)),
    ("'b' is an output and the error stream", lambda g: g.pipe("a", "b", errors="b")(one)),
    ("called with message", lambda g: g.pipe("a", "b")(nothing)),
    ("called with message", lambda g: g.sink("a")(two)),
    ("function of an alts is called with", lambda g: g.alts(["a", "b"], "c")(nothing)),
    ("called with a, c", lambda g: g.join({"a": "x", "c": "y"}, "z")(two)),
    ("not async", lambda g: g.pipe("a", "b")(later)),
    ("returns its outputs, as a list", lambda g: g.pipe("a", "b")(many)),
    ("order_by is for df=True", lambda g: g.pipe("a", "b", order_by="x")(one)),
    ("cannot be at_most_once", lambda g: g.pipe("a", "b", df=True, semantics="at_most_once")(one)),
    ("a frame has no delivery_hash", lambda g: g.pipe("a", "b", df=True)(
        lambda message, delivery_hash: message)),
    ("called with message", lambda g: g.pipe("a", "b")(hashed)),
    ("a source has no delivery_hash", lambda g: g.source("a")(
        lambda position, delivery_hash: iter([]))),
    ("a source has no delivery_hash", lambda g: g.source("a")(lambda delivery_hash: iter([]))),
    ("semantics is one of", lambda g: g.pipe("a", "b", semantics="twice")(one)),  # type: ignore[arg-type]
    ("on_evicted is one of", lambda g: g.pipe("a", "b", on_evicted="x")(one)),  # type: ignore[arg-type]
    ("step_max is a number from 1 on", lambda g: g.pipe("a", "b", step_max=0)(one)),
    ("step_max is a number from 1 on", lambda g: g.pipe("a", "b", step_max=True)(one)),
    ("g/one: df is True or False", lambda g: g.pipe("a", "b", df=1)(one)),  # type: ignore[arg-type]
    ("order_by is a column or", lambda g: g.pipe("a", "b", df=True, order_by=5)(one)),  # type: ignore[arg-type]
    ("order_by is a column or", lambda g: g.pipe("a", "b", df=True, order_by=[1])(one)),  # type: ignore[list-item]
    ("is a name, not 1", lambda g: g.join({1: "a", 2: "b"}, "c")(lambda **named: b"")),  # type: ignore[dict-item]
]  # fmt: skip


@pytest.mark.parametrize(("text", "declare"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_cannot_be_a_processor_is_refused_when_it_is_declared(
    text: str, declare: Callable[[Graph], Any]
) -> None:
    graph = Graph("g")
    with pytest.raises(InvalidError, match=text):
        declare(graph)
    assert len(graph.processors) <= 1


def test_whether_cycles_are_allowed_is_said_plainly() -> None:
    with pytest.raises(InvalidError, match="cycles is True or False, not 'no'"):
        Graph("g", cycles="no")  # type: ignore[arg-type]


def test_many_inputs_are_looked_through_once() -> None:
    """Not each with each of the others: a broker checks it, and serves nobody meanwhile."""
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    inputs = [Input(each, each) for each in (Counted(f"s{n}") for n in range(1000))]
    check_topology(Topology("g", "p", "alts", inputs, ["out"]))
    assert compared < 10_000


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256])
def test_a_graph_has_a_name_without_slashes(name: str) -> None:
    with pytest.raises(InvalidError, match="graph name"):
        Graph(name)


def test_a_graph_of_no_processors_cannot_run() -> None:
    with pytest.raises(InvalidError, match="no processors"):
        Graph("g").check()


def test_cycles_are_refused_with_the_way_round_unless_they_are_allowed() -> None:
    graph = Graph("g")
    graph.pipe("in", "a", name="begin")(one)
    graph.pipe("a", "b", name="there")(one)
    graph.pipe("b", "a", name="back")(one)
    with pytest.raises(InvalidError, match="cycle: a -> there -> b -> back -> a"):
        graph.check()
    allowed = Graph("g", cycles=True)
    allowed.pipe("a", "a", name="self")(one)
    allowed.check()


def test_errors_that_come_back_to_their_processor_are_a_cycle() -> None:
    graph = Graph("g", errors="e")
    graph.pipe("a", "b")(one)
    graph.sink("e", name="watch")(one)
    with pytest.raises(InvalidError, match="cycle: e -> watch -> e") as caught:
        graph.check()
    assert "errors=" in caught.value.hint
    fine = Graph("g", errors="e")
    fine.pipe("a", "b")(one)
    fine.sink("e", name="watch", errors=None)(one)
    fine.check()


def test_a_diamond_is_no_cycle() -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e")]
    topologies = [
        Topology("g", f"{low}{high}", "pipe", [Input(low, low)], [high]) for low, high in edges
    ]
    assert find_cycle(topologies) is None
    topologies.append(Topology("g", "eb", "pipe", [Input("e", "e")], ["b"]))
    assert find_cycle(topologies) == ["b", "bd", "d", "de", "e", "eb", "b"]


def test_running_loads_the_runner_by_name_and_hands_everything_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = ModuleType(RUNNER)
    calls: list[Any] = []
    runner.run = lambda *args, **options: calls.append((args, options))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, RUNNER, runner)
    graph = orders()
    graph.run("./data", until="forever", step_max=5)
    assert calls == [((graph, "./data"), {"spark": None, "until": "forever", "step_max": 5})]
    with pytest.raises(InvalidError):
        Graph("g").run("./data")
    for wrong in (5, "", b"./data", None):
        with pytest.raises(InvalidError, match="a location is a folder or a URL"):
            graph.run(wrong)  # type: ignore[arg-type]
    assert len(calls) == 1
    graph.run(Path("data"))
    assert calls[1][0] == (graph, Path("data"))
