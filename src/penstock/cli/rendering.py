"""How commands show data that users gave: bytes, times, durations, and tables of them.

Contract     Bytes are shown as the text that they are, with everything that could move a terminal's
             cursor escaped; in JSON as text, or under another name in base64 where they are no
             text. Nothing that users stored is taken for markup.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from penstock.cli.output import result_console

PREVIEW = 200


def preview(data: bytes | str | None, limit: int = PREVIEW) -> str:
    """One line of it."""
    if data is None:
        return ""
    text = data if isinstance(data, str) else data[: 4 * limit].decode("utf-8", "backslashreplace")
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
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


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    empty: str = "",
    left: Sequence[str] = (),
) -> None:
    """Numbers to the right, words to the left; `left` names columns of words that look like
    numbers. Where there are no rows, `empty` says so."""
    listed = [list(row) for row in rows]
    console = result_console()
    if not listed and empty:
        console.print(empty, markup=False)
        return
    table = Table(title=None if title is None else Text(title))
    for index, name in enumerate(columns):
        number = name not in left and all(isinstance(row[index], int | float) for row in listed)
        table.add_column(
            name, justify="right" if number and listed else "left", overflow="fold", no_wrap=number
        )
    for row in listed:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def print_fields(fields: Mapping[str, Any], *, title: str | None = None) -> None:
    """One thing, a line per field."""
    table = Table(title=None if title is None else Text(title), show_header=False)
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
    return str(value)
