"""What a topic keeps for replays: its limits hold for what is acknowledged, reopened or not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.broker import keeping


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "RETAIN_MS", 5)
    monkeypatch.setattr(keeping, "TOPIC_MS", 5)


def work_off(topic: penstock.Topic, count: int) -> None:
    topic.push_many([b"x"] * count)
    done = threading.Semaphore(0)
    with topic.tail(lambda message: done.release()):
        for _ in range(count):
            done.acquire()


def wait_for_first(topic: penstock.Topic, first: int) -> None:
    """pytest's own time limit ends it."""
    while topic.stats().first < first:
        threading.Event().wait(0.01)


def test_limits_hold_for_what_is_acknowledged_also_after_a_reopening(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as db:
        topic = db.topic("t")
        work_off(topic, 1)
        topic.configure(max_count=10)
        work_off(topic, 100)
        wait_for_first(topic, 91)
    with penstock.open(tmp_path) as db:
        topic = db.topic("t")
        work_off(topic, 100)
        wait_for_first(topic, 191)


def test_what_is_not_acknowledged_stays_whatever_the_limits_say(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as db:
        topic = db.topic("t")
        topic.push_many([b"x"] * 50)
        topic.configure(max_count=10)
        stream = db.stream("s")
        stream.write(b"x")
        stream.configure(max_count=1)
        stream.write(b"y")
        while stream.info().length > 1:  # the upkeep has been there
            threading.Event().wait(0.01)
        assert topic.stats().first == 0
