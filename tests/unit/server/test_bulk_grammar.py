"""The bulk commands as tables: words -> requests, or what is wrong with them; and INFO spark."""

from __future__ import annotations

import pytest

from integration.resp_server import RespServer
from penstock.broker.bulk import Wanted
from penstock.broker.progress import Position
from penstock.codec.node import HEADER_BYTES, build_body, node_value
from penstock.codec.payload import BytesPayload, encode_payload
from penstock.errors import InvalidError
from penstock.log.batch import build_bodies, column
from penstock.log.catalogue import stream_name
from penstock.queue.state import queue_name
from penstock.server.resp.bulk_grammar import (
    CheckpointDrop,
    CheckpointMake,
    CheckpointRenew,
    LinkStaged,
    ReadRows,
    SeekTime,
    ShowProgress,
    ShowSize,
    StageBegin,
    StageDrop,
    StagePut,
    StageRenew,
    StageReserve,
    TakeReport,
)
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.parsers import PARSERS
from penstock.topic.state import topic_name

(BODY,) = build_bodies([b"x"])
NODE = node_value(BODY, 0, 0)
TIMED = node_value(build_body(1, column([b"x"], "data"), times=bytes(8)), 0, 0)
DEAD = node_value(build_body(1, column([b"x"], "data"), validity=b"\0"), 0, 0)
PAYLOAD = encode_payload(BytesPayload(b"p"))
S = stream_name("s")
REPORT = b'{"type":"position","read":"r","source":"s","offset":1,"latest":2}'


def parse(line: bytes, *more: bytes) -> object:
    words = [*line.split(b" "), *more]
    command = COMMANDS[words[0].decode().upper()]
    command.check_arity(len(words))
    return PARSERS[command.name](words)


@pytest.mark.parametrize(
    ("line", "more", "request_"),
    [
        (b"penstock.stage begin", (), StageBegin()),
        (b"PENSTOCK.STAGE BEGIN key k LEASE 5", (), StageBegin(b"k", 5)),
        (b"PENSTOCK.STAGE PUT 1 2 3 1", (NODE,), StagePut(1, 2, 3, [BODY], [])),
        (b"PENSTOCK.STAGE PUT 1 2 3 0 PAYLOADS 9", (PAYLOAD,),
         StagePut(1, 2, 3, [], [(9, PAYLOAD)])),
        (b"PENSTOCK.STAGE RESERVE 1 2 3", (), StageReserve(1, 2, 3, [])),
        (b"PENSTOCK.STAGE RESERVE 1 2 3 TO a b", (), StageReserve(1, 2, 3, ["a", "b"])),
        (b"PENSTOCK.STAGE RENEW 1", (), StageRenew(1)),
        (b"PENSTOCK.STAGE DROP 1", (), StageDrop(1)),
        (b"PENSTOCK.LINK 1 STREAM s WRITERS 2 3", (), LinkStaged(1, S, [2, 3])),
        (b"PENSTOCK.LINK 1 MESSAGES WRITERS 2 PRODUCER p 7", (),
         LinkStaged(1, None, [2], b"p", 7)),
        (b"PENSTOCK.CHECKPOINT MAKE 5", (), CheckpointMake(5)),
        (b"PENSTOCK.CHECKPOINT MAKE 5 QUEUE q", (), CheckpointMake(5, queue_name("q"))),
        (b"PENSTOCK.CHECKPOINT RENEW c 5", (), CheckpointRenew("c", 5)),
        (b"PENSTOCK.CHECKPOINT DROP c", (), CheckpointDrop("c")),
        (b"PENSTOCK.SIZE STREAM s", (), ShowSize(S)),
        (b"PENSTOCK.SIZE TOPIC t", (), ShowSize(topic_name("t"))),
        (b"PENSTOCK.SIZE MESSAGES", (), ShowSize(None)),
        (b'PENSTOCK.READ 1 2 {"headers":true} STREAM s', (),
         ReadRows(S, 1, 2, Wanted(headers=True))),
        (b"PENSTOCK.SEEK 5 MESSAGES", (), SeekTime(None, 5)),
        (b"PENSTOCK.REPORT", (REPORT,), TakeReport(Position("r", "s", 1, 2))),
        (b"PENSTOCK.PROGRESS", (), ShowProgress()),
    ],
)  # fmt: skip
def test_words_become_requests(line: bytes, more: tuple[bytes, ...], request_: object) -> None:
    assert parse(line, *more) == request_


