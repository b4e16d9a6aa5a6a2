"""Source requests over a socket: the words that are sent, and answers that make no sense."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.client.sourcebackend import RemoteSources
from penstock.errors import InvalidError, UnavailableError
from penstock.source.requests import GetSchema, GetSource, Refused, SchemaInfo


class Recorded:
    """Without a connection: it remembers what it would send."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.asked: list[tuple[Any, ...]] = []

    async def ask(self, *request: Any) -> Any:
        self.asked.append(request)
        return self.reply


def test_a_request_is_one_command_with_its_json() -> None:
    remote = Recorded(b'{"answer":"SchemaInfo","version":2,"schema":"a INT"}')
    assert asyncio.run(RemoteSources(remote).ask(GetSchema(7))) == SchemaInfo(2, "a INT")
    assert remote.asked == [("PENSTOCK.SOURCE", b'{"ask":"get-schema","source":7}')]


def test_an_answer_of_another_kind_is_told_apart_by_its_tag() -> None:
    remote = Recorded(b'{"answer":"Refused","reason":"schema","losers":[]}')
    found: object = asyncio.run(RemoteSources(remote).ask(GetSchema(7)))
    assert found == Refused("schema", [])


@pytest.mark.parametrize("reply", [b"", b"{}", b'{"answer":"Nothing"}', b"\xff", None, 5])
def test_an_answer_that_cannot_be_read_is_an_error_of_ours(reply: Any) -> None:
    with pytest.raises(UnavailableError, match="answer about a source cannot be read"):
        asyncio.run(RemoteSources(Recorded(reply)).ask(GetSchema(7)))


def test_a_request_that_the_broker_would_not_read_is_not_sent() -> None:
    remote = Recorded(b"")
    with pytest.raises(InvalidError, match="a request of 70,000,0"):
        asyncio.run(RemoteSources(remote).ask(GetSource("x" * 70_000_000)))
    assert remote.asked == []


def test_a_name_that_is_no_text_is_invalid_and_not_sent() -> None:
    remote = Recorded(b"")
    with pytest.raises(InvalidError, match="told in JSON"):
        asyncio.run(RemoteSources(remote).ask(GetSource("\udcff")))
    assert remote.asked == []
