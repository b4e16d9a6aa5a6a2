"""`penstock queue`: a message's whole life from the command line, and what goes wrong there."""

from __future__ import annotations

from typing import Any

import penstock


def test_a_queue_is_made_shown_altered_and_deleted(sh: Any, db: penstock.Database) -> None:
    made = sh.json("queue", "create", "eu", "--filter", "region = 'eu'", "--lease", "7")
    assert (made["name"], made["filter"], made["lease"]) == ("eu", "region = 'eu'", 7)
    assert sh.json("queue", "create", "eu", "--filter", "region = 'eu'", "--lease", "7") == made
    assert sh("queue", "create", "eu", "--lease", "8") == 4
    altered = sh.json("queue", "alter", "eu", "--filter", "", "--max-attempts", "2")
    assert (altered["filter"], altered["lease"], altered["max_attempts"]) == (None, 7, 2)
    assert sh("queue", "alter", "eu") == 2
    assert db.queue("eu").describe().max_attempts == 2
    assert "eu" in [each["name"] for each in sh.json("queue", "ls")]
    assert sh.json("queue", "show", "eu")["stats"]["available"] == 0
    assert sh("queue", "show", "eu") == 0
    assert "everything" in sh.out
    assert sh("queue", "rm", "eu") == 2, "it asks, and nobody is there"
    assert sh("queue", "rm", "eu", "--yes") == 0
    assert sh("queue", "rm", "eu", "--yes") == 3
    assert "penstock queue ls" in sh.err


def test_a_message_is_published_claimed_and_acknowledged(sh: Any, db: penstock.Database) -> None:
    db.create_queue("jobs")
    (first,) = sh.json("queue", "publish", "resize 17", "-H", "vip=yes", "--to", "jobs")
    lines = sh.json("queue", "publish", "--to", "jobs", stdin=b"a\nb\n")
    assert len(lines) == 2
    assert [each["payload"] for each in sh.json("queue", "peek", "jobs")] == ["resize 17", "a", "b"]
    (claimed,) = sh.json("queue", "claim", "jobs", "--consumer", "me", "--lease", "60")
    assert (claimed["id"], claimed["headers"]) == (first, {"vip": "yes"})
    receipt = claimed["receipt"]
    assert sh("queue", "extend", "jobs", receipt, "--lease", "90") == 0
    assert sh("queue", "ack", "jobs", receipt) == 0
    assert sh.json("queue", "ack", "jobs", receipt, code=1) == [{"receipt": receipt, "done": False}]
    rows = sh.json("queue", "claim", "jobs", "-n", "5")
    receipts = [row["receipt"] for row in rows]
    assert sh("queue", "release", "jobs", *receipts) == 0
    assert "2 released" in sh.out
    assert sh.json("queue", "purge", "jobs", "--yes") == {"purged": 2}
    assert sh("queue", "claim", "jobs") == 0
    assert "nothing can be claimed" in sh.out


def test_bytes_that_are_no_text_come_out_as_base64_and_harm_no_terminal(
    sh: Any, db: penstock.Database
) -> None:
    db.create_queue("bytes")
    db.publish(b"\xff\x1b[31m", to="bytes")
    (row,) = sh.json("queue", "peek", "bytes")
    assert row["payload_base64"] == "/xtbMzFt"
    assert sh("queue", "peek", "bytes") == 0
    assert "\x1b[31m" not in sh.out
    assert r"\xff\x1b[31m" in sh.out


def test_failed_messages_are_listed_redriven_and_purged(sh: Any, db: penstock.Database) -> None:
    db.create_queue("poor", max_attempts=1)
    db.publish_many([penstock.Publish(bytes([65 + i]), to="poor") for i in range(3)])
    receipts = [message.receipt for message in db.queue("poor").claim(3)]
    assert sh("queue", "fail", "poor", *receipts, "--reason", "no disk") == 0
    failed = sh.json("queue", "dlq", "ls", "poor")
    assert [row["payload"] for row in failed] == ["A", "B", "C"]
    assert failed[0]["history"][0]["reason"] == "no disk"
    assert sh("queue", "dlq", "ls", "poor", "-n", "2") == 0
    assert "no disk" in sh.out
    assert "2 of 3" in sh.out
    assert sh.json("queue", "dlq", "redrive", "poor", str(failed[1]["id"]))["redriven"] == 1
    assert sh("queue", "dlq", "purge", "poor") == 2
    assert db.queue("poor").stats().failed == 2
    assert sh.json("queue", "dlq", "purge", "poor", "--yes") == {"purged": 2}
    stats = db.queue("poor").stats()
    assert (stats.failed, stats.available, stats.purged) == (0, 1, 2)


def test_a_pause_stops_claims_until_play(sh: Any, db: penstock.Database) -> None:
    db.create_queue("slow")
    db.publish(b"x", to="slow")
    assert sh("queue", "pause", "slow") == 0
    assert sh.json("queue", "claim", "slow") == []
    assert sh("queue", "play", "slow") == 0
    assert len(sh.json("queue", "claim", "slow")) == 1


def test_mistakes_are_one_line_with_the_exit_code_of_their_kind(
    sh: Any, db: penstock.Database
) -> None:
    before = db.queues()
    assert sh("queue", "create", "bad", "--filter", "a = ") == 2
    assert "column 5" in sh.err
    assert sh("queue", "publish", "x", "--header", "novalue") == 2
    assert sh("queue", "publish", "x", "y", "--dedup-id", "1") == 2
    assert sh("queue", "publish", "x", "--to", "nobody") == 3
    assert sh("queue", "claim", "nobody") == 3
    assert sh("queue", "claim", "nobody", "-n", "0") == 2
    assert sh("queue", "dlq", "ls", "nobody") == 3
    assert db.queues() == before
