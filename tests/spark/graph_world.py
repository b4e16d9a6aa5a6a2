"""Runners of one graph in processes of their own: killed, stopped, and two at once.

Contract     `World` holds a location, the file that says how far the source counts, and the
             runners. `runner()` gives one that is loaded and waits for its word. `compare` looks
             at everything that the graph wrote, against what plain Python makes of it, and at the
             location itself (`penstock check`).
             Nobody else has the location open while runners work: each of them serves it itself,
             so a killed runner is a killed broker too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

import penstock
from penstock.cli.check import inspect
from spark.graph_flow import expected
from spark.lean import driver_environment
from spark.once_world import end_brokers
from spark.processes import kill_all, of_session

PATIENCE_SECONDS = 400.0


class Runner:
    def __init__(self, folder: Path, number: int, step_max: int) -> None:
        self._log = folder / f"runner-{number}.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark.graph_driver", str(folder), str(step_max)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=driver_environment(),
                start_new_session=True,
            )

    def begin(self, until: str) -> None:
        """Returns when it runs."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(until.encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        assert ready, f"it does not begin:\n{self.said()}"
        line = self.process.stdout.readline()
        assert line == b"running\n", f"{line!r}\n{self.said()}"

    def wait(self) -> int:
        """-> its exit code"""
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"nothing goes on:\n{self.said()}") from None

    def signal(self, what: signal.Signals) -> None:
        """The JVM and the Python of the driver; its workers make a group of their own."""
        os.killpg(self.process.pid, what)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        kill_all(lambda: of_session(self.process.pid))
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]


class World:
    def __init__(self, folder: Path, *, step_max: int) -> None:
        self.folder = folder
        self.location = folder / "data"
        self._step_max = step_max
        self._runners: list[Runner] = []
        self.count_to(0)

    def count_to(self, limit: int) -> None:
        new = self.folder / "limit.new"
        new.write_text(str(limit))
        new.replace(self.folder / "limit")

    def runner(self) -> Runner:
        runner = Runner(self.folder, len(self._runners), self._step_max)
        self._runners.append(runner)
        return runner

    def await_entries(self, count: int) -> None:
        """Until the join has written more than so many; through whoever serves."""
        until = time.monotonic() + PATIENCE_SECONDS
        with penstock.open(self.location, broker="outside", deadline=PATIENCE_SECONDS) as db:
            while db.stream("pairs").info().last < count:
                assert time.monotonic() < until, "nothing goes on"
                time.sleep(0.05)

    def compare(self, limit: int) -> None:
        wanted = expected(limit)
        with penstock.open(self.location, broker="outside", deadline=PATIENCE_SECONDS) as db:
            found = {name: self._entries(db, name) for name in wanted}
        end_brokers(self.location)
        loose = ("all",)
        for name, entries in found.items():
            hashes = Counter(meta for _, _, meta in entries)
            assert max(hashes.values(), default=1) == 1, f"{name}: a hash twice"
            plain = [(tag, data) for tag, data, _ in entries]
            if name in loose:
                assert sorted(plain) == sorted(wanted[name]), name
            else:
                assert len(plain) == len(wanted[name]), name
                assert plain == wanted[name], name
        _check_order_of_inputs(found["all"])
        with closing(sqlite3.connect(self.folder / "pairs.db")) as table:
            rows = list(table.execute("SELECT n, pair, delivery_hash FROM pairs ORDER BY n"))
        assert [(n, pair.encode()) for n, pair, _ in rows] == list(
            enumerate(data for _, data in wanted["pairs"])
        )
        assert asyncio.run(inspect(str(self.location))).findings == []

    def _entries(self, db: penstock.Database, name: str) -> list[tuple[str, bytes, bytes]]:
        found = []
        stream = db.stream(name)
        at = 0
        while entries := stream.read(at, 10_000):
            for each in entries:
                assert each is not None
                assert each.meta is not None
                data = each.data
                if name == "errors":
                    told = msgspec.json.decode(data)
                    assert told["hash"] == each.meta.hex()
                    data = b"%d" % told["inputs"][0]["offset"]
                found.append((each.tag, data, each.meta))
            at += len(entries)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for runner in self._runners:
            runner.kill()
        end_brokers(self.location)


def _check_order_of_inputs(entries: list[tuple[str, bytes, bytes]]) -> None:
    """What comes through an alts is in the order of its input."""
    last: dict[str, int] = {}
    for tag, _, _ in entries:
        name, offset = tag.split()
        assert last.get(name, -1) < int(offset), f"{name}: {offset} comes behind {last[name]}"
        last[name] = int(offset)
