"""`penstock topic`: topics from the command line.

Contract     Results go to stdout, one table or one JSON document; `tail` prints a line per message
             and acknowledges it when it is printed, so a message that was cut off, by a kill or by
             a `head`, comes again to somebody. Consuming for real is Python's:
             `topic.tail(handler)`.
"""

from __future__ import annotations

import sys
import threading
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Pattern, Yes, confirm, typed
from penstock.cli.output import print_json, result_console, say
from penstock.cli.rendering import json_bytes, preview, print_fields, print_table
from penstock.client.topicshapes import TopicMessage
from penstock.errors import InvalidError, NotFoundError
from penstock.words import counted

app = typer.Typer(
    help="Push to topics, look at their consumers and shards, replay.",
    no_args_is_help=True,
    epilog="Example: penstock topic push jobs 'resize 17' --key customer-3",
)


class NotPrintedError(BaseException):
    """A message could not be printed. An Exception would be a failure of the handler, and the
    message errored; this ends the consumer, and the message goes back."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")]


@app.command(epilog="Example: penstock topic push jobs 'resize 17' --key customer-3")
def push(
    name: Name,
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="One message each; none: the lines of stdin."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Messages of one key are handled in order.")
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Push messages, all or none; prints their offsets when they are durable."""
    lines = typed(data)
    if not data:
        lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    with opened(location, create=True) as db:
        offsets = db.topic(name).push_many([(key, each) for each in lines])
    if as_json:
        print_json({"first": offsets.start, "count": len(offsets)})
    elif not offsets:
        result_console().print("nothing was pushed: there was no data")
    else:
        last = offsets.stop - 1
        result_console().print(
            f"{offsets.start}" if len(offsets) == 1 else f"{offsets[0]} to {last}"
        )


