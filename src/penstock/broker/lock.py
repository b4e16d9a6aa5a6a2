"""The folder's lock: one process at a time opens a folder.

The kernel frees it when the process ends, however it ends. It keeps two brokers from fighting over
a folder; what keeps data safe when it fails (a network file system, a copied descriptor) is the
epoch.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.errors import UnavailableError


class FolderLock:
    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(
                folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise UnavailableError(
                f"{folder}: {error.strerror}", hint="check the folder"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise UnavailableError(
                f"{folder} is open in another process{f' ({owner})' if owner else ''}",
                hint="close it there first; one process at a time can open a folder",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()}\n".encode(), 0)

        _held.add(self)

    def release(self) -> None:
        # A child that was forked meanwhile shares the descriptor: closing alone would not unlock.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._forget()

    def _forget(self) -> None:
        _held.discard(self)
        os.close(self._descriptor)


_held: set[FolderLock] = set()


def _forget_all() -> None:
    """In a forked child: the lock is the parent's, and must end with the parent."""
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_forget_all)
