"""The epochs in SlateDB's own files: the little of them that the guard reads and writes itself.

Contract     `epochs` finds a manifest's writer and compactor epoch, or None where the bytes are no
             manifest; `with_epochs` gives the same manifest with others; `no_compactions` is a
             list of compactions with nothing in it. Pure.
Format       version (u16, big-endian, 2) | a FlatBuffers table, whose vtable says where each field
             lies, 0 for one that is left out because it has its default
                 manifest      slot 3  writer epoch (u64)      slot 4  compactor epoch (u64)
                 compactions   slot 0  compactor epoch (u64)   slot 1  the list
             SlateDB is pinned to one version, and a test lets it read what is written here.
"""

from __future__ import annotations

import struct

from penstock.errors import CorruptError

_VERSION = b"\x00\x02"
_U16, _U32, _I32, _U64 = (struct.Struct(kind) for kind in ("<H", "<I", "<i", "<Q"))
_WRITER, _COMPACTOR = 3, 4

#: root at 16 | vtable at 8: 8 bytes, of a table of 20, slot 0 at +8, slot 1 at +4 | the table: its
#: vtable is 8 before it, the list is 16 after its slot, the epoch | the list: 0 entries
_NO_COMPACTIONS = struct.Struct("<I4xHHHHiIQI4x")


def epochs(manifest: bytes) -> tuple[int, int] | None:
    """-> (writer epoch, compactor epoch); None: a power cut left a name without its bytes."""
    try:
        return _read(manifest, _WRITER), _read(manifest, _COMPACTOR)
    except (ValueError, struct.error):
        return None


def with_epochs(manifest: bytes, *, writer: int, compactor: int) -> bytes:
    data = bytearray(manifest)
    try:
        for slot, epoch in ((_WRITER, writer), (_COMPACTOR, compactor)):
            table, entry = _entry(data, slot)
            (offset,) = _U16.unpack_from(data, entry)
            if not offset:
                # Left out, being 0 so far: it may as well lie behind everything else, aligned.
                data += bytes(-(len(data) - len(_VERSION)) % _U64.size)
                offset = len(data) - table
                data += bytes(_U64.size)
                _U16.pack_into(data, entry, offset)
            _U64.pack_into(data, table + offset, epoch)
    except (ValueError, struct.error) as error:
        raise CorruptError(f"a manifest of the store cannot be read: {error}") from error
    return bytes(data)


def no_compactions(*, compactor: int) -> bytes:
    return _VERSION + _NO_COMPACTIONS.pack(16, 8, 20, 8, 4, 8, 16, compactor, 0)


def _read(data: bytes, slot: int) -> int:
    table, entry = _entry(data, slot)
    (offset,) = _U16.unpack_from(data, entry)
    value: int = _U64.unpack_from(data, table + offset)[0] if offset else 0
    return value


def _entry(data: bytes | bytearray, slot: int) -> tuple[int, int]:
    """-> where the table begins, and where its vtable says where this field is"""
    if data[: len(_VERSION)] != _VERSION:
        raise ValueError("its version is another one")
    table = len(_VERSION) + _U32.unpack_from(data, len(_VERSION))[0]
    vtable = table - _I32.unpack_from(data, table)[0]
    entry = vtable + 4 + slot * _U16.size
    if vtable < 0 or entry + _U16.size > vtable + _U16.unpack_from(data, vtable)[0]:
        raise ValueError("it has no such field")
    return int(table), int(entry)
