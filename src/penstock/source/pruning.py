"""Forgetting: the dedup window of a source, by age and by count.

Contract     Only terminal shards are forgotten, the oldest first: those that ended longer ago than
             the source's age, and those above its count that the queue cannot deliver any more
             (`horizon_ms`). Publish rows go when the table has them and the age is over.
Debounced    in the broker: however many processes end shards, it looks once a minute (draft.py),
             and by itself when the next one is due.
Not here     Who calls it (broker/sourcekeeping.py).
"""

from __future__ import annotations

import msgspec

from penstock.codec.keys import KeyType, ended_key, prefix_end, published_key, source_prefix
from penstock.codec.published import decode_published
from penstock.codec.shard import decode_ended_key
from penstock.codec.source import SourceRow
from penstock.errors import CorruptError
from penstock.log.decision import Step
from penstock.source.draft import PRUNE_MS, Draft, draft_step

#: So many rows go in one commit.
PRUNED_ROWS = 1000


class Pruned(msgspec.Struct, frozen=True):
    removed: int
    next_ms: int | None  # when to look again; None: when the next shard ends


def window_warning(source: SourceRow) -> str | None:
    if source.prune_age_ms >= source.horizon_ms:
        return None
    return (
        f"loaded files are remembered for {_shown(source.prune_age_ms)}, but the queue may "
        f"announce them again for {_shown(source.horizon_ms)}: what comes later is loaded twice"
    )


def _shown(ms: int) -> str:
    for unit, size in (("days", 86_400_000), ("hours", 3_600_000), ("seconds", 1000)):
        if ms >= 2 * size or unit == "seconds":
            return f"{ms / size:,.4g} {unit}"
    raise AssertionError("the last unit takes all")


def due_ms(source: SourceRow, ended_ms: int, older: int) -> int:
    """From when on a shard that ended then may go; `older` ones ended before it."""
    by_age = ended_ms + source.prune_age_ms
    if older < source.done + source.failed - source.prune_count:
        return min(by_age, ended_ms + source.horizon_ms)
    return by_age


def prune_step(source_id: int) -> Step:
    """-> Pruned. At most PRUNED_ROWS of each kind go; `next_ms` is now where there are more."""

    async def body(draft: Draft) -> Pruned:
        source = await draft.source(source_id)
        # Due times rise with the time of ending: the first that has to stay ends it.
        removed, next_ms = 0, None
        for older, (ended_ms, identity) in enumerate(await _oldest(draft, source_id)):
            due = due_ms(source, ended_ms, older)
            if due > draft.now_ms or removed >= PRUNED_ROWS:
                next_ms = max(due, draft.now_ms + PRUNE_MS) if due > draft.now_ms else draft.now_ms
                break
            shard = await draft.shard(source_id, identity)
            if shard is None or not shard.terminal:
                raise CorruptError(f"source {source_id}: {identity!r} did not end")
            await draft.drop_shard(source_id, identity, shard)
            removed += 1
        gone, publish_ms = await _prune_publishes(draft, source_id)
        times = [each for each in (next_ms, publish_ms) if each is not None]
        return Pruned(removed + gone, min(times, default=None))

    return draft_step(body)


async def _oldest(draft: Draft, source_id: int) -> list[tuple[int, str]]:
    """One more than may go: to know when the next one does."""
    low = source_prefix(KeyType.ENDED, source_id)
    found: list[tuple[int, str]] = []
    async for rows in draft.view.store.scan(low, prefix_end(low)):
        for key, _ in rows:
            if await draft.row(key) is None:
                continue  # reopened by an earlier step of this tick
            _, ended_ms, identity = decode_ended_key(key)
            assert key == ended_key(source_id, ended_ms, identity.encode())
            found.append((ended_ms, identity))
            if len(found) > PRUNED_ROWS:
                return found
    return found


async def _prune_publishes(draft: Draft, source_id: int) -> tuple[int, int | None]:
    source = await draft.source(source_id)
    sequence, next_ms = source.first_publish, None
    while sequence <= source.exported:
        if sequence - source.first_publish >= PRUNED_ROWS:
            next_ms = draft.now_ms
            break
        key = published_key(source_id, sequence)
        if (value := await draft.row(key)) is None:
            raise CorruptError(f"publish {sequence} of source {source_id} is missing")
        due = decode_published(value).time_ms + source.prune_age_ms
        if due > draft.now_ms:
            next_ms = max(due, draft.now_ms + PRUNE_MS)
            break
        draft.rows[key] = None
        sequence += 1
    gone = sequence - source.first_publish
    if gone:
        draft.put_source(source_id, msgspec.structs.replace(source, first_publish=sequence))
    return gone, next_ms
