"""`penstock watch` as a process: killed, stopped, doubled, and started again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import unquote

import pytest

import penstock
from integration.children import Child
from penstock.cli.watch import Manner, Watcher
from penstock.cli.watch_ledger import Ledger, ledger_name
from penstock.client.database import Database
from penstock.clock import SystemClock
from penstock.errors import CorruptError, FencedError, PenstockError, UnavailableError

PATIENCE = 60.0


class Inbox:
    """A folder, a location, and what was announced so far."""

    def __init__(self, folder: Path, location: Path, database: Database) -> None:
        self.folder = folder
        self.location = location
        self.database = database
        self.names: list[str] = []

    def put(self, name: str, data: bytes = b"{}\n") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def watch(self, *more: str) -> Child:
        return Child(
            "command", "watch", self.folder, "--queue", "q", "--location", self.location,
            "--settle", "0.05", "--interval", "0.02", *more,
        )  # fmt: skip

    def await_names(self, count: int) -> list[str]:
        """So many more announcements, in order of their names; acknowledged."""
        queue = self.database.queue("q")
        found: list[str] = []
        while len(found) < count:
            claimed = queue.claim(1000, wait=PATIENCE)
            assert claimed, f"no more than {found}"
            assert all(queue.ack(claimed))
            found += [self._name(message.uri) for message in claimed]
        return sorted(found)

    def _name(self, uri: str | None) -> str:
        assert uri is not None
        return unquote(uri).removeprefix(f"file://{self.folder}/")

    def nothing_more(self) -> bool:
        stats = self.database.queue("q").stats()
        return stats.available + stats.delayed + stats.in_flight == 0


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    folder = tmp_path / "in"
    folder.mkdir()
    with penstock.open(tmp_path / "data") as database:
        database.create_queue("q", filter="false", max_attempts=0)
        yield Inbox(folder, tmp_path / "data", database)


def test_what_is_there_and_what_comes_is_announced_with_any_name(inbox: Inbox) -> None:
    inbox.put("a.json")
    inbox.put("sub/b c.json")
    with inbox.watch() as child:
        assert child.hear() == f"penstock watches {inbox.folder} for queue q"
        assert inbox.await_names(2) == ["a.json", "sub/b c.json"]
        inbox.put("ünï 100%.json")
        inbox.put(".late.tmp")
        assert inbox.await_names(1) == ["ünï 100%.json"]
        (inbox.folder / ".late.tmp").rename(inbox.folder / "late.json")
        assert inbox.await_names(1) == ["late.json"]
        os.kill(child.pid, signal.SIGTERM)
        assert child.hear() == "4 announced, 0 known before"
        assert child.finish() == 0
    assert inbox.nothing_more()


def test_a_file_is_announced_when_its_writer_is_done_and_again_when_it_changed(
    inbox: Inbox,
) -> None:
    with inbox.watch() as child:
        child.hear()
        with (inbox.folder / "slow.json").open("wb") as file:
            file.write(b"{}\n")
            file.flush()
            for i in range(3):  # the watcher lists what comes later, and leaves this one alone
                inbox.put(f"{i}.json")
                assert inbox.await_names(1) == [f"{i}.json"]
        assert inbox.await_names(1) == ["slow.json"]
        inbox.put("slow.json", b"{}\n{}\n")
        assert inbox.await_names(1) == ["slow.json"]


def test_killed_watchers_together_announce_every_file_once(inbox: Inbox) -> None:
    names = [f"{i:03}.json" for i in range(60)]
    for start in range(0, 60, 20):
        with inbox.watch() as one, inbox.watch() as other:
            one.hear()
            for name in names[start : start + 20]:
                inbox.put(name)
            one.kill()
            other.hear()
            for name in names[start + 5 : start + 10]:
                os.utime(inbox.folder / name)  # the second version of what may be announced
            other.kill()
    with inbox.watch("--once", "--json") as last:
        assert last.finish() == 0
        report = json.loads("".join(last.drain()))
    assert report["unfinished"] == 0
    assert report["announced"] + report["known"] >= 60
    claimed = inbox.database.queue("q").claim(1000)
    announced = [message.uri for message in claimed]
    assert {inbox._name(uri) for uri in announced} == set(names)
    # Each version of a file at most once: those that were touched have two.
    assert len(announced) <= 60 + 15


def test_once_announces_what_is_there_and_a_second_run_only_what_is_new(inbox: Inbox) -> None:
    for i in range(5):
        inbox.put(f"{i}.json")
    told = []
    for extra in ("", "new.json"):
        if extra:
            inbox.put(extra)
        with inbox.watch("--once", "--json") as child:
            assert child.finish() == 0
            report = json.loads("".join(child.drain()))
            told.append((report["announced"], report["known"], report["unfinished"]))
    assert told == [(5, 0, 0), (1, 5, 0)]
    assert len(inbox.await_names(6)) == 6
    with inbox.watch("--once", "--again") as child:
        assert child.finish() == 0
        assert child.drain()[-1] == "6 announced, 6 known before"
    assert len(inbox.await_names(6)) == 6


def test_once_ends_although_a_file_is_still_being_written(inbox: Inbox) -> None:
    inbox.put("done.json")
    with (inbox.folder / "open.json").open("wb"), inbox.watch("--once") as child:
        assert child.finish() == 0
        assert child.drain()[-1] == "1 announced, 0 known before, 1 not complete"
    assert inbox.await_names(1) == ["done.json"]


def test_a_missing_queue_is_made_and_a_missing_folder_is_an_error(inbox: Inbox) -> None:
    inbox.put("a.json")
    with inbox.watch("--once", "--queue", "new") as child:
        assert child.finish() == 0
        assert child.hear() == "made queue new"
    settings = inbox.database.queue("new").describe()
    assert (settings.filter, settings.max_attempts) == ("FALSE", 0)
    assert len(inbox.database.queue("new").claim(9)) == 1
    inbox.folder = inbox.folder / "nope"
    with inbox.watch() as child:
        assert child.finish() == 3
        assert child.errors().startswith(f"penstock: {inbox.folder} is not a folder\n")


def test_a_queue_that_would_lie_elsewhere_is_not_made_here(inbox: Inbox) -> None:
    inbox.put("a.json")
    with inbox.watch("--once", "--queue", "sqs://uploads") as child:
        assert child.finish() == 2
        assert child.errors().startswith("penstock: sqs://uploads is no queue of a location\n")
    assert list(inbox.database.queues()) == ["q"]


def test_names_that_are_no_text_are_announced_and_shown(inbox: Inbox) -> None:
    inbox.folder = inbox.folder / os.fsdecode(b"fol\xffder")
    inbox.put(os.fsdecode(b"\xfe.json"))
    with inbox.watch("--once") as child:
        assert child.finish() == 0, child.errors()
        assert child.drain()[0].startswith("penstock watches ")
    with inbox.watch("--once", "--json") as child:
        assert child.finish() == 0, child.errors()
        assert json.loads("".join(child.drain()))["known"] == 1
    (message,) = inbox.database.queue("q").claim(9)
    assert message.uri is not None
    assert message.uri.endswith("/fol%FFder/%FE.json")


# ---- in this process --------------------------------------------------------------------------


class World:
    """A watcher whose rounds a test makes."""

    def __init__(self, inbox: Inbox, *, once: bool = False) -> None:
        queue, clock = inbox.database.queue("q"), SystemClock()
        self.ledger = Ledger(inbox.database, queue, inbox.folder, clock)
        manner = Manner(settle=0.0, interval=0.01, once=once)
        self.watcher = Watcher(inbox.folder, self.ledger, manner, clock)

    def round(self) -> int:
        before = self.watcher.announced
        self.watcher._round()
        return self.watcher.announced - before


def test_killed_between_publishing_and_writing_it_down_it_publishes_once(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.put("a.json")
    world = World(inbox)
    monkeypatch.setattr(world.ledger, "_write", _killed)
    with pytest.raises(KeyboardInterrupt):
        world.round()
    assert World(inbox).round() == 1
    assert inbox.await_names(1) == ["a.json"]
    assert inbox.nothing_more()


def _killed(_: object) -> None:
    raise KeyboardInterrupt


def test_a_stopped_watcher_that_goes_on_reads_what_the_other_one_announced(
    inbox: Inbox,
) -> None:
    stopped, other = World(inbox), World(inbox)
    inbox.put("a.json")
    assert other.round() == 1
    assert stopped.round() == 0
    assert World(inbox).ledger.announced.keys() == {"a.json"}


def test_a_queue_that_was_made_anew_gets_everything(inbox: Inbox) -> None:
    inbox.put("a.json")
    assert World(inbox).round() == 1
    inbox.database.delete_queue("q")
    inbox.database.create_queue("q", filter="false")
    assert World(inbox).round() == 1
    assert inbox.await_names(1) == ["a.json"]


def test_a_folder_that_cannot_be_listed_is_said_once_and_forgets_nothing(
    inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox.put("a.json")
    world, strict = World(inbox), World(inbox, once=True)
    assert world.round() == 1
    away = inbox.folder.rename(inbox.folder.with_name("away"))
    assert (world.round(), world.round()) == (0, 0)
    assert capsys.readouterr().err == f"penstock: {inbox.folder}: No such file or directory\n"
    with pytest.raises(UnavailableError):
        strict.round()
    away.rename(inbox.folder)
    assert world.round() == 0


def test_a_ledger_that_holds_something_else_is_corrupt(inbox: Inbox) -> None:
    inbox.database.stream(ledger_name("q", inbox.folder)).write(b"hello", tag="a.json")
    with pytest.raises(CorruptError, match="holds something else"):
        World(inbox)


def test_a_ledger_is_written_anew_without_files_that_are_gone_for_long(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.watch_ledger._SMALL", 10)
    for i in range(20):
        inbox.put(f"{i}.json")
    world = World(inbox)
    assert world.round() == 20
    stream = inbox.database.stream(ledger_name("q", inbox.folder))
    for i in range(18):
        (inbox.folder / f"{i}.json").unlink()
    present = {"18.json", "19.json"}
    world.ledger.tidy(present)
    assert stream.info().length == 20  # gone, but not for long
    monkeypatch.setattr("penstock.cli.watch_ledger.FORGET_MS", -1)
    world.ledger.tidy([])
    assert stream.info().length == 20  # an empty folder may be one that is not mounted
    world.ledger.tidy(present)
    assert stream.info().length == 2
    for ledger in (world.ledger, World(inbox).ledger):
        assert ledger.announced.keys() == present
    assert World(inbox).round() == 0
    inbox.put("0.json")
    assert world.round() == 1


class Days(SystemClock):
    """A clock on which days go by when a watcher waits, for a folder that files come and go in."""

    def __init__(self, inbox: Inbox, days: int) -> None:
        self.day = 0
        self._inbox, self._days = inbox, days

    def wall_ms(self) -> int:
        return super().wall_ms() + self.day * 24 * 3_600_000

    # -- as the event that ends a watcher

    def is_set(self) -> bool:
        return self.day >= self._days

    def wait(self, timeout: float | None = None) -> bool:
        self.day += 1
        for path in self._inbox.folder.iterdir():
            path.unlink()
        for i in range(10):
            self._inbox.put(f"{self.day}-{i}.json")
        return False


def test_a_watcher_that_runs_on_forgets_files_that_are_gone_for_long(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.watch_ledger._SMALL", 10)
    days = Days(inbox, 100)
    queue = inbox.database.queue("q")
    idle = Ledger(inbox.database, queue, inbox.folder, days)
    ledger = Ledger(inbox.database, queue, inbox.folder, days)
    inbox.put("first.json")
    manner = Manner(settle=0.0)
    watcher = Watcher(inbox.folder, ledger, manner, days)
    watcher.run(days)  # type: ignore[arg-type]
    assert watcher.announced == 991
    # 35 days are remembered, and half of the stream may say nothing.
    assert inbox.database.stream(ledger_name("q", inbox.folder)).info().length < 800
    assert ledger.known < 800
    idle.read_on()
    assert ledger.announced.items() <= idle.announced.items()


@pytest.mark.parametrize("error", [UnavailableError, FencedError])
@pytest.mark.parametrize("step", ["announce", "tidy"])
def test_a_watcher_that_finds_no_broker_tries_again_in_the_next_round(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, step: str, error: type[PenstockError]
) -> None:
    inbox.put("a.json")
    world = World(inbox)
    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, step, Mock(side_effect=error("no broker")))
        world.round()
    assert world.watcher.report("q").troubles == ["no broker"]
    world.round()
    assert world.watcher.announced == 1


def test_names_of_ledgers_are_their_own_and_short_enough() -> None:
    long = "ü" * 127
    names = {
        ledger_name(queue, folder) for queue in ("q", long) for folder in (Path("/a"), Path("/b"))
    }
    assert len(names) == 4
    assert max(len(name.encode()) for name in names) <= 255
