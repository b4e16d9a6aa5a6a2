"""An unreachable bucket: every call answers in time, and the handle heals with the bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

import penstock
from integration.calls import DEADLINE_SECONDS, answer_of, write_noted, write_until_accepted
from integration.ledger import Ledger, entries
from integration.proxy import Proxy, State, proxy


@pytest.fixture
def line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The way to the bucket server, with a switch in it."""
    endpoint = urlsplit(os.environ["AWS_ENDPOINT"])
    assert endpoint.hostname is not None
    assert endpoint.port is not None
    with proxy((endpoint.hostname, endpoint.port)) as made:
        host, port = made.address
        monkeypatch.setenv("AWS_ENDPOINT", f"http://{host}:{port}")
        yield made


@pytest.mark.parametrize("trouble", ["cut", "stalled"])
def test_an_unreachable_bucket_is_answered_in_time_and_heals(
    bucket: str, line: Proxy, trouble: State
) -> None:
    ledger = Ledger()
    with penstock.open(bucket, deadline=DEADLINE_SECONDS) as db:
        stream = db.stream("mixed")
        for number in range(10):
            write_noted(stream, ledger, f"before.{number}", 7)
        line.set(trouble)
        for number in range(3):
            with pytest.raises(penstock.UnavailableError):
                write_noted(stream, ledger, f"meanwhile.{number}", 7)
        with pytest.raises(penstock.UnavailableError):
            answer_of(stream.info)
        line.set("through")
        write_until_accepted(stream, ledger, "after")
        ledger.verify(db)
        assert [message.data for message in stream.read(0, 7) if message] == entries("before.0", 7)
    with penstock.open(bucket, deadline=DEADLINE_SECONDS) as db:
        ledger.verify(db)


def test_opening_an_unreachable_bucket_is_answered_in_time(bucket: str, line: Proxy) -> None:
    line.set("stalled")
    with pytest.raises(penstock.UnavailableError):
        answer_of(lambda: penstock.open(bucket, deadline=DEADLINE_SECONDS))


def test_closing_with_the_bucket_out_of_reach_answers_and_loses_nothing(
    bucket: str, line: Proxy
) -> None:
    ledger = Ledger()
    db = penstock.open(bucket, deadline=DEADLINE_SECONDS)
    write_noted(db.stream("mixed"), ledger, "before.0", 100)
    line.set("cut")
    answer_of(db.close)
    line.set("through")
    with penstock.open(bucket, deadline=DEADLINE_SECONDS) as again:
        ledger.verify(again)
