"""Whether the tables of a store are there in full length, asked before the engine reads them.

Why          An SST ends with its index, filter and statistics. Behind the end of one that was cut
             the engine reads again and again, and who waits for it hears at his deadline that the
             store is slow.
Contract     `require_in_folder` and `require_in_bucket` raise CorruptError where a table is missing
             or too short. A bucket is asked with one list per thousand tables.
Races        A compaction that goes on meanwhile takes tables away that the manifest named a moment
             ago. So damage is believed only of a table that the manifest names still.
Trap         The engine percent-encodes the path of a store, and that of its tables once more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from penstock.errors import CorruptError, UnavailableError
from penstock.store.reach import first_line

#: Where the engine keeps its tables, below a store, and how their names end.
_FOLDER, _ENDING = "compacted", ".sst"

#: Reads a manifest: its tables, and how many bytes each must have at least.
Named = Callable[[], Awaitable[Mapping[str, int]]]
#: Bound to a place: demands the tables that a manifest names.
Require = Callable[[Named], Awaitable[None]]
#: Names of tables -> the size of each that is there, in bytes.
_Measure = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
_Sizes = dict[str, int]


#: What object paths have encoded, besides all that is not ASCII.
_ENCODED = re.compile(rb"[\x00-\x1f\x7f-\xff\\{^}%`\]\">\[~<#|*?]")


def _encoded(path: str) -> str:
    return _ENCODED.sub(lambda match: b"%%%02X" % match[0][0], path.encode()).decode()


async def _at_once(job: Callable[[], _Sizes]) -> _Sizes:
    return job()


async def require_in_folder(
    store: Path,
    named: Named,
    *,
    run: Callable[[Callable[[], _Sizes]], Awaitable[_Sizes]] = _at_once,
) -> None:
    """`run` takes what blocks on the disk."""

    def look(names: Collection[str]) -> _Sizes:
        sizes: _Sizes = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes[name] = (store / _FOLDER / f"{name}{_ENDING}").stat().st_size
        return sizes

    await _require(str(store), named, lambda names: run(partial(look, names)))


async def require_in_bucket(bucket: str, path: str, named: Named) -> None:
    """`bucket` is its URL, `path` is where the store lies in it."""
    prefix = f"{_encoded(_encoded(path))}/{_FOLDER}"

    async def look(names: Collection[str]) -> _Sizes:
        sizes: _Sizes = {}
        try:
            async for part in obstore.list(from_url(bucket), prefix=prefix):
                for entry in part:
                    sizes[entry["path"].rsplit("/", 1)[-1].removesuffix(_ENDING)] = entry["size"]
        except (BaseError, OSError) as error:
            raise UnavailableError(f"{bucket}/{path}: {first_line(error)}") from error
        return sizes

    await _require(f"{bucket}/{path}", named, look)


async def _require(where: str, named: Named, measure: _Measure) -> None:
    tables = await named()
    while tables:
        damaged = _damaged(where, tables, await measure(tables))
        if not damaged:
            return
        tables = await named()
        for name, damage in damaged.items():
            if name in tables:  # tables never come back, so it was named all the time
                raise CorruptError(damage)


def _damaged(where: str, tables: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, str]:
    damaged: dict[str, str] = {}
    for name, least_bytes in tables.items():
        path, size = f"{where}/{_FOLDER}/{name}{_ENDING}", sizes.get(name)
        if size is None:
            damaged[name] = f"{path}: a table of the store is missing"
        elif size < least_bytes:
            damaged[name] = f"{path}: {size} bytes long, at least {least_bytes} were written"
    return damaged
