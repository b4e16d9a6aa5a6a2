"""The queues that announce files: Penstock's own, and whatever speaks SQS.

Contract     Both are a `source.queueport.Queue`. `open_queue` takes what a user gave: the name of a
             queue of the location, an address of SQS (sqs.py has its forms), or an object with the
             three methods of the port. What is wrong with it is an error here, before anything is
             received. Opening changes nothing; `begin` does, once all else is found to be right.
Counting     The source counts the failures of files. A queue that gives up on announcements by
             itself would lose healthy files to kills, so `begin` sets a queue of the location to
             `max_attempts=0`. A redrive policy of SQS is not ours to change; it is warned of.
Not here     When leases are extended and messages acknowledged (source/, ingest.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from penstock.client import blockingqueue
from penstock.client.blockingqueue import ClaimedMessage
from penstock.client.database import Database
from penstock.client.places import SCHEME
from penstock.client.publish import URI
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidError, NotFoundError
from penstock.source.queueport import Limits, Queue, Received
from penstock.spark.sqs import SqsQueue, is_sqs
from penstock.store.folder import require_location
from penstock.store.location import folder_of, require_bucket

_log = logging.getLogger("penstock")

#: A claim gives at most so many.
_CLAIM_MAX = 10_000
#: Of a lease: how long one call may wait for a message.
_WAIT_SHARE = 0.25


def open_queue(database: Database, queue: object, *, clock: Clock) -> Queue:
    """The port that `queue` stands for. Whoever has it open closes it, if it has a `close`."""
    found = check_queue(queue)
    if not isinstance(found, str):
        return found
    if is_sqs(found):
        return SqsQueue.open(found, clock=clock)
    return PenstockQueue.open(database, found, clock=clock)


def check_queue(queue: object) -> str | Queue:
    """Refuse what can be no queue, before anything is opened."""
    if isinstance(queue, Queue) or (isinstance(queue, str) and queue):
        return queue
    raise InvalidError(
        f"a queue is a name, sqs://…, or an object that receives, extends and acknowledges, "
        f"not {type(queue).__name__ if queue != '' else 'an empty text'}",
        hint="see penstock.source.queueport.Queue",
    )


def check_there(location: str, queue: object) -> None:
    """Refuse a location that is none, if the queue must lie in it: a misspelt one would be made."""
    if not isinstance(queue, str) or is_sqs(queue):
        return
    if location.startswith((SCHEME, "memory://")):
        return
    folder = folder_of(location)
    if folder is not None:
        require_location(folder)
        return
    # In a thread of its own: the caller's may have a loop, as in a notebook.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(require_bucket(location))).result()


@contextmanager
def announcing(database: Database, queue: str) -> Iterator[Callable[[str], object]]:
    """How to send an announcement there; that the queue exists is known before anything is sent."""
    if not is_sqs(queue):
        database.queue(queue).describe()
        yield lambda uri: database.publish(URI(uri), to=queue)
        return
    port = SqsQueue.open(queue, clock=SystemClock())
    try:
        yield port.send
    finally:
        port.close()


class PenstockQueue:
    """A queue of the location. Its leases are as long as the queue's settings say."""

    def __init__(
        self, queue: blockingqueue.Queue, *, lease: float, clock: Clock, consumer: str = "ingest"
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._consumer = consumer

    @classmethod
    def open(cls, database: Database, name: str, *, clock: Clock) -> PenstockQueue:
        """Of a queue that is there."""
        queue = database.queue(name)
        try:
            settings = queue.describe()
        except NotFoundError as error:
            raise NotFoundError(
                str(error), hint="penstock watch makes it, and so does db.create_queue"
            ) from None
        return cls(queue, lease=settings.lease, clock=clock)

    def begin(self) -> None:
        """From here on it gives up on no message. What deserves a word is logged."""
        queue, name = self._queue, self._queue.name
        settings = queue.describe()
        if settings.max_attempts:
            queue.alter(max_attempts=0)
            _log.warning(
                "queue %r: max_attempts was %d and is 0 now: the source counts failures",
                *(name, settings.max_attempts),
            )
        if failed := queue.stats().failed:
            _log.warning(
                "queue %r: %d announcements had failed before; queue.redrive() brings them back",
                *(name, failed),
            )
        if settings.paused:
            _log.warning("queue %r is paused: nothing is received until it plays", name)

    def receive(self, max_messages: int, wait: float) -> list[Received]:
        # A lease may begin as soon as the call goes out, and its deadline is counted from there: so
        # a call waits for a part of a lease at most, and what it brings has most of it left.
        until = self._clock.monotonic() + wait
        while True:
            began = self._clock.monotonic()
            left = max(0.0, until - began)
            claimed = self._queue.claim(
                min(max_messages, _CLAIM_MAX),
                wait=min(left, self._lease * _WAIT_SHARE),
                consumer=self._consumer,
            )
            if claimed or not left:
                return [self._received(message, began) for message in claimed]

    def _received(self, message: ClaimedMessage, began: float) -> Received:
        return Received(
            id=str(message.id),
            body=message.uri.encode() if message.uri is not None else message.payload or b"",
            attempts=message.attempts,
            handle=message.receipt,
            deadline=began + (message.lease_deadline - message.claimed_at).total_seconds(),
            dedup_id=message.dedup_id,
            uri=message.uri,
        )

    def extend(self, received: Received, seconds: float) -> float | None:
        began = self._clock.monotonic()
        return began + seconds if self._queue.extend([received.handle], seconds)[0] else None

    def acknowledge(self, received: Sequence[Received]) -> list[bool]:
        return self._queue.ack([each.handle for each in received])

    def limits(self) -> Limits:
        settings = self._queue.describe()
        return Limits(lease=settings.lease, lease_max=settings.max_lease)
