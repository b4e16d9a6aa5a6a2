"""`penstock graph`: run graphs on Spark, draw them, see where they stand, change them.

Contract     `run` and `show` take FILE.py[:graph], the graph that a Python file declares; `show`
             and `status` the name of one that ran in the location, too. `drop`, `rename` and
             `reset` change what the location knows of a processor, while no runner has it.
Not here     pictures (graph_picture.py), how a graph runs (spark/graphs.py).
"""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from penstock.cli.graph_picture import delivery_of, in_order, mermaid, rows
from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Yes, confirm
from penstock.cli.output import print_json, result_console, say
from penstock.cli.rendering import print_table
from penstock.cli.underway import logged, one_line, told_to_end
from penstock.clock import SystemClock
from penstock.graph import model as graphs
from penstock.graph.model import Graph
from penstock.graph.requests import (
    Changed,
    DropProcessor,
    Graphs,
    GraphStatus,
    Input,
    ProcessorStatus,
    RenameProcessor,
    ResetProcessor,
    ShowGraphs,
    Topology,
)
from penstock.words import counted

app = typer.Typer(
    help="Processors over streams, each message through each of them exactly once, on Spark.",
    no_args_is_help=True,
    epilog="Example: penstock graph run examples/orders.py --location ./data",
)

Place = Annotated[
    str, typer.Argument(metavar="FILE.py[:graph]", help="The file that declares the graph.")
]
Name = Annotated[str, typer.Argument(metavar="GRAPH", help="The graph's name.")]
Processor = Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor's name.")]


class Until(StrEnum):
    IDLE = "idle"
    FOREVER = "forever"


class Begin(StrEnum):
    KEEP = "keep"
    FIRST = "first"
    NEW = "new"


def _load(place: str) -> Graph:
    graphfile = importlib.import_module("penstock.spark.graphfile")
    graph: Graph = graphfile.load_graph(place)
    graph.check()
    return graph


# -- running


