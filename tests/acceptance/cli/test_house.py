"""What all commands share: help, where the location comes from; and `top` and `doctor`."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

import penstock
from penstock.cli.main import app
from penstock.cli.output import progress_bars
from penstock.cli.rendering import number
from penstock.cli.top_look import look
from penstock.cli.top_view import draw
from penstock.cli.underway import logged
from penstock.clock import SystemClock


def every_command() -> Iterator[tuple[str, ...]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))

    yield from walk(typer.main.get_command(app), ())


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_every_command_helps_and_refuses_an_unknown_option(sh: Any, words: tuple[str, ...]) -> None:
    assert sh(*words, "--help") == 0
    assert "Usage: penstock" in sh.out
    assert sh(*words, "--no-such-option") == 2
    assert "no-such-option" in sh.err


def test_a_command_that_looks_creates_no_location(
    sh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_LOCATION")
    monkeypatch.chdir(tmp_path)
    for words in (("queue", "ls"), ("stream", "ls"), ("top",), ("queue", "claim", "q")):
        assert sh(*words) == 3
        assert "no such folder" in sh.err
        assert "--location or PENSTOCK_LOCATION" in sh.err
    assert list(tmp_path.iterdir()) == []


def test_the_nearest_penstock_toml_says_where_unless_somebody_else_does(
    sh: Any, db: penstock.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "penstock.toml").write_text('location = "./data"\n')
    (tmp_path / "a" / "data").symlink_to(db.location)
    monkeypatch.chdir(below)
    monkeypatch.delenv("PENSTOCK_LOCATION")
    db.create_queue("from-toml")
    assert sh("queue", "ls") == 0
    assert "from-toml" in sh.out
    monkeypatch.setenv("PENSTOCK_LOCATION", str(tmp_path / "none"))
    assert sh("queue", "ls") == 3
    monkeypatch.delenv("PENSTOCK_LOCATION")
    (tmp_path / "a" / "penstock.toml").write_text('loction = "./data"\n')
    assert sh("queue", "ls") == 2
    assert "loction" in sh.err


@pytest.mark.parametrize("width", [80, 160])
def test_top_fits_its_terminal_and_shows_what_is_there(db: penstock.Database, width: int) -> None:
    db.stream("clicks-of-a-rather-long-name-that-goes-on").write(b"x")
    queue = f"top [bold]{width}[/bold]"
    db.create_queue(queue)
    clock = SystemClock()
    first = look(db, clock)
    db.publish(b"x", to=queue)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(draw(look(db, clock, first), 10, 2.0))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    (line,) = [line for line in lines if queue in line]
    assert line.split()[2] == "1"
    assert ("ever in" in "\n".join(lines)) == (width == 160)


def test_top_prints_one_look_where_there_is_no_terminal(sh: Any, db: penstock.Database) -> None:
    db.stream("seen").write(b"x")
    assert sh("top") == 0
    assert "seen" in sh.out
    assert sh("top", "--json", "-n", "2", "--every", "0.1") == 0
    first, second = map(json.loads, sh.out.splitlines())
    assert first["streams"][0]["rate"] is None
    assert second["streams"][0]["rate"] == 0


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (7, "7"), (9999, "9,999"), (12_345, "12.3 k"), (2e6, "2.0 M")]
)
def test_numbers_of_top_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_doctor_tells_what_is_there_and_who_listens_already(sh: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        resp = f"127.0.0.1:{taken.getsockname()[1]}"
        found = {each["what"]: each for each in sh.json("doctor", "--resp", resp)}
    assert found["Python"]["grade"] == found["disk"]["grade"] == "good"
    assert found["port"]["grade"] == "note"
    assert sh("doctor") == 0
    assert sh("doctor", "--resp", "nonsense") == 1


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "ü" * 70])
def test_a_name_that_no_host_has_is_not_an_address(sh: Any, host: str) -> None:
    assert sh("serve", "--resp", f"{host}:7379", "--password", "x") == 2
    assert "is not an address" in sh.err
    assert sh("doctor", "--resp", f"{host}:7379") == 1


def test_a_doctor_says_which_folder_cannot_be_used_and_what_to_do(sh: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file"
    for location, named in ((file, file), (file / "below", file), (Path("/proc/x"), "/proc")):
        found = sh.json("doctor", "--location", str(location), code=1)
        disk = next(each for each in found if each["what"] == "disk")
        assert disk["grade"] == "bad"
        assert disk["found"].startswith(f"{named}")
        assert "penstock-doctor" not in disk["found"], "a name that only it knows"
        assert "--location" in disk["hint"]


def test_the_first_screen_is_for_newcomers(sh: Any) -> None:
    assert sh("--help") == 0
    titles = ("Messages", "Pipelines", "Serve and look", "Is all well")
    at = [sh.out.index(f"─ {title}") for title in titles]
    assert at == sorted(at)
    assert "penstock stream write" in sh.out, "an example to begin with"


def test_a_doctor_tells_a_host_that_is_not_known_from_a_port_that_is_taken(sh: Any) -> None:
    found = {each["what"]: each for each in sh.json("doctor", "--resp", "no.such.invalid:7379")}
    assert found["port"]["grade"] == "note"
    assert "listens" not in found["port"]["hint"]


def test_a_location_is_no_folder_in_which_files_arrive(sh: Any, db: penstock.Database) -> None:
    db.stream("s").write(b"x")
    db.publish(bytes(2 << 20))
    for part in ("", "/journal", "/store/manifest", "/payloads"):
        folder = db.location + part
        for location in (db.location, f"{db.location}-other"):
            assert sh("watch", folder, "--queue", "own", "--once", "--location", location) == 2
            assert "is a Penstock location, or a part of one" in sh.err
    (Path(db.location) / "incoming").mkdir()
    assert sh("watch", f"{db.location}/incoming", "--queue", "mine", "--once") == 0
    assert "own" not in db.queues()


@pytest.mark.parametrize("seconds", ["inf", "1e308", "nan", "0"])
def test_times_between_looks_that_no_clock_knows_are_refused(
    sh: Any, tmp_path: Path, seconds: str
) -> None:
    assert sh("top", "-n", "2", "--every", seconds) == 2
    watch = ("watch", str(tmp_path), "--queue", "q", "--once", "--settle", "0.01")
    assert sh(*watch, "--interval", seconds) == 2
    if seconds != "0":
        assert sh(*watch, "--settle", seconds) == 2
        assert "is a number of seconds" in sh.err


def test_a_name_is_shown_as_it_is_and_not_as_a_picture(sh: Any, db: penstock.Database) -> None:
    db.create_queue("user:key:5")
    assert sh("queue", "pause", "user:key:5") == 0
    assert sh.out == "user:key:5 is paused\n"
    assert sh("queue", "peek", "user:key:5") == 0
    assert "user:key:5" in sh.out
    said = io.StringIO()
    with logged(Console(file=said)):
        logging.getLogger("penstock").warning("queue %r is paused", "user:key:5")
    assert said.getvalue() == "penstock: queue 'user:key:5' is paused\n"


def test_no_name_moves_the_cursor_of_who_looks(sh: Any, db: penstock.Database) -> None:
    name, other = "\x1b[2Jx", "\x1b[2Jy\x07"
    db.stream(name).write(name.encode())
    db.create_queue(name)
    db.topic(name).push(b"x")
    looks = [
        *(("stream", verb, name) for verb in ("read", "info", "ls")),
        ("stream", "read", name, "--from", "7"),
        *(("queue", verb, name) for verb in ("show", "claim", "peek", "pause", "play", "ls")),
        ("queue", "ls", other),
        *(("topic", verb, name) for verb in ("show", "errors", "pause", "play", "ls")),
        *((view, "rm", name) for view in ("stream", "queue", "topic")),
        *((view, "rm", name, "--yes") for view in ("stream", "queue", "topic")),
        *(("stream", verb, other) for verb in ("read", "info")),
        *(("graph", verb, other) for verb in ("status", "show")),
    ]
    for words in looks:
        sh(*words)
        assert "\x1b" not in sh.out + sh.err, words
        assert "\x07" not in sh.out + sh.err, words
        assert r"\x1b[2J" in sh.out + sh.err, words


def test_what_is_logged_moves_no_cursor() -> None:
    said = io.StringIO()
    with logged(Console(file=said)):
        logging.getLogger("penstock").warning("one: %s\nand more", "\x1b[2J")
    assert said.getvalue() == "penstock: one: \\x1b[2J\nand more\n"


def test_a_folder_whose_name_is_no_text_is_a_location_too(sh: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "d\udcff")
    with penstock.open(folder) as db:
        db.stream("s").write(b"x")
        assert sh("top", "--location", folder) == 0
    for words in (("check",), ("doctor",)):
        assert sh(*words, "--location", folder) == 0
        assert "d\\udcff" in sh.out
        sh.json(*words, "--location", folder)
    assert sh.json("check", "--location", folder)["location"].endswith("d\\udcff")
    assert sh("doctor", "--resp", "\udcff") == 1
    assert "'\\udcff' is not an address" in sh.out
    assert sh("stream", "write", "s", "x", "--location", folder) == 0, "a process that serves it"


def test_what_the_output_cannot_show_is_escaped(
    sh: Any, db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.stream("letters").write("ü ☃".encode())
    shown = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", shown)
    assert sh("stream", "read", "letters") == 0
    shown.seek(0)
    assert "ü \\u2603" in shown.read()


def test_a_broker_is_not_checked_by_its_address(sh: Any) -> None:
    assert sh("check", "--location", "penstock://127.0.0.1:7379") == 2
    assert "broker" in sh.err


@pytest.mark.parametrize("words", [("queue", "ls"), ("--help",), ("top",)])
def test_a_terminal_of_unknown_size_is_no_reason_to_be_silent(
    sh: Any, db: penstock.Database, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    db.create_queue("seen")
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "0")
    assert sh(*words) == 0
    assert ("queue" if "--help" in words else "seen") in sh.out
    assert Console().height > 0  # `top` on a terminal fills the screen


def test_bars_leave_nothing_where_nobody_sees_them(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as bars:
        bars.advance(bars.add_task("work", total=2, note=""))
    assert capsys.readouterr() == ("", "")


def test_a_doctor_without_any_java_says_what_to_do(
    sh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.errors import InvalidError

    def none(_: object) -> None:
        raise InvalidError("there is no Java", hint="install one")

    monkeypatch.setattr("penstock.spark.java.find_java", none)
    found = {each["what"]: each for each in sh.json("doctor", code=1)}
    assert found["Java"] == {
        "what": "Java", "grade": "bad", "found": "there is no Java", "hint": "install one",
    }  # fmt: skip


def test_a_doctor_says_that_java_home_is_passed_over(
    sh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.java import find_java

    good = find_java({**os.environ, "JAVA_HOME": ""}).path
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    old.chmod(0o700)
    for home, fault in ((tmp_path, "version 8"), (tmp_path / "nope", "not there")):
        monkeypatch.setenv("JAVA_HOME", str(home))
        found = {each["what"]: each for each in sh.json("doctor")}["Java"]
        assert found["grade"] == "note"
        assert found["found"].endswith(f"JAVA_HOME is passed over: {home}/bin/java: {fault}")
        assert str(good) in found["found"]
    monkeypatch.setenv("JAVA_HOME", str(good.parent.parent))
    assert {each["what"]: each for each in sh.json("doctor")}["Java"]["grade"] == "good"


_WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "deltalake", "pandas", "boto3"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from penstock.cli.main import main
main(sys.argv[1:])
"""


def test_the_commands_are_there_without_the_extras(tmp_path: Path) -> None:
    """Spark and SQS are extras: whoever has not got them still has everything else."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, "doctor", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
