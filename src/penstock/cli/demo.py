"""`penstock demo`: kill processes again and again, then count what was lost.

Contract     Real processes, a real SIGKILL, one real folder. First one that writes alone is killed,
             then several share a stream and the one that serves is killed (demo_share.py), then
             workers share out jobs and the same happens to them (demo_jobs.py), then files are
             loaded into a Delta table (demo_files.py) and orders go through a graph
             (demo_graph.py), both on Spark, whose drivers are killed. The numbers come from
             comparing what the processes had acknowledged with what is read back
             (demo_summary.py); exit 1 if any promise was broken.
Not here     Power loss: a kill leaves the operating system's cache alone. The power-loss suite
             (`make test-slow`) covers that.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import shlex
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

import penstock
from penstock.cli.check import say_wait
from penstock.cli.demo_crowd import LOCATION
from penstock.cli.demo_driver import FlowResult, has_spark
from penstock.cli.demo_entries import Acknowledged, Verdict, compare, decode_acknowledged
from penstock.cli.demo_files import load_files
from penstock.cli.demo_graph import run_graph
from penstock.cli.demo_jobs import JobsResult, share_jobs
from penstock.cli.demo_share import ShareResult, share
from penstock.cli.demo_summary import (
    Act,
    broken_promises,
    files_act,
    graph_act,
    jobs_act,
    share_act,
    summary_table,
    write_act,
)
from penstock.cli.demo_writer import STREAM
from penstock.cli.options import Folder, Json
from penstock.cli.output import print_json, progress_bars, result_console
from penstock.client.host import take_lock
from penstock.clock import SystemClock, perf_counter
from penstock.errors import ConflictError, UnavailableError

READ_CHUNK = 1000
#: In a folder that a demo may remove.
MARK = ".penstock-demo"
#: A broker that nobody uses any more leaves in less than this, on a busy machine too.
WAIT_S = 20.0
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
    write_seconds: float
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
        console.print(summary_table(acts_of(result)))
        if spark and result.files is None:
            console.print("Spark is not installed; with the extra `spark` there is more to see.")
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
        _clear(work)
    else:
        work.mkdir()
        (work / MARK).touch()
    return work


def _clear(work: Path) -> None:
    """What the last demo left goes, but for its mark: who stops in the middle may begin again."""
    lock = None
    if (work / LOCATION).is_dir():
        # Whoever looks at it has it open, and would write into it while it goes.
        lock = asyncio.run(
            take_lock(work / LOCATION, clock=SystemClock(), deadline=WAIT_S, on_wait=say_wait)
        )
    for each in work.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != MARK:
            each.unlink()
    if lock is not None:
        lock.release()


def acts_of(result: DemoResult) -> list[Act]:
    acts = [
        write_act(result.kills, result.verdict, result.reopen_ms, result.write_seconds),
        share_act(result.share),
        jobs_act(result.jobs),
    ]
    if result.files is not None and result.graph is not None:
        acts += [files_act(result.files), graph_act(result.graph)]
    return acts


def _command() -> str:
    """As the reader can type it: `make demo` runs in an environment that his shell knows not of."""
    return "penstock" if shutil.which("penstock") else f"{shlex.quote(sys.executable)} -m penstock"


def _last_words(result: DemoResult, kept: Path | None) -> str:
    acts = acts_of(result)
    words = "Nothing was lost or doubled" if result.kept else "A PROMISE WAS BROKEN"
    lines = broken_promises(acts)
    lines.append(f"{words}: {sum(act.kills for act in acts)} kills in {result.seconds:.0f} s.")
    if kept is None:
        return "\n".join([*lines, "With --keep the data stays, to look at."])
    command = _command()
    location = shlex.quote(str(kept / LOCATION))
    lines += ["Look at it:", f"  {command} top --location {location}"]
    if result.files is not None:
        lines += [
            f"  {command} ingest files --location {location}",
            f"  {command} graph status demo --location {location}",
            f"  {kept / 'orders-table'}   the Delta table, for DuckDB, Polars, Spark, …",
        ]
    return "\n".join(lines)


def run(work: Path, *, kills: int, spark: bool = True) -> DemoResult:
    location = str(work / LOCATION)
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
        write_seconds = perf_counter() - begun

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
        write_seconds=write_seconds,
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
            [sys.executable, "-P", "-m", "penstock.cli.demo_writer", location, str(round_)],
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
