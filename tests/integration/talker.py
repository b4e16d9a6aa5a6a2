"""A child with one handle that does what it is told, and says what came of it.

    python -m integration.talker LOCATION [BROKER]

It says `open`; then it answers each line:

    serves                  serves yes|no
    write TEXT              wrote OFFSET
    produce SEQUENCE TEXT   wrote OFFSET
    read OFFSET             read TEXT...
    wait OFFSET             waiting; and later, in between, `got TEXT`
    storm                   storming; and from then on `storm NUMBER OFFSET|KIND` for each write
    calm                    calm, when the storm has ended
    close                   closed

An error is its kind and text.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from typing import Any

import penstock
from integration.children import say


def kind_of(error: penstock.PenstockError) -> str:
    return next(kind.__name__ for kind in type(error).__mro__ if hasattr(penstock, kind.__name__))


def texts(found: Any) -> str:
    return " ".join("-" if message is None else message.data.decode() for message in found)


def wait(stream: penstock.Stream, offset: int) -> None:
    try:
        say(f"got {texts(stream.read(offset, 1, block=math.inf))}")
    except penstock.PenstockError as error:
        say(f"got {kind_of(error)}")


class Storm:
    """One write after the other, whatever comes of them."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, stream: penstock.Stream) -> None:
        self._thread = threading.Thread(target=self._run, args=(stream,), daemon=True)
        self._thread.start()

    def _run(self, stream: penstock.Stream) -> None:
        for number in itertools.count():
            if self._over.is_set():
                return
            try:
                say(f"storm {number} {stream.write(f'storm-{number}'.encode())}")
            except penstock.PenstockError as error:
                say(f"storm {number} {kind_of(error)}")

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


STORM = Storm()


def obey(db: penstock.Database, stream: penstock.Stream, words: list[str]) -> str:
    match words:
        case ["serves"]:
            return f"serves {'no' if db._session.link.broker is None else 'yes'}"
        case ["write", text]:
            return f"wrote {stream.write(text.encode())}"
        case ["produce", sequence, text]:
            offsets = stream.write_many(
                [text.encode()], producer=str(os.getpid()), sequence=int(sequence)
            )
            return f"wrote {offsets.start}"
        case ["read", offset]:
            return f"read {texts(stream.read(int(offset), 100))}".rstrip()
        case ["wait", offset]:
            threading.Thread(target=wait, args=(stream, int(offset)), daemon=True).start()
            return "waiting"
        case ["storm"]:
            STORM.start(stream)
            return "storming"
        case ["calm"]:
            STORM.end()
            return "calm"
        case ["close"]:
            db.close()
            return "closed"
        case _:
            raise AssertionError(words)


def main(location: str, broker: Any = "auto") -> None:
    db = penstock.open(location, broker=broker)
    stream = db.stream("s")
    say("open")
    for line in sys.stdin:
        try:
            say(obey(db, stream, line.split()))
        except penstock.PenstockError as error:
            say(f"{kind_of(error)} {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
