"""What the documents say, done: a small reader and runner of their blocks.

    ```LANGUAGE title="x.py"   a file that the reader saves
    ```python                  a script that runs as it is, in the page's folder; or, where it
                               imports nothing, a piece that must at least be Python
    ```console                 commands after `$ `, run in the page's folder; lines below one are
                               what it prints, `…` for anything
    anything else              not run

Contract     The blocks of a page run one after the other in one folder, as a reader would do it.
             What `source` and `export` set holds for all that follows, and `penstock serve` goes
             on until the end. `pip install …` is taken as done, because the package under test
             is installed, unless the reader has a Python of his own. Names that are the reader's
             own (a bucket, an address) can be replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

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
    with Shell(folder) as shell:
        for block in blocks(page):
            shell.follow(block, f"{page}:{block.line}")


class Shell:
    """Where the blocks of a page are done."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] = os.environ,
        replaced: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        self._installs = python is not None
        self._python = python or Path(sys.executable)
        path = f"{self._python.parent}{os.pathsep}{environment['PATH']}"
        self.environment = {**environment, "PATH": path, "COLUMNS": "100"}
        self._folder = folder
        self._replaced = {} if replaced is None else replaced
        self._served: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self._served:
            server.terminate()
            server.wait(_SECONDS)
            assert server.stdout is not None
            server.stdout.close()

    def follow(self, block: Block, where: str) -> None:
        text = block.text
        for name, other in self._replaced.items():
            text = text.replace(name, other)
        if block.title:
            (self._folder / block.title).write_text(text)
        elif block.language == "python":
            compile(text, where, "exec")
            if re.search(r"^(import|from) ", text, re.MULTILINE):
                done = self._run([str(self._python), "-W", "error", "-c", text])
                assert done.returncode == 0, f"{where}: {done.stderr}"
        elif block.language == "console":
            for command, expected in commands(text):
                self._command(command, expected, where)

    def _command(self, command: str, expected: str, where: str) -> None:
        words = shlex.split(command)
        if words[:2] == ["pip", "install"] and not self._installs:
            return
        if words[:2] == ["penstock", "serve"]:
            self._serve(command, expected, where)
            return
        sets = words[0] in ("source", "export")
        done = self._run(["bash", "-c", f"{command} && env -0" if sets else command])
        killed = done.returncode in (137, -9)  # by itself, to show what that does
        assert done.returncode == 0 or killed, f"{where}: {command}: {done.stdout}{done.stderr}"
        if sets:
            pairs = (line.partition("=") for line in done.stdout.split("\0") if line)
            self.environment = {name: value for name, _, value in pairs}
        elif expected:
            _compare(done.stdout, expected, f"{where}: {command}")

    def _serve(self, command: str, expected: str, where: str) -> None:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._served.append(server)
        assert server.stdout is not None
        said = "".join(server.stdout.readline() for _ in expected.splitlines())
        if "penstock serves" not in said:  # then it ends by itself, and says why
            said += server.communicate(timeout=_SECONDS)[0]
        _compare(said, expected, f"{where}: {command}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )


def _compare(printed: str, expected: str, where: str) -> None:
    pattern = re.escape(expected.rstrip()).replace("…", ".*")
    assert re.fullmatch(pattern, printed.rstrip(), re.DOTALL), f"{where} printed {printed!r}"


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
