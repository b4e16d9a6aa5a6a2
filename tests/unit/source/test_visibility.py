"""When leases are extended, with a queue whose leases really end."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidError
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.queueport import Limits, Received, limits_of
from penstock.source.visibility import Lease, check_limits, last_seconds, lease_seconds
from unit.log.driver import StillClock


def received(deadline: float) -> Received:
    return Received("m", b"", 1, 1, deadline)


def test_a_lease_is_extended_in_its_last_third() -> None:
    lease = Lease(received(130.0), now=100.0, seconds=60.0)
    assert lease.next_at() == 120.0
    assert lease.due(119.9) is None
    assert lease.due(120.0) == 60.0
    lease.extended(180.0, now=120.0)
    assert lease.due(120.0) is None
    assert lease.next_at() == 160.0


def test_the_last_extension_is_made_once_and_at_once() -> None:
    lease = Lease(received(130.0), now=100.0, seconds=60.0)
    lease.finish(120.0)
    assert lease.due(101.0) == 120.0
    lease.extended(221.0, now=101.0)
    assert lease.stopped
    assert (lease.due(10_000.0), lease.next_at()) == (None, None)


def test_an_extension_that_failed_stays_due() -> None:
    lease = Lease(received(130.0), now=100.0, seconds=60.0)
    assert lease.due(121.0) == 60.0
    assert lease.due(122.0) == 60.0
    lease.finish(120.0)
    assert lease.due(123.0) == 120.0
    assert lease.due(124.0) == 120.0


def test_a_lost_lease_is_left_alone() -> None:
    lease = Lease(received(130.0), now=100.0, seconds=60.0)
    lease.extended(None, now=140.0)
    assert lease.lost
    assert lease.stopped
    lease.finish(120.0)
    assert lease.due(150.0) is None


def test_a_reader_that_keeps_its_schedule_never_loses_its_message() -> None:
    clock = StillClock()
    queue = MemoryQueue(lease=30, clock=clock)
    queue.send("x")
    (message,) = queue.receive(1, 0)
    lease = Lease(message, clock.monotonic(), lease_seconds(30, limits_of(queue)))
    for _ in range(1000):
        clock.ms += 1000
        now = clock.monotonic()
        if (seconds := lease.due(now)) is not None:
            lease.extended(queue.extend(message, seconds), now)
        assert not lease.lost
        assert queue.receive(1, 0) == []
    assert queue.acknowledge([message]) == [True]


def test_a_lease_is_at_most_what_the_queue_allows() -> None:
    assert lease_seconds(60, Limits()) == 120
    assert lease_seconds(60, Limits(lease_max=50)) == 50


def test_a_commit_timeout_that_the_queue_cannot_wait_for_is_refused_at_start() -> None:
    assert last_seconds(60) == 120
    check_limits(60, Limits())
    check_limits(60, Limits(lease_max=120))
    with pytest.raises(InvalidError, match="needs leases of 120 s; the queue's maximum is 119 s"):
        check_limits(60, Limits(lease_max=119))
