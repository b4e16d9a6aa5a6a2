"""`penstock graph`: what can be seen and changed of graphs, without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.graph import Graph, Message
from penstock.graph.requests import (
    CommitStep,
    NoteFailure,
    Range,
    Start,
    Started,
    TakeSnapshot,
)

FILE = """
from penstock.graph import Graph
from penstock.spark import sinks

graph = Graph("shop", errors="oops")

@graph.source("raw")
def feed():
    yield b"x"

@graph.pipe("raw", "clean")
def clean(message):
    return message.data

@graph.sink("clean")
@sinks.file("lines")
def keep(message):
    return message.data
"""


def begun(db: penstock.Database, name: str) -> Started:
    """A pipe of this graph, as if a runner had it."""
    graph = Graph(name)

    @graph.pipe("in", "out")
    def copy(message: Message) -> bytes:
        return message.data

    started = db.graphs.ask(Start(graph.topologies[0]))
    assert isinstance(started, Started)
    return started


def test_a_file_is_drawn_as_a_table_a_flowchart_and_json(sh: Any, tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FILE)
    assert sh("graph", "show", str(file)) == 0
    assert "at least once: it takes no position" in sh.out
    rows = [line.split("│")[2:4] for line in sh.out.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["feed", "source"], ["clean", "pipe"], ["keep", "sink"],
    ]  # fmt: skip
    assert sh("graph", "show", f"{file}:graph", "--mermaid") == 0
    assert sh.out.startswith("flowchart LR\n")
    shown = sh.json("graph", "show", str(file))
    assert [each["processor"] for each in shown["processors"]] == ["feed", "clean", "keep"]
    assert shown["delivery"]["keep"] == "exactly once"


def test_the_picture_says_how_safe_a_processor_is(sh: Any, tmp_path: Path) -> None:
    """A sink that leaves out what it has loses what is not brought again; a source with positions
    commits them with its outputs, whatever the others do."""
    file = tmp_path / "shop.py"
    careless = FILE.replace('errors="oops"', 'semantics="at_most_once"')
    file.write_text(careless.replace("feed()", "feed(position)").replace('b"x"', 'b"x", 1'))
    assert sh.json("graph", "show", str(file))["delivery"] == {
        "feed": "exactly once", "clean": "at most once", "keep": "at most once",
    }  # fmt: skip


def test_files_and_graphs_that_are_not_there_are_not_found(sh: Any, tmp_path: Path) -> None:
    for words in (("run", "none.py"), ("show", "none.py"), ("show", "none"), ("status", "none")):
        assert sh("graph", *words) == 3, words
    (tmp_path / "bad.py").write_text("1 / 0\n")
    assert sh("graph", "show", str(tmp_path / "bad.py")) == 2
    assert "line 1: ZeroDivisionError" in sh.err


def test_a_retry_that_nobody_is_left_to_do_is_not_promised(
    sh: Any, db: penstock.Database, tmp_path: Path
) -> None:
    places = [db.location, str(tmp_path / "ended")]
    started = begun(db, "left")
    db.graphs.ask(NoteFailure(started.processor, started.epoch, "no disk", 1))
    with penstock.open(places[1]) as other:
        started = begun(other, "left")
        other.graphs.ask(NoteFailure(started.processor, started.epoch, "no disk", 60_000))
    for place in places:
        assert sh("graph", "status", "left", "--location", place) == 0
        told = " ".join(sh.out.replace("│", " ").split())
        assert "failed: no disk; again when it runs" in told, place


def test_the_status_tells_what_waits_and_why_it_fails(sh: Any, db: penstock.Database) -> None:
    db.stream("in").write_many([b"a", b"b", b"c"])
    started = begun(db, "failing")
    assert sh("graph", "status", "failing") == 0
    assert "has work" in sh.out
    db.graphs.ask(NoteFailure(started.processor, started.epoch, "no disk", 60_000))
    assert sh("graph", "status", "failing") == 0
    assert "failed: no disk; again at" in " ".join(sh.out.replace("│", " ").split())
    db.stream("in").write(b"d")
    ranges = [Range("in", 0, 3)]
    db.graphs.ask(TakeSnapshot(started.processor, started.epoch, started.tail, ranges))
    for _ in range(2):
        started = begun(db, "failing")
    db.graphs.ask(NoteFailure(started.processor, started.epoch, "no disk", 60_000))
    assert sh("graph", "status", "failing") == 0
    told = " ".join(sh.out.replace("│", " ").split())
    assert "failed: no disk; tried 3 times; again at" in told
    (graph,) = sh.json("graph", "status", "failing")
    (processor,) = graph["processors"]
    assert (processor["failure"], processor["tailers"][0]["lag"]) == ("no disk", 4)
    assert sh("graph", "show", "failing", "--mermaid") == 0
    assert "-->|4|" in sh.out


def test_a_graph_that_ran_is_drawn_as_far_as_it_is_known(sh: Any, db: penstock.Database) -> None:
    graph = Graph("kept")
    graph.source("a", name="feed")(lambda: iter([]))
    graph.source("b", name="told")(lambda position: iter([]))
    graph.pipe("a", "c", name="skips", on_evicted="skip")(lambda message: None)
    graph.sink("c", name="ends")(lambda message: None)
    for topology in graph.topologies:
        started = db.graphs.ask(Start(topology))
        if topology.processor == "told":
            commit = CommitStep(
                started.processor, started.epoch, started.tail, [], b"", position=b"1"
            )
            db.graphs.ask(commit)
    shown = sh.json("graph", "show", "kept")
    assert shown["delivery"] == {
        "feed": "exactly once, if it takes a position",
        "told": "exactly once",
        "skips": "exactly once; skips what is evicted",
        "ends": "at least once, with a hash; a ready-made sink exactly once",
    }
    assert sh("graph", "show", "kept") == 0
    assert "skips what is evicted" in " ".join(sh.out.replace("│", " ").split())


def test_names_that_are_no_text_are_invalid(sh: Any, db: penstock.Database) -> None:
    begun(db, "named")
    for words in (
        ("status", "\udcff"),
        ("show", "\udcff"),
        ("drop", "named", "\udcff", "--yes"),
        ("reset", "\udcff", "copy", "--yes"),
        ("rename", "named", "copy", "\udcff"),
    ):
        assert sh("graph", *words) == 2, words


def test_processors_are_renamed_reset_and_dropped(sh: Any, db: penstock.Database) -> None:
    begun(db, "changing")
    assert sh("graph", "rename", "changing", "copy", "tidy") == 0
    assert sh("graph", "rename", "changing", "copy", "tidy") == 3
    assert sh("graph", "reset", "changing", "tidy") == 2, "it asks, and nobody is there"
    assert sh("graph", "reset", "changing", "tidy", "--start", "new", "--yes") == 0
    (graph,) = sh.json("graph", "status", "changing")
    (processor,) = graph["processors"]
    assert (processor["processor"], processor["reset"]) == ("tidy", True)
    assert sh("graph", "drop", "changing", "tidy") == 2
    assert sh("graph", "reset", "changing", "tidy", "--yes") == 0
    assert "changing/tidy waits for its next run" in sh.out
    renamed = sh.json("graph", "rename", "changing", "tidy", "clean")
    assert renamed == {"renamed": "tidy", "to": "clean"}
    reset = sh.json("graph", "reset", "changing", "clean", "--start", "first", "--yes")
    assert reset == {"reset": "clean", "start": "first"}
    assert sh.json("graph", "drop", "changing", "clean", "--yes") == {"dropped": "clean"}
    assert sh("graph", "status", "changing") == 3


def test_an_error_of_a_file_is_told_with_its_line_however_the_file_is_named(
    sh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.py").write_text("x = 1\n\nraise ValueError('mine')\n")
    monkeypatch.chdir(tmp_path)
    for place in ("wrong.py", "./wrong.py", str(tmp_path / "wrong.py")):
        assert sh("graph", "show", place) == 2
        assert "wrong.py, line 3: ValueError: mine" in sh.err


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None  # as if it was not installed
from penstock.cli.main import main
main()
"""


def test_a_graph_that_is_run_without_spark_says_what_to_install(
    db: penstock.Database, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, "graph", "run", str(tmp_path / "shop.py"),
         "--location", db.location],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Spark is not installed" in done.stderr
    assert "Traceback" not in done.stderr
