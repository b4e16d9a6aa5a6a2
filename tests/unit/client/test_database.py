"""The Python handle: the contract of the public names, and what a wrong argument gets."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock


def test_a_stream_that_was_never_written_is_empty(db: penstock.Database) -> None:
    stream = db.stream("clicks")
    info = stream.info()
    assert (info.first, info.last, info.length) == (0, -1, 0)
    assert stream.read(0, 10) == []
    assert stream.read(5, 10, reverse=True) == []
    assert stream.to_arrow().num_rows == 0
    assert stream.evict(up_to=100) == 0


def test_writes_return_offsets_and_reads_give_messages(db: penstock.Database) -> None:
    stream = db.stream("clicks")
    assert stream.write(b"hello", tag="u1") == 0
    assert stream.write_many([("u1", b"a"), ("u2", b"b")]) == range(1, 3)
    assert stream.write_many([b"bare"]) == range(3, 4)
    assert stream.write_many(x for x in [b"lazy"]) == range(4, 5)
    assert stream.write_many([]) == range(5, 5)
    found = stream.read(0, 100)
    assert [(m.offset, m.tag, m.data) for m in found if m] == [
        (0, "u1", b"hello"),
        (1, "u1", b"a"),
        (2, "u2", b"b"),
        (3, "", b"bare"),
        (4, "", b"lazy"),
    ]
    assert [m.offset for m in stream.read(9, 2, reverse=True) if m] == [4, 3]
    first = found[0]
    assert first is not None
    assert first.meta is None
    assert first.time.tzinfo is UTC
    assert abs((datetime.now(UTC) - first.time).total_seconds()) < 3600


def test_arrow_goes_in_and_out(db: penstock.Database) -> None:
    stream = db.stream("arrow")
    batch = pa.record_batch({"data": [b"a", b"b"], "tag": ["x", None]})
    assert stream.write_many(batch) == range(2)
    table = stream.to_arrow(0, 10)
    assert table.column("data").to_pylist() == [b"a", b"b"]
    assert table.column("offset").to_pylist() == [0, 1]


def test_compacted_entries_read_as_none_and_arrow_leaves_them_out(db: penstock.Database) -> None:
    stream = db.stream("s")
    stream.configure(compact=True)
    stream.write_many([("k", b"old"), ("", b"bare"), ("k", b"new")])
    looks = itertools.count()
    while stream.read(0, 1) != [None] and next(looks) < 600:
        stream.read(3, 1, block=0.1)  # nothing comes: it only waits
    assert stream.to_arrow().column("data").to_pylist() == [b"bare", b"new"]
    assert stream.to_arrow().column("offset").to_pylist() == [1, 2]


def test_evicted_entries_read_as_none_and_arrow_leaves_them_out(db: penstock.Database) -> None:
    stream = db.stream("s")
    stream.write_many([b"%d" % n for n in range(10)])
    assert stream.evict(up_to=5) == 6
    found = stream.read(0, 7)
    assert [m and m.data for m in found] == [None] * 6 + [b"6"]
    assert stream.to_arrow().column("offset").to_pylist() == [6, 7, 8, 9]
    assert stream.evict(keep=1) == 3
    assert (stream.info().first, stream.info().last) == (9, 9)
    assert stream.write(b"next") == 10


def test_a_repeated_sequence_returns_the_first_answer_and_appends_nothing(
    db: penstock.Database,
) -> None:
    stream = db.stream("s")
    assert stream.write_many([b"a", b"b"], producer="p", sequence=1) == range(2)
    assert stream.write_many([b"a", b"b"], producer="p", sequence=1) == range(2)
    assert stream.info().length == 2
    assert stream.write_many([b"c"], producer="p", sequence=2) == range(2, 3)
    with pytest.raises(penstock.InvalidError, match="below"):
        stream.write_many([b"a"], producer="p", sequence=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.write("text"),
        lambda s: s.write(None),
        lambda s: s.write(b"x", tag=3),
        lambda s: s.write(b"x", tag="t" * 70000),
        lambda s: s.write_many("text"),
        lambda s: s.write_many(b"bytes"),
        lambda s: s.write_many(5),
        lambda s: s.write_many([b"a", 3]),
        lambda s: s.write_many([("a",)]),
        lambda s: s.write_many([b"a"], backlog=-1),
        lambda s: s.write_many([b"a"], backlog="1"),
        lambda s: s.write_many([b"a"], producer="p"),
        lambda s: s.write_many([b"a"], sequence=1),
        lambda s: s.write_many([b"a"], producer=b"p", sequence=1),
        lambda s: s.write_many([b"a"], producer="p", sequence=True),
        lambda s: s.write_many([b"a"], producer="\ud800", sequence=1),
        lambda s: s.write_many([b"a"], producer="p\udcff", sequence=1),
        lambda s: s.write_many([b"a"], producer="p", sequence=1 << 63),
        lambda s: s.write_many([b"a", ("t", b"b")]),
        lambda s: s.read(-1, 1),
        lambda s: s.read(0, -1),
        lambda s: s.read("0", 1),
        lambda s: s.read(0, 1.5),
        lambda s: s.to_arrow(-1),
        lambda s: s.to_arrow(0, -1),
        lambda s: s.evict(),
        lambda s: s.evict(up_to=1, keep=1),
        lambda s: s.evict(keep=-1),
    ],
)
def test_a_wrong_argument_is_an_invalid_error_and_changes_nothing(
    shared_db: penstock.Database, name: str, call: Any
) -> None:
    stream = shared_db.stream(name)
    stream.write(b"one")
    with pytest.raises(penstock.InvalidError):
        call(stream)
    assert [m and m.data for m in stream.read(0, 10)] == [b"one"]


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128, "\ud800", 5, None, b"bytes"])
def test_a_name_outside_the_limits_is_refused(shared_db: penstock.Database, name: Any) -> None:
    with pytest.raises(penstock.InvalidError):
        shared_db.stream(name)


@pytest.mark.parametrize("name", ["x" * 255, "a/b", "../up", "with\0nul", "☃", " "])
def test_any_other_name_is_a_stream_of_its_own(shared_db: penstock.Database, name: str) -> None:
    db = shared_db
    db.stream(name).write(name.encode())
    db.stream(name + "2" if len(name) < 255 else "other").write(b"other")
    assert [m and m.data for m in db.stream(name).read(0, 10)] == [name.encode()]


def test_nothing_that_a_user_names_becomes_part_of_a_path(tmp_path: Path) -> None:
    """Whatever it is called, and however large it is: files have numbers, and names of ours."""
    name = "../../mark/mark\0mark"
    with penstock.open(tmp_path / "d") as db:
        stream = db.stream(name)
        stream.write_many([(name, b"x" * 2_000_000)] * 3, producer=name, sequence=1)
        stream.group(name).create()
        db.create_queue(name)
        db.publish(b"x" * 2_000_000, headers={name: name}, to=name, dedup_id=name)
        db.queue(name).claim(consumer=name)[0].fail(reason=name)
        db.topic(name).push(b"x", shard_key=name)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    ours = re.compile(
        r"d/(broker/\d+\.lock|journal/\d+\.(epoch|head|manifests|floors)|payloads/\d+"
        r"|store/(gc/\w+\.boundary|(manifest|compactions)/\d{20}\.\w+|wal/\d{20}\.sst"
        r"|compacted/[0-9A-Z]{26}\.sst))"
    )
    assert [path for path in written if not ours.fullmatch(path)] == []
    assert any(path.startswith("d/payloads/") for path in written)


@pytest.mark.parametrize(
    "location", ["ftp://x", "", 5, "penstock://", "penstock://host:99999", "penstock://host:1/path"]
)
def test_a_location_that_is_none_is_refused(location: Any) -> None:
    with pytest.raises(penstock.InvalidError):
        penstock.open(location)


@pytest.mark.parametrize(
    "options", [{"deadline": 0}, {"deadline": "x"}, {"durability": "maybe"}, {"broker": "inside"}]
)
def test_options_outside_their_limits_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(penstock.InvalidError):
        penstock.open(tmp_path / "d", **options)


def test_a_closed_handle_says_so(tmp_path: Path) -> None:
    db = penstock.open(tmp_path / "d")
    stream = db.stream("s")
    other = db.stream("s")
    stream.write(b"x")
    stream.close()
    with pytest.raises(penstock.InvalidError, match="closed"):
        stream.write(b"y")
    assert other.info().length == 1
    db.close()
    db.close()
    for call in (lambda: other.write(b"x"), other.info, lambda: other.read(0), db.stream):
        with pytest.raises(penstock.InvalidError, match="closed"):
            call(*["s"] if call == db.stream else [])
    with penstock.open(tmp_path / "d") as again:
        assert again.stream("s").info().length == 1


def test_an_address_where_nobody_listens_is_unavailable_at_once() -> None:
    with pytest.raises(penstock.UnavailableError, match="refused"):
        penstock.open("penstock://127.0.0.1:1")


def test_handles_are_not_pickled(db: penstock.Database) -> None:
    with pytest.raises(penstock.InvalidError):
        pickle.dumps(db)
    with pytest.raises(penstock.InvalidError):
        pickle.dumps(db.stream("s"))


def test_threads_share_a_handle_and_every_offset_is_given_once(db: penstock.Database) -> None:
    stream = db.stream("s")
    offsets: list[int] = []

    def write(worker: int) -> None:
        for n in range(50):
            offsets.append(stream.write(b"%d.%d" % (worker, n)))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(400))
    assert len({m.data for m in stream.read(0, 400) if m}) == 400


def test_calls_that_race_a_close_end_and_say_so(tmp_path: Path) -> None:
    for _ in range(5):
        db = penstock.open(tmp_path / "d")
        stream = db.stream("s")
        errors: list[BaseException] = []

        def use(stream: penstock.Stream = stream, errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    stream.write(b"x")
            except BaseException as problem:
                errors.append(problem)

        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads:
            thread.start()
        db.close()
        for thread in threads:
            thread.join()
        assert {type(error) for error in errors} == {penstock.InvalidError}


def test_a_large_entry_and_a_large_batch_work(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "d") as db:
        stream = db.stream("s")
        large = bytes(range(256)) * (40 << 12)
        assert stream.write(large) == 0
        assert stream.write_many([b"x" * 100] * 12_345) == range(1, 12_346)
    with penstock.open(tmp_path / "d") as db:
        stream = db.stream("s")
        (found,) = stream.read(0, 1)
        assert found is not None
        assert found.data == large
        assert stream.info().length == 12_346


def test_a_batch_larger_than_a_commit_is_one_all_the_same(tmp_path: Path) -> None:
    entries = [os.urandom(1000) for _ in range(12_000)]
    with penstock.open(tmp_path / "d") as db:
        stream = db.stream("s")
        stream.write(b"before")
        commits = db._require().committer.health.commits
        assert stream.write_many(entries, backlog=5000) == range(1, 12_001)
        assert db._require().committer.health.commits - commits >= 4
        assert stream.write(b"after") == 12_001
        assert stream.info().first >= 12_002 - 5000 - 1
    with penstock.open(tmp_path / "d") as db:
        found = db.stream("s").read(8000, 10_000)
        assert [m and m.data for m in found] == [*entries[7999:], b"after"]


def test_the_public_names_are_these() -> None:
    assert sorted(penstock.__all__) == [
        "Backoff",
        "ClaimedMessage",
        "ConflictError",
        "Consumer",
        "CorruptError",
        "Database",
        "FencedError",
        "Group",
        "InvalidError",
        "Message",
        "NotFoundError",
        "PenstockError",
        "Publish",
        "Queue",
        "Stream",
        "Topic",
        "TopicConsumer",
        "TopicMessage",
        "Tx",
        "URI",
        "UnavailableError",
        "aio",
        "open",
    ]
    assert all(hasattr(penstock, name) for name in penstock.__all__)


def test_a_batch_larger_than_a_commit_is_written_once_by_its_producer(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "db") as db:
        stream = db.stream("s")
        batch = [random.Random(i).randbytes(1 << 20) for i in range(6)]
        first = stream.write_many(batch, producer="p", sequence=1)
        assert first == range(6)
        assert stream.write_many(batch, producer="p", sequence=1) == first
        with ThreadPoolExecutor(4) as pool:
            again = [
                pool.submit(stream.write_many, batch, producer="p", sequence=2) for _ in range(4)
            ]
            assert {future.result() for future in again} == {range(6, 12)}
        assert stream.info().length == 12
        with pytest.raises(penstock.InvalidError, match="below 2"):
            stream.write_many(batch, producer="p", sequence=1)
        with pytest.raises(penstock.InvalidError, match="go together"):
            stream.write_many(batch, producer="p")
