"""Signs of life with very many messages in hand."""

from __future__ import annotations

import threading
from itertools import pairwise

from penstock.clock import SystemClock
from penstock.source.queueport import Received
from penstock.source.requests import Beaten
from penstock.spark.ingest.keeper import _EXTENSIONS, Keeper

MESSAGES = 1_000


class Counting:
    """A queue that grants every extension, for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def receive(self, max_messages: int, wait: float) -> list[Received]:
        return []

    def extend(self, received: Received, seconds: float) -> float | None:
        with self._lock:
            self.count += 1
        return received.deadline + 10_000

    def acknowledge(self, received: object) -> list[bool]:
        return []


def test_a_thousand_extensions_do_not_keep_beats_waiting() -> None:
    queue, seen, done = Counting(), [0], threading.Event()

    def beat(shards: list[str], stagings: list[int]) -> Beaten:
        seen.append(queue.count)
        if queue.count >= MESSAGES:
            done.set()
        return Beaten([], [])

    clock = SystemClock()
    keeper = Keeper(
        queue, beat, clock=clock, lease_seconds=60, last_seconds=60, beat_seconds=0.000_001
    )
    keeper.own(["file:///a"])
    # All of them are due at once.
    now = clock.monotonic()
    keeper.hold([Received(str(i), b"", 1, i, now) for i in range(MESSAGES)])
    keeper.start()
    try:
        assert done.wait(60)
    finally:
        keeper.stop()
    gaps = [after - before for before, after in pairwise(seen)]
    assert max(gaps) <= _EXTENSIONS
