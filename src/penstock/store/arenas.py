"""How much memory the engine's threads keep for themselves.

Contract     `limit_arenas()`, before the engine starts its threads. glibc gives threads up to eight
             arenas per core, and each keeps what was freed in it; from now on they share those that
             are there, or ARENAS. Reading ten million entries right after a kill took 455 MB
             instead of 589 (bench/measure_log.py), at the same speed. Whoever has set
             MALLOC_ARENA_MAX or GLIBC_TUNABLES has decided that already.
             `give_back()` hands to the system what was freed and lies between what was not, which
             glibc never does by itself. It takes some milliseconds, in which threads that allocate
             wait: for the end of something large, not for every now and then.
             Where the allocator is another one, nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import os

ARENAS = 2
_M_ARENA_MAX = -8  # malloc.h


@functools.cache
def limit_arenas() -> None:
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


def give_back() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
