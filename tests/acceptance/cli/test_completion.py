"""Tab in a real shell: what the script of `--show-completion` offers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: The script, then what bash does when somebody types these words and presses Tab.
_TAB = """
eval "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_penstock_completion penstock
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(*words: str) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    penstock = Path(sys.executable).with_name("penstock")
    environment = {"PATH": f"{penstock.parent}:/usr/bin:/bin"}
    # Which shell asks is found by looking at the processes above.
    script = subprocess.run(
        [bash, "-c", "penstock --show-completion; exit"],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    tab = subprocess.run(
        [bash, "-c", _TAB, "bash", script, *words],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert tab.stderr == ""
    return tab.stdout.split()


def test_commands_complete() -> None:
    assert complete("penstock", "qu") == ["queue"]
    assert {"peek", "publish", "purge", "pause", "play"} <= set(complete("penstock", "queue", "p"))


def test_options_complete() -> None:
    assert complete("penstock", "queue", "ls", "--js") == ["--json"]
