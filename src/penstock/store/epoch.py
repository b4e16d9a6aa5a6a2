"""Epochs of a folder: who may write, and the names of what each writer leaves.

Contract     `claim` creates the next E.epoch, then unlinks the older ones. A writer looks at its
             own file's name after each fdatasync and before it acknowledges: no such name, or
             another file under it, means fenced. (Not the file's count of links: a copy of the
             folder made of hard links would keep that up.) The newcomer reads the old journal only
             after the unlink. So each record is either seen by the newcomer or never acknowledged,
             also when the old writer was stopped and wakes up.
Given up     A claim may hang in the disk until nobody waits for it any more. It looks whether it
             was given up before it makes its file and again right before it fences: then it takes
             its file back and fences nobody. So a newer file of another owner fences us only once
             ours is gone.
Killed       A process that is killed in the middle of a claim leaves a file without a number.
             Whoever claims next removes it; a claim under way whose file that was makes another.

    journal/*.claim       a claim that has no number yet
    journal/E.epoch       exists while E is the newest epoch
    journal/E.head        which segments epoch E relies on
    journal/E-S.segment   slot S of epoch E
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.errors import FencedError, PenstockError, UnavailableError
from penstock.store.disk import sync_folder

EPOCH = re.compile(r"(\d+)\.epoch")
HEAD = re.compile(r"(\d+)\.head")
SEGMENT = re.compile(r"(\d+)-(\d+)\.segment")
_CLAIM = ".claim"


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

    descriptor, made = _make_claim(folder, owner, sync=sync)
    path: Path | None = None
    try:
        while True:
            require_wanted()
            number = _newest(folder, after, owner) + 1
            path = _epoch_path(folder, number)
            try:
                os.link(made, path)
            except FileExistsError:
                path = None
                continue  # another newcomer was faster: fence it too
            except FileNotFoundError:
                path = None
                removed = descriptor  # another newcomer took it for a leftover
                descriptor, made = _make_claim(folder, owner, sync=sync)
                os.close(removed)
                continue
            # The number may be free because somebody above it was faster, and fenced whoever had
            # it. Who comes above us after this look lists after that, and fences us.
            if max((n for (n,) in numbers(folder, EPOCH)), default=number) <= number:
                break
            path.unlink(missing_ok=True)
            path = None  # somebody else may have that name from now on
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        if sync:
            sync_folder(folder)
        # Who comes below us after this look sees ours, and takes its own back.
        older = [n for (n,) in numbers(folder, EPOCH) if n < number]
        require_wanted()  # the last look: nothing stands between it and the fence
    except (OSError, PenstockError):  # nobody was fenced yet, so take the claim back
        os.close(descriptor)
        for name in (made, path):
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)
        raise
    try:
        for n in older:
            _epoch_path(folder, n).unlink(missing_ok=True)
        for leftover in folder.glob(f"*{_CLAIM}"):
            leftover.unlink(missing_ok=True)
        if sync:
            sync_folder(folder)
    except OSError:  # perhaps fenced: the file stays, and says who may go on
        os.close(descriptor)
        raise
    return Epoch(folder, number, descriptor)


def _make_claim(folder: Path, owner: bytes, *, sync: bool) -> tuple[int, str]:
    """The owner's name is in the file before the file has its number: whoever finds it can tell."""
    descriptor, made = tempfile.mkstemp(dir=folder, suffix=_CLAIM)
    try:
        os.write(descriptor, owner)
        if sync:
            os.fsync(descriptor)
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise
    return descriptor, made


def _newest(folder: Path, after: int | None, owner: bytes) -> int:
    """The newest epoch. With `after`: FencedError where another owner took it from us."""
    while True:
        epochs = [n for (n,) in numbers(folder, EPOCH)]
        newest = max([*epochs, *(n for (n,) in numbers(folder, HEAD))], default=0)
        if after is None:
            return newest
        owners = {n: _owner(folder, n) for n in epochs if n > after}
        if None in owners.values():
            continue  # a claim was taken back, or overtaken, while we looked
        ours = after in epochs or (bool(owner) and owner in owners.values())
        if not ours:
            raise FencedError(f"{folder.parent}: another process took over epoch {after}")
        if any(found != owner for found in owners.values()):
            # It has not fenced us yet, and may still give up.
            raise UnavailableError(f"{folder.parent}: another process is taking over")
        return newest


def _owner(folder: Path, number: int) -> bytes | None:
    try:
        return _epoch_path(folder, number).read_bytes()
    except FileNotFoundError:
        return None
