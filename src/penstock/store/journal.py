"""The journal of a folder: where a commit becomes durable, before SlateDB has it.

Contract     `append` returns when the record is on disk (one pwrite, one fdatasync). `recover` gives the
             acknowledged commits that the store does not hold yet, in order, or raises CorruptError.
             All of it blocks; FolderStore runs it on its own thread. One thread at a time.
Files        journal/E-S.segment   slot S of epoch E, preallocated and zero-filled, used again and again
             journal/E.head        which segments epoch E relies on; replaced as a whole
             journal/E.epoch       exists while E is the newest epoch: unlinking it fences E
Epochs       `claim` creates the next E.epoch, then unlinks the older ones. A writer looks at its own
             open file after each fdatasync and before it acknowledges: no links left means fenced. The
             newcomer reads the old segments only after the unlink. So each record is either seen by
             the newcomer or never acknowledged, also when the old writer was stopped and wakes up.
             A writer never touches another epoch's segments; a newcomer's start n voids whatever an
             older epoch still writes.
Segments     A ring instead of two fixed files: one is filled at opening (16 MiB, some ms; two of 64 MiB
             took 0.2 s), more join under load, and all are used again once the store covers them. A
             record larger than a segment gets a segment of its own size.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from penstock.codec.chain import NO_HASH, ChainRecord
from penstock.codec.journal import (
    COMMIT,
    HEADER_BYTES,
    MARK,
    RECORD_BYTES,
    JournalHead,
    JournalRecord,
    SegmentHeader,
    SegmentName,
    decode_head,
    decode_header,
    decode_record,
    encode_head,
    encode_header,
    encode_record,
)
from penstock.errors import CorruptError, FencedError, UnavailableError
from penstock.store.disk import fill_zeros, replace_file, sync_folder
from penstock.store.port import RefusedError

SEGMENT_BYTES = 16 << 20
#: Covered segments beyond this are removed: the ring of a steady load needs no allocation.
SPARES_MAX = 8
_EPOCH = re.compile(r"(\d+)\.epoch")
_HEAD = re.compile(r"(\d+)\.head")
_SEGMENT = re.compile(r"(\d+)-(\d+)\.segment")


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, ...]]:
    matches = (pattern.fullmatch(name) for name in os.listdir(folder))
    return sorted(tuple(int(group) for group in match.groups()) for match in matches if match)


class Epoch:
    """This process' claim on the folder, and whether it still holds."""

    def __init__(self, folder: Path, number: int, descriptor: int) -> None:
        self.number = number
        self._folder = folder
        self._descriptor = descriptor

    def check(self) -> None:
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FencedError(
                f"{self._folder.parent}: another process took over epoch {self.number}"
            )

    def release(self) -> None:
        os.close(self._descriptor)


def claim(folder: Path, *, sync: bool, after: int | None = None) -> Epoch:
    """Take the next epoch and fence all earlier ones; with `after`, only if that is the newest."""
    number = max((n for (n,) in _numbers(folder, _EPOCH) + _numbers(folder, _HEAD)), default=0)
    while True:
        if after is not None and (number != after or not (folder / f"{after}.epoch").exists()):
            raise FencedError(f"{folder.parent}: another process took over epoch {after}")
        number += 1
        path = folder / f"{number}.epoch"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            break
        except FileExistsError:
            continue  # another newcomer was faster: fence it too
    if sync:
        sync_folder(folder)
    for (older,) in _numbers(folder, _EPOCH):
        if older < number:
            (folder / f"{older}.epoch").unlink(missing_ok=True)
    if sync:
        sync_folder(folder)
    return Epoch(folder, number, descriptor)


class Segment(msgspec.Struct):
    """A file of this epoch that is being written, waits to be covered, or is spare."""

    name: SegmentName
    descriptor: int
    size: int
    end: int = HEADER_BYTES
    last_n: int = 0


def segment_path(folder: Path, epoch: int, slot: int) -> Path:
    return folder / f"{epoch}-{slot}.segment"


