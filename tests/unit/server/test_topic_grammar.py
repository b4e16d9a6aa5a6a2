"""The words of the topic commands: what they become, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from penstock.broker.topicanswers import (
    Effect,
    Failure,
    Refs,
    TxPublish,
    TxPush,
    TxWrite,
)
from penstock.codec.node import build_body, node_value
from penstock.errors import InvalidError
from penstock.log.batch import column
from penstock.queue.item import Item
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.topic_grammar import (
    TOPIC_PARSERS,
    AckMessages,
    Beat,
    ConfigureTopic,
    DropTopic,
    GiveBack,
    Join,
    Leave,
    PauseTopic,
    PlayTopic,
    Poll,
    Push,
    Rebalance,
    ReplayFrom,
    Settling,
    ShowErrors,
    ShowTopic,
    TopicNames,
    reference,
    reference_word,
)
from penstock.topic.item import prepare_push
from penstock.topic.state import topic_name

T = topic_name("t")


def parse(*words: str | bytes) -> Any:
    """As a connection does: arity, then the parser."""
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    command = COMMANDS[raw[0].upper().decode()]
    command.check_arity(len(raw))
    return TOPIC_PARSERS[command.name](raw)


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("TOPIC.JOIN t c", Join(T, "c")),
        ("topic.join t c heartbeat 500 slots 8", Join(T, "c", 500, 8)),
        ("TOPIC.BEAT t c 7", Beat(T, "c", 7)),
        ("TOPIC.POLL t c 7 100", Poll(T, "c", 7, 100)),
        (
            "TOPIC.POLL t c 7 100 WAIT 500 SETTLE PACKED DONE 1:2 3:2 9:2:5",
            Poll(T, "c", 7, 100, 500, True, True, [Refs([1, 3], [2, 2]), Refs([9], [2], 5)]),
        ),
        ("TOPIC.POLL t c 7 1 WAIT inf", Poll(T, "c", 7, 1, None)),
        ("TOPIC.ACK t c 7 1:2", AckMessages(T, "c", 7, Settling([Refs([1], [2])]))),
        (
            "TOPIC.ACK t c 7 1:2 ATTEMPTS 3 FAILED 4:2 why FAILED 5:2:1 not",
            AckMessages(
                T,
                "c",
                7,
                Settling([Refs([1], [2])], [Failure(4, 2, "why"), Failure(5, 2, "not", 1)], 3),
            ),
        ),
        (
            "TOPIC.ACK t c 7 1:2 PUSH u k x PUSH u  y WRITE s tag z PUBLISH 3 p TO q "
            "PUBLISH 1 PUSH",
            AckMessages(
                T,
                "c",
                7,
                Settling(
                    [Refs([1], [2])],
                    tx=[
                        TxPush("u", b"x", b"k"),
                        TxPush("u", b"y"),
                        TxWrite("s", b"z", b"tag"),
                        TxPublish(Item(b"p", to="q")),
                        TxPublish(Item(b"PUSH")),
                    ],
                ),
            ),
        ),
        ("TOPIC.RELEASE t c 7 1:2 4:3", GiveBack(T, "c", 7, [Refs([1, 4], [2, 3])])),
        ("TOPIC.LEAVE t c 7", Leave(T, "c", 7)),
        ("TOPIC.PAUSE t", PauseTopic(T)),
        ("TOPIC.PAUSE t WAIT 0", PauseTopic(T, 0)),
        ("TOPIC.PLAY t", PlayTopic(T)),
        ("TOPIC.REBALANCE t", Rebalance(T)),
        ("TOPIC.REPLAY t OFFSET 5", ReplayFrom(T, "offset", 5)),
        ("TOPIC.REPLAY t time 5 9", ReplayFrom(T, "time", 5, 9)),
        ("TOPIC.CONFIG t", ConfigureTopic(T, {})),
        (
            "TOPIC.CONFIG t MAXLEN 10 MAXBYTES 0 MAXAGE 5",
            ConfigureTopic(T, {"max_count": 10, "max_bytes": None, "max_age_ms": 5}),
        ),
        ("TOPIC.DEL t", DropTopic(T)),
        ("TOPIC.LS", TopicNames("*")),
        ("TOPIC.LS a*", TopicNames("a*")),
        ("TOPIC.INFO t", ShowTopic(T, "info")),
        ("TOPIC.STATS t", ShowTopic(T, "stats")),
        ("TOPIC.CONSUMERS t", ShowTopic(T, "consumers")),
        ("TOPIC.SHARDS t", ShowTopic(T, "shards")),
        ("TOPIC.ERRORS t", ShowErrors(T)),
        ("TOPIC.ERRORS t 5 10", ShowErrors(T, 5, 10)),
        ("TOPIC.ERRORS t 5 10 2", ShowErrors(T, 5, 10, 2)),
    ],
)
def test_words_become_a_request(line: str, request_: object) -> None:
    assert parse(*line.split(" ")) == request_


@pytest.mark.parametrize(
    "line",
    [
        "TOPIC.PUSH t",
        "TOPIC.PUSH t KEY",  # is data: but then
        "TOPIC.PUSHMANY t k",
        "TOPIC.PUSHMANY t k x k",
        "TOPIC.PUSHNODES t NODES",
        "TOPIC.PUSHNODES t SLOTS x NODES n",
        "TOPIC.PUSHNODES t LOUD NODES n",
        "TOPIC.PUSHNODES t NODES junk",
        "TOPIC.JOIN t",
        "TOPIC.JOIN t c HEARTBEAT 0",
        "TOPIC.JOIN t c HEARTBEAT 5 HEARTBEAT 5",
        "TOPIC.JOIN t c AGAIN",
        "TOPIC.BEAT t c x",
        "TOPIC.BEAT t c 7 8",
        "TOPIC.POLL t c 7",
        "TOPIC.POLL t c 7 -1",
        "TOPIC.POLL t c 7 1 WAIT",
        "TOPIC.POLL t c 7 1 DONE 1",
        "TOPIC.POLL t c 7 1 DONE 1:x",
        "TOPIC.POLL t c 7 1 DONEPACKED junk",
        "TOPIC.ACK t c 7",
        "TOPIC.ACK t c 7 1:2:3:4",
        "TOPIC.ACK t c 7 1:99999999999999999999",
        "TOPIC.ACK t c 7 1:2 PUSH u k",
        "TOPIC.ACK t c 7 1:2 PUBLISH 9 p",
        "TOPIC.ACK t c 7 1:2 PUBLISH 0",
        "TOPIC.ACK t c 7 1:2 PUBLISH 2 p TO",
        "TOPIC.ACK t c 7 1:2 FAILED 1",
        "TOPIC.ACK t c 7 1:2 ATTEMPTS 0",
        "TOPIC.ACK t c 7 PACKED junk",
        "TOPIC.ACK t c 7 PACKED",
        "TOPIC.RELEASE t c 7 1:2 x",
        "TOPIC.PAUSE t WAIT inf",
        "TOPIC.PAUSE t NOW",
        "TOPIC.REPLAY t 5",
        "TOPIC.REPLAY t OFFSET",
        "TOPIC.REPLAY t OFFSET -1",
        "TOPIC.REPLAY t OFFSET 1 2 3",
        "TOPIC.CONFIG t MAXLEN",
        "TOPIC.CONFIG t COMPACT yes",
        "TOPIC.LS a b",
        "TOPIC.ERRORS t x",
        "TOPIC.ERRORS t 1 2 x",
        "TOPIC.ERRORS t 1 2 3 4",
    ],
)
def test_wrong_words_are_refused(line: str) -> None:
    if line == "TOPIC.PUSH t KEY":
        assert same_push(parse(*line.split(" ")).push, [b"KEY"], None)
        return
    with pytest.raises(InvalidError):
        parse(*line.split(" "))


def same_push(push: Any, data: list[bytes], keys: list[Any] | None) -> bool:
    wanted = prepare_push(data, keys)
    return bool(
        [(body.count, body.stored) for body in push.bodies]
        == [(body.count, body.stored) for body in wanted.bodies]
        and (push.hashes == wanted.hashes).all()
        and _keyed(push) == _keyed(wanted)
    )


def _keyed(push: Any) -> list[bool]:
    return [True] * push.count if push.keyed is None else push.keyed.tolist()


def test_the_last_word_of_a_push_is_its_data_whatever_it_looks_like() -> None:
    found = parse("TOPIC.PUSH", "t", "KEY", "NOCREATE", "slots", "8", "NOCREATE", b"\xff KEY")
    assert isinstance(found, Push)
    assert (found.create, found.slots, found.one) == (False, 8, True)
    assert same_push(found.push, [b"\xff KEY"], ["NOCREATE"])


def test_messages_without_a_key_have_an_empty_one() -> None:
    found = parse("TOPIC.PUSHMANY", "t", "SLOTS", "8", "", "y")
    assert same_push(found.push, [b"8", b"y"], ["SLOTS", None])
    bare = parse("TOPIC.PUSHMANY", "t", "", "x")
    assert same_push(bare.push, [b"x"], None)


def test_nodes_are_checked_and_their_keys_hashed_here() -> None:
    keys = [f"k{i % 7}" if i % 3 else None for i in range(2500)]
    data = [b"%d" % i for i in range(2500)]
    nodes = [node_value(body, 0, 0) for body in prepare_push(data, keys).bodies]
    assert len(nodes) > 1
    found = parse("TOPIC.PUSHNODES", "t", "NOCREATE", "NODES", *nodes)
    assert (found.create, found.one) == (False, False)
    assert same_push(found.push, data, keys)
    for damaged in (nodes[0][:-1], nodes[0][:40] + b"\0" + nodes[0][41:]):
        with pytest.raises(InvalidError):
            parse("TOPIC.PUSHNODES", "t", "NODES", damaged)


@pytest.mark.parametrize(
    "columns",
    [
        {"validity": bytes([0b101])},  # a message that is not there stops whoever gets its slot
        {"times": struct.pack("<3q", 5, 6, 2**62)},  # replays by time look for them in order
        {"meta": column([b"m", b"", b"q"], "meta")},
        {"tags": column([b"k", b"", b"k" * 65_536], "key")},
    ],
)
def test_nodes_that_could_not_come_from_a_push_are_refused(columns: dict[str, Any]) -> None:
    node = node_value(build_body(3, column([b"a", b"", b"c"], "data"), **columns), 0, 0)
    with pytest.raises(InvalidError, match="node 0"):
        parse("TOPIC.PUSHNODES", "t", "NODES", node)


def test_packed_requests_are_the_same_as_words() -> None:
    effects: list[Effect] = [TxPush("u", b"x", b"k"), TxWrite("s", b"z"), TxPublish(Item(b"p"))]
    settling = Settling([Refs([1], [2], 3)], [Failure(4, 2, "why", attempt=2)], 3, effects)
    found = parse("TOPIC.ACK", "t", "c", "7", "PACKED", packed(settling))
    assert found == AckMessages(T, "c", 7, settling, packed=True)
    refs = [Refs([1, 2], [3, 4])]
    assert parse("TOPIC.RELEASE", "t", "c", "7", "PACKED", packed(refs)).given == refs
    assert parse("TOPIC.POLL", "t", "c", "7", "1", "DONEPACKED", packed(refs)).done == refs


@pytest.mark.parametrize(
    "settling",
    [
        {"done": [{"offsets": [1, 2], "epochs": [3]}]},
        {"done": [{"offsets": [-1], "epochs": [3]}]},
        {"done": [{"offsets": [1 << 63], "epochs": [3]}]},
        {"done": [{"offsets": ["1"], "epochs": [3]}]},
        {"done": [{"offsets": [1], "epochs": [3], "job": -1}]},
        {"failures": [{"offset": 1 << 63, "epoch": 1, "error": ""}]},
        {"failures": [{"offset": 1, "epoch": 1, "error": "", "attempt": -1}]},
        {"max_attempts": 0},
        {"tx": [{"type": "shout", "data": b""}]},
        {"tx": [{"type": "publish", "item": {"payload": b"x", "reserved": 5}}]},
    ],
)
def test_what_is_packed_wrongly_is_refused(settling: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        parse("TOPIC.ACK", "t", "c", "7", "PACKED", packed(settling))


@pytest.mark.parametrize("found", [(5, 7, 0), (0, 0, 3)])
def test_a_reference_is_read_as_it_is_written(found: tuple[int, int, int]) -> None:
    assert reference(reference_word(*found)) == found
