"""Topics for callers that wait: handlers run in threads of the consumer.

Contract     Each call is its namesake of topic.py. Handlers run in `workers` threads of their own,
             never in the caller's and never on the loop: they may use the location.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.client.blocking import Blocking, blocking
from penstock.client.handles import Handle
from penstock.client.tail import Tailing
from penstock.client.thread import LoopThread
from penstock.client.topic import AsyncTopic
from penstock.client.topicconsumer import left_undone, shut_down
from penstock.client.tx import Tx
from penstock.errors import InvalidError

#: handler(message), or handler(message, tx)
Handler = Callable[..., object]


class Topic(Blocking[AsyncTopic]):
    """Messages that are shared out by shard key among consumers that come and go."""

    def __init__(self, inner: AsyncTopic, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self.name = inner.name

    push = blocking(AsyncTopic.push)
    push_many = blocking(AsyncTopic.push_many)
    pause = blocking(AsyncTopic.pause)
    play = blocking(AsyncTopic.play)
    rebalance = blocking(AsyncTopic.rebalance)
    replay = blocking(AsyncTopic.replay)
    configure = blocking(AsyncTopic.configure)
    delete = blocking(AsyncTopic.delete)
    stats = blocking(AsyncTopic.stats)
    consumers = blocking(AsyncTopic.consumers)
    shards = blocking(AsyncTopic.shards)
    errors = blocking(AsyncTopic.errors)
    info = blocking(AsyncTopic.info)

    def tail(
        self,
        handler: Handler,
        *,
        consumer: str | None = None,
        batch_size: int = 100,
        ack: bool = True,
        tx: bool = False,
        workers: int = 1,
        max_attempts: int = 1,
        heartbeat: float = 10,
    ) -> TopicConsumer:
        if any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__))):
            raise InvalidError(
                "a handler that is awaited needs an event loop", hint="use penstock.aio"
            )
        tailing = self._inner._tailing(
            handler, consumer, batch_size, ack, tx, workers, max_attempts, heartbeat
        )
        return TopicConsumer(self, tailing, handler)

    tail.__doc__ = AsyncTopic.tail.__doc__


class TopicConsumer(Handle):
    """A consumer of a topic, at work until `shutdown`."""

    def __init__(self, topic: Topic, tailing: Tailing, handler: Handler) -> None:
        self._topic = topic
        self._tailing = tailing
        self._handling = tailing.handling
        self._handler = handler
        self._session = topic._inner._database._session
        self._shut = False
        manner = tailing.manner
        self.id = manner.consumer
        self.batch_size = manner.batch_size
        self.is_acking = manner.ack
        topic._thread.call(tailing.open())
        self._session.closers.add(tailing.close)
        # Daemons: a script that forgets the consumer ends, and the end of the location ends it.
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-{self.id}-{i}", daemon=True)
            for i in range(manner.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def lost(self) -> int:
        """How many messages had moved on to another consumer before they were acknowledged."""
        return self._handling.lost

    def _work(self) -> None:
        try:
            self._handle_all()
        finally:
            self._handling.ended()

    def _handle_all(self) -> None:
        handling, handler = self._handling, self._handler
        with_tx, tx = handling.manner.tx, None
        while (message := handling.begin()) is not None:
            try:
                if with_tx:
                    tx = Tx()
                    result = handler(message, tx)
                else:
                    result = handler(message)
            except Exception as error:
                if tx is not None:
                    tx._close()
                # A location that is being closed refuses what a handler asks of it.
                handling.fail(message, error, counts=not self._session.closed)
            except BaseException as error:
                if tx is not None:
                    tx._close()
                handling.crash(message, error)
                return
            else:
                if (undone := left_undone(result)) is not None:
                    handling.crash(message, undone)
                    return
                handling.finish(message, [] if tx is None else tx._close())

    def shutdown(self) -> None:
        """Finish the messages that are being handled, acknowledge them, and leave: the consumer's
        share goes to others. It cannot be used again. Raises what had ended it before, if
        anything."""
        if self._shut:
            raise shut_down(self.id)
        self._end()

    def _end(self) -> None:
        self._shut = True
        if threading.current_thread() in self._threads:
            self._handling.stop()  # from its own handler: the rest happens when that returns
            return
        self._session.closers.discard(self._tailing.close)
        if not self._session.closed:
            self._topic._thread.call(self._tailing.close())
        self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is shut down, or ends by itself: then this raises why. -> False where that was
        not within `timeout` seconds"""
        clock = self._session.clock
        end = None if timeout is None else clock.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - clock.monotonic()))
            if thread.is_alive():
                return False
        if self._handling.error is not None:
            raise self._handling.error
        return True

    def __enter__(self) -> Self:
        if self._shut:
            raise shut_down(self.id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._shut:
            self._end()

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self.id!r} of {self._topic.name!r}>"
