"""What a batch reads: files whole or in parts, and which task takes which. Pure.

Contract     plan(works, …): the pieces of a batch, packed into tasks of about equal weight.
             Whatever can be read from the middle (lines that are not compressed, row groups) and is
             large is read from its position on, about `chunk_bytes` of it, by several tasks; the
             rest of it is for later batches. Everything else is read whole, by one task.
             moves(…): what the pieces' results mean for the shards: how far each got, or why not.
Ranges       A piece of lines [start, end) has those lines that begin in it. Its result says where
             the next line begins, so the parts of a file meet without a gap, wherever the cuts are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.errors import InvalidError, PenstockError, UnavailableError
from penstock.source.requests import BOF, EOF, Move, position_text
from penstock.spark.ingest.files import DeniedError

#: A task has one file at least; opening one costs about as much as reading this.
_FILE_BYTES = 64 * 2**10
#: Lines of a large file are read in ranges of this size, side by side.
_RANGE_BYTES = 32 * 2**20
#: What a compressed byte stands for, about.
_INFLATION = 4


class Work(msgspec.Struct, frozen=True):
    """A shard that is to be loaded, from its position on."""

    id: str
    uri: str
    position: str = BOF
    size: int = 0
    #: Of a file whose identity is its version, or of which parts are loaded: it must be this one.
    version: str | None = None
    #: Bytes of an inline announcement.
    data: bytes | None = None
    #: Row groups of a large Parquet file, as their sizes; of lines that can be cut: empty.
    groups: tuple[int, ...] = ()
    #: It can be read from the middle.
    divisible: bool = False

    @property
    def offset(self) -> int:
        return 0 if self.position == BOF else int(self.position)


class Piece(msgspec.Struct, frozen=True):
    """One file, or a part of one, for a task."""

    number: int  # within the batch
    uri: str
    start: int = 0
    end: int | None = None  # None: to the end of the file
    #: `start` is where a line begins, for certain.
    aligned: bool = True
    version: str | None = None
    data: bytes | None = None
    #: One of several of its file: they share splits with no other, for none counts if one fails.
    alone: bool = False


class PieceResult(msgspec.Struct, frozen=True):
    number: int
    rows: int = 0
    #: Where the next line or row group begins; None: the file was read to its end.
    end: int | None = None
    error: str = ""
    #: Trying again cannot help.
    final: bool = False
    #: The file is not the one that was to be read.
    changed: bool = False
    #: Its store did not answer, which is no failure of the file.
    away: bool = False
    #: It may not be read: away, unless its store answers otherwise (denied.py).
    denied: bool = False


def failed(number: int, error: PenstockError) -> PieceResult:
    """What an error in reading means for the piece."""
    return PieceResult(
        number,
        error=str(error),
        final=isinstance(error, InvalidError),
        away=isinstance(error, UnavailableError),
        denied=isinstance(error, DeniedError),
    )


class Plan(msgspec.Struct, frozen=True):
    tasks: list[list[Piece]]
    #: Which pieces a work became, by its id; in the order of the file.
    pieces: dict[str, list[int]]


class Outcome(msgspec.Struct, frozen=True):
    moves: list[Move]
    failures: dict[str, PieceResult]  # by shard


def plan(works: Sequence[Work], *, tasks: int, chunk_bytes: int, task_bytes: int) -> Plan:
    """`tasks` or more, so that none has much more than `task_bytes`."""
    pieces: list[Piece] = []
    weights: list[int] = []
    numbers: dict[str, list[int]] = {}
    for work in works:
        begun = len(pieces)
        ranges = list(_ranges(work, chunk_bytes))
        for start, end, weight in ranges:
            pieces.append(
                Piece(
                    len(pieces),
                    work.uri,
                    start,
                    end,
                    aligned=start == work.offset,
                    version=work.version,
                    data=work.data,
                    alone=len(ranges) > 1,
                )
            )
            weights.append(weight + _FILE_BYTES)
        numbers[work.id] = list(range(begun, len(pieces)))
    count = min(len(pieces), max(tasks, -(-sum(weights) // task_bytes)))
    return Plan(_pack(pieces, weights, count), numbers)


def _ranges(work: Work, chunk_bytes: int) -> Iterable[tuple[int, int | None, int]]:
    """-> (start, end or None for all that is left, bytes)"""
    start = work.offset
    if work.groups:
        yield from _group_ranges(work.groups, start, chunk_bytes)
        return
    if not work.divisible:
        compressed = work.data is None and work.uri.endswith((".gz", ".bz2", ".zst", ".zstd"))
        yield 0, None, work.size * (_INFLATION if compressed else 1)
        return
    last = min(work.size, start + chunk_bytes)
    # A little that would be left over is taken along.
    if work.size - last < chunk_bytes // 2:
        last = work.size
    step = min(_RANGE_BYTES, chunk_bytes)
    while start < last:
        end = min(start + step, last)
        # The last one asks for no end: where the file ends is seen when it is read.
        yield start, None if end == work.size else end, end - start
        start = end
    if work.offset >= work.size:
        yield work.offset, None, 0


def _group_ranges(
    groups: Sequence[int], start: int, chunk_bytes: int
) -> Iterable[tuple[int, int | None, int]]:
    taken, first, size = 0, start, 0
    for number in range(start, len(groups)):
        size += groups[number]
        last = number + 1 == len(groups)
        full = taken + size >= chunk_bytes
        if last or full or size >= _RANGE_BYTES:
            yield first, None if last else number + 1, size
            taken, first, size = taken + size, number + 1, 0
        if full:
            return
    if start >= len(groups):
        yield start, None, 0


def _pack(pieces: Sequence[Piece], weights: Sequence[int], count: int) -> list[list[Piece]]:
    """The heaviest first, each to the task that has least: no task has much more than another."""
    tasks: list[list[Piece]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for at in sorted(range(len(pieces)), key=lambda at: -weights[at]):
        load, number = heapq.heappop(loads)
        tasks[number].append(pieces[at])
        heapq.heappush(loads, (load + weights[at], number))
    # Files in the order in which they came, within a task.
    return [sorted(task, key=lambda piece: piece.number) for task in tasks]


def outcome(works: Sequence[Work], plan: Plan, results: Mapping[int, PieceResult]) -> Outcome:
    """A shard moves only if all of its pieces were read; else none of its rows may be published."""
    moves, failures = [], {}
    for work in works:
        found = [results[number] for number in plan.pieces[work.id]]
        bad = next((each for each in found if each.error), None)
        if bad is not None:
            failures[work.id] = bad
            continue
        ends = [each.end for each in found]
        known = [end for end in ends if end is not None]
        end = EOF if None in ends else position_text(max(known))
        rows = sum(each.rows for each in found)
        version = None if end == EOF else work.version
        moves.append(Move(work.id, work.position, end, rows, version))
    return Outcome(moves, failures)
