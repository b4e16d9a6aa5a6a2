"""PENSTOCK.SOURCE: JSON -> requests, or what is wrong with it; and its answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from integration.resp_server import RespServer
from penstock.errors import InvalidError
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.parsers import PARSERS
from penstock.source.requests import (
    ListSources,
    OpenShards,
    OpenSource,
    ShardOpen,
    SourceAnswer,
    SourceInfo,
    SourceRequest,
)


def parse(*words: bytes) -> object:
    command = COMMANDS["PENSTOCK.SOURCE"]
    command.check_arity(1 + len(words))
    return PARSERS[command.name]([b"PENSTOCK.SOURCE", *words])


@pytest.mark.parametrize(
    ("json", "request_"),
    [
        (b'{"ask":"list-sources"}', ListSources()),
        (b'{"ask":"open-source","name":"s","table":"t"}', OpenSource("s", "t")),
        (
            b'{"ask":"open-shards","source":1,"token":"t","stale_ms":5,'
            b'"shards":[{"id":"i","uri":"u","etag":"e"}]}',
            OpenShards(1, "t", 5, [ShardOpen("i", "u", "e")]),
        ),
    ],
)
def test_a_request_is_its_json(json: bytes, request_: SourceRequest) -> None:
    assert parse(json) == request_


@pytest.mark.parametrize(
    ("json", "what"),
    [
        (b"", "no request about a source"),
        (b"{", "no request about a source"),
        (b"[]", "no request about a source"),
        (b"\xff", "no request about a source"),
        (b"{}", "ask"),
        (b'{"ask":"open-everything"}', "open-everything"),
        (b'{"ask":"open-source","name":"s"}', "table"),
        (b'{"ask":"open-source","name":"s","table":"t","shards":1}', "shards"),
        (b'{"ask":"open-source","name":"s","table":"t","identity":"etag"}', "etag"),
        (b'{"ask":"get-schema","source":"1"}', "source"),
        (b'{"ask":"beat","source":1,"token":"t","shards":[1]}', "shards"),
    ],
)
def test_what_is_no_request_is_invalid_and_says_where(json: bytes, what: str) -> None:
    with pytest.raises(InvalidError, match=what):
        parse(json)


@pytest.mark.parametrize("words", [(), (b"{}", b"{}")])
def test_it_takes_one_argument(words: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidError, match="wrong number of arguments"):
        parse(*words)


def test_every_request_has_a_word_of_its_own() -> None:
    kinds = SourceRequest.__args__
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(kinds)


def test_a_stock_client_can_ask_and_is_told_what_is_wrong() -> None:
    import redis

    with RespServer() as served:
        client: Any = redis.Redis(port=served.port)
        try:
            reply = client.execute_command(
                "PENSTOCK.SOURCE", b'{"ask":"open-source","name":"s","table":"t"}'
            )
            made = msgspec.json.decode(reply, type=SourceAnswer)
            assert isinstance(made, SourceInfo)
            assert (made.name, made.published) == ("s", 0)
            with pytest.raises(redis.ResponseError, match=r"NOTFOUND.*there is no source 99"):
                client.execute_command("PENSTOCK.SOURCE", b'{"ask":"get-schema","source":99}')
            with pytest.raises(redis.ResponseError, match=r"INVALID.*no request about a source"):
                client.execute_command("PENSTOCK.SOURCE", b"{}")
        finally:
            client.close()
