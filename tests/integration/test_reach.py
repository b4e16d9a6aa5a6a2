"""A bucket that a process cannot use is told in words, and soon: SlateDB would wait for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import penstock
from conformance.factories import BUCKET
from penstock.clock import SystemClock
from penstock.log.catalogue import stream_name
from penstock.spark.options import read_options
from penstock.spark.planning import Chosen, Part
from penstock.spark.reading import read_part
from penstock.store import reach
from penstock.store.location import open_store
from penstock.store.reader import open_reader

NO_CHECKPOINT = "00000000-0000-0000-0000-000000000000"


def refusal(location: str) -> penstock.PenstockError:
    """What the broker and a reader of a checkpoint are told; the same."""
    with pytest.raises(penstock.PenstockError) as one:
        asyncio.run(open_store(location, clock=SystemClock()))
    with pytest.raises(penstock.PenstockError) as other:
        asyncio.run(open_reader(location, NO_CHECKPOINT))
    assert type(one.value) is type(other.value)
    assert "\n" not in str(one.value)
    return one.value


@pytest.fixture
def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<Error><Code>InvalidAccessKeyId</Code></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_bucket_that_is_not_there(server: None) -> None:
    error = refusal("s3://nobody-has-it/x")
    assert isinstance(error, penstock.NotFoundError)
    assert str(error) == "s3://nobody-has-it/x: there is no such bucket"


def test_a_server_that_is_not_there(
    server: None, closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", closed_port)
    error = refusal(f"s3://{BUCKET}/x")
    assert isinstance(error, penstock.UnavailableError)
    assert closed_port in str(error)
    assert "AWS_*" in error.hint


def test_an_endpoint_without_tls(server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    error = refusal(f"s3://{BUCKET}/x")
    assert isinstance(error, penstock.UnavailableError)
    assert "AWS_ALLOW_HTTP=true" in error.hint


def test_credentials_that_are_refused(
    server: None, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", refusing)
    error = refusal(f"s3://{BUCKET}/x")
    assert isinstance(error, penstock.InvalidError)
    assert str(error) == f"s3://{BUCKET}/x: access is refused: InvalidAccessKeyId"


def test_a_server_that_does_not_answer(server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(reach, "LOOK_SECONDS", 0.2)
        error = refusal(f"s3://{BUCKET}/x")
    assert isinstance(error, penstock.UnavailableError)
    assert "no answer" in str(error)


def test_a_task_that_cannot_use_the_bucket_goes_on_through_the_broker_and_says_so(
    bucket: str,
    closed_port: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with penstock.open(bucket) as db:
        db.stream("s").write_many([b"%d" % n for n in range(100)])
        log_id = db.bulk.log_size(stream_name("s")).log_id
        checkpoint = db.bulk.checkpoint(60_000)
        monkeypatch.setattr("penstock.spark.reading.database", lambda _, waits: db)
        options = read_options({"location": "penstock://served:1", "stream": "s"}, streaming=False)
        for read, came in (("direct", 0), ("brokered", 100)):
            part = Part(read, 0, 0, 100, log_id=log_id, checkpoint=checkpoint)
            batches = read_part(options, Chosen(), part)
            assert [o for b in batches for o in b["offset"].to_pylist()] == list(range(100))
            told = {each.id: each for each in db.bulk.progress()}
            assert (told[read].rows, told[read].brokered) == (100, came)
            # From here on the task has other variables than the broker, which is open already.
            monkeypatch.setenv("AWS_ENDPOINT", closed_port)
    assert "stream s goes on through the broker" in caplog.text
    assert caplog.text.count("goes on") == 1
