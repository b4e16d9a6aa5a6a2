"""The topic commands, run: a request and the broker's topics -> the bytes of a reply.

Contract     `run(request, topics, protocol, reply_bytes_max, gone)` awaits the answer and encodes
             it. Errors are PenstockErrors; who calls puts them on the wire. Messages that were
             polled for somebody who is `gone` by then, or that do not fit into the reply, are given
             back. SETTLE acknowledges the others, and exactly those, before the reply is sent.
Not here     the words of a command (topic_grammar.py), order and waiting (connection.py).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import assert_never

import msgspec

from penstock.broker.topicanswers import (
    ConsumerInfo,
    Part,
    Polled,
    Refs,
    ShardInfo,
    TopicError,
    TopicInfo,
    TopicStats,
)
from penstock.broker.topics import Topics
from penstock.codec.resp import Reply, Simple, bulk, encode
from penstock.errors import InvalidError, NotFoundError
from penstock.server.resp.topic_grammar import (
    AckMessages,
    Beat,
    ConfigureTopic,
    DropTopic,
    GiveBack,
    Join,
    Leave,
    PauseTopic,
    PlayTopic,
    Poll,
    Push,
    Rebalance,
    ReplayFrom,
    ShowErrors,
    ShowTopic,
    TopicNames,
    TopicRequest,
    reference_word,
)

_OK = Simple("OK")


async def run(
    request: TopicRequest,
    topics: Topics,
    protocol: int,
    reply_bytes_max: int,
    gone: Callable[[], bool] = lambda: False,
) -> bytes:
    match request:
        case Push(name, push, create, slots, one):
            offsets = await topics.push(name, push, create=create, slots=slots)
            if one:
                return b":%d\r\n" % offsets.start
            return b"*2\r\n:%d\r\n:%d\r\n" % (offsets.start, offsets.stop - 1)
        case Poll():
            return await _poll(request, topics, protocol, reply_bytes_max, gone)
        case AckMessages():
            return await _ack(request, topics, protocol)
        case _:
            reply = encode(await _run_small(request, topics), protocol)
            if len(reply) > reply_bytes_max:
                raise InvalidError(f"the reply would be larger than {reply_bytes_max:,} bytes")
            return reply


async def _run_small(
    request: Join | Beat | GiveBack | Leave | PauseTopic | PlayTopic | Rebalance | ReplayFrom
    | ConfigureTopic | DropTopic | TopicNames | ShowTopic | ShowErrors,
    topics: Topics,
) -> Reply:  # fmt: skip
    match request:
        case Join(name, consumer, heartbeat_ms, slots):
            joined = await topics.join(name, consumer, heartbeat_ms=heartbeat_ms, slots=slots)
            return {
                "token": joined.token,
                "slots": joined.slots,
                "heartbeat": joined.heartbeat_ms,
                "paused": _yes(joined.paused),
            }
        case Beat(name, consumer, token):
            beaten = await topics.beat(name, consumer, token)
            return {"paused": _yes(beaten.paused), "slots": beaten.slots, "epochs": beaten.epochs}
        case GiveBack(name, consumer, token, given):
            released = await topics.release(name, consumer, token, given)
            return [int(taken) for taken in released.taken]
        case Leave(name, consumer, token):
            return int(await topics.leave(name, consumer, token))
        case PauseTopic(name, block_ms):
            return int(await topics.pause(name, wait_ms=block_ms or 0))
        case PlayTopic(name):
            await topics.play(name)
            return _OK
        case Rebalance(name):
            return await topics.rebalance(name)
        case ReplayFrom(name, unit, start, end):
            replay = await topics.replay(name, start, end, unit=unit)
            return [replay.id, replay.first, replay.end]
        case ConfigureTopic(name, limits):
            if not limits:
                return _limits_map(await topics.describe(name))
            await topics.configure(name, **limits)
            return _OK
        case DropTopic(name):
            if not await topics.delete(name):
                raise NotFoundError(f"there is no topic {name.name.decode()!r}")
            return _OK
        case TopicNames(pattern):
            return await topics.names(pattern)
        case ShowTopic(name, what):
            match what:
                case "info":
                    return _info_map(await topics.describe(name))
                case "stats":
                    return _stats_map(await topics.stats(name))
                case "consumers":
                    return [_consumer_map(each) for each in await topics.consumers(name)]
                case "shards":
                    return [_shard_map(each) for each in await topics.shards(name)]
        case ShowErrors(name, start, count, job):
            return [_error_map(each) for each in await topics.errors(name, start, count, job=job)]
        case _:
            assert_never(request)


# ---- messages ---------------------------------------------------------------------------------


async def _poll(
    request: Poll, topics: Topics, protocol: int, reply_bytes_max: int, gone: Callable[[], bool]
) -> bytes:
    polled = await topics.poll(
        request.name,
        request.consumer,
        request.token,
        request.count,
        wait_ms=request.block_ms,
        done=request.done,
        alive=not request.packed,  # who packs beats by himself, while he waits too
    )
    reply = _polled_reply(polled, request, protocol)
    who = request.name, request.consumer, request.token
    if not gone() and len(reply) <= reply_bytes_max:
        if not request.settle or not polled.parts:
            return reply
        acked = await topics.ack(*who, _refs_of(polled))
        if all(acked.taken):
            return reply
        return _polled_reply(_chosen(polled, acked.taken), request, protocol)
    if polled.parts:
        await topics.release(*who, _refs_of(polled))
    if gone():
        return b""
    raise InvalidError(
        f"the messages would be larger than {reply_bytes_max:,} bytes", hint="poll fewer"
    )


def _polled_reply(polled: Polled, request: Poll, protocol: int) -> bytes:
    if request.packed:
        return bulk(msgspec.msgpack.encode(polled))
    return encode([each for part in polled.parts for each in _messages(part)], protocol)


def _chosen(polled: Polled, taken: list[bool]) -> Polled:
    """Without those that have moved on since: others get them."""
    parts: list[Part] = []
    for part in polled.parts:
        mine, taken = taken[: len(part.offsets)], taken[len(part.offsets) :]
        if any(mine):
            columns = {
                name: list(compress(getattr(part, name), mine))
                for name in ("offsets", "epochs", "slots", "keys", "data", "times_ms")
            }
            parts.append(msgspec.structs.replace(part, **columns))
    return msgspec.structs.replace(polled, parts=parts)


def _refs_of(polled: Polled) -> list[Refs]:
    return [Refs(part.offsets, part.epochs, part.job) for part in polled.parts]


def _messages(part: Part) -> list[Reply]:
    columns = zip(
        part.offsets, part.epochs, part.slots, part.keys, part.data, part.times_ms, strict=True
    )
    return [
        {
            "offset": offset,
            "ref": reference_word(offset, epoch, part.job),
            "slot": slot,
            "key": key or None,
            "data": data,
            "time": time_ms,
            "replay": part.job,
            "attempts": part.attempts.get(offset, 0),
        }
        for offset, epoch, slot, key, data, time_ms in columns
    ]


async def _ack(request: AckMessages, topics: Topics, protocol: int) -> bytes:
    settling = request.settling
    acked = await topics.ack(
        request.name,
        request.consumer,
        request.token,
        settling.done,
        failures=settling.failures,
        max_attempts=settling.max_attempts,
        tx=settling.tx,
    )
    if request.packed:
        return bulk(msgspec.msgpack.encode(acked))
    return encode([*map(int, acked.taken), *acked.failed], protocol)


# ---- showing ----------------------------------------------------------------------------------


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"


def _limits_map(info: TopicInfo) -> dict[str, Reply]:
    return {
        "maxlen": info.max_count or 0,
        "maxbytes": info.max_bytes or 0,
        "maxage": info.max_age_ms or 0,
    }


def _info_map(info: TopicInfo) -> dict[str, Reply]:
    head: dict[str, Reply] = {
        "name": info.name,
        "slots": info.slots,
        "created_at": info.created_ms,
    }
    return {**head, **_limits_map(info)}


def _stats_map(stats: TopicStats) -> dict[str, Reply]:
    found = msgspec.structs.asdict(stats)
    return {**found, "paused": _yes(stats.paused)}


def _consumer_map(info: ConsumerInfo) -> dict[str, Reply]:
    return {
        "id": info.id,
        "slots": info.slots,
        "last_seen": info.last_seen_ms,
        "zombie": _yes(info.zombie),
        "heartbeat": info.heartbeat_ms,
    }


def _shard_map(info: ShardInfo) -> dict[str, Reply]:
    found = msgspec.structs.asdict(info)
    return {**found, "draining": _yes(info.draining)}


def _error_map(error: TopicError) -> dict[str, Reply]:
    return {
        "offset": error.offset,
        "key": error.shard_key or None,
        "data": error.data,
        "time": error.time_ms,
        "consumer": error.consumer,
        "error": error.error,
        "attempts": error.attempts,
        "final": _yes(error.final),
        "replay": error.job,
    }
