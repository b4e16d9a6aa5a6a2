"""A stranger's path: from a clone to `make demo` to the end of the tutorials, as the documents say.

Nothing of this machine's installation is used: the clone makes its own environment, and so does the
reader of the tutorials, who installs the clone into it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from acceptance.pages import ROOT, Shell, blocks

TUTORIALS = ["docs/tutorials/first-queue.md", "docs/tutorials/first-pipeline.md"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_a_clone_to_the_demo_to_the_end_of_the_tutorials(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("there is no repository to clone, or no git")
    clone = tmp_path / "penstock"  # where the tutorials say that it is: in the home folder
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=120)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHON": sys.executable}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "PENSTOCK_LOCATION"):
        environment.pop(name, None)

    (words,) = [text for text in _plain_blocks(clone / "README.md") if "make demo" in text]
    (demo,) = [line for line in words.splitlines() if line.startswith("make demo")]
    done = subprocess.run(
        ["bash", "-c", demo], cwd=clone, env=environment, capture_output=True, text=True,
        check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost or doubled" in done.stdout

    venv.create(tmp_path / "own", with_pip=True)
    for page in TUTORIALS:
        folder = tmp_path / Path(page).stem
        folder.mkdir()
        python = tmp_path / "own" / "bin" / "python"
        with Shell(folder, environment=environment, python=python) as shell:
            for block in blocks(page):
                shell.follow(block, f"{page}:{block.line}")


def _plain_blocks(page: Path) -> list[str]:
    return page.read_text().split("```")[1::2]
