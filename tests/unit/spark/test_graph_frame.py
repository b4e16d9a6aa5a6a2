"""A step of frames, as far as it can be seen without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.graph import Graph
from penstock.graph.machine import Ask, Outcome, Run, processor_steps
from penstock.spark import graphframe
from penstock.spark.graphframe import FrameJob
from penstock.spark.graphjob import StepError


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[penstock.Database]:
    with penstock.open(f"memory://{request.node.name}") as db:
        db.stream("in").write(b"x")
        yield db


def attempted(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any]
) -> Outcome:
    """Of one step of a pipe."""
    monkeypatch.setattr(graphframe, "register", lambda spark: None)
    monkeypatch.setattr(FrameJob, "_frame", lambda self, wanted: wanted)
    graph = Graph("g")
    graph.pipe("in", "out", name="p", df=True)(function)
    (processor,) = graph.processors
    spark: Any = None
    job = FrameJob(spark, db.bulk, "nowhere", processor)
    steps = processor_steps(processor.topology, step_max=10)
    effect = next(steps)
    while isinstance(effect, Ask):
        effect = steps.send(db.graphs.ask(effect.request))
    assert isinstance(effect, Run)
    return job.run(effect)


def test_a_function_that_returns_nothing_delivers_its_messages(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempted(db, monkeypatch, lambda df: None) == Outcome(nil=1)


@pytest.mark.parametrize("error", [SystemExit("bye"), KeyboardInterrupt("bye"), OSError("bye")])
def test_whatever_a_function_raises_fails_its_step_alone(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(df: Any) -> Any:
        raise error

    with pytest.raises(StepError, match=f"^{type(error).__name__}: bye$"):
        attempted(db, monkeypatch, fails)


def test_a_stream_that_is_made_anew_meanwhile_is_not_taken_for_the_old_one(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame reads by name, and when it likes."""

    def lazy(df: Any) -> Any:
        db.stream("in").delete()
        db.stream("in").write(b"another")

    with pytest.raises(StepError, match="stream in was deleted while the graph read it"):
        attempted(db, monkeypatch, lazy)
