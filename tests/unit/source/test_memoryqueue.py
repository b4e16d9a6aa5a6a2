"""The queue in memory: its leases end."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import InvalidError
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.queueport import Limits, Queue, limits_of
from unit.log.driver import StillClock


def queue_of(*bodies: str, lease: float = 10) -> tuple[MemoryQueue, StillClock]:
    clock = StillClock()
    queue = MemoryQueue(lease=lease, clock=clock)
    for body in bodies:
        queue.send(body)
    return queue, clock


def test_it_is_a_queue() -> None:
    assert isinstance(MemoryQueue(), Queue)
    assert limits_of(MemoryQueue(lease=5, lease_max=7)) == Limits(lease=5, lease_max=7)


def test_what_is_leased_is_not_delivered_until_its_lease_is_over() -> None:
    queue, clock = queue_of("a", "b")
    assert [each.body for each in queue.receive(1, 0)] == [b"a"]
    assert [each.body for each in queue.receive(5, 0)] == [b"b"]
    clock.ms += 9999
    assert queue.receive(5, 0) == []
    clock.ms += 1
    again = queue.receive(5, 0)
    assert [(each.body, each.attempts) for each in again] == [(b"a", 2), (b"b", 2)]


def test_an_acknowledged_message_is_gone() -> None:
    queue, clock = queue_of("a", "b")
    messages = queue.receive(5, 0)
    assert queue.acknowledge(messages[:1]) == [True]
    clock.ms += 10_000
    assert [each.body for each in queue.receive(5, 0)] == [b"b"]
    assert len(queue) == 1


def test_a_late_acknowledgement_and_a_late_extension_count_for_nothing() -> None:
    queue, clock = queue_of("a")
    (first,) = queue.receive(1, 0)
    clock.ms += 10_000
    assert queue.extend(first, 5) is None
    assert queue.acknowledge([first]) == [False]
    (second,) = queue.receive(1, 0)
    assert queue.acknowledge([first]) == [False], "another has it"
    assert queue.acknowledge([second, second]) == [True, False]


def test_an_extended_lease_ends_later() -> None:
    queue, clock = queue_of("a")
    (message,) = queue.receive(1, 0)
    clock.ms += 9000
    assert queue.extend(message, 20) == clock.monotonic() + 20
    clock.ms += 19_000
    assert queue.receive(1, 0) == []
    clock.ms += 1000
    assert len(queue.receive(1, 0)) == 1


def test_a_receiver_that_waits_is_woken_by_a_message() -> None:
    queue = MemoryQueue()
    found: list[bytes] = []
    waiting = threading.Thread(
        target=lambda: found.extend(each.body for each in queue.receive(1, 60))
    )
    waiting.start()
    queue.send(b"a", dedup_id="d")
    waiting.join(30)
    assert found == [b"a"]


def test_a_receiver_that_waits_gets_what_becomes_visible_again() -> None:
    queue = MemoryQueue(lease=0.02)
    queue.send("a")
    queue.receive(1, 0)
    (again,) = queue.receive(1, 60)
    assert again.attempts == 2


def test_times_that_make_no_sense_are_invalid() -> None:
    with pytest.raises(InvalidError, match="positive number"):
        MemoryQueue(lease=0)
    queue = MemoryQueue(lease_max=7)
    queue.send("a")
    (message,) = queue.receive(1, 0)
    for seconds in (0, -1, 8):
        with pytest.raises(InvalidError):
            queue.extend(message, seconds)
