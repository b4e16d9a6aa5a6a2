"""Staging: bulk output arrives as hidden nodes, in small commits, and is linked by one.

Contract     begin -> id; stage(id, writer, n, bodies) any number of times, by any number of
             writers; link(id, parts) names the winning writers in order, per log. Linking assigns
             offsets and the commit's time to all of them at once and copies nothing: a link row
             takes the place of each node. Linking again replies with the first answer.
Phases       begin -> [open] -- link --> [linked] -- folded (fold.py) --> gone
                        '-- lease over, revoke --> [revoked] -- collected (collect.py) --> gone
Invariants   G1  a writer's nodes are numbered densely from 0, and each is staged before it is
             linked G2  what is revoked or unknown is never linked: ConflictError, NotFoundError G3
             staging renews the lease; only an expired one is revoked, unless forced
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from penstock.codec.garbage import encode_garbage
from penstock.codec.keys import (
    Scope,
    garbage_key,
    log_key,
    node_key,
    once_key,
    prefix_end,
    staged_key,
    staged_prefix,
    staging_key,
)
from penstock.codec.node import Body, StagedId, link_value, node_value
from penstock.codec.scalars import NEVER_MS, U64_MAX
from penstock.codec.staging import Counts, Part, Phase, StagingRow, decode_staging, encode_staging
from penstock.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from penstock.log.catalogue import (
    Ids,
    LogName,
    States,
    Target,
    find_target,
    load_ids,
    load_target,
    make_target,
    take_id,
)
from penstock.log.decision import Decision, Now, StateKey, Step, View
from penstock.log.once import ONCE_MS, check, once_value
from penstock.log.overlay import Overlay
from penstock.log.place import Rows, check_end
from penstock.log.state import NO_RUN, LogState, log_row, settle, state_key
from penstock.log.timers import garbage_due, merge_due, staging_due

#: One stage commit; the one writer is not held up longer than this takes.
STAGE_BYTES_MAX = 4 << 20
LEASE_MS = 60_000


def staging_state_key(staging_id: int) -> StateKey:
    return ("staging", staging_id)


async def load_staging(view: View, staging_id: int) -> None:
    if view.state(staging_state_key(staging_id)) is None:
        value = await view.store.get(staging_key(staging_id))
        if value is not None:
            view.keep(staging_state_key(staging_id), decode_staging(value, staging_id))


def _shown(view: View, staging_id: int) -> StagingRow:
    row: StagingRow | None = view.state(staging_state_key(staging_id))
    if row is None:
        raise NotFoundError(f"staging {staging_id} does not exist")
    return row


def _changed(staging_id: int, row: StagingRow) -> tuple[Rows, States]:
    return (
        {staging_key(staging_id): encode_staging(row)},
        {staging_state_key(staging_id): row},
    )


# ---- begin and stage ----------------------------------------------------------------------------


def begin_step(*, lease_ms: int = LEASE_MS) -> Step:
    """-> staging id"""
    if lease_ms <= 0:
        raise InvalidError(f"a lease of {lease_ms} ms")

    async def load(view: View) -> None:
        await load_ids(view, Ids.STAGING)

    def decide(view: View, now: Now) -> Decision:
        staging_id, rows, states = take_id(view, Ids.STAGING)
        row = StagingRow(Phase.OPEN, lease_ms, _deadline(now, lease_ms))
        own_rows, own_states = _changed(staging_id, row)
        return Decision(
            reply=staging_id,
            writes=rows | own_rows,
            states={**states, **own_states},
            timers=(staging_due(staging_id, row.deadline_ms),),
        )

    return Step(decide, load)


def _deadline(now: Now, lease_ms: int) -> int:
    return min(now.ms + lease_ms, NEVER_MS)


def stage_step(staging_id: int, writer: int, n: int, bodies: Sequence[Body]) -> Step:
    """-> how many nodes this writer has staged. `n` is the number of the first of these.

    Staging the same numbers again, after a lost answer, replaces the nodes with the same ones.
    """
    size = sum(len(body.stored) for body in bodies)
    if size > STAGE_BYTES_MAX and len(bodies) > 1:
        raise InvalidError(f"{size} bytes in one staging; at most {STAGE_BYTES_MAX} are allowed")
    if not 0 <= writer <= U64_MAX or n < 0:
        raise InvalidError(f"writer {writer}, node {n} cannot be staged")

    async def load(view: View) -> None:
        await load_staging(view, staging_id)

    def decide(view: View, now: Now) -> Decision:
        row = _shown(view, staging_id)
        if row.phase is not Phase.OPEN:
            raise ConflictError(f"staging {staging_id} is {row.phase.name.lower()}")
        writers = dict(row.writers)
        counts = _extended(writers.get(writer, ()), n, bodies, writer)
        if counts:
            writers[writer] = counts
        renewed = msgspec.structs.replace(
            row,
            deadline_ms=_deadline(now, row.lease_ms),
            writers=tuple(sorted(writers.items())),
        )
        rows, states = _changed(staging_id, renewed)
        for i, body in enumerate(bodies):
            rows[staged_key(staging_id, writer, n + i)] = node_value(body, 0, 0)
        return Decision(
            reply=len(counts),
            writes=rows,
            states={**states},
            timers=(staging_due(staging_id, renewed.deadline_ms),),
        )

    return Step(decide, load)


def _extended(counts: Counts, n: int, bodies: Sequence[Body], writer: int) -> Counts:
    if n > len(counts):
        raise InvalidError(f"writer {writer} staged {len(counts)} nodes; node {n} leaves a gap")
    new = tuple(body.count for body in bodies)
    known = counts[n : n + len(new)]
    if known != new[: len(known)]:
        raise ConflictError(f"writer {writer} staged other nodes at {n}")
    return counts + new[len(known) :]


# ---- link ---------------------------------------------------------------------------------------


def link_step(
    staging_id: int,
    parts: Sequence[tuple[Target, Sequence[int]]],
    *,
    once_ms: int = ONCE_MS,
) -> Step:
    """-> a range of offsets per part: a log, and the writers whose nodes it gets, in order."""
    named = [writer for _, writers in parts for writer in writers]
    if len(named) != len(set(named)):
        raise InvalidError("a writer is named twice")
    key = once_key(Scope.LINK, staging_id, b"")

    async def load(view: View) -> None:
        await view.fetch(key)
        await load_staging(view, staging_id)
        for target, _ in parts:
            await load_target(view, target, make=True)

    def decide(view: View, now: Now) -> Decision:
        known = check(view.row(key), 0, now.ms)
        if known is not None:
            return Decision(reply=_decode_answer(known.answer, staging_id))
        row = _shown(view, staging_id)
        if row.phase is not Phase.OPEN:
            raise ConflictError(f"staging {staging_id} is {row.phase.name.lower()}")
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
        rows, states = _changed(staging_id, done)
        rows[key] = once_value(0, _encode_answer(ranges), now.ms, once_ms)
        return Decision(
            reply=tuple(ranges),
            writes=shown.rows | rows,
            states={**shown.states, **states},
            timers=(
                staging_due(staging_id, now.ms),
                # A link row ends the active run of its log.
                *(merge_due(log_id, now.ms) for log_id in {part.log_id for part in linked}),
            ),
        )

    return Step(decide, load)


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


# ---- revoke -------------------------------------------------------------------------------------


def revoke_step(staging_id: int, *, force: bool = False) -> Step:
    """-> whether it was revoked, its lease being over or by `force`. Its nodes are garbage then."""

    async def load(view: View) -> None:
        await load_staging(view, staging_id)

    def decide(view: View, now: Now) -> Decision:
        row: StagingRow | None = view.state(staging_state_key(staging_id))
        if row is None or row.phase is not Phase.OPEN:
            return Decision(reply=False)
        if not force and now.ms < row.deadline_ms:
            return Decision(reply=False, timers=(staging_due(staging_id, row.deadline_ms),))
        rows, states = _changed(staging_id, msgspec.structs.replace(row, phase=Phase.REVOKED))
        low = staged_prefix(staging_id)
        rows[garbage_key(low)] = encode_garbage(prefix_end(low))
        return Decision(
            reply=True,
            writes=rows,
            states={**states},
            timers=(garbage_due(now.ms),),
        )

    return Step(decide, load)
