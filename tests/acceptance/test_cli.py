"""The command line as a user meets it: exit codes, one line per error, clean stdout."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import main as command
from penstock.cli.bench import append_cells, print_tables
from penstock.cli.bench_append import CASES, AppendCase, PlainFile, Speed, Tally, compare
from penstock.cli.bench_log import LogResult
from penstock.cli.bench_read import ReadResult
from penstock.cli.check import _open as open_for_check
from penstock.cli.check import with_paths
from penstock.cli.demo import (
    MARK,
    DemoResult,
    _work_folder,
    acts_of,
    read_lines,
    write_and_kill,
)
from penstock.cli.demo_driver import FlowResult
from penstock.cli.demo_driver import compare as compare_flow
from penstock.cli.demo_entries import (
    Acknowledged,
    Entry,
    Verdict,
    decode_acknowledged,
    decode_entry,
    encode_acknowledged,
    encode_entry,
)
from penstock.cli.demo_entries import compare as compare_entries
from penstock.cli.demo_jobs import JobsResult
from penstock.cli.demo_share import ShareResult
from penstock.cli.demo_summary import (
    _in_flight,
    broken_promises,
    files_act,
    graph_act,
    jobs_act,
    share_act,
    summary_table,
    write_act,
)
from penstock.cli.figures import disk_bytes, file_system, memory_bytes, percentile
from penstock.cli.output import print_json
from penstock.cli.payloads import Payload, make_batches
from penstock.clock import SystemClock
from penstock.codec.keys import node_key
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.log.check import Finding
from penstock.source.requests import OpenSource
from penstock.store.location import open_store
from penstock.store.port import RefusedError


def penstock_command(
    *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_main(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make the demo fail as the machinery below it would."""

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("penstock.cli.demo.run", broken)


# Errors and exit codes.


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidError("x"), 2),
        (NotFoundError("x"), 3),
        (ConflictError("x"), 4),
        (UnavailableError("x"), 5),
        (RefusedError("x"), 5),
        (FencedError("x"), 6),
        (CorruptError("x"), 7),
        (PenstockError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_prints_one_line_and_a_hint(
    error: PenstockError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail_with(monkeypatch, error)
    assert run_main("demo", "--json") == code
    printed = capsys.readouterr()
    assert printed.out == ""
    hint = [f"  hint: {error.hint}"] if error.hint else []
    assert printed.err.splitlines() == ["penstock: x", *hint]


def test_every_kind_of_error_has_an_exit_code_of_its_own() -> None:
    assert set(command.EXIT_CODES) == set(PenstockError.__subclasses__())
    assert len(set(command.EXIT_CODES.values())) == len(command.EXIT_CODES)


def test_an_error_over_several_lines_with_brackets_stays_one_line_as_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, InvalidError("stream [bold]x[/bold]\nis odd", hint=""))
    assert run_main("demo") == 2
    assert capsys.readouterr().err == "penstock: stream [bold]x[/bold] is odd\n"


def test_an_error_of_the_machine_is_one_line_and_unavailable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, PermissionError(13, "Permission denied", "/locked"))
    assert run_main("demo") == 5
    assert capsys.readouterr().err.splitlines()[0].endswith("Permission denied: '/locked'")


