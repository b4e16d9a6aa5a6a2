"""A guard for SlateDB's manifests, which have no checksum of their own.

Why          A manifest names the tables of the store. One flipped bit in it can hide a table, and
             then rows are missing that nothing else speaks of (2 of 1,066 places tried, one bit
             each; the other 1,064 were refused or harmless).
Contract     `watch` remembers the hash of the newest manifest soon after it was written; manifests
             never change afterwards. `check` compares before the next opening trusts it: a newest
             manifest that is older than one we saw, or has other bytes, is a CorruptError. One that
             is newer than what we saw was written in the last moment of a killed process, and is
             taken as it is.
File         journal/manifests: magic "PENSTKM1" (8) | { id (u64) | xxh3_64 of the file (u64) } ...
             | checksum (u64, xxh3_64 of what is before); little-endian, newest last
Both block; FolderStore runs them on its disk thread.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import xxhash

from penstock.codec.scalars import U64_MAX
from penstock.errors import CorruptError
from penstock.store.disk import replace_file

_MAGIC = b"PENSTKM1"
_ENTRY = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<Q")
_NAME = re.compile(r"(\d+)\.manifest")
#: More than one, because a process that was overtaken may write an older list over a newer one.
KEPT = 16


def check(folder: Path) -> None:
    """Before SlateDB is opened: its newest manifest must be the one that was seen last."""
    seen = _read(folder)
    if not seen:
        return
    newest = _newest(folder)
    last = max(seen)
    if newest is None or newest[0] < last:
        raise CorruptError(
            f"{folder / 'store'}: manifest {last} was written, the newest that is there is "
            f"{newest[0] if newest else 'none'}"
        )
    number, path = newest
    if number in seen and xxhash.xxh3_64_intdigest(path.read_bytes()) != seen[number]:
        raise CorruptError(f"{path}: is not what was written")


def distrust(folder: Path) -> None:
    """Where files become durable only by our syncs: forget the manifests that none of them covered.

    After a power cut such a manifest may be a name without its bytes. What it brought is still in
    the journal, because segments are let go only after a sync and `watch`; the tables of the one
    before are still there, because garbage is collected only when it is a minute old.
    """
    seen = _read(folder)
    for path in (folder / "store" / "manifest").glob("*.manifest"):
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) > max(seen, default=U64_MAX):
            path.unlink()


def watch(folder: Path, *, sync: bool, barrier: Callable[[], None] | None = None) -> None:
    """Remember the newest manifest, if it is a new one; `barrier` makes it durable before."""
    newest = _newest(folder)
    if newest is None:
        return
    number, path = newest
    try:
        seen = _read(folder)
    except CorruptError:
        seen = {}  # this process has trusted the manifest since it opened: begin a new list
    if number not in seen:
        seen[number] = xxhash.xxh3_64_intdigest(path.read_bytes())
        if barrier is not None:
            barrier()
        kept = sorted(seen.items())[-KEPT:]
        raw = _MAGIC + b"".join(_ENTRY.pack(*entry) for entry in kept)
        checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))
        replace_file(_path(folder), raw + checksum, sync=sync)


def _path(folder: Path) -> Path:
    return folder / "journal" / "manifests"


def _newest(folder: Path) -> tuple[int, Path] | None:
    found = (
        (int(match[1]), path)
        for path in (folder / "store" / "manifest").glob("*.manifest")
        if (match := _NAME.fullmatch(path.name))
    )
    return max(found, default=None)


def _read(folder: Path) -> dict[int, int]:
    path = _path(folder)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    raw, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if (
        len(data) < len(_MAGIC) + _CHECKSUM.size
        or not raw.startswith(_MAGIC)
        or (len(raw) - len(_MAGIC)) % _ENTRY.size
        or _CHECKSUM.unpack(checksum)[0] != xxhash.xxh3_64_intdigest(raw)
    ):
        raise CorruptError(f"{path}: is damaged")
    return dict(_ENTRY.iter_unpack(raw[len(_MAGIC) :]))
