"""Consumers of a topic: what handlers get, in which order, and what becomes of it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import CorruptError, InvalidError, NotFoundError, UnavailableError
from penstock.broker.topicanswers import Joined, Part, Polled
from penstock.broker.topictails import TopicTails
from penstock.client.handling import Handling, Manner
from penstock.client.remote_topics import RemoteTopics
from penstock.client.tail import Tailing
from penstock.clock import SystemClock
from penstock.topic.read import read_messages
from penstock.topic.state import topic_name
from unit.client.conftest import opened

PATIENCE_SECONDS = 20.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["inside", "socket"])
def db(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[penstock.Database]:
    with opened(request.param, tmp_path_factory.mktemp("tail") / "d", request) as database:
        yield database


@pytest.fixture
def topic(db: penstock.Database) -> penstock.Topic:
    return db.topic(f"t{next(_numbers)}")


def until(true: Callable[[], object]) -> None:
    """Wait for something that will come; how long that takes is no part of a test."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


def settled(topic: penstock.Topic) -> bool:
    stats = topic.stats()
    return stats.acked + stats.errored == stats.inserted and not stats.replays


def balanced(topic: penstock.Topic) -> bool:
    stats = topic.stats()
    return stats.emitted >= stats.acked + stats.errored + stats.running


# ---- what a handler gets ----------------------------------------------------------------------


def test_a_handler_gets_each_message_with_all_its_fields(topic: penstock.Topic) -> None:
    seen: list[penstock.TopicMessage] = []
    topic.push(b"x", shard_key="k")
    topic.push_many([("k", b"y"), (None, b"z"), ("ü", b"")])
    with topic.tail(seen.append, consumer="c1") as consumer:
        assert (consumer.id, consumer.batch_size, consumer.is_acking) == ("c1", 100, True)
        until(lambda: settled(topic))
        (info,) = topic.consumers()
        assert (info.id, info.slots, info.zombie) == ("c1", list(range(32)), False)
    by_offset = sorted(seen, key=lambda message: message.offset)
    assert [(m.offset, m.shard_key, m.data, m.replay, m.attempt) for m in by_offset] == [
        (0, "k", b"x", False, 1),
        (1, "k", b"y", False, 1),
        (2, None, b"z", False, 1),
        (3, "ü", b"", False, 1),
    ]
    assert [m.delivery_id for m in by_offset] == [(topic.name, i) for i in range(4)]
    assert by_offset[0].time <= by_offset[1].time
    assert by_offset[0].time.tzinfo is not None
    assert topic.consumers() == []


def test_workers_handle_keys_at_once_but_each_key_one_after_the_other(
    topic: penstock.Topic,
) -> None:
    at_once, most = 0, 0
    lock = threading.Lock()
    running: set[str | None] = set()
    order: dict[str | None, list[int]] = defaultdict(list)
    meeting = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def handle(message: penstock.TopicMessage) -> None:
        nonlocal at_once, most
        with lock:
            assert message.shard_key not in running
            running.add(message.shard_key)
            order[message.shard_key].append(message.offset)
            at_once += 1
            most = max(most, at_once)
        if len(order[message.shard_key]) == 1:
            meeting.wait()  # three keys are handled at once
        with lock:
            running.discard(message.shard_key)
            at_once -= 1

    topic.push_many([(f"k{i % 3}", b"%d" % i) for i in range(300)])
    with topic.tail(handle, workers=3, batch_size=50):
        until(lambda: settled(topic))
    assert topic.errors() == []
    assert most == 3
    assert {key: offsets == sorted(offsets) for key, offsets in order.items()} == {
        "k0": True, "k1": True, "k2": True,
    }  # fmt: skip
    assert sum(map(len, order.values())) == 300


def test_without_acking_a_message_is_done_when_it_is_handed_out(topic: penstock.Topic) -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        begun.set()
        end.wait(PATIENCE_SECONDS)

    topic.push(b"x")
    with topic.tail(handle, ack=False):
        assert begun.wait(PATIENCE_SECONDS)
        assert topic.stats().acked == 1
        end.set()


def test_with_acking_a_message_is_done_when_its_handler_returns(topic: penstock.Topic) -> None:
    begun, end = threading.Event(), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        begun.set()
        end.wait(PATIENCE_SECONDS)

    topic.push(b"x")
    with topic.tail(handle):
        assert begun.wait(PATIENCE_SECONDS)
        stats = topic.stats()
        assert (stats.emitted, stats.acked, stats.running) == (1, 0, 1)
        end.set()
        until(lambda: topic.stats().acked == 1)


def test_without_acking_what_was_not_handled_is_left_to_others(topic: penstock.Topic) -> None:
    first: list[int] = []
    enough = threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        first.append(message.offset)
        if len(first) == 5:
            enough.set()

    topic.push_many([("k", b"")] * 5)
    with topic.tail(handle, ack=False):
        assert enough.wait(PATIENCE_SECONDS)
        topic.push_many([("k", b"")] * 200)
    assert topic.stats().acked == len(first), "what was fetched ahead was not handed out"
    second: list[int] = []
    with topic.tail(lambda message: second.append(message.offset), ack=False):
        until(lambda: settled(topic))
    assert first + second == list(range(205))


