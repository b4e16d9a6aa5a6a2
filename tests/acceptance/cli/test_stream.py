"""`penstock stream`: writing, reading and removing from the command line."""

from __future__ import annotations

import json
import threading
from typing import Any

import penstock


def test_entries_are_written_and_read(sh: Any, db: penstock.Database) -> None:
    assert sh.json("stream", "write", "s", "a", "b", "--tag", "t") == {"first": 0, "count": 2}
    assert sh.json("stream", "write", "s", stdin=b"c\r\nd\n") == {"first": 2, "count": 2}
    assert sh.json("stream", "write", "s", "--whole", stdin=b"e\nf\n") == {"first": 4, "count": 1}
    found = db.stream("s").read(0, 9)
    assert [(m.tag, m.data) for m in found if m] == [
        ("t", b"a"), ("t", b"b"), ("", b"c"), ("", b"d"), ("", b"e\nf\n"),
    ]  # fmt: skip
    rows = sh.json("stream", "read", "s", "--from", "1", "-n", "2")
    assert [(row["offset"], row["tag"], row["data"]) for row in rows] == [
        (1, "t", "b"),
        (2, "", "c"),
    ]
    assert [row["offset"] for row in sh.json("stream", "read", "s", "--reverse", "-n", "2")] == [
        4,
        3,
    ]
    assert sh("stream", "read", "s", "--raw", "-n", "2") == 0
    assert sh("stream", "write", "s") == 0
    assert "nothing was written" in sh.out


def test_tail_prints_a_line_per_entry(sh: Any, db: penstock.Database) -> None:
    db.stream("t").write_many([("k", b"x"), ("k", b"y\n")])
    assert sh("stream", "tail", "t", "--from", "0", "-n", "2") == 0
    assert sh.out == "0\tk\tx\n1\tk\ty\\n\n"
    assert sh("stream", "tail", "t", "--from", "1", "-n", "1", "--json") == 0
    assert json.loads(sh.out)["data"] == "y\n"


def test_streams_are_listed_shown_evicted_and_deleted(sh: Any, db: penstock.Database) -> None:
    stream = db.stream("old")
    stream.write_many([b"a", b"b", b"c"])
    stream.group("g").create()
    assert sh.json("stream", "info", "old")["groups"][0]["name"] == "g"
    assert sh("stream", "info", "old") == 0
    assert sh("stream", "info", "none") == 3
    assert "old" in [row["name"] for row in sh.json("stream", "ls", "o*")]
    assert sh("stream", "ls", "nothing*") == 0
    assert sh("stream", "evict", "old", "--yes") == 2
    assert sh("stream", "evict", "old", "--keep", "1") == 2, "it asks, and nobody is there"
    assert sh.json("stream", "evict", "old", "--keep", "1", "--yes") == {"evicted": 2}
    assert sh.json("stream", "read", "old", "--from", "0")[:2] == [None, None]
    assert sh("stream", "rm", "old", "--yes") == 0
    assert sh("stream", "rm", "old", "--yes") == 3


def test_a_stream_that_is_not_there_is_told_by_all_who_look(sh: Any, db: penstock.Database) -> None:
    for words in (
        ("info",), ("read",), ("read", "--from", "0"), ("tail", "-n", "1"), ("rm", "--yes"),
        ("tail", "--from", "0", "-n", "1"), ("evict", "--keep", "1", "--yes"),
    ):  # fmt: skip
        command, *options = words
        assert sh("stream", command, "mispelt", *options) == 3, words
        assert "there is no stream 'mispelt'" in sh.err
    assert "mispelt" not in db.streams()


def test_a_tail_waits_for_a_stream_where_it_is_told_to(sh: Any, db: penstock.Database) -> None:
    seen = threading.Event()

    def write() -> None:
        while not seen.wait(0.2):  # again: it shows what comes after it has begun
            db.stream("later").write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    assert sh("stream", "tail", "later", "--wait", "-n", "1") == 0
    seen.set()
    writer.join()
    assert sh.out.endswith("\t\tx\n")


def test_raw_and_json_are_not_given_together(sh: Any, db: penstock.Database) -> None:
    db.stream("raw").write(b"x")
    assert sh("stream", "read", "raw", "--raw", "--json") == 2
    assert "together" in sh.err


def test_a_stream_is_made_and_configured(sh: Any, db: penstock.Database) -> None:
    assert sh("stream", "config", "kept") == 2
    assert "kept" not in db.streams()

    def limits() -> tuple[int | None, int | None, int | None, bool]:
        config = db.stream("kept").info().config
        return config.max_count, config.max_bytes, config.max_age_ms, config.compact

    found = sh.json("stream", "config", "kept", "--max-count", "2", "--max-age", "1.5")
    assert (found["name"], found["config"]["max_count"]) == ("kept", 2)
    assert limits() == (2, None, 1500, False)
    assert sh("stream", "config", "kept", "--compact", "--max-bytes", "1000000") == 0
    assert "1.5 s" in sh.out
    assert limits() == (2, 1_000_000, 1500, True)
    assert sh("stream", "config", "kept", "--max-age", "0", "--no-compact") == 0
    assert limits() == (2, 1_000_000, None, False)
    assert sh("stream", "config", "kept", "--max-count", "-1") == 2
    assert limits() == (2, 1_000_000, None, False)


def test_an_argument_that_is_no_text_is_written_as_its_bytes(
    sh: Any, db: penstock.Database
) -> None:
    assert sh("stream", "write", "bytes", "caf\udce9", "café") == 0
    assert [m.data for m in db.stream("bytes").read(0, 9) if m] == [b"caf\xe9", "café".encode()]


def test_entries_that_are_gone_are_not_among_those_that_a_tail_shows(
    sh: Any, db: penstock.Database
) -> None:
    db.stream("holes").write_many([b"a", b"b", b"c"])
    db.stream("holes").evict(up_to=1)
    assert sh("stream", "tail", "holes", "--from", "0", "-n", "1") == 0
    assert sh.out == "2\t\tc\n"


def test_an_offset_before_the_first_is_refused(sh: Any, db: penstock.Database) -> None:
    db.stream("early").write(b"x")
    assert sh("stream", "read", "early", "--from", "-1") == 2
    assert sh("stream", "tail", "early", "--from", "-1", "-n", "1") == 2
