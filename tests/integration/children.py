"""Child processes that a test talks to in lines, and kills, stops and continues.

Contract     A child is what `python -m integration.NAME ARGUMENTS` would be; most are forks of one
             process that has loaded everything (nursery.py). It writes lines to its standard
             output, each with one `os.write`, and reads lines from its standard input. What it
             wrote before it was killed or stopped is still read: a pipe outlives its writer. Every
             wait has an end, after which the test fails and shows what the child said.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from integration import nursery
from integration.nursery import Forked

TESTS = Path(__file__).resolve().parents[1]

#: A child that says nothing for this long hangs; far above what a loaded machine needs.
PATIENCE_SECONDS = 60.0


#: These are about a process as such, how it forks and how it ends: each is an interpreter anew.
PLAIN = {"forker", "forgetful_script"}


class Child:
    def __init__(self, name: str, *arguments: str | Path | int) -> None:
        self._said: list[str] = []
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        theirs, self._input = os.pipe()
        self.output, output = os.pipe()
        files = (theirs, output, self._errors.fileno())
        try:
            self._process = _started(name, list(map(str, arguments)), files)
        finally:
            os.close(theirs)
            os.close(output)
        os.set_blocking(self.output, False)
        self.pid = self._process.pid

    # -- talking

    def tell(self, line: str) -> None:
        os.write(self._input, line.encode() + b"\n")

    def drain(self, seconds: float = 0.0) -> list[str]:
        """Everything it says in the next so many seconds, or until it ends."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            if not select.select([self.output], [], [], left)[0]:
                break
            chunk = os.read(self.output, 1 << 16)
            if not chunk:
                break
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._said += [line.decode() for line in lines]
        said, self._said = self._said, []
        return said

    def hear(self) -> str:
        """The next line."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._said:
            ready, _, _ = select.select([self.output], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self.output, 1 << 16) if ready else b""
            assert chunk, f"the child {'ended' if ready else 'hangs'}: {self.errors()}"
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._said += [line.decode() for line in lines]
        return self._said.pop(0)

    def hear_until(self, word: str) -> list[str]:
        """The lines up to the first one that begins with this word, that one included."""
        heard = [self.hear()]
        while heard[-1].split(" ", 1)[0] != word:
            heard.append(self.hear())
        return heard

    def ended(self) -> bool:
        return self._process.poll() is not None

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    # -- signals

    def kill(self) -> list[str]:
        """kill -9; returns the last words."""
        self._process.kill()
        self._process.wait()
        return self.drain()

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel has stopped every thread of it."""
        os.kill(self.pid, signal.SIGSTOP)
        self.await_stop()

    def await_stop(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def finish(self) -> int:
        """Wait for its own end; returns the exit code."""
        return self._process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if not self._errors.closed:
            os.close(self._input)
            os.close(self.output)
            self._errors.close()


def _started(
    name: str, arguments: list[str], files: tuple[int, int, int]
) -> subprocess.Popen[bytes] | Forked:
    paths = [str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    if name not in PLAIN and (forked := nursery.start(name, arguments, files, env)) is not None:
        return forked
    standard_input, output, errors = files
    return subprocess.Popen(
        [sys.executable, "-m", f"integration.{name}", *arguments],
        stdin=standard_input,
        stdout=output,
        stderr=errors,
        env=env,
    )


def say(line: str) -> None:
    """In a child: one line to whoever started it."""
    data = line.encode() + b"\n"
    while data:  # a pipe may take a part only
        data = data[os.write(1, data) :]
