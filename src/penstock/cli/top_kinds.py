"""What `penstock top` tells of each kind: its columns, how important each is, what is trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.broker.progress import Progress
from penstock.cli.rendering import number
from penstock.cli.top_look import QueueLine, StreamLine, TopicLine
from penstock.graph.requests import ProcessorStatus
from penstock.source.requests import SourceInfo

L = TypeVar("L")
#: Good to know, and only shown on wide terminals: on others names need the room.
EXTRA = 9


class Column(msgspec.Struct, Generic[L], frozen=True):
    title: str
    value: Callable[[L], Any]
    going: int = 0  # where there is no room, the highest goes first; 0 never goes; or EXTRA
    words: bool = False
    style: Callable[[L], str] = lambda _: ""


class Kind(msgspec.Struct, Generic[L], frozen=True):
    one: str
    columns: tuple[Column[L], ...]  # the first is the name
    #: Whether somebody should look at it.
    trouble: Callable[[L], bool] = lambda _: False
    many: str | None = None


def size(value: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024  # type: ignore[assignment]
    raise AssertionError


def _paused(name: str, paused: bool) -> str:
    return f"{name} (paused)" if paused else name


def _red(wrong: Callable[[L], object]) -> Callable[[L], str]:
    return lambda line: "bold red" if wrong(line) else ""


STREAMS: Kind[StreamLine] = Kind(
    "stream",
    (
        Column("stream", lambda line: line.name),
        Column("entries", lambda line: number(line.length)),
        Column("written/s", lambda line: number(line.rate)),
        Column("first", lambda line: line.first, going=EXTRA),
        Column("last", lambda line: line.last, going=EXTRA),
        Column("stored", lambda line: size(line.bytes), going=1),
        Column("groups", lambda line: line.groups, going=1),
    ),
)
QUEUES: Kind[QueueLine] = Kind(
    "queue",
    (
        Column("queue", lambda line: _paused(line.name, line.paused)),
        Column("available", lambda line: number(line.available)),
        Column("delayed", lambda line: number(line.delayed), going=3),
        Column("in flight", lambda line: number(line.in_flight), going=1),
        Column("done", lambda line: number(line.done), going=EXTRA),
        Column("failed", lambda line: number(line.failed), style=_red(lambda line: line.failed)),
        Column("in/s", lambda line: number(line.in_rate), going=2),
        Column("out/s", lambda line: number(line.out_rate), going=2),
        Column("ever in", lambda line: number(line.routed), going=EXTRA),
        Column("ever out", lambda line: number(line.acked), going=EXTRA),
    ),
    trouble=lambda line: line.failed > 0,
)
TOPICS: Kind[TopicLine] = Kind(
    "topic",
    (
        Column("topic", lambda line: _paused(line.name, line.paused)),
        Column("waiting", lambda line: number(line.waiting)),
        Column("running", lambda line: number(line.running), going=1),
        Column("errored", lambda line: number(line.errored), style=_red(lambda line: line.errored)),
        Column("consumers", lambda line: line.consumers, going=3),
        Column("in/s", lambda line: number(line.in_rate), going=2),
        Column("out/s", lambda line: number(line.out_rate), going=2),
        Column("ever in", lambda line: number(line.inserted), going=EXTRA),
        Column("ever out", lambda line: number(line.acked), going=EXTRA),
    ),
    trouble=lambda line: line.errored > 0,
)
SOURCES: Kind[SourceInfo] = Kind(
    "source",
    (
        Column("source", lambda line: line.name),
        Column("files", lambda line: number(line.done)),
        Column("failed", lambda line: number(line.failed), style=_red(lambda line: line.failed)),
        Column("commits", lambda line: line.published, going=1),
        Column("to export", lambda line: number(line.published - line.exported)),
        # A source without a name of its own has its table's.
        Column(
            "table",
            lambda line: line.table if line.table != line.name else None,
            going=EXTRA,
            words=True,
        ),
    ),
    trouble=lambda line: line.failed > 0,
)
GRAPHS: Kind[ProcessorStatus] = Kind(
    "processor",
    (
        Column("graph/processor", lambda line: f"{line.graph}/{line.processor}"),
        Column("kind", lambda line: line.kind, going=4, words=True),
        Column("read", lambda line: number(line.delivered), going=3),
        Column("written", lambda line: number(line.written), going=3),
        Column(
            "errors",
            lambda line: number(line.failed),
            going=2,
            style=_red(lambda line: line.failed),
        ),
        Column("lag", lambda line: number(sum(each.available for each in line.tailers)), going=1),
        Column("why it waits", lambda line: line.failure, words=True, style=lambda _: "red"),
    ),
    trouble=lambda line: line.failure is not None,
)
SPARK: Kind[Progress] = Kind(
    "read or write of Spark",
    (
        Column("Spark", lambda line: f"{line.kind} {line.source}"),
        Column("batch", lambda line: line.batch, going=1),
        Column("rows", lambda line: number(line.rows)),
        Column("all rows", lambda line: number(line.total_rows), going=1),
        Column("all bytes", lambda line: size(line.total_bytes), going=EXTRA),
        Column("lag", lambda line: None if line.lag is None else number(line.lag)),
        Column("query", lambda line: line.query, going=EXTRA, words=True),
    ),
    many="reads and writes of Spark",
)
