"""Shards: who loads which file, how far it is, and what became of it.

Contract     Steps, decided in the order in which they arrive, against the newest rows: of two who
             want a shard one has it, and the other is told whose it is.
States       open --> [open, owned] -- publish to EOF --> [eof]        (publish.py)
                         |   ^   `---- too many failures --> [failed]
                 release |   | open, or acquire when its owner was silent for too long
                 or fail v   |
                      [open, released]            reopen: [eof], [failed] --> [open, released]
Invariants   S1  an open shard has at most one owner, and only its owner can move or fail it
             S2  a position only grows, until somebody reopens a shard that was loaded
             S3  terminal shards stay as they are: no open, acquire, beat or failure touches them
Time         Opening, acquiring, publishing and beating refresh it, so that what was just taken over
             cannot be taken at once by the next.
Not here     Publishing (publish.py), reopening (ended.py), forgetting (pruning.py), what a runner
             does with an answer (coordinate.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.codec.shard import RELEASED, Place, ShardKind, ShardPhase, ShardRow
from penstock.codec.splits import SplitsPhase
from penstock.errors import InvalidError
from penstock.log.decision import Step
from penstock.source.draft import Draft, draft_step
from penstock.source.identity import is_announcement
from penstock.source.requests import (
    AcquireShards,
    Beat,
    Beaten,
    FailShards,
    OpenShards,
    Phase,
    ReleaseShards,
    Shard,
    ShardOpen,
    Shards,
)
from penstock.source.requests import ShardKind as KindWord
from penstock.source.words import (
    check_count,
    check_ids,
    check_stale,
    check_text,
    check_token,
    cut,
    shown_position,
    shown_token,
)

_KINDS: dict[ShardKind, KindWord] = {
    ShardKind.FILE: "file",
    ShardKind.INLINE: "inline",
    ShardKind.ANNOUNCEMENT: "announcement",
}
PHASES: dict[ShardPhase, Phase] = {
    ShardPhase.OPEN: "open",
    ShardPhase.EOF: "eof",
    ShardPhase.FAILED: "failed",
}


def shown_shard(identity: str, row: ShardRow, token: bytes | None, now_ms: int) -> Shard:
    return Shard(
        id=identity,
        uri=row.uri,
        kind=_KINDS[row.kind],
        phase=PHASES[row.phase],
        position=shown_position(row),
        token=shown_token(row.token),
        mine=row.token == token,
        stale=is_stale(row, now_ms),
        rows=row.rows,
        failures=row.failures,
        error=row.error,
        etag=row.etag,
        announced_by=row.announced_by,
        text=row.text,
        opened_ms=row.opened_ms,
        updated_ms=row.updated_ms,
    )


def is_stale(row: ShardRow, now_ms: int) -> bool:
    """Its owner was silent for as long as it said it would never be."""
    return not row.terminal and row.token != RELEASED and now_ms - row.updated_ms >= row.stale_ms


def owns(row: ShardRow | None, token: bytes) -> bool:
    return row is not None and not row.terminal and row.token == token


def open_shards_step(request: OpenShards) -> Step:
    token = check_token(request.token)
    check_stale(request.stale_ms)
    check_count(request.shards, "shards")
    for each in request.shards:
        _check_open(each)

    async def body(draft: Draft) -> Shards:
        await draft.source(request.source)
        found = []
        for each in request.shards:
            before = await draft.shard(request.source, each.id)
            row = _opened(before, each, token, request.stale_ms, draft.now_ms)
            if row is not before:
                await draft.put_shard(request.source, each.id, row, before)
            found.append(shown_shard(each.id, row, token, draft.now_ms))
        return Shards(found)

    return draft_step(body, sum(len(each.id) + len(each.uri) for each in request.shards))


def _check_open(shard: ShardOpen) -> None:
    check_text(shard.id, "a shard's id")
    check_text(shard.uri, "a URI")
    if shard.etag is not None:
        check_text(shard.etag, "an etag")
    if is_announcement(shard.id):
        raise InvalidError(f"{shard.id[:80]!r} is the id of an announcement, not of a file")


def _opened(
    row: ShardRow | None, shard: ShardOpen, token: bytes, stale_ms: int, now_ms: int
) -> ShardRow:
    if row is None:
        return ShardRow(
            kind=ShardKind.FILE if shard.kind == "file" else ShardKind.INLINE,
            phase=ShardPhase.OPEN,
            token=token,
            stale_ms=stale_ms,
            place=Place.BOF,
            offset=0,
            rows=0,
            failures=0,
            opened_ms=now_ms,
            updated_ms=now_ms,
            uri=shard.uri,
            etag=shard.etag,
            announced_by=cut(shard.announced_by),
        )
    if row.terminal or row.token not in (token, RELEASED):
        return row
    return replace(row, token=token, stale_ms=stale_ms, updated_ms=now_ms)


def acquire_shards_step(request: AcquireShards) -> Step:
    token = check_token(request.token)
    check_stale(request.stale_ms)
    check_ids([each.id for each in request.shards])
    wanted = [(each.id, check_token(each.old_token)) for each in request.shards]

    async def body(draft: Draft) -> Shards:
        await draft.source(request.source)
        found = []
        for identity, old in wanted:
            row = before = await draft.shard(request.source, identity)
            if row is None:
                continue
            # Decided here, not where it was seen: the owner may have come back meanwhile, and
            # another may have been faster. Of an answer that was lost, the repetition is mine.
            if (row.token == old and is_stale(row, draft.now_ms)) or owns(row, token):
                row = replace(row, token=token, stale_ms=request.stale_ms, updated_ms=draft.now_ms)
                await draft.put_shard(request.source, identity, row, before)
            found.append(shown_shard(identity, row, token, draft.now_ms))
        return Shards(found)

    return draft_step(body)


def beat_step(request: Beat) -> Step:
    token = check_token(request.token)
    check_ids(request.shards)
    check_count(request.stagings, "stagings")

    async def body(draft: Draft) -> Beaten:
        await draft.source(request.source)
        lost, lost_stagings = [], []
        for identity in request.shards:
            row = await draft.shard(request.source, identity)
            if row is None or not owns(row, token):
                lost.append(identity)
                continue
            beaten = replace(row, updated_ms=draft.now_ms)
            await draft.put_shard(request.source, identity, beaten, row)
        for staging_id in request.stagings:
            staging = await draft.staging(request.source, staging_id)
            if staging is None or (staging.phase, staging.token) != (SplitsPhase.LIVE, token):
                lost_stagings.append(staging_id)
                continue
            draft.put_staging(request.source, staging_id, replace(staging, updated_ms=draft.now_ms))
        return Beaten(lost, lost_stagings)

    return draft_step(body)


def release_shards_step(request: ReleaseShards) -> Step:
    token = check_token(request.token)
    check_ids(request.shards)
    reasons = {identity: cut(text) for identity, text in request.reasons.items()}
    for other in reasons.keys() - set(request.shards):
        raise InvalidError(f"a reason is given for {cut(other)!r}, which is not released")

    async def body(draft: Draft) -> Shards:
        await draft.source(request.source)
        changes = {
            identity: replace(
                row,
                token=RELEASED,
                error=reasons.get(identity, row.error),
                updated_ms=draft.now_ms,
            )
            for identity, row in await _owned(draft, request.source, token, request.shards)
        }
        return await _told(draft, request.source, token, request.shards, changes)

    return draft_step(body)


def fail_shards_step(request: FailShards) -> Step:
    token = check_token(request.token)
    check_ids([each.id for each in request.failures])
    failures = {each.id: each for each in request.failures}
    if len(failures) < len(request.failures):
        raise InvalidError("a shard is named twice")

    async def body(draft: Draft) -> Shards:
        max_failures = (await draft.source(request.source)).max_failures
        changes = {}
        for identity, row in await _owned(draft, request.source, token, list(failures)):
            failed = replace(
                row,
                # Released: whoever is delivered the announcement next may try at once. It also
                # makes the repetition of a lost answer count nothing.
                token=RELEASED,
                failures=row.failures + 1,
                error=cut(failures[identity].error),
                updated_ms=draft.now_ms,
            )
            if failures[identity].final or 0 < max_failures <= failed.failures:
                failed = replace(failed, phase=ShardPhase.FAILED)
            changes[identity] = failed
        return await _told(draft, request.source, token, list(failures), changes)

    return draft_step(body)


async def _owned(
    draft: Draft, source_id: int, token: bytes, ids: Sequence[str]
) -> list[tuple[str, ShardRow]]:
    rows = zip(ids, await draft.shards(source_id, ids), strict=True)
    return [(identity, row) for identity, row in rows if row is not None and owns(row, token)]


async def _told(
    draft: Draft, source_id: int, token: bytes, ids: Sequence[str], changes: dict[str, ShardRow]
) -> Shards:
    """Make the changes, and tell how each of these is now."""
    for identity, row in changes.items():
        await draft.put_shard(source_id, identity, row, await draft.shard(source_id, identity))
    found = zip(ids, await draft.shards(source_id, ids), strict=True)
    return Shards(
        [
            shown_shard(identity, row, token, draft.now_ms)
            for identity, row in found
            if row is not None
        ]
    )
