"""`penstock bench`: measurements, each beside the limit it can be compared with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table

from penstock.cli.bench_append import CASES, AppendCase, AppendResult
from penstock.cli.bench_log import LogResult, measure_log
from penstock.cli.bench_peers import require_redis
from penstock.cli.bench_queue import OURS, QueueCase, QueueResult, measure_queues
from penstock.cli.bench_source import SourceResult, measure_source
from penstock.cli.bench_spark import SparkResult, measure_spark
from penstock.cli.bench_stream import STREAM_CASES, StreamResult, measure_streams
from penstock.cli.bench_topic import TopicResult, measure_topics
from penstock.cli.options import Folder, Json
from penstock.cli.output import print_json, progress_bars, result_console
from penstock.cli.payloads import Payload

if TYPE_CHECKING:
    from penstock.cli.bench_graph import GraphResult

R = TypeVar("R")

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure this machine."""


def _run(
    name: str,
    folder: Path | None,
    measure: Callable[[Path, Callable[[str], None]], R],
    table: Callable[[R], Table],
    as_json: bool,
) -> None:
    """Measure in a new folder, which is removed, and print what came of it."""
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder or Path.cwd()))
    try:
        with progress_bars() as bars:
            task = bars.add_task(f"bench {name}", total=None, note="")
            result = measure(work, lambda note: bars.update(task, note=note))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(result)
    else:
        result_console().print(table(result))


@app.command(name="log", epilog="Example: penstock bench log --seconds 5")
def log(
    seconds: Annotated[float, typer.Option(min=0.01, help="For each side of each case.")] = 2.0,
    entries: Annotated[int, typer.Option(min=1000, help="In the stream that is read.")] = 1_000_000,
    payload: Annotated[Payload, typer.Option(help="Compressible or not.")] = Payload.JSON,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Durable appends, reads and seeks of the log, beside the disk's own limit.

    Without --folder it works in a new folder inside the current one, which is removed afterwards:
    the disk that is measured should be one that you use.
    """
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder or Path.cwd()))
    try:
        with progress_bars() as bars:
            task = bars.add_task("bench log", total=len(CASES) + 1, note="")
            begun = 0

            def report(case: AppendCase | None) -> None:
                nonlocal begun
                note = "reading" if case is None else f"append {describe(case)}"
                bars.update(task, completed=begun, note=note)
                begun += 1

            result = measure_log(
                work, payload=payload, seconds=seconds, entries=entries, report=report
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(result)
    else:
        print_tables(result)


@app.command(name="stream", epilog="Example: penstock bench stream --seconds 5")
def stream(
    seconds: Annotated[float, typer.Option(min=0.1, help="For each side of each case.")] = 4.0,
    turns: Annotated[int, typer.Option(min=1, help="How often both sides take turns.")] = 4,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Streams over RESP and in process, beside a redis-server that syncs every write.

    Both run on loopback, in new folders inside the current one or --folder, which are removed
    afterwards.
    """
    require_redis()
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder or Path.cwd()))
    try:
        with progress_bars() as bars:
            task = bars.add_task("bench stream", total=STREAM_CASES, note="")

            def report(name: str) -> None:
                bars.update(task, note=name)
                bars.advance(task)

            result = measure_streams(work, seconds=seconds, turns=turns, report=report)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(result)
    else:
        result_console().print(stream_table(result))


def stream_table(result: StreamResult) -> Table:
    table = Table(
        title="Streams, 100 B entries, every write durable",
        caption="redis: redis-server with appendfsync always, in the same run",
    )
    table.add_column("what")
    for name in ("penstock", "redis", "ratio", "wanted"):
        table.add_column(name, justify="right")
    for case in result.cases:
        form = "{:,.2f} {}" if case.unit == "ms" else "{:,.0f} {}"
        table.add_row(
            case.name,
            form.format(case.ours, case.unit),
            form.format(case.redis, case.unit),
            f"{case.ratio:.2f}x",
            f"{'at most' if case.lower else 'at least'} {case.target:g}x",
            style=None if case.met else "red",
        )
    return table


