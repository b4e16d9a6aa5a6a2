"""How `penstock top` draws a look: a table per kind, wide ones where there is room for them.

Contract     Fits into 80 columns; wider terminals show more columns, not wider gaps. Kinds of which
             there are none take no room. Names that users gave are text, never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from penstock.broker.progress import Progress
from penstock.cli.rendering import clock_time
from penstock.cli.top_look import Look, QueueLine, StreamLine, TopicLine
from penstock.graph.requests import ProcessorStatus
from penstock.source.requests import SourceInfo

L = TypeVar("L")
#: From so many columns on everything is shown.
WIDE = 110


class Column(msgspec.Struct, Generic[L], frozen=True):
    title: str
    value: Callable[[L], Any]
    wide: bool = False  # only where there is room
    style: Callable[[L], str] = lambda _: ""


def number(value: float | None) -> str:
    """Short: 950, 12.3 k, 4.56 M."""
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            scaled = value / (size if unit != "k" else 1e3)
            return f"{scaled:,.1f} {unit}"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def size(value: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024  # type: ignore[assignment]
    raise AssertionError


def _failed(line: QueueLine) -> str:
    return "bold red" if line.failed else ""


def _errored(line: TopicLine) -> str:
    return "bold red" if line.errored else ""


def _failed_files(line: SourceInfo) -> str:
    return "bold red" if line.failed else ""


STREAMS: tuple[Column[StreamLine], ...] = (
    Column("stream", lambda line: line.name),
    Column("entries", lambda line: number(line.length)),
    Column("written/s", lambda line: number(line.rate)),
    Column("first", lambda line: line.first, wide=True),
    Column("last", lambda line: line.last, wide=True),
    Column("stored", lambda line: size(line.bytes)),
    Column("groups", lambda line: line.groups),
)
QUEUES: tuple[Column[QueueLine], ...] = (
    Column("queue", lambda line: f"{line.name} (paused)" if line.paused else line.name),
    Column("available", lambda line: number(line.available)),
    Column("delayed", lambda line: number(line.delayed)),
    Column("in flight", lambda line: number(line.in_flight)),
    Column("done", lambda line: number(line.done), wide=True),
    Column("failed", lambda line: number(line.failed), style=_failed),
    Column("in/s", lambda line: number(line.in_rate)),
    Column("out/s", lambda line: number(line.out_rate)),
    Column("ever in", lambda line: number(line.routed), wide=True),
    Column("ever out", lambda line: number(line.acked), wide=True),
)
TOPICS: tuple[Column[TopicLine], ...] = (
    Column("topic", lambda line: f"{line.name} (paused)" if line.paused else line.name),
    Column("waiting", lambda line: number(line.waiting)),
    Column("running", lambda line: number(line.running)),
    Column("errored", lambda line: number(line.errored), style=_errored),
    Column("consumers", lambda line: line.consumers),
    Column("in/s", lambda line: number(line.in_rate)),
    Column("out/s", lambda line: number(line.out_rate)),
    Column("ever in", lambda line: number(line.inserted), wide=True),
    Column("ever out", lambda line: number(line.acked), wide=True),
)
SOURCES: tuple[Column[SourceInfo], ...] = (
    Column("source", lambda line: line.name),
    Column("files", lambda line: number(line.done)),
    Column("failed", lambda line: number(line.failed), style=_failed_files),
    Column("commits", lambda line: line.published),
    Column("to export", lambda line: number(line.published - line.exported)),
    Column("table", lambda line: line.table, wide=True),
)
GRAPHS: tuple[Column[ProcessorStatus], ...] = (
    Column("graph/processor", lambda line: f"{line.graph}/{line.processor}"),
    Column("kind", lambda line: line.kind),
    Column("read", lambda line: number(line.delivered)),
    Column("written", lambda line: number(line.written)),
    Column("errors", lambda line: number(line.failed)),
    Column("lag", lambda line: number(sum(each.available for each in line.tailers))),
    Column("why it waits", lambda line: line.failure, wide=True, style=lambda _: "red"),
)
SPARK: tuple[Column[Progress], ...] = (
    Column("Spark", lambda line: f"{line.kind} {line.source}"),
    Column("batch", lambda line: line.batch),
    Column("rows", lambda line: number(line.rows)),
    Column("all rows", lambda line: number(line.total_rows)),
    Column("all bytes", lambda line: size(line.total_bytes), wide=True),
    Column("lag", lambda line: None if line.lag is None else number(line.lag)),
    Column("query", lambda line: line.query, wide=True),
)


class View:
    """All of it; knows how wide it is only when it is drawn."""

    def __init__(self, look: Look, rows: int, every: float | None) -> None:
        self._look = look
        self._rows = rows
        self._every = every

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        look, wide = self._look, options.max_width >= WIDE
        head = Text.assemble(
            ("penstock top", "bold"), f"  {look.location}  {clock_time(look.time)}"
        )
        if self._every is not None:
            head.append(f"  every {self._every:g} s, q to leave", style="dim")
        parts: list[Any] = [head]
        parts += _section(STREAMS, look.streams, wide, self._rows)
        parts += _section(QUEUES, look.queues, wide, self._rows)
        parts += _section(TOPICS, look.topics, wide, self._rows)
        parts += _section(SOURCES, look.sources, wide, self._rows)
        parts += _section(GRAPHS, look.processors, wide, self._rows)
        parts += _section(SPARK, look.spark[::-1], wide, self._rows)
        if len(parts) == 1:
            parts.append(Text("there is nothing here yet: no stream, queue or topic", style="dim"))
        yield Group(*parts)


def draw(look: Look, rows: int, every: float | None) -> View:
    return View(look, rows, every)


def _section(
    columns: Sequence[Column[L]], lines: Sequence[L], wide: bool, rows: int
) -> list[Table | Text]:
    if not lines:
        return []
    shown = [column for column in columns if wide or not column.wide]
    table = Table(expand=False, box=None, header_style="bold cyan", padding=(0, 1))
    for index, column in enumerate(shown):
        table.add_column(
            column.title,
            justify="right" if index else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if index else 20,
        )
    for line in lines[:rows]:
        table.add_row(*(_cell(column, line) for column in shown))
    parts: list[Table | Text] = [Text(), table]
    if len(lines) > rows:
        parts.append(Text(f" … and {len(lines) - rows:,} more", style="dim"))
    return parts


def _cell(column: Column[L], line: L) -> Text:
    value = column.value(line)
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return Text(text, style=column.style(line))
