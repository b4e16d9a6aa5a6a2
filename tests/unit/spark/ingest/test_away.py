"""Stores that are away: that is no failure of the files in them."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from penstock.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.source.queueport import Received
from penstock.spark.ingest import coordinator, files, loader
from penstock.spark.ingest.files import DeniedError, Stat, open_text, stat
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.readers import PieceReader, Reading
from unit.spark.ingest.world import World

ID = pa.schema([("id", pa.int64())])


class Away:
    """Of the store, for as long as it is set."""

    def __init__(self) -> None:
        self.now = True
        self.asked = 0

    def stat(self, uri: str) -> Stat:
        self.asked += 1
        if self.now:
            raise UnavailableError(f"{uri}: connection refused")
        return stat(uri)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    away = Away()
    monkeypatch.setattr(loader, "stat", away.stat)
    return away


def test_a_run_that_ends_leaves_what_cannot_be_read_now_to_the_next_one(
    world: World, away: Away
) -> None:
    for n in range(20):
        world.write(f"{n}.json", {"id": n})
    for _ in range(5):  # more often than a file may fail
        report = world.ingest(max_failures=3).run(once=True)
        assert (report.files, report.failed, report.left) == (0, 0, 20)
        assert len(world.queue) == 20
        for shard in world.shards().values():
            assert (shard.phase, shard.failures, shard.token) == ("open", 0, "")
            assert shard.error.endswith("connection refused")
        world.clock.moved += 31
    away.now = False
    report = world.ingest(max_failures=3).run(once=True)
    assert (report.files, report.left) == (20, 0)
    assert world.ids() == list(range(20))
    assert len(world.queue) == 0


def test_what_comes_again_within_a_run_is_not_left(world: World, away: Away) -> None:
    away.now = False
    world.write("late.json", {"id": 0})
    tried: list[int] = []

    def away_at_first(uri: str) -> Stat:
        away.now = uri.endswith("late.json") and not tried
        tried.extend([1] * away.now)
        return away.stat(uri)

    def comes_again() -> None:
        world.clock.moved += 31

    world.spark.before = comes_again
    world.write("other.json", {"id": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "stat", away_at_first)
        left = []
        report = world.ingest(schema=ID).run(once=True, progress=lambda r: left.append(r.left))
    assert (report.files, report.left) == (2, 0)
    assert 1 in left
    assert world.ids() == [0, 1]


def test_others_are_loaded_and_acknowledged_meanwhile(
    world: World, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})
    world.write("b.json", {"id": 2})
    monkeypatch.setattr(
        loader, "stat", lambda uri: away.stat(uri) if uri.endswith("a.json") else stat(uri)
    )
    report = world.ingest().run(once=True)
    assert (report.files, report.failed) == (1, 0)
    assert len(world.queue) == 1
    assert world.shards()["a.json"].phase == "open"


def test_a_run_that_goes_on_tries_again_until_the_store_is_back(
    world: World, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})
    ingest = world.ingest(linger=0.0, max_failures=1)

    def back(uri: str) -> Stat:
        away.now = away.asked < 3
        return away.stat(uri)

    monkeypatch.setattr(loader, "stat", back)
    monkeypatch.setattr(coordinator, "_AWAY_SECONDS", 0.001)
    report = ingest.run(progress=lambda report: ingest.stop() if report.files else None)
    assert (report.files, report.failed, report.left, away.asked) == (1, 0, 0, 4)
    assert world.ids() == [1]


def test_what_is_away_for_long_is_left_to_the_queue(world: World, away: Away) -> None:
    """Held here it would fill this process: 1 + 2 + … + 32 s, then others may have it."""
    world.write("a.json", {"id": 1})
    ingest = world.ingest(linger=0.0, retry_delay=1.0)
    pauses: list[float] = []
    wait = coordinator.Coordinator._wait_for

    def waited(self: coordinator.Coordinator, *rest: object) -> None:
        wait(self, *rest)  # type: ignore[arg-type]
        if not rest[0]:
            return
        pauses.extend(at - world.clock.monotonic() for at, _ in self._later.values())
        if not self._later:
            assert self._local.idle
            self.stop()
        world.clock.moved += 61

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator.Coordinator, "_wait_for", waited)
        patch.setattr(world.queue, "receive", first_only(world))
        patch.setattr(world.clock, "monotonic", lambda: world.clock.moved)  # stands still
        report = ingest.run()
    assert pauses == [1, 2, 4, 8, 16, 32]
    assert (report.files, report.failed) == (0, 0)
    assert len(world.queue) == 1
    shard = world.shards()["a.json"]
    assert (shard.phase, shard.failures, shard.token) == ("open", 0, "")


def first_only(world: World) -> Callable[[int, float], list[Received]]:
    receive = world.queue.receive
    came: list[int] = []

    def limited(max_messages: int, wait: float) -> list[Received]:
        found = [] if came else receive(max_messages, 0.0)
        came.extend(1 for _ in found)
        return found

    return limited


def test_a_store_that_is_away_only_while_a_schema_is_inferred(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be looked at is not loaded into a table without its columns."""
    world.write("a.json", {"id": 1})
    world.write("b.json", {"id": 2, "b": 1})
    infer = PieceReader.infer

    def lost(self: PieceReader) -> pa.Schema:
        if self._piece.uri.endswith("b.json"):
            raise UnavailableError("connection reset")
        return infer(self)

    monkeypatch.setattr(PieceReader, "infer", lost)
    report = world.ingest(evolve=True).run(once=True)
    assert (report.files, report.failed) == (1, 0)
    monkeypatch.undo()
    world.clock.moved += 31
    assert world.ingest(evolve=True).run(once=True).files == 1
    assert world.rows("id", "b", "_rescued_data") == [(1, None, None), (2, 1, None)]