@app.command(epilog="Example: penstock topic tail jobs --count 10")
def tail(
    name: Name,
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Who it is; without it, a name of its own.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many.")
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Take part as a consumer that prints what it gets, until Ctrl-C."""
    begun = threading.Event()
    seen = 0

    def show(message: TopicMessage) -> None:
        nonlocal seen
        try:
            _print_line(message, as_json)
        except Exception as error:
            raise NotPrintedError(error) from error
        seen += 1
        if seen == count:
            begun.wait()
            tailing.shutdown()  # what it has got beyond that goes back, unseen

    with opened(location) as db:
        _require(db.topics(), name)
        tailing = db.topic(name).tail(show, consumer=consumer)
        begun.set()
        try:
            with tailing:
                tailing.wait()
        except NotPrintedError as ended:
            raise ended.error from None


def _print_line(message: TopicMessage, as_json: bool) -> None:
    if as_json:
        line = msgspec.json.encode(
            {
                "offset": message.offset,
                **_json_key(message.shard_key),
                "time": message.time,
                "replay": message.replay,
                **json_bytes("data", message.data),
            }
        ).decode()
    else:
        line = f"{message.offset}\t{preview(message.shard_key, 40)}\t{preview(message.data)}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _json_key(key: str | None) -> dict[str, str | None]:
    return json_bytes("shard_key", None if key is None else key.encode("utf-8", "surrogateescape"))


@app.command("ls", epilog="Example: penstock topic ls --json")
def list_topics(
    pattern: Pattern = "*",
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """List topics with their counts."""
    with opened(location) as db:
        found = [(name, db.topic(name).stats()) for name in db.topics(pattern)]
    if as_json:
        print_json([{"name": name, **msgspec.to_builtins(stats)} for name, stats in found])
        return
    print_table(
        ("topic", "inserted", "waiting", "running", "acked", "errored", "consumers", "state"),
        [
            (
                name, stats.inserted, stats.waiting, stats.running, stats.acked, stats.errored,
                stats.consumers, "paused" if stats.paused else "",
            )
            for name, stats in found
        ],
        empty="there are no topics here" if pattern == "*" else f"no topic matches {pattern}",
        counts=("inserted", "waiting", "running", "acked", "errored", "consumers"),
        minor=("inserted", "acked", "consumers", "running", "state"),
    )  # fmt: skip


@app.command(epilog="Example: penstock topic show jobs")
def show(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """Show counts, consumers and shards of a topic."""
    with opened(location) as db:
        topic = db.topic(name)
        stats, consumers, shards = topic.stats(), topic.consumers(), topic.shards()
    if as_json:
        print_json({"name": name, "stats": stats, "consumers": consumers, "shards": shards})
        return
    print_fields(msgspec.structs.asdict(stats), title=name)
    print_table(
        ("consumer", "slots", "last seen", "zombie"),
        [(each.id, len(each.slots), each.last_seen, each.zombie) for each in consumers],
        empty="it has no consumers",
    )
    print_table(
        ("slot", "generation", "owner", "inserted", "acked", "errored", "running", "state"),
        [
            (
                each.slot, each.generation, each.owner, each.inserted, each.acked, each.errored,
                each.running, "draining" if each.draining else "",
            )
            for each in shards
        ],
        empty="it has no shards",
        counts=("inserted", "acked", "errored", "running"),
        minor=("generation", "inserted", "acked", "state"),
    )  # fmt: skip


@app.command(epilog="Example: penstock topic errors jobs --json")
def errors(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """List messages whose handler failed, with the last error of each."""
    with opened(location) as db:
        found = db.topic(name).errors()
    if as_json:
        print_json(
            [
                {
                    "offset": each.offset,
                    **_json_key(each.shard_key),
                    **json_bytes("data", each.data),
                    "time": each.time,
                    "consumer": each.consumer,
                    "error": each.error,
                    "attempts": each.attempts,
                    "final": each.final,
                    "replay": each.replay,
                }
                for each in found
            ]
        )
        return
    print_table(
        ("offset", "key", "attempts", "given up", "replay", "error", "data"),
        [
            (
                each.offset, preview(each.shard_key, 40), each.attempts, each.final, each.replay,
                preview(each.error, 80), preview(each.data),
            )
            for each in found
        ],
        empty=f"no handler of {name} has failed",
        minor=("key", "replay", "given up", "attempts", "data"),
    )  # fmt: skip


@app.command(epilog="Example: penstock topic replay jobs 2026-05-01T00:00:00+00:00")
def replay(
    name: Name,
    start: Annotated[str, typer.Argument(metavar="START", help="An offset, or a time.")],
    end: Annotated[
        str | None, typer.Argument(metavar="END", help="Before this one; none: up to now.")
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Deliver messages once more, in order, marked as a replay."""
    with opened(location) as db:
        job = db.topic(name).replay(_point(start), None if end is None else _point(end))
    say(job, f"offsets {job.first} to {job.end - 1} come again" if job.id else "nothing to replay",
         as_json)  # fmt: skip


def _point(text: str) -> int | datetime:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError):  # no time at all, or none that this time zone has
        raise InvalidError(
            f"{text!r} is neither an offset nor a time", hint="17, or 2026-05-01T12:00:00+00:00"
        ) from None


@app.command(epilog="Example: penstock topic pause jobs")
def pause(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """Stop routing and handing out; returns when nothing more is handed out."""
    with opened(location) as db:
        settled = db.topic(name).pause()
    words = f"{name} is paused"
    say(
        {"paused": True, "settled": settled},
        words if settled else f"{words}; some messages are still being handled",
        as_json,
    )


@app.command(epilog="Example: penstock topic play jobs")
def play(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """End a pause."""
    with opened(location) as db:
        db.topic(name).play()
    say({"paused": False}, f"{name} goes on", as_json)


@app.command(epilog="Example: penstock topic rebalance jobs")
def rebalance(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """Spread the slots evenly over the consumers; joining and leaving do that by themselves."""
    with opened(location) as db:
        moved = db.topic(name).rebalance()
    say({"moved": moved}, counted(moved, "slot moved", "slots moved"), as_json)


@app.command("rm", epilog="Example: penstock topic rm jobs --yes")
def remove(
    name: Name, yes: Yes = False, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Delete a topic and what is in it."""
    confirm(f"Delete topic {name} and what is in it?", yes)
    with opened(location) as db:
        if not db.topic(name).delete():
            raise _missing(name)
    say({"deleted": name}, f"{name} is deleted", as_json)


def _require(names: list[str], name: str) -> None:
    if name not in names:
        raise _missing(name)


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"there is no topic {name!r}", hint="see: penstock topic ls")
