"""Keys: the whole table of key types, and the only place that builds or reads one. Pure.

Every key starts with `version (u8 = 1) | type (u8)`. Integers are big-endian, so byte order is
value order. TB is TerminatedBytes (scalars.py), which keeps the order too.

    type  name        rest of the key                               value (file of codec/)
    01    payload     message id (u64)                              payload.py      RFC 0001
    02    active      queue id (TB) | priority (u8) | bucket (u64)  queuestate.py   RFC 0001
    03    done        queue id (TB) | bucket (u64)                  queuestate.py   RFC 0001
    04    failed      queue id (TB) | bucket (u64)                  queuestate.py   RFC 0001
    05    attempts    queue id (TB) | message id (u64)              attempts.py     RFC 0001
    06    config      queue id (TB)                                 queueconfig.py  RFC 0001
    07    chain       n (u64); the newest also without n (head)     chain.py
    08    ids         kind (u8)                                     idblock.py
    09    name        kind (u8) | name (TB)                         catalogue.py
    0A    log         log id (u64)                                  logrow.py
    0B    node        log id (u64) | first offset (u64)             node.py
    0C    staging     staging id (u64)                              staging.py
    0D    staged      staging id (u64) | writer (u64) | n (u64)     node.py
    0E    once        scope (u8) | owner (u64) | id (TB)            once.py
    0F    hold        log id (u64) | holder (TB)                    once.py
    10    garbage     first key to remove (TB)                      garbage.py
    11    operations  commit n (u64)                                operations.py
    12    group       log id (u64) | name (TB)                      group.py
    13    page        owner id (u64) | page (u64); the head without  group.py, queueoperation.py,
                                                                    taken.py
    14    secret      name (TB)                                     bytes as they are
    15    router      (nothing more)                                router.py
    16    expiry      deadline (u64, ms) | first offset (u64)       router.py
    17    source      source id (u64) | part (u8)                   source.py
    18    shard       source id (u64) | identity (TB)               shard.py
    19    ended       source id (u64) | ended at (u64, ms) | identity (TB)     (nothing)
    1A    published   source id (u64) | sequence (u64)              published.py
    1B    splits      source id (u64) | staging id (u64)            splits.py
    1C    processor   processor id (u64)                            processor.py
    1D    backing     processor id (u64) | n (u64)                  backing.py
    20    topic       topic id (u64)                                topic.py
    21    topic page  topic id (u64) | space (u64) | page (u64)     topic.py
    22    error       topic id (u64) | offset (u64) | space (u64)   topicerror.py
"""

from __future__ import annotations

import struct
from enum import IntEnum

from penstock.codec.scalars import (
    U64_MAX,
    Reader,
    encode_terminated,
    encode_u8,
    encode_u64_key,
    lex_increment,
)
from penstock.errors import CorruptError

VERSION = 1
#: Payloads of one record, whose key is the id of the first, at most.
PAYLOADS_MAX = 1000


class KeyType(IntEnum):
    PAYLOAD = 0x01
    ACTIVE = 0x02
    DONE = 0x03
    FAILED = 0x04
    ATTEMPTS = 0x05
    CONFIG = 0x06
    CHAIN = 0x07
    IDS = 0x08
    NAME = 0x09
    LOG = 0x0A
    NODE = 0x0B
    STAGING = 0x0C
    STAGED = 0x0D
    ONCE = 0x0E
    HOLD = 0x0F
    GARBAGE = 0x10
    OPERATIONS = 0x11
    GROUP = 0x12
    PAGE = 0x13
    SECRET = 0x14
    ROUTER = 0x15
    EXPIRY = 0x16
    SOURCE = 0x17
    SHARD = 0x18
    ENDED = 0x19
    PUBLISHED = 0x1A
    SPLITS = 0x1B
    PROCESSOR = 0x1C
    BACKING = 0x1D
    TOPIC = 0x20
    TOPIC_PAGE = 0x21
    ERROR = 0x22


class Kind(IntEnum):
    """The name spaces of the catalogue. A name is unique within its kind."""

    STREAM = 1
    QUEUE = 2
    TOPIC = 3
    GRAPH = 4
    SOURCE = 5
    #: The metadata log of RFC 0001 and other logs that no user command can reach.
    INTERNAL = 6


class Scope(IntEnum):
    """Whose idempotency a `once` row keeps."""

    PRODUCER = 1
    DEDUP = 2
    QUERY = 3
    PUBLISH = 4
    LINK = 5
    STAGING = 6


_PREFIX = {kind: bytes((VERSION, kind)) for kind in KeyType}
_TWO_IDS = struct.Struct(">QQ")
_NODE_KEY_BYTES = 2 + _TWO_IDS.size

