"""The journal of a folder: where a commit becomes durable, before SlateDB has it.

Contract     `append` returns when the record is on disk: one pwrite, one fdatasync, one look at the
             epoch. `cover` lets go of what the store holds durably. All of it blocks; FolderStore
             runs it on its own thread. One thread at a time. Reading it back is recovery.py's.
Segments     Preallocated, zero-filled files, so that fdatasync changes no metadata. A ring instead
             of two fixed files: one is filled at opening (16 MiB, 9 ms; two of 64 MiB would take
             69 ms), more join under load, and all are used again once the store covers them. A
             record larger than a segment gets a segment of its own size.
Invariants   J1  the head lists a segment before any record is in it, and no longer before its
                 bytes change
             J2  a writer never touches another epoch's segments; its own start n voids whatever an
                 older epoch still writes
             J3  a segment is there as long as a head that a crash could bring back lists it
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.codec.chain import NO_HASH, ChainRecord
from penstock.codec.journal import (
    COMMIT,
    HEADER_BYTES,
    MARK,
    RECORD_BYTES,
    JournalHead,
    SegmentHeader,
    SegmentName,
    encode_head,
    encode_header,
    encode_record,
)
from penstock.errors import PenstockError, UnavailableError
from penstock.store.disk import InPlaceError, fill_zeros, replace_file
from penstock.store.epoch import HEAD, SEGMENT, Epoch, head_path, numbers, segment_path
from penstock.store.port import RefusedError

SEGMENT_BYTES = 16 << 20
#: Covered segments beyond this are removed: the ring of a steady load needs no allocation.
SPARES_MAX = 8


class Segment(msgspec.Struct):
    """A file of this epoch that is being written, waits to be covered, or is spare."""

    name: SegmentName
    descriptor: int
    size: int
    end: int = HEADER_BYTES
    last_n: int = 0


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
        # A head before the first segment: segments without any head are a loss.
        self._replace_head(msgspec.structs.replace(self._head, segments=inherited))
        self._active = self._allocate(segment_bytes)
        try:
            self._write_head()
            # Whoever claims after this finds our head, whose start voids what an older writer may
            # still write late; who claimed before may need segments that we do not.
            epoch.check()
            self._remove_unlisted()
        except (OSError, PenstockError):
            os.close(self._active.descriptor)
            raise

    # -- writing

    def append(
        self, chain: ChainRecord, body: bytes, syncing: Callable[[], None] | None = None
    ) -> None:
        """Make one commit durable. RefusedError: nothing was written; FencedError: no answer.
        `syncing` is called before the wait for the disk, where there is one."""
        if self._failed:
            raise UnavailableError("the journal failed before and must be opened again")
        try:
            # And for the mark behind it: without one, damage to it would look like a torn write.
            self._make_room(RECORD_BYTES + len(body) + 7 + RECORD_BYTES)
        except OSError as error:
            raise RefusedError(
                f"{self.folder}: no room for the journal: {error.strerror}"
            ) from error
        self._write(COMMIT, chain, body, syncing)
        self._unmarked = chain
        self.epoch.check()

    def mark(self) -> None:
        """While idle: put something valid behind the last commit, so that damage to it is seen."""
        chain, self._unmarked = self._unmarked, None
        if self._failed or chain is None:
            return  # behind a record that may be torn nothing valid may follow
        self._write(MARK, chain, b"")

    def _write(
        self,
        kind: int,
        chain: ChainRecord,
        body: bytes,
        syncing: Callable[[], None] | None = None,
    ) -> None:
        segment = self._active
        record = encode_record(kind, self.epoch.number, chain, body, segment.name.salt)
        try:
            written = os.pwrite(segment.descriptor, record, segment.end)
            while written < len(record):  # a pwrite may be cut short, e.g. above 2 GiB
                written += os.pwrite(segment.descriptor, record[written:], segment.end + written)
            if self._sync:
                if syncing is not None:
                    syncing()
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
        except OSError as error:
            # J3: the head that is in place may list it. Whatever no head lists in the end goes with
            # the next `cover` or opening.
            segment = self._spare.pop(0)
            os.close(segment.descriptor)
            if not isinstance(error, InPlaceError):
                self._path(segment).unlink(missing_ok=True)
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
        """The store durably holds everything up to this commit: let go of what it covers. Not when
        overtaken: a successor may have gone back to an older manifest, and need these segments."""
        self.epoch.check()
        before = self._inherited, self._used, self._head
        if n >= self._head.start_n:
            self._inherited = ()
        covered = [segment for segment in self._used if segment.last_n <= n]
        self._used = [segment for segment in self._used if segment.last_n > n]
        self._head = msgspec.structs.replace(self._head, covered_n=n, covered_hash=digest)
        try:
            # First the head stops listing them, then their bytes may change.
            self._write_head()
        except OSError:
            self._inherited, self._used, self._head = before
            raise
        self._use_again(covered)

    def _use_again(self, covered: list[Segment]) -> None:
        """Make segments that no head lists spare ones; let go of those that are too many."""
        spare = self._spare
        fitting = [segment for segment in covered if segment.size == self._segment_bytes]
        again = fitting[: max(0, SPARES_MAX - len(spare))]
        for segment in covered:
            if segment not in again:
                os.close(segment.descriptor)
        try:
            self._remove_unlisted(keep=frozenset(segment.name.slot for segment in again))
            for segment in again:
                renewed = self._begin(segment.name.slot, segment.descriptor, segment.size)
                self._spare = [*self._spare, renewed]
            if again:
                self._write_head()
        except OSError:
            self._spare = spare  # J1: what no head lists is not written to
            for segment in again:
                os.close(segment.descriptor)
            raise

    def _path(self, segment: Segment) -> Path:
        return segment_path(self.folder, self.epoch.number, segment.name.slot)

    def _write_head(self) -> None:
        segments = (*self._used, self._active, *self._spare)
        head = msgspec.structs.replace(
            self._head, segments=self._inherited + tuple(segment.name for segment in segments)
        )
        self._replace_head(head)

    def _replace_head(self, head: JournalHead) -> None:
        replace_file(head_path(self.folder, self.epoch.number), encode_head(head), sync=self._sync)

    def _remove_unlisted(self, keep: frozenset[int] = frozenset()) -> None:
        """Older epochs' heads and segments that no head lists. Ours replaced them durably."""
        own = {segment.name.slot for segment in (*self._used, self._active, *self._spare)} | keep
        listed = {(name.epoch, name.slot) for name in self._inherited}
        listed |= {(self.epoch.number, slot) for slot in own}
        for epoch, slot in numbers(self.folder, SEGMENT):
            if (epoch, slot) not in listed and epoch <= self.epoch.number:
                segment_path(self.folder, epoch, slot).unlink(missing_ok=True)
        for (epoch,) in numbers(self.folder, HEAD):
            if epoch < self.epoch.number:
                head_path(self.folder, epoch).unlink(missing_ok=True)

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
            self._path(segment).unlink(missing_ok=True)
        for name in self._inherited:
            segment_path(self.folder, name.epoch, name.slot).unlink(missing_ok=True)

    def release(self) -> None:
        """Close the files and leave everything on disk as it is."""
        for segment in (*self._used, self._active, *self._spare):
            with contextlib.suppress(OSError):
                os.close(segment.descriptor)
        self.epoch.release()
