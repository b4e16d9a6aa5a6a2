"""Files that were announced: how large they are, which version they have, their bytes.

Contract     A URI is `file:///path` or that of an object (`s3://bucket/key`; s3a, gs, az), not
             percent-encoded, as source/messages.py makes it. Credentials and endpoints come from
             the environment (AWS_* and their kin), on executors too. `open_file` gives a seekable
             reader.
Errors       Where nothing is, NotFoundError; what cannot be named or is no file, InvalidError; what
             is damaged, or not whole yet, CorruptError: those are the file's. Everything else, also
             credentials that expired, is the store's: UnavailableError. What is denied may be both:
             DeniedError, one of those (denied.py tells which).
Compression  By the name: .gz, .bz2, .zst and .zstd; several members in one file are one text. Not
             of Parquet files, which are compressed within (readers.py).
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import functools
import gzip
import io
import os
import stat as mode
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

import msgspec
import pyarrow as pa
import zstandard

from penstock.errors import CorruptError, InvalidError, NotFoundError, UnavailableError
from penstock.source.identity import local_version
from penstock.store.reach import first_line

#: How the client's reader tells it, which has only words for what went wrong.
_DENIED = "The operation lacked the necessary privileges"
_BUCKETS = ("s3", "s3a", "gs", "az")
#: How much of an object is fetched at once.
_BUFFER_BYTES = 8 * 2**20
#: How much of zstd is decompressed at once: four bytes of it may become 128 KiB.
_PACKED_BYTES = 4 * 2**10


class DeniedError(UnavailableError):
    """Whoever asked may not read it; perhaps that, perhaps nothing of its store."""


class Stat(msgspec.Struct, frozen=True):
    size: int
    #: Another one means other bytes: the store's etag or version; of a local file size and time.
    version: str


def compression_of(uri: str) -> str | None:
    name = uri.lower()
    for ending, kind in ((".gz", "gzip"), (".bz2", "bz2"), (".zst", "zstd"), (".zstd", "zstd")):
        if name.endswith(ending):
            return kind
    return None


def stat(uri: str) -> Stat:
    with _kinds(uri):
        path = _local(uri)
        if path is not None:
            found = os.stat(path)
            if not mode.S_ISREG(found.st_mode):
                raise InvalidError(f"{uri} is not a file")
            return Stat(found.st_size, local_version(found.st_size, found.st_mtime_ns))
        import obstore

        meta = obstore.head(*_object(uri))
        version = meta["version"] or meta["e_tag"] or f"{meta['size']}-{meta['last_modified']}"
        return Stat(meta["size"], version.strip('"'))


def read_byte(uri: str) -> None:
    """Whether an object may be read, in one request: of an empty one that is no byte either."""
    import obstore

    with _kinds(uri):
        obstore.get_range(*_object(uri), start=0, end=1)


def list_some(uri: str) -> None:
    """Whether the bucket of an object can be listed."""
    import obstore

    with _kinds(uri):
        next(iter(obstore.list(_object(uri)[0])), None)


@contextlib.contextmanager
def open_file(uri: str) -> Iterator[IO[bytes]]:
    """Its bytes as they are stored."""
    with _kinds(uri):
        path = _local(uri)
        if path is not None:
            # Opening a pipe would wait for its other end.
            if not mode.S_ISREG(os.stat(path).st_mode):
                raise InvalidError(f"{uri} is not a file")
            with open(path, "rb", buffering=0) as file:
                yield file
        else:
            import obstore

            store, key = _object(uri)
            inner = obstore.open_reader(store, key, buffer_size=_BUFFER_BYTES)
            yield io.BufferedReader(_Reader(uri, inner))


@contextlib.contextmanager
def open_text(uri: str, data: bytes | None = None) -> Iterator[IO[bytes]]:
    """Its bytes, decompressed; not seekable where it was compressed. `data`: those of an inline
    announcement, which is no file."""
    if data is not None:
        yield io.BytesIO(data)
        return
    with open_file(uri) as raw, _kinds(uri):
        match compression_of(uri):
            case None:
                yield raw
            case "gzip":
                with gzip.GzipFile(fileobj=raw) as file:
                    yield cast(IO[bytes], file)
            case "bz2":
                # Of one without a byte this one alone says that it ends too early.
                if not raw.read(1):
                    yield io.BytesIO()
                    return
                raw.seek(0)
                with bz2.BZ2File(raw) as file:
                    yield file
            case _:
                yield io.BufferedReader(_ZstdReader(raw), _BUFFER_BYTES)


def _local(uri: str) -> str | None:
    if uri.startswith("file://"):
        return uri.removeprefix("file://")
    return None


def _object(uri: str) -> tuple[Any, str]:
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in _BUCKETS or not bucket or not key:
        raise InvalidError(
            f"{uri} cannot be read", hint=f"file://, {', '.join(f'{s}://' for s in _BUCKETS)}"
        )
    # The client would take such names for others, which may be there as well.
    if key.startswith("/") or key.endswith("/") or "//" in key:
        raise InvalidError(f"{uri}: names of objects with empty parts cannot be read")
    return bucket_store(f"{scheme}://{bucket}"), key


@functools.lru_cache(maxsize=64)
def _bucket_store(url: str, process: int) -> Any:
    from obstore.store import from_url

    return from_url(url)


def bucket_store(url: str) -> Any:
    """One client per process: Spark's workers are forks."""
    return _bucket_store(url, os.getpid())


