"""One connection at a time: order, pipelines, blocking, bounds, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from integration.resp_server import RespServer, Wire, frame
from penstock.codec.resp import Limits as RequestLimits
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.server.limits import Limits
from penstock.server.resp import streams
from penstock.server.resp.connection import Connection
from penstock.server.resp.errors import encode_error


def entry(offset: int, tag: bytes, data: bytes) -> bytes:
    return b"*3\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (offset, len(tag), tag, len(data), data)


def unblocked(served: RespServer) -> bool:
    return served.server.counts.blocked == 0


def blocked(served: RespServer) -> bool:
    return served.server.counts.blocked == 1


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (InvalidError("a\r\nb", hint="c"), b"-INVALID a b [c]\r\n"),
        (NotFoundError("a", hint=""), b"-NOTFOUND a\r\n"),
        (ConflictError("a"), b"-CONFLICT a [read again and retry now]\r\n"),
        (UnavailableError("", hint="c"), b"-UNAVAILABLE UnavailableError [c]\r\n"),
        (FencedError("a", hint="c"), b"-FENCED a [c]\r\n"),
        (CorruptError("a", hint="c"), b"-CORRUPT a [c]\r\n"),
    ],
)
def test_each_kind_of_error_has_its_word_on_the_wire(failure: PenstockError, line: bytes) -> None:
    assert encode_error(failure) == line


def test_a_pipeline_is_answered_in_order_and_its_writes_take_effect_in_order() -> None:
    with RespServer() as served, served.connect() as wire:
        commits = served.broker.committer.health.commits
        data = b"".join(frame(b"TWRITE", b"s", b"t", b"%d" % n) for n in range(500))
        wire.send(data + frame(b"PING") + frame(b"TREAD", b"s", b"499", b"9") + frame(b"NOPE"))
        assert [wire.line() for _ in range(500)] == [b":%d" % n for n in range(500)]
        assert wire.line() == b"+PONG"
        last = b"*1\r\n" + entry(499, b"t", b"499")
        assert wire.read(len(last)) == last
        assert wire.line().startswith(b"-ERR unknown command 'NOPE'")
        wire.send(frame(b"TREAD", b"s", b"0", b"1000"))
        assert wire.line() == b"*500"
        for n in range(500):
            expected = entry(n, b"t", b"%d" % n)
            assert wire.read(len(expected)) == expected
        # A pipeline of writes shares commits.
        assert served.broker.committer.health.commits - commits < 100


def test_a_read_in_a_pipeline_sees_the_writes_before_it_and_none_after_it() -> None:
    with RespServer() as served, served.connect() as wire:
        write = frame(b"TWRITE", b"s", b"t", b"x")
        look = frame(b"TREAD", b"s", b"0", b"0", b"WITHINFO")
        wire.send(b"".join(write + write + look for _ in range(50)))
        for n in range(50):
            assert wire.line() == b":%d" % (2 * n)
            assert wire.line() == b":%d" % (2 * n + 1)
            assert [wire.line() for _ in range(4)] == [
                b"*1", b"*2", b":0", b":%d" % (2 * n + 1),
            ]  # fmt: skip


def test_large_and_small_writes_of_one_pipeline_keep_their_order() -> None:
    """A large one is staged in several commits; the small one behind it must not overtake it."""
    large = [b"TWRITE", b"s", b"ENTRIES"]
    for _ in range(6):
        large += (b"t", random_bytes(1 << 20))
    with RespServer() as served, served.connect() as wire:
        wire.send((frame(*large) + frame(b"TWRITE", b"s", b"t", b"small")) * 2)
        lines = [wire.line() for _ in range(8)]
        assert lines == [b"*2", b":0", b":5", b":6", b"*2", b":7", b":12", b":13"]


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_an_inline_command_works_as_in_a_terminal() -> None:
    with RespServer() as served, served.connect() as wire:
        wire.send(b'ping\r\n\r\ntwrite s "a tag" "x\\x00y"\nTREAD s 0 1\n')
        assert wire.line() == b"+PONG"
        assert wire.line() == b":0"
        expected = b"*1\r\n" + entry(0, b"a tag", b"x\0y")
        assert wire.read(len(expected)) == expected


def test_a_payload_of_64_mib_goes_in_and_comes_out() -> None:
    payload = random_bytes(64 << 20)
    with RespServer() as served, served.connect() as wire:
        assert wire.ask(b"TWRITE", b"s", b"t", payload) == b":0"
        expected = b"*1\r\n" + entry(0, b"t", payload)
        wire.words(b"TREAD", b"s", b"0", b"1")
        assert wire.read(len(expected)) == expected


def test_a_protocol_error_is_said_after_the_replies_before_it_and_ends_the_connection() -> None:
    with RespServer() as served, served.connect() as wire:
        wire.send(frame(b"TWRITE", b"s", b"t", b"x") + frame(b"PING") + b"*1\r\n:5\r\n")
        assert wire.rest() == b":0\r\n+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n"
        assert served.server.counts.protocol_errors == 1


def test_evicted_entries_are_null_and_information_comes_first() -> None:
    with RespServer() as served, served.connect() as wire:
        for n in range(4):
            wire.ask(b"TWRITE", b"s", b"", b"%d" % n)
        assert wire.ask(b"TEVICT", b"s", b"1") == b":2"
        wire.words(b"TREAD", b"s", b"0", b"9", b"WITHINFO")
        expected = b"*5\r\n*2\r\n:2\r\n:3\r\n$-1\r\n$-1\r\n" + entry(2, b"", b"2")
        expected += entry(3, b"", b"3")
        assert wire.read(len(expected)) == expected
        wire.words(b"TREAD", b"s", b"3", b"9", b"REVERSE")
        expected = b"*4\r\n" + entry(3, b"", b"3") + entry(2, b"", b"2") + b"$-1\r\n$-1\r\n"
        assert wire.read(len(expected)) == expected


def test_long_reads_are_put_together_from_steps() -> None:
    with RespServer() as served, served.connect() as wire:
        for low in range(0, 5000, 500):
            words = [b"TWRITE", b"s", b"ENTRIES"]
            for n in range(low, low + 500):
                words += (b"t", b"%d" % n)
            wire.words(*words)
            assert [wire.line() for _ in range(3)] == [b"*2", b":%d" % low, b":%d" % (low + 499)]
        wire.words(b"TREAD", b"s", b"10", b"4980")
        expected = b"*4980\r\n" + b"".join(entry(n, b"t", b"%d" % n) for n in range(10, 4990))
        assert wire.read(len(expected)) == expected
        wire.words(b"TREAD", b"s", b"4989", b"9999", b"REVERSE", b"WITHINFO")
        expected = b"*4991\r\n*2\r\n:0\r\n:4999\r\n"
        expected += b"".join(entry(n, b"t", b"%d" % n) for n in range(4989, -1, -1))
        assert wire.read(len(expected)) == expected


def test_a_reply_that_would_be_too_large_is_refused() -> None:
    with RespServer(limits=Limits(output_bytes=100_000)) as served, served.connect() as wire:
        for _ in range(3):
            wire.ask(b"TWRITE", b"s", b"t", b"x" * 40_000)
        wire.words(b"TREAD", b"s", b"0", b"3")
        assert wire.line().startswith(b"-INVALID the reply would be larger than 100,000 bytes [ask")
        wire.words(b"TREAD", b"s", b"0", b"2")
        assert wire.line() == b"*2"


# ---- blocking ---------------------------------------------------------------------------------


def test_a_blocked_read_is_answered_by_a_write_and_holds_up_what_is_behind_it() -> None:
    with RespServer() as served, served.connect() as reader, served.connect() as writer:
        reader.send(frame(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"0") + frame(b"PING"))
        served.until(lambda: blocked(served))
        assert writer.ask(b"TWRITE", b"s", b"t", b"x") == b":0"
        expected = b"*1\r\n" + entry(0, b"t", b"x") + b"+PONG\r\n"
        assert reader.read(len(expected)) == expected
        assert unblocked(served)


def test_a_block_that_runs_out_is_an_empty_array() -> None:
    with RespServer() as served, served.connect() as wire:
        assert wire.ask(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"20") == b"*0"


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_blocked_read_ends_when_its_client_goes_away(how: str) -> None:
    with RespServer() as served:
        wire = served.connect()
        wire.words(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"0")
        served.until(lambda: blocked(served))
        if how == "half":
            wire.socket.shutdown(socket.SHUT_WR)
        else:
            if how == "reset":
                linger = struct.pack("ii", 1, 0)
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            wire.close()
        served.until(lambda: unblocked(served) and not served.server.connections)
        wire.close()


def test_client_unblock_ends_a_read_as_if_time_had_run_out_or_with_an_error() -> None:
    with RespServer() as served, served.connect() as reader, served.connect() as other:
        number = reader.ask(b"CLIENT", b"ID")[1:]
        assert other.ask(b"CLIENT", b"UNBLOCK", number) == b":0"
        for how, line in (
            ((), b"*0"),
            ((b"TIMEOUT",), b"*0"),
            ((b"ERROR",), b"-UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ):
            reader.words(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"0")
            served.until(lambda: blocked(served))
            assert other.ask(b"CLIENT", b"UNBLOCK", number, *how) == b":1"
            assert reader.line() == line
        assert reader.ask(b"PING") == b"+PONG"


@pytest.mark.parametrize("block", [(), (b"BLOCK", b"0")])
def test_a_large_answer_to_a_group_is_made_in_parts_and_cannot_be_unblocked(
    block: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are delivered by then, and nothing would ever bring them again."""
    making, go_on = threading.Event(), threading.Event()

    async def give_way() -> None:
        making.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)

    with RespServer() as served, served.connect() as reader, served.connect() as other:
        number = reader.ask(b"CLIENT", b"ID")[1:]
        entries = [b"", b"x"] * 3000
        assert other.ask(b"TWRITE", b"s", b"ENTRIES", *entries) == b"*2"
        assert [other.line(), other.line()] == [b":0", b":2999"]
        monkeypatch.setattr(streams, "give_way", give_way)
        reader.words(b"TREAD", b"s", b"0", b"3000", b"GROUP", b"g", *block)
        assert making.wait(10)
        assert other.ask(b"PING") == b"+PONG"
        assert other.ask(b"CLIENT", b"UNBLOCK", number) == b":0"
        go_on.set()
        assert reader.line() == b"*3000"
        for i in range(3000):
            assert [reader.line() for _ in range(6)] == [
                b"*3", b":%d" % i, b"$0", b"", b"$1", b"x",
            ]  # fmt: skip


