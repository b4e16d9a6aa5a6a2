"""What happened, line by line, and one hash over all of it.

Contract     Two runs of a seed give the same lines, so the same hash. `fail` notes what is wrong
             and goes on: the run ends before anything else happens, with the story that led there.
"""

from __future__ import annotations

from collections import deque

import xxhash

from penstock.sim.loop import VirtualLoop

#: Lines that a failure prints.
STORY = 60


class Trace:
    def __init__(self, loop: VirtualLoop, *, show: bool = False) -> None:
        self._loop = loop
        self._show = show
        self._hash = xxhash.xxh3_128()
        self.lines: deque[str] = deque(maxlen=STORY)
        self.failures: list[str] = []

    def add(self, text: str) -> None:
        line = f"{self._loop.time():12.6f}  {text}"
        self._hash.update(line.encode("utf-8", "surrogateescape") + b"\n")
        self.lines.append(line)
        if self._show:
            print(line)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.add(f"WRONG {text}")

    def digest(self) -> str:
        return self._hash.hexdigest()
