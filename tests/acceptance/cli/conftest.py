"""Commands as a user types them, run in this process against a location that it serves."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.main import main


class Cut(io.StringIO):
    def __init__(self, lines: int, error: OSError, number: int) -> None:
        super().__init__()
        self._left = lines
        self._error = error
        self._number = number

    def write(self, text: str) -> int:
        if self._left <= 0:
            raise self._error
        self._left -= text.count("\n")
        return super().write(text)

    def fileno(self) -> int:
        return self._number  # rich lets it lead nowhere


class Shell:
    """What came of a command: exit code, output, and the output as JSON."""

    def __init__(
        self, location: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.location = location
        self.out = self.err = ""
        self._capsys = capsys
        self._patch = patch

    def __call__(self, *words: str, stdin: bytes = b"") -> int:
        self._capsys.readouterr()
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(words)
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        code = ended.value.code
        assert isinstance(code, int | None)
        return code or 0

    def cut(self, *words: str, lines: int, error: OSError | None = None) -> int:
        """The same, where stdout takes so many lines: `| head`, or what else goes wrong there."""
        broken = error or BrokenPipeError(errno.EPIPE, "Broken pipe")
        with self._patch.context() as patch, open(os.devnull, "w") as nowhere:
            shown = Cut(lines, broken, nowhere.fileno())
            patch.setattr("sys.stdout", shown)
            patch.setattr("sys.stderr", sys.stderr)  # typer replaces both
            code = self(*words)
        self.out = shown.getvalue()
        return code

    def json(self, *words: str, stdin: bytes = b"", code: int = 0) -> Any:
        assert self(*words, "--json", stdin=stdin) == code, self.err
        return json.loads(self.out)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Database]:
    folder = tmp_path_factory.mktemp("cli") / "data"
    with penstock.open(folder) as opened:
        yield opened


@pytest.fixture
def sh(
    db: penstock.Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.setenv("PENSTOCK_LOCATION", db.location)
    monkeypatch.setenv("COLUMNS", "120")
    return Shell(Path(db.location), capsys, monkeypatch)
