"""`penstock watch`: announce the files of a folder to a queue.

Contract     Every file that is complete is announced, as the URI of its path; one whose content
             changed is announced again. What was announced before this process began is known
             (watch_ledger.py), and what came while none ran is found by listing, which is the only
             way in which anything is found: there are no events that could be missed. Ends with
             SIGTERM or SIGINT, or with `--once` when all that is there is announced.
Lost broker  The next round tries again. With `--once` it is the command's error.
Not here     Which files are complete (watch_folder.py), loading them (`penstock ingest`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location
from penstock.cli.output import print_error, print_json, printable, result_console
from penstock.cli.rendering import preview
from penstock.cli.watch_folder import Listing, Settling, being_written, list_files, of_location
from penstock.cli.watch_ledger import Ledger
from penstock.client.blockingqueue import Queue
from penstock.client.database import Database
from penstock.clock import Clock, SystemClock
from penstock.errors import FencedError, InvalidError, NotFoundError, UnavailableError
from penstock.spark.sqs import is_sqs
from penstock.store.location import folder_of

#: A listing takes at most this part of the time, however many files there are.
_LISTING_SHARE = 0.1
#: No clock of the machine counts as far as a float does.
_SECONDS_MAX = 1e9
#: So often is what was announced tidied up: files that are gone are remembered for weeks.
_TIDY_MS = 24 * 3_600 * 1_000


class WatchReport(msgspec.Struct, frozen=True):
    folder: str
    queue: str
    announced: int  # by this run
    known: int  # announced by earlier runs or by others
    unfinished: int  # files that were not complete at the end
    troubles: list[str]  # folders that could not be read


class Manner(msgspec.Struct, frozen=True):
    patterns: tuple[str, ...] = ()
    recursive: bool = True
    settle: float = 2.0
    interval: float = 1.0
    once: bool = False


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files arrive.")],
    queue: Annotated[str, typer.Option("--queue", metavar="Q", help="Announce to this queue.")],
    location: Location = LOCATION_DEFAULT,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--pattern", metavar="GLOB", help="Only such names, *.json; may be repeated."),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive/--flat", help="With the folders inside, or without.")
    ] = True,
    settle: Annotated[
        float, typer.Option("--settle", metavar="S", help="Unchanged for S seconds is complete.")
    ] = 2.0,
    interval: Annotated[
        float, typer.Option("--interval", metavar="S", help="Look every S seconds.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Announce what is there, and end.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Announce also what was announced before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Announce the files that arrive in a folder to a queue, each one once.

    The queue is made if it is not there: one that takes what is addressed to it, and nothing else.
    """
    manner = Manner(
        tuple(patterns or ()), recursive, _seconds("--settle", settle, 0.0),
        _seconds("--interval", interval, 0.01), once,
    )  # fmt: skip
    if not folder.is_dir():
        kind = InvalidError if folder.exists() else NotFoundError
        raise kind(f"{folder} is not a folder", hint="give the folder in which files arrive")
    if is_sqs(queue):
        # As a name it would be made here, and `penstock ingest` would look for it there.
        raise InvalidError(
            f"{queue} is no queue of a location",
            hint="a bucket announces its objects to SQS itself; a folder needs a queue from here",
        )
    # One spelling, so that a file has one URI however the folder was named.
    folder = folder.resolve()
    if folder == _folder_of_location(location) or of_location(folder):
        raise InvalidError(
            f"{_shown_path(folder)} is a Penstock location, or a part of one",
            hint="let files arrive in a folder of their own",
        )
    with opened(location, create=True) as database, _told_to_end() as told:
        target = _queue(database, queue, told_of=not as_json)
        ledger = Ledger(database, target, folder, _CLOCK, again=again)
        watcher = Watcher(folder, ledger, manner, _CLOCK)
        if not as_json:
            print(
                f"penstock watches {_shown_path(folder)} for queue {printable(queue)}", flush=True
            )
        with _shown(watcher):
            watcher.run(told)
        report = watcher.report(queue)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


_CLOCK = SystemClock()


def _folder_of_location(location: str) -> Path | None:
    """Which need not be there yet."""
    if location.startswith("penstock://"):
        return None
    folder = folder_of(location)
    return None if folder is None else folder.resolve()


def _shown_path(path: Path | str) -> str:
    """A name need not be text, nor printable."""
    return preview(str(path), limit=10_000)


