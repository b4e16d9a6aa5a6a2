"""How `penstock top` draws a look: a table per kind, as much of each as there is room for.

Contract     Fits into its terminal. Where it is narrow, extra columns are not shown, names give
             way, and then columns go, the less important ones first; numbers are never cut. Where
             it is low, each kind gets its share of the lines, those in trouble come first, and what
             is not shown is counted. Kinds of which there are none take no room, nor do columns
             that say nothing. Names that users gave are text, never markup.
Left out     Ledgers of `penstock watch`: streams, but nobody's own (`penstock stream ls` and
             `--json` have them).
Not here     the columns (top_kinds.py), what goes where there is no room (fitting.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from penstock.cli.fitting import Wish, fit, share, shortened
from penstock.cli.output import printable
from penstock.cli.rendering import clock_time
from penstock.cli.top_kinds import (
    EXTRA,
    GRAPHS,
    QUEUES,
    SOURCES,
    SPARK,
    STREAMS,
    TOPICS,
    Column,
    Kind,
)
from penstock.cli.top_look import Look
from penstock.words import counted

L = TypeVar("L")
#: Names and reasons are not made narrower than this, unless they are shorter.
WORDS_LEAST = 20
#: On terminals so narrow that this leaves no room for numbers, not even narrower than this.
NAME_LEAST = 6
#: A number of top is never wider, so that columns do not come and go while it runs.
NUMBER_LEAST = 7
#: From so many columns on everything is shown, if it fits.
WIDE = 110
#: Below this, the time of day has to do.
NARROW = 80
#: Shown of each kind where no terminal says how many fit.
ROWS_DEFAULT = 15
#: With fewer lines of a kind, the gaps between kinds are worth more than they are nice.
FEW = 3
_LEDGER = re.compile(r"watch:.*:[0-9a-f]{16}", re.DOTALL)


class View:
    """All of it; knows how much room there is only when it is drawn."""

    def __init__(self, look: Look, rows: int | None, every: float | None) -> None:
        self._look = look
        self._rows = rows
        self._every = every

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        look, width = self._look, options.max_width
        own = [line for line in look.streams if not _LEDGER.fullmatch(line.name)]
        kinds: list[tuple[Kind[Any], list[Any]]] = [
            (STREAMS, own),
            (QUEUES, look.queues),
            (TOPICS, look.topics),
            (SOURCES, look.sources),
            (GRAPHS, look.processors),
            (SPARK, look.spark[::-1]),
        ]
        kinds = [(kind, lines) for kind, lines in kinds if lines]
        parts: list[Table | Text] = [self._head(width)]
        # Not options.height: what stands between this and the screen forgets it.
        height = None if self._every is None else options.size.height
        shown, gap = self._shares([len(lines) for _, lines in kinds], height)
        for (kind, lines), rows in zip(kinds, shown, strict=True):
            parts += _section(kind, lines, rows, gap, width)
        if not kinds:
            parts.append(Text("there is nothing here yet: no stream, queue or topic", style="dim"))
        yield Group(*parts)

    def _head(self, width: int) -> Text:
        """One line: the location gives way."""
        time = clock_time(self._look.time)
        time = time if width >= NARROW else time.partition(" ")[2]
        manner = "" if self._every is None else f"  every {self._every:g} s, q to leave"
        room = width - len(f"penstock top    {time}{manner}")
        place = shortened(printable(self._look.location), max(1, room))
        head = Text.assemble(("penstock top", "bold"), f"  {place}  {time}", (manner, "dim"))
        head.no_wrap, head.overflow = True, "ellipsis"
        return head

    def _shares(self, counts: Sequence[int], height: int | None) -> tuple[list[int], int]:
        """-> lines of each kind, and lines before each"""
        if height is None:
            most = self._rows or ROWS_DEFAULT
            return [min(count, most) for count in counts], 1
        most = self._rows or height
        for gap in (1, 0):
            shown = share(counts, height - 1, most=most, gap=gap)
            if all(n >= min(count, most, FEW) for n, count in zip(shown, counts, strict=True)):
                break
        return shown, gap


def draw(look: Look, rows: int | None, every: float | None) -> View:
    """`rows` of each kind at most; None: as many as there is room for. `every` so many seconds,
    on the whole terminal; None: once, one line after the other."""
    return View(look, rows, every)


def _section(
    kind: Kind[L], lines: Sequence[L], rows: int, gap: int, width: int
) -> list[Table | Text]:
    hidden = len(lines) - rows
    if not rows:
        return [_dim(f" … {counted(hidden, kind.one, kind.many)}")]
    if hidden:
        lines = sorted(lines, key=lambda line: not kind.trouble(line))[:rows]
    parts: list[Table | Text] = [*([Text()] * gap), _table(kind, lines, width)]
    if hidden:
        parts.append(_dim(f" … and {hidden:,} more"))
    return parts


def _dim(words: str) -> Text:
    return Text(words, style="dim", no_wrap=True, overflow="ellipsis")


def _table(kind: Kind[L], lines: Sequence[L], width: int) -> Table:
    cells = {
        column.title: [_words(column.value(line)) for line in lines] for column in kind.columns
    }
    columns = [
        column
        for column in kind.columns
        if any(cells[column.title]) and (column.going < EXTRA or width >= WIDE)
    ]
    widths = _widths(columns, cells, width)
    table = Table(expand=False, box=None, header_style="bold cyan", padding=(0, 1))
    shown = [(columns[index], found) for index, found in widths.items()]
    for column, found in shown:
        words = column.words or column is kind.columns[0]
        table.add_column(
            column.title,
            justify="left" if words else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=found,
        )
    for row, line in enumerate(lines):
        table.add_row(
            *(_cell(kind, column, line, cells[column.title][row], found) for column, found in shown)
        )
    return table


def _widths(
    columns: Sequence[Column[L]], cells: Mapping[str, Sequence[str]], width: int
) -> dict[int, int]:
    """Where those that stay have no room, names give way further, and then all but names go."""
    for name_least, stay in ((WORDS_LEAST, True), (NAME_LEAST, True), (NAME_LEAST, False)):
        wishes = [
            _wish(column, cells[column.title], index == 0, name_least, stay)
            for index, column in enumerate(columns)
        ]
        found = fit(wishes, width, gap=2)
        if found is not None:
            return found
    return {0: max(1, width - 2)}


def _words(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else printable(value)


def _wish(
    column: Column[L], cells: Sequence[str], is_name: bool, name_least: int, stay: bool
) -> Wish:
    natural = max(map(cell_len, (column.title, *cells)))
    going = column.going if is_name or stay else column.going + 1
    if column.words or is_name:
        return Wish(natural, min(natural, name_least), going)
    return Wish(natural, max(natural, NUMBER_LEAST), going)


def _cell(kind: Kind[L], column: Column[L], line: L, text: str, width: int) -> Text:
    if column is not kind.columns[0]:
        return Text(text, style=column.style(line))
    return Text(shortened(text, width), style="bold red" if kind.trouble(line) else "")
