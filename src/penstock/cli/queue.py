"""`penstock queue`: queues from the command line.

Contract     Results go to stdout, one table or one JSON document. A message that is claimed here
             stays claimed until its lease ends: `ack`, `fail`, `extend` and `release` take the
             receipts that `claim` printed; what it could not print goes back. A stale receipt is
             told, and ends with 1.
Not here     dead letters (queue_dead.py), how data is shown (rendering.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import penstock
from penstock.cli import queue_dead
from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Pattern, Yes, confirm, typed
from penstock.cli.output import print_json, print_words, result_console, say
from penstock.cli.rendering import (
    json_bytes,
    mapping,
    preview,
    print_fields,
    print_table,
    seconds,
)
from penstock.client.blockingqueue import ClaimedMessage, Queue
from penstock.client.queueshapes import QueuedMessage, QueueInfo
from penstock.errors import InvalidError, NotFoundError
from penstock.queue.filter import DEFAULT_PRIORITY, PRIORITY_HEADER, parse_priority
from penstock.words import counted

app = typer.Typer(
    help="Make queues, publish, claim and settle messages.",
    no_args_is_help=True,
    epilog="Example: penstock queue create jobs && penstock queue publish 'resize 17' --to jobs",
)
app.add_typer(queue_dead.app, name="dlq")


def _priority(sql: str | None) -> str | None:
    if sql and parse_priority(sql).says_nothing:
        raise InvalidError(
            f"--priority {sql}: a priority is a whole number from 0 to 255",
            hint="one of them, a header's name, or CASE WHEN vip = 'yes' THEN 1 ELSE 5 END",
        )
    return sql


Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")]
Receipts = Annotated[list[str], typer.Argument(metavar="RECEIPT", help="As `claim` printed them.")]
Filter = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="Which messages it takes.")
]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority",
        metavar="SQL",
        help="What a message's priority is: 0 to 255, lower ones come first; else it is 128.",
        callback=_priority,
    ),
]
Lease = Annotated[float | None, typer.Option("--lease", metavar="S", help="Seconds of a lease.")]
MaxLease = Annotated[
    float | None, typer.Option("--max-lease", metavar="S", help="The longest lease.")
]
MaxAttempts = Annotated[
    int | None, typer.Option("--max-attempts", help="Claims before it has failed; 0: no limit.")
]
BackOff = Annotated[
    float | None, typer.Option("--backoff", metavar="S", help="Seconds between attempts.")
]
DoneRetention = Annotated[
    float | None, typer.Option("--done-retention", metavar="S", help="Keeps what is done so long.")
]


class Start(StrEnum):
    NEW = "new"
    FIRST = "first"


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# -- the queue itself


@app.command(epilog="Example: penstock queue create eu --filter \"region = 'eu'\" --max-attempts 3")
def create(
    name: Name,
    filter: Filter = None,
    priority: Priority = None,
    lease: Lease = None,
    max_lease: MaxLease = None,
    max_attempts: MaxAttempts = None,
    backoff: BackOff = None,
    done_retention: DoneRetention = None,
    start: Annotated[
        Start, typer.Option("--start", help="first: with what was published before.")
    ] = Start.NEW,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Make a queue. One with the same settings is left as it is."""
    options = _given(
        filter=filter, priority=priority, lease=lease, max_lease=max_lease,
        max_attempts=max_attempts, backoff=backoff, done_retention=done_retention,
    )  # fmt: skip
    with opened(location, create=True) as db:
        found = db.create_queue(name, start=start.value, **options).describe()
    _print_info(found, as_json)


