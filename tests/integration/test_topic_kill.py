"""kill -9, SIGSTOP and SIGCONT of consumers of a topic: nothing is lost, doubled or out of order.

Consumers are processes. Unless a test says otherwise the test's own process serves the folder, so
what is killed is a consumer alone; in others any consumer may be the broker that is killed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from integration.children import PATIENCE_SECONDS, Child
from integration.seeds import fresh_seed
from integration.topic_worker import COPY, TOPIC
from penstock.cli.check import inspect

KEYS = 40
BOTH = {"stopped", "other"}


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def is_settled(topic: penstock.Topic) -> bool:
    stats = topic.stats()
    assert stats.inserted >= stats.routed >= stats.emitted, stats
    assert stats.emitted >= stats.acked + stats.errored + stats.running, stats
    return stats.acked + stats.errored == stats.inserted


def batch(rng: random.Random, first: int, count: int) -> list[tuple[str, bytes]]:
    return [(f"k{rng.randrange(KEYS)}", b"%d" % number) for number in range(first, first + count)]


class Crew:
    """Consumers of one role, each with what it has said."""

    def __init__(self, location: Path, role: str, rng: random.Random, *, heartbeat: float) -> None:
        self._words = (location, role)
        self._rng = rng
        self._heartbeat = heartbeat
        self._count = 0
        self.members: dict[str, Child] = {}
        self.said: list[str] = []

    def add(self, name: str | None = None, workers: int = 1) -> None:
        self._count += 1
        name = name or f"c{self._count}"
        location, role = self._words
        child = Child("topic_worker", location, role, name, str(self._heartbeat), workers)
        self.members[name] = child
        self.said += child.hear_until("open")[:-1]

    def listen(self) -> None:
        for child in self.members.values():
            self.said += child.drain()
            assert not child.ended(), child.errors()

    def kill(self) -> str:
        """-> the name of the one that is gone"""
        name = self._rng.choice(sorted(self.members))
        with self.members.pop(name) as child:
            self.said += child.kill()
        return name

    def leave(self) -> None:
        name = self._rng.choice(sorted(self.members))
        self._end(name, self.members.pop(name))

    def _end(self, name: str, child: Child) -> None:
        with child:
            child.tell("end")
            self.said += child.hear_until("lost")[:-1]
            assert child.finish() == 0, child.errors()

    def finish(self) -> None:
        while self.members:
            self._end(*self.members.popitem())

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.members.values():
            child.__exit__(None, None, None)


def check_copy(db: penstock.Database, sent: list[tuple[str, bytes]]) -> None:
    """The stream holds each message once, and those of a key in the order of the topic."""
    found = db.stream(COPY).read(0, len(sent) + 100)
    copied = [(message.tag, message.data) for message in found if message is not None]
    assert Counter(copied) == Counter(sent)
    for key in {key for key, _ in sent}:
        mine = [int(data) for each, data in copied if each == key]
        assert mine == sorted(mine), f"{key} is out of order: {mine}"


# ---- exactly once -----------------------------------------------------------------------------


def copy_under_fire(location: Path, *, kills: int, messages: int, seed: int, serve: bool) -> None:
    """Consumers are killed at random places of their work, each time after some progress."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    sent: list[tuple[str, bytes]] = []
    with Crew(location, "copier", rng, heartbeat=1.0) as crew:
        if not serve:
            crew.add()  # serves
        with penstock.open(location) as db:
            topic, stream = db.topic(TOPIC), db.stream(COPY)
            while len(crew.members) < 3:
                crew.add()
            for i in range(kills + 1):
                more = batch(rng, len(sent), messages // (kills + 1))
                push(topic, more)
                sent += more
                await_length(stream, len(sent) - rng.randrange(len(more)))
                if i < kills:
                    name = crew.kill()
                    # The same name takes over at once, another one after the heartbeat.
                    crew.add(name if rng.random() < 0.85 else None)
                crew.listen()
            until(lambda: is_settled(topic))
            assert topic.errors() == []
            check_copy(db, sent)
            crew.finish()
    assert asyncio.run(inspect(str(location))).findings == []


def await_length(stream: penstock.Stream, count: int) -> None:
    until(lambda: stream.info().length >= count)


def push(topic: penstock.Topic, messages: list[tuple[str, bytes]]) -> None:
    """Through the loss of a broker: whether it happened shows in what is there."""
    before = topic.stats().inserted  # consumers have made it
    while True:
        try:
            topic.push_many(messages)
            return
        except penstock.UnavailableError:
            if topic.stats().inserted > before:
                return


def test_a_topic_is_copied_exactly_once_though_its_consumers_are_killed_twenty_times(
    tmp_path: Path,
) -> None:
    copy_under_fire(tmp_path / "d", kills=20, messages=2100, seed=fresh_seed(), serve=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_topic_is_copied_exactly_once_though_its_brokers_are_killed(tmp_path: Path) -> None:
    copy_under_fire(tmp_path / "d", kills=40, messages=20_500, seed=fresh_seed(), serve=False)


@pytest.mark.slow
def test_a_consumer_that_served_and_was_stopped_goes_on_as_one_of_many(tmp_path: Path) -> None:
    rng = random.Random(fresh_seed())
    sent: list[tuple[str, bytes]] = []
    with Crew(tmp_path / "d", "copier", rng, heartbeat=1.0) as crew:
        crew.add("server")  # opens first
        crew.add("other")
        with penstock.open(tmp_path / "d") as db:
            topic = db.topic(TOPIC)
            for _ in range(3):
                crew.members["server"].stop()  # in the middle of what it does
                sent += batch(rng, len(sent), 500)
                push(topic, sent[-500:])  # another process serves by now
                until(lambda: is_settled(topic))
                crew.members["server"].resume()
                sent += batch(rng, len(sent), 500)
                push(topic, sent[-500:])
                until(lambda: is_settled(topic))
                until(lambda: all(not each.zombie for each in topic.consumers()))
                until(lambda: len(topic.consumers()) == 2)
                crew.listen()
            check_copy(db, sent)
            crew.finish()


# ---- zombies ----------------------------------------------------------------------------------


def test_what_a_killed_consumer_held_comes_to_another_one_and_what_it_acked_does_not(
    tmp_path: Path,
) -> None:
    with (
        penstock.open(tmp_path / "d") as db,
        Child("topic_worker", tmp_path / "d", "holder", "dead", "2", 1) as dead,
    ):
        topic, stream = db.topic(TOPIC), db.stream(COPY)
        assert dead.hear() == "open"
        topic.push_many([("k", b"%d" % i) for i in range(30)])
        for i in range(10):
            assert dead.hear() == f"holds k {i}"
            dead.tell("go on")
        assert dead.hear() == "holds k 10"
        until(lambda: topic.stats().acked == 10)
        dead.kill()  # in the middle of its batch
        with Child("topic_worker", tmp_path / "d", "copier", "other", "2", 1) as other:
            assert other.hear() == "open"
            topic.push_many([("k", b"%d" % i) for i in range(30, 40)])
            until(lambda: is_settled(topic))
            # Its shards took no new messages, are drained, and are gone.
            until(lambda: [each.id for each in topic.consumers()] == ["other"])
            assert {shard.owner for shard in topic.shards()} == {"other"}
            assert not any(shard.draining for shard in topic.shards())
            copied = [message.data for message in stream.read(0, 100) if message]
            assert copied == [b"%d" % i for i in range(40)]
            stats = topic.stats()
            assert (stats.emitted, stats.acked, stats.redelivered) == (40, 40, 20)
            other.tell("end")
            assert other.hear_until("lost")[-1] == "lost 0"


def test_a_consumer_that_was_stopped_can_commit_nothing_that_has_moved_on(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "d") as db,
        Child("topic_worker", tmp_path / "d", "holder", "stopped", "1", 1) as stopped,
    ):
        topic, stream = db.topic(TOPIC), db.stream(COPY)
        assert stopped.hear() == "open"
        topic.push_many([("k", b"%d" % i) for i in range(5)])
        assert stopped.hear() == "holds k 0"
        stopped.stop()
        with Child("topic_worker", tmp_path / "d", "holder", "other", "60", 1) as other:
            assert other.hear() == "open"
            assert other.hear() == "holds k 0"  # after the heartbeat of the one that is stopped
            stopped.tell("go on")  # its handler returns, and its transaction is to be committed
            stopped.resume()
            # It has joined again, and its transaction was refused.
            until(lambda: {each.id for each in topic.consumers() if not each.zombie} >= BOTH)
            assert (stream.info().length, topic.stats().acked) == (0, 0)
            for i in range(5):
                other.tell("go on")
                if i < 4:
                    assert other.hear() == f"holds k {i + 1}"
            until(lambda: is_settled(topic))
            other.tell("end")
            assert other.hear_until("lost")[-1] == "lost 0"
            topic.push(b"5", shard_key="k")
            assert stopped.hear() == "holds k 5"  # it works again
            stopped.tell("go on")
            until(lambda: is_settled(topic))
            stopped.tell("end")
            assert stopped.hear_until("lost")[-1] != "lost 0"
        copied = [message.data for message in stream.read(0, 100) if message]
        assert copied == [b"%d" % i for i in range(6)]


# ---- order ------------------------------------------------------------------------------------


def check_order(said: list[str], keys: dict[int, str]) -> None:
    """Everything was handed out, to its key, and for the first time in the order of the key."""
    taken: list[tuple[int, str, int]] = []
    for line in said:
        word, at, whose, number, replay = line.split()
        assert (word, replay) == ("took", "0"), line
        taken.append((int(at), whose, int(number)))
    first: dict[str, list[int]] = defaultdict(list)
    seen: set[int] = set()
    for _, key, offset in sorted(taken):
        assert keys[offset] == key
        if offset not in seen:
            seen.add(offset)
            first[key].append(offset)
    assert seen == keys.keys()
    for key, offsets in first.items():
        assert offsets == sorted(offsets), f"{key} is out of order"


def take_in_unrest(location: Path, *, events: int, messages: int, seed: int) -> None:
    """Joins, leaves, kills, rebalances and pauses while messages flow."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    keys: dict[int, str] = {}
    with penstock.open(location) as db, Crew(location, "taker", rng, heartbeat=1.0) as crew:
        topic = db.topic(TOPIC)
        for _ in range(4):
            crew.add(workers=rng.choice((1, 3)))
        for _ in range(events):
            more = batch(rng, len(keys), messages // events)
            bad = [(key, b"bad" + data if rng.random() < 0.01 else data) for key, data in more]
            offsets = topic.push_many(bad)
            keys.update(zip(offsets, (key for key, _ in more), strict=True))
            match rng.choice(("kill", "leave", "join", "rebalance", "pause", "none")):
                case "kill":
                    name = crew.kill()
                    crew.add(name if rng.random() < 0.85 else None)
                case "leave" if len(crew.members) > 2:
                    crew.leave()
                case "join" if len(crew.members) < 6:
                    crew.add(workers=rng.choice((1, 3)))
                case "rebalance":
                    topic.rebalance()
                case "pause":
                    assert topic.pause(), "what was handed out is settled"
                    stats = topic.stats()
                    crew.listen()
                    assert (topic.stats().emitted, stats.running) == (stats.emitted, 0)
                    topic.play()
            crew.listen()
            is_settled(topic)
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_settled(topic):
            crew.listen()
            assert time.monotonic() < end, f"{topic.stats()} {topic.consumers()} {topic.shards()}"
        crew.finish()
        check_order(crew.said, keys)
        errored = {error.offset for error in topic.errors() if error.final}
        stats = topic.stats()
        assert (stats.errored, stats.acked) == (len(errored), len(keys) - len(errored))
    assert asyncio.run(inspect(str(location))).findings == []


def test_keys_keep_their_order_while_consumers_come_go_and_die(tmp_path: Path) -> None:
    take_in_unrest(tmp_path / "d", events=12, messages=4800, seed=fresh_seed())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_messages_keep_their_order_in_unrest(tmp_path: Path) -> None:
    take_in_unrest(tmp_path / "d", events=100, messages=100_000, seed=fresh_seed())


# ---- replays ----------------------------------------------------------------------------------


def test_a_replay_of_a_window_is_that_slice_of_the_log_while_messages_flow(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "d") as db:
        topic = db.topic(TOPIC)
        live: list[penstock.TopicMessage] = []
        again: list[penstock.TopicMessage] = []
        with topic.tail(lambda message: (again if message.replay else live).append(message)):
            rng = random.Random(7)
            pushed = 0
            for _ in range(40):
                topic.push_many(batch(rng, pushed, 25))
                pushed += 25
                time.sleep(0.002)  # so that there are several times
            until(lambda: is_settled(topic))
            times = sorted({message.time for message in live})
            start, end = times[len(times) // 4], times[3 * len(times) // 4]
            topic.replay(start, end)
            for _ in range(20):  # others go on meanwhile
                topic.push_many(batch(rng, pushed, 25))
                pushed += 25
            until(lambda: is_settled(topic) and not topic.stats().replays)
        window = [message for message in live if start <= message.time < end]
        assert len(live) == pushed
        assert 0 < len(window) < 1000
        shown = [(m.offset, m.shard_key, m.data, m.time) for m in window]
        assert sorted((m.offset, m.shard_key, m.data, m.time) for m in again) == sorted(shown)
        for key in {message.shard_key for message in again}:
            mine = [message.offset for message in again if message.shard_key == key]
            assert mine == sorted(mine)
