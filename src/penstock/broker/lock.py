"""The folder's lock: one process at a time is the broker of a folder.

    broker/T.lock    held (flock) by the broker of term T; says who it is, and whether it serves
    broker/T.sock    where it listens
    broker/T.leave   somebody wants the folder for himself: a broker that nobody uses, and that
                     would end by itself, ends now

Contract     The kernel frees a lock when its process ends, however it ends. Only the highest term
             counts. A free highest lock is taken as it is; a holder that is stopped is overtaken by
             making the next one (O_EXCL), and whoever serves removes the lower ones. So the highest
             file always stays, and a term never begins again below it.
Not data     This keeps two brokers from fighting over a folder. What keeps data safe when it fails
             (a network file system, a copied descriptor) is the store's epoch.
Signs        While it opens or closes, a holder that serves moves its file's time forward; while it
             listens, it answers pings.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from penstock.errors import UnavailableError
from penstock.store import disk

PLACE = "broker"
_LOCK = re.compile(r"(\d+)\.lock")
_FILE = re.compile(r"(\d+)\.(lock|sock|leave)")
_WHILE_USED = " while it is used"
_SERVES = " serves"


class HeldError(UnavailableError):
    """Another process has the folder; `term` is the one that it holds."""

    hint = "close it there first; one process at a time can open a folder by itself"

    def __init__(self, message: str, *, term: int, serves: bool, while_used: bool = False) -> None:
        super().__init__(message)
        self.term = term
        self.serves = serves  # it listens, or will when it has opened
        self.while_used = while_used  # it ends by itself when nobody is connected


def highest_term(folder: Path) -> int:
    """The newest term of a folder; 0 where there never was one."""
    try:
        names = os.listdir(folder / PLACE)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UnavailableError(f"{folder}: {error.strerror}", hint="check the folder") from error
    return max((int(match[1]) for match in map(_LOCK.fullmatch, names) if match), default=0)


def lock_path(folder: Path, term: int) -> Path:
    return folder / PLACE / f"{term}.lock"


def socket_path(folder: Path, term: int) -> Path:
    return folder / PLACE / f"{term}.sock"


def leave_path(folder: Path, term: int) -> Path:
    return folder / PLACE / f"{term}.leave"


class FolderLock:
    def __init__(self, folder: Path, *, over: int | None = None, serves: bool = False) -> None:
        """Take the highest term if it is free; with `over`, make the term after that one."""
        self.folder = folder
        try:
            # The location itself is made here, before its store is: it must survive a power cut.
            disk.make_folder(folder / PLACE, sync=True)
            self.term, self._descriptor = _take(folder, over)
            try:
                self.note(serves=serves)
            except OSError:
                os.close(self._descriptor)  # which unlocks: on a full disk nobody has it
                raise
        except OSError as error:
            raise UnavailableError(
                f"{folder}: {error.strerror}", hint="check the folder"
            ) from error
        _held.add(self)

    def note(self, *, serves: bool, while_used: bool = False) -> None:
        """Say in the file who has it."""
        text = f"process {os.getpid()}{_WHILE_USED if while_used else ''}"
        text += f"{_SERVES if serves else ''}\n"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def beat(self) -> None:
        """A sign of life, for those who wait while nobody answers pings."""
        with contextlib.suppress(OSError):
            os.utime(self._descriptor)

    def overtaken(self) -> bool:
        """Somebody made a later term, or the folder is gone."""
        return os.fstat(self._descriptor).st_nlink == 0 or highest_term(self.folder) != self.term

    def asked_to_leave(self) -> bool:
        return leave_path(self.folder, self.term).exists()

    def sweep(self) -> None:
        """Remove what lower terms left, and all but the lock of a dead holder of this one."""
        for name in os.listdir(self.folder / PLACE):
            match = _FILE.fullmatch(name)
            if match and int(match[1]) <= self.term and name != f"{self.term}.lock":
                (self.folder / PLACE / name).unlink(missing_ok=True)

    def release(self) -> None:
        """Give it back; a second release does nothing."""
        if self not in _held:
            return
        # A child that was forked meanwhile shares the descriptor: closing alone would not unlock.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._forget()

    def _forget(self) -> None:
        _held.discard(self)
        os.close(self._descriptor)


def _take(folder: Path, over: int | None) -> tuple[int, int]:
    while True:
        highest = highest_term(folder)
        term = max(highest, 1) if over is None else over + 1
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            if over is not None and highest != over:
                raise FileExistsError
            exclusive = 0 if over is None else os.O_EXCL
            descriptor = os.open(lock_path(folder, term), flags | exclusive, 0o600)
        except FileExistsError:
            raise HeldError(
                f"{folder}: another process is faster", term=term, serves=True
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
            os.close(descriptor)
            name = owner.removesuffix(_SERVES)
            raise HeldError(
                f"{folder} is open in another process{f' ({name})' if name else ''}",
                term=term,
                # An empty file is one whose holder is about to write into it.
                serves=not owner or owner.endswith(_SERVES),
                while_used=name.endswith(_WHILE_USED),
            ) from None
        # Between the look and the lock a later term may have been made, and this file removed.
        if os.fstat(descriptor).st_nlink and highest_term(folder) == term:
            return term, descriptor
        if highest_term(folder) > term:
            lock_path(folder, term).unlink(missing_ok=True)
        os.close(descriptor)


_held: set[FolderLock] = set()


def _forget_all() -> None:
    """In a forked child: the lock is the parent's, and must end with the parent."""
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_forget_all)
