"""Which files of a folder are complete: a listing, and what may be said of it.

Complete     A file is complete when nothing about it changed for the settling time and nobody has
             it open for writing. What a clock of another machine dates into the future has to be
             seen unchanged for that long. A file that was renamed into the folder settles too:
             there is no telling it from one that is copied.
Left out     Whatever is no regular file, symbolic links among it: the file that one points to may
             be listed as well, and would be loaded twice. Names that begin with a dot or an
             underscore, and those that uploads use while they last. Folders that are tables (they
             hold `_delta_log`), what ingest writes into one that has none yet, and locations.
Not here     Announcing (watch.py), what was announced before (watch_ledger.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple
from urllib.parse import quote

from penstock.store.epoch import EPOCH, HEAD

#: Endings of files that are not finished, of browsers, editors and tools that copy.
UNFINISHED = (
    *(".tmp", ".temp", ".part", ".partial", ".crdownload", ".download", ".filepart"),
    *(".inprogress", ".swp", "._copying_", "~"),
)
_TABLE = "_delta_log"
#: What a location consists of.
_PARTS = ("broker", "journal", "payloads", "store")
#: What ingest writes into a table, which has a log only afterwards (tablefolder.staging_folder).
_STAGING = re.compile(r"(.*/)?splits/[0-9a-f]{12}-[0-9]+")


class Version(NamedTuple):
    """Tells one content of a path from another one."""

    size: int
    mtime_ns: int


class Found(NamedTuple):
    version: Version
    changed_ns: int  # by the file system's clock: content, name or owner


class Listing(NamedTuple):
    files: dict[str, Found]  # by the path inside the folder
    troubles: list[str]  # what could not be looked into


def uri_of(folder: Path, name: str) -> str:
    """Percent-encoded, so that spaces, unicode and even broken names arrive as they are."""
    return "file://" + quote(os.fsencode(folder / name))


def of_location(folder: Path) -> bool:
    """It is a location, or lies in one of the folders that make one. Somebody's own folder beside
    those may well be watched."""
    return _is_location(folder) or any(
        each.name in _PARTS and _is_location(each.parent) for each in (folder, *folder.parents)
    )


def _is_location(folder: Path) -> bool:
    """By the files that say whose turn it is: names of folders could be anybody's."""
    try:
        names = os.listdir(folder / "journal")
    except OSError:
        return False
    return (folder / "store").is_dir() and any(
        EPOCH.fullmatch(name) or HEAD.fullmatch(name) for name in names
    )


def list_files(folder: Path, *, patterns: Sequence[str] = (), recursive: bool = True) -> Listing:
    """`folder` itself must be readable (OSError); anything below it that is not is a trouble."""
    listing = Listing({}, [])
    ahead = _list_into(listing, folder, "", patterns)
    while recursive and ahead:
        inside = ahead.pop()
        try:
            ahead += _list_into(listing, folder, inside, patterns)
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError as error:
            listing.troubles.append(f"{folder / inside}: {error.strerror}")
    return listing


def _list_into(listing: Listing, folder: Path, inside: str, patterns: Sequence[str]) -> list[str]:
    """The files of one folder; -> the folders in it, none if it is a table or a location"""
    files: dict[str, Found] = {}
    folders: list[str] = []
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            path = f"{inside}/{entry.name}" if inside else entry.name
            if entry.name == _TABLE:
                return []
            if entry.name.startswith((".", "_")):
                continue
            if entry.is_dir(follow_symlinks=False):
                if _STAGING.fullmatch(path) is None:
                    folders.append(path)
            elif _wanted(entry.name, patterns):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                if S_ISREG(status.st_mode):
                    files[path] = _found(status)
    if f"{inside}/journal".lstrip("/") in folders and _is_location(folder / inside):
        return []
    listing.files.update(files)
    return folders


def _wanted(name: str, patterns: Sequence[str]) -> bool:
    if name.lower().endswith(UNFINISHED):
        return False
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _found(status: os.stat_result) -> Found:
    version = Version(status.st_size, status.st_mtime_ns)
    return Found(version, max(status.st_mtime_ns, status.st_ctime_ns))


class Settling:
    """The files that are not complete yet, and since when they look as they do."""

    def __init__(self, settle_ns: int) -> None:
        self._settle_ns = settle_ns
        self._seen: dict[str, tuple[Found, int]] = {}

    @property
    def waiting(self) -> int:
        return len(self._seen)

    def settled(
        self,
        files: Mapping[str, Found],
        announced: Mapping[str, Version],
        *,
        wall_ns: int,
        monotonic_ns: int,
    ) -> list[str]:
        """The files of a listing that changed no more, of those that are not announced as such."""
        settled, seen = [], {}
        for name, found in files.items():
            if announced.get(name) == found.version:
                continue
            before, since_ns = self._seen.get(name, (found, monotonic_ns))
            if before != found:
                since_ns = monotonic_ns
            if (
                wall_ns - found.changed_ns >= self._settle_ns
                or monotonic_ns - since_ns >= self._settle_ns
            ):
                settled.append(name)
            seen[name] = found, since_ns  # it waits on until it is announced
        self._seen = seen
        return settled

    def announced(self, name: str) -> None:
        del self._seen[name]


def being_written(path: Path) -> bool:
    """Whether somebody has it open for writing, as far as that can be known.

    The kernel gives a read lease on a file only while nobody has it open for writing. It gives it
    to the owner of the file alone and not on every file system: then time has to tell.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # gone, or not ours to read: whoever loads it will say so
    try:
        # Who opens it for writing in this moment waits for the lease, and we get a signal: one
        # that does nothing, for the usual one would end the process.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(file)
    return False
