"""`penstock demo`: kill processes again and again, then count what was lost.

Contract     Real processes, a real SIGKILL, a real folder. First one that writes alone is killed,
             then several share a folder and the one that serves it is killed (demo_share.py), then
             workers share out jobs and the same happens to them (demo_jobs.py), then files are
             loaded into a Delta table (demo_files.py) and orders go through a graph
             (demo_graph.py), both on Spark, whose drivers are killed. The numbers come from
             comparing what the processes had acknowledged with what is read back; exit 1 if any
             promise was broken.
Not here     Power loss: a kill leaves the operating system's cache alone. The power-loss suite
             (`make test-slow`) covers that.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer
from rich.table import Table

import penstock
from penstock.cli.demo_driver import FlowResult, flow_table, has_spark
from penstock.cli.demo_entries import Acknowledged, Verdict, compare, decode_acknowledged
from penstock.cli.demo_files import load_files
from penstock.cli.demo_graph import run_graph
from penstock.cli.demo_jobs import JobsResult, share_jobs
from penstock.cli.demo_share import ShareResult, share
from penstock.cli.demo_writer import STREAM
from penstock.cli.options import Folder, Json
from penstock.cli.output import print_json, progress_bars, result_console
from penstock.clock import SystemClock, perf_counter
from penstock.errors import ConflictError, UnavailableError

READ_CHUNK = 1000
#: In a folder that a demo may remove.
MARK = ".penstock-demo"
#: A writer that acknowledges nothing for this long is stuck, and the demo says so.
SILENCE_S = 20.0
HINT = "try another --folder, or again when the machine is less busy"
#: A round ends at an unforeseen number of acknowledged writes between these two.
WRITES_MIN, WRITES_MAX = 20, 147
#: Processes that share a folder.
MEMBERS = 3
#: A driver takes some seconds to start.
SPARK_KILLS = 1


class DemoResult(msgspec.Struct, frozen=True):
    kills: int
    verdict: Verdict
    kept: bool
    reopen_ms: list[float]  # after each kill
    share: ShareResult
    jobs: JobsResult
    files: FlowResult | None  # None: Spark is not installed, or not wanted
    graph: FlowResult | None
    seconds: float


def demo(
    kills: Annotated[int, typer.Option(min=1, max=100, help="How often to kill.")] = 5,
    spark: Annotated[bool, typer.Option(help="Load files and run a graph on Spark, too.")] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the data in ./penstock-demo, to look at.")
    ] = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Kill processes in the middle of their work, again and again, and count what was lost."""
    work = _work_folder(folder, keep)
    try:
        result = run(work, kills=kills, spark=spark)
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(result)
    else:
        console = result_console()
        console.print(result_table(result))
        console.print(share_table(result.share))
        console.print(jobs_table(result.jobs))
        if result.files is not None and result.graph is not None:
            console.print(files_table(result.files))
            console.print(graph_table(result.graph))
        elif spark:
            console.print("Spark is not installed: pip install 'penstock[spark]' shows more")
        console.print(_last_words(result, work if keep else None), markup=False, soft_wrap=True)
    if not result.kept:
        raise typer.Exit(1)


def _work_folder(folder: Path | None, keep: bool) -> Path:
    if not keep:
        return Path(tempfile.mkdtemp(prefix="penstock-demo-", dir=folder))
    work = (folder or Path()).absolute() / "penstock-demo"
    if work.exists():
        if not (work / MARK).exists():
            raise ConflictError(
                f"{work} is there, and it is not a demo's", hint="choose another --folder"
            )
        shutil.rmtree(work)
    work.mkdir()
    (work / MARK).touch()
    return work


def _last_words(result: DemoResult, kept: Path | None) -> str:
    words = f"{'Nothing was lost or doubled' if result.kept else 'A PROMISE WAS BROKEN'}, "
    words += f"in {result.seconds:.0f} s."
    if kept is None:
        return f"{words} With --keep the data stays, to look at."
    lines = [f"{words} Look at it:", f"  penstock top --location {kept / 'store'}"]
    if result.files is not None:
        lines += [
            f"  {kept / 'orders-table'}   the Delta table, for DuckDB, Polars, Spark, …",
            f"  penstock ingest files --location {kept / 'files-data'}",
            f"  penstock graph status demo --location {kept / 'graph-data'}",
        ]
    return "\n".join(lines)


def run(work: Path, *, kills: int, spark: bool = True) -> DemoResult:
    location = str(work / "store")
    begun = perf_counter()
    acknowledged: list[Acknowledged] = []
    reopen_ms: list[float] = []
    with progress_bars() as bars:
        spark_kills = SPARK_KILLS if spark and has_spark() else 0
        task = bars.add_task("demo", total=3 * kills + 2 * spark_kills, note="")
        for round_ in range(kills):
            bars.update(task, note=f"round {round_ + 1}: writing")
            acknowledged += write_and_kill(work, location, round_, writes=unforeseen_writes())
            bars.update(task, note=f"round {round_ + 1}: killed, opening again")
            before = perf_counter()
            with penstock.open(location):
                reopen_ms.append((perf_counter() - before) * 1000)
            bars.advance(task)
        bars.update(task, note="reading everything back")
        with penstock.open(location) as db:
            found = read_all(db.stream(STREAM))

        def report(note: str) -> None:
            bars.update(task, note=note)
            if note.startswith("kill"):
                bars.advance(task)

        shared = share(work, members=MEMBERS, kills=kills, report=report)
        jobs = share_jobs(work, workers=MEMBERS, kills=kills, report=report)
        files = load_files(work, kills=spark_kills, report=report) if spark_kills else None
        graph = run_graph(work, kills=spark_kills, report=report) if spark_kills else None
    verdict = compare(acknowledged, found)
    acts = (verdict, shared, jobs, files, graph)
    return DemoResult(
        kills=kills,
        verdict=verdict,
        kept=all(act is None or act.kept for act in acts),
        reopen_ms=reopen_ms,
        share=shared,
        jobs=jobs,
        files=files,
        graph=graph,
        seconds=perf_counter() - begun,
    )


