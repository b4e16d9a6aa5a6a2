"""Settling: what is asked of the broker for what handlers did, and what its answers lead to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from penstock.broker.topicanswers import Acked, Effect, Failure, Refs, TxWrite
from penstock.client.handling import Handling, Manner
from penstock.client.settle import Settler
from penstock.client.topicshapes import TopicMessage
from penstock.clock import SystemClock
from penstock.errors import CorruptError, NotFoundError, PenstockError, UnavailableError

PATIENCE_SECONDS = 20.0


class Broker:
    """Answers as it was told, and keeps what it was asked."""

    def __init__(self, *answers: Acked | PenstockError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[int], list[str], list[bytes]]] = []
        self.token = 1
        self.registered = True
        self.errors: list[PenstockError] = []
        self.given_back: list[int] = []
        self.moves = 0

    async def ack(self, done: list[Refs], failures: list[Failure], effects: list[Effect]) -> Acked:
        offsets = [offset for each in done for offset in each.offsets]
        datas = [each.data for each in effects if isinstance(each, TxWrite)]
        self.asked.append((offsets, [each.error for each in failures], datas))
        answer = self.answers.pop(0) if self.answers else good(len(offsets), len(failures))
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    async def require(self) -> None:
        if not self.registered:
            raise NotFoundError("join again")

    def broken(self, error: PenstockError) -> None:
        self.errors.append(error)

    def give_back(self, dropped: Sequence[TopicMessage]) -> None:
        self.given_back += [each.offset for each in dropped]

    def moved(self) -> None:
        self.moves += 1


def good(done: int, failed: int = 0, *, paused: bool = False) -> Acked:
    return Acked([True] * done, ["errored"] * failed, paused)


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


def world(broker: Broker, *, tx: bool, attempts: int = 1) -> tuple[Handling, Settler]:
    manner = Manner("c", 10, True, tx, 1, attempts, 60_000, None)
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    handling = Handling(manner, clock, loop.call_soon_threadsafe)  # type: ignore[arg-type]
    settler = Settler(handling, broker, clock, spawn)
    handling.heard(clock.monotonic())
    handling.add([TopicMessage("t", 0, i, 1, 0, b"k", b"%d" % i, 0) for i in range(5)])
    return handling, settler


def effect(message: TopicMessage) -> list[Effect]:
    return [TxWrite("s", message.data)]


def handle(handling: Handling, count: int) -> list[TopicMessage]:
    """So many messages are handled, each with an effect."""
    taken = []
    for _ in range(count):
        message = handling.begin(wait=False)
        assert message is not None
        handling.finish(message, effect(message) if handling.manner.tx else [])
        taken.append(message)
    return taken


async def test_what_was_finished_is_acknowledged_together() -> None:
    broker = Broker(Acked([True, False, True], [], True))
    handling, settler = world(broker, tx=False)
    handle(handling, 3)
    await settler.finish()
    assert broker.asked == [([0, 1, 2], [], [])]
    assert (handling.lost, broker.given_back, broker.moves) == (1, [3, 4], 1)


async def test_a_poll_takes_along_what_was_finished_but_no_failures() -> None:
    broker = Broker()
    handling, settler = world(broker, tx=False)
    handle(handling, 2)
    message = handling.begin(wait=False)
    assert message is not None
    handling.fail(message, ValueError("no"))
    (refs,) = settler.take_along()
    assert (list(refs.offsets), settler.take_along()) == ([0, 1], [])
    assert handling.begin(wait=False) is None, "its key waits for the answer"
    await settler.finish()
    assert broker.asked == [([], ["ValueError: no"], [])]
    assert handling.begin(wait=False) is not None


async def test_what_a_poll_took_along_is_said_again_only_if_that_was_the_last_one() -> None:
    """An earlier one was answered, or its registration is gone: the next may be of another."""
    broker = Broker()
    handling, settler = world(broker, tx=False)
    handle(handling, 1)
    assert settler.take_along()
    handle(handling, 1)
    settler._now()
    assert settler.take_along() == [], "those are on their way by themselves"
    await settler.give_up_poll()
    await settler.finish()
    assert broker.asked == [([1], [], [])]


async def test_what_could_not_be_told_is_told_again_in_the_same_order() -> None:
    broker = Broker(UnavailableError("away"))
    handling, settler = world(broker, tx=True)
    handle(handling, 2)
    await settler.finish()
    assert broker.asked == [([0, 1], [], [b"0", b"1"])] * 2
    assert handling.lost == 0


async def test_where_one_of_several_has_moved_on_the_others_are_committed_alone() -> None:
    broker = Broker(Acked([False] * 3, [], False), good(1), Acked([False], [], False))
    handling, settler = world(broker, tx=True)
    handle(handling, 3)
    await settler.finish()
    assert broker.asked == [
        ([0, 1, 2], [], [b"0", b"1", b"2"]),
        ([0], [], [b"0"]),
        ([1], [], [b"1"]),
        ([2], [], [b"2"]),
    ]
    assert handling.lost == 1


async def test_without_effects_each_counts_for_itself() -> None:
    broker = Broker(Acked([True, False], [], False))
    handling, settler = world(broker, tx=True)
    for _ in range(2):
        message = handling.begin(wait=False)
        assert message is not None
        handling.finish(message, [])
    await settler.finish()
    assert broker.asked == [([0, 1], [], [])]
    assert handling.lost == 1


async def test_a_refused_effect_is_a_failure_and_what_came_after_it_is_handled_again() -> None:
    refused = NotFoundError("no such queue")
    broker = Broker(refused, good(1), refused, Acked([], ["again"], False))
    handling, settler = world(broker, tx=True, attempts=2)
    zero, one, two = handle(handling, 3)
    await settler.finish()
    assert broker.asked == [
        ([0, 1, 2], [], [b"0", b"1", b"2"]),
        ([0], [], [b"0"]),
        ([1], [], [b"1"]),
        ([], ["NotFoundError: no such queue"], []),
    ]
    assert broker.errors == []
    again = [handling.begin(wait=False)]
    assert again == [one]
    assert (zero.attempt, one.attempt, two.attempt) == (1, 2, 1)
    handling.finish(one, effect(one))
    assert handle(handling, 3)[0] is two
    await settler.finish()
    assert broker.asked[4:] == [([1, 2, 3, 4], [], [b"1", b"2", b"3", b"4"])]


async def test_a_refused_effect_without_attempts_left_lets_its_key_go_on() -> None:
    refused = NotFoundError("no such queue")
    broker = Broker(refused, refused, Acked([], ["errored"], False))
    handling, settler = world(broker, tx=True)
    handle(handling, 2)
    await settler.finish()
    assert broker.asked[1:] == [
        ([0], [], [b"0"]),
        ([], ["NotFoundError: no such queue"], []),
        ([1], [], [b"1"]),
    ]


async def test_a_lost_registration_is_not_taken_for_a_refused_effect() -> None:
    broker = Broker(NotFoundError("not registered"))
    broker.registered = False
    handling, settler = world(broker, tx=True)
    handle(handling, 1)
    await settler.finish()
    assert [str(error) for error in broker.errors] == ["join again"]


async def test_after_a_lost_registration_the_next_results_are_told_again() -> None:
    broker = Broker(NotFoundError("not registered"))
    broker.registered = False
    handling, settler = world(broker, tx=True)
    handling.on_results = settler.soon
    handle(handling, 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not broker.errors:
            await asyncio.sleep(0)
    broker.registered = True
    handling.clear()
    handling.add([TopicMessage("t", 0, i, 2, 0, b"k", b"%d" % i, 0) for i in range(2)])
    handle(handling, 2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(broker.asked) < 2:
            await asyncio.sleep(0)
    assert broker.asked[1:] == [([0, 1], [], [b"0", b"1"])]


async def test_damage_is_no_failure_of_a_handler() -> None:
    broker = Broker(CorruptError("a node of stream s"))
    handling, settler = world(broker, tx=True)
    handle(handling, 1)
    await settler.finish()
    assert [str(error) for error in broker.errors] == ["a node of stream s"]
    assert len(broker.asked) == 1, "nothing was recorded"


@pytest.mark.parametrize("tx", [False, True])
async def test_a_pause_gives_back_a_failed_message_before_it_is_tried_again(tx: bool) -> None:
    broker = Broker(Acked([], ["again"], True))
    handling, settler = world(broker, tx=tx, attempts=5)
    begun: list[TopicMessage | None] = []
    handling.on_change = lambda: begun.append(handling.begin(wait=False))
    message = handling.begin(wait=False)
    assert message is not None
    handling.fail(message, ValueError("no"))
    await settler.finish()
    assert broker.given_back == [0, 1, 2, 3, 4]
    assert begun == [None], "a worker that came at once found nothing"


async def test_a_pause_leaves_what_is_handled_for_nothing_until_that_ends() -> None:
    refused = NotFoundError("no such queue")
    broker = Broker(refused, Acked([], ["again"], True))
    handling, settler = world(broker, tx=True, attempts=5)
    handle(handling, 1)
    running = handling.begin(wait=False)
    assert running is not None
    await settler.finish()
    assert broker.given_back == [], "else another consumer would handle the key beside it"
    handling.finish(running, [])
    assert handling.begin(wait=False) is None, "the broker is asked first"
    dropped = handling.drop(lambda message: True)
    assert [each.offset for each in dropped] == [0, 1, 2, 3, 4]
    assert handling.take_results() == []


async def test_after_something_was_refused_nothing_is_begun_until_it_is_known_what_is_ours() -> (
    None
):
    broker = Broker(Acked([False], [], False))
    handling, settler = world(broker, tx=False)
    handle(handling, 1)
    await settler.finish()
    now = SystemClock().monotonic()
    assert handling.begin(wait=False) is None
    handling.heard(now)  # as by a poll, which says nothing about slots
    assert handling.begin(wait=False) is None
    handling.heard(0.0, slots=True)  # asked before
    assert handling.begin(wait=False) is None
    handling.heard(now, slots=True)
    assert handling.begin(wait=False) is not None
