"""Bytes into lines: where each begins and ends, as arrays of offsets. Pure.

Contract     A line ends with a line feed, the last one also without; a carriage return before it
             belongs to the end. Records of CSV are lines too, but a line feed between quotes ends
             none. `cut` tells how much of what was read so far is whole lines; the rest waits.
Quotes       open only where a field begins, as readers of CSV have it; elsewhere they are letters,
             so that an inch sign does not swallow the rest of a file. Two in a row are one letter.
Not here     What is in a line (jsonlines.py, csvrows.py), how bytes are read (files.py).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

LF, CR = b"\n\r"
#: A byte order mark, at the start of a file only.
BOM = b"\xef\xbb\xbf"


class Quoting(NamedTuple):
    """Which octets quote and separate the fields of a record."""

    quote: int
    delimiter: int


class Lines(msgspec.Struct, frozen=True, eq=False):
    """Some lines of a block; offsets are into its bytes."""

    data: bytes
    starts: Offsets
    ends: Offsets  # without the line's end

    @property
    def count(self) -> int:
        return len(self.starts)

    def part(self, low: int, high: int) -> Lines:
        return Lines(self.data, self.starts[low:high], self.ends[low:high])

    def line(self, at: int) -> bytes:
        return self.data[self.starts[at] : self.ends[at]]

    def span(self) -> bytes:
        """From the first line to the last one, with everything between."""
        return self.data[self.starts[0] : self.ends[-1]] if self.count else b""

    def texts(self) -> list[str]:
        """Each as text; bytes that are no UTF-8 are written as \\xff."""
        return [self.line(at).decode(errors="backslashreplace") for at in range(self.count)]

    def only(self, wanted: npt.NDArray[np.bool_]) -> Lines:
        return Lines(self.data, self.starts[wanted], self.ends[wanted])


def split_lines(data: bytes, quoting: Quoting | None = None) -> Lines:
    """All lines, or records; what is behind the last line feed is one, too."""
    octets = np.frombuffer(data, np.uint8)
    ends = _line_feeds(data, octets, quoting)
    if not len(ends) or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    if not data:
        return Lines(data, starts[:0], ends[:0])
    returns = (ends > starts) & (octets[np.maximum(ends - 1, 0)] == CR)
    return Lines(data, starts, ends - returns)


def cut(data: bytes, quoting: Quoting | None = None) -> int:
    """How many bytes of `data` are whole lines."""
    if quoting is None or quoting.quote not in data:
        return data.rfind(b"\n") + 1
    ends = _line_feeds(data, np.frombuffer(data, np.uint8), quoting)
    return int(ends[-1]) + 1 if len(ends) else 0


def without_blank(lines: Lines) -> Lines:
    """Those that have something other than JSON's white space in them."""
    octets = np.frombuffer(lines.data, np.uint8)
    keep = lines.ends > lines.starts
    if not lines.count:
        return lines
    # The first byte of nearly every line tells that it is not blank.
    doubtful = keep & (octets[np.minimum(lines.starts, len(octets) - 1)] <= 0x20)
    for at in np.flatnonzero(doubtful).tolist():
        keep[at] = bool(lines.line(at).strip(b" \t\r"))
    return lines if keep.all() else lines.only(keep)


def _line_feeds(data: bytes, octets: Octets, quoting: Quoting | None) -> Offsets:
    """Those that end a line."""
    ends = np.flatnonzero(octets == LF).astype(np.int64)
    if quoting is None or quoting.quote not in data:
        return ends
    opened, closed = _quoted(octets, quoting)
    # Within quotes: more of them were opened than closed before it.
    inside = np.searchsorted(opened, ends) > np.searchsorted(closed, ends)
    return ends[~inside]


def _quoted(octets: Octets, quoting: Quoting) -> tuple[list[int], list[int]]:
    """Where quotes open and close."""
    quotes = np.flatnonzero(octets == quoting.quote)
    before = octets[np.maximum(quotes - 1, 0)]
    begins = (quotes == 0) | (before == quoting.delimiter) | (before == LF)
    opened: list[int] = []
    closed: list[int] = []
    doubled = -1  # the second one of two
    for at, beginning in zip(quotes.tolist(), begins.tolist(), strict=True):
        if at == doubled:
            continue
        if len(opened) > len(closed):
            if at + 1 < len(octets) and octets[at + 1] == quoting.quote:
                doubled = at + 1
            else:
                closed.append(at)
        elif beginning:
            opened.append(at)
    return opened, closed
