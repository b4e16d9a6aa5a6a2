"""Staging: bulk output arrives as hidden nodes, in small commits, and is linked by one.

Contract     begin -> id; stage(id, writer, n, bodies) any number of times, by any number of
             writers; link(id, parts) at the end. Every stage commit is small, so that the one
             writer never stalls, and renews the lease. What is not linked in time is revoked.
             Who begins with a key shares the staging with all who use that key while it is open.
Messages     What will be published takes its ids while it is staged (reserve), and payload records
             go in with the nodes. Those of writers that do not win are garbage.
Phases       begin -> [open] -- link --> [linked] -- folded (fold.py) --> gone
                        '-- lease over, revoke --> [revoked] -- collected (collect.py) --> gone
Invariants   G1  a writer's nodes are numbered densely from 0, and staged before they are linked
             G2  what is revoked or unknown is never linked: ConflictError, NotFoundError
             G3  staging renews the lease; only an expired one is revoked, unless forced
Not here     linking (link.py), which names the winners.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.garbage import encode_garbage
from penstock.codec.keys import (
    Scope,
    garbage_key,
    once_key,
    payload_key,
    prefix_end,
    staged_key,
    staged_prefix,
    staging_key,
)
from penstock.codec.node import Body, node_value
from penstock.codec.scalars import NEVER_MS, U64_MAX
from penstock.codec.staging import (
    NODES_MAX,
    Counts,
    Phase,
    Reserved,
    StagingRow,
    decode_staging,
    encode_staging,
)
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.log.catalogue import Ids, States, load_ids, take_id, take_ids
from penstock.log.decision import Decision, Now, StateKey, Step, View
from penstock.log.once import check, once_value
from penstock.log.place import Rows
from penstock.log.timers import garbage_due, staging_due

#: One stage commit; the one writer is not held up longer than this takes.
STAGE_BYTES_MAX = 4 << 20
LEASE_MS = 60_000
KEY_BYTES_MAX = 255
#: The row of a staging names its writers, and is written with every part of each: with this many a
#: commit takes 20 ms.
WRITERS_MAX = 10_000
RESERVE_MAX = 1_000_000


def staging_state_key(staging_id: int) -> StateKey:
    return ("staging", staging_id)


async def load_staging(view: View, staging_id: int) -> None:
    if view.state(staging_state_key(staging_id)) is None:
        value = await view.store.get(staging_key(staging_id))
        if value is not None:
            view.keep(staging_state_key(staging_id), decode_staging(value, staging_id))


def shown_staging(view: View, staging_id: int) -> StagingRow:
    row: StagingRow | None = view.state(staging_state_key(staging_id))
    if row is None:
        raise NotFoundError(f"staging {staging_id} does not exist")
    return row


def changed_staging(staging_id: int, row: StagingRow) -> tuple[Rows, States]:
    return (
        {staging_key(staging_id): encode_staging(row)},
        {staging_state_key(staging_id): row},
    )


def begin_step(*, key: bytes | None = None, lease_ms: int = LEASE_MS) -> Step:
    """-> staging id; with a key that of the open staging that was begun with it, if there is one"""
    if lease_ms <= 0:
        raise InvalidError(f"a lease of {lease_ms} ms")
    if key is not None and not 0 < len(key) <= KEY_BYTES_MAX:
        raise InvalidError(f"a key of {len(key)} bytes; 1 to {KEY_BYTES_MAX} are allowed")
    named = None if key is None else once_key(Scope.STAGING, 0, key)

    async def load(view: View) -> None:
        await load_ids(view, Ids.STAGING)
        if named is not None:
            await view.fetch(named)
            if (known := _named(view, named)) is not None:
                await load_staging(view, known)

    def decide(view: View, now: Now) -> Decision:
        if named is not None and (known := _named(view, named)) is not None:
            row: StagingRow | None = view.state(staging_state_key(known))
            if row is not None and row.phase is Phase.OPEN:
                return Decision(reply=known)
        staging_id, rows, states = take_id(view, Ids.STAGING)
        row = StagingRow(Phase.OPEN, lease_ms, _deadline(now, lease_ms))
        own_rows, own_states = changed_staging(staging_id, row)
        if named is not None:
            own_rows[named] = once_value(0, staging_id.to_bytes(8, "little"), now.ms)
        return Decision(
            reply=staging_id,
            writes=rows | own_rows,
            states={**states, **own_states},
            timers=(staging_due(staging_id, row.deadline_ms),),
        )

    return Step(decide, load)


def _named(view: View, key: bytes) -> int | None:
    """Expired or not: which staging it names does not change."""
    known = check(view.row(key), 0, 0)
    return None if known is None else int.from_bytes(known.answer, "little")


def _deadline(now: Now, lease_ms: int) -> int:
    return min(now.ms + lease_ms, NEVER_MS)


def open_staging(view: View, staging_id: int) -> StagingRow:
    row = shown_staging(view, staging_id)
    if row.phase is not Phase.OPEN:
        raise ConflictError(f"staging {staging_id} is {row.phase.name.lower()}")
    return row


#: The id of the first message, and the record: its payload, or those of a block.
PayloadRow = tuple[int, bytes]


def stage_step(
    staging_id: int,
    writer: int,
    n: int,
    bodies: Sequence[Body],
    payloads: Sequence[PayloadRow] = (),
) -> Step:
    """-> how many nodes this writer has staged. `n` is the number of the first of these.

    Staging the same numbers again, after a lost answer, replaces the nodes with the same ones.
    """
    size = sum(len(body.stored) for body in bodies) + sum(len(value) for _, value in payloads)
    if size > STAGE_BYTES_MAX and len(bodies) + len(payloads) > 1:
        raise InvalidError(f"{size} bytes in one staging; at most {STAGE_BYTES_MAX} are allowed")
    if not 0 <= writer <= U64_MAX or n < 0:
        raise InvalidError(f"writer {writer}, node {n} cannot be staged")

    async def load(view: View) -> None:
        await load_staging(view, staging_id)

    def decide(view: View, now: Now) -> Decision:
        row = open_staging(view, staging_id)
        writers = dict(row.writers)
        counts = _extended(writers.get(writer, ()), n, bodies, writer)
        if counts:
            writers[writer] = counts
        if len(writers) > WRITERS_MAX:
            raise InvalidError(
                f"staging {staging_id} has {WRITERS_MAX:,} writers, and can have no more",
                hint="write from fewer tasks: coalesce the frame",
            )
        renewed = msgspec.structs.replace(
            row,
            deadline_ms=_deadline(now, row.lease_ms),
            writers=tuple(sorted(writers.items())),
        )
        rows, states = changed_staging(staging_id, renewed)
        for i, body in enumerate(bodies):
            rows[staged_key(staging_id, writer, n + i)] = node_value(body, 0, 0)
        for message_id, value in payloads:
            if not any(ids.writer == writer and message_id in ids.ids for ids in row.reserved):
                raise InvalidError(f"message id {message_id} is not reserved by writer {writer}")
            rows[payload_key(message_id)] = value
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
    found = counts + new[len(known) :]
    if len(found) > NODES_MAX:
        raise InvalidError(f"writer {writer} stages more than {NODES_MAX:,} nodes")
    return found


def renew_step(staging_id: int) -> Step:
    """The lease begins anew, as with each staging."""

    async def load(view: View) -> None:
        await load_staging(view, staging_id)

    def decide(view: View, now: Now) -> Decision:
        row = open_staging(view, staging_id)
        deadline_ms = _deadline(now, row.lease_ms)
        rows, states = changed_staging(
            staging_id, msgspec.structs.replace(row, deadline_ms=deadline_ms)
        )
        return Decision(
            writes=rows, states={**states}, timers=(staging_due(staging_id, deadline_ms),)
        )

    return Step(decide, load)


def reserve_step(staging_id: int, writer: int, count: int) -> Step:
    """-> so many ids for messages of this writer, and the time of now in milliseconds"""
    if not 0 < count <= RESERVE_MAX:
        raise InvalidError(f"{count} ids; 1 to {RESERVE_MAX:,} can be reserved at a time")
    if not 0 <= writer <= U64_MAX:
        raise InvalidError(f"writer {writer} cannot reserve ids")

    async def load(view: View) -> None:
        await load_staging(view, staging_id)
        await load_ids(view, Ids.MESSAGE)

    def decide(view: View, now: Now) -> Decision:
        row = open_staging(view, staging_id)
        ids, rows, states = take_ids(view, Ids.MESSAGE, count)
        *before, last = row.reserved or (None,)
        if last is not None and last.writer == writer and last.first + last.count == ids.start:
            reserved = (*before, msgspec.structs.replace(last, count=last.count + count))
        else:
            reserved = (*row.reserved, Reserved(writer, ids.start, count))
        grown = msgspec.structs.replace(
            row, deadline_ms=_deadline(now, row.lease_ms), reserved=reserved
        )
        own_rows, own_states = changed_staging(staging_id, grown)
        return Decision(
            reply=(ids, now.ms),
            writes=rows | own_rows,
            states={**states, **own_states},
            timers=(staging_due(staging_id, grown.deadline_ms),),
        )

    return Step(decide, load)


def payload_garbage(reserved: Sequence[Reserved]) -> Rows:
    """Payloads of messages that will never be published."""
    return {
        garbage_key(payload_key(ids.first)): encode_garbage(payload_key(ids.first + ids.count))
        for ids in reserved
    }


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
        rows, states = changed_staging(
            staging_id, msgspec.structs.replace(row, phase=Phase.REVOKED)
        )
        low = staged_prefix(staging_id)
        rows[garbage_key(low)] = encode_garbage(prefix_end(low))
        rows |= payload_garbage(row.reserved)
        return Decision(
            reply=True,
            writes=rows,
            states={**states},
            timers=(garbage_due(now.ms),),
        )

    return Step(decide, load)
