"""How commands print: results on stdout, progress and errors on stderr; pipes stay clean.

JSON         What structs are called on the wire, their tags, is nobody's business: `plain`. It is
             text, so a path that is none is escaped.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.errors import PenstockError

#: Of output that is read by a program: its lines are not cut, and nothing is left out.
PIPE_COLUMNS = 10_000


def result_console() -> Console:
    """Made anew for each use, because a test or a shell may have replaced stdout."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    # No emoji: a name such as user:key:5 is text, whatever rich would make of :key:.
    return Console(highlight=False, emoji=False, width=PIPE_COLUMNS if piped else None)


def progress_bars() -> Progress:
    """Bars on stderr, and not even an empty line where stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def printable(text: str) -> str:
    """Whatever a name holds, it moves no cursor."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def print_words(words: str) -> None:
    """A sentence, which may have names in it."""
    result_console().print(printable(words), markup=False)


def plain(value: Any) -> Any:
    """For JSON: structs as their fields alone, and text that it takes."""
    match value:
        case str():
            return value if value.isascii() else value.encode(errors="backslashreplace").decode()
        case msgspec.Struct():
            named = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
            return {shown: plain(getattr(value, field)) for field, shown in named}
        case dict():
            return {plain(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
    return value


def print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain(value))).decode() + "\n")


def print_json_line(value: object) -> None:
    """One of many: as it comes, on a line of its own."""
    sys.stdout.write(msgspec.json.encode(plain(value)).decode() + "\n")
    sys.stdout.flush()


def say(value: object, words: str, as_json: bool) -> None:
    """What a command did: a sentence, or the value as JSON."""
    if as_json:
        print_json(value)
    else:
        print_words(words)


def print_error(message: str, hint: str = "") -> None:
    """One line that says what is wrong and, where there is one, a second that says what to do.

    Not through rich: a name in square brackets must come out as it is.
    """
    print(f"penstock: {printable(' '.join(message.split()))}", file=sys.stderr)
    if hint:
        print(f"  hint: {printable(hint)}", file=sys.stderr)


def print_penstock_error(error: PenstockError) -> None:
    print_error(str(error) or type(error).__name__, error.hint)
