"""`penstock stream`: streams from the command line.

Contract     Results go to stdout, one table or one JSON document; `tail` prints a line per entry as
             it comes. A stream that does not exist is told (3); only `write` and `config` make one.
             Data is taken from the arguments, or from stdin, where every line is an entry
             of its own (`--whole`: all of it is one).
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any

import msgspec
import typer

from penstock.broker.answers import StreamInfo
from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Pattern, Yes, confirm, typed
from penstock.cli.output import print_json, result_console, say
from penstock.cli.rendering import json_bytes, preview, print_fields, print_table, seconds
from penstock.client.database import Stream
from penstock.client.publish import time_of
from penstock.errors import InvalidError, NotFoundError
from penstock.log.read import Message
from penstock.words import counted

app = typer.Typer(
    help="Write and read streams.",
    no_args_is_help=True,
    epilog="Example: penstock stream write clicks hello --tag u1",
)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="Its name.")]
#: What one write takes from stdin.
LINES = 10_000


@app.command(epilog="Example: seq 1000 | penstock stream write numbers")
def write(
    name: Name,
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="One entry each; none: the lines of stdin."),
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help="The tag of all of them.")] = "",
    whole: Annotated[bool, typer.Option("--whole", help="All of stdin is one entry.")] = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Append entries; prints their offsets when they are durable."""
    if data and whole:
        raise InvalidError("--whole is about stdin", hint="leave it out, or the data")
    with opened(location, create=True) as db:
        stream = db.stream(name)
        if data:
            offsets = stream.write_many([(tag, each) for each in typed(data)])
        elif whole:
            first = stream.write(sys.stdin.buffer.read(), tag)
            offsets = range(first, first + 1)
        else:
            offsets = range(0)
            lines: list[tuple[str, bytes]] = []
            for line in sys.stdin.buffer:
                lines.append((tag, line.rstrip(b"\r\n")))
                if len(lines) == LINES:
                    offsets = _joined(offsets, stream.write_many(lines))
                    lines = []
            if lines:
                offsets = _joined(offsets, stream.write_many(lines))
    if as_json:
        print_json({"first": offsets.start, "count": len(offsets)})
    elif not offsets:
        result_console().print("nothing was written: there was no data")
    elif len(offsets) == 1:
        result_console().print(f"{offsets.start}")
    else:
        result_console().print(f"{offsets.start} to {offsets.stop - 1}")


def _joined(before: range, after: range) -> range:
    """Others may write in between: then it is the span of both."""
    return range(before.start, after.stop) if before else after


