"""A message to publish, as producers give it and as it is checked. Pure.

Contract     `PreparedBatch` checks every item and encodes what does not depend on the commit: the
             headers and tail of the metadata record. Whatever is wrong is an InvalidError that says
             which item; nothing was done then. `bodies` gives the whole ones, laid out for the
             metadata log, once ids and time are known.
Bare         Most messages are nothing but a payload. A list of those stays a list of payloads
             (`Bare`), and nothing is done for each: that would cost more than storing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import msgspec
import numpy as np

from penstock.codec.catalogue import check_name
from penstock.codec.metadata import encode_rest
from penstock.codec.node import Body
from penstock.codec.payload import is_reserved_uri
from penstock.codec.queuestate import Entries
from penstock.codec.scalars import I64_MAX, U16_MAX, U32_MAX, encode_utf8
from penstock.errors import InvalidError
from penstock.log.batch import build_blob, build_columns
from penstock.queue.filter import check_header_name

DEDUP_BYTES_MAX = 255
#: Larger payloads become objects of their own.
INLINE_BYTES = 1 << 20
PAYLOAD_BYTES_MAX = 64 << 20
#: Fields before the headers of a metadata record: id, created, received, visible, retention.
_FIELDS = [
    ("message_id", "<u8"),
    ("created_at_ms", "<i8"),
    ("received_at_ms", "<i8"),
    ("visible_at_ms", "<i8"),
    ("retention_s", "<u4"),
]
_FIXED = np.dtype(_FIELDS)
#: A whole record: the last byte says that neither headers nor a tail of ours follow.
_BARE = np.dtype([*_FIELDS, ("headers", "u1")])
_BARE_TAIL = b"\x00"
NO_HEADERS: Mapping[str, str] = {}


class Item(msgspec.Struct, frozen=True, gc=False):
    payload: bytes = b""
    uri: str | None = None  # instead of the payload
    headers: Mapping[str, str] = NO_HEADERS
    to: str | None = None
    delay_ms: int = 0  # visible so long after it was received
    visible_at_ms: int | None = None  # or then
    retention_s: int = 0  # 0: for ever
    dedup_id: str | None = None
    created_at_ms: int | None = None  # None: when it was received
    reserved: int | None = None  # its id, where a payload of the batch is an object by now


class Bare(Sequence[Item]):
    """Messages that are nothing but a payload, each of at most PAYLOAD_BYTES_MAX."""

    __slots__ = ("payloads",)

    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Item]:
        return map(Item, self.payloads)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bare) and other.payloads == self.payloads

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Bare: ...

    def __getitem__(self, at: int | slice) -> Item | Bare:
        return Bare(self.payloads[at]) if isinstance(at, slice) else Item(self.payloads[at])


def payloads_of(items: Sequence[Item]) -> list[bytes]:
    """One for each; of those that have a URI it is empty."""
    return items.payloads if isinstance(items, Bare) else [item.payload for item in items]


def _is_bare(item: Item) -> bool:
    return (
        item.uri is None
        and not item.headers
        and item.to is None
        and item.dedup_id is None
        and not item.delay_ms
        and item.visible_at_ms is None
        and not item.retention_s
        and item.created_at_ms is None
        and item.reserved is None
    )


class PreparedBatch:
    def __init__(self, items: Sequence[Item]) -> None:
        if not isinstance(items, Bare) and all(map(_is_bare, items)):
            items = Bare(payloads_of(items))
        self.items = items
        self.payloads = payloads_of(items)
        #: None: no message has headers; none is addressed; none has a dedup id.
        self.headers: list[Mapping[str, str]] | None = None
        self.to: list[str | None] | None = None
        self.dedup_ids: list[str | None] | None = None
        self.reserved: list[int] | None = None
        self.with_uris = False
        self._tails: list[bytes] | None = None
        lengths = list(map(len, self.payloads))
        self.size = sum(lengths) + len(items)
        if not isinstance(items, Bare):
            self._look_at(items)
        elif lengths and max(lengths) > INLINE_BYTES:
            raise _too_large(lengths.index(max(lengths)), max(lengths))

    def _look_at(self, items: Sequence[Item]) -> None:
        self._tails = [_tail(i, item) for i, item in enumerate(items)]
        self.size += sum(map(len, self._tails)) - len(items)
        self.with_uris = any(item.uri is not None for item in items)
        if any(item.headers for item in items):
            self.headers = [item.headers for item in items]
        if any(item.to is not None for item in items):
            self.to = [item.to for item in items]
        if any(item.dedup_id is not None for item in items):
            self.dedup_ids = [item.dedup_id for item in items]
        reserved = [item.reserved for item in items if item.reserved is not None]
        assert len(reserved) in (0, len(items)), "all of a batch or none"
        self.reserved = reserved or None

    def __len__(self) -> int:
        return len(self.items)

    def part(self, chosen: Sequence[int]) -> PreparedBatch:
        """These alone."""
        return PreparedBatch([self.items[i] for i in chosen])

    def fixed(self, ids: Sequence[int], now_ms: int) -> Entries:
        """The fixed fields of the metadata records, received now."""
        fixed = np.zeros(len(self), _BARE if self._tails is None else _FIXED)
        fixed["message_id"] = (
            np.arange(ids.start, ids.stop, ids.step) if isinstance(ids, range) else ids
        )
        fixed["received_at_ms"] = now_ms
        if self._tails is None:
            fixed["created_at_ms"] = fixed["visible_at_ms"] = now_ms
            return fixed
        fixed["created_at_ms"] = [
            now_ms if item.created_at_ms is None else item.created_at_ms for item in self.items
        ]
        fixed["visible_at_ms"] = [
            min(now_ms + item.delay_ms, I64_MAX)
            if item.visible_at_ms is None
            else item.visible_at_ms
            for item in self.items
        ]
        fixed["retention_s"] = [item.retention_s for item in self.items]
        return fixed

    def bodies(self, fixed: Entries) -> list[Body]:
        """The metadata records, which begin with these fields."""
        raw, size = fixed.tobytes(), fixed.itemsize
        if self._tails is None:
            return build_blob(np.arange(0, len(raw) + size, size), raw)
        starts = range(0, len(raw), size)
        return build_columns(
            [raw[at : at + size] + tail for at, tail in zip(starts, self._tails, strict=True)]
        )


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


def _too_large(i: int | None, size: int) -> InvalidError:
    where = "" if i is None else f"message {i}: "
    return InvalidError(f"{where}payload of {size} bytes is too large for one record")


def _check(item: Item) -> None:
    if item.uri is not None:
        size = len(item.uri.encode("utf-8", "surrogatepass"))
        if not 0 < size <= U16_MAX:
            raise InvalidError(f"a URI of {size} bytes; 1 to {U16_MAX} are allowed")
        encode_utf8(item.uri, "URI")  # a lone surrogate is no text
        if is_reserved_uri(item.uri) and item.reserved is None:
            raise InvalidError(f"URI {item.uri[:64]!r}: this scheme is reserved")
    elif len(item.payload) > INLINE_BYTES:
        raise _too_large(None, len(item.payload))
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
