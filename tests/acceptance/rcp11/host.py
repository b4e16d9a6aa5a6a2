"""A process that opens a folder first, and so serves it: `python host.py FOLDER`.

Prints a line when it is ready, and for each line that comes in how many readers are blocked. Ends,
in order, when its input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import penstock
from acceptance.rcp11.python_door import waiting_at


def main(folder: Path) -> None:
    with penstock.open(folder):
        print("ready", flush=True)
        for _ in sys.stdin:
            print(waiting_at(folder), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
