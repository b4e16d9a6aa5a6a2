"""What a handler wants to happen together with the acknowledgement of its message.

Contract     Each call checks its arguments where it is called and only notes what is wanted; all of
             it is committed with the acknowledgement, or none of it. Once the handler has returned
             or raised, a call is an InvalidError: nobody would commit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from penstock.broker.topicanswers import Effect, TxPublish, TxPush, TxWrite
from penstock.broker.topics import topic_name
from penstock.client.publish import URI, Publish, item_of
from penstock.errors import InvalidError
from penstock.log.batch import TAG_BYTES_MAX, encode_tag
from penstock.log.catalogue import stream_name
from penstock.queue.item import PreparedBatch


class Tx:
    """Pushes, publishes and writes of one message, committed with its acknowledgement."""

    __slots__ = ("_closed", "_effects")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._closed = False

    def push(self, topic: str, data: bytes, shard_key: str | bytes | None = None) -> None:
        """As `db.topic(topic).push(data, shard_key)`."""
        topic_name(topic)
        self._add(TxPush(topic, _data(data), _tag("a shard key", shard_key)))

    def write(self, stream: str, data: bytes, tag: str | bytes = "") -> None:
        """As `db.stream(stream).write(data, tag)`."""
        stream_name(stream)
        self._add(TxWrite(stream, _data(data), _tag("a tag", tag)))

    def publish(
        self,
        payload: bytes | URI,
        headers: Mapping[str, str] | None = None,
        *,
        to: str | None = None,
        delay: float = 0,
        retention: float = 0,
        dedup_id: str | None = None,
        created_at: datetime | None = None,
        visible_at: datetime | None = None,
    ) -> None:
        """As `db.publish`."""
        message = Publish(payload, headers, to, delay, retention, dedup_id, created_at, visible_at)
        item = item_of(message)
        PreparedBatch([item])  # what could not be stored is told here
        self._add(TxPublish(item))

    def _add(self, effect: Effect) -> None:
        if self._closed:
            raise InvalidError(
                "the message of this transaction is done", hint="use it inside the handler"
            )
        self._effects.append(effect)

    def _close(self) -> list[Effect]:
        self._closed = True
        return self._effects


def _data(data: object) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidError(f"data is bytes, not {type(data).__name__}")
    return bytes(data)


def _tag(what: str, tag: str | bytes | None) -> bytes:
    found = encode_tag(tag)
    if len(found) > TAG_BYTES_MAX:
        raise InvalidError(f"{what} of {len(found)} bytes; at most {TAG_BYTES_MAX} are allowed")
    return found
