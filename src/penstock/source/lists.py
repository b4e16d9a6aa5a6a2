"""What can be asked about sources without changing them: settings, schema, files, publishes.

Contract     Durable rows are shown. Long lists come in parts: of files with where to go on, of
             publishes without gaps.
"""

from __future__ import annotations

from penstock.clock import give_way
from penstock.codec.keys import (
    KeyType,
    Kind,
    prefix_end,
    published_key,
    shard_key,
    source_key,
    source_prefix,
)
from penstock.codec.published import decode_published
from penstock.codec.scalars import encode_terminated
from penstock.codec.shard import decode_shard, decode_shard_key
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
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.log.catalogue import list_names, load_name
from penstock.log.decision import View
from penstock.source.admin import shown_source, source_name
from penstock.source.requests import (
    ListFiles,
    ListPublishes,
    PublishRow,
    PublishRows,
    SchemaInfo,
    Shard,
    Shards,
    SourceInfo,
    Sources,
    Split,
)
from penstock.source.shards import PHASES, shown_shard
from penstock.source.words import check_text
from penstock.store.port import Reader

LIST_MAX = 10_000
#: One answer looks at so many rows, or has so many splits; or so many bytes of them.
SCANNED_ROWS = 20_000
LISTED_SPLITS = 20_000
LISTED_BYTES = 32 << 20


async def read_source(store: Reader, source_id: int) -> SourceRow:
    value = await store.get(source_key(source_id, SETTINGS))
    if value is None:
        raise NotFoundError(f"there is no source {source_id}")
    return decode_source(value)


async def read_schema(store: Reader, source_id: int) -> SchemaInfo:
    await read_source(store, source_id)
    value = await store.get(source_key(source_id, SCHEMA))
    row = SchemaRow(0, "") if value is None else decode_schema(value)
    return SchemaInfo(row.version, row.schema)


async def describe(view: View, name: str) -> SourceInfo:
    known = await load_name(view, source_name(name))
    if known.row is None:
        raise NotFoundError(f"there is no source {name!r}")
    return await _described(view.store, known.row.id)


async def _described(store: Reader, source_id: int) -> SourceInfo:
    row, schema = await read_source(store, source_id), await read_schema(store, source_id)
    told = await store.get(source_key(source_id, FORMAT))
    return shown_source(source_id, row, schema.schema, "" if told is None else decode_format(told))


async def list_sources(view: View) -> Sources:
    names = [row.id async for _, row in list_names(view.store, Kind.SOURCE)]
    return Sources([await _described(view.store, source_id) for source_id in names])


async def files(view: View, request: ListFiles) -> Shards:
    _check_limit(request.limit)
    await read_source(view.store, request.source)
    low = source_prefix(KeyType.SHARD, request.source)
    high = prefix_end(low)
    if request.prefix:
        check_text(request.prefix, "a prefix")
        low += encode_terminated(request.prefix.encode())[:-1]  # without its end
        high = prefix_end(low)
    if request.after:
        check_text(request.after, "where to go on")
        low = max(low, shard_key(request.source, request.after.encode()) + b"\x00")
    found: list[Shard] = []
    scanned = 0
    if low >= high:
        return Shards(found)
    async for rows in view.store.scan(low, high):
        await give_way()  # reading thousands of rows takes a while: let requests go first
        for key, value in rows:
            scanned += 1
            identity, row = decode_shard_key(key)[1], decode_shard(value)
            if request.phase in (None, PHASES[row.phase]):
                found.append(shown_shard(identity, row, None, view.now_ms))
            if len(found) >= request.limit or scanned >= SCANNED_ROWS:
                return Shards(found, after=identity)
    return Shards(found)


async def publishes(view: View, request: ListPublishes) -> PublishRows:
    _check_limit(request.limit)
    if request.after < 0:
        raise InvalidError(f"publishes begin at 1, not behind {request.after}")
    source = await read_source(view.store, request.source)
    if request.after + 1 < source.first_publish:
        raise NotFoundError(
            f"publishes {request.after + 1} to {source.first_publish - 1} of {source.name!r} are "
            "not remembered any more",
            hint="the table is older than it was: restore it, or load into another one",
        )
    found: list[PublishRow] = []
    splits = size = 0
    end = min(source.published, request.after + request.limit)
    for sequence in range(request.after + 1, end + 1):
        value = await view.store.get(published_key(request.source, sequence))
        if value is None:
            raise CorruptError(f"publish {sequence} of source {source.name!r} is missing")
        row = decode_published(value)
        found.append(
            PublishRow(
                sequence,
                row.schema_version,
                row.time_ms,
                [Split(each.path, each.rows, each.bytes, each.stats) for each in row.splits],
            )
        )
        splits += len(row.splits)
        size += len(value)
        if splits >= LISTED_SPLITS or size >= LISTED_BYTES:
            break
    return PublishRows(found, source.published)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= LIST_MAX:
        raise InvalidError(f"a list has 1 to {LIST_MAX:,} rows, not {limit:,}")
