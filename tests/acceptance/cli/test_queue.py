"""`penstock queue`: a message's whole life from the command line, and what goes wrong there."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.cli.main import END_OF_PIPE


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


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_was_claimed_and_cannot_be_shown_is_given_back(
    sh: Any, db: penstock.Database, form: tuple[str, ...]
) -> None:
    name = f"cut{len(form)}"
    queue = db.create_queue(name, max_attempts=1)
    db.publish_many([penstock.Publish(b"%d" % i, to=name) for i in range(3)])
    assert sh.cut("queue", "claim", name, "-n", "3", *form, lines=0) == END_OF_PIPE
    again = queue.claim(5)
    assert [(message.payload, message.attempts) for message in again] == [
        (b"0", 1), (b"1", 1), (b"2", 1),
    ]  # fmt: skip


def test_a_receipt_can_be_copied_from_a_narrow_terminal(
    sh: Any, db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    db.create_queue("narrow")
    db.publish_many([penstock.Publish(b"x", to="narrow")] * 2)
    assert sh("queue", "claim", "narrow", "-n", "2") == 0
    receipts = [line.split()[1] for line in sh.out.splitlines() if line.startswith("receipt ")]
    assert sh("queue", "ack", "narrow", *receipts) == 0
    assert "2 done" in sh.out


def test_a_redrive_of_what_has_not_failed_is_told(sh: Any, db: penstock.Database) -> None:
    db.create_queue("fine", max_attempts=1)
    db.publish(b"x", to="fine")
    (message,) = db.queue("fine").claim()
    message.fail()
    found = sh.json("queue", "dlq", "redrive", "fine", "9999", str(message.id), code=1)
    assert found == {"redriven": 1, "expired": 0, "missing": 1}
    assert sh("queue", "dlq", "redrive", "fine", "9999") == 1
    assert "1 is not among the failed" in sh.out
    assert sh("queue", "dlq", "redrive", "fine") == 0, "all of none"


def test_a_message_goes_to_one_queue(sh: Any, db: penstock.Database) -> None:
    for name in ("one", "two"):
        db.create_queue(name)
    assert sh("queue", "publish", "x", "--to", "one", "--to", "two") == 2
    assert "--to names one queue" in sh.err
    assert db.queue("one").stats().available == db.queue("two").stats().available == 0


@pytest.mark.parametrize("sql", ["300", "-1", "1.5", "NULL", "200 + 100"])
def test_a_priority_that_cannot_be_one_is_refused(sh: Any, db: penstock.Database, sql: str) -> None:
    assert sh("queue", "create", "urgent", f"--priority={sql}") == 2
    assert "0 to 255" in sh.err
    assert "urgent" not in db.queues()


@pytest.mark.parametrize("sql", ["7", "100 + 55", "abc", "CASE WHEN vip = 'yes' THEN 1 END"])
def test_a_priority_may_be_a_number_a_header_or_an_expression(
    sh: Any, db: penstock.Database, sql: str
) -> None:
    assert sh("queue", "create", "urgent", "--priority", sql) == 0
    db.delete_queue("urgent")


def test_hints_speak_of_no_other_language(sh: Any) -> None:
    assert sh("queue", "claim", "nobody-made-it") == 3
    assert "create_queue" not in sh.err


def test_one_is_told_as_one_and_what_is_not_set_is_told(sh: Any, db: penstock.Database) -> None:
    db.create_queue("single", max_attempts=1)
    db.publish_many([penstock.Publish(b"x", to="single") for _ in range(3)])
    (claimed,) = db.queue("single").claim(1)
    assert sh("queue", "fail", "single", claimed.receipt) == 0
    assert sh("queue", "ack", "single", claimed.receipt) == 1
    assert sh.out == "0 done, 1 receipt is stale\n"
    assert sh("queue", "dlq", "redrive", "single") == 0
    assert sh.out == "1 message is available again\n"
    assert sh("queue", "purge", "single", "--yes") == 0
    assert sh.out == "3 messages are gone\n"
    assert sh("queue", "show", "single") == 0
    assert "128, or the header priority" in sh.out


def test_data_need_not_be_text_and_a_uri_must_be(sh: Any, db: penstock.Database) -> None:
    """An argument that is no UTF-8 comes to us with surrogates for its bytes."""
    db.create_queue("typed")
    assert sh("queue", "publish", "caf\udce9", "--to", "typed") == 0
    assert [message.payload for message in db.queue("typed").peek()] == [b"caf\xe9"]
    assert sh("queue", "publish", "--uri", "--to", "typed", stdin=b"file:///caf\xe9\n") == 2
    assert "is not a URI" in sh.err
    assert db.queue("typed").stats().available == 1


def test_a_header_that_is_given_twice_and_no_data_at_all_are_told(
    sh: Any, db: penstock.Database
) -> None:
    db.create_queue("told")
    assert sh("queue", "publish", "x", "--to", "told", "-H", "a=1", "-H", "a=2") == 2
    assert "'a' is given twice" in sh.err
    assert sh("queue", "publish", "--to", "told") == 0
    assert "nothing was published" in sh.out
    assert sh.json("queue", "publish", "--to", "told") == []
    assert db.queue("told").stats().available == 0
