"""The demo's second act: processes share a folder, and the one that serves it is killed.

Contract     Real processes, each writing and reading in the same group. Whichever of them serves
             the folder is killed (SIGKILL) again and again; another takes over, and a new one takes
             its place. What they said is compared with what is there afterwards: nothing that was
             acknowledged may be missing or be there twice, and the group must have had everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

import penstock
from penstock.cli.demo_crowd import LOCATION, Crowd
from penstock.cli.demo_entries import Acknowledged, Verdict, compare, decode_acknowledged
from penstock.cli.demo_member import GROUP, STREAM
from penstock.clock import perf_counter

#: Between two kills so many batches are acknowledged.
BATCHES = 60


class ShareResult(msgspec.Struct, frozen=True):
    members: int
    kills: int
    verdict: Verdict
    unread: int  # entries that the group never gave to anybody
    pending: int  # given to somebody, and not acknowledged in the end
    again: int  # given a second time, because their reader was killed; allowed
    takeover_ms: list[float]  # from a kill to the next acknowledged write
    seconds: float

    @property
    def kept(self) -> bool:
        return self.verdict.kept and not self.unread and not self.pending


class _Heard:
    def __init__(self) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.did: Counter[int] = Counter()

    def __call__(self, word: bytes, rest: bytes) -> None:
        if word == b"ack":
            self.acknowledged.append(decode_acknowledged(rest))
        else:
            self.did.update(map(int, rest.split()))


def _follow(crowd: Crowd, heard: _Heard, batches: int) -> None:
    wanted = len(heard.acknowledged) + batches
    crowd.follow(lambda: len(heard.acknowledged) >= wanted)


def share(work: Path, *, members: int, kills: int, report: Callable[[str], None]) -> ShareResult:
    location = str(work / LOCATION)
    begun_at = perf_counter()
    heard = _Heard()
    crowd = Crowd("penstock.cli.demo_member", work, location, heard)
    takeover_ms: list[float] = []
    try:
        for _ in range(members):
            crowd.begin()
        report(f"{members} processes share a folder")
        _follow(crowd, heard, BATCHES)
        for n in range(kills):
            report(f"kill {n + 1}: the process that serves")
            begun = perf_counter()
            crowd.kill_server()
            _follow(crowd, heard, 1)
            takeover_ms.append((perf_counter() - begun) * 1000)
            crowd.begin()
            _follow(crowd, heard, BATCHES)
        report("everybody finishes")
        crowd.end()
    finally:
        crowd.stop()
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
        verdict=compare(heard.acknowledged, found),
        unread=sum(1 for offset, _ in found if not heard.did[offset]),
        pending=info.pending,
        again=sum(heard.did.values()) - len(heard.did),
        takeover_ms=takeover_ms,
        seconds=perf_counter() - begun_at,
    )
