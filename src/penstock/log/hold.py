"""Holds: (log, holder) -> the lowest offset the holder still needs.

Contract     Retention, BACKLOG and compaction stop at the lowest hold; explicit eviction does not.
             A holder moves its hold or drops it; it has one per log.
"""

from __future__ import annotations

import msgspec

from penstock.codec.keys import hold_key
from penstock.codec.once import encode_hold
from penstock.codec.scalars import U64_MAX
from penstock.errors import InvalidError
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.state import LogState, load_log, shown_log, state_key


def lowest_hold(state: LogState) -> int | None:
    return min((offset for _, offset in state.holds), default=None)


def trimmed_first(state: LogState, first: int) -> int:
    """How far trimming to `first` may really go."""
    held = lowest_hold(state)
    limit = state.next if held is None else min(held, state.next)
    return max(state.first, min(first, limit))


def hold_step(log_id: int, holder: bytes, offset: int | None) -> Step:
    """Hold from `offset` on; None lets go."""
    if not holder:
        raise InvalidError("a holder needs a name")
    if offset is not None and not 0 <= offset <= U64_MAX:
        raise InvalidError(f"offset {offset} cannot be held")

    async def load(view: View) -> None:
        await load_log(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        state = shown_log(view, log_id)
        holds = dict(state.holds)
        if offset is None:
            holds.pop(holder, None)
        else:
            holds[holder] = offset
        return Decision(
            writes={hold_key(log_id, holder): None if offset is None else encode_hold(offset)},
            states={
                state_key(log_id): msgspec.structs.replace(
                    state, holds=tuple(sorted(holds.items()))
                )
            },
        )

    return Step(decide, load)
