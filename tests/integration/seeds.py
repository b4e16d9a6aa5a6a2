"""Where randomness of a test begins: another seed each time, printed by whoever uses it."""

from __future__ import annotations

import os
import random


def fresh_seed() -> int:
    """A new one, or PENSTOCK_SEED to repeat one."""
    return int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 30))
