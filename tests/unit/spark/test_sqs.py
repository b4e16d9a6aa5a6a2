"""A queue of SQS, whose calls take their time."""

from __future__ import annotations

from typing import Any

from penstock.clock import SystemClock
from penstock.spark.sqs import SqsQueue


class MovingClock(SystemClock):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class FarAway:
    """Always ten messages more; each call takes a second."""

    def __init__(self, clock: MovingClock) -> None:
        self._clock = clock
        self._sent = 0

    def receive_message(self, **asked: Any) -> dict[str, Any]:
        self._clock.now += 1.0
        first, self._sent = self._sent, self._sent + asked["MaxNumberOfMessages"]
        return {
            "Messages": [
                {"MessageId": str(n), "ReceiptHandle": str(n), "Body": "/a"}
                for n in range(first, self._sent)
            ]
        }


def test_receiving_ends_while_most_of_the_first_lease_is_left() -> None:
    clock = MovingClock()
    queue = SqsQueue(FarAway(clock), "url", clock=clock, attributes={"VisibilityTimeout": "20"})
    received = queue.receive(1000, 0)
    assert len(received) == 50
    assert min(each.deadline for each in received) - clock.now == 15.0
    assert len(queue.receive(30, 0)) == 30
