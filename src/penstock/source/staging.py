"""Stagings of a source: which splits lie in the table's folder without belonging to it.

Contract     Begin before the first split is written; a publish ends it. Whatever else becomes of a
             runner, its staging is revoked in a commit before anybody deletes a file of it, so that
             no file can be published and deleted.
States       begin --> [live] -- publish --> gone          (publish.py)
                          `-- revoke, or a refused publish --> [revoked] -- finish --> gone
Not here     Files: who revoked them deletes them.
"""

from __future__ import annotations

import msgspec

from penstock.codec.keys import KeyType, Scope, once_key, prefix_end, source_prefix, splits_key
from penstock.codec.splits import SplitsPhase, SplitsRow, decode_splits_key
from penstock.log.decision import Step
from penstock.log.once import check, once_value
from penstock.source.draft import Draft, draft_step
from penstock.source.requests import (
    BeginStaging,
    FinishStagings,
    RevokeStagings,
    Staging,
    Stagings,
)
from penstock.source.words import (
    KEY_BYTES_MAX,
    SHARDS_MAX,
    check_count,
    check_stale,
    check_text,
    check_token,
    shown_token,
)


def begin_staging_step(request: BeginStaging) -> Step:
    token = check_token(request.token)
    check_stale(request.stale_ms)
    check_text(request.key, "a staging's key", KEY_BYTES_MAX)

    async def body(draft: Draft) -> Stagings:
        source = await draft.source(request.source)
        named = _begun_key(request.source, request.key)
        if (known := check(await draft.row(named), 0, draft.now_ms)) is not None:
            staging_id = int.from_bytes(known.answer, "little")
            begun = await draft.staging(request.source, staging_id)
            if begun is not None and begun.phase is SplitsPhase.LIVE:
                return Stagings([shown_staging(staging_id, begun)])
        staging_id = source.next_staging
        row = SplitsRow(
            phase=SplitsPhase.LIVE,
            token=token,
            stale_ms=request.stale_ms,
            began_ms=draft.now_ms,
            updated_ms=draft.now_ms,
            key=request.key,
        )
        draft.put_source(
            request.source, msgspec.structs.replace(source, next_staging=staging_id + 1)
        )
        draft.put_staging(request.source, staging_id, row)
        draft.rows[named] = once_value(0, staging_id.to_bytes(8, "little"), draft.now_ms)
        return Stagings([shown_staging(staging_id, row)])

    return draft_step(body)


def revoke_stagings_step(request: RevokeStagings) -> Step:
    token = check_token(request.token)
    check_count(request.ids or (), "stagings")

    async def body(draft: Draft) -> Stagings:
        await draft.source(request.source)
        found = []
        for staging_id in await _all_stagings(draft, request.source):
            row = await draft.staging(request.source, staging_id)
            if row is None:
                continue
            if row.phase is SplitsPhase.LIVE:
                mine = staging_id in (request.ids or ()) and row.token == token
                silent = draft.now_ms - row.updated_ms >= row.stale_ms
                if not (mine or (request.ids is None and silent)):
                    continue
                row = revoke(draft, request.source, staging_id, row)
            found.append(shown_staging(staging_id, row))
        return Stagings(found)

    return draft_step(body)


async def _all_stagings(draft: Draft, source_id: int) -> list[int]:
    """Those of durable rows: one that this very tick begins is neither silent nor known."""
    low = source_prefix(KeyType.SPLITS, source_id)
    found: list[int] = []
    async for rows in draft.view.store.scan(low, prefix_end(low)):
        found += [decode_splits_key(key)[1] for key, _ in rows]
        if len(found) >= SHARDS_MAX:
            break
    return found


def revoke(draft: Draft, source_id: int, staging_id: int, row: SplitsRow) -> SplitsRow:
    revoked = msgspec.structs.replace(row, phase=SplitsPhase.REVOKED, updated_ms=draft.now_ms)
    draft.put_staging(source_id, staging_id, revoked)
    return revoked


def finish_stagings_step(request: FinishStagings) -> Step:
    check_count(request.ids, "stagings")

    async def body(draft: Draft) -> Stagings:
        await draft.source(request.source)
        found = []
        for staging_id in request.ids:
            row = await draft.staging(request.source, staging_id)
            if row is not None and row.phase is SplitsPhase.REVOKED:
                end_staging(draft, request.source, staging_id, row)
                found.append(shown_staging(staging_id, row))
        return Stagings(found)

    return draft_step(body)


def end_staging(draft: Draft, source_id: int, staging_id: int, row: SplitsRow) -> None:
    draft.rows[splits_key(source_id, staging_id)] = None
    draft.rows[_begun_key(source_id, row.key)] = None


def _begun_key(source_id: int, key: str) -> bytes:
    # Stagings of the log have the owner 0, which no source has.
    return once_key(Scope.STAGING, source_id, key.encode())


def shown_staging(staging_id: int, row: SplitsRow) -> Staging:
    return Staging(staging_id, shown_token(row.token), row.began_ms, row.updated_ms)
