"""Stream to stream with kill -9: a driver, the broker that Spark's processes start, and a feeder.

Contract     `World` runs the query of once_driver.py over a location of its own and feeds it while
             it runs. `disturb` waits for a moment worth a kill, and kills; what ended by that is
             started anew. `finish` lets everything through and compares all of the output with
             what plain Python makes of the input. What is there by then is compared after each
             kill too: the kill that did the damage is one of the last two that were printed.
Victims      driver    all of it at once; or its JVM or Python alone, and the rest a bit later
             worker    one Python process of Spark's: worker, daemon, planner, committer
             executor  the JVM of one (cluster)
             broker    whoever holds the location's lock
Moments      start     a driver has just begun
             link      the output has just grown: Spark does not know yet that a batch is done
             any       some time after a batch
Excuses      A driver may end with an error when a process of its own was killed. When it ends
             otherwise, after a killed broker too, the test fails and shows what it said.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import penstock
from penstock.broker.bulk import LogSize
from penstock.broker.lock import highest_term, lock_path
from penstock.cli.check import inspect
from penstock.clock import SystemClock
from penstock.codec.keys import KeyType, open_key, prefix, prefix_end
from penstock.codec.staging import Phase, StagingRow, decode_staging
from penstock.log.catalogue import stream_name
from penstock.store.location import open_store
from spark.cluster import Cluster
from spark.lean import driver_environment
from spark.once_rows import entry, expected
from spark.processes import (
    Process,
    is_java,
    is_python,
    kill,
    kill_all,
    of_session,
    serving,
    within,
)

Victim = Literal["driver", "worker", "executor", "broker"]
Moment = Literal["start", "link", "any"]
MOMENTS: dict[Victim, list[Moment]] = {
    "driver": ["start", "link", "link", "link", "any", "any", "any"],
    "worker": ["link", "any"],
    "executor": ["link", "any"],
    "broker": ["link", "any"],
}

#: Nothing here takes this long, even on a machine that is busy with other things.
PATIENCE_SECONDS = 400.0
#: Two tasks at once, and a task may fail: `local[2]` alone gives up at the first one.
LOCAL = "local[2,8]"
#: Written and read at a time; the entries may be large.
PIECE_ROWS = 100


class Driver:
    """once_driver.py in a session of its own."""

    def __init__(self, log: Path, *arguments: str | Path | int) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark.once_driver", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=driver_environment(),
                start_new_session=True,
            )
        self.pid = self.process.pid

    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended in this very moment
            self.process.stdin.write(word.encode() + b"\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """Everything of it, and nothing is left."""
        # The JVM and its Python are one group: a kill that needs no search hits the very moment.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        kill_all(lambda: of_session(self.pid))
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Feeder(threading.Thread):
    """Writes the input in pieces of any size, as a producer: each piece is there once."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(name="feeder", daemon=True)
        self.written = 0
        self._world = world
        self._rng = random.Random(seed)
        self._told = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            pieces = 0
            while not self._told.wait(self._rng.uniform(0, 0.2)):
                if self.written < self._world.rows * (self._world.batches() + self._world.ahead):
                    self.write(self._rng.randint(1, PIECE_ROWS), pieces)
                    pieces += 1
        except BaseException as error:
            self._error = error

    def write(self, count: int, piece: int) -> None:
        numbers = range(self.written, self.written + count)
        entries = [entry(i, self._world.width) for i in numbers]
        stream = self._world.db.stream("in")
        assert stream.write_many(entries, producer="feeder", sequence=piece) == numbers
        self.written += count

    def end(self) -> None:
        self._told.set()
        self.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class World:
    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        cluster: Cluster | None = None,
        rows: int = 50,
        width: int = 0,
        ahead: int = 8,
    ) -> None:
        print(f"seed {seed}")
        self.location = folder / "data"
        self.rows = rows  # of the input in one batch, at most
        self.width = width  # of an entry, see once_rows.py
        self.ahead = ahead  # so many batches lie ready: the query never waits for long
        self.kills = 0
        self._folder = folder
        self._checkpoint = folder / "checkpoint"
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._loaded = 0
        self._excused = False
        self._compared = 0
        self._coming = expected(sys.maxsize, width)
        self.db = penstock.open(self.location, broker="outside", deadline=PATIENCE_SECONDS)
        self._feeder = Feeder(self, self._rng.randrange(1 << 30))
        self._feeder.start()
        self._spare: Driver | None = None
        self._start()

    def _start(self) -> None:
        self._driver, self._spare = self._spare or self._load(), None
        self._driver.tell("begin")
        self._excused = False

    def _load(self) -> Driver:
        """A driver that has come so far that its query may begin."""
        self._loaded += 1
        return Driver(
            self._folder / f"driver-{self._loaded}.log",
            *("stream", LOCAL if self._cluster is None else self._cluster.master),
            *(self.location, self._checkpoint, self.rows),
        )

    # -- what is there

    def batches(self) -> int:
        """How many batches Spark took for done."""
        try:
            names = os.listdir(self._checkpoint / "commits")
        except FileNotFoundError:
            return 0
        return 1 + max((int(name) for name in names if name.isdigit()), default=-1)

    def size(self, name: str) -> LogSize:
        return self.db.bulk.log_size(stream_name(name))

    def _out(self) -> int:
        return self.size("out").next

    def _await(self, true: Callable[[], bool]) -> None:
        """A driver that ended for a reason is started anew."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if self._driver.ended():
                said = self._driver.said()
                assert self._excused, f"the driver ended, and nobody had killed it:\n{said}"
                self._driver.kill()
                self._start()
            self._feeder.check()
            assert time.monotonic() < until, f"nothing goes on:\n{self._driver.said()}"
            time.sleep(0.002)

    def await_batches(self, more: int) -> None:
        before = self.batches()
        self._await(lambda: self.batches() >= before + more)

    def compare(self) -> None:
        stream = self.db.stream("out")
        while found := stream.read(self._compared, PIECE_ROWS):
            for message in found:
                assert message is not None
                assert (message.tag, message.data) == next(self._coming), (
                    f"entry {self._compared} of the output is another one"
                )
                self._compared += 1

    # -- kills

    def disturb(self, victim: Victim, moment: Moment | None = None) -> None:
        if self._cluster is None and victim != "broker" and self._spare is None:
            self._spare = self._load()
        chance: Moment = self._rng.choice(MOMENTS[victim])
        moment = moment or chance
        self._await_moment(moment)
        self._excused = victim != "broker"
        match victim:
            case "driver":
                how = self._kill_driver("all" if moment == "link" else None)
            case "worker":
                how = self._kill_one(self._workers)
            case "executor":
                how = self._kill_one(self._executors)
            case "broker":
                how = self._kill_one(self._brokers)
        self.kills += 1
        print(f"kill {self.kills}: {victim}, {moment}, {self.batches()} batches, {how}", flush=True)
        self.compare()

    def _await_moment(self, moment: Moment) -> None:
        if moment == "start":
            time.sleep(self._rng.uniform(0, 6))
            return
        self.await_batches(1)
        if moment == "any":
            time.sleep(self._rng.uniform(0, 1))
            return
        out = self._out()
        self._await(lambda: self._out() > out)

    def _kill_driver(self, first: str | None) -> str:
        first = first or self._rng.choice(["all", "python", "java"])
        if first != "all":
            found = of_session(self._driver.pid)
            python = first == "python"
            kill(*(p.pid for p in found if (p.pid == self._driver.pid if python else is_java(p))))
            time.sleep(self._rng.uniform(0, 0.5))
        self._driver.kill()
        self._start()
        return first

    def _kill_one(self, find: Callable[[], list[Process]]) -> str:
        killed: list[Process] = []

        def done() -> bool:
            found = find()
            if found:
                chosen = self._rng.choice(found)
                killed.extend([chosen] * kill(chosen.pid))
            return bool(killed)

        self._await(done)
        return " ".join([killed[0].name, *killed[0].command[2:4] * is_python(killed[0])])

    def _workers(self) -> list[Process]:
        of_driver = [p for p in of_session(self._driver.pid) if p.pid != self._driver.pid]
        return [p for p in of_driver + self._of_executors() if is_python(p)]

    def _executors(self) -> list[Process]:
        return [p for p in self._of_executors() if is_java(p)]

    def _of_executors(self) -> list[Process]:
        if self._cluster is None:
            return []
        # Master and workers work in the folder itself, executors in folders of their own.
        folder = self._cluster.folder
        return [p for p in within(folder) if p.folder != folder]

    def _brokers(self) -> list[Process]:
        words = lock_path(self.location, highest_term(self.location)).read_text().split()
        # A dead one's number stands there until the next one writes its own.
        return [
            p for p in serving(self.location) if (words[1], words[-1]) == (str(p.pid), "serves")
        ]

    # -- the end

    def finish(self) -> None:
        self._feeder.end()
        self._feeder.check()
        told: Driver | None = None

        def done() -> bool:
            nonlocal told
            if told is not self._driver and not self._driver.ended():
                self._driver.tell("end")
                told = self._driver
            return self._driver.process.poll() == 0

        self._await(done)
        self._driver.kill()
        self.compare()
        written = self._feeder.written
        assert self._compared == sum(1 for _ in expected(written)), "there is more to come"
        print(f"{written:,} entries, {self._compared:,} out, {self.batches():,} batches")
        self.db.close()
        end_brokers(self.location)
        assert asyncio.run(inspect(str(self.location))).findings == []
        # A driver that died between link and drop leaves one that its lease ends; no other does.
        assert len(asyncio.run(open_stagings(self.location))) <= self.kills

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for driver in filter(None, (self._driver, self._spare)):
            driver.kill()
        self._feeder.end()
        self.db.close()
        end_brokers(self.location)


def end_brokers(location: Path) -> None:
    """They would end by themselves when nobody uses them, but later."""
    kill_all(lambda: serving(location))


async def open_stagings(location: Path) -> list[StagingRow]:
    """Of a location that nobody serves."""
    store = await open_store(str(location), clock=SystemClock())
    try:
        low, found = prefix(KeyType.STAGING), []
        async for rows in store.scan(low, prefix_end(low)):
            for key, value in rows:
                staging_id = open_key(key, KeyType.STAGING).u64_key("staging id")
                found.append(decode_staging(value, staging_id))
        return [row for row in found if row.phase is Phase.OPEN]
    finally:
        await store.close()
