"""A guard for SlateDB's manifests, which have no checksum of their own.

Why          A manifest names the tables of the store. One flipped bit in it can hide a table, and
             then rows are missing that nothing else speaks of (2 of 1,066 places tried, one bit
             each; the other 1,064 were refused or harmless).
Contract     `watch` remembers the hash of the newest manifest soon after it was written; manifests
             never change afterwards. `check` compares before the next opening trusts it: a newest
             manifest that is older than one we saw, or has other bytes, is a CorruptError. One that
             is newer than what we saw was written in the last moment of a killed process, and is
             taken as it is.
No sync      Where folders cannot be synchronous, `distrust` goes back to the manifest that was seen
             last, which a sync covered: after a power cut a later one may be a name without bytes.
             Nothing is taken away for that. The engine of a process that was overtaken may still
             run, and it writes its next manifest under the number after the last one it knows,
             only if that is free: a number that became free again would let it write the newest
             manifest of all, with its old epoch, past SlateDB's fence. So the trusted bytes are
             written once more, above everything that is there, with a writer's and a compactor's
             epoch above all others. That one file, which comes to be as a whole or not at all, both
             goes back and fences: whoever lost the number to it reads it, and finds itself fenced.
             The list of compactions is no more durable than manifests are, and is only a note of
             what the compactor is doing: it gets an empty one on top. The garbage collector's notes
             of how far it came (gc/*.boundary, a decimal number) may be torn as well: SlateDB
             refuses a torn one, and makes do without.
Collection   SlateDB notes how far its collector came, and in a folder it writes the first of those
             notes and no other; it collects nothing above that, and manifests and lists of
             compactions would pile up. Its notes could be switched off, but they have a reason: the
             engine of a process that was stopped and overtaken finds the next number free, takes
             its own stale manifest for the newest, and collects its successor's tables. So a
             `Collector` takes away only what this very opening has written, of which nobody who was
             overtaken knows; below the manifest that is trusted; and only what was not the newest
             for some looks: those stand still while the process does, as the engine's parts do.
             An engine that was closed writes nothing more: a clean close leaves a note, and the
             very next opening goes on from the floors in it.
File         journal/E.manifests, the highest epoch's counts: no process writes over another one's.
             Magic "PENSTKM1" (8) | { id (u64) | xxh3_64 of the file (u64) } | checksum (u64,
             xxh3_64 of what is before); little-endian
             journal/E.floors, of a clean close: magic "PENSTKF1" (8) | the highest manifest that
             stays (u64) | the highest list of compactions that does (u64) | checksum (u64)
All of it blocks; FolderStore runs it on its disk thread.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import xxhash

from penstock.errors import CorruptError
from penstock.store import enginefiles
from penstock.store.disk import create_file, replace_file
from penstock.store.epoch import numbers

_MAGIC = b"PENSTKM1"
_ENTRY = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<Q")
_LIST = re.compile(r"(\d+)\.manifests")
_FLOORS_MAGIC = b"PENSTKF1"
_FLOORS = struct.Struct("<QQ")
_FLOORS_FILE = re.compile(r"(\d+)\.floors")
_COLLECTED = ("manifest", "compactions")
#: A minute, at one look in ten seconds; the engine's parts look for news at least every 15.
COLLECT_LOOKS = 6
#: What an opening found stays, and so much of what it wrote: who was overtaken may have written one
#: more list of compactions until our compactor fenced his.
FLOOR_SPARE = 8
#: So much of what an engine that was closed has left stays: somebody may be about to read it.
FOUND_SPARE = 64


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


def distrust(folder: Path, *, epoch: int, check: Callable[[], None]) -> int:
    """Where files become durable only by our syncs: go back to what the last of them covered.

    What later manifests brought is still in the journal, because segments are let go only after a
    sync and `watch`; the tables of the one before are still there, because garbage is collected
    only when it is a minute old. `check` raises when this opening must have no effect any more.
    -> the writer epoch that whoever opens now must be above
    """
    seen = _read(folder)
    if not seen or not (trusted := _manifest_path(folder, max(seen))).exists():
        return 0  # in the second case `guard.check` says whether anything is left to go on with
    last, data = max(seen), trusted.read_bytes()
    found = enginefiles.epochs(data)
    if xxhash.xxh3_64_intdigest(data) != seen[last] or found is None:
        raise CorruptError(f"{trusted}: is not what was written")
    for path in (folder / "store" / "gc").glob("*.boundary"):
        if not path.read_bytes().isdigit():
            path.unlink(missing_ok=True)
    temporary = folder / "journal" / f"{epoch}.distrust.tmp"
    while True:
        writer, compactor = found
        newest, _ = _newest(folder) or (last, None)
        if newest <= last:
            break
        for later_number in range(last + 1, newest + 1):
            path = _manifest_path(folder, later_number)
            with contextlib.suppress(FileNotFoundError):
                later = enginefiles.epochs(path.read_bytes()) or (0, 0)
                writer, compactor = max(writer, later[0]), max(compactor, later[1])
        writer, compactor = writer + 1, compactor + 1
        copy = enginefiles.with_epochs(data, writer=writer, compactor=compactor)
        check()
        if create_file(_manifest_path(folder, newest + 1), copy, temporary=temporary):
            break  # else the other engine was faster: go above that one
    compactions = folder / "store" / "compactions"
    while (number := _newest_number(compactions)) is not None:
        empty = enginefiles.no_compactions(compactor=compactor)
        path = compactions / f"{number + 1:020d}.compactions"
        check()
        if create_file(path, empty, temporary=temporary):
            break
    return writer


def watch(
    folder: Path, *, epoch: int, sync: bool, barrier: Callable[[], None] | None = None
) -> None:
    """Remember the newest manifest, if it is a new one; `barrier` makes it durable before."""
    newest = _newest(folder)
    if newest is None:
        return
    number, path = newest
    try:
        seen = _read(folder)
    except CorruptError:
        seen = {}  # this process has trusted the manifest since it opened: begin a new list
    if number in seen:
        return
    digest = xxhash.xxh3_64_intdigest(path.read_bytes())
    if barrier is not None:
        barrier()
    raw = _MAGIC + _ENTRY.pack(number, digest)
    checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))
    replace_file(_list_path(folder, epoch), raw + checksum, sync=sync)
    for (older,) in numbers(folder / "journal", _LIST):
        if older < epoch:
            _list_path(folder, older).unlink(missing_ok=True)


def trusted(folder: Path) -> int:
    """The number of the manifest that an opening without synchronous folders goes back to."""
    return max(_read(folder), default=0)


def newest(folder: Path) -> dict[str, int]:
    """Of each kind that is collected, the highest number; 0: there is none."""
    return {kind: _newest_number(folder / "store" / kind) or 0 for kind in _COLLECTED}


class Collector:
    """Of one opening, made when its engine has opened. `found`: the newest before that."""

    def __init__(self, folder: Path, epoch: int, found: Mapping[str, int]) -> None:
        self._folder = folder
        self._epoch = epoch
        self._floors = _read_floors(folder, epoch - 1) or {
            kind: number + FLOOR_SPARE for kind, number in newest(folder).items()
        }
        #: No part of our engine knows of what is below.
        self._found = {kind: number - FOUND_SPARE for kind, number in found.items()}
        #: What was the newest at the last looks, oldest first.
        self._looks: deque[dict[str, int]] = deque(maxlen=COLLECT_LOOKS)

    def look(self, trusted: int, pinned: Collection[int]) -> None:
        """Remove what is due. `pinned`: the manifests that checkpoints refer to, listed before; by
        the trusted manifest, too: going back brings back what was dropped since."""
        due = self._looks[0] if len(self._looks) == COLLECT_LOOKS else self._found
        for kind, floor in self._floors.items():
            end = max(due[kind], self._found[kind])
            below = min(end, trusted) if kind == "manifest" else end
            if below <= floor + 1:
                continue
            kept = pinned if kind == "manifest" else ()
            for path in (self._folder / "store" / kind).glob(f"*.{kind}"):
                number = int(path.stem) if path.stem.isdecimal() else 0
                if floor < number < below and number not in kept:
                    path.unlink(missing_ok=True)
        self._looks.append(newest(self._folder))

    def hand_over(self, *, sync: bool) -> None:
        """The engine was closed: who opens next may collect what it wrote."""
        raw = _FLOORS_MAGIC + _FLOORS.pack(*(self._floors[kind] for kind in _COLLECTED))
        checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))
        replace_file(_floors_path(self._folder, self._epoch), raw + checksum, sync=sync)
        for (older,) in numbers(self._folder / "journal", _FLOORS_FILE):
            if older < self._epoch:
                _floors_path(self._folder, older).unlink(missing_ok=True)


def _floors_path(folder: Path, epoch: int) -> Path:
    return folder / "journal" / f"{epoch}.floors"


def _read_floors(folder: Path, epoch: int) -> dict[str, int] | None:
    """None: nobody knows that the engine of this epoch was closed. A damaged file is as none."""
    try:
        data = _floors_path(folder, epoch).read_bytes()
    except FileNotFoundError:
        return None
    raw, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if (
        len(raw) != len(_FLOORS_MAGIC) + _FLOORS.size
        or not raw.startswith(_FLOORS_MAGIC)
        or _CHECKSUM.unpack(checksum)[0] != xxhash.xxh3_64_intdigest(raw)
    ):
        return None
    return dict(zip(_COLLECTED, _FLOORS.unpack_from(raw, len(_FLOORS_MAGIC)), strict=True))


def _list_path(folder: Path, epoch: int) -> Path:
    return folder / "journal" / f"{epoch}.manifests"


def _manifest_path(folder: Path, number: int) -> Path:
    return folder / "store" / "manifest" / f"{number:020d}.manifest"


def _newest_number(folder: Path) -> int | None:
    names = folder.glob(f"*.{folder.name}") if folder.is_dir() else ()
    return max((int(path.stem) for path in names if path.stem.isdecimal()), default=None)


def _newest(folder: Path) -> tuple[int, Path] | None:
    number = _newest_number(folder / "store" / "manifest")
    return None if number is None else (number, _manifest_path(folder, number))


def _read(folder: Path) -> dict[int, int]:
    """The manifest that was seen last, as {its number: its hash}; none in a new folder."""
    lists = numbers(folder / "journal", _LIST)
    if not lists:
        return {}
    path = _list_path(folder, *lists[-1])
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # a newcomer replaced it meanwhile by its own
        return _read(folder)
    raw, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if (
        len(data) != len(_MAGIC) + _ENTRY.size + _CHECKSUM.size
        or not raw.startswith(_MAGIC)
        or _CHECKSUM.unpack(checksum)[0] != xxhash.xxh3_64_intdigest(raw)
    ):
        raise CorruptError(f"{path}: is damaged")
    return dict(_ENTRY.iter_unpack(raw[len(_MAGIC) :]))
