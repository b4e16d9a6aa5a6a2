"""A child with one handle on the queue `q` that does what it is told, and says what came of it.

    python -m integration.queuer LOCATION

It says `open`; then it answers each line, an object with `do` and arguments, with one of JSON.
`consume` says each message and never ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

import penstock
from integration.children import say


def main(location: str) -> None:
    db = penstock.open(location)
    queue = db.queue("q")
    held: list[penstock.ClaimedMessage] = []
    say("open")
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        answer: Any = "done"
        match command.pop("do"):
            case "create":
                db.create_queue("q", **command)
            case "publish":
                answer = db.publish_many([text.encode() for text in command["texts"]])
            case "claim":
                held = queue.claim(**command)
                answer = [message.payload.decode() for message in held if message.payload]
            case "ack":
                answer = queue.ack(held)
            case "stats":
                answer = msgspec.structs.asdict(queue.stats())
            case "consume":
                for message in queue.consume(**command):
                    say(json.dumps((message.payload or b"").decode()))
                    sys.stdin.readline()  # at work until it is told otherwise
        say(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
