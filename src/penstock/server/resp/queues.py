"""The queue commands, run: a request and the broker's queues -> the bytes of a reply.

Contract     `run(request, queues, protocol, reply_bytes_max, gone)` awaits the answer and encodes
             it. Errors are PenstockErrors; who calls puts them on the wire. Messages that were
             claimed for somebody who is `gone` by then, or that do not fit into the reply, are
             released: that counts no attempt.
Speed        Claimed messages are one format each. Measured with 100 messages of 100 bytes and two
             headers: 0.23 ms, against 1.4 ms with the generic encoder. ROWS is for clients that
             count: hiredis takes a fifteenth of the time for arrays that it takes for maps.
Not here     the words of a command (queue_grammar.py), order and waiting (connection.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import assert_never

import msgspec

from penstock.broker.queueanswers import FailedMessage, Page, QueueInfo, QueueMessage
from penstock.broker.queues import Queues
from penstock.codec.attempts import Attempt
from penstock.codec.resp import NULL, Reply, Simple, bulk, encode
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.queue.state import missing
from penstock.queue.stats import Stats
from penstock.server.resp.queue_grammar import (
    AckReceipts,
    Alter,
    Claim,
    Create,
    Describe,
    Drop,
    Extend,
    Fail,
    ListDone,
    ListFailed,
    Ls,
    Pause,
    Peek,
    Play,
    Publish,
    Purge,
    QueueRequest,
    Reclaiming,
    Redrive,
    Release,
    ShowAttempts,
    ShowStats,
    backoff_word,
)

_OK = Simple("OK")
#: How many done or failed messages one reply lists without a cursor.
LISTED_MAX = 100_000


async def run(
    request: QueueRequest,
    queues: Queues,
    protocol: int,
    reply_bytes_max: int,
    gone: Callable[[], bool] = lambda: False,
) -> bytes:
    match request:
        case Publish(items, one):
            ids = await queues.publish(items)
            return b":%d\r\n" % ids[0] if one else _integers(ids)
        case Claim():
            return await _claim(request, queues, protocol, reply_bytes_max, gone)
        case Peek(name, count):
            return encode_messages(await queues.peek(name, count), protocol, reply_bytes_max)[0]
        case AckReceipts(name, receipts):
            return _integers(await queues.ack(name, receipts))
        case Fail(name, receipts, delay_ms, reason):
            return _integers(await queues.fail(name, receipts, delay_ms=delay_ms, reason=reason))
        case Extend(name, receipts, lease_ms):
            return _integers(await queues.extend(name, receipts, lease_ms))
        case Release(name, receipts):
            return _integers(await queues.release(name, receipts))
        case _:
            return _bounded(encode(await _run_small(request, queues), protocol), reply_bytes_max)


async def _run_small(
    request: Create | Alter | Drop | Ls | Describe | ShowStats | Pause | Play | Purge | Reclaiming
    | ListDone | ListFailed | ShowAttempts | Redrive,
    queues: Queues,
) -> Reply:  # fmt: skip
    match request:
        case Create(name, options, start):
            await queues.create(name, start=start, **options)
            return _OK
        case Alter(name, options):
            await queues.alter(name, **options)
            return _OK
        case Drop(name):
            if not await queues.delete(name):
                raise missing(name)
            return _OK
        case Ls(pattern):
            return await queues.names(pattern)
        case Describe(name):
            return _info_map(await queues.describe(name))
        case ShowStats(name):
            return _stats_map(await queues.stats(name))
        case Pause(name):
            await queues.pause(name)
            return _OK
        case Play(name):
            await queues.play(name)
            return _OK
        case Purge(name, failed):
            return await queues.purge(name, failed=failed)
        case Reclaiming(reclaim):
            await queues.configure(reclaim=reclaim)
            return _OK
        case ListDone(name, cursor):
            return await _list(queues.done, name, cursor)
        case ListFailed(name, cursor):
            return await _list(queues.failed, name, cursor)
        case ShowAttempts(name, message_id):
            return [_attempt_map(each) for each in await queues.attempts(name, message_id)]
        case Redrive(name, ids, with_expired):
            redriven = await queues.redrive(name, ids)
            return [redriven.count, redriven.expired] if with_expired else redriven.count
        case _:
            assert_never(request)


def _integers(values: Sequence[int]) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join([b":%d\r\n" % value for value in values])


def _bounded(reply: bytes, reply_bytes_max: int) -> bytes:
    if len(reply) > reply_bytes_max:
        raise InvalidError(f"the reply would be larger than {reply_bytes_max:,} bytes")
    return reply


# ---- claiming ---------------------------------------------------------------------------------


async def _claim(
    request: Claim,
    queues: Queues,
    protocol: int,
    reply_bytes_max: int,
    gone: Callable[[], bool],
) -> bytes:
    messages = await queues.claim(
        request.name,
        request.count,
        wait_ms=request.block_ms,
        lease_ms=request.lease_ms,
        consumer=request.consumer,
    )
    limit = 0 if gone() else reply_bytes_max
    reply, count = encode_messages(messages, protocol, limit, rows=request.rows)
    if count < len(messages):
        await _release(queues, request.name, messages[count:])
        if gone():
            return b""
        if not count:
            raise InvalidError(f"a message is larger than {reply_bytes_max:,} bytes")
    return reply


async def _release(queues: Queues, name: LogName, messages: Sequence[QueueMessage]) -> None:
    await queues.release(name, [message.receipt for message in messages])


# ---- messages ---------------------------------------------------------------------------------


#: The fields of a message in order, each with the place for its value; %b comes encoded.
FIELDS = (
    ("id", b":%d\r\n"), ("payload", b"%b"), ("headers", b"%b"), ("priority", b":%d\r\n"),
    ("attempts", b":%d\r\n"), ("lease_deadline", b"%b"), ("receipt", b"%b"), ("uri", b"%b"),
    ("created_at", b":%d\r\n"), ("received_at", b":%d\r\n"), ("visible_at", b":%d\r\n"),
    ("claimed_at", b"%b"), ("dedup_id", b"%b"),
)  # fmt: skip


def _map_format(head: bytes) -> bytes:
    return head + b"".join(bulk(name.encode()) + place for name, place in FIELDS)


_MAPS = {
    2: _map_format(b"*%d\r\n" % (2 * len(FIELDS))),
    3: _map_format(b"%%%%%d\r\n" % len(FIELDS)),
}
_ROW = b"*%d\r\n" % len(FIELDS) + b"".join(place for _, place in FIELDS)
_NO_HEADERS = {2: b"*0\r\n", 3: b"%0\r\n"}


def encode_messages(
    messages: Sequence[QueueMessage], protocol: int, bytes_max: int, *, rows: bool = False
) -> tuple[bytes, int]:
    """As many as fit. -> the reply, and how many they are"""
    form = _ROW if rows else _MAPS[protocol]
    parts: list[bytes] = [b""]
    size = 0
    for message in messages:
        part = _encode_message(message, form, protocol)
        size += len(part)
        if size > bytes_max:
            break
        parts.append(part)
    count = len(parts) - 1
    parts[0] = b"*%d\r\n" % count
    return b"".join(parts), count


def _encode_message(message: QueueMessage, form: bytes, protocol: int) -> bytes:
    null = NULL[protocol]
    payload, uri = message.payload, message.uri
    claimed = bool(message.receipt)
    return form % (
        message.id,
        null if payload is None else b"$%d\r\n%b\r\n" % (len(payload), payload),
        _encode_headers(message.headers, protocol) if message.headers else _NO_HEADERS[protocol],
        message.priority,
        message.attempts,
        b":%d\r\n" % message.lease_deadline_ms if claimed else null,
        b"$%d\r\n%b\r\n" % (len(message.receipt), message.receipt.encode()) if claimed else null,
        null if uri is None else bulk(uri.encode()),
        message.created_at_ms,
        message.received_at_ms,
        message.visible_at_ms,
        b":%d\r\n" % message.claimed_at_ms if claimed else null,
        null if message.dedup_id is None else bulk(message.dedup_id.encode()),
    )


def _encode_headers(headers: Mapping[str, str], protocol: int) -> bytes:
    count = len(headers)
    parts = [b"%%%d\r\n" % count if protocol == 3 else b"*%d\r\n" % (2 * count)]
    for name, value in headers.items():
        key, item = name.encode(), value.encode()
        parts.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(item), item))
    return b"".join(parts)


# ---- showing ----------------------------------------------------------------------------------


def _info_map(info: QueueInfo) -> dict[str, Reply]:
    return {
        "name": info.name,
        "filter": info.filter,
        "priority": info.priority,
        "lease": info.lease_ms,
        "max_lease": info.max_lease_ms,
        "max_attempts": info.max_attempts,
        "backoff": backoff_word(info.backoff),
        "done_retention": info.done_retention_s,
        "paused": "yes" if info.paused else "no",
        "created_at": info.created_ms,
    }


def _stats_map(stats: Stats) -> dict[str, Reply]:
    found = msgspec.structs.asdict(stats)
    del found["more"]  # the broker has asked until there was no more
    for flag in ("paused", "backfilling"):
        found[flag] = "yes" if found[flag] else "no"
    return found


async def _list(
    pages: Callable[[LogName, int], Awaitable[Page]], name: LogName, cursor: int | None
) -> list[Reply]:
    """Everything; with a cursor as SCAN: the one to go on with, 0 at the end, and what was found.
    What is too much for one reply is refused when it is encoded."""
    if cursor is not None:
        page = await pages(name, cursor)
        return [page.next or 0, _messages(page)]
    found: list[Reply] = []
    after: int | None = 0
    while after is not None:
        page = await pages(name, after)
        found += _messages(page)
        if len(found) > LISTED_MAX:
            raise InvalidError(
                f"there are more than {LISTED_MAX:,} messages", hint="give a cursor, 0 at first"
            )
        after = page.next
    return found


def _messages(page: Page) -> list[Reply]:
    return [
        _failed_map(message)
        if isinstance(message, FailedMessage)
        else {"id": message.id, "done_at": message.done_at_ms, "attempts": message.attempts}
        for message in page.messages
    ]


def _failed_map(message: FailedMessage) -> dict[str, Reply]:
    return {
        "id": message.id,
        "failed_at": message.failed_at_ms,
        "attempts": message.attempts,
        "priority": message.priority,
        "payload": message.payload,
        "uri": message.uri,
        "headers": message.headers,
        "history": [_attempt_map(each) for each in message.history],
    }


def _attempt_map(attempt: Attempt) -> dict[str, Reply]:
    return {
        "consumer": attempt.consumer,
        "time": attempt.ended_at_ms,
        "ending": attempt.ending.name.lower(),
        "reason": attempt.reason,
    }
