"""How commands print: results on stdout, progress and errors on stderr; pipes stay clean."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.errors import PenstockError


def result_console() -> Console:
    """Made anew for each use, because a test or a shell may have replaced stdout."""
    return Console(highlight=False)


def progress_bars() -> Progress:
    """Bars on stderr; rich draws none of them where stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def say(value: object, words: str, as_json: bool) -> None:
    """What a command did: a sentence, or the value as JSON."""
    if as_json:
        print_json(value)
    else:
        result_console().print(words, markup=False)


def print_error(message: str, hint: str = "") -> None:
    """One line that says what is wrong and, where there is one, a second that says what to do.

    Not through rich: a name in square brackets must come out as it is.
    """
    print(f"penstock: {' '.join(message.split())}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)


def print_penstock_error(error: PenstockError) -> None:
    print_error(str(error) or type(error).__name__, error.hint)
