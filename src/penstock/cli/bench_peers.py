"""The two servers that `penstock bench stream` compares: ours, and a real redis-server.

Contract     Each is a process of its own on a free loopback port, in its own folder on the same
             disk, with every write synced before it is answered (Redis: appendfsync always), and is
             stopped when its context ends.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.clock import perf_counter
from penstock.errors import InvalidError, UnavailableError

START_SECONDS = 20.0


@contextlib.contextmanager
def penstock_server(folder: Path) -> Iterator[int]:
    """-> its port"""
    command = [
        sys.executable,
        "-P",
        "-m",
        "penstock",
        "serve",
        str(folder),
        "--resp",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise UnavailableError("penstock serve ended before it was ready")
        yield int(json.loads(line)["port"])
    finally:
        _stop(process)


def require_redis() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise InvalidError(
            "redis-server is not installed", hint="Debian and Ubuntu: apt install redis-server"
        )
    return found


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """-> its port"""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "loglevel": "warning",
    }
    flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    process = subprocess.Popen([require_redis(), *flags], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield port
    finally:
        _stop(process)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = perf_counter() + START_SECONDS
    while perf_counter() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
    raise UnavailableError("redis-server did not start")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