def test_without_acking_a_pause_leaves_what_was_fetched_ahead(topic: penstock.Topic) -> None:
    seen: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        seen.append(message.offset)

    topic.push_many([("k", b"")] * 20)
    with topic.tail(handle, ack=False, heartbeat=0.3):
        assert begun.wait(PATIENCE_SECONDS)
        assert topic.pause(wait=PATIENCE_SECONDS) is True
        stats = topic.stats()
        assert (stats.acked, stats.running, stats.waiting) == (1, 0, 19)
        go_on.set()
        until(lambda: seen == [0])
        assert topic.stats().acked == 1
        topic.play()
        until(lambda: len(seen) == 20)
    assert seen == list(range(20))


def test_without_acking_large_messages_are_all_handled(topic: penstock.Topic) -> None:
    """One answer does not hold all of them."""
    seen: list[int] = []
    for _ in range(20):
        topic.push(bytes(1 << 20), shard_key="k")
    with topic.tail(lambda message: seen.append(message.offset), ack=False):
        until(lambda: len(seen) == 20)
    assert seen == list(range(20))


def test_without_acking_keys_stay_in_order_when_another_consumer_joins(
    topic: penstock.Topic,
) -> None:
    lock = threading.Lock()
    order: dict[str | None, list[int]] = defaultdict(list)
    some = threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        with lock:
            order[message.shard_key].append(message.offset)
            some.set()

    def handle_slowly(message: penstock.TopicMessage) -> None:
        handle(message)
        time.sleep(0.002)  # the other one comes while much of what was fetched is not begun

    topic.push_many([(f"k{i % 8}", b"") for i in range(400)])
    with topic.tail(handle_slowly, ack=False):
        assert some.wait(PATIENCE_SECONDS)
        with topic.tail(handle, ack=False, workers=3):
            until(lambda: settled(topic))
    assert sum(map(len, order.values())) == 400
    # What was handed out is done: it alone may be late when its key has moved on.
    assert all(
        any(
            offsets[:i] + offsets[i + 1 :] == sorted(set(offsets) - {late})
            for i, late in enumerate(offsets)
        )
        for offsets in order.values()
    )


# ---- failures ---------------------------------------------------------------------------------


def test_a_handler_that_raises_is_recorded_and_its_key_goes_on(topic: penstock.Topic) -> None:
    seen: list[bytes] = []

    def handle(message: penstock.TopicMessage) -> None:
        seen.append(message.data)
        if message.data == b"bad":
            raise ValueError("no such thing")

    topic.push_many([("k", b"a"), ("k", b"bad"), ("k", b"b")])
    with topic.tail(handle, consumer="c"):
        until(lambda: settled(topic))
    assert seen == [b"a", b"bad", b"b"]
    (error,) = topic.errors()
    assert (error.offset, error.shard_key, error.data, error.consumer) == (1, "k", b"bad", "c")
    assert error.error == "ValueError: no such thing"
    assert (error.attempts, error.final, error.replay) == (1, True, False)
    stats = topic.stats()
    assert (stats.acked, stats.errored) == (2, 1)


def test_a_failed_message_is_tried_again_before_its_key_goes_on(topic: penstock.Topic) -> None:
    seen: list[tuple[bytes, int]] = []

    def handle(message: penstock.TopicMessage) -> None:
        seen.append((message.data, message.attempt))
        if message.data == b"bad" or (message.data == b"late" and message.attempt < 3):
            raise ValueError("not yet")

    topic.push_many([("k", b"late"), ("k", b"bad"), ("k", b"b")])
    with topic.tail(handle, max_attempts=3):
        until(lambda: settled(topic))
    assert seen == [
        (b"late", 1), (b"late", 2), (b"late", 3),
        (b"bad", 1), (b"bad", 2), (b"bad", 3),
        (b"b", 1),
    ]  # fmt: skip
    finals = {error.offset: (error.attempts, error.final) for error in topic.errors()}
    assert finals[1] == (3, True)
    stats = topic.stats()
    assert (stats.acked, stats.errored) == (2, 1)


def test_without_acking_failures_are_tried_again_by_the_same_consumer(
    topic: penstock.Topic,
) -> None:
    seen: list[int] = []
    done = threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        seen.append(message.attempt)
        if message.attempt == 3:
            done.set()
        raise ValueError("never")

    topic.push(b"x")
    with topic.tail(handle, ack=False, max_attempts=3):
        assert done.wait(PATIENCE_SECONDS)
    assert seen == [1, 2, 3]


def test_all_errors_are_listed_however_large_their_messages_are(topic: penstock.Topic) -> None:
    def handle(message: penstock.TopicMessage) -> None:
        raise ValueError("no")

    for _ in range(18):
        topic.push(bytes(1 << 20))
    with topic.tail(handle):
        until(lambda: topic.stats().errored == 18)
    assert [error.offset for error in topic.errors()] == list(range(18))


