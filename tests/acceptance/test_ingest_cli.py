"""`penstock ingest` as a user meets it. Its tasks run here, without a JVM (plainspark.py);
tests/spark kills the whole command with one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import deltalake
import pytest

import penstock
from integration.plainspark import PlainSpark
from penstock.cli import main as command
from penstock.client.database import Database
from penstock.spark.ingest.report import Report


class World:
    def __init__(
        self, folder: Path, database: Database, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self.database = database
        self._capsys = capsys
        self.errors = ""
        (folder / "in").mkdir()
        database.create_queue("q", filter="false", max_attempts=5)

    def put(self, name: str, text: str = '{"id": 1}\n') -> str:
        path = self.folder / "in" / name
        path.write_text(text)
        self.database.publish(penstock.URI(f"file://{path}"), to="q")
        return f"file://{path}"

    def call(self, *arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            command.main(["ingest", *arguments])
        printed = self._capsys.readouterr()
        self.errors = printed.err
        assert (ended.value.code or 0) == code, printed.err
        return printed.out

    @property
    def place(self) -> list[str]:
        return ["--location", str(self.folder / "data")]

    @property
    def source(self) -> list[str]:
        return [*self.place, "--queue", "q", "--table", str(self.folder / "table")]

    def run(self, *more: str, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.call(*self.source, "--once", "--json", *more, code=code)
        )
        return found

    def files(self, *more: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.call("files", *self.place, "--json", *more))
        return found

    def ids(self) -> list[int]:
        table = deltalake.DeltaTable(self.folder / "table").to_pyarrow_table()
        return sorted(table["id"].to_pylist())


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[World]:
    class Session(PlainSpark):
        def stop(self) -> None:
            stopped.append(self)

    stopped: list[Session] = []
    monkeypatch.setattr("penstock.cli.ingest.session", lambda *_: Session())
    monkeypatch.setattr("penstock.spark.ingest.run.session", lambda *_: Session())
    monkeypatch.setenv("COLUMNS", "1000")
    with penstock.open(tmp_path / "data") as database:
        yield World(tmp_path, database, capsys)


def test_a_run_loads_what_is_announced_and_reports(world: World) -> None:
    world.put("a b.json", '{"id": 1}\n{"id": 2}\n')
    world.put("ü.json", '{"id": 3}\n')
    world.put("ü.json", '{"id": 3}\n')
    report = world.run()
    assert report["table"] == str(world.folder / "table")
    assert (report["files"], report["rows"], report["duplicates"], report["failed"]) == (2, 3, 1, 0)
    assert "max_attempts was 5 and is 0 now" in world.errors
    assert world.ids() == [1, 2, 3]
    text = world.call(*world.source, "--once")
    assert "0.0 MiB" in text


def test_a_run_that_could_not_reach_its_files_does_not_look_like_success(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("a.json")
    with monkeypatch.context() as patch:
        away = penstock.UnavailableError("connection refused")
        patch.setattr("penstock.spark.ingest.loader.stat", Mock(side_effect=away))
        report = world.run(code=5)
    assert (report["files"], report["failed"], report["left"]) == (0, 0, 1)
    assert "1 file could not be reached" in world.errors


def test_files_and_sources_show_what_became_of_each(world: World) -> None:
    good = world.put("good.json")
    gone = world.put("gone.json")
    (world.folder / "in" / "gone.json").unlink()
    world.database.publish(b"{ no json", to="q")
    assert world.run("--max-failures", "1", code=1)["failed"] == 2
    states = {each["file"]: each for each in world.files()}
    assert states[good]["state"] == "done"
    assert (states[good]["rows"], states[good]["position"]) == (1, "EOF")
    assert states[gone]["state"] == "failed"
    assert states[gone]["failures"] == 1
    assert "gone.json" in states[gone]["error"]
    (bad,) = [each for each in states.values() if each["kind"] == "announcement"]
    assert (bad["text"], bad["state"]) == ("{ no json", "failed")
    assert bad["error"].startswith("it begins like JSON, but is none")
    assert {each["file"] for each in world.files("--state", "failed")} == {gone, bad["file"]}
    assert [each["file"] for each in world.files("--state", "done")] == [good]
    assert len(world.files("--limit", "2")) == 2
    text = world.call("files", *world.place, "--limit", "2")
    assert "the first 2; --limit shows more" in text
    assert "{ no json" in world.call("files", *world.place, "--state", "failed")
    (source,) = json.loads(world.call("sources", *world.place, "--json"))
    assert (source["done"], source["failed"], source["published"]) == (1, 2, 1)
    assert str(world.folder / "table") in world.call("sources", *world.place)


def test_a_failed_file_is_shown_however_many_others_come_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        world.put(f"{n}.json")
    gone = world.put("gone.json")
    (world.folder / "in" / "gone.json").unlink()
    world.run("--max-failures", "1", code=1)
    monkeypatch.setattr("penstock.source.lists.SCANNED_ROWS", 2)  # looked at for one answer
    assert [each["file"] for each in world.files("--state", "failed")] == [gone]
    assert len(world.files()) == 6


def test_a_failed_file_is_loaded_again_on_request(world: World) -> None:
    uri = world.put("late.json")
    path = world.folder / "in" / "late.json"
    path.unlink()
    world.run("--max-failures", "1", code=1)
    path.write_text('{"id": 7}\n')
    world.put("late.json", '{"id": 7}\n')
    assert world.run()["files"] == 0  # it has failed for good, until somebody says otherwise
    told = json.loads(world.call("again", str(path), *world.place, "--queue", "q", "--json"))
    assert told == {"file": uri, "id": uri, "queue": "q"}
    assert world.run()["files"] == 1
    assert world.ids() == [7]


def test_a_loaded_file_is_loaded_again_only_by_force(world: World) -> None:
    path = world.folder / "in" / "a b%41.json"
    world.put("other.json", '{"id": 1}\n')
    path.write_text('{"id": 2}\n')
    world.database.publish(penstock.URI(path.as_uri()), to="q")
    world.run()
    again = ["again", str(path), *world.place, "--queue", "q"]
    world.call(*again, code=2)
    assert "force" in world.errors
    world.call(
        *again[:-1], "nope", "--force", code=3
    )  # nothing is reopened for a queue that is not
    assert {each["state"] for each in world.files()} == {"done"}
    assert world.run()["files"] == 0
    assert "is announced again in q" in world.call(*again, "--force")
    assert world.run()["rows"] == 1
    assert world.ids() == [1, 2, 2]


def test_a_file_that_is_not_known_is_announced_by_force_alone(world: World) -> None:
    world.put("a.json")
    world.run()
    path = world.folder / "in" / "new.json"
    path.write_text('{"id": 9}\n')
    again = ["again", path.as_uri(), *world.place, "--queue", "q"]
    world.call(*again, code=3)
    assert "--force" in world.errors
    world.call(*again, "--force")
    assert world.run()["files"] == 1
    world.call("again", "s3://bucket/", *world.place, "--queue", "q", code=2)
    world.call("again", str(path), *world.place, "--queue", "nope", "--force", code=3)


def by_version(world: World, *more: str, code: int = 0) -> dict[str, Any]:
    return world.run("--identity", "version", "--max-failures", "1", *more, code=code)


def test_by_version_a_file_that_was_missing_is_loaded_again_and_nothing_stays_open(
    world: World,
) -> None:
    uri = world.put("late.json")
    path = world.folder / "in" / "late.json"
    path.unlink()
    by_version(world, code=1)
    again = ["again", str(path), *world.place, "--queue", "q"]
    world.call(*again, code=3)  # which version should that be?
    assert "there is no such file" in world.errors
    path.write_text('{"id": 7}\n')
    told = json.loads(world.call(*again, "--json"))
    assert told == {"file": uri, "id": None, "queue": "q"}
    assert by_version(world)["files"] == 1
    assert world.ids() == [7]
    assert sorted((each["state"], each["rows"]) for each in world.files()) == [
        ("done", 0),  # the announcement that had found nothing
        ("done", 1),
    ]


def test_by_version_a_file_that_changed_is_loaded_again_and_nothing_stays_open(
    world: World,
) -> None:
    world.put("a.json", '{"id": 1}\n')
    path = world.folder / "in" / "a.json"
    by_version(world)
    (first,) = world.files()
    again = ["again", str(path), *world.place, "--queue", "q"]
    world.call(*again, code=2)  # that version is loaded
    world.call(*again, "--force")  # and nobody loads it in time
    path.write_text('{"id": 1000}\n')
    world.call(*again)
    assert by_version(world)["files"] == 1
    assert world.ids() == [1, 1000]
    states = {each["version"]: each for each in world.files()}
    assert sorted(each["state"] for each in states.values()) == ["done", "failed"]
    assert "another version" in states[first["version"]]["error"]


def test_by_version_the_version_that_failed_is_loaded_again(world: World) -> None:
    world.put("a.json.gz", "this is no gzip")
    path = world.folder / "in" / "a.json.gz"
    by_version(world, code=1)
    told = json.loads(world.call("again", str(path), *world.place, "--queue", "q", "--json"))
    (file,) = world.files()
    assert (told["id"], file["state"], file["failures"]) == (file["id"], "open", 0)
    by_version(world, code=1)
    assert [each["state"] for each in world.files()] == ["failed"]


def test_a_location_that_is_misspelt_is_not_made(world: World) -> None:
    wrong = world.folder / "dta"
    table = ["--queue", "q", "--table", str(world.folder / "table"), "--once"]
    world.call("--location", str(wrong), *table, code=3)
    assert "there is no such folder" in world.errors
    assert not wrong.exists()


def test_a_queue_that_is_misspelt_is_told_before_spark_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Mock(side_effect=AssertionError("Spark starts"))
    monkeypatch.setattr("penstock.cli.ingest.session", started)
    table = ["--queue", "quue", "--table", str(world.folder / "table"), "--once"]
    world.call(*world.place, *table, code=3)
    assert "'quue'" in world.errors
    assert "penstock watch makes it" in world.errors
    assert started.call_count == 0


def test_several_sources_must_be_told_apart(world: World) -> None:
    world.put("a.json")
    world.run()
    world.put("b.json", '{"id": 2}\n')
    other = [*world.place, "--queue", "q", "--table", str(world.folder / "other")]
    world.call(*other, "--source", "second", "--once", "--json")
    world.call("files", *world.place, code=2)
    assert "'second'" in world.errors
    (first,) = world.files("--table", str(world.folder / "table"))
    (second,) = world.files("--source", "second")
    assert (first["file"][-6:], second["file"][-6:]) == ("a.json", "b.json")
    world.call("files", *world.place, "--source", "third", code=3)
    world.call("files", *world.place, "--table", "./third", code=3)


def test_a_signal_ends_a_continuous_run_after_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("a.json")
    seen: list[Report] = []
    before = signal.getsignal(signal.SIGINT)
    interrupt_after_the_first_file(monkeypatch, seen)
    report = json.loads(world.call(*world.source, "--continuous", "--json"))
    assert report["files"] == 1
    assert seen
    assert world.ids() == [1]
    assert signal.getsignal(signal.SIGINT) is before


def interrupt_after_the_first_file(monkeypatch: pytest.MonkeyPatch, seen: list[Report]) -> None:
    from penstock.spark.ingest.coordinator import Coordinator

    count: Callable[..., None] = Coordinator._count

    def counted(self: Coordinator, **more: int) -> None:
        count(self, **more)
        if self.report.files and not seen:
            seen.append(self.report)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Coordinator, "_count", counted)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--queue", "q"], 2, "--table must be given"),
        (["--table", "t"], 2, "--queue must be given"),
        (["--queue", "q", "--table", "memory://x"], 2, "is no place for a table"),
        (["--queue", "q", "--table", "t", "--commit-timeout", "0"], 2, "commit_timeout"),
        (["--queue", "q", "--table", "t", "--max-files", "0"], 2, "max_files is at least 1"),
        (["--queue", "q", "--table", "t", "--option", "sep"], 2, "is not KEY=VALUE"),
        (["--queue", "q", "--table", "t", "--option", "sep=;"], 2, "has no option 'sep'"),
        (["--queue", "q", "--table", "t", "--conf", "=x"], 2, "is not KEY=VALUE"),
        (["--queue", "q", "--table", "t", "--inline", "--identity", "version"], 2, "no version"),
        (["--queue", "nope", "--table", "t", "--once"], 3, "nope"),
        (["--queue", "sqs:q", "--table", "t", "--once"], 2, "is no queue of SQS"),
        (["--queue", "q", "files"], 2, "--queue stands before files"),
        (["files"], 3, "there is no source"),
        (["again", "x", "--queue", "q"], 3, "there is no source"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    world: World, arguments: list[str], code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    monkeypatch.setenv("PENSTOCK_LOCATION", str(world.folder / "data"))
    assert world.call(*arguments, code=code) == ""
    assert told in world.errors.splitlines()[0]
    assert not (world.folder / "t").exists()
