"""Publishing: splits enter the table and shards move on, in one commit or not at all.

Contract     Decided against the newest rows. Accepted only if the staging is live and the caller's,
             the schema is the newest, and every shard is open under the caller's token at exactly
             the position where the caller began to read. Otherwise nothing of it happens, except
             that the staging is revoked: the caller discards its splits. Who repeats a publish id
             gets the first answer, whatever happened since.
Invariants   P1  the rows of a split are those between the old and the new positions: what lies
                 between two positions of a shard is published once
             P2  publish sequences are dense: 1, 2, 3, … Those without splits have none
Not here     Whether a table has them (the export loop, which asks the table).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.keys import Scope, once_key, published_key
from penstock.codec.published import PublishedRow, SplitRow, encode_published
from penstock.codec.scalars import U64_MAX
from penstock.codec.shard import Place, ShardPhase, ShardRow
from penstock.codec.source import SourceRow
from penstock.codec.splits import SplitsPhase, SplitsRow
from penstock.errors import CorruptError, InvalidError
from penstock.log.decision import Step
from penstock.log.once import check, once_value
from penstock.source.draft import Draft, draft_step
from penstock.source.requests import Move, Publish, Published, Reason, Refused
from penstock.source.shards import owns
from penstock.source.staging import end_staging, revoke
from penstock.source.words import (
    KEY_BYTES_MAX,
    check_count,
    check_position,
    check_text,
    check_token,
)

#: How long a repeated publish gets its first answer. Later it is refused: its shards moved on.
REMEMBERED_MS = 24 * 3600 * 1000
SPLITS_MAX = 100_000
STATS_BYTES_MAX = 1 << 20
#: Of one publish: names, paths and stats. It is one commit, and one request.
PUBLISH_BYTES_MAX = 24 << 20

_Places = list[tuple[Place, int]]


def publish_step(request: Publish) -> Step:
    token = check_token(request.token)
    check_text(request.publish_id, "a publish id", KEY_BYTES_MAX)
    starts, ends = _check_moves(request.moves)
    _check_splits(request)
    size = sum(len(split.path) + len(split.stats) for split in request.splits)
    size += sum(len(move.id) for move in request.moves)
    if size > PUBLISH_BYTES_MAX:
        raise InvalidError(
            f"a publish of {size:,} bytes; at most {PUBLISH_BYTES_MAX:,} are allowed",
            hint="publish fewer splits at once, or with shorter stats",
        )
    named = once_key(Scope.PUBLISH, request.source, request.publish_id.encode())

    async def body(draft: Draft) -> Published | Refused:
        source = await draft.source(request.source)
        if (known := check(await draft.row(named), 0, draft.now_ms)) is not None:
            return _first_answer(known.answer)
        staging = (
            None
            if request.staging is None
            else await draft.staging(request.source, request.staging)
        )
        ids = [move.id for move in request.moves]
        rows = await draft.shards(request.source, ids)
        refused = _refused(request, source, staging, token) or _losers(ids, rows, starts, token)
        answer: Published | Refused
        if refused is not None:
            answer = refused
            if request.staging is not None and _live(staging, token):
                assert staging is not None
                revoke(draft, request.source, request.staging, staging)
        else:
            answer = await _publish(draft, request, staging, rows, ends)
        draft.rows[named] = once_value(
            0, msgspec.json.encode(answer), draft.now_ms, keep_ms=REMEMBERED_MS
        )
        return answer

    return draft_step(body, size)


def _check_moves(moves: Sequence[Move]) -> tuple[_Places, _Places]:
    check_count(moves, "moves")
    if not moves:
        raise InvalidError("a publish moves at least one shard")
    if len({move.id for move in moves}) < len(moves):
        raise InvalidError("a publish moves a shard twice")
    starts, ends = [], []
    for move in moves:
        check_text(move.id, "a shard's id")
        start, end = check_position(move.start), check_position(move.end)
        if end <= start:
            raise InvalidError(f"{move.id}: from {move.start} to {move.end} is not forward")
        if not 0 <= move.rows <= U64_MAX:
            raise InvalidError(f"{move.id}: {move.rows} rows")
        if move.version is not None:
            check_text(move.version, "a version")
        starts.append(start)
        ends.append(end)
    return starts, ends


def _check_splits(request: Publish) -> None:
    if len(request.splits) > SPLITS_MAX:
        raise InvalidError(
            f"{len(request.splits):,} splits at once; at most {SPLITS_MAX:,} are allowed"
        )
    if request.splits and request.staging is None:
        raise InvalidError("splits are staged before they are published", hint="begin a staging")
    if len({split.path for split in request.splits}) < len(request.splits):
        raise InvalidError("a split is published twice")
    for split in request.splits:
        check_text(split.path, "the path of a split")
        if split.stats:
            check_text(split.stats, "the stats of a split", STATS_BYTES_MAX)
        if not (0 <= split.rows <= U64_MAX and 0 <= split.bytes <= U64_MAX):
            raise InvalidError(f"{split.path}: {split.rows} rows, {split.bytes} bytes")


def _live(staging: SplitsRow | None, token: bytes) -> bool:
    return staging is not None and staging.phase is SplitsPhase.LIVE and staging.token == token


def _refused(
    request: Publish, source: SourceRow, staging: SplitsRow | None, token: bytes
) -> Refused | None:
    reason: Reason
    if request.staging is not None and not _live(staging, token):
        reason = "staging"
    elif request.schema_version != source.schema_version:
        reason = "schema"
    else:
        return None
    return Refused(reason, [])


def _losers(
    ids: Sequence[str], rows: Sequence[ShardRow | None], starts: _Places, token: bytes
) -> Refused | None:
    losers = [
        identity
        for identity, row, start in zip(ids, rows, starts, strict=True)
        if row is None or not owns(row, token) or (row.place, row.offset) != start
    ]
    return Refused("shards", losers) if losers else None


async def _publish(
    draft: Draft,
    request: Publish,
    staging: SplitsRow | None,
    rows: Sequence[ShardRow | None],
    ends: _Places,
) -> Published:
    for move, row, (place, offset) in zip(request.moves, rows, ends, strict=True):
        assert row is not None, "its owner was looked at"
        moved = msgspec.structs.replace(
            row,
            phase=ShardPhase.EOF if place is Place.EOF else ShardPhase.OPEN,
            place=place,
            offset=offset,
            rows=row.rows + move.rows,
            failures=0,  # it goes on: what counts is how often in a row it does not
            error="",
            etag=row.etag if move.version is None else move.version,
            updated_ms=draft.now_ms,
        )
        await draft.put_shard(request.source, move.id, moved, row)
    source = await draft.source(request.source)
    sequence = source.published
    if request.splits:
        sequence += 1
        draft.rows[published_key(request.source, sequence)] = encode_published(
            PublishedRow(
                request.schema_version,
                draft.now_ms,
                tuple(
                    SplitRow(split.path, split.rows, split.bytes, split.stats)
                    for split in request.splits
                ),
            )
        )
        draft.put_source(request.source, msgspec.structs.replace(source, published=sequence))
    if request.staging is not None and staging is not None:
        if request.splits:
            end_staging(draft, request.source, request.staging, staging)
        else:
            # Nothing of it is in the table: whatever was written there is to be deleted.
            revoke(draft, request.source, request.staging, staging)
    return Published(sequence)


def _first_answer(raw: bytes) -> Published | Refused:
    try:
        return msgspec.json.decode(raw, type=Published | Refused)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptError(f"the answer to a publish cannot be read: {error}") from None
