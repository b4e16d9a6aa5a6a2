"""`penstock queue dlq`: the messages of a queue that have failed for good.

Contract     An id that is not among them is told, and ends with 1, as a stale receipt does.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import msgspec
import typer

from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Yes, confirm
from penstock.cli.output import print_json, result_console, say
from penstock.cli.rendering import json_bytes, mapping, preview, print_table
from penstock.client.queueshapes import FailedMessage
from penstock.words import counted

app = typer.Typer(
    help="Look at failed messages, send them round again, remove them.",
    no_args_is_help=True,
    epilog="Example: penstock queue dlq redrive jobs 17 18",
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue in which they failed.")]


@app.command("ls", epilog="Example: penstock queue dlq ls jobs -n 20")
def list_failed(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 100,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """List failed messages with why they failed, oldest first."""
    with opened(location) as db:
        queue = db.queue(name)
        found = list(islice(queue.failed(), count))
        total = queue.stats().failed
    if as_json:
        print_json([_as_json(message) for message in found])
        return
    print_table(
        ("id", "failed", "attempts", "last reason", "headers", "payload"),
        [
            (
                message.id, message.failed_at, message.attempts, _reason(message),
                mapping(message.headers),
                preview(message.uri if message.payload is None else message.payload),
            )
            for message in found
        ],
        empty=f"nothing has failed in {name}",
        minor=("headers", "failed", "attempts"),
    )  # fmt: skip
    if total > len(found):
        result_console().print(f"{len(found):,} of {total:,}; more with --count")


def _reason(message: FailedMessage) -> str:
    if not message.history:
        return ""
    last = message.history[-1]
    return preview(last.reason or last.ending, 80)


def _as_json(message: FailedMessage) -> dict[str, object]:
    return {
        "id": message.id,
        "failed_at": message.failed_at,
        "attempts": message.attempts,
        "priority": message.priority,
        **json_bytes("payload", message.payload),
        "uri": message.uri,
        "headers": dict(message.headers),
        "history": [msgspec.to_builtins(each) for each in message.history],
    }


@app.command(epilog="Example: penstock queue dlq redrive jobs 17 18")
def redrive(
    name: Name,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="These; none: all.")] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Make failed messages available again, with no attempts on their account."""
    with opened(location) as db:
        moved = db.queue(name).redrive(ids or None)
    missing = len(set(ids)) - int(moved) - moved.expired if ids else 0
    if as_json:
        print_json({"redriven": int(moved), "expired": moved.expired, "missing": missing})
    else:
        text = counted(int(moved), "message is available again", "messages are available again")
        if moved.expired:
            text += f", {moved.expired:,} not: the retention is over"
        if missing:
            text += ", " + counted(missing, "is not among the failed", "are not among the failed")
        result_console().print(text)
    if missing:
        raise typer.Exit(1)


@app.command(epilog="Example: penstock queue dlq purge jobs --yes")
def purge(
    name: Name, yes: Yes = False, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Remove all failed messages."""
    confirm(f"Remove all failed messages of queue {name}?", yes)
    with opened(location) as db:
        gone = db.queue(name).purge(failed=True)
    say({"purged": gone}, counted(gone, "message is gone", "messages are gone"), as_json)
