"""The invariants of sources, looked at row by row: for tests and `penstock check`.

Contract     `check_sources(store)` reads every row of sources and returns what is wrong; an empty
             list is a clean store. It never raises for stored bytes.
Invariants   X1  a name leads to a source, and every source has its name
             X2  every row is of a source that exists
             X3  a terminal shard is in the index at the time it ended, and nothing else is there
             X4  a source counts its terminal shards
             X5  publishes are dense from the first that is remembered to the newest, in the order
                 of their times; what is exported was published, what is forgotten was exported
             X6  stagings in use are below the next one, and their keys lead to them
             X7  the schema is the version that the source says, and no publish is ahead of it
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from penstock.codec.keys import (
    KeyType,
    Kind,
    Scope,
    ended_key,
    once_key,
    open_key,
    prefix,
    prefix_end,
    shard_key,
)
from penstock.codec.once import decode_once
from penstock.codec.published import decode_published
from penstock.codec.shard import ShardPhase, decode_ended_key, decode_shard, decode_shard_key
from penstock.codec.source import (
    FORMAT,
    SCHEMA,
    SETTINGS,
    SchemaRow,
    SourceRow,
    decode_format,
    decode_schema,
    decode_source,
)
from penstock.codec.splits import decode_splits, decode_splits_key
from penstock.errors import CorruptError
from penstock.log.catalogue import list_names
from penstock.log.check import Finding
from penstock.store.port import Store

Look = Callable[[], None]


async def check_sources(store: Store, look: Look = lambda: None) -> list[Finding]:
    """`look` is called for every row: whether it goes on."""
    check = _Check(store, look)
    await check.run()
    return check.findings


class _Check:
    def __init__(self, store: Store, look: Look) -> None:
        self._store = store
        self._look = look
        self.findings: list[Finding] = []
        self._sources: dict[int, SourceRow] = {}
        self._schemas: dict[int, SchemaRow] = {}
        self._formats: set[int] = set()
        self._ended: dict[int, dict[ShardPhase, int]] = {}
        self._publishes: dict[int, tuple[int, int]] = {}  # sequence and time of the latest seen

    async def run(self) -> None:
        await self._each(KeyType.SOURCE, self._source)
        await self._names()
        await self._each(KeyType.SHARD, self._shard)
        await self._each(KeyType.ENDED, self._ended_row)
        await self._each(KeyType.PUBLISHED, self._published)
        await self._each(KeyType.SPLITS, self._splits)
        for source_id, row in self._sources.items():
            self._numbers(source_id, row)

    async def _rows(self, kind: KeyType) -> AsyncIterator[tuple[bytes, bytes]]:
        low = prefix(kind)
        async for rows in self._store.scan(low, prefix_end(low)):
            for row in rows:
                self._look()
                yield row

    async def _each(self, kind: KeyType, look: Callable[[bytes, bytes], object]) -> None:
        async for key, value in self._rows(kind):
            try:
                found = look(key, value)
                if found is not None:
                    await found  # type: ignore[misc]
            except CorruptError as error:
                self._find(key.hex(), str(error))

    def _find(self, where: str, what: str) -> None:
        self.findings.append(Finding(where, what))

    def _known(self, source_id: int, key: bytes) -> bool:
        if source_id not in self._sources:
            self._find(key.hex(), f"of source {source_id}, which does not exist")
        return source_id in self._sources

    # -- rows

    def _source(self, key: bytes, value: bytes) -> None:
        reader = open_key(key, KeyType.SOURCE)
        source_id, part = reader.u64_key("source id"), reader.u8("part")
        reader.end()
        if part == SETTINGS:
            self._sources[source_id] = decode_source(value)
        elif part == SCHEMA:
            self._schemas[source_id] = decode_schema(value)
        elif part == FORMAT:
            decode_format(value)
            self._formats.add(source_id)
        else:
            raise CorruptError(f"source {source_id} has a part {part}, which is unknown")

    async def _names(self) -> None:
        try:
            named = {row.id: name async for name, row in list_names(self._store, Kind.SOURCE)}
        except CorruptError as error:
            self._find("sources", str(error))
            return
        for source_id, name in named.items():
            if source_id not in self._sources:
                self._find(f"source {name!r}", f"its row {source_id} does not exist")
        for source_id, row in self._sources.items():
            if named.get(source_id) != row.name:
                self._find(f"source {row.name!r}", f"no name leads to its row {source_id}")
        for source_id in self._schemas.keys() - self._sources.keys():
            self._find(f"source {source_id}", "a schema of a source that does not exist")
        for source_id in self._formats - self._sources.keys():
            self._find(f"source {source_id}", "a format of a source that does not exist")

    async def _shard(self, key: bytes, value: bytes) -> None:
        source_id, identity = decode_shard_key(key)
        row = decode_shard(value)
        if not self._known(source_id, key) or not row.terminal:
            return
        counts = self._ended.setdefault(source_id, {})
        counts[row.phase] = counts.get(row.phase, 0) + 1
        index = ended_key(source_id, row.updated_ms, identity.encode())
        if await self._store.get(index) is None:
            self._find(f"shard {identity!r}", "it ended, and the index does not have it")

    async def _ended_row(self, key: bytes, value: bytes) -> None:
        source_id, ended_ms, identity = decode_ended_key(key)
        if value:
            self._find(key.hex(), "an index row with a value")
        if not self._known(source_id, key):
            return
        stored = await self._store.get(shard_key(source_id, identity.encode()))
        row = None if stored is None else decode_shard(stored)
        if row is None or not row.terminal or row.updated_ms != ended_ms:
            self._find(f"shard {identity!r}", f"the index has it, but it did not end at {ended_ms}")

    def _published(self, key: bytes, value: bytes) -> None:
        reader = open_key(key, KeyType.PUBLISHED)
        source_id, sequence = reader.u64_key("source id"), reader.u64_key("sequence")
        reader.end()
        row = decode_published(value)
        if not self._known(source_id, key):
            return
        source = self._sources[source_id]
        last, last_ms = self._publishes.get(source_id, (source.first_publish - 1, row.time_ms))
        where = f"publish {sequence} of source {source.name!r}"
        if sequence != last + 1:
            self._find(where, f"it follows {last}")
        if row.time_ms < last_ms:
            self._find(where, "it is older than the one before")
        if row.schema_version > source.schema_version:
            self._find(where, f"its schema {row.schema_version} does not exist")
        self._publishes[source_id] = sequence, row.time_ms

    async def _splits(self, key: bytes, value: bytes) -> None:
        source_id, staging_id = decode_splits_key(key)
        row = decode_splits(value)
        if not self._known(source_id, key):
            return
        where = f"staging {staging_id} of source {source_id}"
        if staging_id >= self._sources[source_id].next_staging:
            self._find(where, "its number was never given")
        named = await self._store.get(once_key(Scope.STAGING, source_id, row.key.encode()))
        # The row of a key expires; one that is there must be the staging's own, or a later one's.
        if named is not None and int.from_bytes(decode_once(named).answer, "little") < staging_id:
            self._find(where, "its key leads to an older one")

    # -- numbers

    def _numbers(self, source_id: int, row: SourceRow) -> None:
        where = f"source {row.name!r}"
        counts = self._ended.get(source_id, {})
        for what, said, phase in (
            ("done", row.done, ShardPhase.EOF),
            ("failed", row.failed, ShardPhase.FAILED),
        ):
            if counts.get(phase, 0) != said:
                self._find(where, f"{counts.get(phase, 0)} shards are {what}, its row says {said}")
        newest = self._publishes.get(source_id, (row.first_publish - 1, 0))[0]
        if newest != row.published:
            self._find(where, f"its newest publish is {newest}, its row says {row.published}")
        if not row.first_publish - 1 <= row.exported <= row.published:
            self._find(
                where,
                f"exported up to {row.exported}, of publishes {row.first_publish} to "
                f"{row.published}",
            )
        schema = self._schemas.get(source_id)
        if (0 if schema is None else schema.version) != row.schema_version:
            self._find(where, f"its schema is not version {row.schema_version}")
