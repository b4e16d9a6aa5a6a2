"""A child that opens locations, reads everything, and says what it found.

    python -m integration.damage_reader [unsynced]

For each line with a location it answers with one line of JSON: `Reading` as in damage.py. It reads,
closes, opens and reads once more: recovery must not turn damage into loss that nobody sees. Each
location is read by a fork of its own, as a failed opening leaves parts of the engine running. This
process opens nothing itself, so there is no engine that a fork could lose. It ends with a fork that
fails.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings

import msgspec

import penstock
from integration.children import say
from integration.damage import DEADLINE_SECONDS, HANG_SECONDS, STREAMS, Reading, durability_of
from penstock.store.folder import Durability


def read_everything(location: str, durability: Durability) -> dict[str, list[tuple[int, str, str]]]:
    with penstock.open(location, durability=durability, deadline=DEADLINE_SECONDS) as db:
        found = {}
        for name in STREAMS:
            table = db.stream(name).to_arrow()
            rows = zip(
                table["offset"].to_pylist(),
                table["tag"].to_pylist(),
                table["data"].to_pylist(),
                strict=True,
            )
            found[name] = [(offset, str(tag), data.decode()) for offset, tag, data in rows]
        return found


def read_twice(location: str, durability: Durability) -> Reading:
    try:
        first = read_everything(location, durability)
        second = read_everything(location, durability)
    except Exception as error:
        return Reading(error=type(error).__name__, text=str(error))
    return Reading(found=first, again=first == second)


def main(mode: str) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    durability = durability_of(mode)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(int(2 * HANG_SECONDS))  # whoever waited is gone: end, wherever it hangs
            say(msgspec.json.encode(read_twice(line.rstrip("\n"), durability)).decode())
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "os")
