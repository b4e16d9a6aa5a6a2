"""A runner of a source that waits at one moment of its work, to be killed or stopped there.

    python -m integration.ingester MOMENT JSON

JSON         the arguments of `penstock.spark.Ingest`; `once` and `times` beside them.
MOMENT       never, or one of
             before/after REQUEST     around a request to the broker (source/requests.py)
             before/after export      around the export of what was published
             before/after prepare     around the making of the table, or looking at its columns
             before/after commit      around a transaction of the Delta table
             before/after job         around the Spark job that reads files and writes splits
             before acknowledge       of messages
             At its `times`-th coming (1) it says "at MOMENT" and waits for a line. Only the thread
             that works waits: signs of life are given, until it is stopped.
Ends         saying "done" and its report as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from integration.plainspark import PlainSpark
from penstock.spark import Ingest
from penstock.spark.ingest import loader, sparkjob
from penstock.spark.ingest.coordinator import Coordinator
from penstock.spark.ingest.delta import DeltaTarget
from penstock.spark.ingest.sparkjob import TaskRunner
from penstock.spark.ingest.task import TaskResult


def say(*words: str) -> None:
    os.write(1, " ".join(words).encode() + b"\n")


class Moment:
    def __init__(self, name: str, times: int) -> None:
        self._name = name
        self._left = times

    def here(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                say("at", name)
                sys.stdin.readline()

    def around(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.here(f"before {what}")
            answer = call(*args, **kwargs)
            self.here(f"after {what}")
            return answer

        return called


def hook(moment: Moment) -> None:
    plain = Coordinator.__init__

    def made(self: Coordinator, *args: Any, ask: Callable[[Any], Any], **kwargs: Any) -> None:
        def asked(request: Any) -> Any:
            return moment.around(type(request).__name__, ask)(request)

        plain(self, *args, ask=asked, **kwargs)
        self.target.export = moment.around("export", self.target.export)  # type: ignore[method-assign]
        self._acknowledge = moment.around("acknowledge", self._acknowledge)  # type: ignore[method-assign]

    run_job = sparkjob.run_job

    def run(spark: Any, runner: TaskRunner) -> list[TaskResult]:
        # Without a job its tasks only tell a schema.
        work = run_job if runner._job is None else moment.around("job", run_job)
        return work(spark, runner)

    vars(loader)["run_job"] = run
    Coordinator.__init__ = made  # type: ignore[method-assign]
    DeltaTarget._prepare = moment.around("prepare", DeltaTarget._prepare)  # type: ignore[method-assign]
    DeltaTarget._commit = moment.around("commit", DeltaTarget._commit)  # type: ignore[method-assign]


def main(name: str, arguments: dict[str, Any]) -> None:
    once, times = arguments.pop("once", True), arguments.pop("times", 1)
    hook(Moment(name, times))
    report = Ingest(**arguments, spark=PlainSpark()).run(once=once)  # type: ignore[arg-type]
    say("done", msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