class Recovered(msgspec.Struct, frozen=True):
    """What earlier epochs left behind."""

    store_id: bytes | None  # None in a new folder
    records: tuple[JournalRecord, ...] = ()  # commits above the store's own, dense, chained
    segments: tuple[SegmentName, ...] = ()  # those that hold them, to be kept until covered


def read_head(folder: Path) -> JournalHead | None:
    """The newest epoch's head; None in a new folder."""
    heads = _numbers(folder, _HEAD)
    if not heads:
        if _numbers(folder, _SEGMENT):
            raise CorruptError(f"{folder}: there are journal segments but no head that lists them")
        return None
    (epoch,) = heads[-1]
    path = folder / f"{epoch}.head"
    head = decode_head(path.read_bytes(), str(path))
    if head.epoch != epoch:
        raise CorruptError(f"{path}: belongs to epoch {head.epoch}")
    return head


def recover(folder: Path, stored: ChainRecord | None) -> Recovered:
    """The commits that the journal holds and the store (whose head is `stored`) does not."""
    head = read_head(folder)
    while True:
        try:
            return _recover(folder, head, stored)
        except CorruptError:
            # A writer that was fenced a moment ago may just have let go of covered segments: it
            # replaces its head first, so a newer head explains what is missing.
            newer = read_head(folder)
            if newer == head:
                raise
            head = newer


def _recover(folder: Path, head: JournalHead | None, stored: ChainRecord | None) -> Recovered:
    n, digest = (stored.n, stored.hash) if stored else (0, NO_HASH)
    if head is None:
        if stored:
            raise CorruptError(
                f"{folder}: the store holds {n} commits, the journal's head is missing"
            )
        return Recovered(None)
    if n < head.covered_n or (n == head.covered_n and digest != head.covered_hash):
        raise CorruptError(
            f"{folder.parent}: the store ends at commit {n}, "
            f"but it held commit {head.covered_n} before: something of it was lost"
        )
    commits: dict[int, JournalRecord] = {}
    claimed = 0  # the highest commit that anything valid, a mark too, speaks of
    needed = []
    for name in head.segments:
        above = 0
        for record in _segment_records(folder, head.store_id, name):
            # What an older epoch wrote after this one began was never acknowledged. Between older
            # epochs the later one, which comes later here, wins.
            if name.epoch < head.epoch and record.chain.n > head.start_n:
                continue
            above = max(above, record.chain.n)
            if record.kind == COMMIT:
                commits[record.chain.n] = record
        claimed = max(claimed, above)
        if above > n:
            needed.append(name)
    if n in commits and commits[n].chain.hash != digest:
        raise CorruptError(f"{folder.parent}: journal and store disagree about commit {n}")
    records = []
    while (found := commits.get(n + 1)) is not None:
        if found.chain.previous != digest:
            raise CorruptError(f"{folder}: commit {n + 1} does not follow commit {n}")
        records.append(found)
        n, digest = found.chain.n, found.chain.hash
    if claimed > n:
        raise CorruptError(
            f"{folder}: commit {n + 1} is missing or damaged, yet {claimed} was made"
        )
    return Recovered(head.store_id, tuple(records), tuple(needed))


def _segment_records(folder: Path, store_id: bytes, name: SegmentName) -> Iterable[JournalRecord]:
    path = segment_path(folder, name.epoch, name.slot)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorruptError(f"{path}: a journal segment is missing") from None
    header = decode_header(data, str(path))
    if header != SegmentHeader(store_id, name.epoch, name.sequence, name.salt, header.size):
        raise CorruptError(f"{path}: is not the segment that the journal's head lists")
    if len(data) < header.size:
        raise CorruptError(f"{path}: {len(data)} bytes long, was {header.size}")
    at = HEADER_BYTES
    while (record := decode_record(data, at, name.salt)) is not None:
        yield record
        at = record.end
    # Where the valid records end, nothing valid may follow: a torn record is the last thing that was
    # written, a damaged one has others behind it. Yielding those lets the chain check find the gap.
    yield from _beyond(data, at, name.salt)


