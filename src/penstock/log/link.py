"""Linking: the one small commit that makes staged nodes part of their logs.

Contract     `link_step(id, parts)` names the winning writers in order, per log. It assigns offsets
             and the commit's time to all of them at once and copies nothing: a link row takes the
             place of each node (fold.py makes nodes of them later). Linking again replies with the
             first answer and writes nothing.
Producers    `produced` names the batch (producer.py), for a link into one log. One that was written
             before, through another staging or none, is answered with its offsets: nothing is
             linked, and this staging is left to be revoked.
Invariants   All parts are linked or none. A staging is linked at most once, and only while open.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from penstock.codec.keys import Scope, log_key, node_key, once_key
from penstock.codec.node import StagedId, link_value
from penstock.codec.scalars import NEVER_MS
from penstock.codec.staging import Part, Phase, StagingRow
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.log.catalogue import LogName, Target, find_target, load_target, make_target
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.once import ONCE_MS, check, once_value
from penstock.log.overlay import Overlay
from penstock.log.place import check_end
from penstock.log.producer import Produced, produced_rows, repeated
from penstock.log.staging import changed_staging, load_staging, open_staging, payload_garbage
from penstock.log.state import NO_RUN, LogState, log_row, settle, state_key
from penstock.log.timers import garbage_due, merge_due, staging_due


def link_step(
    staging_id: int,
    parts: Sequence[tuple[Target, Sequence[int]]],
    *,
    produced: Produced | None = None,
    once_ms: int = ONCE_MS,
) -> Step:
    """-> a range of offsets per part: a log, and the writers whose nodes it gets, in order."""
    named = [writer for _, writers in parts for writer in writers]
    if len(named) != len(set(named)):
        raise InvalidError("a writer is named twice")
    assert produced is None or len(parts) == 1, "a producer's sequence is that of one log"
    key = once_key(Scope.LINK, staging_id, b"")

    async def load(view: View) -> None:
        await view.fetch(key)
        await load_staging(view, staging_id)
        for target, _ in parts:
            log_id = await load_target(view, target, make=True)
            if produced is not None and log_id is not None:
                await view.fetch(produced.key(log_id))

    def decide(view: View, now: Now) -> Decision:
        known = check(view.row(key), 0, now.ms)
        if known is not None:
            return Decision(reply=_decode_answer(known.answer, staging_id))
        if produced is not None:
            before = _before(view, parts[0][0], produced, now)
            if before is not None:
                return Decision(reply=(before,))
        row = open_staging(view, staging_id)
        shown = Overlay(view)
        linked: list[Part] = []
        ranges: list[range] = []
        for target, writers in parts:
            state = _log(shown, target, now)
            grown, placed = _link_writers(shown, state, staging_id, row, writers, now.ms)
            shown.states[state_key(state.log_id)] = grown
            linked += placed
            ranges.append(range(state.next, grown.next))
        done = msgspec.structs.replace(
            row,
            phase=Phase.LINKED,
            deadline_ms=NEVER_MS,
            linked_ms=now.ms,
            parts=tuple(linked),
        )
        rows, states = changed_staging(staging_id, done)
        rows[key] = once_value(0, _encode_answer(ranges), now.ms, once_ms)
        if produced is not None:
            log_id = linked[0].log_id if linked else _log(shown, parts[0][0], now).log_id
            rows |= produced_rows(log_id, produced, ranges[0], now.ms)
        lost = [ids for ids in row.reserved if ids.writer not in named]
        rows |= payload_garbage(lost)
        return Decision(
            reply=tuple(ranges),
            writes=shown.rows | rows,
            states={**shown.states, **states},
            timers=(
                *((garbage_due(now.ms),) if lost else ()),
                staging_due(staging_id, now.ms),
                # A link row ends the active run of its log.
                *(merge_due(log_id, now.ms) for log_id in {part.log_id for part in linked}),
            ),
        )

    return Step(decide, load)


def _before(view: View, target: Target, produced: Produced, now: Now) -> range | None:
    state = find_target(view, target)
    return None if state is None else repeated(view, state.log_id, produced, now.ms)


def _log(shown: Overlay, target: Target, now: Now) -> LogState:
    state = find_target(shown, target)
    if state is not None:
        return state
    if not isinstance(target, LogName):
        raise NotFoundError(f"log {target} does not exist")
    state, rows, states = make_target(shown, target, now)
    shown.rows |= rows
    shown.states |= states
    return state


def _link_writers(
    shown: Overlay,
    state: LogState,
    staging_id: int,
    row: StagingRow,
    writers: Sequence[int],
    time_ms: int,
) -> tuple[LogState, list[Part]]:
    staged = dict(row.writers)
    parts: list[Part] = []
    at, size, nodes = state.next, 0, 0
    for writer in writers:
        if writer not in staged:
            raise NotFoundError(f"staging {staging_id}: writer {writer} staged nothing")
        parts.append(Part(state.log_id, writer, at))
        for n, count in enumerate(staged[writer]):
            value = link_value(
                StagedId(staging_id, writer, n), first=at, count=count, time_ms=time_ms
            )
            shown.rows[node_key(state.log_id, at)] = value
            at, size, nodes = at + count, size + len(value), nodes + 1
    check_end(at)
    closes = bool(nodes and state.run.fragments)
    grown = msgspec.structs.replace(
        state,
        next=at,
        stored_bytes=state.stored_bytes + size,
        unsettled_bytes=state.unsettled_bytes + size,
        unsettled_rows=state.unsettled_rows + nodes,
        run=NO_RUN if closes else state.run,
        closed=(*state.closed, state.run) if closes else state.closed,
    )
    settled = settle(grown)
    if settled is not grown:
        shown.rows[log_key(state.log_id)] = log_row(settled)
    return settled, parts


def _encode_answer(ranges: Sequence[range]) -> bytes:
    edges = [edge for found in ranges for edge in (found.start, found.stop)]
    return struct.pack(f"<{len(edges)}Q", *edges)


def _decode_answer(answer: bytes, staging_id: int) -> tuple[range, ...]:
    if len(answer) % 16:
        raise CorruptError(f"once row of staging {staging_id}: answer is {len(answer)} bytes")
    return tuple(range(*pair) for pair in struct.iter_unpack("<QQ", answer))
