"""Who waits, who goes on, and when a run is over: without Spark and without a broker."""

from __future__ import annotations

import threading

import msgspec
import pytest

from penstock.errors import UnavailableError
from penstock.graph.requests import GraphStatus, Kind, ProcessorStatus, Tailer, Topology
from penstock.spark.graphboard import Board, Ended


def topology(name: str, kind: Kind = "pipe") -> Topology:
    return Topology("g", name, kind, [], [])


def status(name: str, *available: int, kind: Kind = "pipe", epoch: int = 1) -> ProcessorStatus:
    tailers = [Tailer(f"s{n}", f"s{n}", n, 0, 0, each) for n, each in enumerate(available)]
    return ProcessorStatus(
        "g", name, kind, "exactly_once", tailers, [], None, epoch, 0, False, 0, 0, 0, 0, 0, 0, 0,
        None, None, None, 0, None, None, False,
    )  # fmt: skip


def settled(board: Board, *found: ProcessorStatus) -> bool:
    board.settle(lambda: GraphStatus("g", list(found)))
    return board.is_over


def test_a_run_is_idle_when_all_are_parked_and_nothing_waits() -> None:
    board = Board([topology("a"), topology("b")])
    idle = [status("a", 0), status("b", 0)]
    assert not settled(board, *idle)
    board.park("a")
    assert not settled(board, *idle)
    board.park("b")
    # Written by the other one before it parked: it has not looked yet.
    assert not settled(board, status("a", 1), status("b", 0))
    board.unpark("a")
    assert not settled(board, *idle)
    board.park("a")
    assert settled(board, *idle)
    board.raise_error()
    with pytest.raises(Ended):
        board.unpark("a")


@pytest.mark.parametrize(
    ("kind", "available", "over"),
    [
        ("join", (5, 0), True),
        ("join", (5, 1), False),
        ("alts", (0, 5), False),
        ("alts", (0, 0), True),
        ("source", (), True),
    ],
)
def test_what_counts_as_work_depends_on_the_kind(
    kind: Kind, available: tuple[int, ...], over: bool
) -> None:
    board = Board([topology("a", kind)])
    board.park("a")
    assert settled(board, status("a", *available, kind=kind)) is over


def test_one_that_is_stuck_ends_the_run_when_the_others_are_idle() -> None:
    board = Board([topology("a"), topology("b")])
    board.stick("a", "no disk")
    assert not settled(board, status("a", 9), status("b", 0))
    board.park("b")
    assert settled(board, status("a", 9), status("b", 0))
    with pytest.raises(UnavailableError, match="g/a cannot go on: no disk"):
        board.raise_error()


def test_one_that_got_over_it_is_not_stuck_any_more() -> None:
    board = Board([topology("a")])
    board.stick("a", "no disk")
    board.unstick("a")
    assert not settled(board, status("a", 0))


def test_nobody_begins_while_the_run_is_being_looked_at() -> None:
    board = Board([topology("a")])
    board.park("a")
    began = threading.Event()

    def begin() -> None:
        began.set()
        with pytest.raises(Ended):
            board.unpark("a")
        ended.set()

    ended = threading.Event()
    thread = threading.Thread(target=begin)

    def look() -> GraphStatus:
        thread.start()
        began.wait()
        return GraphStatus("g", [status("a", 0)])

    board.settle(look)
    thread.join()
    assert ended.is_set()


def test_the_owner_is_who_started_the_first_processor_last() -> None:
    board = Board([topology("a"), topology("b")])
    found = GraphStatus("g", [status("a", epoch=3), status("b", epoch=9)])
    assert board.lost(found) == "g/a was taken over by another runner"
    board.started("a", 3)
    assert board.lost(found) is None
    board.started("a", 2)
    assert board.lost(found) == "g/a was taken over by another runner"


def test_a_reset_takes_the_graph_from_nobody() -> None:
    board = Board([topology("a")])
    board.started("a", 3)
    reset = [msgspec.structs.replace(status("a", epoch=epoch), reset=True) for epoch in (4, 5)]
    assert board.lost(GraphStatus("g", reset[:1])) is None
    # Perhaps somebody started it in between.
    assert board.lost(GraphStatus("g", reset[1:])) == "g/a was reset while it ran"
    assert board.lost(GraphStatus("g", [])) == "g/a was dropped or renamed while it ran"


def test_the_others_wait_for_the_first_one() -> None:
    board = Board([topology("a"), topology("b")])
    board.await_turn("a")
    board.end()
    with pytest.raises(Ended):
        board.await_turn("b")
    board = Board([topology("a"), topology("b")])
    board.tried("a")
    board.await_turn("b")