CHAIN_HEAD = _PREFIX[KeyType.CHAIN]


def prefix(kind: KeyType) -> bytes:
    return _PREFIX[kind]


def prefix_end(start: bytes) -> bytes:
    """Where a scan over everything that starts with `start` ends (exclusive)."""
    end = lex_increment(start)
    assert end is not None, "a key starts with version 1"
    return end


def key_type(key: bytes) -> KeyType:
    if len(key) < 2 or key[0] != VERSION:
        raise CorruptError(f"key {key[:16].hex()}: unknown version at byte 0")
    try:
        return KeyType(key[1])
    except ValueError:
        raise CorruptError(f"key {key[:16].hex()}: unknown type {key[1]:#04x} at byte 1") from None


def open_key(key: bytes, expected: KeyType) -> Reader:
    """A reader placed behind the prefix of a key of the expected type."""
    found = key_type(key)
    if found != expected:
        raise CorruptError(
            f"key {key[:16].hex()}: type {found.name} at byte 1, expected {expected.name}"
        )
    reader = Reader(key, f"{expected.name.lower()} key")
    reader.at = 2
    return reader


def payload_key(message_id: int) -> bytes:
    return _PREFIX[KeyType.PAYLOAD] + encode_u64_key(message_id, "message id")


def payloads_from(message_id: int) -> bytes:
    """Of the records that can hold this message. A floor lookup begins here: the engine opens every
    table that may hold a part of its range."""
    return payload_key(max(message_id - PAYLOADS_MAX + 1, 0))


def active_key(queue_id: bytes, priority: int, bucket: int) -> bytes:
    return b"".join(
        (
            _PREFIX[KeyType.ACTIVE],
            encode_terminated(queue_id),
            encode_u8(priority, "priority"),
            encode_u64_key(bucket, "bucket"),
        )
    )


def done_key(queue_id: bytes, bucket: int) -> bytes:
    return _PREFIX[KeyType.DONE] + encode_terminated(queue_id) + encode_u64_key(bucket, "bucket")


def failed_key(queue_id: bytes, bucket: int) -> bytes:
    return _PREFIX[KeyType.FAILED] + encode_terminated(queue_id) + encode_u64_key(bucket, "bucket")


def attempts_key(queue_id: bytes, message_id: int) -> bytes:
    return (
        _PREFIX[KeyType.ATTEMPTS]
        + encode_terminated(queue_id)
        + encode_u64_key(message_id, "message id")
    )


def config_key(queue_id: bytes) -> bytes:
    return _PREFIX[KeyType.CONFIG] + encode_terminated(queue_id)


def chain_key(n: int) -> bytes:
    return CHAIN_HEAD + encode_u64_key(n, "commit number")


def ids_key(kind: int) -> bytes:
    return _PREFIX[KeyType.IDS] + encode_u8(kind, "id kind")


def name_key(kind: Kind, name: bytes) -> bytes:
    return _PREFIX[KeyType.NAME] + bytes((kind,)) + encode_terminated(name)


def names_prefix(kind: Kind) -> bytes:
    return _PREFIX[KeyType.NAME] + bytes((kind,))


def log_key(log_id: int) -> bytes:
    return _PREFIX[KeyType.LOG] + encode_u64_key(log_id, "log id")


def node_key(log_id: int, first: int) -> bytes:
    return nodes_prefix(log_id) + encode_u64_key(first, "offset")


def nodes_prefix(log_id: int) -> bytes:
    return _PREFIX[KeyType.NODE] + encode_u64_key(log_id, "log id")


def last_node_key(log_id: int) -> bytes:
    return node_key(log_id, U64_MAX)


def staging_key(staging_id: int) -> bytes:
    return _PREFIX[KeyType.STAGING] + encode_u64_key(staging_id, "staging id")


def staged_key(staging_id: int, writer: int, n: int) -> bytes:
    return staged_prefix(staging_id, writer) + encode_u64_key(n, "staged node")


def staged_prefix(staging_id: int, writer: int | None = None) -> bytes:
    start = _PREFIX[KeyType.STAGED] + encode_u64_key(staging_id, "staging id")
    return start if writer is None else start + encode_u64_key(writer, "writer")


def once_key(scope: Scope, owner: int, identity: bytes) -> bytes:
    return b"".join(
        (
            _PREFIX[KeyType.ONCE],
            bytes((scope,)),
            encode_u64_key(owner, "owner"),
            encode_terminated(identity),
        )
    )


def hold_key(log_id: int, holder: bytes) -> bytes:
    return holds_prefix(log_id) + encode_terminated(holder)


