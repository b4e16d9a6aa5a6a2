"""The stranger's path: the documents whose code starts Spark, done as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.pages import ROOT, run_page

PAGES = ["docs/graphs.md", "docs/sources.md", "docs/tutorials/first-pipeline.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_in_an_empty_folder(page: str, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.slow
def test_the_example_runs_with_one_command(tmp_path: Path) -> None:
    run_page_command = f"penstock graph run {ROOT / 'examples' / 'orders.py'} --location ./data"
    (tmp_path / "page.md").write_text(f"```console\n$ {run_page_command}\n…\n```\n")
    run_page(str(tmp_path / "page.md"), tmp_path)
