"""Epochs of a folder: who may write, and the names of what each writer leaves.

Contract     `claim` creates the next E.epoch, then unlinks the older ones. A writer looks at its
             own open file after each fdatasync and before it acknowledges: no links left means
             fenced. The newcomer reads the old journal only after the unlink. So each record is
             either seen by the newcomer or never acknowledged, also when the old writer was
             stopped and wakes up.

    journal/E.epoch       exists while E is the newest epoch
    journal/E.head        which segments epoch E relies on
    journal/E-S.segment   slot S of epoch E
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import FencedError
from penstock.store.disk import sync_folder

EPOCH = re.compile(r"(\d+)\.epoch")
HEAD = re.compile(r"(\d+)\.head")
SEGMENT = re.compile(r"(\d+)-(\d+)\.segment")


def numbers(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, ...]]:
    """The numbers in the names of the files that match, in order."""
    matches = (pattern.fullmatch(name) for name in os.listdir(folder))
    return sorted(tuple(int(group) for group in match.groups()) for match in matches if match)


def head_path(folder: Path, epoch: int) -> Path:
    return folder / f"{epoch}.head"


def segment_path(folder: Path, epoch: int, slot: int) -> Path:
    return folder / f"{epoch}-{slot}.segment"


class Epoch:
    """This process' claim on the folder, and whether it still holds."""

    def __init__(self, folder: Path, number: int, descriptor: int) -> None:
        self.number = number
        self._folder = folder
        self._descriptor = descriptor

    def check(self) -> None:
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FencedError(
                f"{self._folder.parent}: another process took over epoch {self.number}"
            )

    def release(self) -> None:
        os.close(self._descriptor)


def claim(folder: Path, *, sync: bool, after: int | None = None, owner: bytes = b"") -> Epoch:
    """Take the next epoch and fence all earlier ones.

    With `after`, only if that is the newest one, or if `owner` claimed the newer ones itself: an
    opening may fail after its claim, and must not fence the next attempt.
    """
    number = max((n for (n,) in numbers(folder, EPOCH) + numbers(folder, HEAD)), default=0)
    while True:
        if after is not None and not _is_ours(folder, number, after, owner):
            raise FencedError(f"{folder.parent}: another process took over epoch {after}")
        number += 1
        path = folder / f"{number}.epoch"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            break
        except FileExistsError:
            continue  # another newcomer was faster: fence it too
    try:
        os.write(descriptor, owner)
        if sync:
            os.fsync(descriptor)
            sync_folder(folder)
    except OSError:  # a full disk: nobody was fenced yet, so take the claim back
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    for (older,) in numbers(folder, EPOCH):
        if older < number:
            (folder / f"{older}.epoch").unlink(missing_ok=True)
    if sync:
        sync_folder(folder)
    return Epoch(folder, number, descriptor)


def _is_ours(folder: Path, number: int, after: int, owner: bytes) -> bool:
    try:
        found = (folder / f"{number}.epoch").read_bytes()
    except FileNotFoundError:
        return False
    return number == after or (number > after and bool(owner) and found == owner)
