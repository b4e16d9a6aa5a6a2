"""The commands of bulk reads and writes, as data. What a row is stands in command.py."""

from __future__ import annotations

from penstock.server.resp.command import NO_KEYS, Command


def _bulk(
    verb: str,
    arity: int,
    flags: tuple[str, ...],
    summary: str,
    syntax: str,
    subcommands: tuple[str, ...] = (),
) -> Command:
    name = f"PENSTOCK.{verb}"
    return Command(
        name, arity, flags, NO_KEYS, "generic", summary, syntax, subcommands, since="0.4.0"
    )


BULK_COMMANDS = (
    _bulk(
        "STAGE", -2, ("write", "denyoom"), "Stores nodes that nobody sees until they are linked.",
        "BEGIN [KEY key] [LEASE milliseconds] | PUT id writer n nodes node … "
        "[PAYLOADS message-id record …] | RESERVE id writer count [TO queue …] | RENEW id | "
        "DROP id",
        ("BEGIN", "DROP", "PUT", "RENEW", "RESERVE"),
    ),
    _bulk(
        "LINK", -4, ("write",), "Makes staged nodes visible. Replies with their offsets.",
        "id STREAM key|TOPIC name|MESSAGES WRITERS writer … [PRODUCER id sequence]",
    ),
    _bulk(
        "CHECKPOINT", -3, ("write",), "Pins the state of now for readers of the store itself.",
        "MAKE milliseconds [QUEUE name] | RENEW id milliseconds | DROP id",
        ("DROP", "MAKE", "RENEW"),
    ),
    _bulk(
        "SIZE", -2, ("readonly",), "Shows id, first and next offset, bytes and birth of a log.",
        "STREAM key|TOPIC name|MESSAGES",
    ),
    _bulk(
        "READ", -5, ("readonly",), "Reads rows as an Arrow stream, as many as one answer holds.",
        "low high json STREAM key|TOPIC name|MESSAGES",
    ),
    _bulk(
        "SEEK", -3, ("readonly",), "Finds the first offset of a time.",
        "unix-ms STREAM key|TOPIC name|MESSAGES",
    ),
    _bulk("REPORT", 2, ("fast",), "Takes what a task tells about its read.", "json"),
    _bulk("PROGRESS", 1, ("readonly", "fast"), "Shows reads and writes of Spark.", ""),
)  # fmt: skip