def test_a_store_that_goes_away_while_a_file_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})

    def lost(self: PieceReader, columns: pa.Schema) -> Iterator[pa.Table]:
        raise UnavailableError("connection reset")
        yield

    monkeypatch.setattr(PieceReader, "tables", lost)
    assert world.ingest(schema=ID, max_failures=1).run(once=True).failed == 0
    monkeypatch.undo()
    world.clock.moved += 31
    assert world.ingest(schema=ID, max_failures=1).run(once=True).files == 1
    assert world.ids() == [1]


# -- whose fault an error is


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GenericError("error sending request"), UnavailableError),
        (PermissionDeniedError("403 Forbidden"), DeniedError),
        (PermissionError(errno.EACCES, "permission denied"), DeniedError),
        (PermissionError(errno.EPERM, "operation not permitted"), DeniedError),
        (UnauthenticatedError("no credentials"), UnavailableError),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), UnavailableError),
        (OSError(errno.EIO, "input/output error"), UnavailableError),
        (OSError(errno.ESTALE, "stale file handle"), UnavailableError),
        (FileNotFoundError(errno.ENOENT, "no such file"), NotFoundError),
        (NotADirectoryError(errno.ENOTDIR, "not a directory"), NotFoundError),
        (OSError(errno.ENAMETOOLONG, "file name too long"), InvalidError),
        (OSError("Invalid data stream"), CorruptError),
        (pa.ArrowInvalid("no footer"), CorruptError),
        (EOFError("cut"), CorruptError),
    ],
)
def test_errors_tell_a_damaged_file_from_a_store_that_is_away(
    error: Exception, kind: type[PenstockError]
) -> None:
    with pytest.raises(kind) as raised, files._kinds("s3://b/k"):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value).startswith("s3://b/k: ")


class Lost:
    """The client's reader, of an object whose store went away: its errors have no number."""

    def __init__(self, data: bytes, error: OSError) -> None:
        self._inner, self._error = io.BytesIO(data), error

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def read(self, size: int) -> bytes:
        found = self._inner.read(min(size, 1000))
        if not found or self._inner.tell() > 50_000:
            raise self._error
        return found


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.bz2", "a.json.zst", "a.parquet"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("Generic S3 error: connection reset"), UnavailableError),
        (OSError("The operation lacked the necessary privileges to complete"), DeniedError),
        (FileNotFoundError("Object at location k not found"), NotFoundError),
    ],
)
def test_a_bucket_that_goes_away_in_the_middle_of_a_file_did_not_damage_it(
    name: str, error: OSError, kind: type[PenstockError], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(100_000)
    pack: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".zst": zstandard.compress,
    }
    for ending, compress in pack.items():
        data = compress(data) if name.endswith(ending) else data
    monkeypatch.setattr(obstore, "open_reader", lambda *rest, **more: Lost(data, error))
    monkeypatch.setattr(files, "bucket_store", lambda url: None)
    reading = Reading("parquet" if name.endswith("parquet") else "json")
    with pytest.raises(kind) as raised:
        list(PieceReader(Piece(0, f"s3://b/{name}"), reading).tables(ID))
    assert type(raised.value) is kind


def test_files_with_damage_inside_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.bz2"
    path.write_bytes(bz2.compress(b"x" * 10_000)[:10] + b"\xff" * 40)
    with pytest.raises(CorruptError), open_text(f"file://{path}") as file:
        file.read()
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": list(range(5000))}), path, compression="snappy")
    whole = bytearray(path.read_bytes())
    whole[8:2000] = b"\xff" * 1992
    path.write_bytes(whole)
    with pytest.raises(CorruptError):
        list(PieceReader(Piece(0, f"file://{path}"), Reading("parquet")).tables(ID))
