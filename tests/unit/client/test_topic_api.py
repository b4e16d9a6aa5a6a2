"""The calls of a topic, in process, over a socket, and with asyncio. Consumers: test_tail.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import InvalidError, NotFoundError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_messages_get_their_offsets_in_order(shared_db: Any, name: str) -> None:
    topic = shared_db.topic(name)
    assert topic.push(b"a", shard_key="k") == 0
    assert topic.push_many([("k", b"b"), (None, b"c"), b"d", ("", b"e")]) == range(1, 5)
    assert topic.push_many([b"f", b"g"]) == range(5, 7)
    batch = pa.table({"data": [b"h", b"i"], "shard_key": ["k", None]})
    assert topic.push_many(batch) == range(7, 9)
    assert topic.push_many([]) == range(0)
    stats = topic.stats()
    assert (stats.inserted, stats.routed, stats.waiting, stats.slots) == (9, 0, 9, 32)
    assert (stats.first, stats.next, stats.consumers, stats.paused) == (0, 9, 0, False)


def test_a_handle_alone_makes_no_topic_and_a_push_may_be_told_not_to(
    shared_db: Any, name: str
) -> None:
    topic = shared_db.topic(name)
    for call in (
        lambda: topic.push(b"x", create=False),
        lambda: topic.push_many([b"x"], create=False),
        topic.stats,
        topic.consumers,
        topic.shards,
        topic.errors,
        topic.info,
        topic.pause,
        topic.play,
        topic.rebalance,
        lambda: topic.replay(0),
        lambda: topic.configure(max_count=5),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert topic.delete() is False
    assert name not in shared_db.topics()
    topic.push(b"x")
    assert name in shared_db.topics()
    assert shared_db.topics(f"{name}?") == []
    assert shared_db.topic(name).push(b"x", create=False) == 1
    assert topic.delete() is True
    assert name not in shared_db.topics()
    assert topic.push(b"x") == 0, "another topic"


def test_slots_are_fixed_when_a_topic_is_made(shared_db: Any, name: str) -> None:
    shared_db.topic(name, slots=4).push(b"x")
    assert shared_db.topic(name).info().slots == 4
    assert shared_db.topic(name).push(b"y") == 1
    with pytest.raises(InvalidError, match="slots"):
        shared_db.topic(name, slots=8).push(b"z")
    assert shared_db.topic(name, slots=4).stats().inserted == 2


def test_what_is_kept_for_replays_can_be_set(shared_db: Any, name: str) -> None:
    topic = shared_db.topic(name)
    topic.push(b"x")
    topic.configure(max_count=100, max_age=1.5)
    info = topic.info()
    assert (info.name, info.max_count, info.max_bytes, info.max_age) == (name, 100, None, 1.5)
    assert info.created_at.tzinfo is not None
    topic.configure()
    assert topic.info().max_count is None


def test_a_replay_says_what_it_is_about(shared_db: Any, name: str) -> None:
    topic = shared_db.topic(name)
    topic.push_many([b"%d" % i for i in range(10)])
    replay = topic.replay(3, 7)
    assert (replay.first, replay.end) == (3, 7)
    assert topic.stats().replays == 1
    later = datetime.now(UTC) + timedelta(days=1)
    assert topic.replay(NOW - timedelta(days=365), later).end == 10
    with pytest.raises(InvalidError):
        topic.replay(7, 3)


def test_a_pause_without_consumers_is_at_once(shared_db: Any, name: str) -> None:
    topic = shared_db.topic(name)
    topic.push(b"x")
    assert topic.pause() is True
    assert topic.pause(wait=0) is True
    assert topic.stats().paused
    topic.play()
    assert not topic.stats().paused
    assert topic.rebalance() == 0
    assert topic.consumers() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda db, t: db.topic(""), "topic"),
        (lambda db, t: db.topic("x" * 256), "topic"),
        (lambda db, t: db.topic(7), "topic"),
        (lambda db, t: db.topic("t", slots=0), "slots"),
        (lambda db, t: db.topic("t", slots=1 << 20), "slots"),
        (lambda db, t: db.topics(7), "pattern"),
        (lambda db, t: t.push("text"), "bytes"),
        (lambda db, t: t.push(b"", shard_key=7), "tag|key"),
        (lambda db, t: t.push(b"", shard_key="k" * 70_000), "65535"),
        (lambda db, t: t.push(b"", create="yes"), "create"),
        (lambda db, t: t.push_many(b"one"), "list"),
        (lambda db, t: t.push_many(7), "list"),
        (lambda db, t: t.push_many([("k", b"", b"")]), "message 0"),
        (lambda db, t: t.push_many([("k", b""), "text"]), "message 1"),
        (lambda db, t: t.push_many([("k", "text")]), "bytes"),
        (lambda db, t: t.push_many([b"", "text"]), "bytes"),
        (lambda db, t: t.push_many([(0, b"x")]), "key"),
        (lambda db, t: t.push_many([(False, b"x"), (None, b"")]), "key"),
        (lambda db, t: t.push_many(pa.table({"data": [b""], "tag": ["x"]})), "shard_key"),
        (lambda db, t: t.push_many(pa.table({"data": [b"", None]})), "null"),
        (lambda db, t: t.replay(-1), "start"),
        (lambda db, t: t.replay("yesterday"), "start"),
        (lambda db, t: t.replay(0, NOW), "offset"),
        (lambda db, t: t.replay(NOW, 7), "time"),
        (lambda db, t: t.replay(NOW.replace(tzinfo=None)), "aware"),
        (lambda db, t: t.configure(max_count=0), "max_count"),
        (lambda db, t: t.configure(max_age=0), "max_age"),
        (lambda db, t: t.pause(wait=-1), "wait"),
        (lambda db, t: t.pause(wait=float("inf")), "wait"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(
    shared_db: Any, name: str, call: Callable[[Any, Any], object], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        call(shared_db, shared_db.topic(name))
    assert name not in shared_db.topics()


def test_a_closed_handle_is_of_no_use(shared_db: Any, name: str) -> None:
    topic = shared_db.topic(name)
    topic.push(b"x")
    topic.close()
    for call in (lambda: topic.push(b"x"), topic.stats, lambda: topic.tail(lambda message: None)):
        with pytest.raises(InvalidError, match="closed"):
            call()
    assert shared_db.topic(name).stats().inserted == 1


def test_a_consumer_is_shown_by_its_name(tmp_path: Any) -> None:
    with penstock.open(tmp_path / "d") as db:
        with db.topic("t").tail(lambda message: None, consumer="c") as consumer:
            assert repr(consumer) == "<penstock.TopicConsumer 'c' of 't'>"
        assert repr(db.topic("t")).startswith("<penstock.Topic 't' of ")
        with pytest.raises(InvalidError, match="pickled"):
            consumer.__reduce__()
