"""What a client was told may fit more than one log: a stream that was made again within the same
millisecond, by a producer that repeats itself. Then one of them has to say so, and only one is
told of it."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.answers import Found, StreamInfo
from penstock.errors import NotFoundError
from penstock.log.read import Message
from penstock.sim.history import Log
from penstock.sim.streams import GroupPlan, Member, Reader, StreamPlan

ENTRY = Message(0, "t", b"s0w0.1.0.1", 7)


def log(log_id: int) -> Log:
    made = Log(log_id, "s")
    made.entries.append(ENTRY)
    return made


OLD, NEW = log(1), log(2)


class Groups:
    """Knows which log's commits say what the client was told."""

    def __init__(self, *right: Log) -> None:
        self.right = right
        self.asked: list[Log] = []

    def group(self, *_: object) -> None: ...

    def delivered(self, log: Log, *_: object, **options: object) -> str | None:
        self.asked.append(log)
        return None if log in self.right else f"not in {log.id}"

    acked = delivered


class Plain(Random):
    """Never does what is rare: nothing is forgotten, nothing odd is acknowledged."""

    def random(self) -> float:
        return 0.99


def told(kind: Any, groups: Groups, answer: Any) -> Any:
    """A client that is given this answer, whatever it asks; its failures are errors."""

    def fail(text: str) -> None:
        raise AssertionError(text)

    async def ask(*_: object, **options: object) -> Any:
        return answer

    plan = StreamPlan("s", mortal=True)
    client = kind.__new__(kind)
    vars(client).update(
        plan=plan,
        target=None,
        group=GroupPlan(plan, "g", (100,), (None,), None, None, moves=False),
        _group=b"g",
        _held=[],
        _acked=[],
        random=Plain(1),
        history=SimpleNamespace(since=lambda name, n: [OLD, NEW], log=lambda name: NEW),
        groups=groups,
        n=0,
        ask=ask,
        fail=fail,
    )
    return client


FOUND = Found(StreamInfo(0, 0, 1, 0), [ENTRY])


@pytest.mark.parametrize(
    ("right", "asked"), [((OLD, NEW), [OLD]), ((OLD,), [OLD]), ((NEW,), [OLD, NEW])]
)
def test_a_delivery_is_looked_for_in_every_log_up_to_the_first_that_has_it(
    right: tuple[Log, ...], asked: list[Log]
) -> None:
    groups = Groups(*right)
    member = told(Member, groups, FOUND)
    asyncio.run(member._read())
    assert groups.asked == asked
    assert member._held == [0]


def test_a_delivery_that_no_log_has_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="not in 2"):
        asyncio.run(told(Member, Groups(), FOUND)._read())


def test_an_acknowledgement_is_told_once() -> None:
    groups = Groups(OLD, NEW)
    member = told(Member, groups, 1)
    member._held = [0]
    asyncio.run(member._ack())
    assert groups.asked == [OLD], "the other one may have an answer of its own to tell"


def test_a_read_is_right_where_one_of_the_logs_had_the_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for dead, right in (([NEW], True), ([OLD], True), ([OLD, NEW], False)):
        reader = told(Reader, Groups(), FOUND)
        with monkeypatch.context() as patch:
            patch.setattr(Log, "dead_at", lambda log, offset, n, dead=dead: log in dead)
            if right:
                asyncio.run(reader._read(0, 1))
            else:
                with pytest.raises(AssertionError, match="was dead before"):
                    asyncio.run(reader._read(0, 1))


@pytest.mark.parametrize("mortal", [True, False])
def test_only_a_stream_that_may_be_deleted_is_ever_gone_while_it_is_read(mortal: bool) -> None:
    reader = told(Reader, Groups(), None)
    reader.plan.mortal = mortal

    async def gone(*_: object, **options: object) -> None:
        raise NotFoundError("log 7 was deleted while it was read")

    reader.ask = gone
    if mortal:
        asyncio.run(reader.step())
    else:
        with pytest.raises(AssertionError, match="is never deleted"):
            asyncio.run(reader.step())