def idle(served: RespServer, commands: int) -> bool:
    """It has answered so many, and nothing more."""
    busy = any(connection.busy for connection in clients(served))
    return served.server.counts.commands == commands and not busy


#: What a pipeline is made of; %s is the stream's name.
REQUESTS = """
TWRITE %s t x | TWRITE %s t | TWRITE %s ENTRIES t x u y | TWRITE %s PRODUCER p 3 ENTRIES t x
TREAD %s 0 3 | TREAD %s 0 300 REVERSE | TREAD %s 900 1 BLOCK 1 | TREAD %s 0 1 RETRY 5 5
TREAD %s 0 2 GROUP g WITHINFO | TREAD %s 0 2 GROUP h FROM new | TREAD %s 0 1 GROUP i FROM 77
TREAD %s 0 1500 GROUP g | TREAD %s 0 0 GROUP g WITHINFO | TREAD %s 0 1 BLOCK 1 GROUP h
TACK %s g 0-3 | TACK %s none 0 | TACK %s g x | TEVICT %s 1 | TLEN %s | TDEL %s | EXISTS %s
TINFO other | PING | ECHO a | NOSUCH | CLIENT REPLY SKIP | HELLO 2 | HELLO 3 | RESET
AUTH default secret | AUTH wrong
"""


