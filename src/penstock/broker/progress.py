"""What Spark's processes tell about their reads and writes, for INFO and `progress()`. Memory only.

Contract     A read is told part by part: the counts of a part that comes again replace the first
             ones, so that a repeated task counts once. With a new batch the counts begin anew, and
             the totals keep the sum. Bounded: what was told longest ago is forgotten first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.codec.scalars import I64_MAX
from penstock.errors import InvalidError

#: Reads and writes that are remembered.
PROGRESS_MAX = 256
#: Parts of one batch that are told apart.
PARTS_MAX = 100_000


class Part(msgspec.Struct, frozen=True, tag="part"):
    """One task of a read is done."""

    read: str  # the id of the read
    source: str
    part: int
    rows: int
    bytes: int
    nodes: int  # that were opened
    skipped: int  # nodes that could hold nothing of what was asked for
    evicted: int = 0  # entries that were gone
    brokered: int = 0  # rows that the broker gave, and not the store itself
    query: str | None = None
    batch: int = 0


class Position(msgspec.Struct, frozen=True, tag="position"):
    """How far a streaming read is, and how far it could be."""

    read: str
    source: str
    offset: int
    latest: int


Report = Part | Position
_FIGURES = ("rows", "bytes", "nodes", "skipped", "evicted", "brokered")


def decode_report(data: bytes) -> Report:
    try:
        report: Report = msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"this is no report: {error}") from None
    numbers = [value for value in msgspec.structs.asdict(report).values() if isinstance(value, int)]
    if not all(0 <= value <= I64_MAX for value in numbers):
        raise InvalidError("a number of a report is negative or too large")
    return report


class Progress(msgspec.Struct, frozen=True):
    id: str
    kind: str  # read, write
    source: str  # or where it goes
    query: str | None
    batch: int | None
    rows: int  # of the last batch, as the others
    bytes: int
    nodes: int
    skipped: int
    evicted: int
    brokered: int
    total_rows: int
    total_bytes: int
    total_evicted: int
    offset: int | None  # where a streaming read is
    latest: int | None  # where it could be
    updated_ms: int

    @property
    def lag(self) -> int | None:
        """How many entries are there and not read yet."""
        return None if self.offset is None else max(0, (self.latest or 0) - self.offset)


class _Entry:
    def __init__(self, kind: str, source: str) -> None:
        self.kind, self.source = kind, source
        self.query: str | None = None
        self.batch: int | None = None
        self.parts: dict[int, dict[str, int]] = {}
        self.total_rows = self.total_bytes = self.total_evicted = 0
        self.offset: int | None = None
        self.latest: int | None = None
        self.updated_ms = 0

    def sums(self) -> dict[str, int]:
        return {name: sum(part[name] for part in self.parts.values()) for name in _FIGURES}

    def begin_batch(self, batch: int | None) -> None:
        if batch != self.batch:
            sums = self.sums()
            self.total_rows += sums["rows"]
            self.total_bytes += sums["bytes"]
            self.total_evicted += sums["evicted"]
            self.parts, self.batch = {}, batch


class Table:
    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}

    def _entry(self, kind: str, name: str, source: str, now_ms: int) -> _Entry:
        """Moved to the end, made where it is new."""
        entry = self._entries.pop((kind, name), None) or _Entry(kind, source)
        self._entries[kind, name] = entry
        entry.updated_ms = now_ms
        while len(self._entries) > PROGRESS_MAX:
            del self._entries[next(iter(self._entries))]
        return entry

    def add(self, report: Report, now_ms: int) -> None:
        entry = self._entry("read", report.read, report.source, now_ms)
        if isinstance(report, Position):
            entry.offset, entry.latest = report.offset, report.latest
            return
        entry.query = report.query or entry.query
        entry.begin_batch(report.batch)
        if len(entry.parts) < PARTS_MAX:
            entry.parts[report.part] = {name: getattr(report, name) for name in _FIGURES}

    def wrote(
        self, name: str, target: str, batch: int | None, rows: int, size: int, now_ms: int
    ) -> None:
        entry = self._entry("write", name, target, now_ms)
        entry.begin_batch(batch)
        # A batch that was linked before and comes again is what it was.
        entry.parts.setdefault(0, dict.fromkeys(_FIGURES, 0) | {"rows": rows, "bytes": size})

    def progress(self) -> list[Progress]:
        return [_shown(name, entry) for (_, name), entry in self._entries.items()]


def _shown(name: str, entry: _Entry) -> Progress:
    sums = entry.sums()
    return Progress(
        id=name,
        kind=entry.kind,
        source=entry.source,
        query=entry.query,
        batch=entry.batch,
        total_rows=entry.total_rows + sums["rows"],
        total_bytes=entry.total_bytes + sums["bytes"],
        total_evicted=entry.total_evicted + sums["evicted"],
        offset=entry.offset,
        latest=entry.latest,
        updated_ms=entry.updated_ms,
        **sums,
    )


def progress_row(progress: Progress) -> str:
    """One line of INFO."""
    fields: dict[str, Any] = {**msgspec.structs.asdict(progress), "lag": progress.lag}
    return ",".join(f"{key}={_plain(value)}" for key, value in fields.items() if value is not None)


def _plain(value: Any) -> str:
    """A name of a user may hold anything; a line of INFO may not."""
    return "".join(c if c.isprintable() and c not in ",=" else "_" for c in str(value))
