"""The command line: assembles the command groups and turns errors into exit codes.

Contract     Exit 0 is success, 1 a finding (something was lost, something is damaged), 2 to 7 are
             the six kinds of error, 130 is Ctrl-C. A kind of error is one line on stderr with a
             hint, never a traceback; only a bug shows one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from penstock.cli import (
    bench,
    check,
    demo,
    doctor,
    graph,
    ingest,
    queue,
    serve,
    stream,
    top,
    topic,
    up,
    watch,
)
from penstock.cli.output import print_error, print_penstock_error
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

#: By kind, so that a script can tell what to do without reading the message.
EXIT_CODES: dict[type[PenstockError], int] = {
    InvalidError: 2,
    NotFoundError: 3,
    ConflictError: 4,
    UnavailableError: 5,
    FencedError: 6,
    CorruptError: 7,
}
INTERRUPTED = 130

app = typer.Typer(
    name="penstock",
    help="Queues and streams that live in a folder or a bucket.",
    no_args_is_help=True,
    # A traceback is for a bug; then the plain one is the one to report.
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(graph.app, name="graph")
app.add_typer(ingest.app, name="ingest")
app.add_typer(queue.app, name="queue")
app.add_typer(stream.app, name="stream")
app.add_typer(topic.app, name="topic")
app.command(name="check")(check.check)
app.command(name="demo")(demo.demo)
app.command(name="doctor")(doctor.doctor)
app.command(name="serve")(serve.serve)
app.command(name="top")(top.top)
app.command(name="up")(up.up)
app.command(name="watch")(watch.watch)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Queues and streams that live in a folder or a bucket."""


def exit_code(error: PenstockError) -> int:
    """A subclass of a kind (a refused commit is unavailable) ends like its kind."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    try:
        app(args=arguments, prog_name="penstock")
    except PenstockError as error:
        print_penstock_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        # A folder that cannot be used: the machine's own words name the path and the reason.
        print_error(str(error), "check the path, its permissions and the space left")
        sys.exit(EXIT_CODES[UnavailableError])
    sys.exit(0)
