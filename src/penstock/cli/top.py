"""`penstock top`: everything of a location in the terminal, again and again.

Contract     Looks every `--every` seconds and draws in place, until q, Ctrl-C or `--count` looks.
             Where stdout is no terminal it prints one look and ends; with `--json` one object per
             look. It only reads: what it shows costs a request per queue and stream. Lists are
             cut to what fits the terminal, or to `--rows`.
Not here     what is asked and how rates come about (top_look.py), how it is drawn (top_view.py).
"""

from __future__ import annotations

import contextlib
import select
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location
from penstock.cli.output import print_json_line
from penstock.cli.top_look import Look, look
from penstock.cli.top_view import draw
from penstock.clock import SystemClock


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=86_400, help="Seconds between looks.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many looks.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="At most so many of each kind; without it, what fits."),
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """A live view of streams, queues, topics, sources, graphs and Spark's reads and writes."""
    clock = SystemClock()
    live = sys.stdout.isatty() and not as_json
    left = count or (None if live or as_json else 1)
    with opened(location) as db, contextlib.ExitStack() as stack:
        before: Look | None = None
        screen = stack.enter_context(Live(screen=True, auto_refresh=False)) if live else None
        keys = stack.enter_context(_keys()) if live else False
        while left is None or left > 0:
            now = look(db, clock, before)
            before = now
            left = None if left is None else left - 1
            if as_json:
                print_json_line(now)
            elif screen is not None:
                screen.update(draw(now, rows, every), refresh=True)
            else:
                Console(highlight=False).print(draw(now, rows, None))
            if left != 0 and _pause(every, keys):
                break


@contextlib.contextmanager
def _keys() -> Iterator[bool]:
    """Keys come one by one, without Enter; -> whether there is a keyboard"""
    if not sys.stdin.isatty():
        yield False
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pause(seconds: float, keys: bool) -> bool:
    """-> whether somebody wants to leave"""
    ready, _, _ = select.select([sys.stdin] if keys else [], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "\x1b")
