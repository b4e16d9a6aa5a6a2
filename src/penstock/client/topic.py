"""The Python API of topics, once: `penstock.aio` shows these classes, blockingtopic.py makes them
block.

Contract     As api.py. `push` and `tail` make a missing topic; anything else about one that does
             not exist is a NotFoundError.
Lost broker  Looking, pausing and playing go on by themselves, and so does a consumer (tail.py). A
             push, a replay or a rebalance whose answer was lost is an UnavailableError: it may or
             may not have happened.
Not here     Consumers (topicconsumer.py, tail.py), what a transaction may have (tx.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa

from penstock.broker.topicanswers import Replay, ShardInfo, TopicStats
from penstock.broker.topics import topic_name
from penstock.client.checks import check_bool, check_int, milliseconds
from penstock.client.handles import AsyncHandle
from penstock.client.handling import Manner
from penstock.client.link import TopicErrand
from penstock.client.publish import ms_of
from penstock.client.queue import check_consumer, finite_ms, generated
from penstock.client.tail import Tailing
from penstock.client.thread import Work
from penstock.client.topicbackend import TopicBackend
from penstock.client.topicconsumer import AsyncHandler, AsyncTopicConsumer
from penstock.client.topicshapes import ConsumerInfo, TopicError, TopicInfo
from penstock.codec.scalars import U16_MAX
from penstock.errors import InvalidError
from penstock.log.batch import Tag
from penstock.topic.item import PreparedPush, prepare_push

if TYPE_CHECKING:
    from penstock.client.api import AsyncDatabase

R = TypeVar("R")

#: How many failures are asked for at a time.
ERRORS_PAGE = 1000
BATCH_MAX = 10_000

Pushed = tuple[Tag, bytes] | bytes


class AsyncTopic(AsyncHandle):
    """Messages that are shared out by shard key among consumers that come and go."""

    def __init__(self, database: AsyncDatabase, name: str, slots: int | None = None) -> None:
        self._name = topic_name(name)
        if slots is not None:
            check_int("slots", slots, least=1, most=U16_MAX)
        self._slots = slots
        self._database = database
        self._closed = False
        self.name = name

    def _require(self) -> None:
        if self._closed:
            raise InvalidError(f"the handle on topic {self.name!r} is closed")
        self._database._require()

    def _run(
        self, errand: TopicErrand[R], *, again: bool = False, block_ms: int | None = 0
    ) -> Work[R]:
        self._require()
        return self._database._run_topics(errand, again=again, block_ms=block_ms)

    # -- producing

    def push(
        self, data: bytes, shard_key: str | bytes | None = None, *, create: bool = True
    ) -> Work[int]:
        """Push one message; returns its offset when it is durable.

        Messages of one shard key are handled one after the other, in this order; those without one
        are spread. A topic that is missing is made, unless `create` is False.
        """
        push = prepare_push([data], None if shard_key in (None, "", b"") else [shard_key])
        offsets = self._push(push, create)

        async def first() -> int:
            return (await offsets).start

        return first()

    def push_many(
        self, messages: Iterable[Pushed] | pa.RecordBatch | pa.Table, *, create: bool = True
    ) -> Work[range]:
        """Push messages as one: all of them or none. Returns their offsets when they are durable.

        Messages are (shard key or None, data), or data, or an Arrow batch with the columns data
        and, if there are any, shard_key.
        """
        return self._push(prepare_push(*pushed_columns(messages)), create)

    def _push(self, push: PreparedPush, create: bool) -> Work[range]:
        check_bool("create", create)
        if not push.count:
            self._require()
            return self._database._runner(_nothing())
        return self._run(
            lambda topics, _: topics.push(self._name, push, create=create, slots=self._slots)
        )

    # -- consuming

    def tail(
        self,
        handler: AsyncHandler,
        *,
        consumer: str | None = None,
        batch_size: int = 100,
        ack: bool = True,
        tx: bool = False,
        workers: int = 1,
        max_attempts: int = 1,
        heartbeat: float = 10,
    ) -> AsyncTopicConsumer:
        """Hand messages to `handler`, a share of all shard keys, until `shutdown`.

        Use it with `async with`, or await it: then it is registered. Messages of one key are
        handled one after the other, others by up to `workers` at once. `ack=True` acknowledges when
        the handler returns, `ack=False` when the message is handed out. With `tx=True` it is
        called as handler(message, tx), and what `tx.push`, `tx.publish` and `tx.write` add is
        committed together with the acknowledgement, or not at all.

        A handler that raises is called up to `max_attempts` times; then the message counts as
        errored, and its key goes on. A consumer that is silent for `heartbeat` seconds loses its
        share to others; it gives a sign of life three times as often, however long a handler takes.
        """
        tailing = self._tailing(
            handler, consumer, batch_size, ack, tx, workers, max_attempts, heartbeat
        )
        return AsyncTopicConsumer(self, tailing, handler)

    def _tailing(
        self,
        handler: object,
        consumer: str | None,
        batch_size: int,
        ack: bool,
        tx: bool,
        workers: int,
        max_attempts: int,
        heartbeat: float,
    ) -> Tailing:
        self._require()
        if not callable(handler):
            raise InvalidError(f"a handler is a function, not {type(handler).__name__}")
        check_consumer(consumer)
        check_int("batch_size", batch_size, least=1, most=BATCH_MAX)
        check_bool("ack", ack)
        check_bool("tx", tx)
        _check_handler(handler, tx)
        if tx and not ack:
            raise InvalidError("tx commits together with the acknowledgement", hint="leave ack out")
        check_int("workers", workers, least=1, most=1000)
        check_int("max_attempts", max_attempts, least=1, most=U16_MAX)
        heartbeat_ms = finite_ms("heartbeat", heartbeat)
        if not heartbeat_ms:
            raise InvalidError("heartbeat is more than 0 seconds")
        session = self._database._session
        manner = Manner(
            consumer=consumer if consumer is not None else generated(session.clock.entropy(3)),
            batch_size=batch_size,
            ack=ack,
            tx=tx,
            workers=workers,
            max_attempts=max_attempts,
            heartbeat_ms=heartbeat_ms,
            slots=self._slots,
        )
        return Tailing(self._name, manner, session.link, session.thread, session.clock)

    # -- supervising

    def pause(self, wait: float = 10) -> Work[bool]:
        """Stop routing and emission. Returns once nothing more will be handed out and consumers
        have settled or given back what they had, or after `wait` seconds. -> whether they have"""
        wait_ms = finite_ms("wait", wait)
        return self._run(
            lambda topics, left_ms: topics.pause(self._name, wait_ms=left_ms or 0),
            again=True,
            block_ms=wait_ms,
        )

    def play(self) -> Work[None]:
        """End a pause."""
        return self._run(lambda topics, _: topics.play(self._name), again=True)

    def rebalance(self) -> Work[int]:
        """Spread the slots, with what waits in them, evenly over the consumers. -> how many moved

        Joining and leaving do that by themselves.
        """
        return self._run(lambda topics, _: topics.rebalance(self._name))

    def replay(self, start: int | datetime, end: int | datetime | None = None) -> Work[Replay]:
        """Deliver messages from `start` to before `end` once more, in order, marked as `replay`.

        Whole numbers are offsets, datetimes the times of pushing; without an end up to now.
        -> .first and .end: which offsets
        """
        unit, low, high = _window(start, end)
        return self._run(lambda topics, _: topics.replay(self._name, low, high, unit=unit))

    def configure(
        self,
        *,
        max_count: int | None = None,
        max_bytes: int | None = None,
        max_age: float | None = None,
    ) -> Work[None]:
        """Set what is kept for replays, all of it: what is left out is without a limit. What is
        not acknowledged stays in any case."""
        for what, limit in (("max_count", max_count), ("max_bytes", max_bytes)):
            if limit is not None:
                check_int(what, limit, least=1)
        max_age_ms = None if max_age is None else milliseconds("max_age", max_age)
        if max_age_ms == 0:
            raise InvalidError("max_age is more than 0 seconds", hint="leave it out for no limit")
        return self._run(
            lambda topics, _: topics.configure(
                self._name, max_count=max_count, max_bytes=max_bytes, max_age_ms=max_age_ms
            )
        )

    def delete(self) -> Work[bool]:
        """Remove the topic and what is in it. -> whether it was there"""
        return self._run(lambda topics, _: topics.delete(self._name))

    # -- looking

    def stats(self) -> Work[TopicStats]:
        """inserted >= routed >= emitted >= acked, each message at its first time; redelivered,
        replayed, errored, waiting, running."""
        return self._run(lambda topics, _: topics.stats(self._name), again=True)

    def consumers(self) -> Work[list[ConsumerInfo]]:
        """Live ones, and those that others are draining: .id .slots .last_seen .zombie"""
        name = self._name

        async def found(topics: TopicBackend, _: int | None) -> list[ConsumerInfo]:
            return list(map(ConsumerInfo.of, await topics.consumers(name)))

        return self._run(found, again=True)

    def shards(self) -> Work[list[ShardInfo]]:
        """One for each slot and generation, with its counts."""
        return self._run(lambda topics, _: topics.shards(self._name), again=True)

    def errors(self) -> Work[list[TopicError]]:
        """Messages whose handler failed, by offset, with the last error of each."""
        name = self._name

        async def found(topics: TopicBackend, _: int | None) -> list[TopicError]:
            errors: list[TopicError] = []
            start = job = 0
            # A page is short where messages are large, so only an empty one is the end.
            while page := await topics.errors(name, start, ERRORS_PAGE, job=job):
                errors += map(TopicError.of, page)
                start, job = page[-1].offset, page[-1].job + 1
            return errors

        return self._run(found, again=True)

    def info(self) -> Work[TopicInfo]:
        """The settings."""
        name = self._name

        async def found(topics: TopicBackend, _: int | None) -> TopicInfo:
            return TopicInfo.of(await topics.describe(name))

        return self._run(found, again=True)

    async def close(self) -> None:
        """Give up this handle; the topic and the location stay open."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self.name!r} of {self._database.location!r}>"


