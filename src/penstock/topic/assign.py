"""Which consumer gets which slot: evenly, moving as few as possible. Pure.

Contract     `assign(owners, consumers, backlog)` gives the owner of each slot. Shares differ by at
             most one. A slot moves only where its owner is gone or has more than its share; which
             ones of those move evens out the backlog that goes with them. `even_out` moves more of
             them, for as long as that takes work from whoever has the most; shares still
             differ by at most one. The same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: What an exchange takes from the largest backlog at least, as a share of it: moves cost work that
#: is handed out twice.
WORTH = 0.01


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


def even_out(plan: Sequence[int], consumers: Sequence[int], backlog: Sequence[int]) -> list[int]:
    """Slots change places, the pair first that evens out the most. Each slot of `plan` has one of
    the consumers."""
    if len(consumers) < 2:
        return list(plan)
    numbers = np.array(sorted(consumers), np.int64)
    owners = np.searchsorted(numbers, np.array(plan, np.int64))
    sizes = np.array(backlog, np.int64)
    while True:
        load = np.bincount(owners, sizes, len(numbers)).astype(np.int64)
        held = np.bincount(owners, minlength=len(numbers))
        most = int(load.argmax())
        mine = np.flatnonzero(owners == most)
        others = np.flatnonzero(owners != most)
        short = np.flatnonzero(
            held < held[most]
        )  # may take one and give none; that is the first choice
        takers = np.concatenate((short, owners[others]))
        back = np.concatenate((np.zeros(len(short), np.int64), sizes[others]))
        moved = sizes[mine][:, None] - back[None, :]
        larger = np.maximum(load[most] - moved, load[takers][None, :] + moved)
        if not larger.size or larger.min() > (1 - WORTH) * load[most] or not load[most]:
            return [int(number) for number in numbers[owners]]
        give, take = np.unravel_index(int(larger.argmin()), larger.shape)
        owners[mine[give]] = takers[take]
        if take >= len(short):
            owners[others[take - len(short)]] = most
