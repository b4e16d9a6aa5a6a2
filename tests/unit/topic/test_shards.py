"""The table of shards: what a move of many slots at once does to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.codec.topic import COUNTERS, OPEN_END, Shards
from penstock.topic.shards import CLOSED_MAX, move, new_shards, open_rows

SLOTS = 50


def pushed(shards: Shards) -> None:
    """A message for every slot, which is routed and not done."""
    rows = open_rows(shards)
    shards["inserted"][rows] += 1
    shards["routed"][rows] += 1
    shards["emitted"][rows] += 1


def crowded(slots: list[int]) -> Shards:
    """These have as many closed shards as they may, the others none."""
    shards = new_shards(SLOTS)
    for n in range(CLOSED_MAX):
        pushed(shards)
        shards = move(shards, slots, [n + 1] * len(slots), n + 1)
    pushed(shards)
    return shards


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the table was, each time that rows were taken out of it."""
    found: list[int] = []
    delete: Any = np.delete

    def counted(table: Any, *rest: Any) -> Any:
        found.append(len(table))
        return delete(table, *rest)

    monkeypatch.setattr("numpy.delete", counted)
    return found


def test_the_oldest_closed_shards_of_all_slots_become_one_at_once(copies: list[int]) -> None:
    some = list(range(3, SLOTS, 2))
    before = crowded(some)
    assert copies == []
    after = move(before.copy(), some, [99] * len(some), CLOSED_MAX + 1)
    assert len(copies) <= 1, "not once for each slot: a thousand of them would take seconds"
    assert len(after) == len(before)
    for slot in range(SLOTS):
        mine, old = after[after["slot"] == slot], before[before["slot"] == slot]
        assert mine["generation"].tolist() == sorted(mine["generation"].tolist())
        for field in COUNTERS:
            assert mine[field].sum() == old[field].sum()
        if slot not in some:
            assert (mine == old).all()
            continue
        assert (mine["end"] != OPEN_END).sum() == CLOSED_MAX
        oldest, second, *_ = old
        assert (mine[0]["first"], mine[0]["end"]) == (oldest["first"], second["end"])
        assert mine[0]["generation"] == second["generation"]
        assert [mine[0][each] for each in COUNTERS] == [
            oldest[each] + second[each] for each in COUNTERS
        ]
        assert mine[-1]["owner"] == 99