@app.command(epilog="Example: penstock stream read clicks --from 0 -n 20")
def read(
    name: Name,
    start: Annotated[
        int | None, typer.Option("--from", help="The first offset; without it the oldest one.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    reverse: Annotated[bool, typer.Option("--reverse", help="Newest first.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Only the data, a line each.")] = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show entries of a stream; a blank line of the table stands for an evicted one."""
    if raw and as_json:
        raise InvalidError("--raw and --json cannot be given together")
    if start is not None and start < 0:
        raise InvalidError(f"--from {start} is negative", hint="--reverse shows the newest first")
    with opened(location) as db:
        stream = db.stream(name)
        info = _info(stream)
        if start is None:
            start = info.last if reverse else info.first
        found = [] if start < 0 else stream.read(start, count, reverse=reverse)
    if raw:
        for message in found:
            if message is not None:
                sys.stdout.buffer.write(message.data + b"\n")
        return
    if as_json:
        print_json([_as_json(message) for message in found])
        return
    print_table(
        ("offset", "time", "tag", "data"),
        [_row(message) for message in found],
        empty=f"stream {name} has no entries there",
        minor=("time", "tag"),
    )


@app.command(epilog="Example: penstock stream tail clicks --from 0")
def tail(
    name: Name,
    start: Annotated[
        int | None, typer.Option("--from", help="Begin here; without it, what comes from now on.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the stream where there is none yet.")
    ] = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show entries as they come, until Ctrl-C; with --json one object per line."""
    with opened(location) as db:
        stream = db.stream(name)
        info = stream.info() if wait else _info(stream)
        at = info.last + 1 if start is None else start
        left = math.inf if count is None else count
        while left > 0:
            found = stream.read(at, int(min(left, 1000)), block=math.inf)
            shown = [message for message in found if message is not None]
            for message in shown:
                _print_line(message, as_json)
            sys.stdout.flush()
            at += len(found)
            left -= len(shown)


def _info(stream: Stream) -> StreamInfo:
    """NotFoundError where there is none: a misspelt name is not an empty stream."""
    found = stream.info()
    if found.created_ms is None:
        raise _missing(stream.name)
    return found


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"there is no stream {name!r}", hint="see: penstock stream ls")


def _print_line(message: Message, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(_as_json(message)).decode() + "\n")
        return
    tag = preview(message.tag, 40)
    sys.stdout.write(f"{message.offset}\t{tag}\t{preview(message.data)}\n")


def _row(message: Message | None) -> tuple[Any, ...]:
    if message is None:
        return (None, None, "", "")
    return (
        message.offset, message.time, preview(message.tag, 40), preview(message.data),
    )  # fmt: skip


def _as_json(message: Message | None) -> dict[str, Any] | None:
    if message is None:
        return None
    return {
        "offset": message.offset,
        "time": message.time,
        **json_bytes("tag", message.tag.encode("utf-8", "surrogateescape")),
        **json_bytes("data", message.data),
    }


@app.command(epilog="Example: penstock stream info clicks")
def info(name: Name, location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """Show offsets, size, limits and groups of a stream."""
    with opened(location) as db:
        stream = db.stream(name)
        found = _info(stream)
        groups = stream.groups()
    if as_json:
        print_json({"name": name, **msgspec.to_builtins(found), "groups": groups})
        return
    print_fields(
        {
            "first": found.first,
            "last": found.last,
            "length": found.length,
            "bytes": found.bytes,
            "created": time_of(found.created_ms or 0),
            **_limits(found),
        },
        title=name,
    )
    if groups:
        print_table(
            ("group", "last", "acked to", "pending", "expired"),
            [
                (group.name, group.last_offset, group.ack_offset, group.pending, group.expired)
                for group in groups
            ],
        )


def _limits(info: StreamInfo) -> dict[str, Any]:
    config = info.config
    return {
        "keeps at most": config.max_count,
        "bytes at most": config.max_bytes,
        "age at most": None if config.max_age_ms is None else seconds(config.max_age_ms / 1000),
        "last of each tag": config.compact,
    }


@app.command(epilog="Example: penstock stream config clicks --max-age 604800 --max-bytes 0")
def config(
    name: Name,
    max_count: Annotated[
        int | None, typer.Option("--max-count", min=0, help="Entries; 0: no limit.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Bytes, as stored; 0: no limit.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", metavar="S", min=0, help="Seconds; 0: no limit.")
    ] = None,
    compact: Annotated[
        bool | None,
        typer.Option("--compact/--no-compact", help="Whether it keeps the last of each tag."),
    ] = None,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Set what a stream keeps; limits that are not named stay. Makes the stream where needed."""
    if max_count is max_bytes is max_age is compact is None:
        raise InvalidError("nothing is to be changed", hint="see: penstock stream config --help")
    with opened(location, create=True) as db:
        stream = db.stream(name)
        before = stream.info().config
        age = None if before.max_age_ms is None else before.max_age_ms / 1000
        # All of it at once: who changes another limit in this very moment is overwritten.
        stream.configure(
            max_count=before.max_count if max_count is None else max_count or None,
            max_bytes=before.max_bytes if max_bytes is None else max_bytes or None,
            max_age=age if max_age is None else max_age or None,
            compact=before.compact if compact is None else compact,
        )
        found = stream.info()
    if as_json:
        print_json({"name": name, **msgspec.to_builtins(found)})
    else:
        print_fields(_limits(found), title=name)


@app.command("ls", epilog="Example: penstock stream ls 'click*'")
def list_streams(
    pattern: Pattern = "*",
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """List streams."""
    with opened(location) as db:
        found = [(name, db.stream(name).info()) for name in db.streams(pattern)]
    if as_json:
        print_json([{"name": name, **msgspec.to_builtins(each)} for name, each in found])
        return
    print_table(
        ("stream", "first", "last", "length", "bytes", "groups"),
        [
            (name, each.first, each.last, each.length, each.bytes, each.groups)
            for name, each in found
        ],
        empty="there are no streams here" if pattern == "*" else f"no stream matches {pattern}",
        counts=("length", "bytes", "groups"),
        minor=("groups", "first", "bytes"),
    )


@app.command(epilog="Example: penstock stream evict clicks --keep 1000")
def evict(
    name: Name,
    up_to: Annotated[
        int | None, typer.Option("--up-to", help="Entries up to this offset go.")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", help="All but so many go.")] = None,
    yes: Yes = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Remove old entries."""
    if (up_to is None) == (keep is None):
        raise InvalidError("evict takes one of --up-to and --keep")
    confirm(f"Remove entries of stream {name}?", yes)
    with opened(location) as db:
        stream = db.stream(name)
        _info(stream)
        gone = stream.evict(up_to=up_to, keep=keep)
    say({"evicted": gone}, counted(gone, "entry is gone", "entries are gone"), as_json)


@app.command("rm", epilog="Example: penstock stream rm clicks --yes")
def remove(
    name: Name, yes: Yes = False, location: Location = LOCATION_DEFAULT, as_json: Json = False
) -> None:
    """Delete a stream with its groups."""
    confirm(f"Delete stream {name} and everything in it?", yes)
    with opened(location) as db:
        if not db.stream(name).delete():
            raise _missing(name)
    say({"deleted": name}, f"{name} is deleted", as_json)
