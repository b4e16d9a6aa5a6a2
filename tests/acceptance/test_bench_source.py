"""`penstock bench source`: announcements go through without a file, and the table has rates."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from penstock.cli.bench import source_table
from penstock.cli.bench_source import (
    FILE_BYTES,
    SourceResult,
    measure_announcements,
    write_files,
)


def shown(result: SourceResult) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(source_table(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_announcement_goes_through_and_no_file_is_read(tmp_path: Path) -> None:
    said: list[str] = []
    assert measure_announcements(tmp_path / "a", 1500, said.append) > 0
    assert said == [
        "publishing 1,500 announcements",
        "1,500 announcements through the shard table",
    ]
    assert not (tmp_path / "a" / "t").exists()


def test_files_are_the_same_in_every_run(tmp_path: Path) -> None:
    size = write_files(tmp_path / "a", 3)
    assert size == write_files(tmp_path / "b", 3)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert FILE_BYTES <= path.stat().st_size < FILE_BYTES + 1000


def test_the_table_compares_rates(tmp_path: Path) -> None:
    good = SourceResult(announcements=5000, files=2000, bytes=200_000_000, ours=4.0, spark=8.0)
    assert good.met
    text = shown(good)
    assert "5,000/s" in text
    assert "500/s" in text
    assert "50.0 MB/s" in text
    assert "2.00x" in text
    slow = SourceResult(announcements=1999, files=2000, bytes=200_000_000, ours=4.0, spark=8.0)
    assert not slow.met
    assert not SourceResult(announcements=5000, files=2000, bytes=1, ours=10.0, spark=5.9).met
