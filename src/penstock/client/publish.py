"""Messages as producers give them -> items as a broker takes them. In the caller's thread.

Contract     Whatever is wrong is an InvalidError that says which message, before anything is sent.
             Durations are seconds: a delay becomes whole milliseconds and a retention whole
             seconds, both rounded up, so that nothing comes or goes too early. Times are aware
             datetimes.
Arrow        A RecordBatch or Table has the columns payload (binary) and, where they are needed,
             headers (map of text to text), to, delay, retention, dedup_id. A null is as if it had
             been left out.
Not here     What may be stored (queue/item.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from penstock.client.checks import milliseconds
from penstock.codec.catalogue import check_name
from penstock.errors import InvalidError
from penstock.queue.item import PAYLOAD_BYTES_MAX, Bare, Item

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NONE: Mapping[str, str] = {}


class URI(str):
    """As a payload: the data lies there, and consumers get it as `message.uri`."""

    __slots__ = ()


class Publish(msgspec.Struct, frozen=True):
    """A message for `publish_many`; the fields are the arguments of `publish`."""

    payload: bytes | URI
    headers: Mapping[str, str] | None = None
    to: str | None = None
    delay: float = 0
    retention: float = 0
    dedup_id: str | None = None
    created_at: datetime | None = None
    visible_at: datetime | None = None


Published = Publish | bytes | URI | tuple[bytes | URI, Mapping[str, str]]


def item_of(message: Publish) -> Item:
    payload, uri = _payload(message.payload)
    delay_ms = milliseconds("delay", message.delay)
    if delay_ms is None:
        raise InvalidError("delay is finite")
    if delay_ms and message.visible_at is not None:
        raise InvalidError("a message has delay or visible_at, not both")
    return Item(
        payload=payload,
        uri=uri,
        headers=_headers(message.headers),
        to=_queue(message.to),
        delay_ms=delay_ms,
        visible_at_ms=ms_of("visible_at", message.visible_at, up=True),
        retention_s=seconds_up("retention", message.retention),
        dedup_id=_dedup(message.dedup_id),
        created_at_ms=ms_of("created_at", message.created_at),
    )


def items_of(messages: object) -> Sequence[Item]:
    if isinstance(messages, pa.RecordBatch | pa.Table):
        return _arrow_items(messages)
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping | Publish):
        raise InvalidError(f"messages are a list, not {type(messages).__name__}")
    if not isinstance(messages, Iterable):
        raise InvalidError(f"messages are a list, not {type(messages).__name__}")
    listed = list(messages)
    if set(map(type, listed)) == {bytes} and max(map(len, listed)) <= PAYLOAD_BYTES_MAX:
        return Bare(listed)  # by far the most frequent
    return [_numbered(i, message) for i, message in enumerate(listed)]


def _numbered(i: int, message: object) -> Item:
    try:
        match message:
            case Publish():
                return item_of(message)
            case tuple():
                if len(message) != 2:
                    raise InvalidError(f"a tuple is (payload, headers), not of {len(message)}")
                payload, uri = _payload(message[0])
                return Item(payload, uri, _headers(message[1]))
            case _:
                return Item(*_payload(message))
    except InvalidError as error:
        raise InvalidError(f"message {i}: {error}", hint=error.hint) from None


def _payload(payload: object) -> tuple[bytes, str | None]:
    if isinstance(payload, URI):
        return b"", str(payload)
    if isinstance(payload, bytearray | memoryview):
        payload = bytes(payload)
    if not isinstance(payload, bytes):
        raise InvalidError(
            f"a payload is bytes or a penstock.URI, not {type(payload).__name__}",
            hint="encode text yourself" if isinstance(payload, str) else None,
        )
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidError(
            f"payload of {len(payload):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are allowed",
            hint="put it somewhere yourself and publish its penstock.URI",
        )
    return payload, None


def _headers(headers: object) -> Mapping[str, str]:
    if headers is None:
        return _NONE
    if not isinstance(headers, Mapping):
        raise InvalidError(f"headers are a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidError(f"headers are text, not {name!r}: {value!r}")
    return dict(headers)


def _queue(to: object) -> str | None:
    if to is not None:
        check_name("queue", to)  # type: ignore[arg-type]
    return to  # type: ignore[return-value]


def _dedup(dedup_id: object) -> str | None:
    if dedup_id is not None and not isinstance(dedup_id, str):
        raise InvalidError(f"dedup_id is text, not {type(dedup_id).__name__}")
    return dedup_id


def seconds_up(what: str, seconds: object) -> int:
    """Whole seconds, rounded up; 0 and math.inf are for ever."""
    ms = milliseconds(what, seconds)
    return 0 if ms is None else math.ceil(ms / 1000)


def ms_of(what: str, time: object, *, up: bool = False) -> int | None:
    if time is None:
        return None
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise InvalidError(
            f"{what} is an aware datetime, not {time!r}", hint="datetime.now(timezone.utc)"
        )
    since = time - EPOCH
    if since < timedelta(0):
        raise InvalidError(f"{what} {time} is before 1970")
    return -(-since // _MS) if up else since // _MS


def time_of(ms: int) -> datetime:
    """Of milliseconds since 1970; what no datetime can be is the last one."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


# ---- Arrow ------------------------------------------------------------------------------------

_COLUMNS = ("payload", "headers", "to", "delay", "retention", "dedup_id")


def _arrow_items(batch: pa.RecordBatch | pa.Table) -> list[Item]:
    names = batch.schema.names
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown or "payload" not in names or len(set(names)) < len(names):
        shown = ", ".join(map(repr, names))
        raise InvalidError(
            f"a batch has the columns payload and, if needed, {', '.join(_COLUMNS[1:])}, "
            f"each once; not {shown}"
        )
    kinds = {name: batch.schema.field(name).type for name in names}
    if not _is_binary(kinds["payload"]):
        raise InvalidError(f"column payload is binary, not {kinds['payload']}")
    if "headers" in kinds and not pa.types.is_map(kinds["headers"]):
        raise InvalidError(f"column headers is a map of text to text, not {kinds['headers']}")
    columns = {name: batch.column(name).to_pylist() for name in names}
    if names == ["payload"] and None not in columns["payload"]:
        return [_numbered(i, payload) for i, payload in enumerate(columns["payload"])]
    return [
        _numbered(i, _row(i, dict(zip(columns, row, strict=True))))
        for i, row in enumerate(zip(*columns.values(), strict=True))
    ]


def _row(i: int, row: dict[str, Any]) -> Publish:
    given = {name: value for name, value in row.items() if value is not None}
    if "headers" in given:
        headers: dict[str, str] = {}
        for name, value in given["headers"]:
            if name in headers:  # an Arrow map may have a key twice; a message may not
                raise InvalidError(f"message {i}: header {name!r} is given twice")
            headers[name] = value
        given["headers"] = headers
    return Publish(given.pop("payload", None), **given)


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )
