"""What the folder store asks of the file system: durable files, durable names, synchronous folders.

Contract     Everything here blocks and raises OSError; callers run it off the event loop and
             translate. With `sync=False` (durability="os") nothing waits for the disk.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
from pathlib import Path

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_SYNC, _DIRSYNC = 0x8, 0x10000  # FS_SYNC_FL, FS_DIRSYNC_FL
_ZEROS = bytes(1 << 20)
#: Folders that may not be read, and file systems whose folders are not synced.
_CANNOT = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS)
#: Behind the name of a file that is not whole yet.
TEMPORARY = ".tmp"


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, *, sync: bool) -> None:
    """With all that are missing above it; their names are durable.

    From above, each made when the name of the one before is durable. So a kill leaves at most one
    whose name is not, the deepest, and who goes on from there begins with that.
    """
    if not sync:
        path.mkdir(parents=True, exist_ok=True)
        return
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if not missing:
        return
    try:
        sync_folder(missing[-1].parent.parent)
    except OSError as error:
        if error.errno not in _CANNOT:  # else it was not us who made what is there
            raise
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_name(folder)


def sync_name(path: Path) -> None:
    """Make the name of a folder durable, also where what is above may not be read."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        sync_file_system(path)


class InPlaceError(OSError):
    """The new file is in its place, but nobody knows whether it will be after a power cut."""


def replace_file(path: Path, data: bytes, *, sync: bool) -> None:
    """Put a whole file in the place of another: after a crash it is the old one or the new one.

    InPlaceError: readers have the new one, a crash may bring the old one back. Any other OSError:
    nothing changed.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        _write_file(temporary, data, sync=sync)
        os.rename(temporary, path)
    except OSError:
        # On a full disk it would keep what space was left.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if sync:
        try:
            sync_folder(path.parent)
        except OSError as error:
            raise InPlaceError(error.errno, error.strerror) from error


def create_file(path: Path, data: bytes, *, temporary: Path) -> bool:
    """Make a whole file where there is none; False when there is one. Its name is not synced."""
    _write_file(temporary, data, sync=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _write_file(path: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fill_zeros(descriptor: int, size: int, *, sync: bool) -> None:
    """Write real zeros: an fdatasync of written blocks needs no change of the file's metadata."""
    os.ftruncate(descriptor, 0)
    os.posix_fallocate(descriptor, 0, size)
    for at in range(0, size, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size - at], at)
    if sync:
        os.fsync(descriptor)


def _flags(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        buffer = array.array("l", [0])
        fcntl.ioctl(descriptor, _GET_FLAGS, buffer, True)
        return buffer[0]
    finally:
        os.close(descriptor)


def is_synchronous(path: Path) -> bool:
    try:
        return _flags(path) & (_SYNC | _DIRSYNC) == _SYNC | _DIRSYNC
    except OSError:
        return False


def make_synchronous(path: Path) -> bool:
    """Make every later write below a folder synchronous; False where the file system does not.

    SlateDB never syncs what it writes to a folder, so the folder must. The flags are inherited by
    new files and folders on ext4; elsewhere they are refused (tmpfs, XFS) or not passed on (btrfs),
    which a probe in a new subfolder shows.
    """
    probe = path / ".probe"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            buffer = array.array("l", [0])
            fcntl.ioctl(descriptor, _GET_FLAGS, buffer, True)
            buffer[0] |= _SYNC | _DIRSYNC
            fcntl.ioctl(descriptor, _SET_FLAGS, buffer)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            probe.rmdir()
        probe.mkdir()
        inherited = _flags(probe)
        probe.rmdir()
    except OSError:
        return False
    return inherited & (_SYNC | _DIRSYNC) == _SYNC | _DIRSYNC


def sync_file_system(path: Path) -> None:
    """Make everything on the file system of `path` durable; the fallback for make_synchronous."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
