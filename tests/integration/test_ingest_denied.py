"""Files that may not be read: of a disk, and of a bucket that denies one, or everything."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.source.requests import Shard
from penstock.spark.ingest import files
from penstock.spark.ingest.files import DeniedError
from penstock.spark.ingest.readers import PieceReader
from penstock.spark.ingest.report import Report
from unit.spark.ingest.world import World

ID = pa.schema([("id", pa.int64())])
_numbers = count(1)
_LIST = (
    b'<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>'
    b"<KeyCount>0</KeyCount></ListBucketResult>"
)


class Denying(ThreadingHTTPServer):
    """As much of S3 as is asked of it. `denied`: (method, object), or (method, None) for all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.denied: set[tuple[str, str | None]] = set()

    def deny(self, *keys: str | None, methods: tuple[str, ...] = ("HEAD", "GET")) -> None:
        self.denied |= {(method, key) for key in keys for method in methods}

    def denies(self, method: str, path: str) -> bool:
        key = "list" if "?" in path else path.rsplit("/", 1)[-1]
        return not self.denied.isdisjoint({(method, key), (method, None)})


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        assert isinstance(self.server, Denying)
        code, body = 200, _LIST if "?" in self.path else b'{"id":1}\n'
        if self.server.denies(self.command, self.path):
            code, body = 403, b"<Error><Code>AccessDenied</Code></Error>"
        elif asked := self.headers.get("Range"):
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            size, body = len(body), body[first : last + 1]
            self.send_response(code := 206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        if code != 206:
            self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = _answer  # noqa: N815


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Denying]:
    with Denying() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Ingested(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bucket = f"s3://denying-{next(_numbers)}"  # clients are kept, by bucket

    def announce(self, *keys: str) -> None:
        for key in keys:
            self.queue.send(f"{self.bucket}/{key}")

    def run(self, **options: Any) -> Report:
        report = self.ingest(schema=ID, max_failures=3, **options).run(once=True)
        self.clock.moved += 200
        return report

    def shard(self, key: str) -> Shard:
        return self.shards()[key]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Ingested]:
    world = Ingested(tmp_path)
    yield world
    world.close()


def test_a_local_file_that_may_not_be_read_has_failed(
    world: Ingested, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("good.json", {"id": 1})
    world.write("secret.json", {"id": 2})

    def opened(path: str, *rest: Any, **more: Any) -> Any:
        if path.endswith("secret.json"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open(path, *rest, **more)

    monkeypatch.setattr(files, "open", opened, raising=False)
    report = world.run()
    assert (report.files, report.failed, report.left) == (1, 1, 0)
    secret = world.shard("secret.json")
    assert (secret.phase, secret.failures) == ("failed", 3)
    assert secret.error.endswith("secret.json: Permission denied")
    assert len(world.queue) == 0


@pytest.mark.parametrize("others", [[], ["good.json"]])
def test_an_object_that_a_bucket_denies_has_failed(
    world: Ingested, s3: Denying, others: list[str]
) -> None:
    """Without others, the bucket can be listed; with one, it need not be."""
    s3.deny("secret.json", *(["list"] if others else []))
    world.announce("secret.json", *others)
    report = world.run()
    assert (report.files, report.failed, report.left) == (len(others), 1, 0)
    secret = world.shard("secret.json")
    assert (secret.phase, secret.failures) == ("failed", 3)
    assert "403 Forbidden" in secret.error
    assert len(world.queue) == 0


def test_an_object_whose_version_may_not_be_asked_for_has_failed(
    world: Ingested, s3: Denying
) -> None:
    s3.deny("secret.json")
    world.announce("secret.json")
    assert world.run(identity="version").failed == 1
    assert len(world.queue) == 0


def test_an_object_that_tells_its_size_but_not_its_bytes_has_failed(
    world: Ingested, s3: Denying
) -> None:
    """One whose key may not be used, or that lies in an archive."""
    s3.deny("secret.json", "list", methods=("GET",))
    world.announce("secret.json")
    assert world.run().failed == 1
    assert world.shard("secret.json").failures == 3


def test_credentials_that_expired_are_no_failure_of_a_file(world: Ingested, s3: Denying) -> None:
    world.announce("a.json")
    assert world.run().files == 1
    world.announce("b.json", "c.json")
    s3.deny(None)
    for _ in range(4):  # more often than a file may fail
        report = world.run()
        assert (report.files, report.failed, report.left) == (0, 0, 2)
        for key in ("b.json", "c.json"):
            shard = world.shard(key)
            assert (shard.phase, shard.failures, shard.token) == ("open", 0, "")
            assert "403 Forbidden" in shard.error  # why it is not loaded yet
    s3.denied.clear()
    assert world.run().files == 2
    assert world.shard("b.json").error == ""
    assert len(world.queue) == 0


def test_credentials_that_expire_between_two_files_fail_none(
    world: Ingested, s3: Denying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could be read before the denial tells nothing."""
    world.announce("a.json", "b.json")
    world.spark.before = lambda: s3.deny(None)
    report = world.run()
    assert (report.files, report.failed, report.left) == (0, 0, 2)
    assert {world.shard(key).failures for key in ("a.json", "b.json")} == {0}


def test_executors_without_credentials_are_no_failure_of_a_file(
    world: Ingested, s3: Denying, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: PieceReader, columns: pa.Schema) -> Iterator[pa.Table]:
        raise DeniedError("403 Forbidden")
        yield

    monkeypatch.setattr(PieceReader, "tables", denied)
    world.announce("a.json")
    report = world.run()
    assert (report.failed, report.left) == (0, 1)
    assert world.shard("a.json").failures == 0
