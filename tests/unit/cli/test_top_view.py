"""`penstock top` with everything in it, as terminals of several sizes show it."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import msgspec
import pytest
from rich.console import Console
from rich.live import Live

from penstock.broker.progress import Progress
from penstock.cli.top_look import Look, QueueLine, StreamLine, TopicLine
from penstock.cli.top_view import draw
from penstock.graph.requests import ProcessorStatus, Tailer
from penstock.source.requests import SourceInfo

LONG = "a-very-long-name-with-many-characters-in-it-of-{}-in-europe"
MANY = 123_456_789


def processor(name: str, failure: str | None = None) -> ProcessorStatus:
    return ProcessorStatus(
        "shop", name, "pipe", "exactly_once", [Tailer("in", "in", 1, 0, 0, MANY)], ["out"], None,
        epoch=1, step=1, pending=False, tries=7 if failure else 0, delivered=MANY, written=MANY,
        failed=0, nil=0, skipped=0, lost=0, failure=failure, failed_ms=None, retry_ms=None,
        started_ms=0, committed_ms=None, seen_ms=None, reset=False,
    )  # fmt: skip


def source(name: str, table: str) -> SourceInfo:
    return SourceInfo(
        1, name, table, "uri", 0, 0, 0, 0, 3, 1, "", published=12, exported=11, first_publish=1,
        done=MANY, failed=0,
    )  # fmt: skip


def progress() -> Progress:
    zeros = dict.fromkeys(Progress.__struct_fields__, 0)
    told = {"id": "1", "kind": "read", "source": "clicks", "query": "q1", "batch": 3}
    counts = {"rows": MANY, "total_rows": MANY, "total_bytes": MANY, "offset": 5, "latest": 9}
    return msgspec.convert(zeros | told | counts, Progress)


def everything(streams: int = 18) -> Look:
    named = [LONG.format("streams"), *(f"s{i:02}" for i in range(1, streams))]
    return Look(
        location="/srv/data/of/the/shop/in/europe",
        time=datetime(2026, 5, 1, tzinfo=UTC),
        at=0.0,
        streams=[StreamLine(name, 0, MANY - 1, MANY, 1_073_741_823, 2, 1234.5) for name in named]
        + [StreamLine("watch:uploads:8901ee8a0d435920", 0, 39, 40, 3000, 0)],
        queues=[
            QueueLine(name, MANY, MANY, 17, MANY, failed, MANY, MANY, False, 950.0, 12_345.0)
            for name, failed in ((LONG.format("queues"), 0), *((f"q{i}", i == 7) for i in range(9)))
        ],
        topics=[
            TopicLine(name, MANY, MANY, 40, MANY, 0, 12, name == "jobs", 1.5, None)
            for name in (LONG.format("topics"), "jobs")
        ],
        sources=[source("/srv/tables/orders", "/srv/tables/orders")],
        processors=[
            processor("feed"), processor("split"),
            processor("store", "UnavailableError: the table is locked"),
        ],
        spark=[progress()],
    )  # fmt: skip


def drawn(look: Look, width: int, height: int | None, rows: int | None = None) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(draw(look, rows, None if height is None else 2.0))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 110, 160])
@pytest.mark.parametrize("height", [24, 50, None])
def test_every_kind_is_there_and_no_number_is_cut(width: int, height: int | None) -> None:
    lines = drawn(everything(), width, height)
    assert max(map(len, lines)) <= width
    assert height is None or len(lines) <= height
    text = "\n".join(lines)
    for word in ("stream ", "queue ", "topic ", "source ", "graph/processor", "Spark "):
        assert f"\n {word}" in text
    assert "watch:" not in text
    # Only names may be without their middle, and only those that are long.
    for line in lines[1:]:
        if "shop/store" in line:  # with a reason
            continue
        cut = [word for word in line.split() if "…" in word and word != "…"]
        assert all(word.startswith("a-very-") and word.endswith("-europe") for word in cut), line
        assert len(cut) <= 1
    assert "123.5 M" in next(line for line in lines if line.startswith(" a-very"))


@pytest.mark.parametrize("width", [20, 30, 40, 50])
def test_on_a_very_narrow_terminal_columns_go_and_no_number_is_cut(width: int) -> None:
    lines = drawn(everything(), width, 50)[1:]
    assert max(map(len, lines)) <= width
    for title in ("stream", "queue", "topic", "source", "graph", "Spark"):
        assert any(line.startswith(f" {title}") for line in lines), title
    # Names lose their middle, reasons and sentences their end; everything else is whole.
    for line in lines:
        cut = [word for word in line.split() if "…" in word and word != "…"]
        assert not [word for word in cut if word[0].isdigit() or word[0] == "-"], line
    if width >= 40:
        assert "123.5 M" in next(line for line in lines if line.startswith(" a-"))


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("height", [24, 50])
def test_who_is_in_trouble_is_shown_whatever_is_cut_and_is_red(width: int, height: int) -> None:
    file = io.StringIO()
    console = Console(
        width=width, height=height, file=file, force_terminal=True, color_system="standard"
    )
    # As `penstock top` draws it.
    with Live(screen=True, auto_refresh=False, console=console) as screen:
        screen.update(draw(everything(), None, 2.0), refresh=True)
    shown = file.getvalue().rpartition("\x1b[H")[2].splitlines()
    assert len(shown) == height
    (line,) = [line for line in shown if "shop/store" in line]
    assert "\x1b[1;31mshop/store" in line
    assert "UnavailableError: th" in line
    (line,) = [line for line in shown if "q7" in line]
    assert "\x1b[1;31mq7" in line


def test_what_is_not_shown_is_counted() -> None:
    lines = drawn(everything(), 80, 24)
    streams = [line for line in lines if line.startswith((" a-very-l", " s0", " s1"))]
    assert f" … and {18 - (len(streams) - 2)} more" in lines, "two of them are a queue and a topic"
    assert drawn(everything(), 80, 7)[1:] == [
        " … 18 streams", " … 10 queues", " … 2 topics", " … 1 source", " … 3 processors",
        " … 1 read or write of Spark",
    ]  # fmt: skip


def test_the_height_is_used_up_and_rows_are_a_limit() -> None:
    few = msgspec.structs.replace(
        everything(40), queues=[], topics=[], sources=[], processors=[], spark=[]
    )
    assert len(drawn(few, 80, 24)) == 24
    assert drawn(few, 80, 24)[-1] == " … and 20 more"
    assert drawn(few, 80, 50)[-1].startswith(" s39")
    assert drawn(few, 80, 50, rows=5)[-1] == " … and 35 more"


def test_columns_that_say_nothing_are_not_there() -> None:
    good = msgspec.structs.replace(
        everything(), processors=[processor("feed")], sources=[source("orders", "/srv/orders")]
    )
    text = "\n".join(drawn(good, 160, 50))
    assert "why it waits" not in text
    assert "  table\n" in text
    text = "\n".join(drawn(everything(), 160, 50))
    assert "why it waits" in text
    assert "  table\n" not in text, "it is the source's name"


def test_names_move_no_cursor() -> None:
    look = msgspec.structs.replace(
        everything(), streams=[StreamLine("\x1b[2J", 0, 0, 1, 1, 0)], queues=[]
    )
    assert any(line.startswith(r" \x1b[2J ") for line in drawn(look, 80, 24))


#: Looked at, and good: everything of a location on a small terminal, below the first line.
AT_80 = """\
 stream                                entries  written/s       stored   groups
 a-very-long-name-…-streams-in-europe  123.5 M      1,234  1,024.0 MiB        2
 s01                                   123.5 M      1,234  1,024.0 MiB        2
 s02                                   123.5 M      1,234  1,024.0 MiB        2
 s03                                   123.5 M      1,234  1,024.0 MiB        2
 … and 14 more
 queue                 available  delayed  in flight   failed     in/s    out/s
 q7                      123.5 M  123.5 M         17        1      950   12.3 k
 a-very-lo…-in-europe    123.5 M  123.5 M         17        0      950   12.3 k
 q0                      123.5 M  123.5 M         17        0      950   12.3 k
 q1                      123.5 M  123.5 M         17        0      950   12.3 k
 … and 6 more
 topic                   waiting  running  errored  consumers     in/s    out/s
 a-very-lon…s-in-europe  123.5 M       40        0         12      1.5        -
 jobs (paused)           123.5 M       40        0         12      1.5        -
 source                files   failed  commits  to export
 /srv/tables/orders  123.5 M        0       12          1
 graph/processor     read  written   errors      lag  why it waits
 shop/feed        123.5 M  123.5 M        0  123.5 M
 shop/split       123.5 M  123.5 M        0  123.5 M
 shop/store       123.5 M  123.5 M        0  123.5 M  UnavailableError: the ta…
 Spark          batch     rows  all rows      lag
 read clicks        3  123.5 M   123.5 M        4
"""


def test_the_picture_at_80_columns_and_24_lines() -> None:
    assert "\n".join(drawn(everything(), 80, 24)[1:]) + "\n" == AT_80
