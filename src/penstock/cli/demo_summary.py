"""What the demo found, as one table: in, out, lost, doubled, per act.

Contract     Every count of a promise that was broken shows: losses and doubles as columns, any
             other one in words below the table. What is allowed (on its way at a kill, given again
             because a worker died) stands with its act.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.markup import escape
from rich.table import Table

from penstock.cli.demo_driver import FlowResult
from penstock.cli.demo_entries import Verdict
from penstock.cli.demo_jobs import JobsResult
from penstock.cli.demo_share import ShareResult
from penstock.words import counted


class Act(msgspec.Struct, frozen=True):
    name: str
    notes: list[str]
    went_in: int
    came_out: int
    lost: int
    doubled: int
    seconds: float
    kills: int
    broken: dict[str, int] = {}  # other promises, and how often each was broken


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def write_act(kills: int, verdict: Verdict, reopen_ms: Sequence[float], seconds: float) -> Act:
    return Act(
        name="one process writes a stream",
        notes=[
            f"killed {times(kills)}; readable again in {max(reopen_ms):,.0f} ms",
            _in_flight(verdict.in_flight),
        ],
        went_in=verdict.acknowledged,
        came_out=verdict.found,
        lost=verdict.lost,
        doubled=verdict.duplicated,
        seconds=seconds,
        kills=kills,
        broken=_broken(verdict),
    )


def _in_flight(count: int) -> str:
    return counted(count, "more was on its way", "more were on their way") + " at a kill"


def share_act(result: ShareResult) -> Act:
    return Act(
        name=f"{result.members} processes share a stream and a group",
        notes=[
            f"the one that serves is killed {times(result.kills)}; the next one "
            f"serves in {max(result.takeover_ms):,.0f} ms",
            f"{_in_flight(result.verdict.in_flight)}; {result.again:,} came again",
        ],
        went_in=result.verdict.acknowledged,
        came_out=result.verdict.found,
        lost=result.verdict.lost,
        doubled=result.verdict.duplicated,
        seconds=result.seconds,
        kills=result.kills,
        broken={
            **_broken(result.verdict),
            "the group gave it to nobody": result.unread,
            "nobody acknowledged it": result.pending,
        },
    )


def _broken(verdict: Verdict) -> dict[str, int]:
    return {
        "two entries at one offset": verdict.reused,
        "only a part of a batch is there": verdict.torn,
        "nothing there, or bytes that nobody wrote": verdict.damaged,
    }


def jobs_act(result: JobsResult) -> Act:
    return Act(
        name=f"{result.workers} workers share out jobs",
        notes=[
            f"{result.published:,} published, to two queues by filter and priority",
            f"the one that serves is killed {times(result.kills)}; "
            f"{result.again:,} came again, {result.failed:,} are poison and failed",
            _in_flight(result.done + result.failed - result.wanted + result.lost),
        ],
        went_in=result.wanted,
        came_out=result.done + result.failed,
        lost=result.lost,
        doubled=result.done_again,
        seconds=result.seconds,
        kills=result.kills,
        broken={
            "in a queue that does not want it": result.misrouted,
            "claimed more often than allowed": result.too_often,
            "given after a less urgent one": result.unordered,
        },
    )


def files_act(result: FlowResult) -> Act:
    return _flow_act(
        "files into a Delta table, on Spark", result,
        "rows; a third of the files was announced twice",
        f"the loader, its JVM and its workers are killed {times(result.kills)}",
    )  # fmt: skip


def graph_act(result: FlowResult) -> Act:
    return _flow_act(
        "orders and payments through a graph, on Spark", result,
        "out: rows of SQLite, entries of a stream, entries of the error stream",
        f"the driver, its JVM and its workers are killed {times(result.kills)}",
    )  # fmt: skip


def _flow_act(name: str, result: FlowResult, *notes: str) -> Act:
    return Act(
        name=name,
        notes=list(notes),
        went_in=result.went_in,
        came_out=result.came_out,
        lost=result.lost,
        doubled=result.duplicated,
        seconds=result.seconds,
        kills=result.kills,
        broken={"nobody had put it in": result.wrong},
    )


def summary_table(acts: Sequence[Act]) -> Table:
    table = Table(title="What went in, and what was found after the kills", show_lines=True)
    table.add_column("", ratio=1)
    for name in ("in", "out", "lost", "doubled", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for act in acts:
        notes = "".join(f"\n[dim]{escape(note)}[/]" for note in act.notes)
        table.add_row(
            f"{act.name}{notes}",
            f"{act.went_in:,}",
            f"{act.came_out:,}",
            _verdict(act.lost),
            _verdict(act.doubled),
            f"{act.seconds:.0f}",
        )
    return table


def _verdict(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"


def broken_promises(acts: Sequence[Act]) -> list[str]:
    """Beside losses and doubles, a line for each."""
    return [
        f"{act.name}: {reason}, {times(count)}"
        for act in acts
        for reason, count in act.broken.items()
        if count
    ]
