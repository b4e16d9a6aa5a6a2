"""The topics of a broker behind a socket: the methods of `broker.topics.Topics`, as RESP requests.

Contract     As remote.py. A poll that waits, and a pause, have a connection of their own: what a
             consumer acknowledges meanwhile must not stand behind them.
Cost         Messages travel as columns (msgpack of the broker's own structs), pushes as nodes that
             were laid out and compressed here, so that the one broker has less to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from penstock.broker.topicanswers import (
    Acked,
    Beaten,
    ConsumerInfo,
    Effect,
    Failure,
    Joined,
    Polled,
    Refs,
    Released,
    Replay,
    ShardInfo,
    TopicError,
    TopicInfo,
    TopicStats,
)
from penstock.client.remote_queues import Argument, Asking
from penstock.codec.node import node_value
from penstock.errors import InvalidError, NotFoundError
from penstock.log.catalogue import LogName
from penstock.server.resp.topic_grammar import Settling
from penstock.topic.item import PreparedPush

#: What a request may have at most, a little below the server's limit for a frame.
REQUEST_BYTES_MAX = 127 << 20

_pack = msgspec.msgpack.encode


class RemoteTopics:
    def __init__(self, remote: Asking) -> None:
        self._remote = remote

    # -- producing

    async def push(
        self, name: LogName, push: PreparedPush, *, create: bool = True, slots: int | None = None
    ) -> range:
        request: list[Argument] = ["TOPIC.PUSHNODES", name.name]
        if slots is not None:
            request += ["SLOTS", slots]
        if not create:
            request.append("NOCREATE")
        request.append("NODES")
        # Place and time 0: the broker gives them theirs.
        nodes = [node_value(body, 0, 0) for body in push.bodies]
        _check_size(sum(map(len, nodes)), "push it in parts")
        first, last = await self._remote.ask(*request, *nodes)
        return range(first, last + 1)

    # -- consuming

    async def join(
        self, name: LogName, consumer: str, *, heartbeat_ms: int = 10_000, slots: int | None = None
    ) -> Joined:
        chosen: tuple[Argument, ...] = () if slots is None else ("SLOTS", slots)
        found = await self._remote.ask(
            "TOPIC.JOIN", name.name, consumer, "HEARTBEAT", heartbeat_ms, *chosen
        )
        return Joined(
            token=found[b"token"],
            slots=found[b"slots"],
            heartbeat_ms=found[b"heartbeat"],
            paused=_truth(found[b"paused"]),
        )

    async def beat(self, name: LogName, consumer: str, token: int) -> Beaten:
        found = await self._remote.ask("TOPIC.BEAT", name.name, consumer, token)
        return Beaten(_truth(found[b"paused"]), found[b"slots"], found[b"epochs"])

    async def poll(
        self,
        name: LogName,
        consumer: str,
        token: int,
        count: int,
        *,
        wait_ms: int | None = 0,
        done: Sequence[Refs] = (),
    ) -> Polled:
        request: list[Argument] = ["TOPIC.POLL", name.name, consumer, token, count, "PACKED"]
        if wait_ms != 0:
            request += ["WAIT", "inf" if wait_ms is None else wait_ms]
        if done:
            request += ["DONEPACKED", _pack(done)]
        found = await self._remote.ask_waiting(wait_ms, *request)
        return msgspec.msgpack.decode(found, type=Polled)

    async def ack(
        self,
        name: LogName,
        consumer: str,
        token: int,
        done: Sequence[Refs] = (),
        *,
        failures: Sequence[Failure] = (),
        max_attempts: int = 1,
        tx: Sequence[Effect] = (),
    ) -> Acked:
        settling = _pack(Settling(list(done), list(failures), max_attempts, list(tx)))
        _check_size(len(settling), "let one message have less effect")
        found = await self._remote.ask("TOPIC.ACK", name.name, consumer, token, "PACKED", settling)
        return msgspec.msgpack.decode(found, type=Acked)

    async def release(
        self, name: LogName, consumer: str, token: int, given: Sequence[Refs]
    ) -> Released:
        request = ("TOPIC.RELEASE", name.name, consumer, token, "PACKED", _pack(given))
        return Released([bool(taken) for taken in await self._remote.ask(*request)])

    async def leave(self, name: LogName, consumer: str, token: int) -> bool:
        return bool(await self._remote.ask("TOPIC.LEAVE", name.name, consumer, token))

    # -- supervising

    async def pause(self, name: LogName, *, wait_ms: int = 10_000) -> bool:
        request = ("TOPIC.PAUSE", name.name, "WAIT", wait_ms)
        return bool(await self._remote.ask_waiting(wait_ms, *request))

    async def play(self, name: LogName) -> None:
        await self._remote.ask("TOPIC.PLAY", name.name)

    async def rebalance(self, name: LogName) -> int:
        return int(await self._remote.ask("TOPIC.REBALANCE", name.name))

    async def replay(
        self,
        name: LogName,
        start: int,
        end: int | None = None,
        *,
        unit: Literal["offset", "time"] = "offset",
    ) -> Replay:
        until = () if end is None else (end,)
        found = await self._remote.ask("TOPIC.REPLAY", name.name, unit, start, *until)
        return Replay(*found)

    async def configure(
        self,
        name: LogName,
        *,
        max_count: int | None,
        max_bytes: int | None,
        max_age_ms: int | None,
    ) -> None:
        limits = ("MAXLEN", max_count or 0, "MAXBYTES", max_bytes or 0, "MAXAGE", max_age_ms or 0)
        await self._remote.ask("TOPIC.CONFIG", name.name, *limits)

    async def delete(self, name: LogName) -> bool:
        try:
            await self._remote.ask("TOPIC.DEL", name.name)
        except NotFoundError:
            return False
        return True

    # -- looking

    async def names(self, pattern: str = "*") -> list[str]:
        return [name.decode() for name in await self._remote.ask("TOPIC.LS", pattern)]

    async def describe(self, name: LogName) -> TopicInfo:
        found = await self._remote.ask("TOPIC.INFO", name.name)
        return TopicInfo(
            name=found[b"name"].decode(),
            slots=found[b"slots"],
            created_ms=found[b"created_at"],
            max_count=found[b"maxlen"] or None,
            max_bytes=found[b"maxbytes"] or None,
            max_age_ms=found[b"maxage"] or None,
        )

    async def stats(self, name: LogName) -> TopicStats:
        found = _named(await self._remote.ask("TOPIC.STATS", name.name))
        found["paused"] = _truth(found["paused"])
        return TopicStats(**found)

    async def consumers(self, name: LogName) -> list[ConsumerInfo]:
        return [
            ConsumerInfo(
                id=found[b"id"].decode(),
                slots=found[b"slots"],
                last_seen_ms=found[b"last_seen"],
                zombie=_truth(found[b"zombie"]),
                heartbeat_ms=found[b"heartbeat"],
            )
            for found in await self._remote.ask("TOPIC.CONSUMERS", name.name)
        ]

    async def shards(self, name: LogName) -> list[ShardInfo]:
        return [
            _shard(_named(found)) for found in await self._remote.ask("TOPIC.SHARDS", name.name)
        ]

    async def errors(
        self, name: LogName, start: int = 0, count: int = 1000, *, job: int = 0
    ) -> list[TopicError]:
        return [
            TopicError(
                offset=found[b"offset"],
                shard_key=found[b"key"] or b"",
                data=found[b"data"],
                time_ms=found[b"time"],
                consumer=found[b"consumer"].decode(),
                error=found[b"error"].decode(),
                attempts=found[b"attempts"],
                final=_truth(found[b"final"]),
                job=found[b"replay"],
            )
            for found in await self._remote.ask("TOPIC.ERRORS", name.name, start, count, job)
        ]


def _check_size(size: int, hint: str) -> None:
    if size > REQUEST_BYTES_MAX:
        raise InvalidError(
            f"a request of {size:,} bytes; over a socket at most {REQUEST_BYTES_MAX:,} fit",
            hint=hint,
        )


def _truth(word: bytes) -> bool:
    return word == b"yes"


def _named(found: dict[bytes, Any]) -> dict[str, Any]:
    return {key.decode(): value for key, value in found.items()}


def _shard(found: dict[str, Any]) -> ShardInfo:
    for name in ("consumer", "owner"):
        found[name] = None if found[name] is None else found[name].decode()
    return ShardInfo(**{**found, "draining": _truth(found["draining"])})