def test_ctrl_c_ends_quietly_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert run_main("demo") == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip() == ""


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, AssertionError("a bug"))
    with pytest.raises(AssertionError, match="a bug"):
        command.main(["demo"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("demo", "--kills", "0"),
        ("demo", "--kills", "many"),
        ("demo", "--folder", "not-there"),
        ("bench", "log", "--payload", "soup"),
        ("bench", "log", "--entries", "-1"),
        ("check", "--nonsense"),
    ],
)
def test_bad_input_is_invalid_and_shows_no_traceback(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert printed.err


def test_version_and_module_entry_agree_with_the_package(tmp_path: Path) -> None:
    done = penstock_command("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"penstock {version('penstock')}\n")


def test_json_is_one_document_that_keeps_names_and_nesting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json(Acknowledged(round=1, batch=2, first=3, size=4))
    assert json.loads(capsys.readouterr().out) == {"round": 1, "batch": 2, "first": 3, "size": 4}


# The check.


def fill_location(location: Path) -> None:
    with penstock.open(location) as db:
        db.stream("clicks").write(b"hello", tag="u1")
        db.stream("views").write_many([b"a", b"b"])


def test_check_of_a_clean_location_reports_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_location(tmp_path / "store")
    assert run_main("check", "--location", str(tmp_path / "store"), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["head"] >= 2
    assert (result["streams"], result["entries"], result["findings"]) == (2, 3, [])
    assert result["bytes"] > 0


def test_check_counts_every_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with penstock.open(tmp_path) as db:
        db.stream("s").write(b"x")
        for name in ("a", "b"):
            db.create_queue(name)
        db.topic("t").push(b"x")
        db.sources.ask(OpenSource("in", table="t"))
    assert run_main("check", "--location", str(tmp_path), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    views = ("streams", "queues", "topics", "sources", "graphs")
    assert [result[view] for view in views] == [1, 2, 1, 1, 0]
    assert run_main("check", "--location", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert all(view in printed for view in views)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("mismatch in a/b/store/compacted/1.sst", "mismatch in /a/b/store/compacted/1.sst"),
        ("mismatch in proc/self/fd/17/wal/1.sst", "mismatch in /a/b/store/wal/1.sst"),
        ("/a/b/store/compacted/1.sst: missing", "/a/b/store/compacted/1.sst: missing"),
    ],
)
def test_check_names_files_by_their_whole_path(told: str, shown: str) -> None:
    assert with_paths(Finding("store", told), "/a/b") == Finding("store", shown)


def test_check_prints_a_damaged_row_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    fill_location(tmp_path)

    async def damage() -> None:
        store = await open_store(str(tmp_path), clock=SystemClock())
        await store.commit(
            store.head().n + 1, [(node_key(99, 0), b"junk")], time_ms=1, epoch=store.epoch
        )
        await store.close()

    asyncio.run(damage())
    assert run_main("check", "--location", str(tmp_path)) == 1
    printed = capsys.readouterr().out
    assert node_key(99, 0).hex() in printed
    assert "log 99 node 0" in printed


def test_check_tells_what_there_is_although_a_block_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path / "data") as db:
        db.stream("s").write(b"x")
        db.create_queue("q")

    async def unreadable(*_: object) -> None:
        raise CorruptError("checksum mismatch")

    monkeypatch.setattr("penstock.cli.check._run_checks", unreadable)
    assert run_main("check", "--json", "--location", str(tmp_path / "data")) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["streams"], found["queues"]) == (1, 1)
    assert [finding["what"] for finding in found["findings"]] == ["checksum mismatch"]


def test_check_shows_what_crashes_left_behind_and_removes_it_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with penstock.open(folder) as db:
        db.create_queue("q")
        kept = db.publish(bytes(2 << 20), to="q")
    orphan, other = folder / "payloads" / "777", folder / "payloads" / "778"
    orphan.write_bytes(b"never committed")
    other.write_bytes(b"neither")
    location = ("--location", str(folder))
    assert run_main("check", *location) == 0
    printed = capsys.readouterr().out
    assert "777" in printed
    assert "--repair removes" in printed
    assert run_main("check", "--repair", *location) == 2, "it asks, and nobody is there"
    capsys.readouterr()
    assert run_main("check", "--repair", "--json", *location) == 2
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["leftovers"]), shown["removed"]) == (2, False), "what it would do"
    assert orphan.exists()
    assert other.exists()
    assert run_main("check", "--repair", "--yes", *location) == 0
    assert not orphan.exists()
    assert not other.exists()
    printed = capsys.readouterr().out
    assert "2 leftovers are gone" in printed
    assert "--repair removes" not in printed, "that is what it does"
    assert run_main("check", "--json", *location) == 0
    assert json.loads(capsys.readouterr().out)["leftovers"] == []
    # The other way round it is damage, and then nothing is removed.
    (folder / "payloads" / str(kept)).unlink()
    orphan.write_bytes(b"never committed")
    assert run_main("check", "--json", *location) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert "missing" in finding["what"]
    assert run_main("check", "--repair", "--yes", "--json", *location) == 4
    assert json.loads(capsys.readouterr().out)["findings"] == [finding]
    assert run_main("check", "--repair", "--yes", *location) == 4
    assert orphan.exists()


def test_check_of_a_misspelt_location_is_not_found_and_creates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("check", "--location", str(tmp_path / "typo")) == 3
    assert "no such folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_location_in_memory_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("check", "--location", "memory://x") == 3
    assert "memory://x" in capsys.readouterr().err


def test_check_of_a_folder_that_is_something_else_is_not_found(tmp_path: Path) -> None:
    assert run_main("check", "--location", str(tmp_path)) == 3