@contextlib.contextmanager
def _kinds(uri: str) -> Iterator[None]:
    """Errors of disks, services and decompressors, as ours."""
    from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError

    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{uri}: there is no such file") from None
    except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile, pa.ArrowInvalid) as error:
        raise damaged(uri, error) from error
    except InvalidPathError as error:
        raise InvalidError(f"{uri}: {error}") from error
    except ValueError as error:  # of the client: a name that it cannot use
        raise InvalidError(f"{uri}: {error}") from error
    except OSError as error:
        if error.errno is None:  # of a decompressor or of Arrow, not of the system
            raise damaged(uri, error) from error
        reason = error.strerror or str(error)
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InvalidError(f"{uri}: {reason}") from error
        kind = DeniedError if isinstance(error, PermissionError) else UnavailableError
        raise kind(f"{uri}: {reason}") from error
    except PermissionDeniedError as error:
        raise DeniedError(f"{uri}: {first_line(error)}") from error
    except BaseError as error:
        raise UnavailableError(f"{uri}: {first_line(error)}") from error


def damaged(uri: str, error: BaseException) -> CorruptError:
    return CorruptError(
        f"{uri}: damaged, or not whole yet: {error}", hint="put it there again, and announce it"
    )


class _ZstdReader(io.RawIOBase):
    """Frames, one after the other. The library's own reader takes a cut frame for a whole one."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = None  # the decompressor of the one that is under way
        self._packed = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            packed = self._packed or self._raw.read(_PACKED_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._text = memoryview(self._frame.decompress(packed))
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        taken = min(len(buffer), len(self._text))
        buffer[:taken], self._text = self._text[:taken], self._text[taken:]
        return taken


class _Reader(io.RawIOBase):
    """The client's reader as Python and Arrow want one."""

    def __init__(self, uri: str, inner: Any) -> None:
        self._uri = uri
        self._inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        with self._store():
            return int(self._inner.seek(offset, whence))

    def tell(self) -> int:
        return int(self._inner.tell())

    def readinto(self, buffer: Any) -> int:
        with self._store():
            found = self._inner.read(len(buffer))
        buffer[: len(found)] = bytes(found)
        return len(found)

    @contextlib.contextmanager
    def _store(self) -> Iterator[None]:
        """Its errors have no number, as those of decompressors and Arrow have none."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            kind = DeniedError if str(error).startswith(_DENIED) else UnavailableError
            raise kind(f"{self._uri}: {first_line(error)}") from error