def test_all_errors_are_listed_with_those_of_replays(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.topic.ERRORS_PAGE", 3)

    def handle(message: penstock.TopicMessage) -> None:
        raise ValueError("no")

    topic.push_many([b"x"] * 7)
    with topic.tail(handle):
        until(lambda: settled(topic))
        topic.replay(0)
        until(lambda: settled(topic))
    found = [(error.offset, error.replay) for error in topic.errors()]
    assert found == [(offset, replay) for offset in range(7) for replay in (False, True)]


# ---- transactions -----------------------------------------------------------------------------


def test_what_a_transaction_adds_is_there_when_its_message_is_acknowledged(
    db: penstock.Database, topic: penstock.Topic
) -> None:
    stream, queue, other = f"{topic.name}-s", f"{topic.name}-q", f"{topic.name}-t"
    db.create_queue(queue, filter="false")

    def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        tx.write(stream, message.data, tag=message.shard_key or "")
        tx.push(other, message.data, shard_key="o")
        tx.publish(message.data, {"h": "1"}, to=queue)
        if message.data == b"bad":
            raise ValueError("and nothing of it happens")

    topic.push_many([("k", b"a"), ("k", b"bad"), ("k", b"b")])
    with topic.tail(handle, tx=True):
        until(lambda: settled(topic))
    found = db.stream(stream).read(0, 10)
    assert [(m.tag, m.data) for m in found if m] == [("k", b"a"), ("k", b"b")]
    assert db.topic(other).stats().inserted == 2
    claimed = db.queue(queue).claim(10)
    assert [(m.payload, m.headers) for m in claimed] == [(b"a", {"h": "1"}), (b"b", {"h": "1"})]
    assert [error.error for error in topic.errors()] == ["ValueError: and nothing of it happens"]


def test_an_effect_that_is_refused_is_a_failure_and_what_came_after_it_is_handled_again(
    db: penstock.Database, topic: penstock.Topic
) -> None:
    stream = f"{topic.name}-s"
    seen: list[tuple[bytes, int]] = []

    def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        seen.append((message.data, message.attempt))
        tx.write(stream, message.data)
        if message.data == b"bad":
            tx.publish(b"x", to="there is no such queue")
        if (message.data, message.attempt) == (b"late", 1):
            tx.publish(b"x", to="nor this one")

    topic.push_many([("k", data) for data in (b"a", b"late", b"b", b"bad", b"c")])
    with topic.tail(handle, tx=True, max_attempts=2):
        until(lambda: settled(topic))
    found = [m.data for m in db.stream(stream).read(0, 20) if m]
    assert found == [b"a", b"late", b"b", b"c"], "in order, once, nothing of the refused ones"
    assert [each for each in seen if each[0] in (b"late", b"bad")][:2] == [
        (b"late", 1),
        (b"late", 2),
    ] or (b"late", 2) in seen
    finals = [error for error in topic.errors() if error.final]
    assert [error.data for error in finals] == [b"bad"]
    assert "there is no such queue" in finals[0].error
    assert balanced(topic)


def test_a_transaction_whose_handler_raised_is_closed(topic: penstock.Topic) -> None:
    kept: list[penstock.Tx] = []

    def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        kept.append(tx)
        raise ValueError("no")

    topic.push(b"x")
    with topic.tail(handle, tx=True):
        until(lambda: settled(topic))
    with pytest.raises(InvalidError, match="is done"):
        kept[0].write("s", b"x")


def test_a_transaction_is_checked_where_it_is_used(topic: penstock.Topic) -> None:
    wrong: list[str] = []
    kept: list[penstock.Tx] = []

    def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        calls: list[Callable[[], None]] = [
            lambda: tx.push("t", "text"),  # type: ignore[arg-type]
            lambda: tx.push("", b""),
            lambda: tx.push("t", b"", shard_key="k" * 70_000),
            lambda: tx.write("s", "text"),  # type: ignore[arg-type]
            lambda: tx.write("", b""),
            lambda: tx.publish("text"),  # type: ignore[arg-type]
            lambda: tx.publish(b"", delay=-1),
        ]
        for call in calls:
            with pytest.raises(InvalidError) as found:
                call()
            wrong.append(str(found.value))
        kept.append(tx)

    topic.push(b"x")
    with topic.tail(handle, tx=True):
        until(lambda: settled(topic))
    assert len(wrong) == 7, topic.errors()
    with pytest.raises(InvalidError, match="is done"):
        kept[0].write("s", b"too late")


# ---- ends -------------------------------------------------------------------------------------


def test_shutdown_finishes_what_runs_and_leaves_the_rest_to_others(topic: penstock.Topic) -> None:
    begun, end = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(message: penstock.TopicMessage) -> None:
        seen.append(message.offset)
        begun.set()
        end.wait(PATIENCE_SECONDS)

    topic.push_many([("k", b"%d" % i) for i in range(10)])
    consumer = topic.tail(handle)
    assert begun.wait(PATIENCE_SECONDS)
    shutting = threading.Thread(target=consumer.shutdown)
    shutting.start()
    until(lambda: consumer._handling.stopped)
    end.set()
    shutting.join()
    assert seen == [0]
    stats = topic.stats()
    assert (stats.acked, stats.waiting, stats.running) == (1, 9, 0)
    for use in (consumer.shutdown, consumer.__enter__):
        with pytest.raises(InvalidError, match="was shut down"):
            use()
    rest: list[int] = []
    with topic.tail(lambda message: rest.append(message.offset)):
        until(lambda: settled(topic))
    assert rest == list(range(1, 10))


def test_a_handler_may_shut_its_own_consumer_down(topic: penstock.Topic) -> None:
    seen: list[int] = []

    def handle(message: penstock.TopicMessage) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            consumer.shutdown()

    consumer = topic.tail(handle, batch_size=10)
    topic.push_many([("k", b"")] * 10)
    assert consumer.wait(PATIENCE_SECONDS)
    until(lambda: all(each.zombie for each in topic.consumers()))
    assert seen == [0, 1, 2]
    assert topic.stats().acked == 3


def test_what_was_refused_does_not_make_a_consumer_sure_of_the_rest(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    go_on, beats = threading.Semaphore(0), threading.Event()
    beat = Tailing._beat

    async def beat_late(self: Tailing) -> None:
        while not beats.is_set():
            await asyncio.sleep(0.002)
        await beat(self)

    def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        seen.append(message.offset)
        assert go_on.acquire(timeout=PATIENCE_SECONDS)

    monkeypatch.setattr(Tailing, "_beat", beat_late)
    topic.push_many([("k", b"%d" % i) for i in range(3)])
    with topic.tail(handle, consumer="c", tx=True, heartbeat=0.5) as consumer:
        handling = consumer._handling
        until(lambda: handling._lanes.waiting == 2)
        until(lambda: all(each.zombie for each in topic.consumers()))  # it was silent for too long
        go_on.release()
        until(lambda: consumer.lost)  # the broker has refused the first one
        assert handling.begin(wait=False) is None
        assert handling._lanes.waiting == 2
        beats.set()
        go_on.release(3)
        until(lambda: settled(topic))
    assert seen == [0, 0, 1, 2]


def test_a_damaged_topic_ends_its_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def damaged(store: Any, log: Any, offsets: Any, **options: Any) -> Any:
        if 5 in offsets.tolist():
            raise CorruptError("node 5: its checksum is wrong")
        return await read_messages(store, log, offsets, **options)

    monkeypatch.setattr("penstock.broker.topictails.read_messages", damaged)
    with penstock.open(f"memory://damaged-{next(_numbers)}") as db:
        topic = db.topic("t")
        seen: list[int] = []
        topic.push_many([("k", b"")] * 10)
        consumer = topic.tail(lambda message: seen.append(message.offset), batch_size=5)
        with pytest.raises(CorruptError, match="checksum"):
            consumer.wait(PATIENCE_SECONDS)
        with pytest.raises(CorruptError):
            consumer.shutdown()
        assert seen == list(range(5))


def test_joins_that_follow_each_other_rest_between(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    join, sleep = Tailing._join, SystemClock.sleep

    async def told_join(self: Tailing) -> None:
        happened.append("join")
        await join(self)

    async def told_sleep(self: SystemClock, seconds: float) -> None:
        if seconds == 0.0123:
            happened.append("rest")
        await sleep(self, seconds)

    async def lost(self: Tailing) -> Polled:
        raise UnavailableError("the broker was lost")

    monkeypatch.setattr("penstock.client.tail.AGAIN_SECONDS", 0.0123)
    monkeypatch.setattr(Tailing, "_join", told_join)
    monkeypatch.setattr(Tailing, "_poll", lost)
    monkeypatch.setattr(SystemClock, "sleep", told_sleep)
    with topic.tail(lambda message: None):
        until(lambda: happened.count("join") == 4)
    assert happened[:7] == ["join", "rest"] * 3 + ["join"]


def test_a_beat_that_fails_after_a_refusal_is_asked_again(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next regular one would be 200 s away, and nothing is begun before that."""
    ask, ack = Tailing._ask, Tailing.ack
    beats, acked = 0, threading.Event()

    async def fail(handling: Handling) -> None:
        while not (acked.is_set() and handling._doubting):  # nothing else will be answered
            await asyncio.sleep(0.002)
        raise penstock.UnavailableError("it did not answer in time")

    async def ack_and_tell(self: Tailing, *given: Any) -> Any:
        answer = await ack(self, *given)
        acked.set()
        return answer

    def ask_in_vain(self: Tailing, errand: Any) -> Any:
        nonlocal beats
        beats += (is_beat := "beat" in errand.__code__.co_names)
        return fail(self.handling) if is_beat and beats == 1 else ask(self, errand)

    monkeypatch.setattr(Tailing, "_ask", ask_in_vain)
    monkeypatch.setattr(Tailing, "ack", ack_and_tell)
    topic.push_many([("k", b"%d" % i) for i in range(3)])
    go_on = threading.Semaphore(0)
    with topic.tail(lambda _: go_on.acquire(), consumer="c", heartbeat=600) as consumer:
        until(lambda: consumer._handling._lanes.waiting == 2)
        consumer._handling.doubt()
        topic._thread.post(consumer._tailing.moved)
        go_on.release(3)
        until(lambda: settled(topic))
        assert beats == 2


def test_a_consumer_whose_name_is_taken_ends_and_says_why(topic: penstock.Topic) -> None:
    first = topic.tail(lambda message: None, consumer="c", heartbeat=0.3)
    with topic.tail(lambda message: None, consumer="c", heartbeat=10):
        with pytest.raises(penstock.ConflictError):
            first.wait(PATIENCE_SECONDS)
        with pytest.raises(penstock.ConflictError):
            first.shutdown()
        assert [each.id for each in topic.consumers() if not each.zombie] == ["c"]


def test_a_consumer_of_a_deleted_topic_ends_and_does_not_make_it_again(
    db: penstock.Database, topic: penstock.Topic
) -> None:
    consumer = topic.tail(lambda message: None, heartbeat=0.3)
    assert topic.delete()
    with pytest.raises(NotFoundError):
        consumer.wait(PATIENCE_SECONDS)
    assert topic.name not in db.topics()


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("of all things")


@pytest.mark.parametrize(
    "error", [OSError("no file caf\udce9"), MuteError(), ValueError("z" * (130 << 20))]
)
def test_an_error_is_recorded_whatever_its_text_is(topic: penstock.Topic, error: Exception) -> None:
    def handle(message: penstock.TopicMessage) -> None:
        if message.data == b"bad":
            raise error

    topic.push_many([("k", b"bad"), ("k", b"good")])
    with topic.tail(handle):
        until(lambda: settled(topic))
    (found,) = topic.errors()
    assert found.error.startswith(type(error).__name__)
    assert (topic.stats().acked, topic.stats().errored) == (1, 1)


@pytest.mark.parametrize("tx", [False, True])
def test_a_handler_that_cannot_be_called_is_refused_before_any_message(
    topic: penstock.Topic, tx: bool
) -> None:
    handlers: tuple[Callable[..., None], ...] = (lambda: None, lambda m: None, lambda m, tx: None)
    for count, handler in enumerate(handlers):
        if count == 1 + tx:
            topic.tail(handler, tx=tx).shutdown()
            continue
        with pytest.raises(InvalidError, match="a handler is called with"):
            topic.tail(handler, tx=tx)
    topic.tail(max, tx=tx).shutdown()  # which tells nothing about itself


class Awaited:
    async def __call__(self, message: penstock.TopicMessage) -> None:
        """Nobody does this."""


def test_a_message_whose_handler_returns_its_work_undone_is_not_acknowledged(
    topic: penstock.Topic,
) -> None:
    def generator(message: penstock.TopicMessage) -> Iterator[bytes]:
        yield message.data

    topic.push(b"x")
    with pytest.raises(InvalidError, match=r"penstock\.aio"):
        topic.tail(Awaited())
    for handler in (lambda message: Awaited()(message), generator):
        consumer = topic.tail(handler)
        with pytest.raises(InvalidError, match="instead of handling its message"):
            consumer.wait(PATIENCE_SECONDS)
        until(lambda: all(each.zombie for each in topic.consumers()))
    assert (topic.stats().acked, topic.stats().errored) == (0, 0)


def test_a_handler_at_its_end_is_the_end_of_its_consumer(topic: penstock.Topic) -> None:
    def handle(message: penstock.TopicMessage) -> None:
        raise SystemExit(3)

    topic.push(b"x")
    consumer = topic.tail(handle)
    with pytest.raises(SystemExit):
        consumer.wait(PATIENCE_SECONDS)
    with pytest.raises(SystemExit):
        consumer.shutdown()
    stats = topic.stats()
    assert (stats.acked, stats.errored, stats.waiting) == (0, 0, 1)


def test_a_consumer_hears_of_a_pause_though_its_heartbeat_is_long(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.tail.BEAT_SECONDS_MAX", 0.02)
    begun: list[int] = []
    end = threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        begun.append(message.offset)
        assert end.wait(PATIENCE_SECONDS)

    topic.push_many([("k", b"x")] * 4)
    with topic.tail(handle, heartbeat=3600):
        until(lambda: begun)
        assert not topic.pause(wait=0)
        until(lambda: topic.stats().running == 1)  # what it had fetched is given back
        end.set()
        until(lambda: topic.stats().running == 0)
        assert begun == [0]


def test_a_shutdown_acknowledges_what_a_poll_was_to_take_along(
    topic: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_along, end = threading.Event(), threading.Event()

    def hang(kind: type[TopicTails | RemoteTopics]) -> None:
        poll: Any = kind.poll

        async def polled(self: object, *args: Any, **options: Any) -> Polled:
            if options["done"]:
                taken_along.set()
                await asyncio.Event().wait()  # until it is cancelled: nobody has heard of it
            found: Polled = await poll(self, *args, **options)
            return found

        monkeypatch.setattr(kind, "poll", polled)

    hang(TopicTails)
    hang(RemoteTopics)

    def handle(message: penstock.TopicMessage) -> None:
        if message.offset == 1:
            assert end.wait(PATIENCE_SECONDS)

    topic.push_many([("k", b"x")] * 8)
    consumer = topic.tail(handle, batch_size=4)
    assert taken_along.wait(PATIENCE_SECONDS)
    consumer._handling.stop()
    end.set()
    consumer.shutdown()
    stats = topic.stats()
    assert (stats.acked, stats.waiting, consumer.lost) == (2, 6, 0)


def test_closing_the_location_ends_its_consumers_and_counts_no_failure(tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()
    db = penstock.open(tmp_path / "d")
    topic = db.topic("t")

    def handle(message: penstock.TopicMessage) -> None:
        begun.set()
        end.wait(PATIENCE_SECONDS)
        topic.stats()  # the location is being closed: this raises

    topic.push(b"x")
    topic.tail(handle)
    assert begun.wait(PATIENCE_SECONDS)
    closing = threading.Thread(target=db.close)
    closing.start()
    until(lambda: db._session.closed)
    end.set()
    closing.join()
    with penstock.open(tmp_path / "d") as again:
        stats = again.topic("t").stats()
        assert (stats.acked, stats.errored, stats.waiting) == (0, 0, 1)
        assert [each.zombie for each in again.topic("t").consumers()] == [True]


# ---- sharing ----------------------------------------------------------------------------------


def test_consumers_share_the_keys_and_take_over_from_one_that_leaves(
    topic: penstock.Topic,
) -> None:
    seen: dict[str, list[tuple[str | None, int]]] = defaultdict(list)

    def taking(who: str) -> Callable[[penstock.TopicMessage], None]:
        return lambda message: seen[who].append((message.shard_key, message.offset))

    with topic.tail(taking("a"), consumer="a") as first, topic.tail(taking("b"), consumer="b"):
        until(lambda: sorted(len(each.slots) for each in topic.consumers()) == [16, 16])
        topic.push_many([(f"k{i % 50}", b"") for i in range(500)])
        until(lambda: settled(topic))
        assert {key for key, _ in seen["a"]} & {key for key, _ in seen["b"]} == set()
        assert seen["a"] and seen["b"]  # noqa: PT018
        first.shutdown()
        topic.push_many([(f"k{i % 50}", b"") for i in range(500)])
        until(lambda: settled(topic))
    assert len(seen["a"]) + len(seen["b"]) == 1000
    offsets: dict[str | None, list[int]] = defaultdict(list)
    for key, offset in [*seen["a"], *seen["b"]]:
        offsets[key].append(offset)
    assert all(each == sorted(each) for each in offsets.values())


def test_slots_are_spread_evenly_over_consumers_that_come_and_go(topic: penstock.Topic) -> None:
    """Each change moves as few as possible: what one more gets, or what one less leaves."""

    def slots() -> dict[str, set[int]]:
        return {each.id: set(each.slots) for each in topic.consumers()}

    consumers: list[penstock.TopicConsumer] = []
    before: dict[str, set[int]] = {}
    for count in (1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1):
        if count > len(consumers):
            consumers.append(topic.tail(lambda message: None, consumer=f"c{count}"))
        else:
            consumers.pop(0).shutdown()
        now = slots()
        assert sorted(set().union(*now.values())) == list(range(32))
        sizes = [len(each) for each in now.values()]
        assert (len(sizes), sum(sizes)) == (count, 32)
        assert max(sizes) - min(sizes) <= 1
        kept = sum(len(before.get(name, set()) & mine) for name, mine in now.items())
        if count > len(before):
            fewest = 32 // count
            assert 32 - kept <= fewest or not before
        else:
            assert kept == sum(len(mine) for name, mine in before.items() if name in now)
        before = now
    consumers.pop().shutdown()


def test_pause_stops_handing_out_and_play_goes_on(topic: penstock.Topic) -> None:
    seen: list[int] = []
    first, go_on = threading.Event(), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        first.set()
        go_on.wait(PATIENCE_SECONDS)
        seen.append(message.offset)

    topic.push_many([("k", b"")] * 20)
    with topic.tail(handle, heartbeat=1.5):
        assert first.wait(PATIENCE_SECONDS)
        pausing = threading.Thread(target=topic.pause)
        pausing.start()
        until(lambda: topic.stats().running == 1)  # what it had polled is given back
        go_on.set()
        pausing.join()
        topic.push(b"late", shard_key="k")
        stats = topic.stats()
        assert (stats.acked, stats.running, stats.waiting, stats.paused) == (1, 0, 20, True)
        assert stats.routed < stats.inserted
        assert seen == [0]
        topic.play()
        until(lambda: settled(topic))
    assert seen == list(range(21))


@pytest.mark.parametrize("tx", [False, True])
def test_pause_stops_what_is_tried_again(topic: penstock.Topic, tx: bool) -> None:
    attempts: list[int] = []

    def handle(message: penstock.TopicMessage, *_: object) -> None:
        attempts.append(message.attempt)
        raise ValueError("no")

    topic.push_many([("k", b"")] * 3)
    with topic.tail(handle, max_attempts=10_000, heartbeat=60, tx=tx):
        until(lambda: len(attempts) > 3)
        assert topic.pause(wait=PATIENCE_SECONDS) is True
        tried = len(attempts)
        stats = topic.stats()
        assert (stats.running, stats.waiting) == (0, 3)
        topic.play()
        until(lambda: len(attempts) > tried)
    assert attempts == list(range(1, len(attempts) + 1)), "each counts once"


class Late:
    """The answer of a topic's second poll is on its way for as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way, self.arrives = threading.Event(), threading.Event()
        self._polls = 0
        self._read = TopicTails._part
        monkeypatch.setattr(TopicTails, "_part", lambda tails, *args: self._part(tails, *args))

    async def _part(self, tails: TopicTails, *args: Any) -> Any:
        found = await self._read(tails, *args)
        self._polls += 1
        if self._polls == 2:
            self.under_way.set()
            while not self.arrives.is_set():
                await asyncio.sleep(0.002)
        return found


@pytest.mark.parametrize("ack", [True, False])
def test_a_key_stays_in_order_when_a_pause_crosses_the_answer_of_a_poll(
    monkeypatch: pytest.MonkeyPatch, ack: bool
) -> None:
    seen: list[int] = []
    late, go_on = Late(monkeypatch), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        seen.append(message.offset)
        if message.offset == 5:
            assert go_on.wait(PATIENCE_SECONDS)

    with penstock.open(f"memory://late-{next(_numbers)}") as db:
        topic = db.topic("t")
        topic.push_many([("k", b"")] * 20)
        with topic.tail(handle, batch_size=10, heartbeat=0.3, ack=ack):
            assert late.under_way.wait(PATIENCE_SECONDS)  # with 10 to 19
            until(lambda: len(seen) == 6)
            topic.pause(wait=0)
            until(lambda: topic.stats().running == 10 + ack)  # 6 to 9 were given back
            topic.play()
            late.arrives.set()
            until(lambda: topic.stats().running == ack or len(seen) > 6)
            go_on.set()
            until(lambda: len(seen) == 20)
    assert seen == list(range(20))


def test_keys_stay_in_order_when_a_consumer_joins_while_a_poll_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, go_on = Late(monkeypatch), threading.Event()

    def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        tx.write("done", b"%d" % message.offset, tag=message.shard_key or "")
        if message.offset == 10:
            assert go_on.wait(PATIENCE_SECONDS)

    with penstock.open(f"memory://late-{next(_numbers)}") as db:
        topic = db.topic("t")
        topic.push_many([(f"k{i % 4}", b"") for i in range(40)])
        with topic.tail(handle, batch_size=20, heartbeat=0.3, tx=True):
            assert late.under_way.wait(PATIENCE_SECONDS)
            until(lambda: topic.stats().acked == 10)
            with topic.tail(handle, tx=True):
                until(lambda: topic.stats().running < 30)  # what was promised is given back
                late.arrives.set()
                go_on.set()
                until(lambda: settled(topic))
        order: dict[str, list[int]] = defaultdict(list)
        for message in db.stream("done").read(0, 100):
            assert message is not None
            order[message.tag].append(int(message.data))
        assert order == {f"k{i}": list(range(i, 40, 4)) for i in range(4)}


class Lonely:
    """A link whose polls are answered when they are told to; the first one also when it was
    cancelled, as in the broker's own process."""

    def __init__(self) -> None:
        self.polls: list[asyncio.Future[Polled]] = []
        self.tokens = 0

    async def run_topics(
        self, errand: Callable[[Any, int], Any], *, again: bool, block_ms: int = 0
    ) -> Any:
        return await errand(self, block_ms)

    async def join(self, *_: object, **__: object) -> Joined:
        self.tokens += 1
        return Joined(self.tokens, [0], 10_000, False)

    async def leave(self, *_: object) -> bool:
        return True

    async def poll(self, *_: object, **__: object) -> Polled:
        answer: asyncio.Future[Polled] = asyncio.get_running_loop().create_future()
        self.polls.append(answer)
        while not answer.done():
            try:
                await asyncio.wait({answer})
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                if answer is not self.polls[0]:
                    raise
                task.uncancel()
        return answer.result()

    def post(self, callback: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(callback)


async def test_a_registration_that_is_renewed_leaves_no_poller_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.tail.AGAIN_SECONDS", 0.0)
    lonely: Any = Lonely()
    manner = Manner("c", 10, True, False, 1, 1, 60_000, None)
    tailing = Tailing(topic_name("t"), manner, lonely, lonely, SystemClock())
    await tailing.open()
    while len(lonely.polls) < 1:
        await asyncio.sleep(0)
    tailing.broken(UnavailableError("a release was lost"))
    while len(lonely.polls) < 2:
        await asyncio.sleep(0)
    lonely.polls[0].set_result(Polled([Part(0, [7], [1], [0], [b"k"], [b""], [0])]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (lonely.tokens, len(lonely.polls)) == (2, 2)
    assert tailing.handling.begin(wait=False) is None, "it was polled by another registration"
    lonely.polls[1].set_result(Polled([Part(0, [7], [2], [0], [b"k"], [b""], [0])]))
    while (message := tailing.handling.begin(wait=False)) is None:
        await asyncio.sleep(0)
    tailing.handling.finish(message, [])
    tailing.handling.take_results()
    await tailing.close()


def test_a_replay_comes_again_in_order_and_is_marked(topic: penstock.Topic) -> None:
    seen: list[tuple[int, bool]] = []
    with topic.tail(lambda message: seen.append((message.offset, message.replay))):
        topic.push_many([(f"k{i % 3}", b"") for i in range(30)])
        until(lambda: settled(topic))
        replay = topic.replay(5, 12)
        assert (replay.first, replay.end) == (5, 12)
        until(lambda: len(seen) == 37)
        until(lambda: settled(topic))
    again = [offset for offset, replayed in seen if replayed]
    assert sorted(again) == list(range(5, 12))
    for key in range(3):
        mine = [offset for offset in again if offset % 3 == key]
        assert mine == sorted(mine)
    stats = topic.stats()
    assert (stats.inserted, stats.acked, stats.replayed) == (30, 30, 7)


# ---- asyncio ----------------------------------------------------------------------------------


async def test_an_asynchronous_handler_gets_messages_and_transactions(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path / "d") as db:
        topic = db.topic("t")
        seen: list[tuple[str | None, bytes]] = []
        at_once = asyncio.Barrier(2)

        async def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
            seen.append((message.shard_key, message.data))
            if message.data == b"0":
                await at_once.wait()  # two keys at once
            tx.write("copy", message.data, tag=message.shard_key or "")

        await topic.push_many([(f"k{i % 2}", b"%d" % (i // 2)) for i in range(20)])
        async with topic.tail(handle, tx=True, workers=2) as consumer:
            while (await topic.stats()).acked < 20:
                await asyncio.sleep(0.002)
        with pytest.raises(InvalidError, match="was shut down"):
            await consumer.shutdown()
        with pytest.raises(InvalidError, match="was shut down"):
            await consumer
        for key in ("k0", "k1"):
            assert [data for mine, data in seen if mine == key] == [b"%d" % i for i in range(10)]
        copies = await db.stream("copy").read(0, 100)
        assert len([m for m in copies if m]) == 20
        assert await topic.consumers() == []


async def test_an_asynchronous_handler_that_raises_is_recorded(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path / "d") as db:
        topic = db.topic("t")

        kept: list[penstock.Tx] = []

        async def handle(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
            kept.append(tx)
            raise ValueError("no")

        await topic.push(b"x")
        consumer = await topic.tail(handle, consumer="c", tx=True)
        while not (await topic.stats()).errored:
            await asyncio.sleep(0.002)
        await consumer.shutdown()
        assert [error.error for error in await topic.errors()] == ["ValueError: no"]
        with pytest.raises(InvalidError, match="is done"):
            kept[0].write("s", b"x")


async def test_an_asynchronous_consumer_without_acking_handles_each_message_once(
    tmp_path: Path,
) -> None:
    async with await penstock.aio.open(tmp_path / "d") as db:
        topic = db.topic("t")
        seen: list[int] = []
        acked: list[int] = []

        async def handle(message: penstock.TopicMessage) -> None:
            seen.append(message.offset)
            acked.append((await topic.stats()).acked)

        await topic.push_many([("k", b"")] * 30)
        async with topic.tail(handle, ack=False, workers=2):
            while len(seen) < 5:
                await asyncio.sleep(0.002)
        assert (await topic.stats()).acked == len(seen)
        assert all(have > offset for have, offset in zip(acked, seen, strict=True))
        async with topic.tail(handle, ack=False, workers=2):
            while len(seen) < 30:
                await asyncio.sleep(0.002)
        assert seen == list(range(30))


async def test_a_loop_that_ends_leaves_no_claim_that_nobody_handles(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path / "d") as db:
        topic = db.topic("t")
        begun = asyncio.Event()

        async def handle(message: penstock.TopicMessage) -> None:
            begun.set()
            await asyncio.sleep(PATIENCE_SECONDS)

        await topic.push_many([(None, b"")] * 10)
        consumer = await topic.tail(handle, ack=False, workers=3)
        await begun.wait()
        for task in consumer._tasks:  # as asyncio.run does at its end
            task.cancel()
        while not all(each.zombie for each in await topic.consumers()):
            await asyncio.sleep(0.002)
        stats = await topic.stats()
        assert stats.acked <= 3
        assert stats.waiting == 10 - stats.acked


async def test_a_loop_that_ends_without_shutdown_leaves_its_share_to_others(
    tmp_path: Path,
) -> None:
    async with await penstock.aio.open(tmp_path / "d") as db:
        topic = db.topic("t")
        begun = asyncio.Event()

        async def handle(message: penstock.TopicMessage) -> None:
            begun.set()
            await asyncio.sleep(PATIENCE_SECONDS)

        await topic.push_many([("k", b""), ("l", b"")])
        consumer = await topic.tail(handle)
        await begun.wait()
        for task in consumer._tasks:  # as asyncio.run does at its end
            task.cancel()
        while not all(each.zombie for each in await topic.consumers()):
            await asyncio.sleep(0.002)
        seen: list[bytes] = []
        async with topic.tail(lambda message: seen.append(message.data)):  # a plain function
            while (await topic.stats()).acked < 2:
                await asyncio.sleep(0.002)
        assert len(seen) == 2


def test_a_hot_key_does_not_keep_other_keys_waiting(topic: penstock.Topic) -> None:
    hot, others = threading.Event(), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        if message.shard_key == "hot":
            hot.wait(PATIENCE_SECONDS)
        else:
            others.set()

    topic.push_many([("hot", b"")] * 25 + [("other", b"")])
    with topic.tail(handle, workers=2, batch_size=10):
        assert others.wait(PATIENCE_SECONDS)
        hot.set()
        until(lambda: settled(topic))


def test_a_coroutine_function_is_no_handler_of_a_blocking_consumer(topic: penstock.Topic) -> None:
    async def handle(message: penstock.TopicMessage) -> None:
        """Nobody would await it."""

    with pytest.raises(InvalidError, match="event loop"):
        topic.tail(handle)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"workers": 0}, "workers"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"heartbeat": float("inf")}, "heartbeat"),
        ({"ack": False, "tx": True}, "tx"),
        ({"ack": "yes"}, "ack"),
        ({"consumer": 7}, "consumer"),
        ({"consumer": ""}, "consumer"),
        ({"handler": None}, "handler"),
    ],
)
def test_wrong_arguments_of_tail_are_refused_and_nothing_is_made(
    db: penstock.Database, topic: penstock.Topic, wrong: dict[str, Any], words: str
) -> None:
    manner = {"handler": lambda message: None, **wrong}
    with pytest.raises(InvalidError, match=words):
        topic.tail(**manner)
    assert topic.name not in db.topics()