def test_check_of_a_location_that_is_open_elsewhere_is_unavailable_and_disturbs_nobody(
    tmp_path: Path,
) -> None:
    with penstock.open(tmp_path) as db:
        stream = db.stream("clicks")
        stream.write(b"before")
        done = penstock_command("check", "--location", str(tmp_path), cwd=tmp_path)
        assert done.returncode == 5
        assert "Traceback" not in done.stderr
        assert stream.write(b"after") == 1


def test_check_gives_up_on_a_location_that_does_not_open_and_releases_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_location(tmp_path)

    async def hang(*_: object, **__: object) -> None:
        for _i in range(100):
            await asyncio.sleep(0)
        raise AssertionError("nobody ended the opening")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.cli.check.OPEN_SECONDS", 0.0)
        patch.setattr("penstock.cli.check.open_store", hang)
        assert run_main("check", "--location", str(tmp_path)) == 5
    printed = capsys.readouterr().err
    assert f"{tmp_path} did not open in 0 s" in printed
    assert "a write" not in printed
    assert run_main("check", "--location", str(tmp_path)) == 0


def test_check_of_a_store_that_stops_answering_ends_with_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path) as db:
        db.stream("s").write(b"x")

    async def hang(checker: Any) -> None:
        checker.looked += 1
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:

        async def opened(location: str) -> Any:
            """The opening itself takes what it takes."""
            store = await open_for_check(location)
            patch.setattr("penstock.cli.check.OPEN_SECONDS", 0.2)
            return store

        patch.setattr("penstock.cli.check._open", opened)
        patch.setattr("penstock.cli.check.Checker.run", hang)
        assert run_main("check", "--location", str(tmp_path)) == 1
    assert "gave no answer" in capsys.readouterr().out
    assert run_main("check", "--location", str(tmp_path)) == 0


def test_check_of_a_store_that_fails_to_read_says_nothing_about_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_location(tmp_path)

    async def fail(_: object) -> None:
        raise UnavailableError("the bucket does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.cli.check.Checker.run", fail)
        assert run_main("check", "--location", str(tmp_path)) == 5
    assert capsys.readouterr().err.splitlines() == [
        "penstock: the bucket does not answer",
        "  hint: retry later",
    ]
    assert run_main("check", "--location", str(tmp_path)) == 0


def test_the_location_is_the_option_else_the_environment_else_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_LOCATION", raising=False)
    assert run_main("check") == 3
    assert "penstock-data: there is no such folder" in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_LOCATION", "from-environment")
    assert run_main("check") == 3
    assert "from-environment: there" in capsys.readouterr().err
    assert run_main("check", "--location", "from-option") == 3
    assert "from-option: there" in capsys.readouterr().err


# The demo's comparison: every broken promise must show.


def found(*batches: Acknowledged) -> dict[int, bytes | None]:
    return {
        batch.first + index: encode_entry(Entry(batch.round, batch.batch, index, batch.size))
        for batch in batches
        for index in range(batch.size)
    }


FIRST, SECOND = Acknowledged(0, 0, 0, 1), Acknowledged(0, 1, 1, 3)


def verdict(acknowledged: list[Acknowledged], there: dict[int, bytes | None]) -> Verdict:
    return compare_entries(acknowledged, list(there.items()))


def test_all_found_where_acknowledged_is_kept() -> None:
    result = verdict([FIRST, SECOND], found(FIRST, SECOND))
    assert result == Verdict(
        acknowledged=4, found=4, in_flight=0, lost=0, reused=0, duplicated=0, torn=0, damaged=0
    )
    assert result.kept


def test_a_whole_batch_in_flight_at_the_kill_is_allowed() -> None:
    result = verdict([FIRST], found(FIRST, SECOND))
    assert (result.in_flight, result.kept) == (3, True)


def test_a_missing_tail_is_lost() -> None:
    result = verdict([FIRST, SECOND], found(FIRST))
    assert (result.lost, result.kept) == (3, False)


def test_an_entry_at_another_offset_than_acknowledged_is_lost() -> None:
    moved = Acknowledged(0, 0, 9, 1)
    assert verdict([FIRST], found(moved)).lost == 1


def test_one_entry_at_two_offsets_is_duplicated() -> None:
    again = Acknowledged(0, 1, 4, 3)
    result = verdict([FIRST, SECOND], found(FIRST, SECOND, again))
    assert (result.duplicated, result.torn, result.kept) == (3, 0, False)


