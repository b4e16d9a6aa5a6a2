"""The open location of a Spark process: planner, commit process or Python worker.

Contract     `database(location)` gives the one handle of this process for a location; it is opened
             at the first use and closed when the process ends. These processes come and go with
             Spark's tasks, so none of them ever becomes the broker (`broker="outside"`): who finds
             none starts one of its own, which stays while anybody uses it.
"""

from __future__ import annotations

import os

import penstock
from penstock.client.database import Database
from penstock.client.session import DEADLINE_SECONDS

#: A task waits longer than an application would: a broker that was killed must come back first.
_DEADLINE_SECONDS = 2 * DEADLINE_SECONDS

_open: dict[tuple[int, str], Database] = {}


def database(location: str) -> Database:
    # Spark's workers are forks of a process that may have had handles of its own.
    key = (os.getpid(), location)
    found = _open.get(key)
    if found is None:
        found = penstock.open(location, broker="outside", deadline=_DEADLINE_SECONDS)
        _open[key] = found
    return found