@pytest.mark.parametrize("seed", range(12))
def test_a_pipeline_is_answered_the_same_however_it_is_cut(seed: int) -> None:
    """A request that comes alone takes a shorter way than one of several, or one behind others."""
    chosen = random.Random(seed)
    kinds = [each.strip().encode() for line in REQUESTS.split("\n") for each in line.split("|")]
    login = b"AUTH default secret"
    requests = [login, *chosen.choices([kind for kind in kinds if kind], k=60), b"RESET", login]
    answers: list[bytes] = []
    with RespServer(password="secret") as served:
        for way in ("together", "cut", "alone"):
            name = b"s-" + way.encode().ljust(8, b"-")
            raw = [frame(*(request.replace(b"%s", name)).split()) for request in requests]
            data = b"".join(raw)
            with served.connect() as wire:
                if way == "together":
                    wire.send(data)
                elif way == "cut":
                    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    edges = sorted(chosen.sample(range(1, len(data)), 40))
                    for low, high in pairwise([0, *edges, len(data)]):
                        wire.send(data[low:high])
                else:
                    for done, each in enumerate(raw, start=served.server.counts.commands + 1):
                        wire.send(each)
                        served.until(partial(idle, served, done))
                wire.words(b"QUIT")
                found = wire.rest().replace(name, b"NAME")
                answers.append(re.sub(rb"id\r\n:\d+", b"id", found))
    assert answers[0].endswith(b"+OK\r\n")
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