def unforeseen_writes() -> int:
    return WRITES_MIN + SystemClock().entropy(1)[0] % (WRITES_MAX - WRITES_MIN + 1)


def write_and_kill(work: Path, location: str, round_: int, *, writes: int) -> list[Acknowledged]:
    """What a new process acknowledged before it was killed after about `writes` writes."""
    errors = work / f"writer-{round_}.err"
    with errors.open("wb") as stderr:
        # A session of its own: Ctrl-C in the terminal must reach the demo only, which then kills.
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.demo_writer", location, str(round_)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process:
        lines = read_lines(process.stdout)
        try:
            seen = list(itertools.islice(lines, writes))
        finally:
            process.send_signal(signal.SIGKILL)
            ended = process.wait()
        if ended != -signal.SIGKILL or len(seen) < writes:
            raise UnavailableError(
                f"the writing process ended by itself ({ended}): {last_line(errors)}", hint=HINT
            )
        # What was printed before the kill counts, whether or not it had been read by then.
        seen += lines
    return [decode_acknowledged(line) for line in seen]


def read_lines(pipe: IO[bytes]) -> Iterator[bytes]:
    """Whole lines until the pipe ends; bytes after the last line end are no line."""
    rest = b""
    while True:
        if not select.select([pipe], [], [], SILENCE_S)[0]:
            raise UnavailableError(
                f"the writing process said nothing for {SILENCE_S:.0f} s", hint=HINT
            )
        chunk = os.read(pipe.fileno(), 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def read_all(stream: penstock.Stream) -> list[tuple[int, bytes | None]]:
    info = stream.info()
    found: list[tuple[int, bytes | None]] = []
    for offset in range(info.first, info.last + 1, READ_CHUNK):
        count = min(READ_CHUNK, info.last + 1 - offset)
        messages = stream.read(offset, count)
        found += [
            (offset + place, None if message is None else message.data)
            for place, message in enumerate(messages)
        ]
        # A short answer is missing entries, not the end of the stream.
        found += [(offset + place, None) for place in range(len(messages), count)]
    return found


def result_table(result: DemoResult) -> Table:
    title = f"{result.kills} processes killed (SIGKILL) while writing"
    table = verdict_table(title, result.verdict)
    slowest = max(result.reopen_ms)
    table.add_row("slowest reopen", f"{slowest:,.0f} ms", "after a kill, until readable")
    return table


def share_table(result: ShareResult) -> Table:
    table = verdict_table(
        f"{result.members} processes share a folder; whoever serves it is killed,"
        f" {result.kills} times",
        result.verdict,
    )
    for name, count, meaning in (
        ("never delivered", result.unread, "the group gave it to nobody"),
        ("left pending", result.pending, "nobody acknowledged it in the end"),
    ):
        table.add_row(name, f"{count:,}", meaning, style="bold red" if count else "green")
    table.add_row("delivered again", f"{result.again:,}", "its reader was killed, or slow; allowed")
    slowest = max(result.takeover_ms)
    table.add_row("slowest takeover", f"{slowest:,.0f} ms", "from a kill to the next write")
    return table


def jobs_table(result: JobsResult) -> Table:
    table = Table(
        title=f"{result.workers} workers share out jobs; whoever serves the queue is killed,"
        f" {result.kills} times"
    )
    table.add_column("jobs")
    table.add_column("count", justify="right")
    table.add_column("")
    table.add_row("published", f"{result.published:,}", "their publish returned")
    table.add_row("done", f"{result.done:,}", "acknowledged by a worker")
    table.add_row("failed", f"{result.failed:,}", "poison: failed for good after the last attempt")
    for name, count, meaning in (
        ("lost", result.lost, "published, neither done nor failed"),
        ("done twice", result.done_again, "more than one worker acknowledged it"),
        ("too many attempts", result.too_often, "claimed more often than allowed"),
    ):
        table.add_row(name, f"{count:,}", meaning, style="bold red" if count else "green")
    table.add_row("claimed again", f"{result.again:,}", "its worker was killed, or it is poison")
    return table


def files_table(result: FlowResult) -> Table:
    return flow_table(
        "Files into a Delta table", result, "rows", "in the files; a third was announced twice",
        "found in the Delta table",
    )  # fmt: skip


def graph_table(result: FlowResult) -> Table:
    return flow_table(
        "Orders through a graph on Spark", result, "orders and payments",
        "written to the streams that it reads",
        "found in a SQLite table, a stream and the error stream",
    )  # fmt: skip


def verdict_table(title: str, verdict: Verdict) -> Table:
    table = Table(title=title)
    table.add_column("entries")
    table.add_column("count", justify="right")
    table.add_column("")
    table.add_row("acknowledged", f"{verdict.acknowledged:,}", "their write returned")
    table.add_row("found", f"{verdict.found:,}", "read back after the last kill")
    table.add_row("in flight", f"{verdict.in_flight:,}", "found, killed before the answer; allowed")
    for name, count, meaning in (
        ("lost", verdict.lost, "acknowledged, not where it was"),
        ("reused offsets", verdict.reused, "one offset, two entries"),
        ("duplicated", verdict.duplicated, "one entry, two offsets"),
        ("torn batches", verdict.torn, "only a part is there"),
        ("damaged", verdict.damaged, "nothing, or bytes nobody wrote"),
    ):
        table.add_row(name, f"{count:,}", meaning, style="bold red" if count else "green")
    return table
