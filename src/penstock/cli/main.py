"""The command line: assembles the command groups and turns errors into exit codes.

Contract     Exit 0 is success; 1 a finding (something is lost, damaged, stale or missing) or a no
             to a question; 2 to 7 are the six kinds of error; 130 is Ctrl-C, also at a question;
             141 is the end of whoever read the output, as `| head` does. A kind of error is one
             line on stderr with a hint, never a traceback; only a bug shows one.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup

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
from penstock.cli.opening import take_over
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
#: As shells tell of a process that ended by SIGPIPE.
END_OF_PIPE = 128 + signal.SIGPIPE

#: What the first screen shows, in this order.
MESSAGES, PIPELINES = "Messages", "Pipelines"
SERVING, HEALTH = "Serve and look", "Is all well, and how fast"
_ORDER = (
    *("stream", "queue", "topic"),
    *("watch", "ingest", "graph"),
    *("up", "serve", "top"),
    *("demo", "doctor", "check", "bench"),
)


class InOrder(TyperGroup):
    """Commands as a newcomer needs them, not by the alphabet."""

    def list_commands(self, context: typer.Context) -> list[str]:  # type: ignore[override]
        return sorted(self.commands, key=_ORDER.index)


app = typer.Typer(
    name="penstock",
    cls=InOrder,
    help="Queues and streams that live in a folder or a bucket.",
    epilog="Example: penstock stream write clicks hello && penstock stream read clicks",
    no_args_is_help=True,
    # A traceback is for a bug; then the plain one is the one to report.
    pretty_exceptions_enable=False,
)
app.add_typer(stream.app, name="stream", rich_help_panel=MESSAGES)
app.add_typer(queue.app, name="queue", rich_help_panel=MESSAGES)
app.add_typer(topic.app, name="topic", rich_help_panel=MESSAGES)
app.command(
    name="watch",
    epilog="Example: penstock watch ./in --queue uploads",
    rich_help_panel=PIPELINES,
)(watch.watch)
app.add_typer(ingest.app, name="ingest", rich_help_panel=PIPELINES)
app.add_typer(graph.app, name="graph", rich_help_panel=PIPELINES)
app.command(name="up", epilog="Example: penstock up ./data", rich_help_panel=SERVING)(up.up)
app.command(
    name="serve",
    epilog="Example: penstock serve ./data --resp 127.0.0.1:6379",
    rich_help_panel=SERVING,
)(serve.serve)
app.command(name="top", epilog="Example: penstock top --every 1", rich_help_panel=SERVING)(top.top)
app.command(name="demo", epilog="Example: penstock demo", rich_help_panel=HEALTH)(demo.demo)
app.command(
    name="doctor",
    epilog="Example: penstock doctor --location ./data",
    rich_help_panel=HEALTH,
)(doctor.doctor)
app.command(
    name="check", epilog="Example: penstock check --location ./data", rich_help_panel=HEALTH
)(check.check)
app.add_typer(bench.app, name="bench", rich_help_panel=HEALTH)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


#: They open no location, or always as its one writer.
_NOTHING_TO_TAKE_OVER = ("bench", "check", "demo", "doctor", "serve", "up")


@app.callback()
def options(
    context: typer.Context,
    takes_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Open a bucket although that stops whoever serves it.",
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Queues and streams that live in a folder or a bucket."""
    if takes_over and context.invoked_subcommand in _NOTHING_TO_TAKE_OVER:
        raise InvalidError(
            f"--take-over does nothing for {context.invoked_subcommand}", hint="leave it out"
        )
    take_over.set(takes_over)


def exit_code(error: PenstockError) -> int:
    """A subclass of a kind (a refused commit is unavailable) ends like its kind."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    open_standard_files()
    print_any_text()
    forget_no_size()
    try:
        try:
            _run(arguments)
        finally:
            sys.stdout.flush()  # now: when Python ends, it could only be complained about
    except BrokenPipeError:
        _end_of_pipe()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer or rich met it before us
            _end_of_pipe()
        raise
    sys.exit(0)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        app(args=arguments, prog_name="penstock")
    except PenstockError as error:
        print_penstock_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        raise
    except OSError as error:
        # A folder that cannot be used: the machine's own words name the path and the reason.
        print_error(str(error), "check the path, its permissions and the space left")
        sys.exit(EXIT_CODES[UnavailableError])


def _end_of_pipe() -> NoReturn:
    """Whoever read the output, as `head` does, has seen enough."""
    with contextlib.suppress(OSError, ValueError):  # what is left over goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(END_OF_PIPE)


def forget_no_size() -> None:
    """COLUMNS=0 and LINES=0 are how a terminal of unknown size is told of; whoever draws would find
    no room for anything, and print nothing."""
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name, "").strip("0") == "":
            os.environ.pop(name, None)


def print_any_text() -> None:
    """Names of files need not be text, and a terminal need not know every letter: what cannot be
    printed is escaped, as Python does on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def open_standard_files() -> None:
    """One that is closed (`>&-`) becomes /dev/null: else the next file that is opened would get its
    number, and the event loop ends the process where it meets that."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest number that is free, which is this one.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the process ends
