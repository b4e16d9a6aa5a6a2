"""Catalogue rows: a name of one kind and the id behind it. Pure.

    row        id (u64) | created at (i64) | options
    options    count (u16) | count x (key (Utf8) | value (Utf8))

Contract     `check_name` turns a name into the bytes its key carries. Two names are the same if
             their UTF-8 bytes are: no case folding, no normalising, no trimming. Every character
             is allowed, NUL too: the key escapes it (keys.py), so "a" and "a" + NUL + "b" never
             meet. Options that this version does not know are kept as they are.
Invariants   The id is never used again, so what is deleted and made again has another id. Options
             keep their order; a key occurs once. Each value has one encoding.
Not here     The key of the row (keys.py), where ids come from (idblock.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.scalars import U16_MAX, Reader, encode_i64, encode_u16, encode_u64, encode_utf8
from penstock.errors import InvalidError

NAME_BYTES_MAX = 255

#: Pairs of key and value, in the order they were given.
Options = tuple[tuple[str, str], ...]


class CatalogueRow(msgspec.Struct, frozen=True):
    id: int  # what keys carry in the place of the name
    created_at_ms: int  # the time of the commit that made it
    options: Options = ()  # what the kind keeps about it


def check_name(kind_word: str, name: str) -> bytes:
    """The name's bytes, or InvalidError that says what is wrong. `kind_word` is for the message."""
    if not isinstance(name, str):
        raise InvalidError(f"a {kind_word} name is text, not {type(name).__name__}")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{kind_word} name {name!r} is not valid text: {error.reason}") from None
    if not 1 <= len(raw) <= NAME_BYTES_MAX:
        raise InvalidError(
            f"{kind_word} name of {len(raw)} bytes; 1 to {NAME_BYTES_MAX} are allowed (as UTF-8)"
        )
    return raw


def encode_catalogue_row(row: CatalogueRow) -> bytes:
    return b"".join(
        (
            encode_u64(row.id, "id"),
            encode_i64(row.created_at_ms, "created at"),
            encode_options(row.options),
        )
    )


def decode_catalogue_row(data: bytes) -> CatalogueRow:
    reader = Reader(data, "catalogue row")
    row = CatalogueRow(reader.u64("id"), reader.i64("created at"), read_options(reader))
    reader.end()
    return row


def encode_options(options: Options) -> bytes:
    if len(options) > U16_MAX:
        raise InvalidError(f"{len(options)} options; at most {U16_MAX} are allowed")
    parts = [encode_u16(len(options), "number of options")]
    keys: set[str] = set()
    for key, value in options:
        if key in keys:
            raise InvalidError(f"option {key!r} occurs twice")
        keys.add(key)
        parts += encode_utf8(key, "option"), encode_utf8(value, f"option {key!r}")
    return b"".join(parts)


def read_options(reader: Reader) -> Options:
    options: dict[str, str] = {}
    for _ in range(reader.u16("number of options")):
        at = reader.at
        key = reader.utf8("option")
        if key in options:
            reader.at = at
            raise reader.fail("option", f"occurs twice: {key!r}")
        options[key] = reader.utf8("value of an option")
    return tuple(options.items())
