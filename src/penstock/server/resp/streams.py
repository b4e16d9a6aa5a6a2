"""The stream commands, run: a request and the broker's streams -> the bytes of a reply.

Contract     `run(request, streams, protocol, reply_bytes_max)` awaits the answer and encodes it; a
             long one comes as what is still to be awaited, so that nobody takes the encoding for
             the wait. `post` begins what needs one commit alone, without a task. Errors are
             PenstockErrors; who calls puts them on the wire. Entries go from the node's columns to
             the reply without an object each.
Bounds       A plain read is asked for in steps, and one that would exceed `reply_bytes_max` is
             refused: a client that asks for everything must not take the server's memory, nor its
             time: others have their turn between two steps.
Not here     the words of a command (grammar.py), order and waiting (connection.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, assert_never

from penstock.broker.answers import FoundByGroup, FoundNodes, StreamInfo
from penstock.broker.groups import found_at_once
from penstock.broker.streams import Streams
from penstock.clock import give_way
from penstock.codec.node import Body, Node
from penstock.codec.resp import (
    NULL,
    Reply,
    Simple,
    bulk,
    encode,
    encode_entries,
    encode_full_entries,
)
from penstock.errors import InvalidError
from penstock.log.batch import build_columns
from penstock.log.catalogue import LogName
from penstock.log.joint import may_post
from penstock.log.read import Piece
from penstock.server.resp.grammar import (
    Ack,
    Configure,
    CountNames,
    Delete,
    Evict,
    Exists,
    GroupCreate,
    GroupDestroy,
    GroupPending,
    GroupSet,
    GroupShow,
    Info,
    Length,
    Names,
    Read,
    ReadGroup,
    Request,
    ShowConfig,
    Type,
    Write,
)
from penstock.stream.config import StreamConfig
from penstock.stream.deliver import Delivered
from penstock.stream.groups import GroupInfo

_OK = Simple("OK")
#: The first step of a read, and what later ones aim at.
STEP_ENTRIES = 1000
STEP_BYTES = 8 << 20
STEP_ENTRIES_MAX = 32 * STEP_ENTRIES


#: A reply, or what makes it in several turns.
Encoded = bytes | Coroutine[Any, Any, bytes]
#: What a commit answered -> the reply.
Finish = Callable[[Any], Encoded]


def post(
    request: Request, streams: Streams, protocol: int
) -> tuple[asyncio.Future[list[Any]] | Coroutine[Any, Any, list[Any]], Finish] | None:
    """Begin a request whose answer is that of one commit; None: it is another one. A large write
    takes several, and is to be awaited."""
    match request:
        case Write():
            return _post_write(request, streams), partial(_encode_written, request)
        case ReadGroup(block_ms=0):
            look = _Look(request, streams, protocol)
            looked = streams.post_read_group(
                request.name,
                request.group,
                request.count,
                retry_ms=request.retry_ms,
                expire_ms=request.expire_ms,
                start=request.start,
                meanwhile=look.make_ready,
            )
            return looked, look.finish
        case Ack(name, group, named):
            return streams.post_ack(name, group, named), _encode_acked
    return None


async def finished(answer: Awaitable[list[Any]], finish: Finish) -> bytes:
    return await whole(finish(await answer))


async def whole(encoded: Encoded) -> bytes:
    return encoded if isinstance(encoded, bytes) else await encoded


async def run(request: Request, streams: Streams, protocol: int, reply_bytes_max: int) -> Encoded:
    posted = post(request, streams, protocol)
    if posted is not None:
        return await finished(*posted)
    match request:
        case Read():
            if request.raw:
                return await _read_raw(request, streams, reply_bytes_max)
            return await _read(request, streams, protocol, reply_bytes_max)
        case ReadGroup():
            return _encode_group(await _read_group(request, streams), request, protocol)
        case Write() | Ack():
            raise AssertionError("these are posted")
        case _:
            return encode(await _run_small(request, streams), protocol)


async def _run_small(
    request: Evict | GroupCreate | GroupSet | GroupShow | GroupPending | GroupDestroy
    | Configure | ShowConfig | Info | Length | Names | Delete | Exists | Type | CountNames,
    streams: Streams,
) -> Reply:  # fmt: skip
    match request:
        case Evict(name, up_to, keep):
            return await streams.evict(name, up_to=up_to, keep=keep)
        case GroupCreate(name, group, start, max_pending, dead):
            await streams.group_create(name, group, start=start, max_pending=max_pending, dead=dead)
            return _OK
        case GroupSet(name, group, offset):
            await streams.group_set(name, group, offset)
            return _OK
        case GroupShow(name, wanted):
            if wanted is None:
                return [_group_map(info) for info in await streams.groups(name)]
            return _group_map(await streams.group_info(name, wanted))
        case GroupPending(name, group, start, count):
            return [
                [entry.offset, entry.retry_ms, entry.expire_ms or 0, entry.deliveries]
                for entry in await streams.group_pending(name, group, start, count)
            ]
        case GroupDestroy(name, group):
            return int(await streams.group_destroy(name, group))
        case Configure(name, options):
            await streams.configure(name, **options)
            return _OK
        case ShowConfig(name):
            return _config_map((await streams.info(name)).config)
        case Info(name):
            return _info_map(await streams.info(name))
        case Length(name):
            return (await streams.info(name)).length
        case Names(pattern):
            return await streams.names(pattern)
        case Delete(names):
            return sum([int(await streams.delete(name)) for name in names])
        case Exists(names):
            return sum([await _exists(streams, name) for name in names])
        case Type(name):
            return Simple("stream" if await _exists(streams, name) else "none")
        case CountNames():
            return len(await streams.names("*"))
        case _:
            assert_never(request)


async def _exists(streams: Streams, name: LogName) -> bool:
    await give_way()  # this waits for nothing, and there may be a million of them
    return (await streams.info(name)).created_ms is not None


# ---- writing ----------------------------------------------------------------------------------


def _bodies(request: Write) -> list[Body]:
    # Most entries have no tag, and a column of nothing is no column.
    tags = request.tags if any(request.tags) else None
    return build_columns(request.data, tags=tags, metas=request.metas)


def _post_write(
    request: Write, streams: Streams
) -> asyncio.Future[list[range]] | Coroutine[Any, Any, list[range]]:
    if request.simple and may_post(request.tags[0], request.data[0]):
        return streams.post(request.name, request.tags[0], request.data[0])
    return streams.post_write(
        request.name,
        _bodies(request),
        backlog=request.backlog,
        producer=request.producer,
        sequence=request.sequence,
    )


def _encode_written(request: Write, replies: list[range]) -> bytes:
    offsets = replies[0]
    if request.simple:
        return b":%d\r\n" % offsets.start
    return b"*2\r\n:%d\r\n:%d\r\n" % (offsets.start, offsets.stop - 1)


# ---- reading ----------------------------------------------------------------------------------


async def _read(request: Read, streams: Streams, protocol: int, reply_bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = found_count = 0
    offset, left, step = request.offset, request.count, min(request.count, STEP_ENTRIES)
    block_ms = request.block_ms
    info: StreamInfo | None = None
    while True:
        found = await streams.read_nodes(
            request.name, offset, step, reverse=request.reverse, block_ms=block_ms
        )
        info = info or found.info
        more = _encode_found(found, request, protocol)
        parts += more
        size += sum(map(len, more))
        _check_size(size, reply_bytes_max)
        got = found.high - found.low
        found_count += got
        left -= got
        if got < step or not left:
            break
        offset = found.low - 1 if request.reverse else found.high
        if offset < 0:
            break
        step = min(left, STEP_ENTRIES_MAX, max(1, STEP_BYTES * found_count // max(size, 1)))
        block_ms = 0
        await give_way()  # a long read is not everybody's
    head = b"*%d\r\n" % (found_count + request.withinfo)
    if request.withinfo:
        head += _encode_edges(info.first, info.last)
    return b"".join((head, *parts))


def _check_size(size: int, reply_bytes_max: int) -> None:
    if size > reply_bytes_max:
        raise InvalidError(
            f"the reply would be larger than {reply_bytes_max:,} bytes",
            hint="ask for fewer entries at a time",
        )


def _encode_edges(low: int, high: int) -> bytes:
    return b"*2\r\n:%d\r\n:%d\r\n" % (low, high)


def _encode_found(found: FoundNodes, request: Read, protocol: int) -> list[bytes]:
    """One element per offset; several of them may share a part, unless the order is reversed and
    they differ."""
    null = NULL[protocol]
    parts: list[bytes] = []
    at = found.low
    for node, start, stop in found.pieces:
        # What no piece covers was evicted.
        parts.append(null * (node.first + start - at))
        if request.reverse or node.alive() is not None:
            parts += _encode_each(node, start, stop, request.full, protocol)
        else:
            parts.append(_encode_columns(node, start, stop, request.full, protocol))
        at = node.first + stop
    parts.append(null * (found.high - at))
    if request.reverse:
        parts.reverse()
    return parts


def _encode_columns(node: Node, start: int, stop: int, full: bool, protocol: int) -> bytes:
    first, data = node.first + start, node.data_list(start, stop)
    if not full:
        return encode_entries(first, node.tag_list(start, stop) if node.tags else None, data)
    tags = node.tag_list(start, stop)
    times, metas = node.time_list(start, stop), node.meta_list(start, stop)
    return encode_full_entries(first, tags, data, times, metas, protocol)


def _encode_each(node: Node, start: int, stop: int, full: bool, protocol: int) -> list[bytes]:
    alive = node.alive()
    return [
        _encode_columns(node, i, i + 1, full, protocol)
        if alive is None or alive[i]
        else NULL[protocol]
        for i in range(start, stop)
    ]


async def _read_raw(request: Read, streams: Streams, reply_bytes_max: int) -> bytes:
    found = await streams.read_nodes(
        request.name,
        request.offset,
        request.count,
        reverse=request.reverse,
        block_ms=request.block_ms,
    )
    parts = [
        b"*%d\r\n" % (2 + len(found.pieces)),
        _encode_edges(found.info.first, found.info.last),
        _encode_edges(found.low, found.high),
    ]
    size = 0
    for node, start, stop in found.pieces:
        value = node.value()
        size += len(value)
        _check_size(size, reply_bytes_max)
        parts += (b"*3\r\n", bulk(value), b":%d\r\n:%d\r\n" % (start, stop))
    return b"".join(parts)


async def _read_group(request: ReadGroup, streams: Streams) -> FoundByGroup:
    return await streams.read_group_nodes(
        request.name,
        request.group,
        request.count,
        block_ms=request.block_ms,
        retry_ms=request.retry_ms,
        expire_ms=request.expire_ms,
        start=request.start,
    )


class _Look:
    """One look of a group. Its reply is encoded while its commit is on the way to the disk."""

    __slots__ = ("_protocol", "_ready", "_request", "_streams")

    def __init__(self, request: ReadGroup, streams: Streams, protocol: int) -> None:
        self._request = request
        self._streams = streams
        self._protocol = protocol
        self._ready: Encoded | None = None

    def make_ready(self, replies: list[Delivered]) -> None:
        if 0 < replies[0].count <= STEP_ENTRIES:
            self._ready = self._encode(replies)

    def finish(self, replies: list[Delivered]) -> Encoded:
        return self._encode(replies) if self._ready is None else self._ready

    def _encode(self, replies: list[Delivered]) -> Encoded:
        found = found_at_once(replies[0], self._request.start)
        if found is None:
            return _look_again(self._request, self._streams, self._protocol)
        return _encode_group(found, self._request, self._protocol)


async def _look_again(request: ReadGroup, streams: Streams, protocol: int) -> bytes:
    return await whole(_encode_group(await _read_group(request, streams), request, protocol))


def _encode_group(found: FoundByGroup, request: ReadGroup, protocol: int) -> Encoded:
    count = found.count
    head = b"*%d\r\n" % (count + request.withinfo)
    if request.withinfo:
        head += _encode_edges(found.info.first, found.info.last)
    if count > STEP_ENTRIES:
        return _encode_in_steps(head, found.pieces, request.full, protocol)
    pieces = [_encode_columns(*piece, request.full, protocol) for piece in found.pieces]
    return b"".join((head, *pieces))


async def _encode_in_steps(head: bytes, pieces: list[Piece], full: bool, protocol: int) -> bytes:
    """What was delivered is whole, however much it is: but others have their turn meanwhile."""
    parts = [head]
    encoded = 0
    for node, start, stop in pieces:
        if encoded >= STEP_ENTRIES:
            encoded = 0
            await give_way()
        parts.append(_encode_columns(node, start, stop, full, protocol))
        encoded += stop - start
    return b"".join(parts)


def _encode_acked(replies: list[int]) -> bytes:
    return b":%d\r\n" % replies[0]


# ---- showing ----------------------------------------------------------------------------------


def _info_map(info: StreamInfo) -> dict[str, Reply]:
    return {
        "first": info.first,
        "last": info.last,
        "length": info.length,
        "bytes": info.bytes,
        "created_at": info.created_ms,
        "groups": info.groups,
        **_config_map(info.config),
    }


def _config_map(config: StreamConfig) -> dict[str, Reply]:
    """0 is no limit, as it is when it is set."""
    return {
        "maxlen": config.max_count or 0,
        "maxbytes": config.max_bytes or 0,
        "maxage": config.max_age_ms or 0,
        "compact": "yes" if config.compact else "no",
    }


def _group_map(info: GroupInfo) -> dict[str, Reply]:
    return {
        "name": info.name,
        "last_offset": info.last_offset,
        "ack_offset": info.ack_offset,
        "pending": info.pending,
        "expired": info.expired,
        "skipped": info.skipped,
        "max_pending": info.max_pending,
        "dead": info.dead,
    }
