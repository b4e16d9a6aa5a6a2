"""Lines of a file, each once.

Contract     A step appends its lines and makes them durable; then a small file beside it, `.NAME.
             penstock`, says how long the file is and how far the input was written, and which
             messages of the step gave no row: it is replaced with one rename. The next step cuts
             off what is longer (a step that ended in between) and leaves out what was written. So
             the file is right up to the length that is told; a reader sees at worst the beginning
             of the next step, which will be the same.
             The first mark is there before the first line: a file with lines and no mark is never
             one of ours, wherever a step was cut off.
             One driver writes at a time: the file is locked (flock) while a step is written.
Refused      A file that is there without our mark, one of another processor, and one that became
             shorter than it was: nothing is cut off that we did not write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.sinks import Delivery, Offsets, Refused, Written, offsets_of


class Mark(msgspec.Struct, frozen=True):
    processor: str  # for people
    source: str
    end: int  # what lies before it in the input is written
    length: int  # bytes of the file
    rowless: Offsets = Offsets()  # of what lies before `end`: what gave no row


@dataclass(frozen=True)
class FileTarget:
    path: Path

    @property
    def mark_path(self) -> Path:
        return self.path.with_name(f".{self.path.name}.penstock")

    def prepare(self) -> None:
        if not self.path.parent.is_dir():
            raise InvalidError(f"{self.path.parent} is no folder", hint="make it first")
        if self.path.is_dir():
            raise InvalidError(f"{self.path} is a folder, not a file")

    def encode(self, value: Any) -> bytes:
        if isinstance(value, str):
            line = value.encode()
        elif isinstance(value, bytes | bytearray | memoryview):
            line = bytes(value)
        elif isinstance(value, dict):
            line = msgspec.json.encode(value)
        else:
            raise InvalidError(f"a line is bytes, text or a dict, not {type(value).__name__}")
        if b"\n" in line:
            raise InvalidError("a line cannot have a newline in it", hint="return a list of lines")
        return line + b"\n"

    def write(self, delivery: Delivery) -> Refused:
        try:
            with self._locked() as handle:
                mark = self._mark(handle, delivery)
                written = Written(mark.end, offsets_of(mark.rowless))
                missing = written.missing(delivery)
                if mark.end >= delivery.end and not missing:
                    return {}
                os.ftruncate(handle, mark.length)
                lines = b"".join(row.value for row in missing)
                _write_all(handle, lines, mark.length)
                os.fsync(handle)
                now, length = written.after(delivery), mark.length + len(lines)
                self._put_mark(
                    Mark(delivery.processor_id, delivery.source, now.end, length, now.kept)
                )
                return {}
        except OSError as error:
            raise UnavailableError(f"{self.path}: {error}") from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnavailableError(
                    f"{self.path} is being written by another process", hint="it is tried again"
                ) from None
            yield handle
        finally:
            os.close(handle)

    def _mark(self, handle: int, delivery: Delivery) -> Mark:
        size = os.fstat(handle).st_size
        try:
            mark = msgspec.json.decode(self.mark_path.read_bytes(), type=Mark)
        except FileNotFoundError:
            if size:
                raise InvalidError(
                    f"{self.path} is there already, and was not written by this sink",
                    hint="use another file, or remove it",
                ) from None
            first = Mark(delivery.processor_id, delivery.source, 0, 0)
            self._put_mark(first)
            return first
        except msgspec.DecodeError as error:
            raise InvalidError(f"{self.mark_path} is damaged: {error}") from None
        if mark.source != delivery.source:
            raise InvalidError(
                f"{self.path} was written by {mark.processor}, from another stream or before it "
                "was made anew",
                hint=f"use another file, or remove it together with {self.mark_path.name}",
            )
        if size < mark.length:
            raise InvalidError(
                f"{self.path} has {size:,} bytes, and had {mark.length:,} when it was last written",
                hint=f"restore it, or remove it together with {self.mark_path.name}",
            )
        return mark

    def _put_mark(self, mark: Mark) -> None:
        new = self.mark_path.with_name(f"{self.mark_path.name}.new")
        try:
            with open(new, "wb") as file:
                file.write(msgspec.json.encode(mark))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.mark_path)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_all(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written
