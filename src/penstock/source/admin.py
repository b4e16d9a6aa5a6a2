"""Sources themselves: making and finding them, their schema, how far the table has come.

Contract     A source is found by its name, and named by its id from then on. Its table and its
             identity never change: another table would need all files once more, another identity
             would load what is loaded. Nor does the format, from the first publish on: in another
             one the position of a file that is loaded in part would mean something else. Where
             none is remembered, the first one that is told is.
Not here     Looking at them (lists.py), shards (shards.py), publishing (publish.py).
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.codec.catalogue import CatalogueRow, check_name, encode_catalogue_row
from penstock.codec.keys import Kind, name_key, source_key
from penstock.codec.scalars import U32_MAX, U64_MAX
from penstock.codec.source import (
    FORMAT,
    SCHEMA,
    IdentityBy,
    SchemaRow,
    SourceRow,
    decode_format,
    decode_schema,
    encode_format,
    encode_schema,
)
from penstock.errors import ConflictError, InvalidError
from penstock.log.catalogue import (
    Ids,
    LogName,
    NameState,
    load_ids,
    load_name,
    name_state_key,
    take_id,
)
from penstock.log.decision import Step, Timer
from penstock.source.draft import PRUNE_MS, Draft, draft_step, prune_key
from penstock.source.pruning import window_warning
from penstock.source.requests import (
    Identity,
    MarkExported,
    OpenSource,
    PutSchema,
    SchemaInfo,
    SourceInfo,
)
from penstock.source.words import check_text

#: A schema is text of a person's or of a program's making, not data.
SCHEMA_BYTES_MAX = 4 << 20

_IDENTITIES: dict[IdentityBy, Identity] = {IdentityBy.URI: "uri", IdentityBy.VERSION: "version"}


def source_name(name: str) -> LogName:
    return LogName(Kind.SOURCE, check_name("source", name))


def shown_source(source_id: int, row: SourceRow, schema: str, format: str) -> SourceInfo:
    return SourceInfo(
        id=source_id,
        name=row.name,
        table=row.table,
        identity=_IDENTITIES[row.identity],
        created_ms=row.created_ms,
        prune_age_ms=row.prune_age_ms,
        prune_count=row.prune_count,
        horizon_ms=row.horizon_ms,
        max_failures=row.max_failures,
        schema_version=row.schema_version,
        schema=schema,
        published=row.published,
        exported=row.exported,
        first_publish=row.first_publish,
        done=row.done,
        failed=row.failed,
        warning=window_warning(row) or "",
        format=format,
    )


async def _shown(draft: Draft, source_id: int, row: SourceRow) -> SourceInfo:
    schema = await _schema(draft, source_id)
    return shown_source(source_id, row, schema.schema, await _format(draft, source_id))


# -- making


def open_source_step(request: OpenSource) -> Step:
    name = source_name(request.name)
    check_text(request.table, "a table")
    if request.format:
        check_text(request.format, "a format")
    for what, value, high in (
        ("prune_age_ms", request.prune_age_ms, U64_MAX),
        ("prune_count", request.prune_count, U64_MAX),
        ("horizon_ms", request.horizon_ms, U64_MAX),
        ("max_failures", request.max_failures, U32_MAX),
    ):
        if not 0 <= value <= high:
            raise InvalidError(f"{what} is 0 to {high:,}, not {value:,}")

    async def body(draft: Draft) -> SourceInfo:
        known = await load_name(draft.view, name)
        if known.row is None:
            return await _made(draft, name, request)
        source_id = known.row.id
        row = await draft.source(source_id)
        _check_same(row, request)
        changed = replace(
            row,
            prune_age_ms=request.prune_age_ms,
            prune_count=request.prune_count,
            horizon_ms=request.horizon_ms,
            max_failures=request.max_failures,
        )
        if changed != row:
            draft.put_source(source_id, changed)
        await _remember_format(draft, source_id, row, request)
        return await _shown(draft, source_id, changed)

    return draft_step(body)


async def _made(draft: Draft, name: LogName, request: OpenSource) -> SourceInfo:
    await load_ids(draft.view, Ids.NAMED)
    source_id, rows, states = take_id(draft.view, Ids.NAMED)
    catalogued = CatalogueRow(source_id, draft.now_ms)
    row = SourceRow(
        identity=IdentityBy.URI if request.identity == "uri" else IdentityBy.VERSION,
        name=request.name,
        table=request.table,
        created_ms=draft.now_ms,
        prune_age_ms=request.prune_age_ms,
        prune_count=request.prune_count,
        horizon_ms=request.horizon_ms,
        max_failures=request.max_failures,
    )
    draft.rows |= rows
    draft.rows[name_key(name.kind, name.name)] = encode_catalogue_row(catalogued)
    draft.put_source(source_id, row)
    draft.states |= states
    draft.states[name_state_key(name)] = NameState(catalogued)
    await _remember_format(draft, source_id, row, request)
    return await _shown(draft, source_id, row)


def _check_same(row: SourceRow, request: OpenSource) -> None:
    if row.table != request.table:
        raise ConflictError(
            f"source {row.name!r} loads into {row.table}, not into {request.table}",
            hint="give this source another name",
        )
    if _IDENTITIES[row.identity] != request.identity:
        raise ConflictError(
            f"source {row.name!r} knows its files by {_IDENTITIES[row.identity]}, "
            f"not by {request.identity}",
            hint="the identity of a source never changes; make another source, with another table",
        )


async def _remember_format(
    draft: Draft, source_id: int, row: SourceRow, request: OpenSource
) -> None:
    known = await _format(draft, source_id)
    if request.format in ("", known):
        return
    if known and row.published:
        raise ConflictError(
            f"source {row.name!r} reads its files as {known}, not as {request.format}",
            hint=f"give it the format {known}, or give files of another one to another source",
        )
    draft.rows[source_key(source_id, FORMAT)] = encode_format(request.format)


async def _format(draft: Draft, source_id: int) -> str:
    value = await draft.row(source_key(source_id, FORMAT))
    return "" if value is None else decode_format(value)


def mark_exported_step(request: MarkExported) -> Step:
    async def body(draft: Draft) -> SourceInfo:
        row = await draft.source(request.source)
        if request.sequence < 0:
            raise InvalidError(f"there is no publish {request.sequence}")
        if request.sequence > row.published:
            raise ConflictError(
                f"the table of source {row.name!r} holds its publish {request.sequence}, and this "
                f"location knows of {row.published}: the table is newer than the location",
                hint="was the location restored? restore its table of the same moment, too "
                "(docs/guides/backup.md)",
            )
        if request.sequence > row.exported:
            row = replace(row, exported=request.sequence)
            draft.put_source(request.source, row)
            draft.timers.append(Timer(draft.now_ms + PRUNE_MS, prune_key(request.source)))
        return await _shown(draft, request.source, row)

    return draft_step(body)


# -- the schema


async def _schema(draft: Draft, source_id: int) -> SchemaRow:
    value = await draft.row(source_key(source_id, SCHEMA))
    return SchemaRow(0, "") if value is None else decode_schema(value)


def put_schema_step(request: PutSchema) -> Step:
    check_text(request.schema, "a schema", SCHEMA_BYTES_MAX)

    async def body(draft: Draft) -> SchemaInfo:
        row = await draft.source(request.source)
        stored = await _schema(draft, request.source)
        if stored.schema == request.schema:
            # Another was faster with the same, or this is the repetition of a lost answer.
            return SchemaInfo(stored.version, stored.schema, written=True)
        if request.expected_version != stored.version:
            return SchemaInfo(stored.version, stored.schema)
        written = SchemaRow(stored.version + 1, request.schema)
        draft.rows[source_key(request.source, SCHEMA)] = encode_schema(written)
        draft.put_source(request.source, replace(row, schema_version=written.version))
        return SchemaInfo(written.version, written.schema, written=True)

    return draft_step(body, len(request.schema))
