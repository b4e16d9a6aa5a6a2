"""The folder of a table, as splits are put there and taken away.

Contract     `put` returns when the split is durable: whoever publishes its name may rely on it,
             after a power cut too. Names are made here and never contain a user's text. `remove`
             deletes what a staging left; what is not there is no error.
Races        Others may remove the folder of a staging whose owner was silent, at any moment, while
             that owner, woken up, still writes. Neither of them fails: its publish will.
Layout       splits/<source>-<staging>/<16 random bytes>.parquet inside the table
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.ingest.files import bucket_store
from penstock.store.disk import sync_folder
from penstock.store.location import bucket_of, folder_of
from penstock.store.reach import first_line

SPLITS = "splits"

_ODD = re.compile(r"[%\\\x00-\x1f\x7f]")
#: How often a folder may change under our hands.
_TRIES = 10


def staging_folder(source: str, staging: int) -> str:
    """`source`: letters and digits that tell sources apart, of other stores too."""
    return f"{SPLITS}/{source}-{staging}"


def table_uri(table: str | Path) -> str:
    """The one name of a table: an absolute path, or the URL of a prefix in a bucket."""
    if not isinstance(table, str | Path):
        raise InvalidError(f"a table is a folder or s3://bucket/…, not {table!r}")
    text = str(table)
    if text.startswith(("memory:", "penstock:")):
        raise InvalidError(f"{text!r} is no place for a table", hint="a folder, or s3://bucket/…")
    folder = folder_of(text)
    if folder is not None:
        # delta-rs would write the log into another folder than the splits, or nowhere.
        odd = _ODD.search(str(folder))
        if odd is not None:
            raise InvalidError(f"{folder}: the path of a table cannot have a {odd[0]!r} in it")
        return os.path.normpath(folder)
    bucket, prefix = bucket_of(text)
    if not prefix:
        raise InvalidError(f"{text!r} is a whole bucket", hint=f"{bucket}/tables/events")
    return f"{bucket}/{prefix.rstrip('/')}"


def put(table: str, path: str, data: Any) -> None:
    """`data`: a buffer with a whole Parquet file."""
    with _kinds(table):
        folder = folder_of(table)
        if folder is None:
            import obstore

            bucket, prefix = bucket_of(table)
            obstore.put(bucket_store(bucket), prefix + path, bytes(memoryview(data)))
            return
        for left in reversed(range(_TRIES)):
            try:
                _write(folder / path, data)
                return
            except FileNotFoundError:  # its folder was removed meanwhile, and the split with it
                if not left:
                    raise


def _write(target: Path, data: Any) -> None:
    _make_folders(target.parent)
    with open(target, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(target.parent)


def _make_folders(folder: Path) -> None:
    """With every new name durable."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def missing(table: str, paths: Iterable[str]) -> list[str]:
    """Those of these splits that are not there."""
    with _kinds(table):
        folder = folder_of(table)
        if folder is not None:
            return [path for path in paths if not (folder / path).exists()]
        bucket, prefix = bucket_of(table)
        store = bucket_store(bucket)
        return [path for path in paths if not _is_object(store, prefix + path)]


def _is_object(store: Any, name: str) -> bool:
    import obstore

    try:
        obstore.head(store, name)
    except FileNotFoundError:
        return False
    return True


def remove(table: str, staged: str, keep: Collection[str] = ()) -> None:
    """Everything of one staging but these splits."""
    with _kinds(table):
        folder = folder_of(table)
        if folder is None:
            _remove_objects(table, staged, keep)
        else:
            _remove_files(folder, staged, keep)


def _remove_files(folder: Path, staged: str, keep: Collection[str]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            names = os.listdir(folder / staged)
        except FileNotFoundError:
            return
        for name in names:
            if f"{staged}/{name}" not in keep:
                (folder / staged / name).unlink(missing_ok=True)
        if keep:
            return
        try:
            (folder / staged).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # a split was put there meanwhile
            if error.errno != errno.ENOTEMPTY or not left:
                raise


def _remove_objects(table: str, staged: str, keep: Collection[str]) -> None:
    import obstore

    bucket, prefix = bucket_of(table)
    store = bucket_store(bucket)
    kept = {prefix + path for path in keep}
    for part in obstore.list(store, prefix=f"{prefix}{staged}"):
        # A prefix here is whole parts of names: staging 1 does not find those of 10.
        names = [entry["path"] for entry in part if entry["path"] not in kept]
        if names:
            obstore.delete(store, names)


@contextlib.contextmanager
def _kinds(table: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{table}: {error.strerror or error}") from error
    except BaseError as error:
        raise UnavailableError(f"{table}: {first_line(error)}") from error