def test_a_group_of_no_stream_that_would_begin_behind_its_end_is_refused() -> None:
    with RespServer() as served, served.connect() as wire:
        look = (b"TREAD", b"s", b"0", b"1", b"GROUP", b"g", b"FROM")
        wire.send(frame(*look, b"9"))  # alone
        assert wire.line().startswith(b"-INVALID offset 9 lies behind the end of the stream, 0")
        wire.send(frame(*look, b"9") + frame(*look, b"0"))
        assert wire.line().startswith(b"-INVALID offset 9 lies behind the end of the stream, 0")
        assert wire.line() == b"*0"


def test_client_kill_ends_another_connection_and_its_blocked_read() -> None:
    with RespServer() as served, served.connect() as reader, served.connect() as other:
        number = reader.ask(b"CLIENT", b"ID")[1:]
        reader.words(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"0")
        served.until(lambda: blocked(served))
        assert other.ask(b"CLIENT", b"KILL", b"ID", number) == b":1"
        assert reader.rest() == b""
        served.until(lambda: unblocked(served) and served.server.connections == 1)
        assert other.ask(b"CLIENT", b"KILL", b"ID", number) == b":0"


# ---- the end ----------------------------------------------------------------------------------


def test_what_was_sent_before_the_end_is_done_and_answered() -> None:
    with RespServer() as served, served.connect() as wire:
        wire.send(frame(b"TWRITE", b"s", b"t", b"x") * 20 + frame(b"PING"))
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.rest() == b"".join(b":%d\r\n" % n for n in range(20)) + b"+PONG\r\n"


def test_writes_that_were_received_happen_though_their_client_is_gone() -> None:
    with RespServer() as served:
        for _ in range(5):
            wire = served.connect()
            wire.send(frame(b"TWRITE", b"s", b"t", b"x") * 100 + frame(b"PING"))
            wire.close()
        with served.connect() as wire:
            served.until(lambda: served.server.connections == 1)

            def written() -> bytes:
                wire.words(b"TREAD", b"s", b"0", b"0", b"WITHINFO")
                return [wire.line() for _ in range(4)][3]

            for _ in range(1000):
                if written() == b":499":
                    break
            assert written() == b":499"


