"""Which consumer gets which slot: evenly, moving as few as possible. Pure.

Contract     `assign(owners, consumers, backlog)` gives the owner of each slot. Shares differ by at
             most one. A slot moves only where its owner is gone or has more than its share; which
             ones of those move evens out the backlog that goes with them. `even_out` moves more of
             them, for as long as that takes work from whoever has the most; shares still
             differ by at most one. The same input gives the same output.
Cost         An exchange sorts the slots: the largest topics take a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int64]

#: Moves cost work that is handed out twice: who has so much more than an even share of the backlog
#: is left alone, and an exchange takes more from him than this part of an even share of a slot.
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
    for _ in plan:  # no more exchanges than slots, whatever their sizes are
        if not _exchange(owners, sizes, len(numbers)):
            break
    return [int(number) for number in numbers[owners]]


def _exchange(owners: _Numbers, sizes: _Numbers, consumers: int) -> bool:
    """Whoever has the most gives a slot, and gets one unless the taker has fewer. -> whether that
    was worth it

    With `change` messages given, the larger backlog of both is half of their sum, and as far above
    it as `change` is from half of their difference. So for each slot that may come back, the
    best one to give is a neighbour, by size, of the one that would make both equal.
    """
    load = np.bincount(owners, sizes, consumers).astype(np.int64)
    held = np.bincount(owners, minlength=consumers)
    most = int(load.argmax())
    if load[most] <= (1 + WORTH) * load.sum() / consumers:
        return False
    mine = np.flatnonzero(owners == most)
    mine = mine[np.argsort(sizes[mine], kind="stable")]
    others = np.flatnonzero(owners != most)
    short = np.flatnonzero(held < held[most])  # take one and give none; that is the first choice
    takers = np.concatenate((short, owners[others]))
    if not len(takers):
        return False
    back = np.concatenate((np.zeros(len(short), np.int64), sizes[others]))
    at = sizes[mine].searchsorted(back + (load[most] - load[takers]) // 2)
    gives = np.stack((np.maximum(at - 1, 0), np.minimum(at, len(mine) - 1)))
    change = sizes[mine][gives] - back
    larger = np.maximum(load[most] - change, load[takers] + change)
    best = int(larger.argmin())
    if load[most] - larger.flat[best] <= WORTH * load.sum() / len(owners):
        return False
    take = best % len(takers)
    owners[mine[gives.flat[best]]] = takers[take]
    if take >= len(short):
        owners[others[take - len(short)]] = most
    return True
