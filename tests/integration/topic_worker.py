"""A child that is a consumer of the topic `work` of a folder until it is told to end, or killed.

    python -m integration.topic_worker LOCATION ROLE NAME HEARTBEAT WORKERS

ROLE says what its handler does:
    copier   in a transaction: writes the message into the stream `copy`, its key as the tag
    taker    says `took NANOSECONDS KEY OFFSET REPLAY` before anything else, with the clock that all
             processes of a machine share; a message whose data begins with "bad" then fails
    holder   says `holds KEY OFFSET` and waits for a line, then does what a copier does

It says `open` when it is registered, `lost COUNT` at the end, and ends at the line `end`. Whoever
opens the folder first serves it, so any of them may be the broker.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

import penstock
from integration.children import say

TOPIC, COPY = "work", "copy"


def copy(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
    tx.write(COPY, message.data, tag=message.shard_key or "")


def take(message: penstock.TopicMessage) -> None:
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    say(f"took {now} {message.shard_key} {message.offset} {int(message.replay)}")
    if message.data.startswith(b"bad"):
        raise ValueError("as it was told")


def main(location: str, role: str, name: str, heartbeat: float, workers: int) -> None:
    lines: queue.Queue[str] = queue.Queue()
    done = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                break
            lines.put(line)
        done.set()

    def hold(message: penstock.TopicMessage, tx: penstock.Tx) -> None:
        say(f"holds {message.shard_key} {message.offset}")
        lines.get()
        copy(message, tx)

    threading.Thread(target=listen, daemon=True).start()
    handlers: dict[str, Callable[..., None]] = {"copier": copy, "taker": take, "holder": hold}
    with penstock.open(location) as db:
        consumer = db.topic(TOPIC).tail(
            handlers[role],
            consumer=name,
            tx=role != "taker",
            heartbeat=heartbeat,
            workers=workers,
        )
        with consumer:
            say("open")
            while not done.wait(0.02):
                if consumer._handling.stopped:
                    consumer.wait()  # raises why
        say(f"lost {consumer.lost}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
