"""The topic commands as they are written: words -> frozen requests. Pure.

Contract     As in grammar.py. Names are UTF-8 text; shard keys, tags and data are bytes, and an
             empty shard key is none. Durations are milliseconds, times milliseconds since 1970.
             WAIT 0 does not wait, WAIT inf waits for ever.
References   name a message as it was handed out: `offset:epoch`, or `offset:epoch:job` for one of a
             replay. TOPIC.POLL gives them. No option looks like one.
Packed       Clients that count send and get msgpack of the broker's own structs
             (broker/topicanswers.py). It is checked here like words are.
Not here     arity (topic_commands.py), running a request (topics.py), limits of what is stored
             (topic/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec

from penstock.broker.topicanswers import LIVE, Effect, Failure, Refs, TxPublish, TxPush, TxWrite
from penstock.broker.topics import HEARTBEAT_MS, topic_name
from penstock.codec.node import Body
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.log.outside import take_node
from penstock.server.resp.queue_grammar import parse_publish
from penstock.server.resp.words import NUMBER_MAX, Words, number, shown, text
from penstock.topic.item import PreparedPush, hash_keys, prepare_push

T = TypeVar("T")

PAUSE_WAIT_MS = 10_000
ERRORS_DEFAULT = 1000


class Push(msgspec.Struct, frozen=True):
    name: LogName
    push: PreparedPush
    create: bool = True
    slots: int | None = None
    one: bool = False  # the reply is one offset


class Join(msgspec.Struct, frozen=True):
    name: LogName
    consumer: str
    heartbeat_ms: int = HEARTBEAT_MS
    slots: int | None = None


class Beat(msgspec.Struct, frozen=True):
    name: LogName
    consumer: str
    token: int


class Poll(msgspec.Struct, frozen=True):
    name: LogName
    consumer: str
    token: int
    count: int
    block_ms: int | None = 0  # 0: does not wait; None: for ever
    settle: bool = False
    packed: bool = False
    done: list[Refs] = []


class Settling(msgspec.Struct, frozen=True):
    """What an acknowledgement carries: the packed form of TOPIC.ACK."""

    done: list[Refs] = []
    failures: list[Failure] = []
    max_attempts: int = 1
    tx: list[Effect] = []


class AckMessages(msgspec.Struct, frozen=True):
    name: LogName
    consumer: str
    token: int
    settling: Settling
    packed: bool = False


class GiveBack(msgspec.Struct, frozen=True):
    name: LogName
    consumer: str
    token: int
    given: list[Refs]


class Leave(msgspec.Struct, frozen=True):
    name: LogName
    consumer: str
    token: int


class PauseTopic(msgspec.Struct, frozen=True):
    name: LogName
    block_ms: int | None = PAUSE_WAIT_MS


class PlayTopic(msgspec.Struct, frozen=True):
    name: LogName


class Rebalance(msgspec.Struct, frozen=True):
    name: LogName


class ReplayFrom(msgspec.Struct, frozen=True):
    name: LogName
    unit: Literal["offset", "time"]
    start: int
    end: int | None = None


class ConfigureTopic(msgspec.Struct, frozen=True):
    name: LogName
    limits: dict[str, int | None]  # empty: show them


class DropTopic(msgspec.Struct, frozen=True):
    name: LogName


class TopicNames(msgspec.Struct, frozen=True):
    pattern: str


class ShowTopic(msgspec.Struct, frozen=True):
    name: LogName
    what: Literal["info", "stats", "consumers", "shards"]


class ShowErrors(msgspec.Struct, frozen=True):
    name: LogName
    start: int = 0
    count: int = ERRORS_DEFAULT
    job: int = 0


TopicRequest = (
    Push | Join | Beat | Poll | AckMessages | GiveBack | Leave | PauseTopic | PlayTopic | Rebalance
    | ReplayFrom | ConfigureTopic | DropTopic | TopicNames | ShowTopic | ShowErrors
)  # fmt: skip


# ---- words ------------------------------------------------------------------------------------


@lru_cache(1024)
def topic_of(word: bytes) -> LogName:
    return topic_name(text(word, "a topic's name"))


def _who(words: list[bytes]) -> tuple[LogName, str, int]:
    """topic consumer token"""
    return topic_of(words[1]), text(words[2], "a consumer's name"), number(words[3], "token")


def _wait(word: bytes) -> int | None:
    return None if word.lower() == b"inf" else number(word, "WAIT")


# ---- references -------------------------------------------------------------------------------

#: offset, epoch, job
Reference = tuple[int, int, int]


def reference(word: bytes) -> Reference:
    parts = word.split(b":")
    if not 2 <= len(parts) <= 3:
        raise InvalidError(
            f"a reference is offset:epoch or offset:epoch:job, not '{shown(word[:64])}'",
            hint="TOPIC.POLL gives them",
        )
    offset, epoch = number(parts[0], "an offset"), number(parts[1], "an epoch")
    return offset, epoch, number(parts[2], "a job") if len(parts) == 3 else LIVE


def reference_word(offset: int, epoch: int, job: int) -> bytes:
    return b"%d:%d" % (offset, epoch) if job == LIVE else b"%d:%d:%d" % (offset, epoch, job)


def _refs(words: Sequence[bytes]) -> list[Refs]:
    """One for each run of neighbours of one job: answers come in the order of the words."""
    found: list[Refs] = []
    offsets: list[int] = []
    epochs: list[int] = []
    for word in words:
        offset, epoch, job = reference(word)
        if not found or found[-1].job != job:
            offsets, epochs = [], []
            found.append(Refs(offsets, epochs, job))
        offsets.append(offset)
        epochs.append(epoch)
    return found


def _take_refs(rest: Words) -> list[Refs]:
    """References up to the next option, or to the end."""
    begin = rest.at
    while rest.more() and rest.words[rest.at][:1].isdigit():
        rest.at += 1
    return _refs(rest.words[begin : rest.at])


# ---- packed -----------------------------------------------------------------------------------


def unpack(word: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(word, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"what is packed is not as it should be: {error}") from None


def _check_refs(refs: Sequence[Refs]) -> None:
    for each in refs:
        if len(each.offsets) != len(each.epochs):
            raise InvalidError(f"{len(each.offsets)} offsets have {len(each.epochs)} epochs")
        _check_numbers(each.offsets)
        _check_numbers(each.epochs)
        _check_numbers((each.job,))


def _check_numbers(values: Sequence[int]) -> None:
    if len(values) and not (min(values) >= 0 and max(values) <= NUMBER_MAX):
        raise InvalidError("a number is negative or too large")


def _check_settling(settling: Settling) -> None:
    _check_refs(settling.done)
    if not 1 <= settling.max_attempts <= NUMBER_MAX:
        raise InvalidError(f"max_attempts {settling.max_attempts} is no number of attempts")
    for failure in settling.failures:
        _check_numbers((failure.offset, failure.epoch, failure.job, failure.attempt))
    for effect in settling.tx:
        # An id that its sender chose could be another message's.
        if isinstance(effect, TxPublish) and effect.item.reserved is not None:
            raise InvalidError("the id of a message is given by the broker")


# ---- producers --------------------------------------------------------------------------------


def _push_option(rest: Words, option: bytes, found: dict[str, int | bool | None]) -> None:
    match option:
        case b"SLOTS":
            found["slots"] = number(rest.take("the count of SLOTS"), "SLOTS")
        case b"NOCREATE":
            found["create"] = False
        case _:
            raise rest.unknown()


def parse_push(words: list[bytes]) -> Push:
    """The last word is the data, whatever it looks like."""
    rest = Words(words[:-1], 2)
    found: dict[str, int | bool | None] = {}
    key = b""
    while rest.more():
        option = rest.option()
        if option == b"KEY":
            key = rest.take("the shard key of KEY")
        else:
            _push_option(rest, option, found)
    push = prepare_push([words[-1]], [key] if key else None)
    return Push(topic_of(words[1]), push, one=True, **found)  # type: ignore[arg-type]


def parse_push_many(words: list[bytes]) -> Push:
    if len(words) % 2:
        raise Words(words, 2).wrong("each message is a shard key and data")
    keys, data = words[2::2], words[3::2]
    return Push(topic_of(words[1]), prepare_push(data, keys if any(keys) else None))


def parse_push_nodes(words: list[bytes]) -> Push:
    rest = Words(words, 2)
    found: dict[str, int | bool | None] = {}
    while (option := rest.option()) != b"NODES":
        _push_option(rest, option, found)
    nodes = rest.words[rest.at :]
    if not nodes:
        raise rest.wrong("a node is missing")
    push = prepared_of(nodes)
    return Push(topic_of(words[1]), push, **found)  # type: ignore[arg-type]


def prepared_of(nodes: Sequence[bytes]) -> PreparedPush:
    """Whoever sent them: they hold together, and the slots come from the keys that are in them."""
    bodies: list[Body] = []
    keys: list[bytes] = []
    for i, value in enumerate(nodes):
        node, body = take_node(value, f"node {i}")
        if node.meta is not None:
            raise InvalidError(f"node {i}: messages of a topic have no meta")
        bodies.append(body)
        keys += [b""] * node.count if node.tags is None else node.tag_list(0, node.count)
    return PreparedPush(bodies, *hash_keys(keys))


# ---- consumers --------------------------------------------------------------------------------


def parse_join(words: list[bytes]) -> Join:
    rest = Words(words, 3)
    found: dict[str, int] = {}
    while rest.more():
        match rest.option():
            case b"HEARTBEAT":
                found["heartbeat_ms"] = number(rest.take("the milliseconds"), "HEARTBEAT", low=1)
            case b"SLOTS":
                found["slots"] = number(rest.take("the count of SLOTS"), "SLOTS")
            case _:
                raise rest.unknown()
    return Join(topic_of(words[1]), text(words[2], "a consumer's name"), **found)


def parse_poll(words: list[bytes]) -> Poll:
    who, count = _who(words), number(words[4], "count")
    rest = Words(words, 5)
    block_ms: int | None = 0
    settle = packed = False
    done: list[Refs] = []
    while rest.more():
        match rest.option():
            case b"WAIT":
                block_ms = _wait(rest.take("the milliseconds of WAIT"))
            case b"SETTLE":
                settle = True
            case b"PACKED":
                packed = True
            case b"DONE":
                done += _take_refs(rest)
            case b"DONEPACKED":
                done += unpack(rest.take("what comes after DONEPACKED"), list[Refs])
                _check_refs(done)
            case _:
                raise rest.unknown()
    return Poll(*who, count, block_ms, settle, packed, done)


def parse_ack(words: list[bytes]) -> AckMessages:
    who = _who(words)
    rest = Words(words, 4)
    if rest.has(b"PACKED"):
        settling = unpack(rest.take("what comes after PACKED"), Settling)
        rest.end()
        _check_settling(settling)
        return AckMessages(*who, settling, packed=True)
    done = _take_refs(rest)
    failures: list[Failure] = []
    effects: list[Effect] = []
    max_attempts = 1
    while rest.more():
        match rest.take("an option").upper():
            case b"ATTEMPTS":
                max_attempts = number(rest.take("the count of ATTEMPTS"), "ATTEMPTS", low=1)
            case b"FAILED":
                offset, epoch, job = reference(rest.take("the reference of FAILED"))
                reason = text(rest.take("the text of FAILED"), "an error")
                failures.append(Failure(offset, epoch, reason, job))
            case b"PUSH":
                topic, key, data = rest.take_many(3, "a topic, a shard key or data of PUSH")
                topic_of(topic)
                effects.append(TxPush(topic.decode(), data, key))
            case b"WRITE":
                stream, tag, data = rest.take_many(3, "a stream, a tag or data of WRITE")
                effects.append(TxWrite(text(stream, "a stream's name"), data, tag))
            case b"PUBLISH":
                effects.append(_publish(rest))
            case _:
                raise rest.unknown()
    return AckMessages(*who, Settling(done, failures, max_attempts, effects))


def _publish(rest: Words) -> TxPublish:
    """PUBLISH count, and so many words of QUEUE.PUBLISH."""
    count = number(rest.take("the count of PUBLISH"), "PUBLISH", low=1, high=len(rest.words))
    own = rest.take_many(count, "a word of PUBLISH")
    return TxPublish(parse_publish([b"QUEUE.PUBLISH", *own]).items[0])


def parse_give_back(words: list[bytes]) -> GiveBack:
    who = _who(words)
    rest = Words(words, 4)
    if rest.has(b"PACKED"):
        given = unpack(rest.take("what comes after PACKED"), list[Refs])
        _check_refs(given)
    else:
        given = _take_refs(rest)
    rest.end()
    return GiveBack(*who, given)


# ---- supervisors ------------------------------------------------------------------------------


def parse_pause(words: list[bytes]) -> PauseTopic:
    rest = Words(words, 2)
    if not rest.more():
        return PauseTopic(topic_of(words[1]))
    if rest.option() != b"WAIT":
        raise rest.unknown()
    block_ms = number(rest.take("the milliseconds of WAIT"), "WAIT")
    rest.end()
    return PauseTopic(topic_of(words[1]), block_ms)


def parse_replay(words: list[bytes]) -> ReplayFrom:
    rest = Words(words, 2)
    unit: Literal["offset", "time"]
    match rest.take("OFFSET or TIME").upper():
        case b"OFFSET":
            unit = "offset"
        case b"TIME":
            unit = "time"
        case _:
            raise rest.wrong("a replay is by OFFSET or by TIME")
    start = number(rest.take("the start"), "start")
    end = number(rest.take("the end"), "end") if rest.more() else None
    rest.end()
    return ReplayFrom(topic_of(words[1]), unit, start, end)


_LIMITS = {b"MAXLEN": "max_count", b"MAXBYTES": "max_bytes", b"MAXAGE": "max_age_ms"}


def parse_configure(words: list[bytes]) -> ConfigureTopic:
    rest = Words(words, 2)
    limits: dict[str, int | None] = {}
    while rest.more():
        option = rest.option()
        if option not in _LIMITS:
            raise rest.unknown()
        what = shown(option)
        # 0 is no limit, as in TCONFIG.
        limits[_LIMITS[option]] = number(rest.take(f"the value of {what}"), what) or None
    return ConfigureTopic(topic_of(words[1]), limits)


# ---- looking ----------------------------------------------------------------------------------


def parse_names(words: list[bytes]) -> TopicNames:
    rest = Words(words, 1)
    pattern = text(rest.take("the pattern"), "a pattern") if rest.more() else "*"
    rest.end()
    return TopicNames(pattern)


def parse_errors(words: list[bytes]) -> ShowErrors:
    rest = Words(words, 2)
    start = number(rest.take("the start"), "start") if rest.more() else 0
    count = number(rest.take("the count"), "count") if rest.more() else ERRORS_DEFAULT
    job = number(rest.take("the replay"), "replay") if rest.more() else 0
    rest.end()
    return ShowErrors(topic_of(words[1]), start, count, job)


TOPIC_PARSERS: dict[str, Callable[[list[bytes]], TopicRequest]] = {
    "TOPIC.PUSH": parse_push,
    "TOPIC.PUSHMANY": parse_push_many,
    "TOPIC.PUSHNODES": parse_push_nodes,
    "TOPIC.JOIN": parse_join,
    "TOPIC.BEAT": lambda words: Beat(*_who(words)),
    "TOPIC.POLL": parse_poll,
    "TOPIC.ACK": parse_ack,
    "TOPIC.RELEASE": parse_give_back,
    "TOPIC.LEAVE": lambda words: Leave(*_who(words)),
    "TOPIC.PAUSE": parse_pause,
    "TOPIC.PLAY": lambda words: PlayTopic(topic_of(words[1])),
    "TOPIC.REBALANCE": lambda words: Rebalance(topic_of(words[1])),
    "TOPIC.REPLAY": parse_replay,
    "TOPIC.CONFIG": parse_configure,
    "TOPIC.DEL": lambda words: DropTopic(topic_of(words[1])),
    "TOPIC.LS": parse_names,
    "TOPIC.INFO": lambda words: ShowTopic(topic_of(words[1]), "info"),
    "TOPIC.STATS": lambda words: ShowTopic(topic_of(words[1]), "stats"),
    "TOPIC.CONSUMERS": lambda words: ShowTopic(topic_of(words[1]), "consumers"),
    "TOPIC.SHARDS": lambda words: ShowTopic(topic_of(words[1]), "shards"),
    "TOPIC.ERRORS": parse_errors,
}
