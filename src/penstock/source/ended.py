"""Shards that ended without being loaded, or are to be loaded once more.

Contract     An announcement that could not be read is a failed shard from the beginning, known by
             its digest: nobody can own it, and it is forgotten like any other. Reopening makes a
             terminal shard open and nobody's: a failed one goes on where it stood, a loaded one
             begins anew and its rows come twice, so that it takes `force`.
Not here     Everything else about shards (shards.py).
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.codec.shard import RELEASED, Place, ShardKind, ShardPhase, ShardRow
from penstock.codec.source import IdentityBy
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.decision import Step
from penstock.source.draft import Draft, draft_step
from penstock.source.identity import announcement_id, is_announcement
from penstock.source.requests import FailAnnouncements, ReopenShard, Shards
from penstock.source.shards import is_stale, shown_shard
from penstock.source.words import KEY_BYTES_MAX, check_count, check_text, cut


def fail_announcements_step(request: FailAnnouncements) -> Step:
    check_count(request.announcements, "announcements")
    for each in request.announcements:
        check_text(each.digest, "a digest", KEY_BYTES_MAX)

    async def body(draft: Draft) -> Shards:
        await draft.source(request.source)
        found = []
        for each in request.announcements:
            identity = announcement_id(each.digest)
            before = await draft.shard(request.source, identity)
            # Delivered again, it counts again; that it cannot be read was told the first time.
            row = ShardRow(
                kind=ShardKind.ANNOUNCEMENT,
                phase=ShardPhase.FAILED,
                token=RELEASED,
                stale_ms=0,
                place=Place.BOF,
                offset=0,
                rows=0,
                failures=1 if before is None else before.failures + 1,
                opened_ms=draft.now_ms if before is None else before.opened_ms,
                updated_ms=draft.now_ms,
                uri="",
                announced_by=cut(each.announced_by),
                error=cut(each.error),
                text=cut(each.text),
            )
            await draft.put_shard(request.source, identity, row, before)
            found.append(shown_shard(identity, row, None, draft.now_ms))
        return Shards(found)

    return draft_step(body, sum(len(each.text) for each in request.announcements))


def reopen_shard_step(request: ReopenShard) -> Step:
    check_text(request.id, "a shard's id")
    if is_announcement(request.id):
        raise InvalidError(
            "an announcement cannot be loaded", hint="announce the file that it meant"
        )

    async def body(draft: Draft) -> Shards:
        source = await draft.source(request.source)
        before = await draft.shard(request.source, request.id)
        if before is None:
            if request.force:
                return Shards([])
            raise NotFoundError(
                f"{request.id} is not remembered: it was never announced, or too long ago",
                hint="check the name; with --force it is loaded, even if it was before",
            )
        row = _reopened(before, request, draft.now_ms)
        if source.identity is IdentityBy.URI:
            row = replace(row, etag=None)  # whoever asks for it has looked at the file
        await draft.put_shard(request.source, request.id, row, before)
        return Shards([shown_shard(request.id, row, None, draft.now_ms)])

    return draft_step(body)


def _reopened(row: ShardRow, request: ReopenShard, now_ms: int) -> ShardRow:
    if not row.terminal and row.token != RELEASED and not is_stale(row, now_ms):
        raise ConflictError(f"{request.id} is being loaded", hint="wait until it has ended")
    if row.phase is ShardPhase.EOF:
        if not request.force:
            raise InvalidError(
                f"{request.id} is loaded", hint="with --force its rows are loaded once more"
            )
        row = replace(row, place=Place.BOF, offset=0, rows=0, opened_ms=now_ms)
    return replace(
        row, phase=ShardPhase.OPEN, token=RELEASED, failures=0, error="", updated_ms=now_ms
    )