def test_one_offset_acknowledged_twice_is_reused() -> None:
    other = Acknowledged(1, 0, 0, 1)
    result = verdict([FIRST, other], found(other))
    assert (result.reused, result.lost, result.kept) == (1, 1, False)


def test_a_part_of_a_batch_is_torn_even_if_it_was_never_acknowledged() -> None:
    there = found(FIRST, SECOND)
    del there[3]
    result = verdict([FIRST], there)
    assert (result.torn, result.lost, result.kept) == (1, 0, False)


def test_a_batch_in_two_pieces_is_torn() -> None:
    there = found(FIRST, SECOND)
    there[7] = there.pop(3)
    assert verdict([FIRST], there).torn == 1


def test_nothing_at_an_offset_and_foreign_bytes_are_damaged() -> None:
    there = found(FIRST) | {1: None, 2: b"who wrote this"}
    result = verdict([FIRST], there)
    assert (result.damaged, result.lost, result.kept) == (2, 0, False)


def test_an_entry_with_one_changed_byte_is_not_believed() -> None:
    data = encode_entry(Entry(3, 14, 15, 92))
    assert decode_entry(data) == Entry(3, 14, 15, 92)
    for place in range(len(data)):
        assert decode_entry(data[:place] + b"~" + data[place + 1 :]) is None


def test_an_acknowledged_batch_reads_back_from_its_line() -> None:
    line = encode_acknowledged(SECOND)
    assert decode_acknowledged(line) == SECOND
    assert line.endswith(b"\n")


def test_bytes_after_the_last_line_end_are_no_acknowledgement() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"0 0 0 1\n0 1 1 3\n0 2 4")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert list(read_lines(pipe)) == [b"0 0 0 1", b"0 1 1 3"]


def shared(**broken: int) -> ShareResult:
    return ShareResult(
        members=3,
        kills=1,
        verdict=verdict([FIRST], found(FIRST)),
        unread=broken.get("unread", 0),
        pending=broken.get("pending", 0),
        again=7,
        takeover_ms=[345.0],
        seconds=2.0,
    )


def test_processes_that_share_must_lose_nothing_and_leave_nothing() -> None:
    assert shared().kept
    assert not shared(unread=1).kept
    assert not shared(pending=1).kept
    assert broken_promises([share_act(shared())]) == []
    assert len(broken_promises([share_act(shared(unread=1, pending=1))])) == 2
    assert any("345 ms" in note for note in share_act(shared()).notes)


def jobs(**broken: int) -> JobsResult:
    return JobsResult(
        workers=3,
        kills=1,
        published=100,
        wanted=125,
        done=123,
        failed=2,
        lost=broken.get("lost", 0),
        done_again=broken.get("done_again", 0),
        misrouted=broken.get("misrouted", 0),
        too_often=broken.get("too_often", 0),
        unordered=broken.get("unordered", 0),
        again=9,
        seconds=1.0,
    )


def test_jobs_must_be_done_or_failed_and_each_once() -> None:
    assert jobs().kept
    for name in ("lost", "done_again", "misrouted", "too_often", "unordered"):
        assert not jobs(**{name: 1}).kept
    assert (jobs_act(jobs(lost=3)).lost, jobs_act(jobs(done_again=4)).doubled) == (3, 4)
    assert broken_promises([jobs_act(jobs())]) == []
    broken = jobs(misrouted=1, too_often=1, unordered=1)
    assert len(broken_promises([jobs_act(broken)])) == 3


def test_what_comes_out_of_spark_must_be_what_went_in() -> None:
    def compared(*found: int) -> FlowResult:
        return compare_flow([1, 2, 3], list(found), 1, 9.0)

    assert compared(3, 1, 2).kept
    assert compared(1, 3).lost == 1
    assert compared(1, 2, 2, 3).duplicated == 1
    assert compared(1, 2, 3, 4).wrong == 1
    assert not any(compared(*found).kept for found in ((1, 3), (1, 2, 2, 3), (1, 2, 3, 4)))
    for act in (files_act, graph_act):
        assert (act(compared(1, 3)).lost, act(compared(1, 2, 2, 3)).doubled) == (1, 1)
        assert len(broken_promises([act(compared(1, 2, 3, 4))])) == 1


