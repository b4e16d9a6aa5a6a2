"""The documents keep their word: code runs, links lead somewhere, the reference is up to date."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from acceptance.pages import ROOT, blocks, run_page
from penstock.cli.main import app

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


def every_parameter() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for parameter in command.params:
            if parameter.name != "help":
                yield path, parameter
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    yield from walk(typer.main.get_command(app), "penstock")


def test_every_parameter_of_every_command_is_in_the_reference() -> None:
    """Not what the generator finds, but what the commands take; with the word for its value."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    sections = {section.partition("\n")[0]: section for section in page.split("\n## ") if section}
    missing = []
    for path, parameter in every_parameter():
        names = [parameter.metavar or parameter.name.upper()]
        if parameter.param_type_name == "option":
            value = f" {parameter.metavar}" if parameter.metavar else ""
            names = [f"{name}{value}" for name in (*parameter.opts, *parameter.secondary_opts)]
        for name in names:
            # Up to the end of the code, or to a word for its value that the types give.
            if not re.search(rf"^\|.*`{re.escape(name)}( [<A-Z][^`]*)?`.*\|",
                             sections.get(path, ""), re.MULTILINE):  # fmt: skip
                missing.append(f"{path}: {name}")
    assert missing == []
    assert len(sections) > 40


def test_no_page_reads_a_table_in_a_way_that_may_abort_a_program_at_its_end() -> None:
    """Arrow's threads let go of what a Python file system gave them when Python may be gone: one
    in six programs that end right behind it did (docs/sources.md, "The table")."""
    risky = re.compile(r"\.to_(pyarrow_table|pyarrow_dataset|pandas)\(")
    found = [
        f"{page}:{block.line}"
        for page in PAGES
        for block in blocks(page)
        if "DeltaTable(" in block.text and risky.search(block.text)
    ]
    assert found == []