def holds_prefix(log_id: int) -> bytes:
    return _PREFIX[KeyType.HOLD] + encode_u64_key(log_id, "log id")


def garbage_key(first_key: bytes) -> bytes:
    return _PREFIX[KeyType.GARBAGE] + encode_terminated(first_key)


def operations_key(n: int) -> bytes:
    return _PREFIX[KeyType.OPERATIONS] + encode_u64_key(n, "commit number")


def group_key(log_id: int, name: bytes) -> bytes:
    return groups_prefix(log_id) + encode_terminated(name)


def groups_prefix(log_id: int) -> bytes:
    return _PREFIX[KeyType.GROUP] + encode_u64_key(log_id, "log id")


def head_key(owner_id: int) -> bytes:
    return pages_prefix(owner_id)


def page_key(owner_id: int, page: int) -> bytes:
    return pages_prefix(owner_id) + encode_u64_key(page, "page")


def pages_prefix(owner_id: int) -> bytes:
    return _PREFIX[KeyType.PAGE] + encode_u64_key(owner_id, "owner id")


def secret_key(name: bytes) -> bytes:
    return _PREFIX[KeyType.SECRET] + encode_terminated(name)


def router_key() -> bytes:
    return _PREFIX[KeyType.ROUTER]


def expiry_key(deadline_ms: int, first: int) -> bytes:
    return b"".join(
        (
            _PREFIX[KeyType.EXPIRY],
            encode_u64_key(deadline_ms, "deadline"),
            encode_u64_key(first, "offset"),
        )
    )


def source_key(source_id: int, part: int) -> bytes:
    return source_prefix(KeyType.SOURCE, source_id) + encode_u8(part, "part of a source")


def shard_key(source_id: int, identity: bytes) -> bytes:
    return source_prefix(KeyType.SHARD, source_id) + encode_terminated(identity)


def ended_key(source_id: int, ended_ms: int, identity: bytes) -> bytes:
    return b"".join(
        (
            source_prefix(KeyType.ENDED, source_id),
            encode_u64_key(ended_ms, "end of a shard"),
            encode_terminated(identity),
        )
    )


def published_key(source_id: int, sequence: int) -> bytes:
    return source_prefix(KeyType.PUBLISHED, source_id) + encode_u64_key(sequence, "sequence")


def splits_key(source_id: int, staging_id: int) -> bytes:
    return source_prefix(KeyType.SPLITS, source_id) + encode_u64_key(staging_id, "staging id")


def source_prefix(kind: KeyType, source_id: int) -> bytes:
    """Everything of one source among its rows of this type."""
    return _PREFIX[kind] + encode_u64_key(source_id, "source id")


def processor_key(processor_id: int) -> bytes:
    return _PREFIX[KeyType.PROCESSOR] + encode_u64_key(processor_id, "processor id")


def backing_key(processor_id: int, n: int) -> bytes:
    return backing_prefix(processor_id) + encode_u64_key(n, "number of a record")


def backing_prefix(processor_id: int) -> bytes:
    return _PREFIX[KeyType.BACKING] + encode_u64_key(processor_id, "processor id")


def topic_key(topic_id: int) -> bytes:
    return topic_prefix(KeyType.TOPIC, topic_id)


def topic_page_key(topic_id: int, space: int, page: int) -> bytes:
    return b"".join(
        (
            topic_prefix(KeyType.TOPIC_PAGE, topic_id),
            encode_u64_key(space, "space"),
            encode_u64_key(page, "page"),
        )
    )


def error_key(topic_id: int, offset: int, space: int) -> bytes:
    return b"".join(
        (
            topic_prefix(KeyType.ERROR, topic_id),
            encode_u64_key(offset, "offset"),
            encode_u64_key(space, "space"),
        )
    )


def topic_prefix(kind: KeyType, topic_id: int) -> bytes:
    """Everything of one topic among its rows of this type."""
    return _PREFIX[kind] + encode_u64_key(topic_id, "topic id")


def queue_prefix(kind: KeyType, queue_id: bytes) -> bytes:
    """Everything of one queue among the records of RFC 0001 that are keyed by it."""
    return _PREFIX[kind] + encode_terminated(queue_id)


def decode_node_key(key: bytes) -> tuple[int, int]:
    """-> (log id, first offset)"""
    if len(key) == _NODE_KEY_BYTES and key.startswith(_PREFIX[KeyType.NODE]):
        # All of them, with every commit; what is wrong with another one the reader tells.
        log_id, first = _TWO_IDS.unpack_from(key, 2)
        return log_id, first
    reader = open_key(key, KeyType.NODE)
    ids = reader.u64_key("log id"), reader.u64_key("first offset")
    reader.end()
    return ids