async def _nothing() -> range:
    return range(0)


# ---- arguments --------------------------------------------------------------------------------


def _check_handler(handler: Callable[..., object], tx: bool) -> None:
    """One that cannot be called would fail with every message, and all of them were errored."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # not everything that is built in tells
    try:
        signature.bind(*("message", "tx")[: 2 if tx else 1])
    except TypeError as error:
        takes = "(message, tx)" if tx else "(message)"
        hint = "tx=True adds the second one" if not tx else "leave tx out for handler(message)"
        raise InvalidError(f"a handler is called with {takes}: {error}", hint=hint) from None


def pushed_columns(messages: object) -> tuple[list[bytes], list[Tag] | None]:
    """-> data and shard keys"""
    if isinstance(messages, pa.RecordBatch | pa.Table):
        return _arrow_columns(messages)
    if isinstance(messages, str | bytes | bytearray | memoryview) or not isinstance(
        messages, Iterable
    ):
        raise InvalidError(f"messages are a list, not {type(messages).__name__}")
    listed = list(messages)
    if not any(isinstance(each, tuple | list) for each in listed):
        return listed, None
    for i, each in enumerate(listed):
        if isinstance(each, bytes | bytearray | memoryview):
            listed[i] = (None, each)
        elif not isinstance(each, tuple | list) or len(each) != 2:
            raise InvalidError(f"message {i} is data, or (shard key, data), not {each!r:.100}")
    keys, data = zip(*listed, strict=True)
    return list(data), list(keys) if any(key not in (None, "", b"") for key in keys) else None


def _arrow_columns(batch: pa.RecordBatch | pa.Table) -> tuple[list[bytes], list[Tag] | None]:
    names = batch.schema.names
    if (
        set(names) - {"data", "shard_key"}
        or names.count("data") != 1
        or len(set(names)) < len(names)
    ):
        raise InvalidError(f"columns are data and, optionally, shard_key; these are {names}")
    data = batch.column("data").to_pylist()
    if None in data:
        raise InvalidError("data has nulls; a message without data is empty bytes")
    return data, batch.column("shard_key").to_pylist() if "shard_key" in names else None


def _window(start: object, end: object) -> tuple[Literal["offset", "time"], int, int | None]:
    if isinstance(start, datetime):
        if end is not None and not isinstance(end, datetime):
            raise InvalidError(f"start is a time, so end is one too, not {end!r}")
        low = ms_of("start", start, up=True)
        assert low is not None
        return "time", low, ms_of("end", end, up=True)
    check_int("start", start)
    assert isinstance(start, int)
    if end is not None:
        if isinstance(end, datetime):
            raise InvalidError(f"start is an offset, so end is one too, not {end!r}")
        check_int("end", end)
        assert isinstance(end, int)
    return "offset", start, end
