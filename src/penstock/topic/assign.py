"""Which consumer gets which slot: evenly, moving as few as possible. Pure.

Contract     `assign(owners, consumers, backlog)` gives the owner of each slot. Shares differ by at
             most one. A slot moves only where its owner is gone or has more than its share; which
             ones of those move evens out the backlog that goes with them. The same input gives the
             same output.
"""

from __future__ import annotations

from collections.abc import Sequence


def assign(owners: Sequence[int], consumers: Sequence[int], backlog: Sequence[int]) -> list[int]:
    """`owners`: of each slot now, 0 for none. Without consumers nobody owns anything."""
    if not consumers:
        return [0] * len(owners)
    plan = [owner if owner in consumers else 0 for owner in owners]
    held: dict[int, list[int]] = {consumer: [] for consumer in consumers}
    for slot, owner in enumerate(plan):
        if owner:
            held[owner].append(slot)
    shares = _shares(held, len(owners))
    load = {consumer: sum(backlog[slot] for slot in slots) for consumer, slots in held.items()}
    free = [slot for slot, owner in enumerate(plan) if not owner]
    even = sum(backlog) / len(consumers)
    for consumer, slots in held.items():
        while len(slots) > shares[consumer]:
            # The one that brings it nearest to an even share of the backlog.
            excess = load[consumer] - even
            slot = min(slots, key=lambda each: (abs(excess - backlog[each]), each))
            slots.remove(slot)
            load[consumer] -= backlog[slot]
            free.append(slot)
    # The largest first, each to whoever has the least.
    for slot in sorted(free, key=lambda each: (-backlog[each], each)):
        taker = min(
            (consumer for consumer in consumers if len(held[consumer]) < shares[consumer]),
            key=lambda each: (load[each], len(held[each]), each),
        )
        held[taker].append(slot)
        load[taker] += backlog[slot]
        plan[slot] = taker
    return plan


def _shares(held: dict[int, list[int]], slots: int) -> dict[int, int]:
    """How many slots each one gets; those that have the most get one more, so that fewer move."""
    share, extra = divmod(slots, len(held))
    most = sorted(held, key=lambda each: (-len(held[each]), each))
    return {consumer: share + (i < extra) for i, consumer in enumerate(most)}
