"""The queue commands as they are written: words -> frozen requests. Pure.

Contract     As in grammar.py. Names, SQL, headers, receipts and ids of any kind are UTF-8 text;
             payloads are bytes. Durations are milliseconds, retentions seconds, times milliseconds
             since 1970. WAIT 0 does not wait, WAIT inf waits for ever.
Messages     In QUEUE.PUBLISHMANY each message begins with PAYLOAD or URI, and its options follow:
             no payload can be taken for an option.
Not here     arity (queue_commands.py), running a request (queues.py), limits of what is stored
             (queue/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import msgspec

from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.queue.backoff import Backoff, fixed
from penstock.queue.item import Bare, Item
from penstock.queue.state import queue_name
from penstock.server.resp.words import Words, number, shown, text


class Create(msgspec.Struct, frozen=True):
    name: LogName
    options: dict[str, Any]
    start: Literal["first", "new"] = "new"


class Alter(msgspec.Struct, frozen=True):
    name: LogName
    options: dict[str, Any]


class Drop(msgspec.Struct, frozen=True):
    name: LogName


class Ls(msgspec.Struct, frozen=True):
    pattern: str


class Describe(msgspec.Struct, frozen=True):
    name: LogName


class ShowStats(msgspec.Struct, frozen=True):
    name: LogName


class Pause(msgspec.Struct, frozen=True):
    name: LogName


class Play(msgspec.Struct, frozen=True):
    name: LogName


class Purge(msgspec.Struct, frozen=True):
    name: LogName
    failed: bool = False


class Reclaiming(msgspec.Struct, frozen=True):
    reclaim: Literal["done", "retention"]


class Publish(msgspec.Struct, frozen=True):
    items: Sequence[Item]
    one: bool = False  # the reply is one id


class Claim(msgspec.Struct, frozen=True):
    name: LogName
    count: int
    block_ms: int | None = 0  # 0: does not wait; None: for ever
    lease_ms: int | None = None
    consumer: str | None = None
    rows: bool = False  # messages as arrays, without the names of their fields


class Peek(msgspec.Struct, frozen=True):
    name: LogName
    count: int


class AckReceipts(msgspec.Struct, frozen=True):
    name: LogName
    receipts: list[str]


class Fail(msgspec.Struct, frozen=True):
    name: LogName
    receipts: list[str]
    delay_ms: int | None = None
    reason: str = ""


class Extend(msgspec.Struct, frozen=True):
    name: LogName
    receipts: list[str]
    lease_ms: int


class Release(msgspec.Struct, frozen=True):
    name: LogName
    receipts: list[str]


class ListDone(msgspec.Struct, frozen=True):
    name: LogName
    cursor: int | None = None  # None: everything


class ListFailed(msgspec.Struct, frozen=True):
    name: LogName
    cursor: int | None = None  # None: everything


class ShowAttempts(msgspec.Struct, frozen=True):
    name: LogName
    id: int


class Redrive(msgspec.Struct, frozen=True):
    name: LogName
    ids: list[int] | None = None  # None: all
    with_expired: bool = False


QueueRequest = (
    Create | Alter | Drop | Ls | Describe | ShowStats | Pause | Play | Purge | Reclaiming | Publish
    | Claim | Peek | AckReceipts | Fail | Extend | Release | ListDone | ListFailed | ShowAttempts
    | Redrive
)  # fmt: skip


# ---- words ------------------------------------------------------------------------------------


@lru_cache(1024)
def queue_of(word: bytes) -> LogName:
    return queue_name(text(word, "a queue's name"))


def _receipts(words: list[bytes]) -> list[str]:
    # Whatever is no receipt is a stale one; latin-1 reads any bytes.
    return [word.decode("latin-1") for word in words]


def backoff_of(word: bytes) -> Backoff | None:
    """500 | default | base=500,factor=2,cap=60000,jitter=0.5 ; None is the default"""
    if word.lower() == b"default":
        return None
    if word.isdigit():
        return fixed(number(word, "BACKOFF") / 1000)
    parts: dict[str, float] = {}
    for part in shown(word[:200]).split(","):
        key, equals, value = part.strip().lower().partition("=")
        if not equals or key not in ("base", "factor", "cap", "jitter") or key in parts:
            raise InvalidError(
                f"BACKOFF is milliseconds or a policy, not '{shown(word[:64])}'",
                hint="BACKOFF 500, BACKOFF default, or BACKOFF base=1000,factor=2,cap=300000,"
                "jitter=0.5",
            )
        try:
            # Decimal: what `backoff_word` multiplied comes back as it was.
            parts[key] = float(Decimal(value) / (1000 if key in ("base", "cap") else 1))
        except (ValueError, ArithmeticError):
            raise InvalidError(
                f"BACKOFF: {key} is a number, not '{value}'", hint="BACKOFF base=1000,factor=2"
            ) from None
    return Backoff(**parts)


def backoff_word(backoff: Backoff) -> str:
    """What `backoff_of` reads."""
    base, cap = (f"{Decimal(repr(each)) * 1000:f}" for each in (backoff.base, backoff.cap))
    return f"base={base},factor={backoff.factor!r},cap={cap},jitter={backoff.jitter!r}"


# ---- queues as such ---------------------------------------------------------------------------

_NUMBERS = {
    b"LEASE": "lease_ms",
    b"MAXLEASE": "max_lease_ms",
    b"MAXATTEMPTS": "max_attempts",
    b"DONERETENTION": "done_retention_s",
}


def _settings(rest: Words, *, start: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    while rest.more():
        option = rest.option()
        what = shown(option[:32])
        if option in (b"FILTER", b"PRIORITY"):
            options[what.lower()] = text(rest.take(f"the SQL of {what}"), what) or None
        elif option in _NUMBERS:
            options[_NUMBERS[option]] = number(rest.take(f"the value of {what}"), what)
        elif option == b"BACKOFF":
            options["backoff"] = backoff_of(rest.take("the policy of BACKOFF"))
        elif option == b"START" and start:
            place = rest.take("first or new after START").lower()
            if place not in (b"first", b"new"):
                raise rest.wrong("START is first or new")
            options["start"] = place.decode()
        else:
            raise rest.unknown()
    return options


def parse_create(words: list[bytes]) -> Create:
    options = _settings(Words(words, 2), start=True)
    start = options.pop("start", "new")
    return Create(queue_of(words[1]), options, start)


def parse_alter(words: list[bytes]) -> Alter:
    return Alter(queue_of(words[1]), _settings(Words(words, 2), start=False))


def parse_ls(words: list[bytes]) -> Ls:
    rest = Words(words, 1)
    pattern = text(rest.take("the pattern"), "a pattern") if rest.more() else "*"
    rest.end()
    return Ls(pattern)


def parse_purge(words: list[bytes]) -> Purge:
    rest = Words(words, 2)
    failed = rest.has(b"FAILED")
    rest.end()
    return Purge(queue_of(words[1]), failed)


def parse_reclaim(words: list[bytes]) -> Reclaiming:
    rest = Words(words, 1)
    if rest.option() != b"RECLAIM":
        raise rest.unknown()
    match rest.take("done or retention").lower():
        case b"done":
            return Reclaiming("done")
        case b"retention":
            return Reclaiming("retention")
        case _:
            raise rest.wrong("RECLAIM is done or retention")


# ---- producers --------------------------------------------------------------------------------


def _message(rest: Words, payload: bytes, *, uri: bool, one: bool) -> Item:
    """The options of one message, up to the end or to where the next one begins."""
    rest.seen.clear()
    found: dict[str, Any] = {}
    while rest.more() and (one or rest.words[rest.at].upper() not in _BEGINNINGS):
        option = rest.option()
        what = shown(option[:32])
        if option == b"TO":
            found["to"] = text(rest.take("the queue of TO"), "a queue's name")
        elif option == b"DEDUP":
            found["dedup_id"] = text(rest.take("the id of DEDUP"), "a dedup id")
        elif option == b"HEADERS":
            found["headers"] = _headers(rest)
        elif option in _MESSAGE_NUMBERS:
            found[_MESSAGE_NUMBERS[option]] = number(rest.take(f"the value of {what}"), what)
        elif option == b"URI":
            uri = True
        else:
            raise rest.unknown()
    if "delay_ms" in found and "visible_at_ms" in found:
        raise rest.wrong("a message has DELAY or VISIBLE, not both")
    if uri:
        return Item(uri=text(payload, "a URI"), **found)
    return Item(payload, **found)


_BEGINNINGS = (b"PAYLOAD", b"URI")
_MESSAGE_NUMBERS = {
    b"DELAY": "delay_ms",
    b"VISIBLE": "visible_at_ms",
    b"RETENTION": "retention_s",
    b"CREATED": "created_at_ms",
}


def _headers(rest: Words) -> dict[str, str]:
    # A count from outside: it is compared with what is there, never multiplied into memory.
    count = number(rest.take("the count of HEADERS"), "HEADERS", high=len(rest.words))
    words = rest.take_many(2 * count, "a name or value of HEADERS")
    try:
        found = dict(
            zip(map(bytes.decode, words[::2]), map(bytes.decode, words[1::2]), strict=True)
        )
    except UnicodeDecodeError as error:
        raise InvalidError(f"a header is not valid UTF-8: {error.object[:64]!r}") from None
    if len(found) < count:
        raise rest.wrong("a header is given twice")
    return found


def parse_publish(words: list[bytes]) -> Publish:
    return Publish([_message(Words(words, 2), words[1], uri=False, one=True)], one=True)


def parse_publish_many(words: list[bytes]) -> Publish:
    if {word.upper() for word in set(words[1::2])} == {b"PAYLOAD"} and len(words) % 2:
        return Publish(Bare(words[2::2]))  # nothing but payloads
    rest = Words(words, 1)
    items: list[Item] = []
    while rest.more():
        begin = rest.take("PAYLOAD or URI").upper()
        if begin not in _BEGINNINGS:
            raise rest.wrong(
                f"a message begins with PAYLOAD or URI, not with '{shown(begin[:32])}'"
            )
        payload = rest.take(f"what comes after {begin.decode()}")
        items.append(_message(rest, payload, uri=begin == b"URI", one=False))
    return Publish(items)


# ---- consumers --------------------------------------------------------------------------------


def parse_claim(words: list[bytes]) -> Claim:
    name, count = queue_of(words[1]), number(words[2], "count")
    rest = Words(words, 3)
    found: dict[str, Any] = {}
    while rest.more():
        match rest.option():
            case b"WAIT":
                word = rest.take("the milliseconds of WAIT")
                found["block_ms"] = None if word.lower() == b"inf" else number(word, "WAIT")
            case b"LEASE":
                found["lease_ms"] = number(rest.take("the milliseconds of LEASE"), "LEASE")
            case b"CONSUMER":
                found["consumer"] = text(rest.take("the name of CONSUMER"), "a consumer's name")
            case b"ROWS":
                found["rows"] = True
            case _:
                raise rest.unknown()
    return Claim(name, count, **found)


def parse_fail(words: list[bytes]) -> Fail:
    name = queue_of(words[1])
    rest = Words(words, 2)
    delay_ms: int | None = None
    reason = ""
    while rest.more():
        if rest.has(b"DELAY"):
            delay_ms = number(rest.take("the milliseconds of DELAY"), "DELAY")
        elif rest.has(b"REASON"):
            reason = text(rest.take("the text of REASON"), "a reason")
        else:
            return Fail(name, _receipts(words[rest.at :]), delay_ms, reason)
    raise rest.wrong("a receipt is missing")


def parse_extend(words: list[bytes]) -> Extend:
    name, lease_ms = queue_of(words[1]), number(words[2], "milliseconds")
    return Extend(name, _receipts(words[3:]), lease_ms)


# ---- what became of messages ------------------------------------------------------------------


def _cursor(words: list[bytes]) -> int | None:
    rest = Words(words, 2)
    cursor = number(rest.take("the cursor"), "cursor") if rest.more() else None
    rest.end()
    return cursor


def parse_redrive(words: list[bytes]) -> Redrive:
    rest = Words(words, 2)
    with_expired = rest.has(b"WITHEXPIRED")
    ids = [number(word, "id") for word in words[rest.at :]]
    return Redrive(queue_of(words[1]), ids or None, with_expired)


QUEUE_PARSERS: dict[str, Callable[[list[bytes]], QueueRequest]] = {
    "QUEUE.CREATE": parse_create,
    "QUEUE.ALTER": parse_alter,
    "QUEUE.DEL": lambda words: Drop(queue_of(words[1])),
    "QUEUE.LS": parse_ls,
    "QUEUE.INFO": lambda words: Describe(queue_of(words[1])),
    "QUEUE.STATS": lambda words: ShowStats(queue_of(words[1])),
    "QUEUE.PAUSE": lambda words: Pause(queue_of(words[1])),
    "QUEUE.PLAY": lambda words: Play(queue_of(words[1])),
    "QUEUE.PURGE": parse_purge,
    "QUEUE.CONFIG": parse_reclaim,
    "QUEUE.PUBLISH": parse_publish,
    "QUEUE.PUBLISHMANY": parse_publish_many,
    "QUEUE.CLAIM": parse_claim,
    "QUEUE.PEEK": lambda words: Peek(queue_of(words[1]), number(words[2], "count")),
    "QUEUE.ACK": lambda words: AckReceipts(queue_of(words[1]), _receipts(words[2:])),
    "QUEUE.FAIL": parse_fail,
    "QUEUE.EXTEND": parse_extend,
    "QUEUE.RELEASE": lambda words: Release(queue_of(words[1]), _receipts(words[2:])),
    "QUEUE.DONE": lambda words: ListDone(queue_of(words[1]), _cursor(words)),
    "QUEUE.FAILED": lambda words: ListFailed(queue_of(words[1]), _cursor(words)),
    "QUEUE.ATTEMPTS": lambda words: ShowAttempts(queue_of(words[1]), number(words[2], "id")),
    "QUEUE.REDRIVE": parse_redrive,
}