def test_a_look_of_a_group_for_somebody_who_is_gone_does_not_happen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing would ever bring again what it found."""
    with RespServer() as served, served.connect() as other:
        assert other.ask(b"TWRITE", b"s", b"t", b"x") == b":0"
        go = served.call(asyncio.Event)
        store = served.broker.committer._require_store()
        commit = store.commit

        async def slow(*arguments: Any, **options: Any) -> None:
            await go.wait()
            await commit(*arguments, **options)

        monkeypatch.setattr(store, "commit", slow)
        wire = served.connect()
        wire.words(b"TWRITE", b"s", b"t", b"y")
        served.until(lambda: any(c.busy for c in clients(served)))
        # Alone behind what is under way, and the last one that came.
        wire.words(b"TREAD", b"s", b"0", b"9", b"GROUP", b"g")
        served.until(lambda: any(c.waiting for c in clients(served)))
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
        served.until(lambda: served.server.connections == 1)
        commands = served.server.counts.commands
        served.call(go.set)
        served.until(lambda: served.server.counts.commands > commands)  # it had its turn
        assert other.ask(b"TLEN", b"s") == b":2"
        assert other.ask(b"TGROUP", b"INFO", b"s") == b"*0"


def test_writes_behind_replies_that_nobody_read_happen_too() -> None:
    with RespServer(limits=Limits(unread_bytes=100_000)) as served, served.connect() as other:
        assert other.ask(b"TWRITE", b"s", b"t", b"x" * 1_000_000) == b":0"
        wire = served.connect()
        read, write = frame(b"TREAD", b"s", b"0", b"1"), frame(b"TWRITE", b"s2", b"t", b"x")
        wire.send(read * 50 + write + read + frame(b"PING") + write)
        served.until(lambda: any(c._choked and c.waiting for c in clients(served)))
        wire.close()
        served.until(lambda: served.server.connections == 1)
        while other.ask(b"TLEN", b"s2") != b":2":
            assert served.server.connections == 1


def test_quit_answers_and_closes_and_what_is_behind_it_is_dropped() -> None:
    with RespServer() as served, served.connect() as wire:
        wire.send(frame(b"PING") + frame(b"QUIT") + frame(b"PING"))
        assert wire.rest() == b"+PONG\r\n+OK\r\n"


def test_a_bug_in_a_command_is_logged_once_and_answered_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    with RespServer() as served, served.connect() as wire:
        served.expects_log = True
        monkeypatch.setattr(served.broker.streams, "info", broken)
        assert wire.ask(b"TLEN", b"s") == b"-ERR internal error"
        assert wire.ask(b"PING") == b"+PONG"
        assert served.log == ["TLEN failed"]
        assert served.server.counts.internal_errors == 1


LONE = ((b"TWRITE", b"other", b"t", b"x"), b":0\r\n")
ENTRIES = ((b"TWRITE", b"other", b"ENTRIES", b"t", b"x"), b"*2\r\n:0\r\n:0\r\n")


@pytest.mark.parametrize(("words", "reply"), [LONE, ENTRIES])
def test_closing_lets_commands_in_flight_finish(
    monkeypatch: pytest.MonkeyPatch, words: tuple[bytes, ...], reply: bytes
) -> None:
    with RespServer() as served, served.connect() as wire, served.connect() as idle:
        reader = served.connect()
        reader.words(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"0")
        served.until(lambda: blocked(served))
        go = served.call(asyncio.Event)
        store = served.broker.committer._require_store()
        commit = store.commit

        async def slow(*arguments: Any, **options: Any) -> None:
            await go.wait()
            await commit(*arguments, **options)

        monkeypatch.setattr(store, "commit", slow)
        assert idle.ask(b"PING") == b"+PONG"
        wire.words(*words)
        served.until(lambda: any(c.busy and not c.blocked for c in clients(served)))
        # In a list, because `call` would wait for it.
        (closing,) = served.call(lambda: [asyncio.ensure_future(served.server.close())])
        assert idle.rest() == b""
        assert reader.rest() == b""
        served.call(go.set)
        assert wire.rest() == reply
        served.until(closing.done)
        with pytest.raises(ConnectionError):
            Wire(served.port).ask(b"PING")
        reader.close()


def test_who_connects_while_the_server_closes_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error would be taken for an answer; a client that finds nobody looks for the next one."""
    with RespServer() as served:
        event = served.call(asyncio.Event)
        monkeypatch.setattr(served.server, "_empty", event)
        heard = b""
        with served.connect() as late, contextlib.suppress(ConnectionError):
            heard = late.rest()
        assert heard == b""
        monkeypatch.undo()


def clients(served: RespServer) -> list[Connection]:
    return list(served.server.clients.values())


@pytest.mark.parametrize("words", [LONE[0], ENTRIES[0]])
def test_closing_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, words: tuple[bytes, ...]
) -> None:
    with RespServer(limits=Limits(close_seconds=0.05)) as served, served.connect() as wire:
        go = served.call(asyncio.Event)

        store = served.broker.committer._require_store()
        commit = store.commit

        async def stuck(*arguments: Any, **options: Any) -> None:
            await go.wait()
            await commit(*arguments, **options)

        monkeypatch.setattr(store, "commit", stuck)
        wire.words(*words)
        served.until(lambda: any(c.busy for c in clients(served)))
        served.call(served.server.close)
        assert wire.rest() == b""
        served.call(go.set)


