"""Stream requests over a socket: the words that are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.remote import Remote
from penstock.log.catalogue import stream_name

S = stream_name("s")


class Recorded(Remote):
    """Without a connection: it remembers what it would send."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[str] = []

    async def ask(self, *request: Any) -> Any:
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in request]
        self.asked.append(" ".join(words))
        return self.replies.pop(0)


@pytest.mark.parametrize(
    ("call", "reply", "words"),
    [
        (lambda r: r.evict(S, up_to=0), 1, "TEVICT s 0"),
        (lambda r: r.evict(S, keep=5), 3, "TEVICT s -5"),
        # One request: what is written between two would be evicted too, or be kept.
        (lambda r: r.evict(S, keep=0), 7, "TEVICT s -0"),
    ],
)
def test_each_call_is_one_request(call: Callable[[Remote], Any], reply: Any, words: str) -> None:
    remote = Recorded(reply)
    assert asyncio.run(call(remote)) == reply
    assert remote.asked == [words]
