"""Many connections: what they cost while nothing happens. A server in a process of its own."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from integration.resp_serve import Serve
from integration.resp_server import Wire, frame

PING = frame(b"PING")


@contextmanager
def files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"needs {count} open files; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect_many(port: int, count: int) -> list[socket.socket]:
    """Each has been answered once, so that all of them are there."""
    found = []
    for _ in range(count):
        wire = socket.create_connection(("127.0.0.1", port), timeout=60)
        wire.sendall(PING)
        found.append(wire)
    for wire in found:
        assert wire.recv(100) == b"+PONG\r\n"
    return found


def close_all(wires: list[socket.socket]) -> None:
    for wire in wires:
        with suppress(OSError):
            wire.close()


def resident_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_2000_connections_at_once(tmp_path: Path) -> None:
    with files(3000), Serve(tmp_path) as served:
        wires = connect_many(served.port, 2000)
        for wire in wires:
            wire.sendall(frame(b"TWRITE", b"s", b"t", b"x"))
        replies = sorted(int(wire.recv(100)[1:]) for wire in wires)
        assert replies == list(range(2000))
        close_all(wires)


@pytest.mark.slow
def test_10000_idle_connections_cost_less_than_150_mb(tmp_path: Path) -> None:
    with files(10_500), Serve(tmp_path) as served:
        close_all(connect_many(served.port, 100))
        before = resident_mib(served.pid)
        wires = connect_many(served.port, 10_000)
        cost = resident_mib(served.pid) - before
        print(f"10,000 idle connections: {cost:.1f} MiB")
        close_all(wires)
        assert cost < 150


@pytest.mark.slow
def test_1000_blocked_readers_cost_no_cpu_while_nothing_happens(tmp_path: Path) -> None:
    with files(2000), Serve(tmp_path) as served:
        wires = connect_many(served.port, 1000)
        for wire in wires:
            wire.sendall(frame(b"TREAD", b"s", b"0", b"1", b"BLOCK", b"0"))
        with Wire(served.port) as control:
            while True:
                control.words(b"INFO", b"clients")
                size = int(control.line()[1:])
                if b"blocked_clients:1000\r\n" in control.read(size + 2):
                    break
            before = cpu_seconds(served.pid)
            time.sleep(2)
            cost = cpu_seconds(served.pid) - before
            print(f"1,000 blocked readers: {cost:.3f} s of CPU in 2 s")
            assert cost < 0.4
            # All of them are woken by one write.
            assert control.ask(b"TWRITE", b"s", b"t", b"x") == b":0"
            expected = b"*1\r\n*3\r\n:0\r\n$1\r\nt\r\n$1\r\nx\r\n"
            for wire in wires:
                assert wire.recv(100) == expected
        close_all(wires)
