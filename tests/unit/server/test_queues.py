"""Running queue requests: what is asked of the broker, and what goes onto the wire."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from penstock.broker.queueanswers import (
    DoneMessage,
    FailedMessage,
    Page,
    QueueInfo,
    QueueMessage,
)
from penstock.broker.queues import Queues
from penstock.codec.attempts import Attempt, Ending
from penstock.codec.resp import Reply, Simple, encode
from penstock.errors import InvalidError
from penstock.queue.backoff import Backoff
from penstock.queue.item import Item
from penstock.queue.lists import Redriven
from penstock.queue.state import queue_name
from penstock.queue.stats import Stats
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.parsers import PARSERS
from penstock.server.resp.queue_grammar import QueueRequest
from penstock.server.resp.queues import encode_messages, run
from unit.server.test_streams import Recorder, call

Q = queue_name("q")
OK = Simple("OK")
TRIED = Attempt("w", 9, Ending.EXPIRED, "why")
TRIED_MAP = {"consumer": "w", "time": 9, "ending": "expired", "reason": "why"}


def ask(
    line: str,
    answer: Any,
    protocol: int = 3,
    limit: int = 1 << 20,
    gone: Callable[[], bool] = lambda: False,
) -> tuple[bytes, Any]:
    words = [word.encode() for word in shlex.split(line)]
    recorder = Recorder(answer)
    request = cast(QueueRequest, PARSERS[COMMANDS[words[0].decode()].name](words))
    reply = asyncio.run(run(request, cast(Queues, recorder), protocol, limit, gone))
    return reply, recorder.calls


@pytest.mark.parametrize(
    ("line", "answer", "calls", "reply"),
    [
        (
            "QUEUE.CREATE q LEASE 5 START first",
            None,
            [call("create", Q, start="first", lease_ms=5)],
            OK,
        ),
        ("QUEUE.ALTER q FILTER ''", None, [call("alter", Q, filter=None)], OK),
        ("QUEUE.DEL q", True, [call("delete", Q)], Simple("OK")),
        ("QUEUE.LS a*", ["a", "ab"], [call("names", "a*")], ["a", "ab"]),
        (
            "QUEUE.INFO q",
            QueueInfo("q", "a = 1", None, 5, 6, 7, Backoff(0.5, 1.0, 0.5, 0.0), 8, True, 9),
            [call("describe", Q)],
            {
                "name": "q", "filter": "a = 1", "priority": None, "lease": 5, "max_lease": 6,
                "max_attempts": 7, "backoff": "base=500.0,factor=1.0,cap=500.0,jitter=0.0",
                "done_retention": 8, "paused": "yes", "created_at": 9,
            },
        ),
        (
            "QUEUE.STATS q",
            Stats(1, 2, 3, 4, 5, 6, 7, 8, 9, False, True),
            [call("stats", Q)],
            {
                "available": 1, "delayed": 2, "in_flight": 3, "done": 4, "failed": 5, "routed": 6,
                "acked": 7, "expired": 8, "purged": 9, "paused": "no", "backfilling": "yes",
            },
        ),
        ("QUEUE.PAUSE q", None, [call("pause", Q)], OK),
        ("QUEUE.PLAY q", None, [call("play", Q)], OK),
        ("QUEUE.PURGE q", 12, [call("purge", Q, failed=False)], 12),
        ("QUEUE.PURGE q failed", 12, [call("purge", Q, failed=True)], 12),
        ("QUEUE.CONFIG RECLAIM done", None, [call("configure", reclaim="done")], OK),
        ("QUEUE.PUBLISH p", [7], [call("publish", [Item(b"p")])], 7),
        (
            "QUEUE.PUBLISHMANY PAYLOAD p PAYLOAD r TO q",
            [7, 8],
            [call("publish", [Item(b"p"), Item(b"r", to="q")])],
            [7, 8],
        ),
        ("QUEUE.ACK q a b", [True, False], [call("ack", Q, ["a", "b"])], [1, 0]),
        (
            "QUEUE.FAIL q DELAY 5 REASON no a",
            [True],
            [call("fail", Q, ["a"], delay_ms=5, reason="no")],
            [1],
        ),
        ("QUEUE.EXTEND q 5 a", [True], [call("extend", Q, ["a"], 5)], [1]),
        ("QUEUE.RELEASE q a", [False], [call("release", Q, ["a"])], [0]),
        (
            "QUEUE.DONE q 0",
            Page([DoneMessage(1, 2, 3)], 4),
            [call("done", Q, 0)],
            [4, [{"id": 1, "done_at": 2, "attempts": 3}]],
        ),
        (
            "QUEUE.DONE q",
            Page([DoneMessage(1, 2, 3)], None),
            [call("done", Q, 0)],
            [{"id": 1, "done_at": 2, "attempts": 3}],
        ),
        (
            "QUEUE.FAILED q 4",
            Page([FailedMessage(1, 2, 3, 4, None, "s3://x", {"a": "b"}, (TRIED,))], None),
            [call("failed", Q, 4)],
            [
                0,
                [
                    {
                        "id": 1, "failed_at": 2, "attempts": 3, "priority": 4, "payload": None,
                        "uri": "s3://x", "headers": {"a": "b"}, "history": [TRIED_MAP],
                    }
                ],
            ],
        ),
        ("QUEUE.ATTEMPTS q 7", (TRIED,), [call("attempts", Q, 7)], [TRIED_MAP]),
        ("QUEUE.REDRIVE q", Redriven(3, 1, None), [call("redrive", Q, None)], 3),
        (
            "QUEUE.REDRIVE q WITHEXPIRED 5",
            Redriven(3, 1, None),
            [call("redrive", Q, [5])],
            [3, 1],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 3])
def test_requests(line: str, answer: Any, calls: Any, reply: Any, protocol: int) -> None:
    assert ask(line, answer, protocol) == (encode(reply, protocol), calls)


def test_a_page_that_is_too_large_is_refused() -> None:
    page = Page([FailedMessage(1, 2, 3, 4, b"x" * 1000, None, {}, ())], None)
    with pytest.raises(InvalidError, match="larger than 100 bytes"):
        ask("QUEUE.FAILED q", page, limit=100)


# ---- claiming ---------------------------------------------------------------------------------

BARE = QueueMessage(1, b"payload", None, {}, 128, 1, 10, 11, 12, 13, 14, "receipt-1")
FULL = QueueMessage(
    2,
    None,
    "s3://ü",
    {"region": "eu", "ü": "\r\n"},
    0,
    70_000,
    10,
    11,
    12,
    13,
    14,
    "receipt-2",
    "ü",
)
PEEKED = QueueMessage(3, b"", None, {"a": ""}, 255, 0, 10, 11, 12)


def as_map(message: QueueMessage) -> dict[str, Reply]:
    found = msgspec.structs.asdict(message)
    claimed = bool(found["receipt"])
    return {
        "id": found["id"],
        "payload": found["payload"],
        "headers": found["headers"],
        "priority": found["priority"],
        "attempts": found["attempts"],
        "lease_deadline": found["lease_deadline_ms"] if claimed else None,
        "receipt": found["receipt"] if claimed else None,
        "uri": found["uri"],
        "created_at": found["created_at_ms"],
        "received_at": found["received_at_ms"],
        "visible_at": found["visible_at_ms"],
        "claimed_at": found["claimed_at_ms"] if claimed else None,
        "dedup_id": found["dedup_id"],
    }


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_are_maps_as_the_general_encoder_writes_them(protocol: int) -> None:
    messages = [BARE, FULL, PEEKED]
    expected = encode([as_map(message) for message in messages], protocol)
    assert encode_messages(messages, protocol, 1 << 20) == (expected, 3)
    assert encode_messages([], protocol, 1 << 20) == (b"*0\r\n", 0)
    reply, calls = ask("QUEUE.CLAIM q 3 WAIT inf LEASE 5 CONSUMER w", messages, protocol)
    assert reply == expected
    assert calls == [call("claim", Q, 3, wait_ms=None, lease_ms=5, consumer="w")]
    reply, calls = ask("QUEUE.PEEK q 3", messages, protocol)
    assert reply == expected
    assert calls == [call("peek", Q, 3)]


@pytest.mark.parametrize("protocol", [2, 3])
def test_rows_are_the_values_of_the_maps(protocol: int) -> None:
    messages = [BARE, FULL]
    rows: list[Reply] = [list(as_map(message).values()) for message in messages]
    reply, _ = ask("QUEUE.CLAIM q 3 ROWS", messages, protocol)
    assert reply == encode(rows, protocol)


def test_what_does_not_fit_into_the_reply_is_released() -> None:
    size = len(encode_messages([BARE], 3, 1 << 20)[0])
    reply, calls = ask("QUEUE.CLAIM q 3", [BARE, FULL, BARE], limit=size)
    assert reply == encode([as_map(BARE)], 3)
    assert calls[1:] == [call("release", Q, ["receipt-2", "receipt-1"])]


def test_a_message_that_never_fits_is_released_and_told() -> None:
    with pytest.raises(InvalidError, match="larger than 10 bytes"):
        ask("QUEUE.CLAIM q 3", [BARE], limit=10)


def test_what_was_claimed_for_somebody_who_is_gone_is_released() -> None:
    reply, calls = ask("QUEUE.CLAIM q 3", [BARE, FULL], gone=lambda: True)
    assert reply == b""
    assert calls[1:] == [call("release", Q, ["receipt-1", "receipt-2"])]
    reply, calls = ask("QUEUE.CLAIM q 3", [], gone=lambda: True)
    assert calls[1:] == [], "there was nothing"
