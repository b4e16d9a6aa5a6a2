"""The FDQ specification, sentence by sentence, through the Python door.

Quotes are its own words. What it leaves open is answered in docs/topics.md.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock

PATIENCE_SECONDS = 30.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Database]:
    with penstock.open(tmp_path_factory.mktemp("fdq") / "d") as db:
        yield db


@pytest.fixture
def topic(db: penstock.Database) -> penstock.Topic:
    return db.topic(f"topic-{next(_numbers)}")


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


def is_done(topic: penstock.Topic) -> bool:
    stats = topic.stats()
    return stats.acked == stats.inserted and not stats.replays


def test_a_topic_defines_a_specific_queue_that_can_be_listened_to(
    db: penstock.Database, topic: penstock.Topic
) -> None:
    other = db.topic(f"{topic.name}-other")
    other.push(b"not for us")
    seen: list[bytes] = []
    with topic.tail(lambda message: seen.append(message.data)):
        topic.push(b"for us")
        until(lambda: is_done(topic))
    assert seen == [b"for us"]


def test_all_messages_for_a_given_shard_key_are_delivered_to_the_same_consumer(
    topic: penstock.Topic,
) -> None:
    seen: dict[str, set[str | None]] = defaultdict(set)
    consumers = [
        topic.tail(lambda message, who=who: seen[who].add(message.shard_key), consumer=who)
        for who in ("a", "b", "c")
    ]
    topic.push_many([(f"key-{i % 60}", b"") for i in range(600)])
    until(lambda: is_done(topic))
    for consumer in consumers:
        consumer.shutdown()
    assert all(seen.values())
    assert sum(map(len, seen.values())) == len(set().union(*seen.values())) == 60


def test_otherwise_messages_will_be_randomly_distributed_to_consumers(
    topic: penstock.Topic,
) -> None:
    counts: Counter[str] = Counter()
    consumers = [
        topic.tail(lambda message, who=who: counts.update([who]), consumer=who)
        for who in ("a", "b", "c", "d")
    ]
    until(lambda: [len(each.slots) for each in topic.consumers()] == [8, 8, 8, 8])
    topic.push_many([b""] * 640)
    until(lambda: is_done(topic))
    for consumer in consumers:
        consumer.shutdown()
    assert counts == {"a": 160, "b": 160, "c": 160, "d": 160}, "even is the best of random"


def test_push_many_allows_for_transactionally_pushing_many_messages_at_once(
    topic: penstock.Topic,
) -> None:
    with pytest.raises(penstock.InvalidError):
        topic.push_many([("k", b"good"), ("k", "bad")])
    offsets = topic.push_many([("k", b"%d" % i) for i in range(5000)])
    assert offsets == range(5000)
    assert topic.stats().inserted == 5000


def test_by_default_pushing_to_a_non_existant_topic_will_create_the_topic(
    db: penstock.Database, topic: penstock.Topic
) -> None:
    assert topic.name not in db.topics()
    topic.push(b"x")
    assert topic.name in db.topics(), "Which topics are there?"


def test_pause_and_play_control_whether_shard_and_processing_are_activated(
    topic: penstock.Topic,
) -> None:
    seen: list[bytes] = []
    with topic.tail(lambda message: seen.append(message.data)):
        topic.push(b"before")
        until(lambda: is_done(topic))
        topic.pause()
        topic.push(b"meanwhile")
        stats = topic.stats()
        assert (stats.inserted, stats.routed, stats.emitted) == (2, 1, 1)
        assert seen == [b"before"]
        topic.play()
        until(lambda: is_done(topic))
    assert seen == [b"before", b"meanwhile"]


def test_rebalance_is_useful_to_redistribute_a_backlog_to_new_consumers(
    topic: penstock.Topic,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(message: penstock.TopicMessage) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    seen: set[str | None] = set()
    topic.push_many([(f"key-{i % 60}", b"") for i in range(600)])
    with topic.tail(slow, consumer="old", batch_size=10):
        assert begun.wait(PATIENCE_SECONDS)
        with topic.tail(lambda message: seen.add(message.shard_key), consumer="new"):
            topic.rebalance()
            assert [len(each.slots) for each in topic.consumers() if not each.zombie] == [16, 16]
            until(lambda: len(seen) > 10)  # its part of the backlog, while the old one is busy
            go_on.set()
            until(lambda: is_done(topic))


def test_an_envelope_has_insertion_time_shard_key_and_message(topic: penstock.Topic) -> None:
    seen: list[penstock.TopicMessage] = []
    with topic.tail(seen.append) as consumer:
        topic.push(b"x", shard_key="k")
        until(lambda: is_done(topic))
        # A ConsumerInstance has an id, whether it is acking, and a batch size.
        assert (bool(consumer.id), consumer.is_acking, consumer.batch_size) == (True, True, 100)
    (message,) = seen
    assert (message.shard_key, message.data) == ("k", b"x")
    assert message.time.tzinfo is not None


def test_shutting_down_a_consumer_will_mark_itself_as_a_zombie_and_it_can_no_longer_be_used(
    topic: penstock.Topic,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: penstock.TopicMessage) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    topic.push_many([("k", b"")] * 3)
    consumer = topic.tail(handle, consumer="gone")
    assert begun.wait(PATIENCE_SECONDS)
    ending = threading.Thread(target=consumer.shutdown)
    ending.start()
    until(lambda: consumer._handling.stopped)
    go_on.set()
    ending.join()
    (left,) = topic.consumers()
    assert (left.id, left.zombie) == ("gone", True)
    with pytest.raises(penstock.InvalidError, match="shut down"):
        consumer.shutdown()
    # "Any messages that remain in its shard will be re-routed to another consumer"; "zombie shards
    # will not receive additional messages and once drained it will be deleted".
    (closed,) = [shard for shard in topic.shards() if shard.draining]
    assert closed.consumer == "gone"
    topic.push(b"", shard_key="k")
    (still,) = [shard for shard in topic.shards() if shard.draining]
    assert still.inserted == closed.inserted
    with topic.tail(lambda message: None, consumer="heir"):
        until(lambda: is_done(topic))
        until(lambda: [each.id for each in topic.consumers()] == ["heir"])
        assert not any(shard.draining for shard in topic.shards())


def test_replay_from_a_start_and_from_a_start_to_an_end(topic: penstock.Topic) -> None:
    seen: list[tuple[int, bool]] = []
    with topic.tail(lambda message: seen.append((message.offset, message.replay))):
        topic.push_many([("k", b"")] * 10)
        until(lambda: is_done(topic))
        topic.replay(7)
        until(lambda: is_done(topic))
        topic.replay(2, 5)
        until(lambda: is_done(topic))
    live = [(offset, False) for offset in range(10)]
    assert seen == [*live, *((offset, True) for offset in (7, 8, 9, 2, 3, 4))]


def test_counts_of_inserted_routed_emitted_and_acked_of_all_and_per_shard(
    topic: penstock.Topic,
) -> None:
    topic.push_many([(f"key-{i}", b"") for i in range(100)])
    stats = topic.stats()
    assert (stats.inserted, stats.routed, stats.emitted, stats.acked) == (100, 0, 0, 0)
    with topic.tail(lambda message: None):
        until(lambda: is_done(topic))
        stats, shards = topic.stats(), topic.shards()
        for name in ("inserted", "routed", "emitted", "acked"):
            assert getattr(stats, name) == 100
            assert sum(getattr(shard, name) for shard in shards) == 100, "same stats, per shard"


def test_a_topic_is_consistent_after_every_opening(tmp_path: Path) -> None:
    def push_and_take() -> tuple[int, list[int]]:
        with penstock.open(tmp_path / "d") as db:
            topic = db.topic("t")
            offset, seen = topic.push(b"x", shard_key="k"), []
            with topic.tail(lambda message: seen.append(message.offset)):
                until(lambda: is_done(topic))
            return offset, seen

    # What was acknowledged never comes again.
    assert [push_and_take() for _ in range(3)] == [(0, [0]), (1, [1]), (2, [2])]
