"""What the documents say, done: a small reader and runner of their blocks.

    ```python title="x.py"     a file that the reader saves
    ```python                  a script that runs as it is, in the page's folder; or, where it
                               imports nothing, a piece that must at least be Python
    ```console                 commands after `$ `, run in the page's folder; lines below one are
                               what it prints, `…` for anything
    anything else              not run

Contract     The blocks of a page run one after the other in one folder, as a reader would do it.
             `pip install penstock…` is taken as done: the package under test is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_SECONDS = 240


class Block(msgspec.Struct, frozen=True):
    language: str
    title: str | None
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(found[1], found[2], found[3], text[: found.start()].count("\n") + 1)
        for found in _BLOCK.finditer(text)
    ]


def run_page(page: str, folder: Path) -> None:
    """Do what it says."""
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.language == "python" and block.title:
            (folder / block.title).write_text(block.text)
        elif block.language == "python":
            compile(block.text, where, "exec")
            if re.search(r"^(import|from) ", block.text, re.MULTILINE):
                done = _run([sys.executable, "-W", "error", "-c", block.text], folder)
                assert done.returncode == 0, f"{where}: {done.stderr}"
        elif block.language == "console":
            for command, expected in commands(block.text):
                _run_command(command, expected, folder, where)


def commands(text: str) -> Iterator[tuple[str, str]]:
    command, printed = "", ""
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], ""
        elif command.endswith("\\"):
            command = command[:-1] + line.strip()
        else:
            printed += line + "\n"
    if command:
        yield command, printed


def _run_command(command: str, expected: str, folder: Path, where: str) -> None:
    if shlex.split(command)[:2] == ["pip", "install"]:
        return
    done = _run(["bash", "-c", command], folder)
    killed = done.returncode in (137, -9)  # by itself, to show what that does
    assert done.returncode == 0 or killed, f"{where}: {command}: {done.stdout}{done.stderr}"
    if expected:
        pattern = re.escape(expected.rstrip()).replace("…", ".*")
        assert re.fullmatch(pattern, done.stdout.rstrip(), re.DOTALL), (
            f"{where}: {command} printed {done.stdout!r}"
        )


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