@pytest.mark.parametrize(
    ("line", "more", "message"),
    [
        (b"PENSTOCK.STAGE", (), "wrong number of arguments"),
        (b"PENSTOCK.STAGE NOPE", (), "NOPE"),
        (b"PENSTOCK.STAGE BEGIN KEY", (), "is missing"),
        (b"PENSTOCK.STAGE BEGIN LEASE 0", (), "at least 1"),
        (b"PENSTOCK.STAGE PUT 1 2 3 2", (NODE,), "nodes is too large|a node is missing"),
        (b"PENSTOCK.STAGE PUT 1 2 3 1", (NODE[:-1],), "stored body is"),
        (b"PENSTOCK.STAGE PUT 1 2 3 1", (NODE[:HEADER_BYTES] + b"!" * 40,), "."),
        (b"PENSTOCK.STAGE PUT 1 2 3 1", (b"",), "header needs"),
        (b"PENSTOCK.STAGE PUT 1 2 3 2", (NODE, TIMED), "node 1: .*times"),
        (b"PENSTOCK.STAGE PUT 1 2 3 2", (NODE, DEAD), "node 1: .*evicted"),
        (b"PENSTOCK.STAGE PUT 1 2 3 0 PAYLOADS 9", (b"\x09",), "."),
        (b"PENSTOCK.STAGE PUT 1 2 3 0 PAYLOADS 9", (), "payload record is missing"),
        (b"PENSTOCK.STAGE PUT -1 2 3 0", (), "at least 0"),
        (b"PENSTOCK.STAGE RESERVE 1 2 0", (), "at least 1"),
        (b"PENSTOCK.STAGE RENEW 1 2", (), "'2' is not an option"),
        (b"PENSTOCK.LINK 1 STREAM s", (), "WRITERS is missing"),
        (b"PENSTOCK.LINK 1 QUEUE s WRITERS", (), "STREAM, TOPIC or MESSAGES"),
        (b"PENSTOCK.LINK 1 STREAM s WRITERS 1 PRODUCER p", (), "sequence of PRODUCER is missing"),
        (b"PENSTOCK.LINK 1 STREAM s WRITERS 1 PRODUCER p 1 2", (), "not an option"),
        (b"PENSTOCK.CHECKPOINT MAKE x", (), "whole number"),
        (b"PENSTOCK.CHECKPOINT MAKE 5 5", (), "not an option"),
        (b"PENSTOCK.READ 1 2 x STREAM s", (), "not told in JSON"),
        (b"PENSTOCK.SEEK 5 STREAM", (), "is missing"),
        (b"PENSTOCK.REPORT x", (), "no report"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(line: bytes, more: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        parse(line, *more)


def test_info_tells_of_reads_and_writes() -> None:
    with RespServer() as served, served.connect() as wire:
        report = b'{"type":"part","read":"r","source":"stream a,=\\nb","part":0,"rows":3,'
        report += b'"bytes":30,"nodes":1,"skipped":2}'
        assert wire.ask(b"PENSTOCK.REPORT", report) == b"+OK"
        position = b'{"type":"position","read":"r","source":"s","offset":3,"latest":10}'
        assert wire.ask(b"PENSTOCK.REPORT", position) == b"+OK"
        import redis

        client = redis.Redis(port=served.port)
        told = client.info("spark")
        client.close()
    assert list(told) == ["read_0"]
    assert told["read_0"]["rows"] == 3
    assert told["read_0"]["skipped"] == 2
    assert told["read_0"]["lag"] == 7
    assert told["read_0"]["source"] == "stream a___b"
