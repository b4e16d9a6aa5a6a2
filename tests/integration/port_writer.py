"""A child that commits through the store port, below the folder's lock, until it is fenced.

    python -m integration.port_writer LOCATION END [POINT N]

Says `ack N` after each commit and `read N` after each read with its verification, then `fenced`
when it learns that another one took over, once more for each of two further tries, and ends: by
`close` or by `abandon`, as END says. With POINT it stops itself (SIGSTOP) at that point of commit
N. `small` segments (END close-small, abandon-small) make the journal turn over every few commits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from integration.children import say
from penstock.clock import SystemClock
from penstock.errors import FencedError
from penstock.store import epoch, journal
from penstock.store.location import open_store
from penstock.store.port import Store

SMALL_BYTES = 32 << 10

#: Where in the life of a commit to stop: an owner, a name on it, and whether before the call.
POINTS: dict[str, tuple[Any, str, bool]] = {
    "before-record": (journal.Journal, "_write", True),
    "before-sync": (os, "fdatasync", True),
    "before-epoch-check": (epoch.Epoch, "check", True),
    "after-epoch-check": (epoch.Epoch, "check", False),
    "before-cover": (journal.Journal, "cover", True),
    "before-head": (journal.Journal, "_replace_head", True),
}


def row(n: int, owner: str) -> tuple[bytes, bytes]:
    return b"\xf0%08d" % n, f"{owner} {n} ".encode() * (1 + n % 50)


class Trap:
    """Stops this process at a call, the first time after it is armed. Works once."""

    def __init__(self, point: str) -> None:
        self._armed = False
        self._used = False
        owner, name, self._before = POINTS[point]
        self._call: Callable[..., Any] = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: self._run(*args, **kwargs))

    def arm(self) -> None:
        self._armed, self._used = not self._used, True

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._before:
            self._spring()
        result = self._call(*args, **kwargs)
        self._spring()
        return result

    def _spring(self) -> None:
        if self._armed:
            self._armed = False
            # To this very thread: another one might take a signal to the process a little later.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


async def write(store: Store, trap: Trap | None, at: int) -> None:
    while True:
        n = store.head().n + 1
        if trap is not None and n == at:
            trap.arm()
        await store.commit(n, [row(n, "old")], time_ms=n, epoch=store.epoch)
        say(f"ack {n}")
        await store.get(row(n, "old")[0])
        await store.verify()
        say(f"read {n}")


async def main(location: str, end: str, point: str | None, at: int) -> None:
    if end.endswith("-small"):
        defaults = journal.Journal.__init__.__kwdefaults__
        assert defaults is not None
        defaults["segment_bytes"] = SMALL_BYTES
    trap = Trap(point) if point else None
    store = await open_store(location, clock=SystemClock())
    for _ in range(3):
        try:
            await write(store, trap, at)
        except FencedError:
            say("fenced")
    await (store.abandon() if end.startswith("abandon") else store.close())
    say("end")


if __name__ == "__main__":
    arguments = sys.argv[3:]
    asyncio.run(
        main(
            sys.argv[1],
            sys.argv[2],
            arguments[0] if arguments else None,
            int(arguments[1]) if arguments else 0,
        )
    )
