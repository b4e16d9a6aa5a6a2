"""How commands show data that users gave: bytes, times, durations, and tables of them.

Contract     Bytes are shown as the text that they are, with everything that could move a terminal's
             cursor escaped; in JSON as text, or under another name in base64 where they are no
             text. Nothing that users stored is taken for markup.
Narrow       A table keeps what it is about, its first column: counts get shorter first, then
             columns go that are named as minor, and a line tells which. Where even the rest has no
             room, each row is a list of its cells.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from penstock.cli.fitting import Wish, fit
from penstock.cli.output import print_words, printable, result_console

PREVIEW = 200
#: Columns of words are not made narrower than this, unless they hold less: a name, anything else.
NAME_LEAST = 20
WORDS_LEAST = 10


def preview(data: bytes | str | None, limit: int = PREVIEW) -> str:
    """One line of it."""
    if data is None:
        return ""
    text = data if isinstance(data, str) else data[: 4 * limit].decode("utf-8", "backslashreplace")
    shown = printable(text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """`name` with the text of it, or `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def clock_time(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds(value: float) -> str:
    """A duration, short: 0.5 s, 30 s, 12 h, 7 d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= size and value % size == 0:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,g} s"


def mapping(values: Mapping[str, str]) -> str:
    return preview(" ".join(f"{key}={value}" for key, value in values.items()))


def number(value: float | None) -> str:
    """Short: 950, 12.3 k, 4.56 M."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            scaled = value / (size if unit != "k" else 1e3)
            return f"{scaled:,.1f} {unit}"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    empty: str = "",
    left: Sequence[str] = (),
    counts: Sequence[str] = (),
    minor: Sequence[str] = (),
) -> None:
    """Numbers to the right, words to the left; `left` names columns of words that look like
    numbers. Where it is narrow, numbers of `counts` are shortened, and the columns of `minor` go,
    the first one first. Where there are no rows, `empty` says so."""
    listed = [list(row) for row in rows]
    whole = [[_cell(value) for value in row] for row in listed]
    console = result_console()
    if not listed and empty:
        print_words(empty)
        return
    numeric = [
        name not in left and bool(listed) and all(_is_number(row[index]) for row in listed)
        for index, name in enumerate(columns)
    ]
    cells = whole
    widths = fit(_wishes(columns, cells, numeric), console.width, gap=3, edge=1)
    if widths is None:
        cells = [
            [number(v) if n in counts else _cell(v) for n, v in zip(columns, row, strict=True)]
            for row in listed
        ]
        widths = fit(_wishes(columns, cells, numeric, minor), console.width, gap=3, edge=1)
    if widths is None:
        _print_lists(columns, whole, title)
        return
    table = Table(title=None if title is None else Text(printable(title)))
    for index, name in enumerate(columns):
        if index in widths:
            table.add_column(
                name,
                justify="right" if numeric[index] else "left",
                overflow="fold",
                width=widths[index],
            )
    for row in cells:
        table.add_row(*(Text(cell) for i, cell in enumerate(row) if i in widths))
    console.print(table)
    gone = [name for i, name in enumerate(columns) if i not in widths]
    if gone:
        console.print(f"no room for {', '.join(gone)}; --json has all", style="dim")


def _print_lists(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    """A row after the other, each a line per column that says something."""
    console = result_console()
    if title is not None:
        console.print(Text(printable(title), style="italic", overflow="fold"))
    for index, row in enumerate(cells):
        if index:
            console.print()
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style="bold", overflow="fold", width=max(map(cell_len, columns)))
        lines.add_column(overflow="fold")
        for name, cell in zip(columns, row, strict=True):
            if cell:
                lines.add_row(Text(name), Text(cell))
        console.print(lines)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wishes(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    minor: Sequence[str] = (),
) -> list[Wish]:
    """Numbers want all of their width: half of a number is another one."""
    wishes = []
    for index, name in enumerate(columns):
        heading = max(map(cell_len, name.split()), default=0)
        natural = max([cell_len(name), *(cell_len(row[index]) for row in cells)])
        least = max(heading, WORDS_LEAST if index else NAME_LEAST)
        if numeric[index]:
            least = max([heading, *(cell_len(row[index]) for row in cells)])
        going = len(minor) - minor.index(name) if name in minor else 0
        if going and not any(row[index] for row in cells):
            going += len(minor)  # it says nothing: that goes before all others
        wishes.append(Wish(natural, min(natural, least), going))
    return wishes


def print_fields(fields: Mapping[str, Any], *, title: str | None = None) -> None:
    """One thing, a line per field; as wide as its title, which would be folded else."""
    heading = None if title is None else Text(printable(title))
    table = Table(
        title=heading,
        show_header=False,
        min_width=None if heading is None else heading.cell_len,
    )
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(Text(name), Text(_cell(value)))
    result_console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return clock_time(value)
    return printable(str(value))
