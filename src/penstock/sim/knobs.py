"""Limits made small by the seed: what takes a million entries in life takes ten in here.

Contract     Inside `turned(random)` the named constants have other values, in every module that
             has them; afterwards the old ones are back. Each limit must be right at any value, so
             any combination is a fair world.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType

#: Constant -> what the seed may choose; where it is defined decides nothing.
KNOBS: dict[str, tuple[int, ...]] = {
    "NODE_ENTRIES": (3, 8, 20),
    "SETTLE_ROWS": (1, 4, 32),
    "COLLECT_ROWS": (2, 5, 1000),
    "STAGE_BYTES_MAX": (150, 400, 4 << 20),
    "FOLD_BYTES": (1, 300, 4 << 20),
    "PUNCH_BYTES": (1, 4 << 20),
    "TAGS_MAX": (2, 1_000_000),
    "DEAD_MAX": (1, 10_000),
    "PAGE_SLOTS": (4, 16, 1024),
    "CLEARED_PAGES": (1, 16),
    "LOOKED_NODES": (1, 3, 256),
    "FLUSH_PAGES": (1, 48),
    "TAIL_RECORDS": (4, 16, 40),
    "TRIM_ROWS": (1, 3, 1000),
    "STATES_MAX": (2, 8, 64, 4096),
    "TICK_BYTES": (1, 500, 8 << 20),
    "MERGED_RUNS": (1, 8),
    "FOUND_LOGS": (1, 256),
    "COMPACT_MS": (5, 50, 1000),
    "COMPACT_REST": (0, 10),
    "RETAIN_MS": (5, 500),
    "PAGE_ENTRIES": (2, 5, 20, 1000),
    "FLIGHT_LEASES": (3, 10, 1000),
    "SHEET_LINES": (2, 8, 512),
    "ENDED_PAGES": (1, 3, 16),
    "CLEAR_PAGES": (1, 16),
    "PURGE_PAGES": (1, 3, 64),
    "REDRIVE_PAGES": (1, 16),
    "CLAIM_MAX": (4, 10_000),
    "TAKE_PAGES": (1, 4, 64),
    "HISTORY_MAX": (2, 1000),
    "ROUTE_COUNT": (1, 7, 2000),
    "PYTHON_ROWS_MAX": (0, 2, 32),
    "TAKEN_PAGES": (1, 256),
    "RECLAIM_MS": (1, 50, 1000),
    "RECLAIM_COUNT": (1, 5, 4096),
    "EDGE_PAGES": (1, 64),
    "EXPIRY_ROWS": (1, 256),
    "GRACE_MS": (100, 10_000),
    "BLOCK_COUNT": (1, 3, 1000),
    "INLINE_BYTES": (40, 1 << 20),
    "PART_BYTES": (500, 4 << 20),
    "COMPACT_ENTRIES": (1, 10, 50_000),
    "GROUPS_PART": (1, 100),
}
#: What follows from another one, as it does where it is defined.
_HALF_OF = {"LARGE_ENTRIES": "NODE_ENTRIES"}


@contextmanager
def turned(random: Random) -> Iterator[dict[str, int]]:
    chosen = {name: random.choice(values) for name, values in KNOBS.items()}
    chosen |= {name: max(chosen[whole] // 2, 1) for name, whole in _HALF_OF.items()}
    before: list[tuple[ModuleType, str, int]] = []
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith(
            "penstock."
        ) or module.__name__.startswith("penstock.sim"):
            continue
        before += [(module, name, vars(module)[name]) for name in chosen if name in vars(module)]
    missing = chosen.keys() - {name for _, name, _ in before}
    assert not missing, f"no module has these limits any more: {sorted(missing)}"
    try:
        for module, name, _ in before:
            setattr(module, name, chosen[name])
        yield chosen
    finally:
        for module, name, value in before:
            setattr(module, name, value)
