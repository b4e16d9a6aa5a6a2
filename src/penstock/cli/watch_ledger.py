"""What a folder's watchers have announced to a queue: a stream of the location.

Contract     `announce` publishes, and writes down what it published after that. A watcher that is
             killed in between publishes again when it is back, under the same dedup ids: within
             their window that is nothing, and later it is a second announcement of a file that is
             loaded, which sources drop. A file is never written down and not published.
Shared       Any number of watchers may watch one folder: each reads on before it publishes.
Entries      tag: the path inside the folder; data: JSON of `Entry`. The last one of a path counts.
             Those that were written for an earlier queue of that name do not.
Bounded      Files that are gone and were announced long ago are left out when the stream is written
             anew, which happens when half of it says nothing (at most once a day, watch.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from penstock.cli.watch_folder import Version, uri_of
from penstock.client.blockingqueue import Queue
from penstock.client.database import Database
from penstock.client.publish import URI, Publish
from penstock.clock import Clock
from penstock.errors import CorruptError

#: Announced and written in one call.
BATCH = 1_000
_READ = 10_000
#: A file that comes back after this is a new one. Longer than a source remembers what it loaded.
FORGET_MS = 35 * 24 * 3_600 * 1_000
#: Below this many entries a stream is never written anew.
_SMALL = 10_000
_NAME_BYTES_MAX = 200


class Entry(msgspec.Struct, frozen=True, array_like=True):
    size: int
    mtime_ns: int
    announced_ms: int
    queue_ms: int  # when the queue was made

    @property
    def version(self) -> Version:
        return Version(self.size, self.mtime_ns)


class Ledger:
    def __init__(
        self, database: Database, queue: Queue, folder: Path, clock: Clock, *, again: bool = False
    ) -> None:
        """`again`: whatever was announced before this moment was not."""
        self._database = database
        self._queue = queue
        self._folder = folder
        self._clock = clock
        self._queue_ms = int(queue.describe().created_at.timestamp() * 1000)
        self._stream = database.stream(ledger_name(queue.name, folder))
        self._since_ms = clock.wall_ms() if again else 0
        self._salt = f":{clock.entropy(8).hex()}" if again else ""
        self._entries: dict[str, Entry] = {}
        self._next = self._stream.info().first
        self.announced: dict[str, Version] = {}
        self.read_on()

    def read_on(self) -> None:
        """What others announced, or this one before it ended."""
        while found := self._stream.read(self._next, _READ):
            self._next += len(found)
            for message in found:
                if message is not None:
                    self._learn(message.tag, _entry(self._stream.name, message.data))

    def _learn(self, name: str, entry: Entry) -> None:
        if entry.queue_ms == self._queue_ms:
            self._entries[name] = entry
            if entry.announced_ms >= self._since_ms:
                self.announced[name] = entry.version

    @property
    def known(self) -> int:
        return len(self._entries)

    def announce(self, files: Sequence[tuple[str, Version]]) -> None:
        for start in range(0, len(files), BATCH):
            batch = files[start : start + BATCH]
            self._database.publish_many([self._message(*file) for file in batch])
            now_ms = self._clock.wall_ms()
            written = {name: Entry(*version, now_ms, self._queue_ms) for name, version in batch}
            self._write(written)
            for name, entry in written.items():
                self._learn(name, entry)

    def _message(self, name: str, version: Version) -> Publish:
        uri = uri_of(self._folder, name)
        key = blake2b(uri.encode(), digest_size=16).hexdigest()
        dedup_id = f"watch:{key}:{version.size}:{version.mtime_ns}{self._salt}"
        return Publish(URI(uri), to=self._queue.name, dedup_id=dedup_id)

    def _write(self, entries: dict[str, Entry]) -> None:
        self._stream.write_many(
            # Bytes, as a name need not be text.
            [(name.encode(errors="surrogateescape"), _encode(e)) for name, e in entries.items()]
        )

    def tidy(self, present: Collection[str]) -> None:
        """Write the stream anew if half of it or more says nothing: what matters first, then the
        end of the old part. Ended in between, it is merely longer."""
        # A folder without a file is more likely one that is not mounted.
        length = self._stream.info().length
        if not present or length < _SMALL:
            return
        self.read_on()
        young_ms = self._clock.wall_ms() - FORGET_MS
        kept = {
            name: entry
            for name, entry in self._entries.items()
            if name in present or entry.announced_ms > young_ms
        }
        if len(kept) > length // 2:
            return
        last, names = self._next - 1, list(kept)
        for start in range(0, len(names), _READ):
            self._write({name: kept[name] for name in names[start : start + _READ]})
        self._stream.evict(up_to=last)
        for name in self._entries.keys() - kept.keys():
            self.announced.pop(name, None)
        self._entries = kept


def ledger_name(queue: str, folder: Path) -> str:
    """One stream for a folder and a queue, with a name that tells at least the queue."""
    place = blake2b(f"{queue}\0{folder}".encode(errors="surrogateescape"), digest_size=8)
    shown = queue if len(queue.encode()) <= _NAME_BYTES_MAX else "…"
    return f"watch:{shown}:{place.hexdigest()}"


_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(Entry).decode


def _entry(stream: str, data: bytes) -> Entry:
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"stream {stream!r} is a watcher's, and holds something else: {error}",
            hint="delete that stream; what is in the folder is announced again then",
        ) from None