@app.command(epilog="Example: penstock queue alter eu --lease 120")
def alter(
    name: Name,
    filter: Filter = None,
    priority: Priority = None,
    lease: Lease = None,
    max_lease: MaxLease = None,
    max_attempts: MaxAttempts = None,
    backoff: BackOff = None,
    done_retention: DoneRetention = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change settings; those that are not named stay. An empty --filter takes everything."""
    options = _given(
        lease=lease, max_lease=max_lease, max_attempts=max_attempts, backoff=backoff,
        done_retention=done_retention,
    )  # fmt: skip
    options |= {
        what: sql or None
        for what, sql in (("filter", filter), ("priority", priority))
        if sql is not None
    }
    if not options:
        raise InvalidError("nothing is to be changed", hint="see: penstock queue alter --help")
    with opened(location) as db:
        queue = db.queue(name)
        queue.alter(**options)
        found = queue.describe()
    _print_info(found, as_json)


def _print_info(info: QueueInfo, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    backoff = info.backoff
    print_fields(
        {
            "filter": info.filter or "everything",
            "priority": info.priority or f"{DEFAULT_PRIORITY}, or the header {PRIORITY_HEADER}",
            "lease": f"{seconds(info.lease)}, at most {seconds(info.max_lease)}",
            "attempts": info.max_attempts or "no limit",
            "back-off": ", ".join(
                f"{field} {getattr(backoff, field)!r}" for field in backoff.__struct_fields__
            ),
            "keeps what is done": (
                seconds(info.done_retention) if info.done_retention else "for ever"
            ),
            "paused": info.paused,
            "created": info.created_at,
        },
        title=info.name,
    )


@app.command("show", epilog="Example: penstock queue show jobs")
def show(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """Show the settings of a queue and what is in it."""
    with opened(location) as db:
        info, stats = db.queue(name).describe(), db.queue(name).stats()
    if as_json:
        print_json({**msgspec.to_builtins(info), "stats": stats})
        return
    _print_info(info, False)
    shown = ("available", "delayed", "in_flight", "done", "failed", "routed", "expired", "purged")
    print_table(
        [field.replace("_", " ") for field in shown],
        [[getattr(stats, field) for field in shown]],
        counts=[field.replace("_", " ") for field in shown],
    )


@app.command("ls", epilog="Example: penstock queue ls --json")
def list_queues(
    pattern: Pattern = "*",
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """List queues with what is in them."""
    with opened(location) as db:
        found = []
        for name in db.queues(pattern):
            queue = db.queue(name)
            try:
                found.append((queue.describe(), queue.stats()))
            except NotFoundError:
                continue  # it was deleted meanwhile
    if as_json:
        print_json(
            [{**msgspec.to_builtins(info), **msgspec.to_builtins(stats)} for info, stats in found]
        )
        return
    print_table(
        ("queue", "available", "delayed", "in flight", "done", "failed", "filter", "state"),
        [
            (
                info.name, stats.available, stats.delayed, stats.in_flight, stats.done,
                stats.failed, preview(info.filter, 60), "paused" if stats.paused else "",
            )
            for info, stats in found
        ],
        empty="there are no queues here" if pattern == "*" else f"no queue matches {pattern}",
        counts=("available", "delayed", "in flight", "done", "failed"),
        minor=("filter", "done", "delayed", "state"),
    )  # fmt: skip


@app.command("rm", epilog="Example: penstock queue rm jobs --yes")
def remove(
    name: Name, yes: Yes = False, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Delete a queue and what is in it."""
    confirm(f"Delete queue {name} and what is in it?", yes)
    with opened(location) as db:
        if not db.delete_queue(name):
            raise NotFoundError(f"there is no queue {name!r}", hint="see: penstock queue ls")
    say({"deleted": name}, f"{name} is deleted", as_json)


@app.command(epilog="Example: penstock queue pause jobs")
def pause(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """Stop claims; publishing goes on."""
    with opened(location) as db:
        db.queue(name).pause()
    say({"paused": True}, f"{name} is paused", as_json)


@app.command(epilog="Example: penstock queue play jobs")
def play(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """End a pause."""
    with opened(location) as db:
        db.queue(name).play()
    say({"paused": False}, f"{name} goes on", as_json)


@app.command(epilog="Example: penstock queue purge jobs --yes")
def purge(
    name: Name, yes: Yes = False, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Remove what is available, delayed and in flight."""
    confirm(f"Remove what is available, delayed and in flight in queue {name}?", yes)
    with opened(location) as db:
        gone = db.queue(name).purge()
    say({"purged": gone}, counted(gone, "message is gone", "messages are gone"), as_json)


# -- producers


@app.command(epilog="Example: penstock queue publish 'resize 17' --header region=eu")
def publish(
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="One message each; none: the lines of stdin."),
    ] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="QUEUE", help="Only this queue gets it.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="May repeat.")
    ] = None,
    delay: Annotated[
        float, typer.Option("--delay", metavar="S", help="Can be claimed S seconds from now.")
    ] = 0,
    retention: Annotated[
        float, typer.Option("--retention", metavar="S", help="Gone after S seconds; 0: never.")
    ] = 0,
    dedup_id: Annotated[
        str | None, typer.Option("--dedup-id", help="The same one again publishes nothing.")
    ] = None,
    uri: Annotated[bool, typer.Option("--uri", help="The data are URIs of payloads.")] = False,
    file: Annotated[
        Path | None,
        typer.Option("--file", exists=True, dir_okay=False, help="The payload is this file."),
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Publish messages to the queues whose filters take them; prints their ids when durable."""
    headers = _headers(header or ())
    if to and len(to) > 1:
        raise InvalidError("--to names one queue", hint="one publish each, or filters that take it")
    payloads = _payloads(data, file)
    if dedup_id is not None and len(payloads) != 1:
        raise InvalidError("--dedup-id is for one message")
    messages = [
        penstock.Publish(
            _uri(each) if uri else each,
            headers,
            to[0] if to else None,
            delay,
            retention,
            dedup_id,
        )
        for each in payloads
    ]
    with opened(location, create=True) as db:
        ids = db.publish_many(messages)
    if as_json:
        print_json(ids)
    elif not ids:
        result_console().print("nothing was published: there was no data")
    else:
        for message_id in ids:
            sys.stdout.write(f"{message_id}\n")


def _headers(texts: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in map(_header, texts):
        if name in headers:
            raise InvalidError(f"header {name!r} is given twice", hint="name it once")
        headers[name] = value
    return headers


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidError(f"{text!r} is not a header", hint="--header NAME=VALUE")
    return name, value


def _payloads(data: Sequence[str] | None, file: Path | None) -> list[bytes]:
    if data and file is not None:
        raise InvalidError("data and --file cannot be given together")
    if file is not None:
        return [file.read_bytes()]
    if data:
        return typed(data)
    return [line.rstrip(b"\r\n") for line in sys.stdin.buffer]


def _uri(payload: bytes) -> penstock.URI:
    try:
        return penstock.URI(payload.decode())
    except UnicodeDecodeError:
        raise InvalidError(f"{payload!r} is not a URI", hint="write it percent-encoded") from None


# -- consumers


@app.command(epilog="Example: penstock queue claim jobs -n 10 --wait 5 --json")
def claim(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 1,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", help="Wait so long for the first.")
    ] = 0,
    lease: Lease = None,
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Who it is; told with failed attempts.")
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Claim messages under a lease; prints their receipts."""
    with opened(location) as db:
        queue = db.queue(name)
        found = queue.claim(count, wait=wait, lease=lease, **_given(consumer=consumer))
        try:
            _print_claimed(name, found, as_json)
            sys.stdout.flush()
        except BaseException:
            # Nobody has the receipts: they would be claimed in vain, and an attempt lost.
            queue.release([message.receipt for message in found])
            raise


def _print_claimed(name: str, found: Sequence[ClaimedMessage], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    **_as_json(message),
                    "claimed_at": message.claimed_at,
                    "lease_deadline": message.lease_deadline,
                    "receipt": message.receipt,
                }
                for message in found
            ]
        )
        return
    if not found:
        print_words(f"nothing can be claimed from {name} now")
    for message in found:
        print_fields(
            {
                "payload": _shown(message),
                "headers": mapping(message.headers),
                "attempts": message.attempts,
                "lease until": message.lease_deadline,
            },
            title=f"message {message.id}",
        )
        # Not in the table, which would fold it: it is there to be copied.
        sys.stdout.write(f"receipt {message.receipt}\n")


@app.command(epilog="Example: penstock queue peek jobs -n 20")
def peek(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the messages that would be claimed next; nothing happens to them."""
    with opened(location) as db:
        found = db.queue(name).peek(count)
    if as_json:
        print_json([_as_json(message) for message in found])
        return
    print_table(
        ("id", "priority", "attempts", "received", "headers", "payload"),
        [
            (
                message.id, message.priority, message.attempts, message.received_at,
                mapping(message.headers), _shown(message),
            )
            for message in found
        ],
        empty=f"nothing can be claimed from {name} now",
        minor=("priority", "received", "attempts", "headers"),
    )  # fmt: skip


def _shown(message: QueuedMessage) -> str:
    return preview(message.uri if message.payload is None else message.payload)


def _as_json(message: QueuedMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        **json_bytes("payload", message.payload),
        "uri": message.uri,
        "headers": dict(message.headers),
        "priority": message.priority,
        "attempts": message.attempts,
        "created_at": message.created_at,
        "received_at": message.received_at,
        "visible_at": message.visible_at,
    }


@app.command(epilog="Example: penstock queue ack jobs $RECEIPT")
def ack(
    name: Name, receipts: Receipts, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Messages are done."""
    _settle(location, name, receipts, lambda queue: queue.ack(receipts), "done", as_json)


@app.command(epilog="Example: penstock queue fail jobs $RECEIPT --delay 60 --reason 'no disk'")
def fail(
    name: Name,
    receipts: Receipts,
    delay: Annotated[
        float | None, typer.Option("--delay", metavar="S", help="Again after S seconds.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the attempt.")] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Attempts failed: the messages come again, or have failed after the last one."""

    def settle(queue: Queue) -> list[bool]:
        return queue.fail(receipts, delay=delay, reason=reason)

    _settle(location, name, receipts, settle, "failed", as_json)


@app.command(epilog="Example: penstock queue extend jobs $RECEIPT --lease 120")
def extend(
    name: Name,
    receipts: Receipts,
    lease: Annotated[float, typer.Option("--lease", metavar="S", help="From now on.")],
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let leases last longer."""
    _settle(
        location, name, receipts, lambda queue: queue.extend(receipts, lease), "extended", as_json
    )


@app.command(epilog="Example: penstock queue release jobs $RECEIPT")
def release(
    name: Name, receipts: Receipts, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Give messages back; that counts no attempt."""
    _settle(location, name, receipts, lambda queue: queue.release(receipts), "released", as_json)


def _settle(
    location: str,
    name: str,
    receipts: Sequence[str],
    settle: Callable[[Queue], list[bool]],
    word: str,
    as_json: bool,
) -> None:
    with opened(location) as db:
        truths = settle(db.queue(name))
    good = sum(truths)
    if as_json:
        print_json([{"receipt": r, word: truth} for r, truth in zip(receipts, truths, strict=True)])
    else:
        stale = len(truths) - good
        text = f"{good:,} {word}"
        if stale:
            text += ", " + counted(stale, "receipt is stale", "receipts are stale")
        result_console().print(text)
    if good < len(truths):
        raise typer.Exit(1)
