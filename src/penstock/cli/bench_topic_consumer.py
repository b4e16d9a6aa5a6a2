"""One consumer process of `penstock bench topic`: of ours, or of a stream group of Redis.

    python -m penstock.cli.bench_topic_consumer penstock://HOST:PORT|redis://HOST:PORT NAME

Says `ready` when it is, and ends when its standard input does. A handler is called for each message
on both sides, and does nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import penstock
from penstock.cli.bench_topic import BATCH, GROUP, TOPIC


def consume_topic(address: str, name: str) -> None:
    with (
        penstock.open(address) as db,
        db.topic(TOPIC).tail(_handle, consumer=name, batch_size=BATCH),
    ):
        _ready()
        sys.stdin.read()


def consume_group(address: str, name: str) -> None:
    import redis

    client: Any = redis.Redis.from_url(address)
    with contextlib.suppress(redis.ResponseError):  # another consumer was faster
        client.xgroup_create(TOPIC, GROUP, id="0", mkstream=True)
    ending = threading.Thread(target=sys.stdin.read, daemon=True)
    ending.start()
    _ready()
    while ending.is_alive():
        found = client.xreadgroup(GROUP, name, {TOPIC: ">"}, count=BATCH, block=1000)
        for _, entries in found:
            for _, fields in entries:
                _handle(fields)
            client.xack(TOPIC, GROUP, *[number for number, _ in entries])


def _handle(message: object) -> None:
    pass


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    consume = consume_group if sys.argv[1].startswith("redis://") else consume_topic
    consume(sys.argv[1], sys.argv[2])
