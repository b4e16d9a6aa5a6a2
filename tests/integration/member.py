"""A child among several on one folder: an idempotent producer that also reads, until told to end.

    python -m integration.member LOCATION NAME

It says `open`, then `ack SEQUENCE SIZE START` after each batch that was acknowledged, and
`failed SEQUENCE KIND` for one that was not; it goes on with the next number only after an ack. A
second thread follows the stream with reads that wait, and says `tail OFFSET` for the first entry it
did not see in order. A third one is a consumer of the group `g`, together with those of the other
members: it says `did OFFSET...` and then acknowledges. A line on its standard input ends it:
`end NEXT_OFFSET` is its last word.
"""

from __future__ import annotations

import os
import sys
import threading

import penstock
from integration.children import say

SIZES = (1, 1, 3, 20)


def entry(name: str, sequence: int, index: int, size: int) -> bytes:
    return f"{name} {sequence} {index} {size}".encode()


def follow(stream: penstock.Stream, done: threading.Event, seen: list[int]) -> None:
    """Read everything in order, waiting at the end of it."""
    while not done.is_set():
        for message in stream.read(seen[0], 100, block=0.5):
            if message is None or message.offset != seen[0]:
                say(f"tail {seen[0]} {message}")
                os._exit(1)
            seen[0] += 1


def consume(stream: penstock.Stream, done: threading.Event) -> None:
    """What was delivered to a member that is gone comes again, to another one."""
    while not done.is_set():
        try:
            found = stream.read_group("g", 20, block=0.5, retry=0.5)
            if found:
                say(f"did {' '.join(str(message.offset) for message in found)}")
                stream.ack("g", *(message.offset for message in found))
        except penstock.UnavailableError:
            pass  # of the ack: not acknowledged means delivered again


def end_when_told(done: threading.Event) -> None:
    sys.stdin.readline()
    done.set()


def main(location: str, name: str) -> None:
    db = penstock.open(location)
    stream = db.stream("shared")
    say("open")
    done, seen = threading.Event(), [0]
    follower = threading.Thread(target=follow, args=(stream, done, seen))
    follower.start()
    consumer = threading.Thread(target=consume, args=(stream, done))
    consumer.start()
    threading.Thread(target=end_when_told, args=(done,), daemon=True).start()
    sequence = 0
    while not done.is_set():
        size = SIZES[sequence % len(SIZES)]
        entries = [entry(name, sequence, index, size) for index in range(size)]
        try:
            offsets = stream.write_many(entries, producer=name, sequence=sequence)
        except penstock.PenstockError as error:
            say(f"failed {sequence} {type(error).__name__} {error}")
            continue
        say(f"ack {sequence} {size} {offsets.start}")
        sequence += 1
    follower.join()
    consumer.join()
    db.close()
    say(f"end {seen[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
