"""The stream commands as they are written: words -> frozen requests. Pure.

Contract     One parse function per command. Whatever is wrong is an InvalidError that says what,
             with the command's syntax as the hint. Keys, groups and producers are UTF-8 text; tags,
             entries and metas are bytes. Options are words in any case and any order, each at most
             once. What values mean together (a count that is negative) is checked here as far as
             the words alone tell it.
Not here     arity (commands.py), running a request (streams.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from penstock.errors import InvalidError
from penstock.log.catalogue import LogName, stream_name
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.words import NUMBER_MAX, Words, number, text
from penstock.stream.ack import Named
from penstock.stream.deliver import MAX_PENDING, Start
from penstock.stream.group import group_name


class Write(msgspec.Struct, frozen=True):
    name: LogName
    tags: Sequence[bytes]
    data: Sequence[bytes]
    metas: Sequence[bytes] | None = None
    backlog: int | None = None
    producer: bytes | None = None
    sequence: int | None = None
    simple: bool = False  # the short form: the reply is one offset


class Read(msgspec.Struct, frozen=True):
    name: LogName
    offset: int
    count: int
    block_ms: int | None = 0  # 0: does not wait; None: for ever
    withinfo: bool = False
    reverse: bool = False
    full: bool = False
    raw: bool = False


class ReadGroup(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes
    count: int
    block_ms: int | None = 0
    retry_ms: int | None = None
    expire_ms: int | None = None  # None: never
    start: Start = "first"
    withinfo: bool = False
    full: bool = False


class Evict(msgspec.Struct, frozen=True):
    name: LogName
    up_to: int | None = None
    keep: int | None = None


class Ack(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes
    named: list[Named]


class GroupCreate(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes
    start: Start = "first"
    max_pending: int = MAX_PENDING
    dead: LogName | None = None


class GroupSet(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes
    offset: Start


class GroupShow(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes | None  # None: all of them


class GroupPending(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes
    start: int = 0
    count: int = 100


class GroupDestroy(msgspec.Struct, frozen=True):
    name: LogName
    group: bytes


class Configure(msgspec.Struct, frozen=True):
    name: LogName
    options: dict[str, Any]  # max_count, max_bytes, max_age_ms, compact; None: no limit


class ShowConfig(msgspec.Struct, frozen=True):
    name: LogName


class Info(msgspec.Struct, frozen=True):
    name: LogName


class Length(msgspec.Struct, frozen=True):
    name: LogName


class Names(msgspec.Struct, frozen=True):
    pattern: str


class Delete(msgspec.Struct, frozen=True):
    names: list[LogName]


class Exists(msgspec.Struct, frozen=True):
    names: list[LogName]


class Type(msgspec.Struct, frozen=True):
    name: LogName


class CountNames(msgspec.Struct, frozen=True):
    pass


Request = (
    Write | Read | ReadGroup | Evict | Ack | GroupCreate | GroupSet | GroupShow | GroupPending
    | GroupDestroy | Configure | ShowConfig | Info | Length | Names | Delete | Exists | Type
    | CountNames
)  # fmt: skip


# ---- words ------------------------------------------------------------------------------------


@lru_cache(1024)  # the same few names come again and again; a name is at most 255 bytes long
def key(word: bytes) -> LogName:
    return stream_name(text(word, "a stream's name"))


def group_of(word: bytes) -> bytes:
    return group_name(text(word, "a group's name"))


def start_of(word: bytes, what: str) -> Start:
    lower = word.lower()
    if lower == b"first":
        return "first"
    return "new" if lower == b"new" else number(word, what)


# ---- the commands -----------------------------------------------------------------------------


def parse_write(words: list[bytes]) -> Write:
    name = key(words[1])
    if len(words) == 4:
        return Write(name, words[2:3], words[3:4], simple=True)
    rest = Words(words, 2)
    backlog: int | None = None
    producer: bytes | None = None
    sequence: int | None = None
    meta = False
    while True:
        match rest.option():
            case b"BACKLOG":
                backlog = number(rest.take("the count of BACKLOG"), "BACKLOG")
            case b"PRODUCER":
                producer = text(rest.take("the id of PRODUCER"), "a producer's id").encode()
                sequence = number(rest.take("the sequence of PRODUCER"), "the sequence")
            case b"META":
                meta = True
            case b"ENTRIES":
                break
            case _:
                raise rest.unknown()
    width = 3 if meta else 2
    count, left = divmod(len(words) - rest.at, width)
    if left or not count:
        form = "tag entry meta" if meta else "tag entry"
        raise rest.wrong(f"ENTRIES takes '{form}', once or more")
    return Write(
        name,
        words[rest.at :: width],
        words[rest.at + 1 :: width],
        words[rest.at + 2 :: width] if meta else None,
        backlog,
        producer,
        sequence,
    )


def parse_read(words: list[bytes]) -> Read | ReadGroup:
    name = key(words[1])
    count = number(words[3], "count")
    rest = Words(words, 4)
    block_ms: int | None = 0
    group: bytes | None = None
    start: Start = "first"
    retry_ms: int | None = None
    expire_ms: int | None = None
    flags = {b"WITHINFO": False, b"REVERSE": False, b"FULL": False, b"RAW": False}
    while rest.more():
        match rest.option():
            case b"BLOCK":
                block_ms = number(rest.take("the milliseconds of BLOCK"), "BLOCK") or None
            case b"GROUP":
                group = group_of(rest.take("the name of GROUP"))
                if rest.has(b"FROM"):
                    start = start_of(rest.take("the start after FROM"), "FROM")
            case b"RETRY":
                retry_ms = number(rest.take("retry-ms of RETRY"), "retry-ms")
                expire_ms = number(rest.take("expire-ms of RETRY"), "expire-ms") or None
            case flag if flag in flags:
                flags[flag] = True
            case _:
                raise rest.unknown()
    withinfo, reverse, full, raw = flags.values()
    if group is None:
        if retry_ms is not None:
            raise rest.wrong("RETRY is for a GROUP")
        if raw and full:
            raise rest.wrong("RAW has everything; FULL does not go with it")
        if reverse and block_ms != 0:
            raise rest.wrong("BLOCK waits for newer entries; REVERSE does not go with it")
        offset = number(words[2], "offset")
        return Read(name, offset, count, block_ms, withinfo, reverse, full, raw)
    if raw or reverse:
        raise rest.wrong(f"{'RAW' if raw else 'REVERSE'} does not go with GROUP")
    # The offset is disregarded, but it must be one: a forgotten word would shift all others.
    number(words[2], "offset", low=-NUMBER_MAX - 1)
    return ReadGroup(name, group, count, block_ms, retry_ms, expire_ms, start, withinfo, full)


def parse_evict(words: list[bytes]) -> Evict:
    offset = number(words[2], "offset", low=-NUMBER_MAX)
    # -0 keeps nothing; as an offset it is 0.
    if words[2].startswith(b"-"):
        return Evict(key(words[1]), keep=-offset)
    return Evict(key(words[1]), up_to=offset)


def parse_ack(words: list[bytes]) -> Ack:
    name, group = key(words[1]), group_of(words[2])
    words = words[3:]
    # Nearly always plain numbers: looked at together, they cost a third.
    if b"".join(words).isdigit() and max(map(len, words)) <= 18:
        with suppress(ValueError):  # one of them is empty
            return Ack(name, group, [*map(int, words)])
    named: list[Named] = []
    for word in words:
        low, dash, high = word.partition(b"-")
        if dash and low:
            first, last = number(low, "start"), number(high, "end")
            if last < first:
                raise InvalidError(f"range {first}-{last} ends before it starts")
            named.append((first, last))
        else:
            named.append(number(word, "offset"))
    return Ack(name, group, named)


def parse_group(words: list[bytes]) -> Request:
    verb = words[1].upper()
    name = key(words[2])
    rest = Words(words, 3)
    if verb == b"INFO":
        group = group_of(rest.take("the group")) if rest.more() else None
        return _ended(rest, GroupShow(name, group))
    if verb not in (b"CREATE", b"SET", b"PENDING", b"DESTROY"):
        shown = words[1][:64].decode("utf-8", "backslashreplace")
        raise rest.wrong(f"unknown subcommand '{shown}' of TGROUP")
    named = group_of(rest.take("the group"))
    match verb:
        case b"CREATE":
            return _parse_group_create(rest, name, named)
        case b"SET":
            return _ended(rest, GroupSet(name, named, start_of(rest.take("the offset"), "offset")))
        case b"PENDING":
            start = number(rest.take("start"), "start") if rest.more() else 0
            count = number(rest.take("count"), "count") if rest.more() else 100
            return _ended(rest, GroupPending(name, named, start, count))
        case _:
            return _ended(rest, GroupDestroy(name, named))


def _parse_group_create(rest: Words, name: LogName, group: bytes) -> GroupCreate:
    start: Start = "first"
    max_pending = MAX_PENDING
    dead: LogName | None = None
    while rest.more():
        match rest.option():
            case b"FROM":
                start = start_of(rest.take("the start after FROM"), "FROM")
            case b"MAXPENDING":
                max_pending = number(rest.take("the count of MAXPENDING"), "MAXPENDING", low=1)
            case b"DEAD":
                dead = key(rest.take("the stream of DEAD"))
            case _:
                raise rest.unknown()
    return GroupCreate(name, group, start, max_pending, dead)


def _ended(rest: Words, request: Request) -> Request:
    rest.end()
    return request


_LIMITS = {b"MAXLEN": "max_count", b"MAXBYTES": "max_bytes", b"MAXAGE": "max_age_ms"}


def parse_config(words: list[bytes]) -> Configure | ShowConfig:
    name = key(words[1])
    rest = Words(words, 2)
    options: dict[str, Any] = {}
    while rest.more():
        option = rest.option()
        if option in _LIMITS:
            what = option.decode()
            options[_LIMITS[option]] = number(rest.take(f"the value of {what}"), what) or None
        elif option == b"COMPACT":
            answer = rest.take("yes or no after COMPACT").lower()
            if answer not in (b"yes", b"no"):
                raise rest.wrong("COMPACT is yes or no")
            options["compact"] = answer == b"yes"
        else:
            raise rest.unknown()
    return Configure(name, options) if options else ShowConfig(name)


def parse_names(words: list[bytes]) -> Names:
    if len(words) > 2:
        raise InvalidError("TKEYS takes one pattern", hint=COMMANDS["TKEYS"].usage)
    return Names(text(words[1], "a pattern") if len(words) == 2 else "*")


PARSERS: dict[str, Callable[[list[bytes]], Request]] = {
    "TWRITE": parse_write,
    "TREAD": parse_read,
    "TEVICT": parse_evict,
    "TACK": parse_ack,
    "TGROUP": parse_group,
    "TCONFIG": parse_config,
    "TINFO": lambda words: Info(key(words[1])),
    "TLEN": lambda words: Length(key(words[1])),
    "TKEYS": parse_names,
    "TDEL": lambda words: Delete([key(word) for word in words[1:]]),
    "EXISTS": lambda words: Exists([key(word) for word in words[1:]]),
    "TYPE": lambda words: Type(key(words[1])),
    "DBSIZE": lambda words: CountNames(),
}
