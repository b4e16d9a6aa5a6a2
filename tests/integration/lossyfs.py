"""File systems that a test owns: one that can lose power, and ones that can be full.

    with mounted(folder, kind="ext4", size_mib=256) as disk:
        disk.cut()         power goes: what was not sent to the block device is gone
        disk.remount()     what a reboot finds
        disk.fill()        no byte is left
        disk.drain()       the space is back

Contract     ext4 on a loop device over a sparse file, or tmpfs. Skips the test, with the reason,
             where the machine cannot mount (not root, no loop devices, no mkfs.ext4).
Model        The cut is the file system's own shutdown without a flush of its log. A device that
             lies about flushes is not modelled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_WITHOUT_LOG = struct.pack("I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH
_BALLAST = ".ballast"
_UNMOUNT_SECONDS = 30.0

Kind = Literal["ext4", "tmpfs"]


class CannotMountError(Exception):
    pass


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotMountError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


class OwnDisk:
    def __init__(self, path: Path, *, kind: Kind, size_mib: int) -> None:
        self.path = path
        self._kind = kind
        self._size_mib = size_mib
        self._image = path.with_name(path.name + ".img")

    def create(self) -> None:
        self.path.mkdir()
        if self._kind == "ext4":
            with self._image.open("wb") as image:
                image.truncate(self._size_mib << 20)
            # Nothing is kept back for root and nothing is initialised later, behind the test.
            now = "lazy_itable_init=0,lazy_journal_init=0"
            _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", now, self._image)
        self.mount()

    def mount(self) -> None:
        if self._kind == "ext4":
            _run("mount", "-o", "loop", self._image, self.path)
        else:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._size_mib}m", "tmpfs", self.path)

    def unmount(self) -> None:
        """A process that was just killed may keep it busy for a moment."""
        until = time.monotonic() + _UNMOUNT_SECONDS
        while True:
            try:
                return _run("umount", self.path)
            except CannotMountError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def destroy(self) -> None:
        try:
            if os.path.ismount(self.path):
                self.unmount()
        except CannotMountError:
            _run("umount", "--lazy", self.path)  # or it outlives the test that failed
            raise
        finally:
            self._image.unlink(missing_ok=True)

    # -- power

    def cut(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG)
        finally:
            os.close(descriptor)

    def remount(self) -> None:
        self.unmount()
        self.mount()

    # -- space

    def fill(self) -> None:
        """Take what is left, down to the last block. What was taken before stays taken."""
        with (self.path / _BALLAST).open("ab") as ballast:
            step = 1 << 20
            while step >= 4096:
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def drain(self) -> None:
        (self.path / _BALLAST).unlink()


@contextmanager
def mounted(path: Path, *, kind: Kind = "ext4", size_mib: int = 256) -> Iterator[OwnDisk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    if kind == "ext4" and shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    disk = OwnDisk(path, kind=kind, size_mib=size_mib)
    try:
        disk.create()
    except CannotMountError as error:
        with contextlib.suppress(CannotMountError):
            disk.destroy()
        pytest.skip(f"cannot mount here: {error}")
    try:
        yield disk
    finally:
        disk.destroy()
