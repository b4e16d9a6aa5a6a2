"""The README keeps its word: its session prints what it says, its commands exist."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

import penstock
from penstock.cli.top_look import look
from penstock.cli.top_view import draw
from penstock.clock import SystemClock

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_session_runs_in_an_empty_folder_and_prints_what_it_says(tmp_path: Path) -> None:
    (session,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", session],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "b'a' 1",
        "b'b' 1",
        "2",
        "b'resize 17' True",
    ]
    assert (tmp_path / "data").is_dir()


def test_the_session_is_about_ten_lines() -> None:
    (session,) = blocks("python")
    assert len(session.strip().splitlines()) <= 12


def test_every_make_word_of_the_readme_is_one_of_the_makefile() -> None:
    words = set(re.findall(r"\bmake ([a-z][a-z-]*)", "".join(blocks("")) + _inline(README)))
    assert {"demo", "test"} <= words
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert words <= targets


def test_the_picture_is_what_top_draws() -> None:
    """Title and headings: what a reader compares when he tries it."""
    (picture,) = blocks("text")
    with penstock.open("memory://") as db:
        db.stream("s").write(b"x")
        db.create_queue("q")
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(draw(look(db, SystemClock()), None, None))
    lines = [line.split() for line in console.export_text().splitlines()]
    shown = [line.split() for line in picture.splitlines()]
    assert shown[0][:2] == lines[0][:2] == ["penstock", "top"]
    headings = [words for words in lines if words[:1] in (["stream"], ["queue"])]
    assert len(headings) == 2
    assert all(words in shown for words in headings)
    assert max(map(len, picture.splitlines())) <= 80


def _inline(text: str) -> str:
    return "\n".join(re.findall(r"`([^`\n]+)`", text))
