"""A child that opens locations, reads everything, and says what it found.

    python -m integration.damage_reader

For each line with a location it answers with one line of JSON: `Reading` as in damage.py. It reads,
closes, opens and reads once more: recovery must not turn damage into loss that nobody sees.
"""

from __future__ import annotations

import sys
import warnings

import msgspec

import penstock
from integration.children import say
from integration.damage import DEADLINE_SECONDS, STREAMS, Reading


def read_everything(location: str) -> dict[str, list[tuple[int, str, str]]]:
    with penstock.open(location, durability="os", deadline=DEADLINE_SECONDS) as db:
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


def read_twice(location: str) -> Reading:
    try:
        first = read_everything(location)
        second = read_everything(location)
    except Exception as error:
        return Reading(error=type(error).__name__, text=str(error))
    return Reading(found=first, again=first == second)


def main() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    for line in sys.stdin:
        say(msgspec.json.encode(read_twice(line.rstrip("\n"))).decode())


if __name__ == "__main__":
    main()
