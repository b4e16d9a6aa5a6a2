"""The documents keep their word: code runs, links lead somewhere, the reference is up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from acceptance.pages import ROOT, blocks, run_page

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").rglob("README.md"),
    )
)
#: Those whose code starts Spark are run with its tests (tests/spark).
_ON_SPARK = re.compile(r"penstock\.spark|graph\.run|penstock (ingest|graph)|make ")


def runs_here(page: str) -> bool:
    found = [block for block in blocks(page) if block.language in ("python", "console")]
    return bool(found) and not any(_ON_SPARK.search(block.text) for block in found)


@pytest.mark.parametrize("page", [page for page in PAGES if runs_here(page)])
def test_the_code_of_a_page_runs_in_an_empty_folder(page: str, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == {page for page in re.findall(r"[\w/-]+\.md", nav)}


def test_the_reference_is_what_the_code_says() -> None:
    found = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert found is not None
    assert found.loader is not None
    generate = importlib.util.module_from_spec(found)
    found.loader.exec_module(generate)
    old = [
        name
        for name, text in generate.pages().items()
        if (ROOT / "docs" / "reference" / name).read_text() != text
    ]
    assert old == [], "run: make docs"
