"""Epochs of a folder: who may write, and the names of what each writer leaves.

Contract     `claim` creates the next E.epoch, then unlinks the older ones. A writer looks at its
             own file's name after each fdatasync and before it acknowledges: no such name, or
             another file under it, means fenced. (Not the file's count of links: a copy of the
             folder made of hard links would keep that up.) The newcomer reads the old journal only
             after the unlink. So each record is either seen by the newcomer or never acknowledged,
             also when the old writer was stopped and wakes up.
Given up     A claim may hang in the disk until nobody waits for it any more. It looks whether it
             was given up after it made its file and again right before it fences: then it takes
             its file back and fences nobody.

    journal/E.epoch       exists while E is the newest epoch
    journal/E.head        which segments epoch E relies on
    journal/E-S.segment   slot S of epoch E
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from penstock.errors import FencedError, PenstockError, UnavailableError
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
        self._path = str(_epoch_path(folder, number))
        # Held open, so that no other file can get its inode number.
        self._descriptor = descriptor
        self._identity = _identity(os.fstat(descriptor))

    def check(self) -> None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UnavailableError(f"{self._path}: {error.strerror}") from error
        else:
            if _identity(found) == self._identity:
                return
        raise FencedError(f"{self._folder.parent}: another process took over epoch {self.number}")

    def release(self) -> None:
        os.close(self._descriptor)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _epoch_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.epoch"


def claim(
    folder: Path,
    *,
    sync: bool,
    after: int | None = None,
    owner: bytes = b"",
    given_up: Callable[[], bool] = lambda: False,
) -> Epoch:
    """Take the next epoch and fence all earlier ones.

    With `after`, only if that is the newest one, or if `owner` claimed the newer ones itself: an
    opening may fail after its claim, and must not fence the next attempt.
    """

    def require_wanted() -> None:
        if given_up():
            raise UnavailableError(f"{folder.parent}: the opening was given up")

    number = max((n for (n,) in numbers(folder, EPOCH) + numbers(folder, HEAD)), default=0)
    while True:
        if after is not None and not _is_ours(folder, number, after, owner):
            raise FencedError(f"{folder.parent}: another process took over epoch {after}")
        number += 1
        path = _epoch_path(folder, number)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue  # another newcomer was faster: fence it too
        try:
            # The number may be free because somebody above it was faster, and fenced whoever had
            # it. Who comes above us after this look lists after that, and fences us.
            newest = max((n for (n,) in numbers(folder, EPOCH)), default=number)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        if newest <= number:
            break
        os.close(descriptor)
        path.unlink(missing_ok=True)
        number = newest
    try:
        require_wanted()
        os.write(descriptor, owner)
        if sync:
            os.fsync(descriptor)
            sync_folder(folder)
        require_wanted()
    except (OSError, PenstockError):  # nobody was fenced yet, so take the claim back
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    try:
        for (older,) in numbers(folder, EPOCH):
            if older < number:
                _epoch_path(folder, older).unlink(missing_ok=True)
        if sync:
            sync_folder(folder)
    except OSError:  # perhaps fenced: the file stays, and says who may go on
        os.close(descriptor)
        raise
    return Epoch(folder, number, descriptor)


def _is_ours(folder: Path, number: int, after: int, owner: bytes) -> bool:
    try:
        found = _epoch_path(folder, number).read_bytes()
    except FileNotFoundError:
        return False
    return number == after or (number > after and bool(owner) and found == owner)