def _beyond(data: bytes, at: int, salt: int) -> Iterable[JournalRecord]:
    """Valid records behind an invalid one, at every place where one can begin."""
    at += 8
    while (found := _next_kind(data, at)) is not None:
        record = decode_record(data, found, salt)
        if record is not None:
            yield record
            at = record.end
        else:
            at = found + 8


_KIND_AT = 4  # offset of `kind` in a record
_KINDS = re.compile(rb"[\x01\x02]\x00\x00\x00", re.DOTALL)


def _next_kind(data: bytes, at: int) -> int | None:
    """The next 8-aligned place whose `kind` field could be one; skips zeros at memory speed."""
    while (match := _KINDS.search(data, at + _KIND_AT)) is not None:
        found = match.start() - _KIND_AT
        if found % 8 == 0:
            return found
        at = found + 1
    return None


class Journal:
    """The journal of this epoch, from its first record on."""

    def __init__(
        self,
        folder: Path,
        epoch: Epoch,
        *,
        store_id: bytes,
        start: ChainRecord | None,
        stored: ChainRecord | None,
        inherited: tuple[SegmentName, ...],
        entropy: Callable[[int], bytes],
        sync: bool,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.folder = folder
        self.epoch = epoch
        self._entropy = entropy
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._slots = 0
        self._sequence = 0
        self._inherited = inherited
        self._spare: list[Segment] = []
        self._used: list[Segment] = []
        self._unmarked: ChainRecord | None = None
        self._failed = False
        #: A segment was filled since the last `prepare`: time to prepare the next and to cover.
        self.wants_care = False
        self._head = JournalHead(
            store_id,
            epoch.number,
            start.n if start else 0,
            start.hash if start else NO_HASH,
            stored.n if stored else 0,
            stored.hash if stored else NO_HASH,
            False,
            (),
        )
        self._active = self._allocate(segment_bytes)
        self._write_head()
        self._remove_unlisted()

    # -- writing

    def append(self, chain: ChainRecord, body: bytes) -> None:
        """Make one commit durable. RefusedError: nothing was written. FencedError: never acknowledge."""
        if self._failed:
            raise UnavailableError("the journal failed before and must be opened again")
        try:
            self._make_room(RECORD_BYTES + len(body) + 7)
        except OSError as error:
            raise RefusedError(
                f"{self.folder}: no room for the journal: {error.strerror}"
            ) from error
        self._write(COMMIT, chain, body)
        self._unmarked = chain
        self.epoch.check()

    def mark(self) -> None:
        """While idle: put something valid behind the last commit, so that damage to it is seen."""
        chain, self._unmarked = self._unmarked, None
        if chain is not None and self._active.end + RECORD_BYTES <= self._active.size:
            self._write(MARK, chain, b"")

    def _write(self, kind: int, chain: ChainRecord, body: bytes) -> None:
        segment = self._active
        record = encode_record(kind, self.epoch.number, chain, body, segment.name.salt)
        try:
            written = os.pwrite(segment.descriptor, record, segment.end)
            while written < len(record):  # a pwrite may be cut short, e.g. above 2 GiB
                written += os.pwrite(segment.descriptor, record[written:], segment.end + written)
            if self._sync:
                os.fdatasync(segment.descriptor)
        except OSError as error:
            # After a failed fdatasync the page cache lies: this file is never trusted again.
            self._failed = True
            raise UnavailableError(
                f"{self.folder}: the journal failed: {error.strerror}"
            ) from error
        segment.end += len(record)
        segment.last_n = chain.n

    # -- segments

    def _make_room(self, size: int) -> None:
        if self._active.end + size <= self._active.size:
            return
        if not self._spare or self._spare[0].size < HEADER_BYTES + size:
            self.prepare(HEADER_BYTES + size)
        self._used.append(self._active)
        self._active = self._spare.pop(0)
        self.wants_care = True

    def prepare(self, size: int = 0) -> None:
        """Have a spare segment ready, listed in the head before any record goes there."""
        self.wants_care = False
        if size <= self._segment_bytes and self._spare:
            return
        self._spare.insert(0, self._allocate(max(size, self._segment_bytes)))
        try:
            self._write_head()
        except OSError:
            spare = self._spare.pop(0)
            os.close(spare.descriptor)
            raise

    def _allocate(self, size: int) -> Segment:
        path = segment_path(self.folder, self.epoch.number, self._slots)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            fill_zeros(descriptor, size, sync=self._sync)
            segment = self._begin(self._slots, descriptor, size)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._slots += 1
        return segment

    def _begin(self, slot: int, descriptor: int, size: int) -> Segment:
        """Give a file a new salt, which makes whatever stands in it void."""
        self._sequence += 1
        salt = int.from_bytes(self._entropy(8), "little")
        header = SegmentHeader(self._head.store_id, self.epoch.number, self._sequence, salt, size)
        os.pwrite(descriptor, encode_header(header), 0)
        if self._sync:
            os.fdatasync(descriptor)
        name = SegmentName(self.epoch.number, slot, self._sequence, salt)
        return Segment(name, descriptor, size)

    def waiting(self) -> int:
        """How many filled segments wait for the store to cover them."""
        return len(self._used)

    def inherits(self) -> bool:
        """Whether earlier epochs' segments are still needed."""
        return bool(self._inherited)

    def cover(self, n: int, digest: bytes) -> None:
        """The store durably holds everything up to this commit: let go of what it covers."""
        if n >= self._head.start_n:
            self._inherited = ()
        covered = [segment for segment in self._used if segment.last_n <= n]
        self._used = [segment for segment in self._used if segment.last_n > n]
        self._head = msgspec.structs.replace(self._head, covered_n=n, covered_hash=digest)
        # First the head stops listing them, then their bytes may change.
        self._write_head()
        self._remove_unlisted(keep=frozenset(segment.name.slot for segment in covered))
        for segment in covered:
            if segment.size == self._segment_bytes and len(self._spare) < SPARES_MAX:
                self._spare.append(self._begin(segment.name.slot, segment.descriptor, segment.size))
            else:
                os.close(segment.descriptor)
                segment_path(self.folder, self.epoch.number, segment.name.slot).unlink()
        if covered:
            self._write_head()

    def _write_head(self) -> None:
        segments = (*self._used, self._active, *self._spare)
        head = msgspec.structs.replace(
            self._head, segments=self._inherited + tuple(segment.name for segment in segments)
        )
        self._replace_head(head)

    def _replace_head(self, head: JournalHead) -> None:
        replace_file(self.folder / f"{self.epoch.number}.head", encode_head(head), sync=self._sync)

    def _remove_unlisted(self, keep: frozenset[int] = frozenset()) -> None:
        """Older epochs' heads and segments that no head lists. Ours replaced them durably."""
        own = {segment.name.slot for segment in (*self._used, self._active, *self._spare)} | keep
        listed = {(name.epoch, name.slot) for name in self._inherited}
        listed |= {(self.epoch.number, slot) for slot in own}
        for epoch, slot in _numbers(self.folder, _SEGMENT):
            if (epoch, slot) not in listed and epoch <= self.epoch.number:
                segment_path(self.folder, epoch, slot).unlink(missing_ok=True)
        for (epoch,) in _numbers(self.folder, _HEAD):
            if epoch < self.epoch.number:
                (self.folder / f"{epoch}.head").unlink(missing_ok=True)

    # -- the end

    def close(self, n: int, digest: bytes) -> None:
        """Clean close: the store holds everything up to n. Keep that fact, drop the segments."""
        self.epoch.check()
        self._replace_head(
            msgspec.structs.replace(
                self._head, covered_n=n, covered_hash=digest, closed=True, segments=()
            )
        )
        for segment in (*self._used, self._active, *self._spare):
            segment_path(self.folder, self.epoch.number, segment.name.slot).unlink(missing_ok=True)
        for name in self._inherited:
            segment_path(self.folder, name.epoch, name.slot).unlink(missing_ok=True)

    def release(self) -> None:
        """Close the files and leave everything on disk as it is."""
        for segment in (*self._used, self._active, *self._spare):
            with contextlib.suppress(OSError):
                os.close(segment.descriptor)
        self.epoch.release()
