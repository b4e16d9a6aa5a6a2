"""The macro node: up to a thousand entries as one value, in Arrow's layout of binary columns. Pure.

    value       header (48 bytes) | body
    header      magic (u8 = 4E) | version (u8 = 1) | flags (u16) | count (u32) | first offset (u64)
                | time (i64, ms) | raw body bytes (u32) | stored body bytes (u32)
                | xxh3_64 of the stored body (u64) | crc32 (u32) | tag signature (u32)
    crc32       of the 40 bytes before it, then of the signature where that is not 0
    signature   bit xxh3_64(tag) % 32 of each tag in the body, and maybe others; 0: not known, as
                in every node without tags, and in small ones, where nobody computed it
    flags       0001 UNIFORM_TIME  all entries have the header's time; the body has no times
                0002 ZSTD          the body is compressed as a whole
                0004 TAGS          the tags are there (else every tag is empty)
                0008 META          the meta column is there (else no entry has meta)
                0010 VALIDITY      the bitmap is there (else every entry is alive)
                0020 FRAGMENT      small; to be merged with its neighbours
                0040 LINK          body = staging id (u64) | writer (u64) | n (u64): the staged node
                                   whose columns stand here
                0080 HOLE          no body: all entries are dead
    body (raw)  [times i64 * count] [data] [tags] [meta] [bitmap: bit i % 8 of byte i / 8: i lives]
    data, tags, meta   offset table (u32 * (count + 1)) | blob

Every value is little-endian and every piece of the body (a table, a blob, the times, the bitmap) is
padded with zeros to 8 bytes, so that a raw body holds aligned Arrow buffers.

Contract     A `Body` is everything that does not depend on the place in a log: it is built,
             compressed and hashed in the caller's thread, before the one writer knows first offset
             and time. That is why the times are optional: entries of one commit share the header's
             time, and the writer only packs 48 bytes. `decode_*` raise CorruptError, with `what`
             and the field, for any bytes that an encoder here did not make.
Invariants   A table starts at 0 and never falls; its last value is the size of its blob. A dead
             entry is zero bytes long in every column. Meta of zero bytes is no meta. The header's
             time is that of the newest entry: times never fall within a log.
Not here     how entries become columns (log/batch.py), Arrow (log/arrow.py), who merges
             (log/merge.py).
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from penstock.codec.scalars import U32_MAX
from penstock.errors import CorruptError, InvalidError

UNIFORM_TIME = 0x0001
ZSTD = 0x0002
TAGS = 0x0004
META = 0x0008
VALIDITY = 0x0010
FRAGMENT = 0x0020
LINK = 0x0040
HOLE = 0x0080

_KNOWN_FLAGS = 0x00FF
_BODY_FLAGS = UNIFORM_TIME | ZSTD | TAGS | META | VALIDITY
_WITHOUT_COLUMNS = (LINK | UNIFORM_TIME, HOLE | UNIFORM_TIME)
_MAGIC = 0x4E
_VERSION = 1
_HEADER = struct.Struct("<BBHIQqIIQ")
_SEAL = struct.Struct("<II")
_U32 = struct.Struct("<I")
_LINK = struct.Struct("<QQQ")
HEADER_BYTES = _HEADER.size + _SEAL.size
#: Arrow's binary offsets are signed, so a column ends one bit before a u32 does.
COLUMN_BYTES_MAX = 0x7FFF_FFFF
#: A signature that says nothing, with or without reading the header: any tag may be there.
ANY_TAG = U32_MAX
#: More distinct tags than these set nearly every bit: then the rest is not looked at.
SIGNATURE_TAGS_MAX = 64
#: Compression must save at least an eighth, or reading would pay for nothing.
_WORTH = 0.875

Table = npt.NDArray[np.uint32]
#: Offset table (the bytes of u32 * (count + 1)) and blob.
Column = tuple[bytes, bytes]

_zstd = threading.local()


class Body(msgspec.Struct, frozen=True, gc=False):
    """The part of a node that is the same wherever the node goes."""

    flags: int  # those that describe the body: UNIFORM_TIME, ZSTD, TAGS, META, VALIDITY
    count: int  # entries
    raw_bytes: int  # size before compression
    stored: bytes  # as it is written
    checksum: int  # xxh3_64 of `stored`
    signature: int = 0  # of the tags; 0: not computed, or no tags


class Header(msgspec.Struct, frozen=True, gc=False):
    flags: int
    count: int
    first: int
    time_ms: int
    raw_bytes: int
    stored_bytes: int
    checksum: int
    signature: int

    @property
    def end(self) -> int:
        """The offset after the last entry."""
        return self.first + self.count


class StagedId(msgspec.Struct, frozen=True, gc=False):
    """Which staged node a link row stands for."""

    staging_id: int
    writer: int
    n: int


def _pad(size: int) -> bytes:
    return bytes(-size % 8)


def build_body(
    count: int,
    data: Column,
    *,
    tags: Column | None = None,
    meta: Column | None = None,
    validity: bytes | None = None,
    times: bytes | None = None,
    compress: bool = False,
    signature: int = 0,
) -> Body:
    """Columns -> body. `compress` tries zstd and keeps it where it helps."""
    assert count > 0, "a node has entries"
    assert tags is not None or not signature, "a signature is one of tags"
    flags = 0
    pieces: list[bytes] = []
    if times is None:
        flags |= UNIFORM_TIME
    else:
        pieces.append(times)
    pieces += data
    for flag, column in ((TAGS, tags), (META, meta)):
        if column is not None:
            flags |= flag
            pieces += column
    if validity is not None:
        flags |= VALIDITY
        pieces.append(validity)
    padded: list[bytes] = []
    for piece in pieces:
        padded.append(piece)
        if len(piece) % 8:
            padded.append(_pad(len(piece)))
    raw = b"".join(padded)
    if len(raw) > U32_MAX:
        raise InvalidError(f"a node of {len(raw)} bytes; at most {U32_MAX} fit")
    stored = raw
    if compress:
        squeezed: bytes = _compressor().compress(raw)
        if len(squeezed) < len(raw) * _WORTH:
            stored = squeezed
            flags |= ZSTD
    return Body(flags, count, len(raw), stored, xxhash.xxh3_64_intdigest(stored), signature)


def tag_signature(tags: Collection[bytes]) -> int:
    """The signature of a node with these tags, each named once."""
    if len(tags) > SIGNATURE_TAGS_MAX:
        return ANY_TAG
    signature = 0
    for tag in tags:
        signature |= 1 << xxhash.xxh3_64_intdigest(tag) % 32
    return signature


def may_hold(header: Header, tags: Collection[bytes]) -> bool:
    """Whether an entry with one of these tags can be in the node. A link row does not tell."""
    if header.flags & LINK:
        return True
    if header.flags & HOLE:
        return False
    if not header.flags & TAGS:
        return b"" in tags
    return not header.signature or bool(header.signature & tag_signature(tags))


def _compressor() -> Any:
    # A compressor must not be used by two threads at once, and making one costs more than using it.
    made = getattr(_zstd, "compressor", None)
    if made is None:
        made = _zstd.compressor = zstandard.ZstdCompressor(level=1)
    return made


def _decompressor() -> Any:
    made = getattr(_zstd, "decompressor", None)
    if made is None:
        made = _zstd.decompressor = zstandard.ZstdDecompressor()
    return made


def _pack(
    flags: int,
    count: int,
    first: int,
    time_ms: int,
    raw_bytes: int,
    body: bytes,
    checksum: int,
    signature: int = 0,
) -> bytes:
    head = _HEADER.pack(
        _MAGIC, _VERSION, flags, count, first, time_ms, raw_bytes, len(body), checksum
    )
    return b"".join((head, _SEAL.pack(_header_crc(head, signature), signature), body))


def _header_crc(head: bytes | memoryview, signature: int) -> int:
    crc = zlib.crc32(head)
    return zlib.crc32(_U32.pack(signature), crc) if signature else crc


def node_value(body: Body, first: int, time_ms: int, *, fragment: bool = False) -> bytes:
    """What is stored for this body at this place."""
    flags = body.flags | FRAGMENT if fragment else body.flags
    return _pack(
        flags,
        body.count,
        first,
        time_ms,
        body.raw_bytes,
        body.stored,
        body.checksum,
        body.signature,
    )


def link_value(staged: StagedId, *, first: int, count: int, time_ms: int) -> bytes:
    """A row in the place of a node whose columns are still among the staged ones."""
    body = _LINK.pack(staged.staging_id, staged.writer, staged.n)
    checksum = xxhash.xxh3_64_intdigest(body)
    return _pack(LINK | UNIFORM_TIME, count, first, time_ms, len(body), body, checksum)


def hole_value(*, first: int, count: int, time_ms: int, fragment: bool = False) -> bytes:
    """A row in the place of a node without a living entry; a missing node is always corruption."""
    flags = HOLE | UNIFORM_TIME | (FRAGMENT if fragment else 0)
    return _pack(flags, count, first, time_ms, 0, b"", xxhash.xxh3_64_intdigest(b""))


def decode_header(value: bytes, what: str) -> Header:
    """The header, verified by itself and against the length of the value."""
    if len(value) < HEADER_BYTES:
        raise CorruptError(f"{what}: header needs {HEADER_BYTES} bytes, {len(value)} are there")
    magic, version, flags, count, first, time_ms, raw, stored, checksum = _HEADER.unpack_from(value)
    crc, signature = _SEAL.unpack_from(value, _HEADER.size)
    if magic != _MAGIC:
        raise CorruptError(f"{what}: magic is {magic:#04x}, not {_MAGIC:#04x}")
    if version != _VERSION:
        raise CorruptError(f"{what}: version {version} is unknown")
    if crc != _header_crc(memoryview(value)[: _HEADER.size], signature):
        raise CorruptError(f"{what}: checksum of the header does not match")
    if flags & ~_KNOWN_FLAGS:
        raise CorruptError(f"{what}: flags {flags:#06x} are unknown")
    if flags & (LINK | HOLE) and flags & ~FRAGMENT not in _WITHOUT_COLUMNS:
        raise CorruptError(f"{what}: flags {flags:#06x} contradict each other")
    if signature and not flags & TAGS:
        raise CorruptError(f"{what}: a signature of tags that are not there")
    if not count:
        raise CorruptError(f"{what}: count is 0")
    if stored != len(value) - HEADER_BYTES:
        raise CorruptError(
            f"{what}: stored body is {len(value) - HEADER_BYTES} bytes, the header says {stored}"
        )
    if not flags & ZSTD and raw != stored:
        raise CorruptError(f"{what}: raw body of {raw} bytes is stored in {stored}")
    return Header(flags, count, first, time_ms, raw, stored, checksum, signature)


def _verify_body(header: Header, value: bytes, what: str) -> None:
    if xxhash.xxh3_64_intdigest(memoryview(value)[HEADER_BYTES:]) != header.checksum:
        raise CorruptError(f"{what}: checksum of the body does not match")


def decode_link(header: Header, value: bytes, what: str) -> StagedId:
    assert header.flags & LINK, "only a link row names a staged node"
    _verify_body(header, value, what)
    if header.stored_bytes != _LINK.size:
        raise CorruptError(f"{what}: link is {header.stored_bytes} bytes, not {_LINK.size}")
    return StagedId(*_LINK.unpack_from(value, HEADER_BYTES))


def decode_body(header: Header, value: bytes, what: str) -> Body:
    """The body as it is stored, verified but not opened: to give it another header."""
    if header.flags & (LINK | HOLE):
        raise CorruptError(f"{what}: flags {header.flags:#06x} where columns are needed")
    _verify_body(header, value, what)
    return Body(
        header.flags & _BODY_FLAGS,
        header.count,
        header.raw_bytes,
        value[HEADER_BYTES:],
        header.checksum,
        header.signature,
    )


def body_columns(body: Body) -> tuple[Column, Column | None, Column | None] | None:
    """Data, tags and meta of a small body that never left memory, without the price of decoding.

    None where it is compressed, has times or dead entries: then make a node of it.
    """
    if body.flags & (ZSTD | VALIDITY) or not body.flags & UNIFORM_TIME:
        return None
    raw, at, size = body.stored, 0, 4 * (body.count + 1)
    found: list[Column | None] = []
    for present in (True, body.flags & TAGS, body.flags & META):
        if not present:
            found.append(None)
            continue
        start = at + size + -size % 8
        end = start + _U32.unpack_from(raw, at + size - 4)[0]
        found.append((raw[at : at + size], raw[start:end]))
        at = end + -end % 8
    data, tags, meta = found
    assert data is not None
    return data, tags, meta


def body_lists(body: Body) -> tuple[list[bytes], list[bytes] | None, list[bytes] | None] | None:
    """The same, cut into entries."""
    columns = body_columns(body)
    if columns is None:
        return None
    table = struct.Struct(f"<{body.count + 1}I")
    data, tags, meta = (
        [column[1][a:b] for a, b in pairwise(table.unpack(column[0]))] if column else None
        for column in columns
    )
    assert data is not None
    return data, tags, meta


class _Binary:
    """One column inside the raw body."""

    __slots__ = ("start", "table")

    def __init__(self, table: Table, start: int) -> None:
        self.table = table
        self.start = start  # where the blob begins in `raw`

    def sizes(self) -> npt.NDArray[np.int64]:
        return self.table[1:].astype(np.int64) - self.table[:-1]

    def column(self, raw: bytes) -> Column:
        return self.table.tobytes(), raw[self.start : self.start + int(self.table[-1])]

    def slices(self, raw: bytes, low: int, high: int) -> list[bytes]:
        edges = (self.table[low : high + 1].astype(np.int64) + self.start).tolist()
        return [raw[a:b] for a, b in pairwise(edges)]


class Node:
    """A decoded node. Tables are views into `raw`; entries are cut out when they are asked for."""

    __slots__ = (
        "count",
        "data",
        "first",
        "flags",
        "meta",
        "raw",
        "signature",
        "tags",
        "time_ms",
        "times",
        "validity",
    )

    first: int
    count: int
    time_ms: int
    flags: int
    raw: bytes  # what the columns point into: the value itself, or the decompressed body
    times: npt.NDArray[np.int64] | None
    data: _Binary | None  # None: a hole
    tags: _Binary | None
    meta: _Binary | None
    validity: int | None  # where the bitmap begins in `raw`
    signature: int

    def __init__(self, header: Header, raw: bytes, *, first: int, time_ms: int) -> None:
        self.first = first
        self.count = header.count
        self.time_ms = time_ms
        self.flags = header.flags
        self.signature = header.signature
        self.raw = raw
        self.times = None
        self.data = self.tags = self.meta = self.validity = None

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def memory_bytes(self) -> int:
        return len(self.raw)

    def value(self) -> bytes:
        """The node as one value again, at its place and not compressed: for readers elsewhere."""
        if self.data is None:
            return hole_value(first=self.first, count=self.count, time_ms=self.time_ms)
        body = self.raw if self.flags & ZSTD else self.raw[HEADER_BYTES:]
        flags = self.flags & ~(ZSTD | FRAGMENT)
        checksum = xxhash.xxh3_64_intdigest(body)
        place = (flags, self.count, self.first, self.time_ms)
        return _pack(*place, len(body), body, checksum, self.signature)

    def alive(self) -> npt.NDArray[np.bool_] | None:
        """One truth per entry; None where all are alive."""
        if self.data is None:
            return np.zeros(self.count, np.bool_)
        if self.validity is None:
            return None
        packed = np.frombuffer(self.raw, np.uint8, -(-self.count // 8), self.validity)
        return np.unpackbits(packed, count=self.count, bitorder="little").view(np.bool_)

    def runs(self, low: int, high: int) -> list[tuple[int, int, bool]]:
        """Neighbours among the entries low <= i < high that are all alive or all dead: (start,
        stop, alive), in order and without gaps."""
        alive = self.alive()
        if alive is None:
            return [(low, high, True)]
        edges = np.flatnonzero(np.diff(alive[low:high])) + 1 + low
        return [
            (start, stop, bool(alive[start]))
            for start, stop in pairwise([low, *edges.tolist(), high])
        ]

    def entry_bytes(self, low: int, high: int) -> int:
        """Bytes of the entries low <= i < high: data, tags and meta."""
        size = 0
        for part in (self.data, self.tags, self.meta):
            if part is not None:
                size += int(part.table[high]) - int(part.table[low])
        return size

    def fitting(self, low: int, high: int, size: int) -> int:
        """How far entries go from `low` on until they reach `size`: the end, exclusive.
        Never less than one, so that something too large still comes, alone."""
        if self.entry_bytes(low, high) <= size:
            return high
        reached = np.zeros(high - low, np.int64)
        for part in (self.data, self.tags, self.meta):
            if part is not None:
                reached += part.table[low + 1 : high + 1].astype(np.int64) - int(part.table[low])
        return low + int(np.searchsorted(reached, size)) + 1

    def columns(self) -> tuple[Column | None, Column | None, Column | None]:
        """Data, tags and meta as a body has them; None where no entry has any."""
        data, tags, meta = (
            part.column(self.raw) if part else None for part in (self.data, self.tags, self.meta)
        )
        return data, tags, meta

    def data_list(self, low: int, high: int) -> list[bytes]:
        """Data of the entries low <= i < high, counted within the node; a dead one is empty."""
        return [b""] * (high - low) if self.data is None else self.data.slices(self.raw, low, high)

    def tag_list(self, low: int, high: int) -> list[bytes]:
        return [b""] * (high - low) if self.tags is None else self.tags.slices(self.raw, low, high)

    def meta_list(self, low: int, high: int) -> Sequence[bytes | None]:
        if self.meta is None:
            return [None] * (high - low)
        return [meta or None for meta in self.meta.slices(self.raw, low, high)]

    def time_list(self, low: int, high: int) -> list[int]:
        if self.times is None:
            return [self.time_ms] * (high - low)
        times: list[int] = self.times[low:high].tolist()
        return times

    def last_ms(self) -> int:
        """Time of the newest entry: times never fall within a log."""
        return self.time_ms if self.times is None else int(self.times[-1])


def decode_node(value: bytes, what: str) -> Node:
    """A node or a hole. A link row has no columns of its own: see `decode_linked`."""
    return decode_columns(decode_header(value, what), value, what)


def decode_columns(header: Header, value: bytes, what: str) -> Node:
    """The same, where the header was decoded already."""
    if header.flags & LINK:
        raise CorruptError(f"{what}: a link where columns are needed")
    return _open(header, value, what, first=header.first, time_ms=header.time_ms)


def decode_linked(link: Header, value: bytes, what: str) -> Node:
    """The staged node `value` at the place and time of its link row."""
    header = linked_header(link, value, what)
    return _open(header, value, what, first=link.first, time_ms=link.time_ms)


def linked_header(link: Header, value: bytes, what: str) -> Header:
    """The header of the staged node `value`, with place and time of its link row."""
    header = decode_header(value, what)
    if header.flags & (LINK | HOLE) or not header.flags & UNIFORM_TIME:
        raise CorruptError(f"{what}: flags {header.flags:#06x} cannot be those of a staged node")
    if header.count != link.count:
        raise CorruptError(f"{what}: count is {header.count}, its link says {link.count}")
    return msgspec.structs.replace(header, first=link.first, time_ms=link.time_ms)


def _open(header: Header, value: bytes, what: str, *, first: int, time_ms: int) -> Node:
    _verify_body(header, value, what)
    if header.flags & HOLE:
        if header.stored_bytes:
            raise CorruptError(f"{what}: a hole with a body")
        return Node(header, b"", first=first, time_ms=time_ms)
    raw, base = (_inflate(header, value, what), 0) if header.flags & ZSTD else (value, HEADER_BYTES)
    node = Node(header, raw, first=first, time_ms=time_ms)
    at, count = base, header.count
    if not header.flags & UNIFORM_TIME:
        at = _room(raw, at, 8 * count, "times", what)
        node.times = np.frombuffer(raw, "<i8", count, base)
    node.data, at = _column(raw, at, count, "data", what)
    if header.flags & TAGS:
        node.tags, at = _column(raw, at, count, "tags", what)
    if header.flags & META:
        node.meta, at = _column(raw, at, count, "meta", what)
    if header.flags & VALIDITY:
        node.validity = at
        at = _room(raw, at, -(-count // 8), "validity", what)
    if at != len(raw):
        raise CorruptError(f"{what}: body has {len(raw) - at} bytes left over")
    return node


def _inflate(header: Header, value: bytes, what: str) -> bytes:
    stored = memoryview(value)[HEADER_BYTES:]
    try:
        # The frame names its own size, which would be allocated unseen: compare it first.
        if zstandard.frame_content_size(stored) != header.raw_bytes:
            raise CorruptError(f"{what}: compressed body is not of {header.raw_bytes} bytes")
        raw: bytes = _decompressor().decompress(stored)
    except zstandard.ZstdError as error:
        raise CorruptError(f"{what}: body does not decompress: {error}") from None
    if len(raw) != header.raw_bytes:
        raise CorruptError(f"{what}: body decompresses to {len(raw)} bytes, not {header.raw_bytes}")
    return raw


def _room(raw: bytes, at: int, size: int, field: str, what: str) -> int:
    """Where the piece after this one begins, if this one is there."""
    end = at + size + -size % 8
    if end > len(raw):
        raise CorruptError(f"{what}: {field} needs {size} bytes, {len(raw) - at} are left")
    return end


def _column(raw: bytes, at: int, count: int, field: str, what: str) -> tuple[_Binary, int]:
    start = _room(raw, at, 4 * (count + 1), f"offset table of {field}", what)
    table: Table = np.frombuffer(raw, "<u4", count + 1, at)
    if table[0] or (table[1:] < table[:-1]).any():
        raise CorruptError(f"{what}: offset table of {field} is not in order")
    size = int(table[-1])
    if size > COLUMN_BYTES_MAX:
        raise CorruptError(f"{what}: {field} of {size} bytes is larger than a column can be")
    return _Binary(table, start), _room(raw, start, size, field, what)
