"""Queue requests over a socket: the words that are sent, and what is made of the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.remote_queues import RemoteQueues
from penstock.log.catalogue import LogName
from penstock.queue.backoff import Backoff
from penstock.queue.item import Item
from penstock.queue.lists import Redriven
from penstock.queue.state import queue_name

Q = queue_name("q")


class FakeRemote:
    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[Any, ...]] = []
        self.waits: list[int | None] = []

    async def ask(self, *request: Any) -> Any:
        self.asked.append(request)
        return self.replies.pop(0)

    async def ask_waiting(self, block_ms: int | None, *request: Any) -> Any:
        self.waits.append(block_ms)
        return await self.ask(*request)


@pytest.mark.parametrize(
    ("call", "reply", "request_"),
    [
        (
            lambda r: r.create(Q, start="first", filter=None, lease_ms=5, backoff=None),
            b"OK",
            "QUEUE.CREATE q FILTER  LEASE 5 BACKOFF default START first",
        ),
        (
            lambda r: r.alter(Q, priority="x", backoff=Backoff(0.5, 1.0, 0.5, 0.0)),
            b"OK",
            "QUEUE.ALTER q PRIORITY x BACKOFF base=500.0,factor=1.0,cap=500.0,jitter=0.0",
        ),
        (lambda r: r.claim(Q, 5), [], "QUEUE.CLAIM q 5 ROWS"),
        (lambda r: r.claim(Q, 5, wait_ms=None), [], "QUEUE.CLAIM q 5 WAIT inf ROWS"),
        (
            lambda r: r.claim(Q, 5, wait_ms=7, lease_ms=8, consumer="w"),
            [],
            "QUEUE.CLAIM q 5 WAIT 7 LEASE 8 CONSUMER w ROWS",
        ),
        (lambda r: r.fail(Q, ["a"]), [1], "QUEUE.FAIL q REASON  a"),
        (
            lambda r: r.fail(Q, ["a", "b"], delay_ms=0, reason="no"),
            [1, 0],
            "QUEUE.FAIL q DELAY 0 REASON no a b",
        ),
        (lambda r: r.extend(Q, ["a"], 5), [1], "QUEUE.EXTEND q 5 a"),
        (lambda r: r.configure(reclaim="done"), b"OK", "QUEUE.CONFIG RECLAIM done"),
        (
            lambda r: r.publish(
                [
                    Item(b"p"),
                    Item(b"", "s3://x", {"a": "b"}, "q", 1, None, 2, "d", 3),
                    Item(b"r", visible_at_ms=4),
                ]
            ),
            [1, 2, 3],
            "QUEUE.PUBLISHMANY PAYLOAD p URI s3://x TO q DELAY 1 RETENTION 2 DEDUP d CREATED 3 "
            "HEADERS 1 a b PAYLOAD r VISIBLE 4",
        ),
    ],
)
def test_the_words_of_a_request(
    call: Callable[[RemoteQueues], Any], reply: Any, request_: str
) -> None:
    remote = FakeRemote(reply)
    asyncio.run(call(RemoteQueues(remote)))
    (asked,) = remote.asked
    texts = [
        word.decode() if isinstance(word, bytes) else word.name.decode()
        if isinstance(word, LogName) else str(word)
        for word in asked
    ]  # fmt: skip
    assert " ".join(texts) == request_


def test_a_claim_has_a_connection_of_its_own_for_as_long_as_it_waits() -> None:
    remote = FakeRemote([], [])
    queues = RemoteQueues(remote)
    asyncio.run(queues.claim(Q, 1, wait_ms=None))
    asyncio.run(queues.claim(Q, 1))
    assert remote.waits == [None, 0]


def test_long_lists_go_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.remote_queues.REQUEST_WORDS", 2)
    remote = FakeRemote([1, 0], [1], [5, 1], [6, 0])
    queues = RemoteQueues(remote)
    assert asyncio.run(queues.ack(Q, ["a", "b", "c"])) == [True, False, True]
    assert asyncio.run(queues.redrive(Q, [7, 8, 9])) == Redriven(11, 1, None)
    assert [asked[2:] for asked in remote.asked] == [
        ("a", "b"),
        ("c",),
        ("WITHEXPIRED", 7, 8),
        ("WITHEXPIRED", 9),
    ]


def test_nothing_is_sent_for_nothing() -> None:
    queues = RemoteQueues(FakeRemote())
    assert asyncio.run(queues.publish([])) == []
    assert asyncio.run(queues.ack(Q, [])) == []
    assert asyncio.run(queues.redrive(Q, [])) == Redriven(0, 0, None)