def _seconds(what: str, value: float, least: float) -> float:
    if not least <= value <= _SECONDS_MAX:
        raise InvalidError(
            f"{what} is a number of seconds, from {least:g} to {_SECONDS_MAX:,.0f}, not {value}"
        )
    return value


def _queue(database: Database, name: str, *, told_of: bool) -> Queue:
    queue = database.queue(name)
    with contextlib.suppress(NotFoundError):
        queue.describe()
        return queue
    # Sources count failures themselves; a queue that gives up on announcements would lose files.
    made = database.create_queue(name, filter="false", max_attempts=0)
    if told_of:
        print(f"made queue {printable(name)}", flush=True)
    return made


class Watcher:
    def __init__(self, folder: Path, ledger: Ledger, manner: Manner, clock: Clock) -> None:
        self._folder = folder
        self._ledger = ledger
        self._manner = manner
        self._clock = clock
        self._settling = Settling(int(manner.settle * 1e9))
        self._known = ledger.known
        self._troubles: list[str] = []
        self._tidy_at_ms = 0
        self.announced = 0

    @property
    def unfinished(self) -> int:
        return self._settling.waiting

    def report(self, queue: str) -> WatchReport:
        return WatchReport(
            _shown_path(self._folder),
            queue,
            self.announced,
            self._known,
            self.unfinished,
            self._troubles,
        )

    def run(self, told: threading.Event) -> None:
        # Time enough for whatever is not being written to settle.
        until = self._clock.monotonic() + 2 * self._manner.settle + self._manner.interval
        while not told.is_set():
            began = self._clock.monotonic()
            self._round()
            now = self._clock.monotonic()
            if self._manner.once and (not self.unfinished or now >= until):
                return
            told.wait(max(self._manner.interval, (now - began) * (1 / _LISTING_SHARE - 1)))

    def _round(self) -> None:
        try:
            listing = list_files(
                self._folder,
                patterns=self._manner.patterns,
                recursive=self._manner.recursive,
            )
        except OSError as error:
            if self._manner.once:
                raise UnavailableError(
                    f"{self._folder}: {error.strerror}", hint="is it mounted, and readable?"
                ) from None
            self._complain([f"{self._folder}: {error.strerror}"])
            return
        self._complain(listing.troubles)
        try:
            self._announce(listing)
            self._tidy(listing)
        except (UnavailableError, FencedError) as error:
            if self._manner.once:
                raise
            self._complain([str(error)])

    def _tidy(self, listing: Listing) -> None:
        now_ms = self._clock.wall_ms()
        if now_ms >= self._tidy_at_ms:
            self._ledger.tidy(listing.files)
            self._tidy_at_ms = now_ms + _TIDY_MS

    def _announce(self, listing: Listing) -> None:
        settled = self._settling.settled(
            listing.files,
            self._ledger.announced,
            wall_ns=self._clock.wall_ms() * 1_000_000,
            monotonic_ns=int(self._clock.monotonic() * 1e9),
        )
        complete = [name for name in settled if not being_written(self._folder / name)]
        if not complete:
            return
        self._ledger.read_on()  # somebody else may have been quicker
        files = [(name, listing.files[name].version) for name in complete]
        new = [file for file in files if self._ledger.announced.get(file[0]) != file[1]]
        self._ledger.announce(new)
        self.announced += len(new)
        for name in complete:
            self._settling.announced(name)

    def _complain(self, troubles: list[str]) -> None:
        """Once each, not every second."""
        for trouble in map(_shown_path, troubles):
            if trouble not in self._troubles:
                self._troubles.append(trouble)
                print_error(trouble)


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    told = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: told.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _shown(watcher: Watcher) -> Iterator[None]:
    """A line on a terminal that tells how far it is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return

    class Line:
        def __str__(self) -> str:
            return ""

        def __rich__(self) -> str:
            return f"{watcher.announced:,} announced, {watcher.unfinished:,} not complete yet"

    with console.status(Line()):  # drawn again and again
        yield


def _print_report(report: WatchReport) -> None:
    unfinished = f", {report.unfinished:,} not complete" if report.unfinished else ""
    result_console().print(
        f"{report.announced:,} announced, {report.known:,} known before{unfinished}",
        markup=False,
    )
    sys.stdout.flush()
