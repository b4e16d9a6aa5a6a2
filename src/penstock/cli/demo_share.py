"""The demo's second act: processes share a folder, and the one that serves it is killed.

Contract     Real processes, each writing and reading in the same group. Whichever of them serves
             the folder is killed (SIGKILL) again and again; another takes over, and a new one takes
             its place. What they said is compared with what is there afterwards: nothing that was
             acknowledged may be missing or be there twice, and the group must have had everything.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

import penstock
from penstock.broker.lock import highest_term, lock_path
from penstock.cli.demo_entries import Acknowledged, Verdict, compare, decode_acknowledged
from penstock.cli.demo_member import GROUP, STREAM
from penstock.clock import perf_counter
from penstock.errors import UnavailableError

#: Between two kills so many batches are acknowledged.
BATCHES = 60
SILENCE_S = 30.0


class ShareResult(msgspec.Struct, frozen=True):
    members: int
    kills: int
    verdict: Verdict
    unread: int  # entries that the group never gave to anybody
    pending: int  # given to somebody, and not acknowledged in the end
    again: int  # given a second time, because their reader was killed; allowed
    takeover_ms: list[float]  # from a kill to the next acknowledged write

    @property
    def kept(self) -> bool:
        return self.verdict.kept and not self.unread and not self.pending


class _Member:
    def __init__(self, location: str, number: int, errors: Path) -> None:
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.demo_member", location, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self.descriptor = self.process.stdout.fileno()
        self.rest = b""


class Share:
    def __init__(self, work: Path, location: str) -> None:
        self._work = work
        self._location = location
        self._members: dict[int, _Member] = {}  # by process id
        self._begun = 0
        self.acknowledged: list[Acknowledged] = []
        self.did: Counter[int] = Counter()

    def begin(self) -> None:
        """Another member, with a number of its own."""
        errors = self._work / f"member-{self._begun}.err"
        member = _Member(self._location, self._begun, errors)
        self._begun += 1
        self._members[member.process.pid] = member

    def follow(self, batches: int) -> None:
        """Listen until so many more batches are acknowledged."""
        wanted = len(self.acknowledged) + batches
        until = perf_counter() + SILENCE_S
        while len(self.acknowledged) < wanted:
            pipes = {m.descriptor: m for m in self._members.values()}
            ready = select.select(list(pipes), [], [], 1.0)[0]
            if ready:
                until = perf_counter() + SILENCE_S
            elif perf_counter() > until:
                raise UnavailableError(f"the members said nothing for {SILENCE_S:.0f} s")
            for pipe in ready:
                if not self._listen(pipes[pipe]):
                    raise UnavailableError(f"a member ended by itself: {self._last_words()}")

    def _listen(self, member: _Member) -> bool:
        """Take in what it said. -> whether it may say more"""
        chunk = os.read(member.descriptor, 1 << 16)
        *lines, member.rest = (member.rest + chunk).split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"ack":
                self.acknowledged.append(decode_acknowledged(rest))
            else:
                self.did.update(map(int, rest.split()))
        return bool(chunk)

    def kill_server(self) -> None:
        """Kill whoever serves; what it had said before counts."""
        member = self._members.pop(self._server())
        member.process.send_signal(signal.SIGKILL)
        while self._listen(member):
            pass
        member.process.communicate()

    def _server(self) -> int:
        folder = Path(self._location)
        until = perf_counter() + SILENCE_S
        while perf_counter() < until:
            text = lock_path(folder, highest_term(folder)).read_text(errors="replace")
            found = re.match(r"process (\d+) serves", text)
            if found and int(found[1]) in self._members:
                return int(found[1])
        raise UnavailableError("nobody serves the folder")

    def end(self) -> None:
        """Everybody stops writing, and the group finishes what is there."""
        for member in self._members.values():
            assert member.process.stdin is not None
            member.process.stdin.write(b"end\n")
            member.process.stdin.flush()
        for member in self._members.values():
            while self._listen(member):
                pass
            member.process.communicate()

    def stop(self) -> None:
        for member in self._members.values():
            member.process.kill()
            member.process.communicate()

    def _last_words(self) -> str:
        texts = [path.read_text(errors="replace") for path in self._work.glob("member-*.err")]
        lines = [line for text in texts for line in text.strip().splitlines()]
        return lines[-1] if lines else "no message"


def share(work: Path, *, members: int, kills: int, report: Callable[[str], None]) -> ShareResult:
    location = str(work / "shared")
    processes = Share(work, location)
    takeover_ms: list[float] = []
    try:
        for _ in range(members):
            processes.begin()
        report(f"{members} processes share a folder")
        processes.follow(BATCHES)
        for n in range(kills):
            report(f"kill {n + 1}: the process that serves")
            begun = perf_counter()
            processes.kill_server()
            processes.follow(1)
            takeover_ms.append((perf_counter() - begun) * 1000)
            processes.begin()
            processes.follow(BATCHES)
        report("everybody finishes")
        processes.end()
    finally:
        processes.stop()
    report("reading everything back")
    with penstock.open(location) as db:
        stream = db.stream(STREAM)
        found = [
            (offset, None if message is None else message.data)
            for offset, message in enumerate(stream.read(0, stream.info().length))
        ]
        info = stream.group(GROUP).info()
    return ShareResult(
        members=members,
        kills=kills,
        verdict=compare(processes.acknowledged, found),
        unread=sum(1 for offset, _ in found if not processes.did[offset]),
        pending=info.pending,
        again=sum(processes.did.values()) - len(processes.did),
        takeover_ms=takeover_ms,
    )
