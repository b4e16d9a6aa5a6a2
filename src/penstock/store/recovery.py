"""Recovery: what the journal of a folder holds and the store does not, or what is wrong with it.

Contract     `recover` gives the acknowledged commits above the store's own, dense and chained, or
             raises CorruptError. A commit that was never acknowledged may be among them.
Torn or      A record that is torn at the end was never acknowledged and is left out. Damage looks
damaged      the same, but has something valid behind it: later records, or the mark that an idle
             journal writes. What was damaged within the first idle milliseconds after the last
             commit of a killed process cannot be told from a torn record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.codec.chain import NO_HASH, ChainRecord
from penstock.codec.journal import (
    COMMIT,
    HEADER_BYTES,
    JournalHead,
    JournalRecord,
    SegmentHeader,
    SegmentName,
    decode_head,
    decode_header,
    decode_record,
)
from penstock.errors import CorruptError
from penstock.store.epoch import HEAD, SEGMENT, head_path, numbers, segment_path


class Recovered(msgspec.Struct, frozen=True):
    """What earlier epochs left behind."""

    store_id: bytes | None  # None in a new folder
    records: tuple[JournalRecord, ...] = ()  # commits above the store's own, dense, chained
    segments: tuple[SegmentName, ...] = ()  # those that hold them, to be kept until covered

    def without_bodies(self) -> Recovered:
        records = (msgspec.structs.replace(record, body=b"") for record in self.records)
        return msgspec.structs.replace(self, records=tuple(records))


def read_head(folder: Path) -> JournalHead | None:
    """The newest epoch's head; None in a new folder."""
    heads = numbers(folder, HEAD)
    if not heads:
        if numbers(folder, SEGMENT):
            raise CorruptError(f"{folder}: there are journal segments but no head that lists them")
        return None
    (epoch,) = heads[-1]
    path = head_path(folder, epoch)
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # a newcomer replaced it meanwhile by its own
        return read_head(folder)
    head = decode_head(data, str(path))
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
    claimed = head.start_n  # the highest commit that anything valid, a mark too, speaks of
    needed = []
    for name in head.segments:
        above = 0
        for record in _segment_records(folder, head.store_id, name):
            # What an older epoch wrote after this one began was never acknowledged. Between older
            # epochs the later one, which comes later here, wins.
            if name.epoch < head.epoch and record.chain.n > head.start_n:
                continue
            above = max(above, record.chain.n)
            if record.kind == COMMIT and record.chain.n >= n:
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
    started = commits.get(head.start_n)
    if started is not None and started.chain.hash != head.start_hash:
        raise CorruptError(
            f"{folder}: epoch {head.epoch} began after another commit {head.start_n}"
        )
    if claimed > n:
        raise CorruptError(
            f"{folder}: commit {n + 1} is missing or damaged, yet {claimed} was made"
        )
    return Recovered(head.store_id, tuple(records), tuple(needed))


def _segment_records(folder: Path, store_id: bytes, name: SegmentName) -> Iterable[JournalRecord]:
    path = segment_path(folder, name.epoch, name.slot)
    try:
        with path.open("rb") as file:
            data = file.read()
            # A killed writer may not have come to its fdatasync: what we build on must be durable.
            # Only now: what a writer adds between a sync and the reading would be built upon too.
            os.fdatasync(file.fileno())
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
    # Where the valid records end, nothing valid may follow: a torn record is the last thing that
    # was written, a damaged one has others behind it. Yielding those shows the gap in the chain.
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
