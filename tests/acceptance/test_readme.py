"""The README keeps its word: its session runs, its commands and links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "tests/README.md",
    "docs/glossary.md",
    "docs/queues.md",
    "docs/streams.md",
]


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


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def _inline(text: str) -> str:
    return "\n".join(re.findall(r"`([^`\n]+)`", text))


def test_the_session_of_the_queues_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/queues.md").read_text()
    (session,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", session],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The last one is delayed: whether the first claim finds it is a matter of speed.
    seen = [line.split("'")[1] for line in done.stdout.splitlines()]
    assert sorted(seen) == ["resize 17", "resize 18", "resize 19"]
