"""Handling: when workers get messages, when the loop is told, what is kept back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.handling import Handling, Manner
from penstock.client.topicshapes import TopicMessage
from penstock.clock import SystemClock


class Time(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class World:
    """A consumer whose loop only notes what it was told."""

    def __init__(self, **manner: Any) -> None:
        usual = {"ack": True, "tx": False, "workers": 1, "max_attempts": 1, "batch_size": 4}
        self.time = Time()
        self.told: list[str] = []
        self.handling = Handling(
            Manner(consumer="c", heartbeat_ms=10_000, slots=None, **{**usual, **manner}),
            self.time,
            lambda callback: self._call(callback),
        )
        for name in ("results", "claims", "room", "idle", "doubt", "stop"):
            setattr(self.handling, f"on_{name}", lambda name=name: self.told.append(name))
        self.handling.heard(self.time.now)

    def _call(self, callback: Callable[[], object]) -> None:
        callback()

    def add(self, *keys: str) -> list[TopicMessage]:
        messages = [TopicMessage("t", 0, i, 1, 0, k.encode(), b"", 0) for i, k in enumerate(keys)]
        self.handling.add(messages)
        return messages

    def begin(self) -> TopicMessage:
        message = self.handling.begin(wait=False)
        assert message is not None
        return message


def test_the_loop_polls_more_when_half_of_a_full_batch_is_begun() -> None:
    world = World()
    world.add("a", "b", "c", "d")
    assert world.handling.wants_room()
    for expected in ([], ["room"]):
        message = world.begin()
        assert world.told == expected
        world.handling.finish(message, [])
        world.told = [each for each in world.told if each == "room"]
    assert not world.handling.wants_room()


def test_the_loop_polls_more_when_all_of_a_small_batch_is_handled() -> None:
    world = World()
    world.add("a", "b")
    assert world.handling.wants_room()
    world.handling.finish(world.begin(), [])
    last = world.begin()
    assert world.told == ["results"], "who works gets no more ahead"
    world.handling.finish(last, [])
    assert world.told == ["results", "room"], "results are told once, until they are taken"
    assert [each.message for each in world.handling.take_results()][-1] is last
    assert world.handling.take_results() == []


def test_a_worker_without_work_gets_more_though_one_key_fills_the_batch() -> None:
    world = World(workers=2)
    world.add("hot", "hot", "hot", "hot")
    assert world.handling.wants_room(), "there is something to begin"
    world.begin()
    assert world.told == ["room"]
    assert not world.handling.wants_room()
    for _ in range(5):
        world.add("hot", "hot", "hot", "hot")
    assert world.handling.wants_room(), "but not without end"


def test_a_worker_without_work_gets_more_though_a_small_batch_waits_for_its_key() -> None:
    world = World(workers=2)
    world.add("hot", "hot")
    world.begin()
    assert not world.handling.wants_room()


def test_nothing_is_begun_after_a_silence_until_the_broker_was_asked() -> None:
    world = World()
    world.add("a", "b")
    world.time.now += 10
    assert world.handling.begin(wait=False) is None
    assert world.handling.begin(wait=False) is None
    assert world.told == ["doubt"], "asked once"
    world.handling.drop(lambda message: message.offset == 0)  # what has moved on
    world.handling.heard(world.time.now)
    assert world.begin().offset == 1


def test_what_was_handled_before_a_loss_is_not_acknowledged() -> None:
    world = World()
    _, second = world.add("a", "b")
    world.handling.finish(world.begin(), [])
    running = world.begin()
    assert (running, world.handling.clear()) == (second, 2)
    world.handling.finish(running, [])
    assert world.handling.take_results() == []
    assert world.handling.lost == 2


def claim(world: World, *taken: bool) -> list[TopicMessage]:
    """The loop asks the broker, which says so. -> what was claimed"""
    claims = world.handling.take_claims()
    world.handling.claimed(claims, taken or [True] * len(claims))
    return claims


def test_without_acking_a_message_is_begun_once_its_claim_is_acknowledged() -> None:
    world = World(ack=False)
    first, second = world.add("a", "b")
    assert world.handling.begin(wait=False) is None
    assert world.handling.begin(wait=False) is None
    assert world.told == ["claims"], "told once"
    assert claim(world) == [first], "as many as there are workers"
    assert world.begin() is first
    assert world.handling.begin(wait=False) is None
    assert world.handling.take_claims() == []
    world.handling.finish(first, [])
    assert world.handling.take_results() == []
    assert world.handling.begin(wait=False) is None
    assert claim(world) == [second]
    assert world.begin() is second


def test_without_acking_what_is_not_claimed_can_be_given_back() -> None:
    world = World(ack=False, workers=2)
    messages = world.add("a", "b", "c")
    assert world.handling.begin(wait=False) is None
    assert world.handling.drop(lambda message: True) == messages[2:]
    assert claim(world, True, False) == messages[:2]
    assert world.begin() is messages[0]
    assert world.handling.begin(wait=False) is None, "the other one has moved on"
    assert world.handling.lost == 1


def test_without_acking_a_failure_is_tried_again_without_another_claim() -> None:
    world = World(ack=False, max_attempts=2)
    message, second = world.add("a", "a")
    world.handling.begin(wait=False)
    claim(world)
    world.handling.fail(world.begin(), ValueError("no"))
    assert world.handling.drop(lambda message: True) == [second]
    assert world.begin() is message
    assert message.attempt == 2
    world.handling.fail(message, ValueError("no"))
    assert world.handling.begin(wait=False) is None
    assert world.handling.take_results() == []


def test_what_is_claimed_is_handled_after_stop_and_what_is_not_asked_is_left() -> None:
    world = World(ack=False, workers=3)
    world.add("a", "b")
    world.handling.begin(wait=False)
    (first, second), _ = world.handling.take_claims(), world.add("c")
    assert world.handling.begin(wait=False) is None  # the third is a claim, and not asked for
    world.handling.stop()
    assert not world.handling.over
    world.handling.claimed([first, second], [True, False])
    assert world.begin() is first
    assert world.handling.begin() is None, "nothing more comes"
    assert not world.handling.idle
    world.handling.finish(first, [])
    assert world.handling.idle
    assert "idle" in world.told


def test_a_claim_that_went_wrong_waits_until_the_broker_is_heard() -> None:
    world = World(ack=False)
    first, second = world.add("a", "b")
    world.handling.begin(wait=False)
    claims = world.handling.take_claims()
    world.handling.withdraw()
    world.handling.claimed(claims, [False])
    assert world.handling.begin(wait=False) is None
    assert world.told == ["claims", "doubt"]
    world.handling.heard(world.time.now, slots=True)
    assert world.handling.begin(wait=False) is None
    assert (claims, world.handling.take_claims()) == ([first], [second])


def test_after_a_loss_what_was_acknowledged_is_still_handled_here() -> None:
    world = World(ack=False)
    world.add("a", "b")
    world.handling.begin(wait=False)
    (first,) = claim(world)
    assert world.handling.clear() == 1
    assert world.begin() is first
    world.handling.finish(first, [])
    assert world.handling.begin(wait=False) is None


def test_what_was_claimed_for_workers_that_are_gone_runs_no_more() -> None:
    world = World(ack=False)
    world.add("a")
    world.handling.begin(wait=False)
    claim(world)
    world.handling.stop()
    assert not world.handling.idle
    world.handling.ended()
    assert world.handling.idle
    assert world.handling.lost == 1


def test_a_failure_that_does_not_count_leaves_its_message_as_it_was() -> None:
    world = World(workers=2)
    world.add("a", "a", "b")
    world.handling.fail(world.begin(), ValueError("closed"), counts=False)
    assert world.begin().shard_key == "b"
    assert world.handling.begin(wait=False) is None, "what comes after it of its key does not begin"
    assert world.handling.take_results() == []


def test_when_a_worker_is_at_its_end_nothing_of_its_key_begins() -> None:
    world = World(workers=2)
    first, _ = world.add("a", "a")
    assert world.begin() is first
    begun: list[TopicMessage | None] = []
    stop = world.handling.stop

    def stop_late() -> None:
        begun.append(world.handling.begin(wait=False))  # another worker comes by
        stop()

    world.handling.stop = stop_late  # type: ignore[method-assign]
    world.handling.crash(first, SystemExit(3))
    assert begun == [None]


def test_after_stop_nothing_is_begun_and_the_loop_hears_when_nothing_runs() -> None:
    world = World(workers=2)
    world.add("a", "b", "c")
    running = [world.begin(), world.begin()]
    world.handling.stop()
    assert world.handling.begin() is None
    assert world.told == ["stop"]
    for message in running:
        assert "idle" not in world.told
        world.handling.finish(message, [])
    assert world.told == ["stop", "results", "idle"]
