"""`penstock topic`: pushing, tailing and looking from the command line."""

from __future__ import annotations

import json
from typing import Any

import penstock


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
    assert (row["data"], row["final"]) == ("bad", True)
    assert "no such thing" in row["error"]
    assert sh("topic", "errors", "e") == 0
    assert "no such thing" in sh.out
