"""Work in the background: merge, collect, fold, revoke; one step at a time, found by a timer's key.

Contract     `plan_chore(store, what)` reads what it needs and returns the next step, or None when
             there is nothing to do. Submit it; while the reply is true, plan again. Every step
             checks again what it was planned on, so plans may be made at any time and be thrown
             away. `pending_chores` and `pending_merges` find after a restart what timers would have
             told.
Keys         ("merge", log id)   ("collect", None)   ("staging", staging id)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from penstock.codec.keys import KeyType, open_key, prefix, prefix_end
from penstock.codec.staging import Phase, decode_staging
from penstock.errors import CorruptError
from penstock.log.collect import next_garbage, plan_collect
from penstock.log.decision import StateKey, Step, Timer
from penstock.log.fold import plan_fold
from penstock.log.merge import plan_merge
from penstock.log.staging import revoke_step
from penstock.log.state import LogState, read_log
from penstock.log.timers import garbage_due, merge_due, staging_due
from penstock.store.port import Store

_log = logging.getLogger("penstock")

#: How many logs one part of the search looks at.
FOUND_LOGS = 256


async def plan_chore(store: Store, what: StateKey, state: LogState | None = None) -> Step | None:
    """`state` spares a merge the reading, if the log is in memory."""
    match what:
        case ("merge", int(log_id)):
            state = state or await read_log(store, log_id)
            return None if state is None else await plan_merge(store, state)
        case ("collect", _):
            return await _plan_garbage(store)
        case ("staging", int(staging_id)):
            return await plan_fold(store, staging_id) or revoke_step(staging_id)
    raise AssertionError(f"no such chore: {what}")


async def _plan_garbage(store: Store) -> Step | None:
    """The first garbage that can be read; damaged rows are reported and do not block the others."""
    row = await next_garbage(store)
    while row is not None:
        try:
            return await plan_collect(store, *row)
        except CorruptError as error:
            _log.error("upkeep: %s", error)
            row = await next_garbage(store, after=row[0])
    return None


async def pending_chores(store: Store) -> AsyncIterator[Timer]:
    """Garbage and stagings that wait in the rows; times that are past mean now."""
    if await next_garbage(store) is not None:
        yield garbage_due(0)
    async for key, value in _rows(store, KeyType.STAGING):
        staging_id = open_key(key, KeyType.STAGING).u64_key("staging id")
        try:
            row = decode_staging(value, staging_id)
        except CorruptError as error:  # whoever links it hears of it, too
            _log.error("upkeep: %s", error)
            continue
        if row.phase is not Phase.REVOKED:
            yield staging_due(staging_id, row.deadline_ms if row.phase is Phase.OPEN else 0)


async def pending_merges(store: Store, after: bytes) -> tuple[list[Timer], bytes | None]:
    """Logs with closed runs, a part of them at a time: -> timers, and where to go on.

    It reads the tail of every log. One that cannot be read is left to whoever reads it.
    """
    due: list[Timer] = []
    seen = 0
    low = after or prefix(KeyType.LOG)
    async for rows in store.scan(low, prefix_end(prefix(KeyType.LOG)), batch_rows=FOUND_LOGS):
        for key, _ in rows:
            log_id = open_key(key, KeyType.LOG).u64_key("log id")
            try:
                state = await read_log(store, log_id)
            except CorruptError as error:
                _log.error("upkeep: %s", error)
                continue
            if state is not None and state.closed:
                due.append(merge_due(log_id, 0))
        seen += len(rows)
        if seen >= FOUND_LOGS:
            return due, rows[-1][0] + b"\x00"
    return due, None


async def _rows(store: Store, kind: KeyType) -> AsyncIterator[tuple[bytes, bytes]]:
    async for rows in store.scan(prefix(kind), prefix_end(prefix(kind))):
        for row in rows:
            yield row