def test_a_kept_demo_replaces_the_last_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "penstock-demo").mkdir()
    (tmp_path / "penstock-demo" / "precious").touch()
    with pytest.raises(ConflictError):
        _work_folder(tmp_path, keep=True)
    assert (tmp_path / "penstock-demo" / "precious").exists()
    shutil.rmtree(tmp_path / "penstock-demo")
    (_work_folder(tmp_path, keep=True) / "old").touch()
    assert not (_work_folder(tmp_path, keep=True) / "old").exists()


def test_a_kept_demo_that_somebody_looks_at_is_not_removed_behind_his_back(tmp_path: Path) -> None:
    work = _work_folder(tmp_path, keep=True)
    with penstock.open(work / "data") as db:
        db.stream("s").write(b"x")
        with pytest.raises(UnavailableError, match="is open in another process"):
            _work_folder(tmp_path, keep=True)
        db.stream("s").write(b"y")
    with penstock.open(work / "data", broker="outside") as db:  # as `penstock top` does
        assert [message and message.data for message in db.stream("s").read(0, 3)] == [b"x", b"y"]
    # The broker of such a command stays for half a minute, and leaves when it is asked.
    again = _work_folder(tmp_path, keep=True)
    assert [each.name for each in again.iterdir()] == [MARK]


def test_the_demo_table_shows_every_count() -> None:
    result = DemoResult(
        kills=5,
        verdict=verdict([FIRST, SECOND], found(FIRST)),
        kept=False,
        reopen_ms=[1.0, 12.0],
        write_seconds=1.0,
        share=shared(),
        jobs=jobs(),
        files=None,
        graph=None,
        seconds=1.0,
    )
    (act, *_) = acts = acts_of(result)
    assert (act.went_in, act.came_out, act.lost, act.doubled) == (4, 1, 3, 0)
    assert any("12 ms" in note for note in act.notes)
    cells = [str(cell) for column in summary_table(acts).columns for cell in column.cells]
    assert {"[bold red]3[/]", "[green]0[/]", "4", "1"} <= set(cells)
    torn = write_act(1, verdict([FIRST, FIRST], found(SECOND) | {9: b"?"}), [1.0], 1.0)
    assert len(broken_promises([torn])) == 2  # reused and damaged


