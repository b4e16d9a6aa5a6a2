"""A message to publish, as producers give it and as it is checked. Pure.

Contract     `PreparedBatch` checks every item and encodes what does not depend on the commit: the
             headers and tail of the metadata record. Whatever is wrong is an InvalidError that says
             which item; nothing was done then. `records` gives the whole ones once ids and time are
             known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from penstock.codec.catalogue import check_name
from penstock.codec.metadata import encode_rest
from penstock.codec.payload import is_reserved_uri
from penstock.codec.queuestate import Entries
from penstock.codec.scalars import I64_MAX, U16_MAX, U32_MAX, encode_utf8
from penstock.errors import InvalidError
from penstock.queue.filter import check_header_name

DEDUP_BYTES_MAX = 255
#: Larger payloads become objects of their own.
INLINE_BYTES = 1 << 20
PAYLOAD_BYTES_MAX = 64 << 20
#: Fields before the headers of a metadata record: id, created, received, visible, retention.
_FIXED = np.dtype(
    [
        ("message_id", "<u8"),
        ("created_at_ms", "<i8"),
        ("received_at_ms", "<i8"),
        ("visible_at_ms", "<i8"),
        ("retention_s", "<u4"),
    ]
)
_NO_HEADERS: Mapping[str, str] = {}
_BARE_TAIL = b"\x00"


class Item(msgspec.Struct, frozen=True, gc=False):
    payload: bytes = b""
    uri: str | None = None  # instead of the payload
    headers: Mapping[str, str] = _NO_HEADERS
    to: str | None = None
    delay_ms: int = 0  # visible so long after it was received
    visible_at_ms: int | None = None  # or then
    retention_s: int = 0  # 0: for ever
    dedup_id: str | None = None
    created_at_ms: int | None = None  # None: when it was received
    reserved: int | None = None  # its id, where a payload of the batch is an object by now


class PreparedBatch:
    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        #: Nothing but payloads, as most are.
        self.plain = all(
            item.uri is None
            and not item.headers
            and item.to is None
            and item.dedup_id is None
            and not item.delay_ms
            and item.visible_at_ms is None
            and not item.retention_s
            and item.created_at_ms is None
            and len(item.payload) <= INLINE_BYTES
            for item in items
        )
        self.tails = (
            [_BARE_TAIL] * len(items)
            if self.plain
            else [_tail(i, item) for i, item in enumerate(items)]
        )
        reserved = [item.reserved for item in items if item.reserved is not None]
        assert len(reserved) in (0, len(items)), "all of a batch or none"
        self.reserved = reserved or None
        self.size = sum(len(item.payload) for item in items) + sum(map(len, self.tails))

    def __len__(self) -> int:
        return len(self.items)

    def fixed(self, ids: Sequence[int], chosen: Sequence[int], now_ms: int) -> Entries:
        """The fixed fields of the chosen items, received now."""
        fixed = np.zeros(len(chosen), _FIXED)
        fixed["message_id"] = ids
        fixed["received_at_ms"] = now_ms
        if self.plain:
            fixed["created_at_ms"] = fixed["visible_at_ms"] = now_ms
            return fixed
        items = [self.items[i] for i in chosen]
        fixed["created_at_ms"] = [
            now_ms if item.created_at_ms is None else item.created_at_ms for item in items
        ]
        fixed["visible_at_ms"] = [
            min(now_ms + item.delay_ms, I64_MAX)
            if item.visible_at_ms is None
            else item.visible_at_ms
            for item in items
        ]
        fixed["retention_s"] = [item.retention_s for item in items]
        return fixed

    def records(self, fixed: Entries, chosen: Sequence[int]) -> list[bytes]:
        raw, size = fixed.tobytes(), _FIXED.itemsize
        return [
            raw[at : at + size] + self.tails[i]
            for at, i in zip(range(0, len(raw), size), chosen, strict=True)
        ]


def _tail(i: int, item: Item) -> bytes:
    """Headers and our tail, checked."""
    try:
        _check(item)
        if not item.headers and item.to is None and item.dedup_id is None:
            return _BARE_TAIL
        for name, value in item.headers.items():
            check_header_name(name)
            if not isinstance(value, str):
                raise InvalidError(f"header {name!r} is text, not {type(value).__name__}")
        return encode_rest(item.headers.items(), item.to, item.dedup_id)
    except InvalidError as error:
        raise InvalidError(f"message {i}: {error}", hint=error.hint) from None


def _check(item: Item) -> None:
    if item.uri is not None:
        size = len(item.uri.encode("utf-8", "surrogatepass"))
        if not 0 < size <= U16_MAX:
            raise InvalidError(f"a URI of {size} bytes; 1 to {U16_MAX} are allowed")
        encode_utf8(item.uri, "URI")  # a lone surrogate is no text
        if is_reserved_uri(item.uri) and item.reserved is None:
            raise InvalidError(f"URI {item.uri[:64]!r}: this scheme is reserved")
    elif len(item.payload) > INLINE_BYTES:
        raise InvalidError(f"payload of {len(item.payload)} bytes is too large for one record")
    if item.to is not None:
        check_name("queue", item.to)
    if item.dedup_id is not None:
        size = len(item.dedup_id.encode("utf-8", "surrogatepass"))
        if not 0 < size <= DEDUP_BYTES_MAX:
            raise InvalidError(f"dedup id of {size} bytes; 1 to {DEDUP_BYTES_MAX} are allowed")
    if item.delay_ms < 0:
        raise InvalidError("a delay is not negative")
    if not 0 <= item.retention_s <= U32_MAX:
        raise InvalidError(f"a retention of {item.retention_s} s; at most {U32_MAX} are allowed")
    for time in (item.created_at_ms, item.visible_at_ms):
        if time is not None and not 0 <= time <= I64_MAX:
            raise InvalidError(f"a time of {time} ms since 1970 cannot be stored")
