"""`penstock ingest`: load the files that a queue announces into a Delta table, each row once.

Contract     `penstock ingest --queue Q --table T` runs until SIGTERM or Ctrl-C, which let the batch
             under way end; a second one ends at once. With `--once` it ends when nothing is left to
             do. Exit 0 when all went well, 1 when it had to give up files or announcements:
             `penstock ingest files --state failed` tells which and why. With `--once`, an
             UnavailableError when it had to leave files whose store was away.
Output       Progress and what deserves a word on stderr, the report on stdout.
Not here     How it is done (spark/ingest/), states of files (ingest_files.py), one
             file once more (ingest_again.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.console import Console

import penstock
from penstock.cli import ingest_again, ingest_files
from penstock.cli.bench import mib
from penstock.cli.options import LOCATION_DEFAULT, Json, Location
from penstock.cli.output import print_json, result_console
from penstock.cli.rendering import print_fields
from penstock.cli.underway import logged, one_line, told_to_end
from penstock.client.places import SCHEME
from penstock.clock import SystemClock
from penstock.errors import InvalidError, UnavailableError
from penstock.source.requests import Identity
from penstock.spark import Ingest, session
from penstock.spark.ingest.report import Report
from penstock.spark.queueports import check_there, open_queue
from penstock.spark.sqs import is_sqs
from penstock.store.location import folder_of
from penstock.words import counted

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    epilog="Example: penstock ingest --queue uploads --table ./tables/events --once",
)
app.command("files", epilog="Example: penstock ingest files --state failed")(ingest_files.files)
app.command("again", epilog="Example: penstock ingest again ./in/a.json --queue uploads")(
    ingest_again.again
)
app.command("sources", epilog="Example: penstock ingest sources --json")(ingest_files.sources)


class Format(StrEnum):
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    TEXT = "text"


class IngestReport(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    source: str
    table: str
    files: int
    rows: int
    duplicates: int
    failed: int
    left: int
    bytes: int
    splits: int
    publishes: int
    seconds: float


@app.callback()
def ingest(
    context: typer.Context,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="Q", help="A queue of the location, or sqs://…")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="T", help="A folder, or s3://bucket/prefix.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="What the files hold.")] = Format.JSON,
    location: Location = LOCATION_DEFAULT,
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="End when nothing is left to do, or go on."),
    ] = False,
    max_files: Annotated[
        int, typer.Option("--max-files", metavar="N", help="At most so many in one commit.")
    ] = 5000,
    commit_timeout: Annotated[
        float,
        typer.Option(
            "--commit-timeout",
            metavar="S",
            help="Load what came after S seconds at most; who is silent for 2 S loses its files.",
        ),
    ] = 60.0,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="NAME", help="The source's name, if not its table's."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="Columns, as in 'id BIGINT, name STRING'."),
    ] = None,
    identity: Annotated[
        Identity,
        typer.Option("--identity", help="version: load a file again when its content changed."),
    ] = "uri",
    evolve: Annotated[bool, typer.Option("--evolve", help="New fields become columns.")] = False,
    inline: Annotated[
        bool, typer.Option("--inline", help="The messages are the data, not names of files.")
    ] = False,
    max_failures: Annotated[
        int, typer.Option("--max-failures", metavar="N", help="Give a file up after N failures.")
    ] = 3,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Of csv: header, sep, quote."),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", metavar="M", help="Spark's master.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Load announced files into a Delta table, exactly once; see what became of them."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if queue is None or table is None:
        missing = " and ".join(n for n, v in (("--queue", queue), ("--table", table)) if v is None)
        raise InvalidError(f"{missing} must be given", hint="penstock ingest --help")
    # First what is wrong with it, then the seconds that a JVM takes.
    run = Ingest(
        location,
        queue,
        table,
        format.value,
        commit_timeout,
        name=source,
        schema=schema,
        options=_pairs("--option", options or []),
        identity=identity,
        inline=inline,
        evolve=evolve,
        max_files=max_files,
        max_failures=max_failures,
    )
    config = _pairs("--conf", conf or [])
    check_there(location, queue)
    _check_queue(location, queue)
    clock, console = SystemClock(), Console(stderr=True)
    with logged(console), one_line(console, "Spark starts") as tell:
        spark = session("penstock ingest", master, config)
        try:
            began = clock.monotonic()
            with told_to_end(run.stop):
                if tell is not None:
                    tell("no files yet")
                done = run.run(once, progress=tell and (lambda report: tell(_line(report))))
            seconds = clock.monotonic() - began
        finally:
            spark.stop()
    report = IngestReport(source or table, table, seconds=seconds, **msgspec.structs.asdict(done))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if report.failed:
        raise typer.Exit(1)
    if once and report.left:
        raise UnavailableError(
            f"{counted(report.left, 'file')} could not be reached",
            hint="run it again, they are still there; penstock ingest files --state open tells why",
        )


def _refuse_options(context: typer.Context) -> None:
    """Nothing that is said is ignored: these belong to a run, or behind the subcommand."""
    for parameter in context.command.params:
        origin = context.get_parameter_source(parameter.name or "")
        if origin is not None and origin.name == "COMMANDLINE":
            raise InvalidError(
                f"{parameter.opts[0]} stands before {context.invoked_subcommand}",
                hint=f"write it behind: penstock ingest {context.invoked_subcommand} …",
            )


def _check_queue(location: str, queue: str) -> None:
    """Is it there? Not asked of a bucket: opening it takes it from its broker, and once is enough;
    nor of SQS, which is asked, and warned of, when it is opened."""
    if is_sqs(queue) or not (location.startswith(SCHEME) or folder_of(location)):
        return
    with penstock.open(location) as database:
        open_queue(database, queue, clock=SystemClock())


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidError(f"{option} {text!r} is not KEY=VALUE")
        pairs[key] = value
    return pairs


def _line(report: Report) -> str:
    parts = [counted(report.files, "file"), counted(report.rows, "row"), mib(report.bytes)]
    if report.duplicates:
        parts.append(counted(report.duplicates, "duplicate"))
    if report.failed:
        parts.append(f"{report.failed:,} failed")
    if report.left:
        parts.append(f"{report.left:,} left")
    return ", ".join(parts)


def _print_report(report: IngestReport) -> None:
    rate = (
        f"{report.files / report.seconds:,.1f} files/s, {mib(int(report.bytes / report.seconds))}/s"
    )
    print_fields(
        {
            "files": report.files,
            "rows": report.rows,
            "duplicates": report.duplicates,
            "failed": report.failed,
            **({"left": report.left} if report.left else {}),
            "read": mib(report.bytes),
            "splits": f"{report.splits:,} in {counted(report.publishes, 'commit')}",
            "time": f"{report.seconds:,.1f} s, {rate}",
        },
        title=report.source,
    )
    if report.failed:
        result_console().print("penstock ingest files --state failed tells why", markup=False)
