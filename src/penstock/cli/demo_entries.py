"""The demo's numbered entries, and what was acknowledged compared with what is there. Pure.

Contract     Each entry says which round, batch and place in its batch it is, and carries a checksum
             of that, so that nothing found has to be believed. `compare` counts from the data
             alone; every count but `in_flight` must be zero for the promise to hold.
Format       `round batch index size checksum`, as text, then dots up to DATA_BYTES.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

DATA_BYTES = 100


class Entry(msgspec.Struct, frozen=True):
    round: int  # which writing process
    batch: int  # which of its batches
    index: int  # place in the batch
    size: int  # entries in the batch


class Acknowledged(msgspec.Struct, frozen=True):
    """A batch whose write returned: its entries are at `first` and the offsets after it."""

    round: int
    batch: int
    first: int
    size: int


class Verdict(msgspec.Struct, frozen=True):
    acknowledged: int  # entries whose write returned
    found: int  # entries that are there
    in_flight: int  # there, but killed before the acknowledgement was seen: allowed
    lost: int  # acknowledged, but not at the offset that was acknowledged
    reused: int  # offsets that were acknowledged for two entries
    duplicated: int  # entries that are there more than once
    torn: int  # batches of which only a part is there, or not in one piece
    damaged: int  # offsets with nothing, or with bytes that nobody wrote

    @property
    def kept(self) -> bool:
        return not (self.lost or self.reused or self.duplicated or self.torn or self.damaged)


def encode_entry(entry: Entry) -> bytes:
    text = b"%d %d %d %d" % (entry.round, entry.batch, entry.index, entry.size)
    return (b"%s %08x " % (text, zlib.crc32(text))).ljust(DATA_BYTES, b".")


def decode_entry(data: bytes) -> Entry | None:
    """None for anything that `encode_entry` did not make."""
    try:
        round_, batch, index, size = map(int, data.split(b" ")[:4])
    except ValueError:
        return None
    entry = Entry(round=round_, batch=batch, index=index, size=size)
    return entry if encode_entry(entry) == data else None


def encode_acknowledged(batch: Acknowledged) -> bytes:
    return b"%d %d %d %d\n" % (batch.round, batch.batch, batch.first, batch.size)


def decode_acknowledged(line: bytes) -> Acknowledged:
    round_, batch, first, size = map(int, line.split())
    return Acknowledged(round=round_, batch=batch, first=first, size=size)


def compare(
    acknowledged: Iterable[Acknowledged], found: Sequence[tuple[int, bytes | None]]
) -> Verdict:
    """`found` is everything in the stream: (offset, data), data None where nothing is."""
    entries = {offset: decode_entry(data) for offset, data in found if data is not None}
    promised = [
        (batch.first + index, Entry(batch.round, batch.batch, index, batch.size))
        for batch in acknowledged
        for index in range(batch.size)
    ]
    known = {offset: entry for offset, entry in entries.items() if entry is not None}
    return Verdict(
        acknowledged=len(promised),
        found=len(known),
        in_flight=len(known.keys() - {offset for offset, _ in promised}),
        lost=sum(known.get(offset) != entry for offset, entry in promised),
        reused=_repeats(offset for offset, _ in promised),
        duplicated=_repeats(known.values()),
        torn=_torn(known),
        damaged=len(found) - len(known),
    )


def _repeats(values: Iterable[object]) -> int:
    return sum(count - 1 for count in Counter(values).values())


def _torn(known: dict[int, Entry]) -> int:
    """A whole batch lies at `start + index` for each index below its size."""
    starts: dict[tuple[int, int], Counter[int]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for offset, entry in known.items():
        name = entry.round, entry.batch
        starts.setdefault(name, Counter())[offset - entry.index] += 1
        sizes[name] = entry.size
    # A second whole copy of a batch is a duplicate, not a torn batch.
    return sum(
        any(count != sizes[name] for count in pieces.values()) for name, pieces in starts.items()
    )
