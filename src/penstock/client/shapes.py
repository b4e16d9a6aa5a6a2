"""Maps that come over the wire, as the values that the broker gives in-process."""

from __future__ import annotations

from typing import Any

from penstock.broker.answers import StreamInfo
from penstock.stream.config import StreamConfig
from penstock.stream.groups import GroupInfo


def stream_info(found: dict[bytes, Any]) -> StreamInfo:
    return StreamInfo(
        first=found[b"first"],
        last=found[b"last"],
        length=found[b"length"],
        bytes=found[b"bytes"],
        created_ms=found[b"created_at"],
        config=StreamConfig(
            max_count=found[b"maxlen"] or None,
            max_bytes=found[b"maxbytes"] or None,
            max_age_ms=found[b"maxage"] or None,
            compact=found[b"compact"] == b"yes",
        ),
        groups=found[b"groups"],
    )


def group_info(found: dict[bytes, Any]) -> GroupInfo:
    dead = found[b"dead"]
    return GroupInfo(
        name=found[b"name"].decode(),
        last_offset=found[b"last_offset"],
        ack_offset=found[b"ack_offset"],
        pending=found[b"pending"],
        expired=found[b"expired"],
        skipped=found[b"skipped"],
        max_pending=found[b"max_pending"],
        dead=dead.decode() if dead else None,
    )
