"""The queues of a broker behind a socket: the methods of `broker.queues.Queues`, as RESP requests.

Contract     As remote.py. A claim that waits has a connection of its own: when its caller gives up,
             that connection ends, and what was claimed in this moment is released by the broker.
Chunks       Lists that would exceed a frame are sent in several requests, one after the other. So a
             batch of more than REQUEST_BYTES is not all or nothing: what came before a failure is
             published. What is wrong with a message is found before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from penstock.broker.queueanswers import (
    DoneMessage,
    FailedMessage,
    Page,
    QueueInfo,
    QueueMessage,
)
from penstock.codec.attempts import Attempt, Ending
from penstock.errors import NotFoundError
from penstock.log.catalogue import LogName
from penstock.queue.backoff import Backoff, check_backoff
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.lists import Redriven
from penstock.queue.stats import Stats
from penstock.server.resp.queue_grammar import backoff_of, backoff_word

#: One request stays below these, unless a single message is larger; a frame may have 128 MiB and a
#: million words.
REQUEST_BYTES = 32 << 20
REQUEST_WORDS = 200_000

Argument = str | bytes | int


class Asking(Protocol):
    """What of a Remote is used here."""

    async def ask(self, *request: Argument) -> Any: ...

    async def ask_waiting(self, block_ms: int | None, *request: Argument) -> Any: ...


_SETTINGS = {
    "filter": "FILTER",
    "priority": "PRIORITY",
    "lease_ms": "LEASE",
    "max_lease_ms": "MAXLEASE",
    "max_attempts": "MAXATTEMPTS",
    "done_retention_s": "DONERETENTION",
}


class RemoteQueues:
    def __init__(self, remote: Asking) -> None:
        self._remote = remote

    # -- setting up

    async def create(
        self, name: LogName, *, start: Literal["first", "new"] = "new", **options: Any
    ) -> None:
        words = _setting_words(options)
        await self._remote.ask("QUEUE.CREATE", name.name, *words, "START", start)

    async def alter(self, name: LogName, **options: Any) -> None:
        await self._remote.ask("QUEUE.ALTER", name.name, *_setting_words(options))

    async def delete(self, name: LogName) -> bool:
        try:
            await self._remote.ask("QUEUE.DEL", name.name)
        except NotFoundError:
            return False
        return True

    async def names(self, pattern: str = "*") -> list[str]:
        return [name.decode() for name in await self._remote.ask("QUEUE.LS", pattern)]

    async def describe(self, name: LogName) -> QueueInfo:
        found = await self._remote.ask("QUEUE.INFO", name.name)
        return QueueInfo(
            name=found[b"name"].decode(),
            filter=_text(found[b"filter"]),
            priority=_text(found[b"priority"]),
            lease_ms=found[b"lease"],
            max_lease_ms=found[b"max_lease"],
            max_attempts=found[b"max_attempts"],
            backoff=backoff_of(found[b"backoff"]) or Backoff(),
            done_retention_s=found[b"done_retention"],
            paused=found[b"paused"] == b"yes",
            created_ms=found[b"created_at"],
        )

    async def stats(self, name: LogName) -> Stats:
        found = await self._remote.ask("QUEUE.STATS", name.name)
        flags = {key: found.pop(key) == b"yes" for key in (b"paused", b"backfilling")}
        known = {key.decode(): value for key, value in {**found, **flags}.items()}
        return Stats(**{key: known[key] for key in Stats.__struct_fields__ if key in known})

    async def pause(self, name: LogName) -> None:
        await self._remote.ask("QUEUE.PAUSE", name.name)

    async def play(self, name: LogName) -> None:
        await self._remote.ask("QUEUE.PLAY", name.name)

    async def purge(self, name: LogName, *, failed: bool = False) -> int:
        return int(await self._remote.ask("QUEUE.PURGE", name.name, *["FAILED"] * failed))

    async def configure(self, *, reclaim: Literal["done", "retention"]) -> None:
        await self._remote.ask("QUEUE.CONFIG", "RECLAIM", reclaim)

    # -- producers

    async def publish(self, items: Sequence[Item]) -> list[int]:
        requests = list(_publish_requests(items))
        if len(requests) > 1:
            # Else the broker would find out with some of them published.
            PreparedBatch([msgspec.structs.replace(item, payload=b"") for item in items])
        ids: list[int] = []
        for request in requests:
            ids += await self._remote.ask(*request)
        return ids

    # -- consumers

    async def claim(
        self,
        name: LogName,
        count: int,
        *,
        wait_ms: int | None = 0,
        lease_ms: int | None = None,
        consumer: str | None = None,
    ) -> list[QueueMessage]:
        request: list[Argument] = ["QUEUE.CLAIM", name.name, count]
        if wait_ms != 0:
            request += ["WAIT", "inf" if wait_ms is None else wait_ms]
        if lease_ms is not None:
            request += ["LEASE", lease_ms]
        if consumer is not None:
            request += ["CONSUMER", consumer]
        request.append("ROWS")
        return [_message(*row) for row in await self._remote.ask_waiting(wait_ms, *request)]

    async def peek(self, name: LogName, count: int) -> list[QueueMessage]:
        found = await self._remote.ask("QUEUE.PEEK", name.name, count)
        return [_message(*row.values()) for row in found]  # a map has the order of a row

    async def ack(self, name: LogName, receipts: Sequence[str]) -> list[bool]:
        return await self._settle(receipts, "QUEUE.ACK", name.name)

    async def fail(
        self,
        name: LogName,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> list[bool]:
        delay = () if delay_ms is None else ("DELAY", delay_ms)
        return await self._settle(receipts, "QUEUE.FAIL", name.name, *delay, "REASON", reason)

    async def extend(self, name: LogName, receipts: Sequence[str], lease_ms: int) -> list[bool]:
        return await self._settle(receipts, "QUEUE.EXTEND", name.name, lease_ms)

    async def release(self, name: LogName, receipts: Sequence[str]) -> list[bool]:
        return await self._settle(receipts, "QUEUE.RELEASE", name.name)

    async def _settle(self, receipts: Sequence[str], *head: Argument) -> list[bool]:
        found: list[bool] = []
        for at in range(0, len(receipts), REQUEST_WORDS):
            part = receipts[at : at + REQUEST_WORDS]
            found += map(bool, await self._remote.ask(*head, *part))
        return found

    # -- lists

    async def done(self, name: LogName, after: int = 0) -> Page:
        following, rows = await self._remote.ask("QUEUE.DONE", name.name, after)
        messages = [DoneMessage(row[b"id"], row[b"done_at"], row[b"attempts"]) for row in rows]
        return Page(messages, following or None)

    async def failed(self, name: LogName, after: int = 0) -> Page:
        following, rows = await self._remote.ask("QUEUE.FAILED", name.name, after)
        messages = [
            FailedMessage(
                id=row[b"id"],
                failed_at_ms=row[b"failed_at"],
                attempts=row[b"attempts"],
                priority=row[b"priority"],
                payload=row[b"payload"],
                uri=_text(row[b"uri"]),
                headers=_headers(row[b"headers"]),
                history=tuple(map(_attempt, row[b"history"])),
            )
            for row in rows
        ]
        return Page(messages, following or None)

    async def attempts(self, name: LogName, message_id: int) -> tuple[Attempt, ...]:
        rows = await self._remote.ask("QUEUE.ATTEMPTS", name.name, message_id)
        return tuple(map(_attempt, rows))

    async def redrive(self, name: LogName, ids: Collection[int] | None = None) -> Redriven:
        chosen = None if ids is None else list(ids)
        parts = (
            [()]
            if chosen is None
            else [chosen[at : at + REQUEST_WORDS] for at in range(0, len(chosen), REQUEST_WORDS)]
        )
        count = expired = 0
        for part in parts:
            more, old = await self._remote.ask("QUEUE.REDRIVE", name.name, "WITHEXPIRED", *part)
            count += more
            expired += old
        return Redriven(count, expired, None)


# ---- words ------------------------------------------------------------------------------------


def _setting_words(options: Mapping[str, Any]) -> list[Argument]:
    words: list[Argument] = []
    for key, value in options.items():
        if key == "backoff":
            policy = "default" if value is None else backoff_word(check_backoff(value))
            words += ["BACKOFF", policy]
        else:
            words += [_SETTINGS[key], "" if value is None else value]
    return words


def _publish_requests(items: Sequence[Item]) -> Iterator[list[Argument]]:
    request: list[Argument] = ["QUEUE.PUBLISHMANY"]
    size = 0
    for item in items:
        words = _item_words(item)
        more = sum(len(word) if isinstance(word, str | bytes) else 0 for word in words)
        more += 16 * len(words)
        if size and (size + more > REQUEST_BYTES or len(request) + len(words) > REQUEST_WORDS):
            yield request
            request, size = ["QUEUE.PUBLISHMANY"], 0
        request += words
        size += more
    if size:
        yield request


def _item_words(item: Item) -> list[Argument]:
    words: list[Argument] = ["PAYLOAD", item.payload] if item.uri is None else ["URI", item.uri]
    if item.to is not None:
        words += ["TO", item.to]
    if item.delay_ms:
        words += ["DELAY", item.delay_ms]
    if item.visible_at_ms is not None:
        words += ["VISIBLE", item.visible_at_ms]
    if item.retention_s:
        words += ["RETENTION", item.retention_s]
    if item.dedup_id is not None:
        words += ["DEDUP", item.dedup_id]
    if item.created_at_ms is not None:
        words += ["CREATED", item.created_at_ms]
    if item.headers:
        words += ["HEADERS", len(item.headers)]
        for pair in item.headers.items():
            words += pair
    return words


# ---- replies ----------------------------------------------------------------------------------


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()


def _headers(found: dict[bytes, bytes]) -> Mapping[str, str]:
    """Each message its own: whoever gets it may change it."""
    return {key.decode(): value.decode() for key, value in found.items()}


def _message(
    number: int,
    payload: bytes | None,
    headers: dict[bytes, bytes],
    priority: int,
    attempts: int,
    lease_deadline_ms: int | None,
    receipt: bytes | None,
    uri: bytes | None,
    created_at_ms: int,
    received_at_ms: int,
    visible_at_ms: int,
    claimed_at_ms: int | None,
    dedup_id: bytes | None,
) -> QueueMessage:
    return QueueMessage(
        number,
        payload,
        None if uri is None else uri.decode(),
        _headers(headers) if headers else {},
        priority,
        attempts,
        created_at_ms,
        received_at_ms,
        visible_at_ms,
        claimed_at_ms or 0,
        lease_deadline_ms or 0,
        "" if receipt is None else receipt.decode(),
        None if dedup_id is None else dedup_id.decode(),
    )


def _attempt(row: dict[bytes, Any]) -> Attempt:
    return Attempt(
        row[b"consumer"].decode(),
        row[b"time"],
        Ending[row[b"ending"].decode().upper()],
        row[b"reason"].decode(),
    )
