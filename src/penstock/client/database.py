"""The Python handle: `penstock.open(location)`.

Contract     The names of the public API. Synchronous; every call may be made from any thread.
             Arguments are checked here and in the layer that knows their limits; what is wrong is
             an InvalidError and changes nothing. After `close` every call is an InvalidError.
Not here     What a call does (broker/), how bytes are laid out (codec/).
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from penstock.broker.broker import Broker
from penstock.broker.streams import Found, StreamInfo
from penstock.client.thread import LoopThread
from penstock.errors import InvalidError, PenstockError
from penstock.log.batch import Entry, build_bodies, encode_tag
from penstock.log.catalogue import LogName, stream_name
from penstock.log.read import Message
from penstock.store.folder import Durability

#: Databases that a script forgot to close are closed when it ends.
_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """An open location. Use `penstock.open`; close it, or use it as a context manager."""

    def __init__(self, location: str | Path, *, durability: Durability, deadline: float) -> None:
        self._thread = LoopThread("penstock-broker")
        self._broker: Broker | None = None
        try:
            self._broker = self._thread.call(
                Broker.open(str(location), durability=durability, deadline=deadline)
            )
        except BaseException:
            self._thread.stop()
            raise
        self.location = str(location)
        _open_databases.add(self)

    def _call(self, work: Any) -> Any:
        return self._thread.call(work)

    def _require(self) -> Broker:
        if self._broker is None:
            raise InvalidError(f"{self.location} is closed", hint="open it again")
        return self._broker

    def stream(self, name: str) -> Stream:
        """A handle on a stream. Nothing is created before the first write."""
        self._require()
        return Stream(self, name)

    def close(self) -> None:
        """Flush and release the location; a second close does nothing."""
        broker, self._broker = self._broker, None
        if broker is not None:
            try:
                self._thread.call(broker.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise InvalidError(
            "an open location cannot be pickled", hint="pickle its path, and open that"
        )

    def __repr__(self) -> str:
        return f"<penstock.Database {self.location!r}{' closed' if self._broker is None else ''}>"


class Stream:
    """An append-only log with offsets 0, 1, 2, … that never change."""

    def __init__(self, database: Database, name: str) -> None:
        self._name: LogName = stream_name(name)
        self._database = database
        self._closed = False
        self.name = name

    def _broker(self) -> Broker:
        if self._closed:
            raise InvalidError(f"the handle on stream {self.name!r} is closed")
        return self._database._require()

    def write(self, data: bytes, tag: str | bytes = "") -> int:
        """Append one entry; returns its offset when it is durable."""
        broker = self._broker()
        offsets: range = self._database._call(
            broker.streams.write(self._name, build_bodies([(tag, data)]))
        )
        return offsets.start

    def write_many(
        self,
        entries: Sequence[Entry] | pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append entries as one: all of them or none. Returns their offsets when they are durable.

        Entries are data, or (tag, data), or an Arrow batch with the columns data and tag. `backlog`
        evicts older entries so that at least that many remain. With `producer` and `sequence` a
        repetition returns the first answer and appends nothing.
        """
        broker = self._broker()
        _check_int("backlog", backlog, optional=True)
        _check_int("sequence", sequence, optional=True)
        offsets: range = self._database._call(
            broker.streams.write(
                self._name,
                build_bodies(_listed(entries)),
                backlog=backlog,
                producer=None if producer is None else _producer(producer),
                sequence=sequence,
            )
        )
        return offsets

    def read(self, offset: int, count: int = 1, *, reverse: bool = False) -> list[Message | None]:
        """Up to `count` entries from `offset` on; None stands for an entry that was evicted."""
        broker = self._broker()
        _check_int("offset", offset)
        _check_int("count", count)
        found: Found = self._database._call(
            broker.streams.read(self._name, offset, count, reverse=reverse)
        )
        return found.messages

    def to_arrow(self, offset: int = 0, count: int | None = None) -> pa.Table:
        """The same entries as columns: offset, time, tag, data, meta. Evicted ones are left out."""
        broker = self._broker()
        _check_int("offset", offset)
        _check_int("count", count, optional=True)
        return self._database._call(broker.streams.to_arrow(self._name, offset, count))

    def evict(self, *, up_to: int | None = None, keep: int | None = None) -> int:
        """Remove entries up to an offset, inclusive, or all but the newest. -> how many went"""
        broker = self._broker()
        _check_int("up_to", up_to, optional=True)
        _check_int("keep", keep, optional=True)
        count: int = self._database._call(broker.streams.evict(self._name, up_to=up_to, keep=keep))
        return count

    def info(self) -> StreamInfo:
        """first, last and length; a stream that was never written has first 0 and last -1."""
        info: StreamInfo = self._database._call(self._broker().streams.info(self._name))
        return info

    def close(self) -> None:
        """Give up this handle; the stream and the location stay open."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.Stream {self.name!r} of {self._database.location!r}>"


def open(  # the public name; the builtin is not used in this file
    location: str | Path,
    *,
    durability: Durability = "power",
    deadline: float = 30.0,
) -> Database:
    """Open a location: a folder, s3://bucket/prefix, or memory://name.

    `durability="os"` skips the waiting for the disk: acknowledged data survives a killed process
    but not a power cut. `deadline` is how many seconds a call takes at most before it is an
    UnavailableError.
    """
    if not isinstance(location, str | Path):
        raise InvalidError(f"a location is text or a path, not {type(location).__name__}")
    if not isinstance(deadline, int | float) or isinstance(deadline, bool) or not deadline > 0:
        raise InvalidError(f"deadline is a positive number of seconds, not {deadline!r}")
    return Database(location, durability=durability, deadline=deadline)


def _check_int(what: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidError(f"{what} is a whole number, not {value!r}")


def _listed(entries: Any) -> Any:
    if isinstance(entries, list | tuple | pa.RecordBatch | pa.Table | str | bytes):
        return entries
    try:
        return list(entries)
    except TypeError:
        raise InvalidError(f"entries are a list, not {type(entries).__name__}") from None


def _producer(name: object) -> bytes:
    if not isinstance(name, str):
        raise InvalidError(f"producer is text, not {type(name).__name__}")
    return encode_tag(name)


@atexit.register
def _close_all() -> None:
    for database in list(_open_databases):
        with contextlib.suppress(PenstockError):
            database.close()
