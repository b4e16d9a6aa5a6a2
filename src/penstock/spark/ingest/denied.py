"""Files that may not be read, told from stores that let nobody in.

Contract     A bucket that denies one object and answers otherwise has not gone away: the object has
             failed. Credentials that expired, or executors that have none, are denied everything,
             and that is no failure of a file. A disk that denies a file has answered.
How          After the denial, from the driver: one byte of the object is asked for. If that is
             denied here as well, its bucket is asked for something else: this object's size, that
             of one which could be asked for before, and a list. Any answer will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor

from penstock.errors import NotFoundError, PenstockError
from penstock.spark.ingest.files import DeniedError, list_some, read_byte, stat


class Denials:
    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        #: By bucket: an object that could be asked for.
        self._seen: dict[str, str] = {}

    def seen(self, uri: str) -> None:
        self._seen[_store(uri)] = uri

    def of_files(self, denied: Collection[str]) -> set[str]:
        """Those of these files whose own failure it is."""
        local = {uri for uri in denied if uri.startswith("file:")}
        objects = [uri for uri in denied if uri not in local]
        here = [
            uri
            for uri, own in zip(objects, self._pool.map(_is_denied, objects), strict=True)
            if own
        ]
        # After all of those denials: credentials may have expired meanwhile.
        first = {_store(uri): uri for uri in here}
        answering = {store for store, uri in first.items() if self._answers(uri)}
        return local | {uri for uri in here if _store(uri) in answering}

    def _answers(self, uri: str) -> bool:
        seen = self._seen.get(_store(uri), uri)
        asked: list[tuple[Callable[[str], object], str]] = [
            *((stat, each) for each in dict.fromkeys((uri, seen))),
            (list_some, uri),
        ]
        return any(_answered(ask, each) for ask, each in asked)


def _store(uri: str) -> str:
    return "/".join(uri.split("/", 3)[:3])


def _is_denied(uri: str) -> bool:
    try:
        read_byte(uri)
    except DeniedError:
        return True
    except PenstockError:
        return False  # another trouble, and perhaps the next try's
    return False


def _answered(ask: Callable[[str], object], uri: str) -> bool:
    try:
        ask(uri)
    except NotFoundError:
        return True  # who is let in hears that it is gone
    except PenstockError:
        return False
    return True
