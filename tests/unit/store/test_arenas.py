"""The allocator's arenas, counted by the allocator itself, in a process with an open location."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import ctypes, sys, threading
import penstock
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
with penstock.open(sys.argv[1]) as db:
    db.stream("s").write(b"x")
    together = threading.Barrier(12)
    def allocate():
        together.wait()
        libc.malloc(1000)
    threads = [threading.Thread(target=allocate) for _ in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
    libc.fflush(None)
"""


def arenas(folder: Path, chosen: dict[str, str]) -> int:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", COUNT, str(folder)]
    done = subprocess.run(
        command, env=environment | chosen, capture_output=True, text=True, check=True
    )
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="glibc's allocator is asked")
def test_an_open_location_makes_few_arenas_unless_somebody_chose(tmp_path: Path) -> None:
    assert arenas(tmp_path, {}) < arenas(tmp_path, {"MALLOC_ARENA_MAX": "16"})


KEPT = """
from penstock.cli.figures import memory_bytes
from penstock.store.arenas import give_back
rows = [bytes(4000) for _ in range(20_000)]
full = memory_bytes()[0]
del rows[:-1]
kept = memory_bytes()[0]
give_back()
print(full - kept, kept - memory_bytes()[0])
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="glibc's allocator keeps it")
def test_what_was_freed_below_something_that_stays_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    freed, given_back = map(int, done.stdout.split())
    assert freed < 20 << 20, "or there is nothing to show"
    assert given_back > 60 << 20
