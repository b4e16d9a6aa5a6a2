"""A consumer of a topic for asyncio: handlers are coroutines on the caller's own loop.

Contract     `async with` or `await` registers it; `workers` tasks hand messages to the handler
             until `shutdown`. What the tasks share with the registration is handling.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.client.handles import Handle
from penstock.client.tail import Tailing
from penstock.client.tx import Tx
from penstock.errors import InvalidError

if TYPE_CHECKING:
    from penstock.client.topic import AsyncTopic

#: handler(message), or handler(message, tx)
AsyncHandler = Callable[..., object]


class AsyncTopicConsumer(Handle):
    """A consumer of a topic, at work from `async with` or `await` on, until `shutdown`."""

    def __init__(self, topic: AsyncTopic, tailing: Tailing, handler: AsyncHandler) -> None:
        self._topic = topic
        self._tailing = tailing
        self._handling = tailing.handling
        self._handler = handler
        self._session = topic._database._session
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._shut = False
        manner = tailing.manner
        self.id = manner.consumer
        self.batch_size = manner.batch_size
        self.is_acking = manner.ack

    @property
    def lost(self) -> int:
        """How many messages had moved on to another consumer before they were acknowledged."""
        return self._handling.lost

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def _start(self) -> Self:
        if self._shut:
            raise shut_down(self.id)
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._handling.on_change = lambda: _set_soon(loop, self._ready)
            await self._topic._database._runner(self._tailing.open())
            self._session.closers.add(self._tailing.close)
            self._tasks = [loop.create_task(self._work()) for _ in range(self._workers)]
        return self

    @property
    def _workers(self) -> int:
        return self._tailing.manner.workers

    async def _work(self) -> None:
        try:
            await self._handle_all()
        finally:
            # Also where the caller's loop has come to its end: what was polled goes to others.
            self._handling.stop()
            self._handling.ended()

    async def _handle_all(self) -> None:
        handling, tx = self._handling, None
        while not handling.over:
            self._ready.clear()
            message = handling.begin(wait=False)
            if message is None:
                if not handling.over:
                    await self._ready.wait()
                continue
            try:
                if handling.manner.tx:
                    tx = Tx()
                    result = await _done(self._handler(message, tx))
                else:
                    result = await _done(self._handler(message))
            except Exception as error:
                if tx is not None:
                    tx._close()
                handling.fail(message, error, counts=not self._session.closed)
            except BaseException as error:
                if tx is not None:
                    tx._close()
                handling.crash(message, error)
                raise
            else:
                if (undone := left_undone(result)) is not None:
                    handling.crash(message, undone)
                    return
                handling.finish(message, [] if tx is None else tx._close())

    async def shutdown(self) -> None:
        """Finish the messages that are being handled, acknowledge them, and leave: the consumer's
        share goes to others. It cannot be used again. Raises what had ended it before, if
        anything."""
        if self._shut:
            raise shut_down(self.id)
        await self._end()

    async def _end(self) -> None:
        self._shut = True
        if not self._tasks:
            return
        if asyncio.current_task() in self._tasks:
            self._handling.stop()  # from its own handler: the rest happens when that returns
            return
        self._session.closers.discard(self._tailing.close)
        if not self._session.closed:
            await self._topic._database._runner(self._tailing.close())
        await asyncio.wait(self._tasks)
        if self._handling.error is not None:
            raise self._handling.error

    async def wait(self) -> None:
        """Until it is shut down, or ends by itself: then this raises why."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._handling.error is not None:
            raise self._handling.error

    async def __aenter__(self) -> Self:
        return await self._start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._shut:
            await self._end()

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self.id!r} of {self._topic.name!r}>"


def shut_down(consumer: str) -> InvalidError:
    return InvalidError(f"consumer {consumer!r} was shut down", hint="tail the topic again")


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(event.set)


async def _done(result: object) -> object:
    """A handler may be a plain function too, if it does not keep the loop waiting."""
    return await result if inspect.isawaitable(result) else result


def left_undone(result: object) -> InvalidError | None:
    """What a handler returns is its own affair; but a coroutine or a generator is work that nobody
    would do, and its message must not count as handled."""
    if result is None or not isinstance(result, Coroutine | Generator | AsyncGenerator):
        return None
    if not isinstance(result, AsyncGenerator):
        result.close()
    return InvalidError(
        f"the handler returned {type(result).__name__} instead of handling its message",
        hint="a handler is a plain function; with penstock.aio it may be a coroutine function",
    )
