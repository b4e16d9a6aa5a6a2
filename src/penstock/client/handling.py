"""Messages between the loop of a consumer, which polls and settles, and its workers.

Contract     A worker calls `begin` for the next message (lanes.py: one key, one worker at a time)
             and gives it back with `finish`, `fail` or `crash`; what became of it is a `Result` for
             the loop. The loop is told by callbacks, which run on it: `on_results`, `on_room` (once
             after `wants_room`), `on_stop`, `on_idle` (nothing runs after that), `on_doubt`,
             `on_claims`.
Claims       Without `ack` a message is acknowledged before its handler gets it: it is a *claim*
             until the broker has answered (`take_claims`, `claimed`), and only as many are claimed
             as there are workers without one. So what was fetched ahead stays the broker's to give
             to others, and what is claimed is handled, after `stop` too.
Sure         Nothing is begun that others may have taken for theirs: a process that was stopped for
             longer than its heartbeat asks the broker first (`on_doubt`, then `heard`). So does one
             that was refused something, or has handled something for nothing.
Threads      Everything here may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from penstock.broker.topicanswers import Effect, Failure, Refs
from penstock.client.consume import reason_of
from penstock.client.lanes import Lanes
from penstock.client.topicshapes import TopicMessage
from penstock.clock import Clock
from penstock.topic.ack import ERROR_CHARS_MAX

_log = logging.getLogger("penstock")


#: How many full batches are held at most, while workers have nothing to do.
BATCHES_MAX = 4


class Manner(msgspec.Struct, frozen=True):
    """How a consumer wants its messages."""

    consumer: str
    batch_size: int
    ack: bool
    tx: bool
    workers: int
    max_attempts: int
    heartbeat_ms: int
    slots: int | None


class Result(msgspec.Struct, frozen=True):
    """What became of a message."""

    message: TopicMessage
    effects: list[Effect] = []
    error: str | None = None  # its handler failed


def _nothing() -> None:
    pass


class Handling:
    def __init__(
        self, manner: Manner, clock: Clock, post: Callable[[Callable[[], object]], None]
    ) -> None:
        self.manner = manner
        self._clock = clock
        self._post = post
        #: Guards everything; workers wait on the condition, so many of them now.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        self._lanes = Lanes(keyed=manner.workers > 1)
        self._results: list[Result] = []
        self._told = False  # the loop knows that there are results
        self._claims: list[TopicMessage] = []  # taken, and not acknowledged
        self._asked = 0  # claims that the loop has taken, and not answered
        self._claiming = False  # the loop knows that there are claims
        self._claimed: deque[TopicMessage] = deque()  # for the next workers
        self._ended = 0  # workers that are at their end
        self._hungry = False  # the loop waits for room
        self._full = False  # the last poll gave as many as it could
        self._sure_until = 0.0  # monotonic: nobody can have taken this consumer for dead
        #: Monotonic, since when perhaps something has moved on: until the broker was asked what is
        #: ours, and heard.
        self._doubted: float | None = None
        self._doubting = False  # the loop is asked to find out
        self.stopped = False
        #: Messages that had moved on when they were acknowledged or given back.
        self.lost = 0
        #: Why the consumer ended by itself.
        self.error: BaseException | None = None
        #: Whenever a worker may find something new to do; from any thread.
        self.on_change: Callable[[], None] = _nothing
        # On the loop.
        self.on_results: Callable[[], None] = _nothing
        self.on_claims: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self.on_idle: Callable[[], None] = _nothing
        self.on_doubt: Callable[[], object] = _nothing
        self.on_stop: Callable[[], object] = _nothing

    # -- workers

    def begin(self, *, wait: bool = True) -> TopicMessage | None:
        """The next message; None at the end, or where there is none and nobody waits."""
        with self._lock:
            while (message := self._next()) is None:
                if not wait or self._is_over():
                    return None
                self._waiters += 1
                self._changed.wait()
                self._waiters -= 1
            fed = self._is_fed()
        if fed:
            self._post(self.on_room)
        return message

    def _next(self) -> TopicMessage | None:
        if not self.stopped and self._is_sure():
            if self.manner.ack:
                return self._lanes.take()
            self._claim()
        return self._claimed.popleft() if self._claimed else None

    def _claim(self) -> None:
        while self._lanes.running < self.manner.workers:
            message = self._lanes.take()
            if message is None:
                break
            self._claims.append(message)
        if self._claims and not self._claiming:
            self._claiming = True
            self._post(self.on_claims)

    @property
    def over(self) -> bool:
        """Whether nothing more will be begun."""
        with self._lock:
            return self._is_over()

    def _is_over(self) -> bool:
        return self.stopped and not (self._claims or self._asked or self._claimed)

    def _is_sure(self) -> bool:
        if self._clock.monotonic() < self._sure_until:
            return True
        if self._lanes.waiting and not self._doubting:
            self._doubting = True
            self._post(self.on_doubt)
        return False

    def finish(self, message: TopicMessage, effects: list[Effect]) -> None:
        """Its handler has returned."""
        with self._lock:
            good = self._handled(message)
            self._lanes.free(message)
            if good and self.manner.ack:
                self._results.append(Result(message, effects))
            due = self._due()
        self._tell(due)

    def _handled(self, message: TopicMessage) -> bool:
        """-> whether it was not for nothing; then it was in the way of dropping its lane"""
        good = self._lanes.handled(message)
        if not good:
            self._doubt()
        return good

    def fail(self, message: TopicMessage, error: Exception, *, counts: bool = True) -> None:
        """Its handler has raised. One that does not count, at the end of everything, is left as it
        is, and so is its lane: it comes again."""
        text = reason_of(error)
        with self._lock:
            if not self.manner.ack:
                self._failed_for_good(message, text, counts=counts)
            else:
                good = self._handled(message)
                if not good:
                    self._lanes.free(message)
                elif counts:  # its lane waits for the answer
                    self._results.append(Result(message, error=text))
            due = self._due()
        self._tell(due)

    def _failed_for_good(self, message: TopicMessage, text: str, *, counts: bool) -> None:
        """It was acknowledged when it was handed out: nobody but this consumer can try again."""
        _log.warning("the handler of %r failed: %s", message, text)
        if counts and not self.stopped and message.attempt < self.manner.max_attempts:
            message.attempt += 1
            self._claimed.append(message)  # and its lane waits
            self._changed.notify()
            return
        self._back(message)

    def _back(self, message: TopicMessage) -> None:
        """Nobody handles it any more; its lane goes on."""
        self._lanes.handled(message)
        self._lanes.free(message)

    def crash(self, message: TopicMessage, error: BaseException) -> None:
        """A worker is at its end, and so is the consumer; the message comes to another one."""
        with self._lock:
            self.stopped = True  # with it: nothing that comes after it is begun
            self._back(message)
            self.error = error
        self.stop()
        with self._lock:
            due = self._due()
        self._tell(due)

    def stop(self) -> None:
        """Nothing more is begun."""
        with self._lock:
            self.stopped = True
            self._withdraw()
            self._changed.notify_all()
        self.on_change()
        self._post(self.on_stop)

    def ended(self) -> None:
        """A worker is at its end. After the last one nobody handles what was claimed."""
        with self._lock:
            self._ended += 1
            if self._ended < self.manner.workers:
                return
            self.lost += len(self._claimed)
            while self._claimed:
                self._back(self._claimed.popleft())
            due = self._due()
        self._tell(due)

    def _withdraw(self) -> None:
        """Claims that the broker does not know of."""
        for message in self._claims:
            self._back(message)
        self._claims.clear()

    def _due(self) -> list[Callable[[], object]]:
        """Something was handled: whom to tell. Another worker may go on, too."""
        due: list[Callable[[], object]] = []
        if self._results and not self._told:
            self._told = True
            due.append(self.on_results)
        if self._is_fed():
            due.append(self.on_room)
        if self.stopped and not self._lanes.running:
            due.append(self.on_idle)
        self._wake()
        return due

    def _tell(self, due: list[Callable[[], object]]) -> None:
        for callback in due:
            self._post(callback)
        if self._lanes.ready or self._claimed:
            self.on_change()

    def _wake(self) -> None:
        """As many workers as there is something to do for."""
        if self._waiters and self._lanes.ready:
            self._changed.notify(self._lanes.ready)

    # -- room

    def wants_room(self) -> bool:
        """Whether the loop has to wait for `on_room` before it polls more."""
        with self._lock:
            self._hungry = not self._has_room()
            return self._hungry

    def _is_fed(self) -> bool:
        if self._hungry and self._has_room():
            self._hungry = False
            return True
        return False

    def _has_room(self) -> bool:
        lanes, manner = self._lanes, self.manner
        if lanes.running < manner.workers and not lanes.ready:
            # Somebody has nothing to do: what waits, if anything, is of keys that are being
            # handled. Go on to others, as long as that is not without end.
            return lanes.waiting <= manner.batch_size * BATCHES_MAX
        # There is more: fetch it while these are handled.
        return self._full and lanes.waiting <= manner.batch_size // 2

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._lanes.running

    # -- the loop

    def heard(self, asked: float, *, slots: bool = False) -> None:
        """The broker has answered what was asked at this moment: it knows that we live. `slots`:
        and has told which are ours; others were dropped."""
        with self._lock:
            if slots and self._doubted is not None and asked >= self._doubted:
                self._doubted = None
            if self._doubted is None:
                self._sure_until = max(self._sure_until, asked + self.manner.heartbeat_ms / 1000)
            doubted, self._doubting = self._doubting, False
            if doubted:
                self._changed.notify_all()
        if doubted:
            self.on_change()

    def add(self, messages: Sequence[TopicMessage]) -> None:
        """What a poll gave."""
        with self._lock:
            self._full = len(messages) >= self.manner.batch_size
            self._lanes.add(messages)
            self._wake()
        if messages:
            self.on_change()

    def drop(self, gone: Callable[[TopicMessage], bool]) -> list[TopicMessage]:
        """What nobody has begun, and others are to have. -> those"""
        with self._lock:
            dropped = self._lanes.drop(gone)
            fed = self._is_fed()
        if fed:
            self._post(self.on_room)
        return dropped

    def clear(self) -> int:
        """Everything that was polled is others' now. -> how many"""
        with self._lock:
            self._withdraw()
            if self.manner.ack:
                gone = self._lanes.clear() + len(self._results)
                self._results.clear()
            else:  # what is handled is this consumer's alone
                gone = len(self._lanes.drop(lambda message: True))
            self.lost += gone
        return gone

    # -- claims, for the loop

    def take_claims(self) -> list[TopicMessage]:
        """All; none: then `on_claims` tells of the next ones. By job, as `refs_of` has them."""
        with self._lock:
            claims, self._claims = self._claims, []
            self._claiming = bool(claims)
            self._asked += len(claims)
        return sorted(claims, key=lambda message: message._job)

    def doubt(self) -> None:
        """Something was refused: nothing is begun until it is known what is ours."""
        with self._lock:
            self._doubt()

    def _doubt(self) -> None:
        self._sure_until, self._doubted = 0.0, self._clock.monotonic()

    def withdraw(self) -> None:
        """Claims went wrong."""
        with self._lock:
            self._doubt()
            self._withdraw()
            self._claiming = False

    def claimed(self, claims: Sequence[TopicMessage], taken: Sequence[bool]) -> None:
        """What the broker says; one that has moved on, or may have, is not handled here."""
        with self._lock:
            self._asked -= len(claims)
            for message, mine in zip(claims, taken, strict=True):
                if mine and self._ended < self.manner.workers:
                    self._claimed.append(message)
                else:
                    self.lost += 1
                    self._back(message)
            self._changed.notify_all()
            due = self._due()
        self._tell(due)
        self.on_change()

    # -- results, for the loop

    @property
    def is_urgent(self) -> bool:
        """Whether results should not wait for the next poll to take them along."""
        with self._lock:
            failed = any(each.error is not None for each in self._results)
            polling = not self._lanes.waiting and not self._hungry
            return self.manner.tx or failed or polling or self.stopped

    def take_results(self) -> list[Result]:
        """All; none: then `on_results` tells of the next ones."""
        with self._lock:
            results, self._results = self._results, []
            self._told = bool(results)
            return results

    def take_done(self) -> list[TopicMessage]:
        """Those that were finished; failures stay."""
        with self._lock:
            done = [each.message for each in self._results if each.error is None]
            self._results = [each for each in self._results if each.error is not None]
            return done

    def put_back(self, results: list[Result]) -> None:
        """They could not be settled: they are the first to be settled later."""
        with self._lock:
            self._results = results + self._results

    def answered(
        self, failed: Sequence[TopicMessage], answers: Sequence[str], *, paused: bool
    ) -> list[TopicMessage]:
        """What the broker says about failures; their keys go on, unless the topic is paused. ->
        what is dropped then, before a worker could begin it"""
        with self._lock:
            for message, answer in zip(failed, answers, strict=True):
                message.attempt += answer == "again"
                self._lanes.free(message, again=answer == "again")
            dropped = self._go_on(paused=paused)
        if failed:
            self.on_change()
        return dropped

    def _go_on(self, *, paused: bool) -> list[TopicMessage]:
        dropped = self._lanes.drop(lambda message: True) if paused else []
        if self._is_fed():
            self._post(self.on_room)
        self._wake()
        return dropped

    def redo(
        self, first: TopicMessage, pending: list[Result], *, paused: bool
    ) -> list[TopicMessage]:
        """A message whose effects were not committed comes again, and after it whatever was handled
        after it of its lane: results of that are dropped, in `pending` too. -> as `answered`"""
        with self._lock:
            first.attempt += 1
            again = [first]
            for results in (pending, self._results):
                mine = [
                    each.message for each in results
                    if each.message is not first and self._lanes.are_one(each.message, first)
                ]  # fmt: skip
                again += mine
                results[:] = [each for each in results if each.message not in mine]
            self._lanes.redo(again)
            dropped = self._go_on(paused=paused)
        self.on_change()
        return dropped


def refs_of(messages: Sequence[TopicMessage]) -> list[Refs]:
    """One for each job."""
    jobs = {message._job for message in messages}
    if len(jobs) > 1:
        parts = [[message for message in messages if message._job == job] for job in sorted(jobs)]
    else:
        parts = [list(messages)] if messages else []
    return [
        Refs(
            [message.offset for message in part],
            [message._epoch for message in part],
            part[0]._job,
        )
        for part in parts
    ]


def failure_of(result: Result) -> Failure:
    message = result.message
    assert result.error is not None
    error = result.error[:ERROR_CHARS_MAX]  # more would not be kept, and may not fit a request
    return Failure(message.offset, message._epoch, error, message._job, message.attempt)
