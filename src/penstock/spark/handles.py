"""The open location of a Spark process: planner, commit process or Python worker.

Contract     `database(location)` gives the one handle of this process for a location; it is opened
             at the first use and closed when the process ends. These processes come and go with
             Spark's tasks, so none of them ever becomes the broker (`broker="outside"`): who finds
             none starts one of its own, which stays while anybody uses it. A broker behind an
             address that is away is waited for, as it may be restarting: by who comes after
             somebody that reached it (`waits`) as long as a request would wait, by planners and
             drivers for PLAN_SECONDS, as the address may also be wrong. `shared_place` refuses
             what cannot be had that way: of a bucket each of them would be the broker, and put an
             end to the others and to whoever serves it.
Garbage      Spark has a worker look for garbage in all of its memory after every task. What is
             loaded when a worker opens its first location stays for as long as it lives, so it is
             left out from then on: a tenth of what reading cost a worker (measured).
"""

from __future__ import annotations

import gc
import os
import threading

import penstock
from penstock.client.database import Database
from penstock.client.places import AGAIN_SECONDS, SCHEME
from penstock.client.session import DEADLINE_SECONDS
from penstock.clock import SystemClock
from penstock.errors import InvalidError, UnavailableError
from penstock.store.location import folder_of

#: A task waits longer than an application would: a broker that was killed must come back first.
_DEADLINE_SECONDS = 2 * DEADLINE_SECONDS

#: A restart takes about two, and nobody has read or written anything yet who had to give up.
PLAN_SECONDS = 10.0

_open: dict[tuple[int, str], Database] = {}


def shared_place(location: str) -> str:
    """The location, of a folder its whole path: Spark's processes are in folders of their own."""
    if location.startswith(SCHEME):
        return location
    folder = folder_of(location)
    if folder is not None:
        return str(folder)
    if location.startswith("memory://"):
        raise InvalidError(
            f"{location} is in the memory of one process, and Spark has several",
            hint="use a folder, or penstock://host:port",
        )
    raise InvalidError(
        f"{location}: a bucket has one broker, and Spark has several processes",
        hint=f"penstock serve {location} --resp host:port, and penstock://host:port here",
    )


def reach(location: str) -> None:
    """For the driver: an address that is wrong is told here, and not when tasks have waited."""
    if location.startswith(SCHEME):
        database(location)


def database(location: str, *, waits: bool = False) -> Database:
    # Spark's workers are forks of a process that may have had handles of its own.
    key = (os.getpid(), location)
    found = _open.get(key)
    if found is None:
        found = _open[key] = _opened(location, DEADLINE_SECONDS if waits else PLAN_SECONDS)
        _freeze_in_a_worker()
    return found


def _freeze_in_a_worker() -> None:
    # Not above: runners import this file before anybody has looked whether there is Spark.
    from pyspark import TaskContext

    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


def _opened(location: str, seconds: float) -> Database:
    clock, never = SystemClock(), threading.Event()
    # The broker of a folder is waited for, or started, by the opening itself.
    until = clock.monotonic() + (seconds if location.startswith(SCHEME) else 0.0)
    while True:
        try:
            return penstock.open(location, broker="outside", deadline=_DEADLINE_SECONDS)
        except UnavailableError:
            if clock.monotonic() >= until:
                raise
        never.wait(AGAIN_SECONDS)
