"""The rest of the API, each way to a broker: waiting reads, groups, settings, wrong arguments."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.checks import ack_ranges, milliseconds
from penstock.client.host import Host
from penstock.clock import SystemClock
from penstock.store.location import open_store


def data_of(found: Any) -> list[bytes | None]:
    return [message and message.data for message in found]


# Reading.


def test_a_read_that_waits_gets_the_entry_that_comes(db: penstock.Database) -> None:
    stream = db.stream("s")
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Future[Any]] = [
            pool.submit(stream.read, 0, 5, block=wait) for wait in (60, math.inf)
        ]
        waiting.append(pool.submit(stream.read_group, "g", 5, block=60))
        stream.write(b"x", tag=b"\xff", meta=b"m")
        for each in waiting:
            (message,) = each.result()
            assert (message.offset, message.data, message.meta) == (0, b"x", b"m")
            assert message.tag == "\udcff"
            assert message.time_ms > 0


def test_a_wait_that_runs_out_is_an_empty_answer(db: penstock.Database) -> None:
    stream = db.stream("s")
    assert stream.read(0, block=0.01) == []
    assert stream.read_group("g", block=0.01) == []


def test_long_reads_come_in_pieces_and_are_whole(db: penstock.Database) -> None:
    stream = db.stream("s")
    data = [os.urandom(20) for _ in range(3000)]
    big = [b"%d" % n * 300_000 for n in range(9)]
    stream.write_many(data)
    for each in big:
        stream.write(each)
    stream.evict(up_to=9)
    everything = [None] * 10 + data[10:] + big
    assert data_of(stream.read(0, 100_000)) == everything
    assert data_of(stream.read(100_000, 100_000, reverse=True)) == everything[::-1]
    assert data_of(stream.read(2999, 2, reverse=False)) == [data[2999], big[0]]
    assert data_of(stream.read(3000, 2500, reverse=True)) == everything[501:3001][::-1]
    assert stream.to_arrow(5, 2500).column("data").to_pylist() == data[10:2505]
    assert stream.to_arrow().num_rows == 2999
    assert stream.read(0, 0) == []


# Groups.


def test_a_group_delivers_each_entry_once_until_it_is_acknowledged(db: penstock.Database) -> None:
    stream = db.stream("s")
    stream.write_many([b"%d" % n for n in range(6)])
    assert data_of(stream.read_group("g", 2, retry=60, expire=3600)) == [b"0", b"1"]
    assert data_of(stream.read_group("g", 10, retry=60)) == [b"2", b"3", b"4", b"5"]
    assert stream.read_group("g", 10) == []
    assert [entry.offset for entry in stream.group("g").pending()] == list(range(6))
    assert [entry.offset for entry in stream.group("g").pending(2, 3)] == [2, 3, 4]
    first, third, *_ = stream.group("g").pending(0, 1) + stream.group("g").pending(2, 1)
    assert first.deliveries == 1
    assert first.expire_ms is not None
    assert third.expire_ms is None
    assert stream.ack("g", 0, range(1, 3), range(9, 9), range(100, 200)) == 3
    assert stream.ack("g", 0) == 0
    assert stream.ack("g") == 0
    assert stream.ack("g", range(3, 6, 2)) == 2
    info = stream.group("g").info()
    assert (info.name, info.pending, info.last_offset, info.ack_offset) == ("g", 1, 5, 4)
    assert stream.groups() == [info]
    assert stream.info().groups == 1


def test_a_group_begins_where_it_is_told_and_is_moved_and_removed(db: penstock.Database) -> None:
    stream = db.stream("s")
    stream.write_many([b"0", b"1"])
    assert stream.read_group("new", 9, start="new") == []
    assert data_of(stream.read_group("one", 9, start=1)) == [b"1"]
    group = stream.group("made")
    group.create(start="first", max_pending=1, dead="dead")
    assert (group.info().max_pending, group.info().dead) == (1, "dead")
    assert data_of(stream.read_group("made", 9, retry=60)) == [b"0"]
    assert stream.read_group("made", 9, retry=60) == [], "one may be pending"
    group.set(0)
    assert data_of(stream.read_group("made", 9, retry=60)) == [b"0"]
    assert [info.name for info in stream.groups()] == ["made", "new", "one"]
    assert group.destroy() is True
    assert group.destroy() is False
    with pytest.raises(penstock.NotFoundError):
        group.info()
    with pytest.raises(penstock.NotFoundError):
        group.set(0)


# Streams as such.


def test_streams_are_listed_configured_and_deleted(db: penstock.Database) -> None:
    for name in ("clicks", "clocks", "views", "\u00fc"):
        db.stream(name).write(b"x")
    assert db.streams() == ["clicks", "clocks", "views", "\u00fc"]
    assert db.streams("cl?cks") == ["clicks", "clocks"]
    stream = db.stream("clicks")
    stream.configure(max_count=5, max_bytes=1 << 20, max_age=1.5, compact=True)
    config = stream.info().config
    assert (config.max_count, config.max_bytes, config.max_age_ms) == (5, 1 << 20, 1500)
    assert config.compact
    stream.configure()
    config = stream.info().config
    assert (config.max_count, config.max_bytes, config.max_age_ms) == (None, None, None)
    assert not config.compact
    assert stream.delete() is True
    assert stream.delete() is False
    assert "clicks" not in db.streams()
    assert stream.info().created_ms is None
    assert stream.write(b"again") == 0


# Wrong arguments.

WRONG_DURATIONS: list[Any] = [-1, -0.001, math.nan, -math.inf, "1", None, True, 1e300]


@pytest.mark.parametrize(
    "call",
    [
        *(lambda s, w=w: s.read(0, block=w) for w in WRONG_DURATIONS),
        *(lambda s, w=w: s.read_group("g", block=w) for w in WRONG_DURATIONS),
        *(lambda s, w=w: s.read_group("g", retry=w) for w in WRONG_DURATIONS if w is not None),
        *(lambda s, w=w: s.configure(max_age=w) for w in WRONG_DURATIONS if w is not None),
        lambda s: s.read_group("g", retry=math.inf),
        lambda s: s.read_group("g", expire=5),
        lambda s: s.read_group("g", retry=1, expire=0),
        lambda s: s.read_group("g", retry=1, expire=-1),
        lambda s: s.read_group("g", -1),
        lambda s: s.read_group("g", 1.5),
        lambda s: s.read_group("", 1),
        lambda s: s.read_group("x" * 256, 1),
        lambda s: s.read_group(b"g", 1),
        lambda s: s.read_group("g", start="last"),
        lambda s: s.read_group("g", start=-1),
        lambda s: s.read_group("g", start=None),
        lambda s: s.read(0, reverse="yes"),
        lambda s: s.read(1 << 63),
        lambda s: s.read(True),
        lambda s: s.write(b"x", meta="text"),
        lambda s: s.ack("g", -1),
        lambda s: s.ack("g", "1"),
        lambda s: s.ack("g", True),
        lambda s: s.ack("g", range(-5, 3)),
        lambda s: s.ack(5, 1),
        lambda s: s.configure(max_count=-1),
        lambda s: s.configure(max_bytes=1.5),
        lambda s: s.configure(compact="yes"),
        lambda s: s.configure(max_count=True),
        lambda s: s.group(""),
        lambda s: s.group("g").create(start="middle"),
        lambda s: s.group("g").create(max_pending=0),
        lambda s: s.group("g").create(dead=""),
        lambda s: s.group("g").create(dead=5),
        lambda s: s.group("g").set("middle"),
        lambda s: s.group("g").pending(-1),
        lambda s: s.group("g").pending(0, -1),
        lambda s: s._database.streams(5) if hasattr(s, "_database") else s.group(5),
    ],
)
def test_a_wrong_argument_changes_nothing(
    shared_db: penstock.Database, name: str, call: Any
) -> None:
    stream = shared_db.stream(name)
    stream.write(b"one")
    with pytest.raises(penstock.InvalidError):
        call(stream)
    assert data_of(stream.read(0, 10)) == [b"one"]
    assert stream.groups() == []


def test_durations_become_milliseconds_and_never_nothing() -> None:
    assert milliseconds("block", 1.5) == 1500
    assert milliseconds("block", 0.0000001) == 1
    assert milliseconds("block", 0) == 0
    assert milliseconds("block", math.inf) is None


def test_ranges_become_pairs() -> None:
    assert ack_ranges([5, range(1, 4), range(3, 3), range(9, 6, -1), range(0, 5, 2)]) == [
        (5, 5),
        (1, 3),
        (7, 9),
        (0, 0),
        (2, 2),
        (4, 4),
    ]


# Handles.


def test_closed_handles_of_all_kinds_say_so(db: penstock.Database) -> None:
    stream = db.stream("s")
    group = stream.group("g")
    group.close()
    with pytest.raises(penstock.InvalidError, match="closed"):
        group.info()
    other = stream.group("g")
    stream.close()
    for call in (other.info, stream.groups, stream.delete, lambda: stream.group("h")):
        with pytest.raises(penstock.InvalidError, match="closed"):
            call()


def test_no_handle_is_pickled(db: penstock.Database) -> None:
    for handle in (db, db.stream("s"), db.stream("s").group("g"), db.queue("q")):
        with pytest.raises(penstock.InvalidError):
            pickle.dumps(handle)


def test_both_faces_have_the_same_calls_with_the_same_arguments() -> None:
    for blocking, awaited in (
        (penstock.Database, penstock.aio.AsyncDatabase),
        (penstock.Stream, penstock.aio.AsyncStream),
        (penstock.Group, penstock.aio.AsyncGroup),
        (penstock.Queue, penstock.aio.AsyncQueue),
        (penstock.ClaimedMessage, penstock.aio.AsyncClaimedMessage),
        (penstock.Consumer, penstock.aio.AsyncConsumer),
        (penstock.Topic, penstock.aio.AsyncTopic),
    ):
        names = {name for name in dir(awaited) if not name.startswith("_")}
        assert names == {name for name in dir(blocking) if not name.startswith("_")}
        for name in names - {"close", "stream", "group", "queue", "topic", "tail"}:
            method = getattr(blocking, name)
            if isinstance(method, property):
                continue
            assert inspect.signature(method) == inspect.signature(getattr(awaited, name))
            assert method.__doc__


async def test_a_cancelled_call_leaves_the_handle_as_it_was(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path) as db, db.stream("s") as stream:
        waiting = asyncio.create_task(stream.read(0, block=math.inf))
        grouped = asyncio.create_task(stream.read_group("g", block=math.inf))
        await asyncio.sleep(0.05)
        for task in (waiting, grouped):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await stream.write(b"x") == 0
        assert data_of(await stream.read_group("g", retry=60)) == [b"x"], "nobody else got it"
        results = await asyncio.gather(*(stream.write(b"%d" % n) for n in range(50)))
        assert sorted(results) == list(range(1, 51))


def test_a_close_ends_reads_that_wait(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        db = penstock.open(tmp_path)
        client = penstock.open(tmp_path)
        waiting = pool.submit(db.stream("s").read, 0, block=math.inf)
        beside = pool.submit(client.stream("s").read, 0, block=math.inf)
        db.stream("s").info()
        client.close()
        with pytest.raises(penstock.InvalidError, match="closed"):
            beside.result()
        db.close()
        with pytest.raises(penstock.InvalidError, match="closed"):
            waiting.result()


def _calls_find_out_first(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """That the epoch is lost: else a broker may be back before the call that should be told.
    The host looks for itself once the event is set."""
    found_out, watch = threading.Event(), Host._watch

    async def later(host: Host, on_fenced: Callable[[], None]) -> None:
        await asyncio.to_thread(found_out.wait)
        await watch(host, on_fenced)

    monkeypatch.setattr(Host, "_watch", later)
    monkeypatch.setattr("penstock.broker.streams.WATCH_SECONDS", 3600)
    return found_out


async def test_a_process_that_lost_its_epoch_is_told_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_out = _calls_find_out_first(monkeypatch)
    db = await penstock.aio.open(tmp_path)
    stream = db.stream("s")
    assert await stream.write(b"0") == 0
    waiting = asyncio.create_task(stream.read(1, block=60))
    await stream.info()
    store = await open_store(str(tmp_path), clock=SystemClock())
    with pytest.raises(penstock.FencedError):
        await stream.write(b"lost")
    found_out.set()
    await store.close()
    assert await stream.write(b"1") == 1
    assert data_of(await waiting) == [b"1"]
    assert data_of(await stream.read(0, 9)) == [b"0", b"1"]
    await db.close()


async def test_clients_of_a_broker_that_lost_its_epoch_hear_of_a_lost_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FencedError is for the process that was the broker; for others it is just gone."""
    found_out = _calls_find_out_first(monkeypatch)
    broker = await penstock.aio.open(tmp_path)
    client = await penstock.aio.open(tmp_path)
    stream = client.stream("s")
    assert await stream.write(b"0") == 0
    waiting = asyncio.create_task(stream.read(1, block=60))
    store = await open_store(str(tmp_path), clock=SystemClock())
    with pytest.raises(penstock.UnavailableError):
        await stream.write(b"lost")
    found_out.set()
    await store.close()
    assert data_of(await stream.read(0, 9)) == [b"0"]
    assert await broker.stream("s").write(b"1") == 1
    assert data_of(await waiting) == [b"1"]
    await client.close()
    await broker.close()


def test_where_no_socket_can_be_made_a_process_works_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(self: object, path: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("penstock.server.serve.Server.listen_unix", refuse)
    with penstock.open(tmp_path) as db:
        assert db.stream("s").write(b"x") == 0
        assert "other processes cannot connect" in caplog.text
        with pytest.raises(penstock.UnavailableError, match="is open in another process"):
            penstock.open(tmp_path, deadline=0.2)
        assert db.stream("s").write(b"y") == 1
