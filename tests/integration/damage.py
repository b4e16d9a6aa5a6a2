"""Damage to one file of a folder, or one object of a bucket, and what a reader may say afterwards.

Contract     `cases` lists the damages of a file: cut in half, empty, missing, and one bit flipped:
             at the start, in the middle, at the end and at random places. `sweep` applies one at a
             time to a copy and lets a child read it. Allowed outcomes: `same` (everything is there,
             also after a second opening) and `corrupt` (CorruptError). The rest are findings.
"""

from __future__ import annotations

import os
import random
import select
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from integration.children import Child
from penstock.store import disk
from penstock.store.folder import Durability

STREAMS = ("alpha", "beta", "gamma")
DEADLINE_SECONDS = 10.0
#: Opening twice and reading takes well under a second; more than this is a hang.
HANG_SECONDS = 60.0

Outcome = Literal["same", "corrupt", "prefix", "loss", "other error", "hang", "crash"]
Found = dict[str, list[tuple[int, str, str]]]


def durability_of(mode: str) -> Durability:
    """`os`, or `unsynced`: power, on a file system that has no synchronous folders.

    For the whole process: call it in a child.
    """
    if mode == "unsynced":
        disk.make_synchronous = lambda path: False
    return "power" if mode == "unsynced" else "os"


class Reading(msgspec.Struct):
    found: Found | None = None
    again: bool = False  # a second opening gave the same
    error: str = ""
    text: str = ""


class Damage(msgspec.Struct, frozen=True):
    name: str  # path in the folder, or key below the prefix
    kind: str  # half, empty, missing, flip
    at: int = 0  # of the flipped bit's byte

    def apply(self, data: bytes) -> bytes | None:
        match self.kind:
            case "half":
                return data[: len(data) // 2]
            case "empty":
                return b""
            case "missing":
                return None
            case _:
                return data[: self.at] + bytes([data[self.at] ^ 0x10]) + data[self.at + 1 :]

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}{f' at {self.at}' if self.kind == 'flip' else ''}"


def cases(name: str, data: bytes, rng: random.Random) -> list[Damage]:
    found = [Damage(name, "missing")]
    if data:
        found += [Damage(name, "half"), Damage(name, "empty")]
        # A journal segment is mostly zeros that nothing was written to yet.
        used = len(data.rstrip(b"\0")) or len(data)
        places = {0, used // 2, used - 1, len(data) - 1, *(rng.randrange(used) for _ in range(3))}
        found += [Damage(name, "flip", at) for at in sorted(places)]
    return found


def files_of(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.parent != folder / "broker"
    )


def copy_with(source: Path, target: Path, damage: Damage) -> None:
    """A copy with one file damaged. The others are links: no store changes a file in place."""
    shutil.copytree(
        source, target, copy_function=os.link, ignore=shutil.ignore_patterns("broker", ".probe")
    )
    path = target / damage.name
    data = damage.apply(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


class Reader:
    """A child that reads, each location in another process; replaced when one hangs or dies."""

    def __init__(self, mode: str = "os") -> None:
        self._mode = mode
        self._child = Child("damage_reader", mode)

    def ask(self, location: str) -> None:
        self._child.tell(location)

    def answer(self) -> Reading | Literal["hang", "crash"]:
        lines: list[str] = []
        while not lines:
            ready, _, _ = select.select([self._child.output], [], [], HANG_SECONDS)
            lines = self._child.drain()
            if not lines and (not ready or self._child.ended()):
                self.replace()
                return "crash" if ready else "hang"
        return msgspec.json.decode(lines[0], type=Reading)

    def replace(self) -> None:
        self.end()
        self.__init__(self._mode)  # type: ignore[misc]

    def end(self) -> None:
        with self._child:
            self._child.kill()


def classify(reading: Reading | Literal["hang", "crash"], expected: Found) -> Outcome:
    if not isinstance(reading, Reading):
        return reading
    if reading.error:
        return "corrupt" if reading.error == "CorruptError" and reading.text else "other error"
    assert reading.found is not None
    if reading.found == expected and reading.again:
        return "same"
    cut = {name: rows[: len(reading.found[name])] for name, rows in expected.items()}
    return "prefix" if reading.found == cut else "loss"


class Result(msgspec.Struct, frozen=True):
    damage: Damage
    outcome: Outcome
    text: str


class Copies(Protocol):
    """Where the damaged copies of one store go."""

    def make(self, number: int, damage: Damage) -> str:
        """-> its location"""
        ...

    def remove(self, number: int) -> None: ...


class FolderCopies:
    def __init__(self, source: Path, scratch: Path) -> None:
        self._source = source
        self._scratch = scratch

    def make(self, number: int, damage: Damage) -> str:
        target = self._scratch / f"case{number}"
        copy_with(self._source, target, damage)
        return str(target)

    def remove(self, number: int) -> None:
        shutil.rmtree(self._scratch / f"case{number}", ignore_errors=True)


class BucketCopies:
    def __init__(self, client: Any, location: str, objects: dict[str, bytes]) -> None:
        self._client = client
        self._bucket, _, self._prefix = location.removeprefix("s3://").partition("/")
        self._objects = objects

    def make(self, number: int, damage: Damage) -> str:
        for name, data in self._objects.items():
            body = damage.apply(data) if name == damage.name else data
            if body is not None:
                self._client.put_object(
                    Bucket=self._bucket, Key=f"{self._prefix}/case{number}/{name}", Body=body
                )
        return f"s3://{self._bucket}/{self._prefix}/case{number}"

    def remove(self, number: int) -> None:
        pass  # the server and all it holds go with the test run


def sweep(
    copies: Copies, damages: list[Damage], expected: Found, mode: str = "os"
) -> Iterator[Result]:
    """Two readers side by side; one copy per damage."""
    readers = (Reader(mode), Reader(mode))
    try:
        for at in range(0, len(damages), 2):
            pair = list(zip(readers, damages[at : at + 2], strict=False))
            for number, (reader, damage) in enumerate(pair, at):
                reader.ask(copies.make(number, damage))
            for number, (reader, damage) in enumerate(pair, at):
                reading = reader.answer()
                copies.remove(number)
                text = f"{reading.error} {reading.text}" if isinstance(reading, Reading) else ""
                yield Result(damage, classify(reading, expected), text)
    finally:
        for reader in readers:
            reader.end()


def table(results: list[Result]) -> str:
    """How often each outcome came of each kind of damage to each kind of file."""
    counts: dict[tuple[str, str, str], int] = {}
    for result in results:
        group = f"{Path(result.damage.name).parent}/*{Path(result.damage.name).suffix}"
        key = (group, result.damage.kind, result.outcome)
        counts[key] = counts.get(key, 0) + 1
    lines = [
        f"{group:32} {kind:8} {outcome:12} {count}"
        for (group, kind, outcome), count in sorted(counts.items())
    ]
    return "\n".join(lines)
