"""The commands of the RESP door, as data: what COMMAND tells, what is checked before a parse.

Contract     `COMMANDS` has every command once, by its upper-case name.
Not here     what a command does: housekeeping.py (answered at once), streams.py and queues.py
             (awaited); the commands of queues (queue_commands.py).
"""

from __future__ import annotations

from penstock.server.resp.bulk_commands import BULK_COMMANDS
from penstock.server.resp.command import ALL_KEYS, NO_KEYS, ONE_KEY, Command
from penstock.server.resp.graphs import GRAPH_COMMANDS
from penstock.server.resp.queue_commands import QUEUE_COMMANDS
from penstock.server.resp.sources import SOURCE_COMMANDS
from penstock.server.resp.topic_commands import TOPIC_COMMANDS

__all__ = ["COMMANDS", "Command", "key_positions"]

_ADMIN = ("loading", "stale", "fast")
_READ = ("readonly",)
_WRITE = ("write", "denyoom")

_TABLE = (
    # -- the connection
    Command(
        "AUTH", -2, ("noscript", "no_auth", *_ADMIN), NO_KEYS, "connection",
        "Gives the password.", "[username] password",
    ),
    Command(
        "CLIENT", -2, ("noscript", *_ADMIN), NO_KEYS, "connection",
        "Tells about connections, names and ends them.",
        "subcommand [argument …]",
        (
            "GETNAME", "HELP", "ID", "INFO", "KILL", "LIST", "NO-EVICT", "NO-TOUCH", "REPLY",
            "SETINFO", "SETNAME", "TRACKING", "UNBLOCK",
        ),
    ),
    Command("ECHO", 2, _ADMIN, NO_KEYS, "connection", "Returns the message.", "message"),
    Command(
        "HELLO", -1, ("noscript", "no_auth", *_ADMIN), NO_KEYS, "connection",
        "Chooses the protocol, gives the password and a name.",
        "[protover [AUTH username password] [SETNAME clientname]]",
    ),
    Command(
        "PING", -1, _ADMIN, NO_KEYS, "connection",
        "Answers PONG, or the message.", "[message]",
    ),
    Command(
        "QUIT", -1, ("noscript", "no_auth", *_ADMIN), NO_KEYS, "connection",
        "Ends the connection.",
    ),
    Command(
        "RESET", 1, ("noscript", "no_auth", *_ADMIN), NO_KEYS, "connection",
        "Makes the connection as it was when it began.",
    ),
    Command(
        "SELECT", 2, _ADMIN, NO_KEYS, "connection",
        "Chooses database 0, the only one.", "index",
    ),
    # -- the server
    Command(
        "COMMAND", -1, ("loading", "stale"), NO_KEYS, "server", "Tells about commands.",
        "[subcommand [argument …]]", ("COUNT", "DOCS", "GETKEYS", "HELP", "INFO", "LIST"),
    ),
    Command(
        "CONFIG", -2, ("admin", "noscript", "loading", "stale"), NO_KEYS, "server",
        "Tells the settings that clients ask for.", "GET pattern [pattern …]",
        ("GET", "HELP", "RESETSTAT", "SET"),
    ),
    Command("DBSIZE", 1, ("readonly", "fast"), NO_KEYS, "server", "Counts the streams."),
    Command(
        "INFO", -1, ("loading", "stale"), NO_KEYS, "server", "Tells about the server.",
        "[section …]",
    ),
    Command("TIME", 1, _ADMIN, NO_KEYS, "server", "Tells the time of the server."),
    # -- keys
    Command(
        "EXISTS", -2, ("readonly", "fast"), ALL_KEYS, "generic",
        "Counts the streams that exist.", "key [key …]",
    ),
    Command(
        "TYPE", 2, ("readonly", "fast"), ONE_KEY, "generic",
        "Tells the type: stream or none.", "key",
    ),
    # -- streams
    Command(
        "TWRITE", -4, _WRITE, ONE_KEY, "stream",
        "Appends entries. Replies with their offsets when they are durable.",
        "key tag entry | key [BACKLOG count] [PRODUCER id sequence] [META] "
        "ENTRIES tag entry [meta] …",
    ),
    Command(
        "TREAD", -4, ("readonly", "blocking"), ONE_KEY, "stream",
        "Reads entries from an offset on, or those that a group has not had yet.",
        "key offset count [BLOCK milliseconds] [GROUP name [FROM first|new|offset]] "
        "[RETRY retry-ms expire-ms] [WITHINFO] [REVERSE] [FULL] [RAW]",
    ),
    Command(
        "TEVICT", 3, ("write",), ONE_KEY, "stream",
        "Removes entries up to an offset; a negative one is how many to keep.", "key offset",
    ),
    Command(
        "TACK", -4, ("write", "fast"), ONE_KEY, "stream",
        "Acknowledges entries that a group has delivered.",
        "key group offset|start-end [offset|start-end …]",
    ),
    Command(
        "TGROUP", -3, ("write",), (2, 2, 1), "stream",
        "Creates, moves, shows and destroys groups.",
        "CREATE|SET|INFO|PENDING|DESTROY key [group] [FROM first|new|offset] [MAXPENDING count] "
        "[DEAD stream] [offset|first|new] [start [count]]",
        ("CREATE", "DESTROY", "INFO", "PENDING", "SET"),
    ),
    Command(
        "TCONFIG", -2, ("write",), ONE_KEY, "stream",
        "Sets what a stream keeps, or shows it.",
        "key [MAXLEN count] [MAXBYTES bytes] [MAXAGE milliseconds] [COMPACT yes|no]",
    ),
    Command("TINFO", 2, _READ, ONE_KEY, "stream", "Shows a stream.", "key"),
    Command(
        "TLEN", 2, ("readonly", "fast"), ONE_KEY, "stream",
        "Counts the entries of a stream.", "key",
    ),
    Command(
        "TKEYS", -1, _READ, NO_KEYS, "stream",
        "Lists the streams whose names match.", "[pattern]",
    ),
    Command("TDEL", -2, ("write",), ALL_KEYS, "stream", "Deletes streams.", "key [key …]"),
)  # fmt: skip

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        *_TABLE,
        *QUEUE_COMMANDS,
        *TOPIC_COMMANDS,
        *BULK_COMMANDS,
        *SOURCE_COMMANDS,
        *GRAPH_COMMANDS,
    )
}


def key_positions(command: Command, count: int) -> list[int]:
    """Which of `count` words are keys."""
    first, last, step = command.keys
    if not first:
        return []
    end = last if last >= 0 else count + last
    return list(range(first, min(end, count - 1) + 1, step))
