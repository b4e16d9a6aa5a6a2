"""What a batch reads, and what its results mean for the shards."""

from __future__ import annotations

from penstock.source.requests import EOF, Move, position_text
from penstock.spark.ingest import pieces
from penstock.spark.ingest.pieces import Piece, PieceResult, Work, outcome, plan

MIB = 2**20


def test_small_files_are_shared_out_by_weight() -> None:
    works = [Work(str(n), f"file:///{n}", size=size * MIB) for n, size in enumerate([9, 1, 5, 4])]
    planned = plan(works, tasks=2, chunk_bytes=256 * MIB, task_bytes=256 * MIB)
    assert [[piece.number for piece in task] for task in planned.tasks] == [[0], [1, 2, 3]] or [
        [piece.number for piece in task] for task in planned.tasks
    ] == [[0, 1], [2, 3]]
    assert all(piece.end is None and not piece.alone for task in planned.tasks for piece in task)


def test_no_more_tasks_than_pieces_and_none_with_too_much() -> None:
    works = [Work(str(n), f"file:///{n}", size=100 * MIB) for n in range(8)]
    few = plan(works[:1], tasks=4, chunk_bytes=256 * MIB, task_bytes=256 * MIB)
    many = plan(works, tasks=2, chunk_bytes=256 * MIB, task_bytes=200 * MIB)
    assert len(few.tasks) == 1
    assert [len(task) for task in many.tasks] == [2, 2, 2, 1, 1]


def test_a_large_file_is_cut_into_ranges_of_one_chunk() -> None:
    work = Work("a", "file:///a", size=200 * MIB, divisible=True)
    planned = plan([work], tasks=2, chunk_bytes=64 * MIB, task_bytes=256 * MIB)
    found = sorted((p for task in planned.tasks for p in task), key=lambda p: p.number)
    assert [(p.start, p.end, p.aligned, p.alone) for p in found] == [
        (0, 32 * MIB, True, True),
        (32 * MIB, 64 * MIB, False, True),
    ]


def test_a_little_that_would_be_left_is_taken_along_and_asks_for_no_end() -> None:
    work = Work("a", "file:///a", position_text(64), size=64 + 80, divisible=True)
    planned = plan([work], tasks=1, chunk_bytes=64, task_bytes=256 * MIB)
    found = [piece for task in planned.tasks for piece in task]
    assert [(p.start, p.end, p.aligned) for p in found] == [(64, 128, True), (128, None, False)]


def test_a_file_that_was_read_to_its_last_byte_still_has_an_end_to_reach() -> None:
    work = Work("a", "file:///a", position_text(50), size=50, divisible=True)
    planned = plan([work], tasks=1, chunk_bytes=64, task_bytes=256 * MIB)
    assert planned.tasks == [[Piece(0, "file:///a", 50, None)]]


def test_row_groups_are_cut_by_their_sizes() -> None:
    work = Work("a", "file:///a", position_text(1), 0, groups=(9, 60, 60, 9), divisible=True)
    (first,) = plan([work], tasks=1, chunk_bytes=100, task_bytes=256 * MIB).tasks
    assert [(p.start, p.end) for p in first] == [(1, 3)]
    rest = Work("a", "file:///a", position_text(3), 0, groups=(9, 60, 60, 9), divisible=True)
    (last,) = plan([rest], tasks=1, chunk_bytes=100, task_bytes=256 * MIB).tasks
    assert [(p.start, p.end) for p in last] == [(3, None)]


def test_a_shard_moves_to_where_its_last_piece_ended() -> None:
    works = [Work("a", "file:///a", size=100, divisible=True), Work("b", "file:///b", size=5)]
    planned = plan(works, tasks=1, chunk_bytes=40, task_bytes=256 * MIB)
    numbers = planned.pieces["a"]
    results = {n: PieceResult(n, 2, 40) for n in numbers}
    results |= {planned.pieces["b"][0]: PieceResult(planned.pieces["b"][0], 3, None)}
    assert outcome(works, planned, results).moves == [
        Move("a", "BOF", position_text(40), 2 * len(numbers)),
        Move("b", "BOF", EOF, 3),
    ]


def test_one_piece_that_failed_stops_its_whole_file_and_no_other() -> None:
    old = pieces._RANGE_BYTES
    pieces._RANGE_BYTES = 20
    try:
        works = [Work("a", "file:///a", size=60, divisible=True), Work("b", "file:///b", size=5)]
        planned = plan(works, tasks=1, chunk_bytes=60, task_bytes=256 * MIB)
    finally:
        pieces._RANGE_BYTES = old
    assert len(planned.pieces["a"]) == 3
    bad = PieceResult(1, error="no")
    results = {n: PieceResult(n, 1, None) for n in (0, 2, 3)} | {1: bad}
    found = outcome(works, planned, results)
    assert found.failures == {"a": bad}
    assert [move.id for move in found.moves] == ["b"]
