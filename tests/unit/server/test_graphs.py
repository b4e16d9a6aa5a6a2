"""PENSTOCK.GRAPH: JSON -> requests, or what is wrong with it; and its answers."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from integration.resp_server import RespServer
from penstock.errors import InvalidError
from penstock.graph.requests import (
    Input,
    Look,
    Looked,
    ResetProcessor,
    ShowGraphs,
    Start,
    Started,
    Topology,
    decode_reply,
    encode_request,
)
from penstock.graph.requests import Request as GraphRequest
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.parsers import PARSERS

PIPE = Topology("g", "p", "pipe", [Input("raw", "raw")], ["out"])


def parse(*words: bytes) -> object:
    command = COMMANDS["PENSTOCK.GRAPH"]
    command.check_arity(1 + len(words))
    return PARSERS[command.name]([b"PENSTOCK.GRAPH", *words])


@pytest.mark.parametrize(
    ("json", "request_"),
    [
        (b'{"type":"status"}', ShowGraphs()),
        (b'{"type":"look","processor":3,"epoch":1,"block_ms":50}', Look(3, 1, 50)),
        (b'{"type":"reset","graph":"g","processor":"p","start":"new"}',
         ResetProcessor("g", "p", "new")),
        (b'{"type":"start","topology":{"graph":"g","processor":"p","kind":"pipe",'
         b'"inputs":[{"alias":"raw","stream":"raw"}],"outputs":["out"]}}', Start(PIPE)),
    ],
)  # fmt: skip
def test_a_request_is_its_json(json: bytes, request_: GraphRequest) -> None:
    assert parse(json) == request_
    assert parse(encode_request(request_)) == request_


@pytest.mark.parametrize(
    ("json", "what"),
    [
        (b"", "a graph request is told in JSON"),
        (b"\xff", "a graph request is told in JSON"),
        (b"{}", "type"),
        (b'{"type":"everything"}', "everything"),
        (b'{"type":"look","processor":3}', "epoch"),
        (b'{"type":"look","processor":3,"epoch":1,"more":1}', "more"),
        (b'{"type":"reset","graph":"g","processor":"p","start":"middle"}', "middle"),
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
    kinds = GraphRequest.__args__
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert len(set(tags)) == len(kinds)


def test_a_stock_client_can_ask_and_is_told_what_is_wrong() -> None:
    import redis

    with RespServer() as served:
        client: Any = redis.Redis(port=served.port)
        try:
            started = decode_reply(
                client.execute_command("PENSTOCK.GRAPH", encode_request(Start(PIPE)))
            )
            assert isinstance(started, Started)
            client.execute_command("TWRITE", "raw", "", "x")
            look = encode_request(Look(started.processor, started.epoch, 60_000))
            looked = decode_reply(client.execute_command("PENSTOCK.GRAPH", look))
            assert isinstance(looked, Looked)
            assert looked.tailers[0].available == 1
            with pytest.raises(redis.ResponseError, match=r"NOTFOUND.*no graph 'h'"):
                client.execute_command("PENSTOCK.GRAPH", b'{"type":"status","graph":"h"}')
            with pytest.raises(redis.ResponseError, match=r"INVALID.*told in JSON"):
                client.execute_command("PENSTOCK.GRAPH", b"{}")
        finally:
            client.close()


def test_a_look_whose_client_went_away_waits_no_longer() -> None:
    import redis

    with RespServer() as served:
        client: Any = redis.Redis(port=served.port)
        reply = client.execute_command("PENSTOCK.GRAPH", encode_request(Start(PIPE)))
        client.close()
        started = decode_reply(reply)
        assert isinstance(started, Started)
        look = encode_request(Look(started.processor, started.epoch, 600_000))
        waiters, counts = served.broker.graphs._waiters, served.server.counts
        with socket.create_connection(("127.0.0.1", served.port)) as line:
            line.sendall(b"*2\r\n$14\r\nPENSTOCK.GRAPH\r\n$%d\r\n%s\r\n" % (len(look), look))
            served.until(lambda: len(waiters) == 2)  # for its input, and for another runner
            assert counts.blocked == 1
        served.until(lambda: counts.blocked == 0)
        assert len(waiters) == 0