@app.command(name="queue", epilog="Example: penstock bench queue --turns 2")
def queue(
    seconds: Annotated[float, typer.Option(min=0.1, help="For each side of each case.")] = 4.0,
    turns: Annotated[int, typer.Option(min=1, help="How often all sides take turns.")] = 4,
    backlog: Annotated[
        int, typer.Option(min=1000, help="Messages in the long queue that is compared.")
    ] = 200_000,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Queues in process and over RESP, beside Redis, RabbitMQ and PostgreSQL.

    Each of them only where it is installed. All run on loopback, in new folders inside the current
    one or --folder, which are removed afterwards; every publish is durable before it returns.
    """
    work = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder or Path.cwd()))
    try:
        with progress_bars() as bars:
            task = bars.add_task("bench queue", total=None, note="")
            result = measure_queues(
                work,
                seconds=seconds,
                turns=turns,
                backlog=backlog,
                report=lambda note: bars.update(task, note=note),
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if as_json:
        print_json(result)
    else:
        console = result_console()
        console.print(queue_table(result))
        console.print(backlog_table(result))


def queue_table(result: QueueResult) -> Table:
    missing = [f"{name}: {why}" for name, why in result.missing.items()]
    table = Table(
        title="Queues, 100 B messages, every publish durable",
        caption="; ".join(["disk: one plain write and sync for each call", *missing]),
    )
    table.add_column("what")
    systems = list(result.cases[0].results)
    for name in (*systems, "best other", "wanted"):
        table.add_column(name, justify="right")
    for case in result.cases:
        table.add_row(case.name, *(queue_cell(case, name) for name in systems), *ratios(case))
    return table


def queue_cell(case: QueueCase, name: str) -> str:
    value = case.results.get(name)
    if value is None:
        return ""
    text = f"{value:,.2f} ms" if case.unit == "ms" else f"{value:,.0f}/s"
    return f"[red]{text}[/]" if name in OURS and case.met(name) is False else text


def ratios(case: QueueCase) -> tuple[str, str]:
    """Ours in terms of the best other one, in process and over RESP; and what is wanted."""
    best = case.best
    found = [f"{case.results[name] / best:.2f}x" for name in OURS] if best else ["none"]
    if case.wanted is None:
        return ", ".join(found), ""
    limit = f"{case.wanted:g} {case.unit}" if case.absolute else f"{case.wanted:g}x"
    return ", ".join(found), f"{'at most' if case.lower else 'at least'} {limit}"


def backlog_table(result: QueueResult) -> Table:
    table = Table(
        title="Claim and ack of 100 over RESP, by how many messages wait",
        caption=f"ratio {result.backlog_ratio:.2f}x, wanted at most {result.backlog_wanted:g}x",
    )
    for name in ("messages", "p50", "memory (RSS)"):
        table.add_column(name, justify="right")
    for row in result.backlogs:
        table.add_row(f"{row.messages:,}", f"{row.p50_ms:.2f} ms", mib(row.rss_bytes))
    return table


@app.command(name="topic", epilog="Example: penstock bench topic --json")
def topic(
    seconds: Annotated[float, typer.Option(min=0.1, help="For each side.")] = 12.0,
    turns: Annotated[int, typer.Option(min=1, help="How often both sides take turns.")] = 6,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """A topic with four consumer processes, beside a stream group of Redis with four.

    Both run on loopback, in new folders inside the current one or --folder, which are removed
    afterwards; every push is durable before it returns.
    """
    require_redis()
    _run(
        "topic",
        folder,
        lambda work, report: measure_topics(work, seconds=seconds, turns=turns, report=report),
        topic_table,
        as_json,
    )


def topic_table(result: TopicResult) -> Table:
    table = Table(
        title=f"Topics, 100 B messages in batches of 1000, {result.consumers} consumer processes",
        caption="redis: a stream group with as many, appendfsync always, in the same run",
    )
    table.add_column("messages/s")
    for name in ("penstock", "redis", "ratio", "wanted"):
        table.add_column(name, justify="right")
    for case in result.cases:
        table.add_row(
            case.name,
            f"{case.ours:,.0f}",
            f"{case.redis:,.0f}",
            f"{case.ratio:.2f}x",
            "" if case.wanted is None else f"at least {case.wanted:g}x",
            style=None if case.met else "red",
        )
    return table


@app.command(name="spark", epilog="Example: penstock bench spark --json")
def spark(
    rows: Annotated[int, typer.Option(min=100_000, help="Entries that are read.")] = 10_000_000,
    turns: Annotated[int, typer.Option(min=1, help="How often both sides take turns.")] = 3,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """A stream read into Spark, beside the same rows in Parquet.

    On two cores of this machine, in new folders inside the current one or --folder, which are
    removed afterwards. Needs the extra `spark`.
    """
    _run(
        "spark",
        folder,
        lambda work, report: measure_spark(work, rows=rows, turns=turns, report=report),
        spark_table,
        as_json,
    )


def spark_table(result: SparkResult) -> Table:
    table = Table(
        title=f"{result.rows:,} entries of 100 B in Spark, local[2]",
        caption="parquet: the same rows, zstd, read by Spark in the same run",
    )
    table.add_column("what")
    for name in ("penstock", "parquet", "ratio", "wanted"):
        table.add_column(name, justify="right")
    for case in result.cases:
        table.add_row(
            case.name,
            f"{case.ours:,.0f} rows/s",
            f"{case.parquet:,.0f} rows/s" if case.parquet else "",
            f"{case.ratio:.2f}x" if case.ratio else "",
            f"at least {case.wanted:g}x and {case.wanted_rows or 0:,.0f} rows/s"
            if case.wanted
            else "",
            style=None if case.met else "red",
        )
    return table


@app.command(name="graph", epilog="Example: penstock bench graph --turns 1")
def graph(
    turns: Annotated[int, typer.Option(min=1, help="How often both sides take turns.")] = 3,
    seconds: Annotated[float, typer.Option(min=3, help="For the latency.")] = 20.0,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """A graph's pipe on Spark, beside Spark alone; the cost of a step; the way through three pipes.

    On two cores of this machine, in new folders inside the current one or --folder, which are
    removed afterwards. Needs the extra `spark`.
    """
    # Not above: a graph's runner needs Spark, which not everybody has.
    from penstock.cli.bench_graph import measure_graph

    _run(
        "graph",
        folder,
        lambda work, report: measure_graph(work, turns=turns, seconds=seconds, report=report),
        graph_table,
        as_json,
    )


def graph_table(result: GraphResult) -> Table:
    table = Table(
        title="A function per message of 100 B on Spark, local[2], every step durable",
        caption="bare: the same function through mapInArrow, from memory into nothing",
    )
    table.add_column("what")
    for name in ("penstock", "bare Spark", "wanted"):
        table.add_column(name, justify="right")
    for case in result.cases:
        table.add_row(
            f"steps of {case.step:,}",
            f"{case.ours:,.0f}/s",
            f"{case.bare:,.0f}/s",
            f"at least {case.wanted:,.0f}/s",
            style=None if case.met else "red",
        )
    table.add_row(
        "a step of one message",
        f"{result.fixed_ms:,.0f} ms",
        f"{result.bare_ms:,.0f} ms",
        f"at most {result.fixed_wanted_ms:,.0f} ms",
        style=None if result.fixed_ms <= result.fixed_wanted_ms else "red",
    )
    table.add_row(
        f"through three pipes at {result.rate:,}/s: p50, p99",
        f"{result.latency_p50_ms:,.0f} ms, {result.latency_p99_ms:,.0f} ms",
    )
    return table


@app.command(name="source", epilog="Example: penstock bench source --files 500")
def source(
    announcements: Annotated[
        int, typer.Option(min=1000, help="Messages that name files which nobody reads.")
    ] = 20_000,
    files: Annotated[int, typer.Option(min=1, help="Files of 100 KB that are loaded.")] = 2000,
    turns: Annotated[int, typer.Option(min=1, help="How often both sides take turns.")] = 3,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Announced files into a Delta table, beside Spark reading the same folder into Parquet.

    On two cores of this machine, in new folders inside the current one or --folder, which are
    removed afterwards. Needs the extra `spark`.
    """
    _run(
        "source",
        folder,
        lambda work, report: measure_source(
            work, announcements=announcements, files=files, turns=turns, report=report
        ),
        source_table,
        as_json,
    )


def source_table(result: SourceResult) -> Table:
    table = Table(
        title=f"{result.files:,} announced files of 100 KB of JSON lines, local[2]",
        caption="spark: spark.read.json(folder).write.parquet(other) in the same run",
    )
    table.add_column("what")
    for name in ("penstock", "spark", "ratio", "wanted"):
        table.add_column(name, justify="right")
    enough = result.announcements >= result.announcements_wanted
    table.add_row(
        "announcements, no file read",
        f"{result.announcements:,.0f}/s",
        "",
        "",
        f"at least {result.announcements_wanted:,.0f}/s",
        style=None if enough else "red",
    )
    for what, amount, form in (
        ("files", result.files, "{:,.0f}/s"),
        ("bytes", result.bytes / 1e6, "{:,.1f} MB/s"),
    ):
        table.add_row(
            what,
            form.format(amount / result.ours),
            form.format(amount / result.spark),
            f"{result.ratio:.2f}x",
            f"at least {result.wanted:g}x",
            style=None if result.ratio >= result.wanted else "red",
        )
    return table


def describe(case: AppendCase) -> str:
    threads = f", {case.writers} threads" if case.writers > 1 else ""
    tags = "" if case.tags else ", no tags"
    return f"{case.size_bytes} B x {case.batch}{tags}{threads}"


def print_tables(result: LogResult) -> None:
    console = result_console()
    console.print(append_table(result))
    console.print(read_table(result))


def append_table(result: LogResult) -> Table:
    table = Table(
        title=f"Durable appends, {result.payload} payloads, on {result.file_system}",
        caption="disk: the same bytes appended to a plain file with one fdatasync per batch",
    )
    table.add_column("entry x batch")
    for name in ("entries/s", "disk", "of disk", "p50 ms", "p99 ms", "disk p50", "p50 / disk"):
        table.add_column(name, justify="right")
    for row in result.appends:
        table.add_row(describe(row.case), *append_cells(row))
    return table


def append_cells(row: AppendResult) -> list[str]:
    return [
        f"{row.log.entries_per_s:,.0f}",
        f"{row.disk.entries_per_s:,.0f}",
        f"{row.rate_ratio:.0%}",
        f"{row.log.p50_ms:.2f}",
        f"{row.log.p99_ms:.2f}",
        f"{row.disk.p50_ms:.2f}",
        f"{row.p50_ratio:.1f}x",
    ]


def read_table(result: LogResult) -> Table:
    reads = result.reads
    table = Table(
        title=f"Reads, each kind after a fresh opening, {reads.entries:,} entries of 100 B"
    )
    table.add_column("what")
    table.add_column("result", justify="right")
    for name, value in (
        ("open", f"{reads.open_ms:.1f} ms"),
        ("read(), in sequence", f"{reads.read_per_s:,.0f} entries/s"),
        ("to_arrow(), in sequence", f"{reads.arrow_per_s:,.0f} entries/s"),
        ("seek and read 10, p50", f"{reads.seek_p50_ms:.3f} ms"),
        (f"seek and read 10, p99 of {reads.seeks:,}", f"{reads.seek_p99_ms:.3f} ms"),
        ("memory (RSS), highest", f"{mib(result.rss_bytes)}, {mib(result.rss_bytes_max)}"),
        ("on disk, of data appended", f"{mib(result.disk_bytes)}, {mib(result.data_bytes)}"),
    ):
        table.add_row(name, value)
    return table


def mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
