"""Tables say what they are about at every width; and what else is shown of data and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.cli.fitting import Wish, fit, share, shortened
from penstock.cli.output import printable
from penstock.cli.rendering import number, print_fields, print_table
from penstock.words import counted

LONG = "orders-of-all-customers-in-europe-since-2019-that-were-not-paid-yet"
MANY = 123_456_789
QUEUES: dict[str, Any] = {
    "columns": ("queue", "available", "delayed", "in flight", "done", "failed", "filter", "state"),
    "rows": [
        (LONG, MANY, MANY, MANY, MANY, MANY, "region = 'eu' and total > 1000 or vip", "paused"),
        ("small", 0, 0, 0, 0, 0, "", ""),
    ],
    "counts": ("available", "delayed", "in flight", "done", "failed"),
    "minor": ("filter", "done", "delayed", "state"),
}


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    def at(width: int, *, columns: Sequence[str], rows: Any, **options: Any) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(columns, rows, **options)
        return capsys.readouterr().out.splitlines()

    return at


def first_cells(lines: list[str]) -> str:
    """The first column, with what was folded put together."""
    return "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))


@pytest.mark.parametrize("width", [60, 80, 160])
def test_names_can_be_read_and_numbers_are_whole(printed: Any, width: int) -> None:
    lines = printed(width, **QUEUES)
    assert max(map(len, lines)) <= width
    assert first_cells(lines) == LONG + "small"
    names = [line.split("│")[1] for line in lines if line.startswith("│")]
    assert len(names[0].strip()) >= 20, "not three letters a line"
    (row,) = [line for line in lines if line.startswith(f"│ {names[0].strip()}")]
    assert ("123,456,789" if width == 160 else "123.5 M") in row
    assert "…" not in "".join(lines)
    assert ("no room for" in lines[-1]) == (width != 160)
    if width == 60:
        assert lines[-1] == "no room for delayed, done, filter, state; --json has all"


def test_of_minor_columns_those_that_say_nothing_go_first(printed: Any) -> None:
    rows = [(LONG, 1, 2, 3, 4, 5, "", "")]
    lines = printed(75, **(QUEUES | {"rows": rows}))
    assert lines[-1] == "no room for filter, state; --json has all"


def test_a_pipe_gets_everything_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(**QUEUES)
    lines = capsys.readouterr().out.splitlines()
    assert "no room" not in lines[-1]
    (row,) = [line for line in lines if LONG in line]
    assert "region = 'eu' and total > 1000 or vip" in row


def test_numbers_that_name_something_are_not_shortened(printed: Any) -> None:
    lines = printed(
        30,
        columns=("offset", "time", "data"),
        rows=[(12_345_678, "2026-05-01 12:00:00", "x" * 100)],
        minor=("time",),
    )
    assert "12,345,678" in "".join(lines)
    assert any(line.startswith("no room for time") for line in lines)


def test_truths_are_words_and_a_table_without_room_still_comes(printed: Any) -> None:
    assert "│ yes" in printed(60, columns=("name", "zombie"), rows=[("a", True)])[3]
    lines = printed(20, columns=("a name", "b", "c", "d"), rows=[(LONG, MANY, MANY, MANY)])
    assert max(map(len, lines)) <= 20


@pytest.mark.parametrize("width", [24, 30, 40, 50])
def test_where_no_table_fits_each_row_is_a_list_with_whole_numbers(
    printed: Any, width: int
) -> None:
    lines = [line.rstrip() for line in printed(width, **QUEUES)]
    assert max(map(len, lines)) <= width
    assert not set("".join(lines)) & set("│┃…"), "no table"
    at = lines.index("")
    assert "".join(lines[:at]).replace(" ", "").startswith(f"queue{LONG}available")
    assert [line for line in lines[:at] if line.startswith("failed")] == ["failed     123,456,789"]
    assert "".join(lines[:at]).count("123,456,789") == 5
    # What is empty takes no line.
    assert [line.split() for line in lines[at + 1 :]] == [
        ["queue", "small"], ["available", "0"], ["delayed", "0"], ["in", "flight", "0"],
        ["done", "0"], ["failed", "0"],
    ]  # fmt: skip


def test_cells_move_no_cursor(printed: Any) -> None:
    (_, _, _, row, _) = printed(60, columns=("name",), rows=[("a\x1b[2J\nb",)])
    assert r"a\x1b[2J\nb" in row


def test_columns_go_in_their_order_and_what_is_left_goes_to_who_lacks_most() -> None:
    wishes = [Wish(40, 20), Wish(10, 10, 1), Wish(8, 8, 2)]
    assert fit(wishes, 100, gap=3, edge=1) == {0: 40, 1: 10, 2: 8}
    assert fit(wishes, 50, gap=3, edge=1) == {0: 22, 1: 10, 2: 8}
    assert fit(wishes, 47, gap=3, edge=1) == {0: 30, 1: 10}
    assert fit(wishes, 30, gap=3, edge=1) == {0: 26}
    assert fit(wishes, 23, gap=3, edge=1) is None


@pytest.mark.parametrize("room", range(3, 60))
def test_lists_share_the_height_and_use_it(room: int) -> None:
    counts = [30, 3, 1]
    shown = share(counts, room, most=20, gap=1)
    heights = [
        2 + n + (n < count) if n else 1 for n, count in zip(shown, counts, strict=True)
    ]  # fmt: skip
    assert sum(heights) <= room
    assert shown[0] <= 20
    if room >= 13:
        assert shown[1:] == [3, 1], "a long list does not push the others out"
    if room >= 32:
        assert shown[0] == 20
    elif room >= 13:
        assert sum(heights) == room


def test_names_lose_their_middle() -> None:
    assert shortened("orders-of-europe", 16) == "orders-of-europe"
    assert shortened("orders-of-europe", 11) == "order…urope"
    assert shortened("注文注文注文注文", 9) == "注文…注文"


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")]
)
def test_one_is_not_many(count: int, words: str) -> None:
    assert counted(count, "file") == words
    assert counted(1, "entry is gone", "entries are gone") == "1 entry is gone"


def test_short_numbers() -> None:
    assert [number(n) for n in (None, 7, 9_999, 12_345, 2e6)] == [
        "-", "7", "9,999", "12.3 k", "2.0 M",
    ]  # fmt: skip
    assert printable("\x07") == r"\x07"


def test_a_title_that_is_wider_than_its_fields_stays_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_fields({"commit": 7}, title=LONG)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == LONG
    print_fields({"commit": 7}, title=LONG * 2)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
