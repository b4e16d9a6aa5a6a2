"""`penstock topic`: pushing, tailing and looking from the command line."""

from __future__ import annotations

import base64
import errno
import json
import time
from typing import Any

import pytest

import penstock
from penstock.cli.main import END_OF_PIPE


def test_messages_are_pushed_tailed_and_counted(sh: Any, db: penstock.Database) -> None:
    assert sh("topic", "tail", "t", "-n", "1") == 3
    assert sh.json("topic", "push", "t", "a", "b", "--key", "k") == {"first": 0, "count": 2}
    assert sh.json("topic", "push", "t", stdin=b"c\n") == {"first": 2, "count": 1}
    assert sh("topic", "tail", "t", "-n", "2", "--consumer", "me") == 0
    lines = sh.out.splitlines()
    assert len(lines) == 2
    assert sh("topic", "tail", "t", "-n", "1", "--json") == 0
    seen = {line.split("\t")[2] for line in lines} | {json.loads(sh.out)["data"]}
    assert seen == {"a", "b", "c"}
    (row,) = [row for row in sh.json("topic", "ls") if row["name"] == "t"]
    assert (row["inserted"], row["acked"], row["errored"]) == (3, 3, 0)
    assert sh("topic", "show", "t") == 0
    assert sh.json("topic", "show", "t")["stats"]["acked"] == 3
    assert sh.json("topic", "replay", "t", "1", "3")["first"] == 1
    assert sh("topic", "replay", "t", "yesterday") == 2
    assert sh("topic", "tail", "t", "-n", "2", "--json") == 0
    assert [json.loads(line)["replay"] for line in sh.out.splitlines()] == [True, True]


def test_a_topic_is_paused_played_and_deleted(sh: Any, db: penstock.Database) -> None:
    topic = db.topic("p")
    topic.push(b"x")
    assert sh.json("topic", "pause", "p") == {"paused": True, "settled": True}
    assert topic.stats().paused
    assert sh("topic", "play", "p") == 0
    assert sh.json("topic", "rebalance", "p") == {"moved": 0}
    assert sh("topic", "rm", "p") == 2, "it asks, and nobody is there"
    assert sh("topic", "rm", "p", "--yes") == 0
    assert sh("topic", "rm", "p", "--yes") == 3
    assert sh("topic", "show", "p") == 3


def test_failed_handlers_are_listed(sh: Any, db: penstock.Database) -> None:
    topic = db.topic("e")
    topic.push(b"bad", shard_key="k")

    def handle(message: object) -> None:
        raise ValueError("no such thing")

    with topic.tail(handle):
        while not topic.errors():
            pass
    (row,) = sh.json("topic", "errors", "e")
    assert (row["data"], row["final"], row["replay"]) == ("bad", True, False)
    assert "no such thing" in row["error"]
    assert sh("topic", "errors", "e") == 0
    assert "no such thing" in sh.out


def test_what_is_cut_off_goes_back_and_counts_as_no_failure(sh: Any, db: penstock.Database) -> None:
    topic = db.topic("cut")
    topic.push_many([(f"k{i % 9}", b"%d" % i) for i in range(100)])
    assert sh.cut("topic", "tail", "cut", lines=3) == END_OF_PIPE
    assert len(sh.out.splitlines()) == 3
    assert sh.err == ""
    stats = topic.stats()
    assert (stats.acked, stats.errored, stats.running, stats.waiting) == (3, 0, 0, 97)
    full = OSError(errno.ENOSPC, "No space left on device")
    assert sh.cut("topic", "tail", "cut", lines=1, error=full) == 5
    assert "No space left" in sh.err
    stats = topic.stats()
    assert (stats.acked, stats.errored, stats.waiting) == (4, 0, 96)
    assert topic.errors() == []


def test_keys_that_are_no_text_are_shown_all_the_same(sh: Any, db: penstock.Database) -> None:
    topic = db.topic("raw")
    topic.push(b"one", b"\xffk")
    topic.push(b"two", "good")
    topic.push(b"three")
    key = base64.b64encode(b"\xffk").decode()
    assert sh("topic", "tail", "raw", "-n", "3", "--json") == 0
    lines = {row["data"]: row for row in map(json.loads, sh.out.splitlines())}
    assert lines["one"]["shard_key_base64"] == key
    assert (lines["two"]["shard_key"], lines["three"]["shard_key"]) == ("good", None)

    def handle(message: object) -> None:
        raise ValueError("no")

    topic.replay(0)
    with topic.tail(handle):
        while len(topic.errors()) < 3:
            pass
    one, two, three = sh.json("topic", "errors", "raw")
    assert (one["shard_key_base64"], one["replay"]) == (key, True)
    assert (two["shard_key"], three["shard_key"]) == ("good", None)
    assert sh("topic", "errors", "raw") == 0
    assert "\\udcffk" in sh.out


def test_everything_about_a_topic_is_shown(sh: Any, db: penstock.Database) -> None:
    topic = db.topic("all", slots=3)
    topic.push_many([b"1", b"2"])
    with topic.tail(lambda message: None, consumer="me") as consumer:
        while topic.stats().acked < 2:
            consumer.wait(0.01)
        assert sh("topic", "show", "all") == 0
        table = sh.out[sh.out.index("generation") :]
        rows = [line.replace("│", " ").split() for line in table.splitlines() if "me" in line]
        assert [row[:5] for row in rows] == [
            ["0", "2", "me", "1", "1"], ["1", "2", "me", "1", "1"], ["2", "2", "me", "0", "0"],
        ]  # fmt: skip
        found = sh.json("topic", "show", "all")
    assert [shard["owner"] for shard in found["shards"]] == ["me"] * 3


def test_an_argument_that_is_no_text_is_pushed_as_its_bytes(sh: Any, db: penstock.Database) -> None:
    assert sh("topic", "push", "bytes", "caf\udce9") == 0
    assert sh("topic", "tail", "bytes", "-n", "1", "--json") == 0
    assert base64.b64decode(json.loads(sh.out)["data_base64"]) == b"caf\xe9"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_times_at_the_ends_of_the_calendar_are_refused_or_taken(
    sh: Any, db: penstock.Database, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """The first and the last day are no times everywhere."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    db.topic("calendar").push(b"x")
    for text in ("0001-01-01T00:00:00", "9999-12-31T23:59:59"):
        assert sh("topic", "replay", "calendar", text) in (0, 2)
    monkeypatch.undo()
    time.tzset()