@app.command(epilog="Example: penstock graph run examples/orders.py:graph --until forever")
def run(
    place: Place,
    until: Annotated[
        Until, typer.Option("--until", help="idle: end when there is nothing more to do.")
    ] = Until.IDLE,
    step_max: Annotated[
        int | None, typer.Option("--step-max", min=1, help="Messages of one step at most.")
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Spark's: local[*], or a cluster's spark://host:7077.")
    ] = "local[*]",
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Run a graph. Ctrl-C ends it, with a report; the next run goes on where it was."""
    graph = _load(place)
    runner = importlib.import_module(graphs.RUNNER)
    console = Console(stderr=True)
    with logged(console), one_line(console, "Spark starts") as tell:
        spark = importlib.import_module("penstock.spark").session(
            f"penstock {graph.name}", master, {"spark.scheduler.mode": "FAIR"}
        )
        try:
            with (
                runner.start(graph, location, spark=spark, step_max=step_max) as running,
                told_to_end(running.stop) as told,
            ):
                report = running.wait(until.value, progress=tell and (lambda r: tell(_line(r))))
        finally:
            spark.stop()
    if as_json:
        print_json(report)
    else:
        _print_report(report, graph)
    if told.is_set() and until == Until.IDLE:
        raise KeyboardInterrupt  # it did not come to the end that was asked for


def _line(report: Any) -> str:
    done = report.processors
    parts = [
        counted(sum(each.steps for each in done), "step"),
        counted(sum(each.delivered for each in done), "message"),
        f"{sum(each.written for each in done):,} written",
    ]
    failed = sum(each.failed for each in done)
    return ", ".join([*parts, *([counted(failed, "error")] if failed else [])])


def _print_report(report: Any, graph: Graph) -> None:
    """One that was told to end at once may have started only some of its processors."""
    done = {each.processor: each for each in report.processors}
    print_table(
        ["processor", "steps", "messages", "written", "errors", "nothing", "skipped"],
        [
            (r.processor, r.steps, r.delivered, r.written, r.failed, r.nil, r.skipped)
            for r in (
                done[each.processor]
                for each in in_order(graph.topologies)
                if each.processor in done
            )
        ],
        title=f"{report.graph}, {report.seconds:.1f} s",
        counts=["steps", "messages", "written", "errors", "nothing", "skipped"],
        minor=["skipped", "nothing", "steps"],
    )


# -- looking


@app.command(epilog="Example: penstock graph show examples/orders.py --mermaid > orders.mmd")
def show(
    place: Annotated[
        str,
        typer.Argument(metavar="FILE.py[:graph] | GRAPH", help="A file, or one that ran here."),
    ],
    picture: Annotated[
        bool, typer.Option("--mermaid", help="A flowchart in Mermaid's language.")
    ] = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Draw a graph: who reads what, who writes what, and how safe it is."""
    lags: dict[tuple[str, str], int] = {}
    delivery: dict[str, str] = {}
    if _is_file(place):
        graph = _load(place)
        name, topologies = graph.name, graph.topologies
        delivery = {each.name: _delivery(each) for each in graph.processors}
    else:
        found = _status(location, place)[0]
        name, topologies = found.graph, _topologies(found)
        delivery = {each.processor: _stored_delivery(each) for each in found.processors}
        lags = {(p.processor, t.stream): t.available for p in found.processors for t in p.tailers}
    if picture:
        typer.echo(mermaid(topologies, lags), nl=False)
    elif as_json:
        print_json({"graph": name, "processors": topologies, "delivery": delivery})
    else:
        print_table(
            ["reads", "processor", "kind", "writes", "errors", "delivery"],
            rows(topologies, delivery),
            title=name,
        )


def _delivery(processor: graphs.Processor) -> str:
    word = ""
    topology = processor.topology
    if topology.kind == "source":
        asks = processor.wants_position
        word = "exactly once" if asks else "at least once: it takes no position"
    sinks = importlib.import_module("penstock.spark.sinks")
    if isinstance(processor.function, sinks.TableSink) and topology.semantics != "at_most_once":
        word = "exactly once"
    return delivery_of(topology, word)


def _stored_delivery(status: ProcessorStatus) -> str:
    """What functions are like is not stored."""
    word = ""
    if status.kind == "source":
        word = "exactly once"
        if status.position is None:
            word += ", if it takes a position"
    elif status.kind == "sink" and status.semantics == "exactly_once":
        word = "at least once, with a hash; a ready-made sink exactly once"
    return delivery_of(_topology(status), word)


@app.command(epilog="Example: penstock graph status orders --json")
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="GRAPH", help="Its name; all graphs without it.")
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Where graphs stand: messages that wait, what was done, and why one does not go on."""
    found = _status(location, name)
    if as_json:
        print_json([_plain(graph) for graph in found])
        return
    if not found:
        result_console().print("no graph ran here yet", markup=False)
    for graph in found:
        ordered = {t.processor: i for i, t in enumerate(in_order(_topologies(graph)))}
        print_table(
            ["processor", "state", "waiting", "messages", "written", "errors", "at"],
            [
                (
                    each.processor, _state(each), _waiting(each), each.delivered,
                    each.written, each.failed, _clock(each.committed_ms),
                )
                for each in sorted(graph.processors, key=lambda each: ordered[each.processor])
            ],
            title=graph.graph,
            left=["waiting"],
            counts=["messages", "written", "errors"],
            minor=["at", "written", "messages", "errors"],
        )  # fmt: skip


def _status(location: str, name: str | None) -> list[GraphStatus]:
    with opened(location) as db:
        found = db.graphs.ask(ShowGraphs(name))
    assert isinstance(found, Graphs), "the status of graphs"
    return found.graphs


def _is_file(place: str) -> bool:
    head = place.rpartition(":")[0] or place
    return head.endswith(".py") or Path(place).is_file() or place.endswith(".py")


def _topologies(graph: GraphStatus) -> list[Topology]:
    return [_topology(each) for each in graph.processors]


def _topology(each: ProcessorStatus) -> Topology:
    return Topology(
        each.graph, each.processor, each.kind,
        [Input(tailer.alias, tailer.stream) for tailer in each.tailers],
        each.outputs, each.errors, each.semantics, each.on_evicted,
    )  # fmt: skip


def _state(each: ProcessorStatus) -> str:
    """The most important thing first."""
    if each.failure is not None:
        # Of at_least_once and of sources nothing is stored that could be counted.
        tried = f"; tried {each.tries} times" if each.tries > 1 else ""
        return f"failed: {each.failure}{tried}{_again(each)}"
    if each.reset:
        return "reset: waits for its next run"
    if each.pending:
        return "in a step"
    return "has work" if any(tailer.available for tailer in each.tailers) else "idle"


def _again(each: ProcessorStatus) -> str:
    """When it is tried again, which its runner does: one that the broker never saw, or that was not
    heard of when the time came, has ended."""
    if each.retry_ms is None:
        return ""
    over = each.retry_ms < SystemClock().wall_ms()
    if each.seen_ms is None or (over and each.seen_ms < each.retry_ms):
        return "; again when it runs"
    return f"; again at {_clock(each.retry_ms)}"


def _waiting(each: ProcessorStatus) -> str:
    """Messages, by input where there are several."""
    if len(each.tailers) <= 1:
        return "".join(f"{tailer.available:,}" for tailer in each.tailers)
    return ", ".join(f"{tailer.stream} {tailer.available:,}" for tailer in each.tailers)


def _clock(time_ms: int | None) -> str:
    """The time of day, where that is enough to know when it was."""
    if time_ms is None:
        return ""
    time = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).astimezone()
    return time.strftime("%H:%M:%S" if time.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def _plain(graph: GraphStatus) -> dict[str, Any]:
    """With the lag of each input, which a tailer only computes."""
    plain: dict[str, Any] = msgspec.to_builtins(graph)
    for each, found in zip(plain["processors"], graph.processors, strict=True):
        for tailer, known in zip(each["tailers"], found.tailers, strict=True):
            tailer["lag"] = known.available
    return plain


# -- changing


@app.command(epilog="Example: penstock graph drop orders audit --yes")
def drop(
    name: Name,
    processor: Processor,
    yes: Yes = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Forget a processor: its positions, and a step that is not delivered."""
    confirm(f"Forget processor {processor} of graph {name}, with its positions?", yes)
    _change(location, DropProcessor(name, processor))
    say({"dropped": processor}, f"{name}/{processor} is forgotten", as_json)


@app.command(epilog="Example: penstock graph rename orders clean tidy")
def rename(
    name: Name,
    processor: Processor,
    to: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """A processor goes on under another name, where it stands."""
    _change(location, RenameProcessor(name, processor, to))
    say({"renamed": processor, "to": to}, f"{name}/{processor} is {name}/{to} now", as_json)


@app.command(epilog="Example: penstock graph reset orders clean --start first --yes")
def reset(
    name: Name,
    processor: Processor,
    start: Annotated[
        Begin,
        typer.Option("--start", help="Inputs keep their position, or begin at the first or new."),
    ] = Begin.KEEP,
    yes: Yes = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let the next run bring another kind and other inputs."""
    confirm(f"Reset processor {processor} of graph {name}? Messages may come again.", yes)
    _change(location, ResetProcessor(name, processor, start.value))
    say(
        {"reset": processor, "start": start.value},
        f"{name}/{processor} waits for its next run",
        as_json,
    )


def _change(location: str, request: DropProcessor | RenameProcessor | ResetProcessor) -> None:
    with opened(location) as db:
        changed = db.graphs.ask(request)
    assert isinstance(changed, Changed), "what was asked for"
