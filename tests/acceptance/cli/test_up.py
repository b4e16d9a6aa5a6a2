"""What `penstock up` tells a person to type, typed."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import penstock
from penstock.cli.up import how_to_reach

PASSWORD = "correct horse"


@pytest.mark.parametrize("location", ["my data", "memory://"])
@pytest.mark.parametrize("password", [None, PASSWORD], ids=["open", "password"])
def test_each_line_of_the_hints_holds_as_it_stands(
    sh: Any,
    location: str,
    password: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if password:
        monkeypatch.setenv("PENSTOCK_PASSWORD", password)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "penstock", "up", location, "--resp", "127.0.0.1:0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        hints: dict[str, str] = {}
        for line in process.stderr:
            name, gap, how = line.strip("│ \n").partition("  ")
            if gap:
                hints[name] = how.strip()
            if name == "end it":
                break
        opened = [how for how in hints.values() if how.startswith("penstock.open(")]
        assert len(opened) == (1 if location == "memory://" else 2)
        for number, how in enumerate(opened):
            with eval(how, {"penstock": penstock}) as db:
                assert db.stream("s").write(b"x") == number
        seen = sh.json(*shlex.split(hints["watch it"])[1:], "--count", "1")
        assert [each["length"] for each in seen["streams"]] == [len(opened)]
        assert ("--askpass" in hints["Redis clients"]) == (password is not None)
        assert ("password" in hints) == (password is not None)
    finally:
        process.terminate()
        process.wait(timeout=60)
        assert process.stderr is not None
        process.stderr.close()


def printed(location: str, address: tuple[str, int] | None) -> str:
    said = io.StringIO()
    Console(width=100, file=said).print(how_to_reach(location, address, needs_password=False))
    return said.getvalue()


def test_an_address_of_ipv6_is_written_so_that_it_can_be_opened() -> None:
    said = printed("memory://", ("::1", 7379))
    assert "penstock://[::1]:7379" in said
    assert "redis-cli -h ::1 -p 7379" in said


def test_where_nobody_else_can_come_no_way_is_shown() -> None:
    said = printed("s3://bucket", None)
    assert "penstock.open" not in said
    assert "penstock top" not in said