def test_a_broken_promise_ends_the_demo_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = DemoResult(
        kills=1,
        verdict=verdict([FIRST], {}),
        kept=False,
        reopen_ms=[1.0],
        write_seconds=1.0,
        share=shared(),
        jobs=jobs(),
        files=None,
        graph=None,
        seconds=1.0,
    )
    monkeypatch.setattr("penstock.cli.demo.run", lambda *_, **__: broken)
    assert run_main("demo", "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["lost"] == 1


def test_a_kept_demo_names_a_command_that_its_reader_can_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = DemoResult(
        kills=1,
        verdict=verdict([FIRST], found(FIRST)),
        kept=True,
        reopen_ms=[1.0],
        write_seconds=1.0,
        share=shared(),
        jobs=jobs(),
        files=None,
        graph=None,
        seconds=1.0,
    )
    monkeypatch.setattr("penstock.cli.demo.run", lambda *_, **__: kept)
    folder = tmp_path / "with a space"
    folder.mkdir()
    for path, word in (("/nowhere", f"{sys.executable} -m penstock"), (None, "penstock")):
        if path is None:
            (tmp_path / "penstock").write_text("#!/bin/sh\n")
            (tmp_path / "penstock").chmod(0o755)
        monkeypatch.setenv("PATH", path or str(tmp_path))
        run_main("demo", "--keep", "--folder", str(folder))
        said = capsys.readouterr().out
        assert f"\n  {word} top --location " in said
        (line,) = (line for line in said.splitlines() if " top " in line)
        assert shlex.split(line)[-1] == str(folder / "penstock-demo" / "data")


def test_one_is_told_of_as_one() -> None:
    assert _in_flight(1) == "1 more was on its way at a kill"
    assert _in_flight(1200) == "1,200 more were on their way at a kill"


@pytest.mark.parametrize(
    "spark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["without Spark", "Spark"]
)
def test_the_demo_kills_real_writers_and_nothing_is_lost(tmp_path: Path, spark: bool) -> None:
    acts = () if spark else ("--no-spark",)
    done = penstock_command(
        "demo", "--kills", "2", "--folder", str(tmp_path), "--json", *acts, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kept"] is True
    assert len(result["reopen_ms"]) == len(result["share"]["takeover_ms"]) == 2
    assert result["share"]["verdict"]["acknowledged"] > 100
    assert result["jobs"]["done"] > 800
    if spark:
        for act in ("files", "graph"):
            assert result[act]["came_out"] == result[act]["went_in"] > 0
            assert result[act]["kills"] == 1
    assert result["verdict"]["found"] >= result["verdict"]["acknowledged"] >= 40
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_cannot_start_is_reported_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UnavailableError, match=r"ended by itself \(1\): no message") as ended:
        write_and_kill(tmp_path, str(tmp_path / "store"), 0, writes=1)
    assert "a write" not in ended.value.hint


# The benchmark: its arithmetic, then one short run.


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile(values, 100) == 100.0
    assert percentile([7.0], 1) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


@pytest.mark.parametrize("payload", Payload)
@pytest.mark.parametrize("size_bytes", [100, 1024])
def test_entries_have_exactly_the_size_asked_for_and_repeat_in_every_run(
    payload: Payload, size_bytes: int
) -> None:
    batches = make_batches(payload, size_bytes=size_bytes, batch=50, count=3)
    assert batches == make_batches(payload, size_bytes=size_bytes, batch=50, count=3)
    entries = [entry for batch in batches for entry in batch]
    assert len(entries) == 150
    assert {len(data) for _, data in entries} == {size_bytes}
    assert len({data for _, data in entries}) > 140
    if payload is Payload.JSON:
        assert all(json.loads(data)["user"] == tag for tag, data in entries)


def test_ratios_compare_the_log_with_the_disk() -> None:
    result = compare(
        AppendCase(100, 1000), Speed(500_000, p50_ms=2.0, p99_ms=8.0), Speed(1_000_000, 0.5, 1.0)
    )
    assert (result.rate_ratio, result.p50_ratio) == (0.5, 4.0)
    assert append_cells(result) == ["500,000", "1,000,000", "50%", "2.00", "8.00", "0.50", "4.0x"]


def test_a_tally_counts_entries_not_calls() -> None:
    tally = Tally()
    tally.latencies, tally.elapsed = [0.001, 0.002, 0.003], 0.01
    assert tally.speed(1000) == Speed(entries_per_s=300_000.0, p50_ms=2.0, p99_ms=3.0)


def test_the_plain_file_holds_every_byte_that_was_appended(tmp_path: Path) -> None:
    plain = PlainFile(tmp_path / "plain")
    plain.append(b"ab")
    plain.append(b"cd")
    plain.close()
    assert (tmp_path / "plain").read_bytes() == b"abcd"


def test_figures_describe_this_process_and_this_folder(tmp_path: Path) -> None:
    now, highest = memory_bytes()
    assert 2**20 < now <= highest
    (tmp_path / "inside").mkdir()
    with (tmp_path / "inside" / "file").open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        os.fsync(file.fileno())  # some file systems allocate late
    assert 100_000 <= disk_bytes(tmp_path) < 300_000
    assert disk_bytes(tmp_path / "not-there") == 0
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(tmp_path) not in ("proc", "unknown")


def test_the_tables_show_each_case_and_say_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    speed = Speed(1.0, 1.0, 1.0)
    cases = [
        AppendCase(100, 1),
        AppendCase(100, 1000, tags=False),
        AppendCase(1024, 1000, writers=4),
    ]
    result = LogResult(
        payload=Payload.JSON,
        file_system="ext4",
        appends=[compare(case, speed, speed) for case in cases],
        reads=ReadResult(1, 1.0, 1, 1.0, 1.0, 1.0, 1.0),
        rss_bytes=2**20,
        rss_bytes_max=2**21,
        disk_bytes=2**20,
        data_bytes=2**22,
    )
    print_tables(result)
    printed = capsys.readouterr().out
    assert "json payloads, on ext4" in printed
    assert "100 B x 1 " in printed
    assert "100 B x 1000, no tags " in printed
    assert "1024 B x 1000, 4 threads" in printed
    assert "2.0 MiB" in printed


def test_a_short_benchmark_measures_every_case_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = penstock_command(
        "bench", "log", "--seconds", "0.02", "--entries", "2000", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    measured = [(row["case"]["batch"], row["case"]["tags"]) for row in result["appends"]]
    assert measured == [(case.batch, case.tags) for case in CASES]
    assert (1000, False) in measured
    assert all(row["log"]["entries_per_s"] > 0 < row["rate_ratio"] for row in result["appends"])
    assert result["reads"]["entries"] == 2000
    assert result["payload"] == "json"
    assert list(tmp_path.iterdir()) == []
