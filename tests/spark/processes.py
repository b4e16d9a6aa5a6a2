"""Processes of Spark and of brokers, found through /proc, to be killed by their number.

Contract     Found are only processes that belong to what the caller names: a session (a process
             that was started with `start_new_session`, and all that come from it), a folder that
             they work in, or a location that they serve. A dead one that nobody has waited for is
             none.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    session: int
    name: str
    command: list[str]
    folder: Path


def processes() -> list[Process]:
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        # It may end between two looks.
        with contextlib.suppress(OSError):
            head, _, rest = (place / "stat").read_text(errors="replace").rpartition(")")
            state, _, _, session = rest.split()[:4]
            if state not in "ZX":
                command = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
                name = head.partition("(")[2]
                folder = Path(os.readlink(place / "cwd"))
                found.append(Process(int(place.name), int(session), name, command, folder))
    return found


def of_session(session: int) -> list[Process]:
    """Not the group: Spark's daemons of Python workers make one of their own."""
    return [each for each in processes() if each.session == session]


def within(folder: Path) -> list[Process]:
    return [each for each in processes() if each.folder.is_relative_to(folder)]


def serving(location: Path) -> list[Process]:
    """Who serves a location, or was started to."""
    words = ("serve", str(location))
    return [
        each
        for each in processes()
        if any(pair == words for pair in zip(each.command, each.command[1:], strict=False))
    ]


def kill(*pids: int) -> bool:
    """At once; whether any was there. When this returns they are gone, with their locks."""
    killed = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                killed.append(os.pidfd_open(pid))
        for process in killed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        for process in killed:
            select.select([process], [], [])
    finally:
        for process in killed:
            os.close(process)
    return bool(killed)


def kill_all(find: Callable[[], list[Process]]) -> None:
    """Until there are none: one may have forked meanwhile."""
    while found := find():
        kill(*(each.pid for each in found))


def is_python(each: Process) -> bool:
    return Path(each.command[0]).name.startswith("python")


def is_java(each: Process) -> bool:
    return each.name == "java"
