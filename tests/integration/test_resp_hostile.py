"""Random bytes, truncated frames, absurd lengths: no crash, no leak, nothing unhandled in the log.

`RespServer` itself checks at its end that no connection, task, log line or unhandled exception is
left; here are the bytes.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading

import pytest

from integration.resp_server import RespServer, frame
from penstock.server.limits import Limits
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.connection import Connection

WORDS = [name.encode() for name in COMMANDS] + [
    b"0", b"1", b"-1", b"k", b"s", b"ENTRIES", b"BLOCK", b"GROUP", b"RETRY", b"WITHINFO", b"RAW",
    b"REVERSE", b"FULL", b"BACKLOG", b"PRODUCER", b"META", b"FROM", b"\xff", b"", b"9" * 30, b"3",
    b"ID", b"LIST", b"KILL", b"SETNAME", b"DOCS", b"INFO", b"OFF", b"SKIP", b"*", b"UNBLOCK",
]  # fmt: skip
#: No stream is left by these, and none makes a bug of the parts that are not there yet.
SAFE = [b"CLIENT", b"COMMAND", b"CONFIG", b"HELLO", b"INFO", b"PING", b"TREAD", b"TWRITE", b"TLEN"]


def hostile(rng: random.Random) -> bytes:
    """One connection's worth of bytes."""
    match rng.randrange(9):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:  # a frame that is cut off
            data = frame(*rng.choices(WORDS, k=rng.randrange(1, 9)))
            return data[: rng.randrange(len(data))]
        case 2:  # one with a byte changed
            changed = bytearray(frame(rng.choice(SAFE), *rng.choices(WORDS, k=rng.randrange(9))))
            changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)
        case 3:
            number = rng.choice([-1, -(2**63), 2**31, 2**63, 10**9, 10**30, 0])
            return b"%c%d\r\n" % (rng.choice(b"*$~%>|"), number)
        case 4:  # the same inside a long array
            inside = b"%c%d\r\n" % (rng.choice(b"*$~%>|+-:_#,("), rng.choice([1, 10**9, 10**19]))
            return b"*500\r\n" + b"$1\r\na\r\n" * rng.randrange(400) + inside
        case 5:  # commands with words that do not belong to them
            return b"".join(
                frame(rng.choice(SAFE), *rng.choices(WORDS, k=rng.randrange(9))) for _ in range(5)
            )
        case 6:
            return b"*1\r\n" * rng.randrange(1, 2000)
        case 7:
            return rng.choice(
                [b'"', b"'", b"\0", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n" * 99]
            )
        case _:
            return frame(*[b""] * rng.randrange(1, 3000))


def attack(port: int, rng: random.Random) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        data = hostile(rng)
        how = rng.randrange(4)
        try:
            if how == 0:  # in pieces
                for at in range(0, len(data), 7):
                    wire.send(data[at : at + 7])
            else:
                wire.sendall(data)
            if how == 1:
                wire.shutdown(socket.SHUT_WR)
                while wire.recv(65536):
                    pass
            elif how == 2:  # gone without a word
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except ConnectionError:
            pass  # it closed first


def attack_many(served: RespServer, seed: int, count: int, threads: int = 4) -> None:
    failures: list[BaseException] = []

    def run(n: int) -> None:
        rng = random.Random(seed * 1000 + n)
        try:
            for _ in range(count // threads):
                attack(served.port, rng)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []


def check_alive(served: RespServer, files: int) -> None:
    served.until(lambda: not served.server.connections)
    with served.connect() as wire:
        assert wire.ask(b"PING") == b"+PONG"
    served.until(lambda: not served.server.connections)
    assert served.server._unfinished_bytes == 0
    assert served.server.counts.blocked == 0
    assert served.server.counts.internal_errors == 0
    assert open_files() <= files


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_2000_hostile_connections_leave_nothing_behind() -> None:
    with RespServer() as served:
        attack_many(served, 0, 8)  # what is opened once is open now
        served.until(lambda: not served.server.connections)
        files = open_files()
        attack_many(served, 1, 2000)
        assert served.server.counts.connections >= 2000
        assert served.server.counts.protocol_errors > 100
        check_alive(served, files)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_100000_hostile_connections_leave_nothing_behind() -> None:
    with RespServer() as served:
        attack_many(served, 2, 2000)
        served.until(lambda: not served.server.connections)
        files, resident = open_files(), resident_mib()
        for round_ in range(10):
            attack_many(served, 3 + round_, 10_000)
        assert served.server.counts.connections >= 100_000
        check_alive(served, files)
        assert resident_mib() < resident + 100


def resident_mib() -> float:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def test_a_million_tiny_arguments_are_one_wrong_command() -> None:
    with RespServer() as served, served.connect() as wire:
        wire.send(frame(b"PING", *[b"a"] * 999_999))
        assert wire.line().startswith(b"-INVALID wrong number of arguments for 'ping'")
        wire.send(frame(b"NOPE", *[b""] * ((1 << 20) - 1)))
        assert wire.line().startswith(b"-ERR unknown command 'NOPE', with args beginning with: ''")
        wire.send(b"*1048577\r\n")
        assert wire.rest() == b"-ERR Protocol error: invalid multibulk length\r\n"


@pytest.mark.parametrize(
    "words",
    [
        [b"CONFIG", b"GET", *(b"*%d*" % n for n in range(40_000))],
        [b"COMMAND", b"DOCS", *[b"TWRITE"] * 200_000],
        [b"CONFIG", b"GET", *(b"%d" % n + b"?*" * 500 for n in range(1000))],
        [b"CONFIG", b"GET", b"[a]" * 1_000_000],
        [b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", b"*a" * 1_000_000],
        [b"TKEYS", b"[a]*" * 1_000_000],
        [b"QUEUE.LS", b"[a]*" * 1_000_000],
    ],
    ids=lambda words: b" ".join(words[:2])[:12].decode(),
)
def test_words_that_would_take_minutes_are_refused(words: list[bytes]) -> None:
    """The loop is everybody's: a broker that is silent for so long is overtaken."""
    with RespServer() as served, served.connect() as wire:
        assert wire.ask(*words).startswith(b"-INVALID")
        assert wire.ask(b"PING") == b"+PONG"


def test_a_question_about_very_many_names_lets_others_have_their_turn() -> None:
    names = [b"%d" % n for n in range(50_000)]
    with RespServer() as served, served.connect() as slow, served.connect() as quick:
        slow.send(frame(b"PING") + frame(b"EXISTS", *names))
        assert slow.line() == b"+PONG"
        served.until(lambda: any(each.last_command == "EXISTS" for each in clients(served)))
        assert quick.ask(b"PING") == b"+PONG"
        assert any(each.busy for each in clients(served)), "the answer was made in one go"
        assert slow.line() == b":0"


def clients(served: RespServer) -> list[Connection]:
    return list(served.server.clients.values())


def test_a_million_entries_in_one_write() -> None:
    count = 500_000
    with RespServer() as served, served.connect() as wire:
        wire.send(frame(b"TWRITE", b"s", b"ENTRIES", *[b"t", b"e"] * count))
        assert [wire.line() for _ in range(3)] == [b"*2", b":0", b":%d" % (count - 1)]


def test_absurd_lengths_cost_no_memory() -> None:
    with RespServer() as served:
        before = resident_mib()
        wires = []
        for header in (b"*1000000000\r\n", b"*1\r\n$9999999999\r\n", b"*300\r\n*1000000000\r\n"):
            for _ in range(20):
                wire = served.connect()
                wire.send(header)
                assert b"Protocol error" in wire.line()
                wires.append(wire)
        assert resident_mib() < before + 50
        for wire in wires:
            wire.close()


def test_one_slow_and_hostile_client_does_not_stop_the_others() -> None:
    limits = Limits(unread_bytes=100_000, unread_seconds=0.2)
    with RespServer(limits=limits) as served, served.connect() as good:
        assert good.ask(b"TWRITE", b"s", b"t", b"x" * 50_000) == b":0"
        bad = [served.connect() for _ in range(20)]
        for n, wire in enumerate(bad):
            wire.send(
                frame(b"TREAD", b"s", b"0", b"1") * 500 if n % 2 else b"*1\r\n$60000000\r\nabc"
            )
        for n in range(200):
            assert good.ask(b"TWRITE", b"g", b"t", b"x") == b":%d" % n
        served.until(lambda: served.server.counts.cut_unread == 10)
        assert good.ask(b"PING") == b"+PONG"
        for wire in bad:
            wire.close()
