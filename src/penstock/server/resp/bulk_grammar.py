"""The commands of bulk reads and writes as they are written: words -> frozen requests. Pure.

Contract     As in grammar.py. Nodes come as they are stored, with place and time 0, and are
             verified here: what does not hold together never reaches the broker.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.broker.bulk import Wanted
from penstock.broker.progress import Report, decode_report
from penstock.codec.node import Body
from penstock.codec.payload import decode_payload
from penstock.errors import CorruptError, InvalidError
from penstock.log.catalogue import LogName, stream_name
from penstock.log.outside import take_node
from penstock.log.staging import LEASE_MS, PayloadRow
from penstock.queue.state import queue_name
from penstock.server.resp.words import Words, number, text
from penstock.topic.state import topic_name


class StageBegin(msgspec.Struct, frozen=True):
    key: bytes | None = None
    lease_ms: int = LEASE_MS


class StagePut(msgspec.Struct, frozen=True):
    staging_id: int
    writer: int
    n: int
    bodies: list[Body]
    payloads: list[PayloadRow]


class StageReserve(msgspec.Struct, frozen=True):
    staging_id: int
    writer: int
    count: int
    to: list[str]


class StageRenew(msgspec.Struct, frozen=True):
    staging_id: int


class StageDrop(msgspec.Struct, frozen=True):
    staging_id: int


class LinkStaged(msgspec.Struct, frozen=True):
    staging_id: int
    target: LogName | None  # None: messages
    writers: list[int]
    producer: bytes | None = None
    sequence: int | None = None


class CheckpointMake(msgspec.Struct, frozen=True):
    lifetime_ms: int
    queue: LogName | None = None


class CheckpointRenew(msgspec.Struct, frozen=True):
    checkpoint_id: str
    lifetime_ms: int


class CheckpointDrop(msgspec.Struct, frozen=True):
    checkpoint_id: str


class ShowSize(msgspec.Struct, frozen=True):
    name: LogName | None


class ReadRows(msgspec.Struct, frozen=True):
    name: LogName | None
    low: int
    high: int
    wanted: Wanted


class SeekTime(msgspec.Struct, frozen=True):
    name: LogName | None
    time_ms: int


class TakeReport(msgspec.Struct, frozen=True):
    report: Report


class ShowProgress(msgspec.Struct, frozen=True):
    pass


BulkRequest = (
    StageBegin | StagePut | StageReserve | StageRenew | StageDrop | LinkStaged | CheckpointMake
    | CheckpointRenew | CheckpointDrop | ShowSize | ReadRows | SeekTime | TakeReport | ShowProgress
)  # fmt: skip


def parse_stage(words: list[bytes]) -> BulkRequest:
    rest = Words(words, 1)
    match rest.take("a subcommand").upper():
        case b"BEGIN":
            return _begin(rest)
        case b"PUT":
            return _put(rest)
        case b"RESERVE":
            found = _staging(rest), _writer(rest), number(rest.take("the count"), "count", low=1)
            to = rest.take_many(len(words) - rest.at, "") if rest.has(b"TO") else []
            rest.end()
            return StageReserve(*found, [text(name, "a queue's name") for name in to])
        case b"RENEW":
            renewed = StageRenew(_staging(rest))
            rest.end()
            return renewed
        case b"DROP":
            dropped = StageDrop(_staging(rest))
            rest.end()
            return dropped
        case _:
            raise rest.unknown()


def _staging(rest: Words) -> int:
    return number(rest.take("the id of a staging"), "id")


def _writer(rest: Words) -> int:
    return number(rest.take("the writer"), "writer")


def _begin(rest: Words) -> StageBegin:
    key, lease_ms = None, LEASE_MS
    while rest.more():
        match rest.option():
            case b"KEY":
                key = rest.take("what comes after KEY")
            case b"LEASE":
                lease_ms = number(rest.take("the milliseconds of LEASE"), "LEASE", low=1)
            case _:
                raise rest.unknown()
    return StageBegin(key, lease_ms)


def _put(rest: Words) -> StagePut:
    staging_id, writer = _staging(rest), _writer(rest)
    n = number(rest.take("n"), "n")
    # A count from outside: it is compared with what is there, never multiplied into memory.
    count = number(rest.take("the count of nodes"), "nodes", high=len(rest.words))
    nodes = rest.take_many(count, "a node")
    bodies = [take_node(value, f"node {i}")[1] for i, value in enumerate(nodes)]
    payloads: list[PayloadRow] = []
    if rest.has(b"PAYLOADS"):
        while rest.more():
            message_id = number(rest.take("a message id"), "message id")
            payloads.append((message_id, _payload(rest.take("a payload record"))))
    rest.end()
    return StagePut(staging_id, writer, n, bodies, payloads)


def _payload(value: bytes) -> bytes:
    try:
        decode_payload(value)
    except CorruptError as error:
        raise InvalidError(str(error)) from None
    return value


def _target(rest: Words) -> LogName | None:
    if rest.has(b"MESSAGES"):
        return None
    if rest.has(b"STREAM"):
        return stream_name(text(rest.take("the key of STREAM"), "a stream's name"))
    if rest.has(b"TOPIC"):
        return topic_name(text(rest.take("the name of TOPIC"), "a topic's name"))
    raise rest.wrong("STREAM, TOPIC or MESSAGES is missing")


def parse_link(words: list[bytes]) -> LinkStaged:
    rest = Words(words, 1)
    staging_id, target = _staging(rest), _target(rest)
    writers: list[int] = []
    if not rest.has(b"WRITERS"):
        raise rest.wrong("WRITERS is missing")
    producer, sequence = None, None
    while rest.more():
        if rest.has(b"PRODUCER"):
            producer = rest.take("the id of PRODUCER")
            sequence = number(rest.take("the sequence of PRODUCER"), "sequence")
            rest.end()
        else:
            writers.append(_writer(rest))
    return LinkStaged(staging_id, target, writers, producer, sequence)


def parse_checkpoint(words: list[bytes]) -> BulkRequest:
    rest = Words(words, 1)
    match rest.take("a subcommand").upper():
        case b"MAKE":
            lifetime_ms = number(rest.take("the milliseconds"), "milliseconds", low=1)
            queue = rest.take("the name of QUEUE") if rest.has(b"QUEUE") else None
            rest.end()
            named = None if queue is None else queue_name(text(queue, "a queue's name"))
            return CheckpointMake(lifetime_ms, named)
        case b"RENEW":
            checkpoint_id = text(rest.take("the id"), "an id")
            lifetime_ms = number(rest.take("the milliseconds"), "milliseconds", low=1)
            rest.end()
            return CheckpointRenew(checkpoint_id, lifetime_ms)
        case b"DROP":
            dropped = CheckpointDrop(text(rest.take("the id"), "an id"))
            rest.end()
            return dropped
        case _:
            raise rest.unknown()


def parse_size(words: list[bytes]) -> ShowSize:
    rest = Words(words, 1)
    name = _target(rest)
    rest.end()
    return ShowSize(name)


def parse_read(words: list[bytes]) -> ReadRows:
    rest = Words(words, 1)
    low, high = (number(rest.take("an offset"), "offset") for _ in range(2))
    try:
        wanted = msgspec.json.decode(rest.take("what is wanted"), type=Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"what is wanted is not told in JSON: {error}") from None
    name = _target(rest)
    rest.end()
    return ReadRows(name, low, high, wanted)


def parse_seek(words: list[bytes]) -> SeekTime:
    rest = Words(words, 1)
    time_ms = number(rest.take("the time"), "time")
    name = _target(rest)
    rest.end()
    return SeekTime(name, time_ms)


BULK_PARSERS: dict[str, Callable[[list[bytes]], BulkRequest]] = {
    "PENSTOCK.STAGE": parse_stage,
    "PENSTOCK.LINK": parse_link,
    "PENSTOCK.CHECKPOINT": parse_checkpoint,
    "PENSTOCK.SIZE": parse_size,
    "PENSTOCK.READ": parse_read,
    "PENSTOCK.SEEK": parse_seek,
    "PENSTOCK.REPORT": lambda words: TakeReport(decode_report(words[1])),
    "PENSTOCK.PROGRESS": lambda words: ShowProgress(),
}
