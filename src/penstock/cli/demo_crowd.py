"""Processes of the demo that talk on their standard output, and killing the one that serves.

Contract     `Crowd` starts processes of one module, listens to their lines until enough was said,
             and kills whichever of them serves the folder. What a process had said before it was
             killed counts. `heard` gets each line: the word, and what follows it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.broker.lock import highest_term, lock_path
from penstock.clock import perf_counter
from penstock.errors import UnavailableError

SILENCE_S = 30.0
#: All acts share one location: this folder of the demo's.
LOCATION = "data"


class _Process:
    def __init__(self, module: str, location: str, number: int, errors: Path) -> None:
        with errors.open("wb") as stderr:
            # A session of its own: Ctrl-C in the terminal must reach the demo only.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, location, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.descriptor = self.process.stdout.fileno()
        self.rest = b""


class Crowd:
    def __init__(
        self, module: str, work: Path, location: str, heard: Callable[[bytes, bytes], None]
    ) -> None:
        self._module = module
        self._work = work
        self._location = location
        self._heard = heard
        self._processes: dict[int, _Process] = {}  # by process id
        self._begun = 0

    def begin(self) -> None:
        """Another process, with a number of its own."""
        errors = self._work / f"{self._module}-{self._begun}.err"
        process = _Process(self._module, self._location, self._begun, errors)
        self._begun += 1
        self._processes[process.process.pid] = process

    def follow(self, enough: Callable[[], bool]) -> None:
        """Listen until enough was said."""
        until = perf_counter() + SILENCE_S
        while not enough():
            pipes = {p.descriptor: p for p in self._processes.values()}
            ready = select.select(list(pipes), [], [], 1.0)[0]
            if ready:
                until = perf_counter() + SILENCE_S
            elif perf_counter() > until:
                raise UnavailableError(f"the processes said nothing for {SILENCE_S:.0f} s")
            for pipe in ready:
                if not self._listen(pipes[pipe]):
                    raise UnavailableError(f"a process ended by itself: {self._last_words()}")

    def _listen(self, process: _Process) -> bool:
        """Take in what it said. -> whether it may say more"""
        chunk = os.read(process.descriptor, 1 << 16)
        *lines, process.rest = (process.rest + chunk).split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            self._heard(word, rest)
        return bool(chunk)

    def kill_server(self) -> None:
        process = self._processes.pop(self._server())
        process.process.send_signal(signal.SIGKILL)
        while self._listen(process):
            pass
        process.process.communicate()

    def _server(self) -> int:
        folder = Path(self._location)
        until = perf_counter() + SILENCE_S
        while perf_counter() < until:
            text = lock_path(folder, highest_term(folder)).read_text(errors="replace")
            found = re.match(r"process (\d+) serves", text)
            if found and int(found[1]) in self._processes:
                return int(found[1])
        raise UnavailableError("nobody serves the folder")

    def end(self) -> None:
        """Everybody stops adding, and they finish together what is there."""
        for process in self._processes.values():
            assert process.process.stdin is not None
            process.process.stdin.write(b"end\n")
            process.process.stdin.flush()
        # To all of them at once: who is not listened to stands still when its pipe is full.
        talking = {process.descriptor: process for process in self._processes.values()}
        while talking:
            for pipe in select.select(list(talking), [], [])[0]:
                if not self._listen(talking[pipe]):
                    talking.pop(pipe).process.communicate()

    def stop(self) -> None:
        for process in self._processes.values():
            process.process.kill()
            process.process.communicate()

    def _last_words(self) -> str:
        texts = [p.read_text(errors="replace") for p in self._work.glob(f"{self._module}-*.err")]
        lines = [line for text in texts for line in text.strip().splitlines()]
        return lines[-1] if lines else "no message"