# ---- bounds -----------------------------------------------------------------------------------


def test_reading_pauses_while_too_much_waits_and_goes_on_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = Limits(waiting_bytes=100_000)
    with RespServer(limits=limits) as served, served.connect() as wire:
        go = served.call(asyncio.Event)
        info = served.broker.streams.info

        async def slow(*arguments: object) -> object:
            await go.wait()
            return await info(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(served.broker.streams, "info", slow)
        count = 110_000
        wire.socket.settimeout(0.5)
        data = (frame(b"TLEN", b"s") + frame(b"ECHO", b"x" * 100) * 10) * (count // 11)
        sent = send_until_full(wire, data)
        assert sent < len(data)
        (connection,) = served.server.clients.values()
        assert connection._paused
        assert connection._queue_bytes < 2_000_000
        wire.socket.settimeout(60)
        served.call(go.set)
        rest = threading.Thread(target=wire.socket.sendall, args=(data[sent:],))
        rest.start()
        for _ in range(count // 11):
            assert wire.line() == b":0"
            assert wire.read(1080) == (b"$100\r\n" + b"x" * 100 + b"\r\n") * 10
        rest.join()


def send_until_full(wire: Wire, data: bytes) -> int:
    """-> how much the other side took before it stopped reading"""
    sent = 0
    try:
        while sent < len(data):
            sent += wire.socket.send(data[sent : sent + 65536])
    except TimeoutError:
        pass
    return sent


def test_a_client_that_does_not_read_is_cut_and_counted_and_harms_nobody() -> None:
    limits = Limits(unread_bytes=100_000, unread_seconds=0.1)
    with RespServer(limits=limits) as served, served.connect() as slow, served.connect() as other:
        assert other.ask(b"TWRITE", b"s", b"t", b"x" * 100_000) == b":0"
        slow.send(frame(b"TREAD", b"s", b"0", b"1") * 1000)
        while served.server.counts.cut_unread == 0:
            assert other.ask(b"TWRITE", b"s2", b"t", b"x")[:1] == b":"
        served.until(lambda: served.server.connections == 1)
        # It never got more than fits: what was made for it was held back.
        assert served.server.counts.commands < 1000 + 10**6
        assert other.ask(b"PING") == b"+PONG"


def test_replies_wait_while_they_are_not_read() -> None:
    """Nothing is made for a client that has more than enough to read."""
    limits = Limits(unread_bytes=100_000)
    with RespServer(limits=limits) as served, served.connect() as slow:
        assert slow.ask(b"TWRITE", b"s", b"t", b"x" * 1_000_000) == b":0"
        slow.send(frame(b"TREAD", b"s", b"0", b"1") * 1000)
        (connection,) = served.server.clients.values()
        served.until(lambda: connection._choked)
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 3_000_000
        assert connection.waiting > 900
        expected = b"*1\r\n" + entry(0, b"t", b"x" * 1_000_000)
        for _ in range(1000):
            assert slow.read(len(expected)) == expected


def test_output_beyond_the_limit_cuts_at_once() -> None:
    limits = Limits(unread_bytes=3_000_000, output_bytes=3_000_000)
    with RespServer(limits=limits) as served, served.connect() as slow:
        assert slow.ask(b"TWRITE", b"s", b"t", b"x" * 2_000_000) == b":0"
        slow.send(frame(b"TREAD", b"s", b"0", b"1") * 1000)
        served.until(lambda: served.server.counts.cut_unread == 1)
        served.until(lambda: served.server.connections == 0)


def test_a_blocked_client_that_sends_on_and_on_is_cut() -> None:
    limits = Limits(blocked_bytes=1_000_000)
    with RespServer(limits=limits) as served, served.connect() as wire:
        wire.words(b"TREAD", b"s", b"0", b"9", b"BLOCK", b"0")
        served.until(lambda: blocked(served))
        with pytest.raises(ConnectionError):
            wire.send(frame(b"ECHO", b"x" * 10_000) * 10_000)
        served.until(lambda: unblocked(served) and not served.server.connections)
        assert served.server.counts.cut_waiting == 1


def test_unfinished_requests_together_are_bounded() -> None:
    limits = Limits(unfinished_bytes=1_000_000)
    with RespServer(limits=limits) as served:
        wires = [served.connect() for _ in range(5)]
        for wire in wires[:4]:
            wire.send(b"*2\r\n$4\r\nECHO\r\n$900000\r\n" + b"x" * 240_000)
        served.until(lambda: served.server._unfinished_bytes > 950_000)
        wires[4].send(b"*2\r\n$4\r\nECHO\r\n$900000\r\n" + b"x" * 240_000)
        assert b"unfinished" in wires[4].line()
        for wire in wires[:4]:
            wire.close()
        served.until(lambda: not served.server.connections)
        assert served.server._unfinished_bytes == 0
        with served.connect() as wire:
            assert wire.ask(b"ECHO", b"x" * 900_000) == b"$900000"
        wires[4].close()


def test_connections_beyond_the_limit_are_turned_away() -> None:
    with RespServer(limits=Limits(connections=2)) as served:
        with served.connect() as one, served.connect() as two:
            assert one.ask(b"PING") == two.ask(b"PING") == b"+PONG"
            with served.connect() as three:
                assert three.rest() == b"-ERR max number of clients reached\r\n"
            assert served.server.counts.rejected == 1
        served.until(lambda: not served.server.connections)
        with served.connect() as again:
            assert again.ask(b"PING") == b"+PONG"


def test_many_commands_at_once_leave_others_their_turn() -> None:
    """A connection's commands that are answered at once come in turns."""
    limits = Limits(request=RequestLimits(), waiting_requests=100_000)
    with RespServer(limits=limits) as served, served.connect() as busy, served.connect() as other:
        busy.send(frame(b"PING") * 20_000)
        assert other.ask(b"PING") == b"+PONG"
        assert all(busy.line() == b"+PONG" for _ in range(20_000))


# ---- the server -------------------------------------------------------------------------------


def test_a_unix_socket_serves_the_same(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with RespServer() as served:
        served.call(lambda: served.server.listen_unix(path))
        with socket.socket(socket.AF_UNIX) as wire, wire.makefile("rb") as file:
            wire.settimeout(60)
            wire.connect(str(path))
            wire.sendall(frame(b"TWRITE", b"s", b"t", b"x") + frame(b"CLIENT", b"INFO"))
            assert file.readline() == b":0\r\n"
            size = int(file.readline()[1:])
            assert f"laddr={path}:0".encode() in file.read(size + 2)


def test_idle_seconds_count_from_the_end_of_the_last_connection() -> None:
    with RespServer() as served:
        served.until(lambda: served.server.idle_seconds > 0)
        with served.connect() as one:
            assert one.ask(b"PING") == b"+PONG"
            assert served.server.connections == 1
            assert served.server.idle_seconds == 0
        served.until(lambda: served.server.idle_seconds > 0)
        assert served.server.connections == 0


@pytest.mark.parametrize(
    ("failure", "reply", "log"),
    [
        (UnavailableError("no disk"), b"-UNAVAILABLE no disk", []),
        (ZeroDivisionError("a bug"), b"-ERR internal error", ["TWRITE failed"]),
    ],
)
def test_a_lone_write_that_fails_is_answered_and_the_connection_goes_on(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, reply: bytes, log: list[str]
) -> None:
    with RespServer() as served, served.connect() as wire:
        served.expects_log = True

        def broken(*arguments: object) -> asyncio.Future[range]:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(failure)
            return future

        with monkeypatch.context() as patch:
            patch.setattr(served.broker.streams, "post", broken)
            assert wire.ask(b"TWRITE", b"s", b"t", b"x").startswith(reply)
        assert served.log == log
        assert wire.ask(b"TWRITE", b"s", b"t", b"x") == b":0"


def test_a_lone_write_of_somebody_who_left_is_done_all_the_same() -> None:
    with RespServer() as served:
        with served.connect() as wire:
            wire.words(b"TWRITE", b"s", b"t", b"x")
        with served.connect() as other:
            served.until(lambda: served.server.counts.connections == 2)
            served.until(lambda: served.server.connections == 1)
            served.until(lambda: served.broker.committer.health.commits == 1)
            assert other.ask(b"TLEN", b"s") == b":1"
