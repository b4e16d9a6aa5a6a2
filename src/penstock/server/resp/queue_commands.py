"""The commands of queues, as data. What a row is stands in command.py."""

from __future__ import annotations

from penstock.server.resp.command import NO_KEYS, ONE_KEY, Command, Keys

_READ = ("readonly",)
_WRITE = ("write", "denyoom")

_SETTINGS = (
    "[FILTER sql] [PRIORITY sql] [LEASE milliseconds] [MAXLEASE milliseconds] [MAXATTEMPTS count] "
    "[BACKOFF milliseconds|default|base=ms,factor=x,cap=ms,jitter=x] [DONERETENTION seconds]"
)
_MESSAGE = (
    "[TO queue] [DELAY milliseconds] [VISIBLE unix-ms] [RETENTION seconds] [DEDUP id] "
    "[CREATED unix-ms] [HEADERS count name value …]"
)


def _queue(
    verb: str, arity: int, flags: tuple[str, ...], summary: str, syntax: str, keys: Keys = ONE_KEY
) -> Command:
    return Command(f"QUEUE.{verb}", arity, flags, keys, "queue", summary, syntax, since="0.3.0")


QUEUE_COMMANDS = (
    # -- queues as such
    _queue(
        "CREATE", -2, _WRITE, "Makes a queue.", f"name {_SETTINGS} [START first|new]",
    ),
    _queue(
        "ALTER", -2, _WRITE, "Changes the settings that are given; '' is none.",
        f"name {_SETTINGS}",
    ),
    _queue("DEL", 2, ("write",), "Deletes a queue and what is in it.", "name"),
    _queue("LS", -1, _READ, "Lists the queues whose names match.", "[pattern]", NO_KEYS),
    _queue("INFO", 2, _READ, "Shows the settings of a queue.", "name"),
    _queue("STATS", 2, _READ, "Counts what a queue holds.", "name"),
    _queue("PAUSE", 2, ("write", "fast"), "Stops claims.", "name"),
    _queue("PLAY", 2, ("write", "fast"), "Ends a pause.", "name"),
    _queue(
        "PURGE", -2, ("write",),
        "Removes what is available, delayed and in flight, or what has failed.", "name [FAILED]",
    ),
    _queue(
        "CONFIG", 3, ("write",), "Sets when messages that are done with are removed.",
        "RECLAIM done|retention", NO_KEYS,
    ),
    # -- producers
    _queue(
        "PUBLISH", -2, _WRITE, "Publishes a message. Replies with its id when it is durable.",
        f"payload [URI] {_MESSAGE}", NO_KEYS,
    ),
    _queue(
        "PUBLISHMANY", -3, _WRITE, "Publishes messages. Replies with their ids.",
        f"PAYLOAD payload|URI uri {_MESSAGE} …", NO_KEYS,
    ),
    # -- consumers
    _queue(
        "CLAIM", -3, ("write", "blocking"),
        "Takes messages under a lease; WAIT waits for the first one.",
        "name count [WAIT milliseconds|inf] [LEASE milliseconds] [CONSUMER name] [ROWS]",
    ),
    _queue("PEEK", 3, _READ, "Shows the messages that would be claimed next.", "name count"),
    _queue(
        "ACK", -3, ("write", "fast"), "Marks claimed messages as done.", "name receipt [receipt …]",
    ),
    _queue(
        "FAIL", -3, ("write", "fast"),
        "Ends attempts without success: the messages come again, or are failed.",
        "name [DELAY milliseconds] [REASON text] receipt [receipt …]",
    ),
    _queue(
        "EXTEND", -4, ("write", "fast"), "Lets leases last so long from now.",
        "name milliseconds receipt [receipt …]",
    ),
    _queue(
        "RELEASE", -3, ("write", "fast"), "Gives messages back; it counts no attempt.",
        "name receipt [receipt …]",
    ),
    # -- what became of messages
    _queue("DONE", -2, _READ, "Lists done messages, a page at a time.", "name [cursor]"),
    _queue("FAILED", -2, _READ, "Lists failed messages, a page at a time.", "name [cursor]"),
    _queue("ATTEMPTS", 3, _READ, "Shows the failed attempts of a message.", "name id"),
    _queue(
        "REDRIVE", -2, ("write",), "Makes failed messages available again, all or some.",
        "name [WITHEXPIRED] [id …]",
    ),
)  # fmt: skip
