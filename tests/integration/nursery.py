"""Child processes without the second that loading Penstock takes: forks of one that has loaded it.

    python -m integration.nursery SOCKET

Contract     `start` gives a process that runs `integration.NAME` as its main module, with these
             three files as its standard ones, in this environment and the folder of this process,
             and with an ordinary end. It is a child of this process and waited for like any.
How          The nursery is told over a socket. It opens nothing and has no thread of Python's, so
             there is nothing that a fork could lose. It forks twice, and the first fork ends at
             once: the orphan goes to the nearest process that takes orphans, which is this one for
             that moment. Linux alone has that; where it is missing, `start` gives None.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
#: From linux/prctl.h.
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES_MAX = 1 << 16

_asking = threading.Lock()
_telling: socket.socket | None = None


class Forked:
    """The part of `subprocess.Popen` that tests need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            process = os.pidfd_open(self.pid)
            try:
                if not select.select([process], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            finally:
                os.close(process)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def start(
    name: str, arguments: Sequence[str], files: Sequence[int], env: Mapping[str, str]
) -> Forked | None:
    """Three files: input, output, errors. They stay open here."""
    if sys.platform != "linux":
        return None
    request = json.dumps([name, *arguments, os.getcwd(), dict(env)]).encode()
    assert len(request) <= _REQUEST_BYTES_MAX
    with _asking:
        nursery = _opened()
        with _taking_orphans():
            socket.send_fds(nursery, [request], list(files))
            answer = nursery.recv(32)
    assert answer, "the nursery ended"
    return Forked(int(answer))


def _opened() -> socket.socket:
    global _telling
    if _telling is None:
        # Packets, so that a request is one piece.
        _telling, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "integration.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), *sys.path])},
            )
        atexit.register(_end, _telling, process)
    return _telling


def _end(telling: socket.socket, process: subprocess.Popen[bytes]) -> None:
    telling.close()
    process.wait()


@contextlib.contextmanager
def _taking_orphans() -> Iterator[None]:
    # For no longer: others of a test expect that init takes theirs.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


# ---- in the nursery ---------------------------------------------------------------------------


def main(descriptor: int) -> Callable[[], None] | None:
    """Returns in the nursery at its end, and in each fork with what it is to run."""
    asked = socket.socket(fileno=descriptor)
    while True:
        request, files, _, _ = socket.recv_fds(asked, _REQUEST_BYTES_MAX, 3)
        if not request:
            return None
        ready, telling = os.pipe()
        first = os.fork()
        if first == 0:
            if os.fork() != 0:
                os._exit(0)
            os.close(ready)
            asked.close()
            os.write(telling, b"%d" % os.getpid())
            os.close(telling)
            return lambda: _run(json.loads(request), files)
        os.close(telling)
        os.waitpid(first, 0)
        pid = os.read(ready, 32)
        os.close(ready)
        for file in files:
            os.close(file)
        asked.send(pid)


def _run(request: list[object], files: list[int]) -> None:
    *words, folder, environment = request
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    # Anew, as a process of its own has them: Python remembers of a file whether it can be sought,
    # and the nursery's own output may be a file where this is a pipe.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(map(str, words))
    runpy.run_module(f"integration.{words[0]}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import penstock.cli.main  # noqa: F401 - and with it all that anybody needs, loaded once

    work = main(int(sys.argv[1]))
    if work is not None:
        work()
