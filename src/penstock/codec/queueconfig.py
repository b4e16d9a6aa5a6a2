"""Queue config: what a queue takes and how it treats it. Pure.

    Queue Config Value:   filter (Utf8) | max attempts (u16)
                          | retention of done messages in seconds (u32)                 RFC 0001
    ours:                 options, drawn in catalogue.py

Contract     The filter is canonical SQL text. What the RFC has no field for (lease, back-off,
             priority expression, ...) is an option. Options that this version does not know are
             kept as they are, so that an older broker can alter a newer one's queue.
Invariants   Each value has one encoding.
Not here     What a filter or an option means, and its canonical form (queue).
"""

from __future__ import annotations

import msgspec

from penstock.codec.catalogue import Options, encode_options, read_options
from penstock.codec.scalars import Reader, encode_u16, encode_u32, encode_utf8


class QueueConfig(msgspec.Struct, frozen=True):
    filter: str  # which messages the queue takes; empty: all that are not addressed
    max_attempts: int  # after as many failed ones a message is failed; 0 is no limit
    done_retention_s: int  # counted from done at; 0 is for ever
    options: Options = ()


def encode_queue_config(config: QueueConfig) -> bytes:
    return b"".join(
        (
            encode_utf8(config.filter, "filter"),
            encode_u16(config.max_attempts, "max attempts"),
            encode_u32(config.done_retention_s, "retention of done messages in seconds"),
            encode_options(config.options),
        )
    )


def decode_queue_config(data: bytes) -> QueueConfig:
    reader = Reader(data, "queue config")
    config = QueueConfig(
        filter=reader.utf8("filter"),
        max_attempts=reader.u16("max attempts"),
        done_retention_s=reader.u32("retention of done messages"),
        options=read_options(reader),
    )
    reader.end()
    return config
