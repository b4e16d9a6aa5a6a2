"""The commands of topics, as data. What a row is stands in command.py."""

from __future__ import annotations

from penstock.server.resp.command import NO_KEYS, ONE_KEY, Command, Keys

_READ = ("readonly",)
_WRITE = ("write", "denyoom")


def _topic(
    verb: str, arity: int, flags: tuple[str, ...], summary: str, syntax: str, keys: Keys = ONE_KEY
) -> Command:
    return Command(f"TOPIC.{verb}", arity, flags, keys, "topic", summary, syntax, since="0.7.0")


TOPIC_COMMANDS = (
    # -- producers
    _topic(
        "PUSH", -3, _WRITE, "Pushes a message. Replies with its offset when it is durable.",
        "topic [KEY shard-key] [SLOTS count] [NOCREATE] data",
    ),
    _topic(
        "PUSHMANY", -4, _WRITE,
        "Pushes messages, all or none; an empty key is none. Replies with their first and last "
        "offset.",
        "topic shard-key data [shard-key data …]",
    ),
    _topic(
        "PUSHNODES", -4, _WRITE,
        "The same for messages that are laid out as nodes, with their keys as tags.",
        "topic [SLOTS count] [NOCREATE] NODES node [node …]",
    ),
    # -- consumers: what `tail` speaks
    _topic(
        "JOIN", -3, _WRITE, "Registers a consumer. Replies with its token and its slots.",
        "topic consumer [HEARTBEAT milliseconds] [SLOTS count]",
    ),
    _topic(
        "BEAT", 4, ("write", "fast"), "A sign of life. Replies with the consumer's slots.",
        "topic consumer token",
    ),
    _topic(
        "POLL", -5, ("write", "blocking"),
        "Takes messages, in the order in which each key's are to be handled. SETTLE acknowledges "
        "those that are answered with, DONE others before. Waiting is a sign of life for a "
        "consumer that has nothing to settle.",
        "topic consumer token count [WAIT milliseconds|inf] [SETTLE] [PACKED] "
        "[DONE reference … | DONEPACKED msgpack]",
    ),
    _topic(
        "ACK", -5, _WRITE,
        "Acknowledges messages; what follows happens in the same commit, or nothing does. FAILED "
        "counts an attempt. Replies with 1 for each that counts, 0 for one that has moved on.",
        "topic consumer token [reference …] [ATTEMPTS count] [FAILED reference text …] "
        "[PUSH topic shard-key data …] [WRITE stream tag data …] [PUBLISH count word …] | "
        "topic consumer token PACKED msgpack",
    ),
    _topic(
        "RELEASE", -5, ("write", "fast"), "Gives back messages that were not begun.",
        "topic consumer token reference [reference …] | topic consumer token PACKED msgpack",
    ),
    _topic(
        "LEAVE", 4, ("write",), "Ends a registration: its slots move on.", "topic consumer token",
    ),
    # -- supervisors
    _topic(
        "PAUSE", -2, ("write", "blocking"),
        "Stops routing and emission. Replies when nothing more is handed out, or with 0 if "
        "something still runs after that time.",
        "topic [WAIT milliseconds]",
    ),
    _topic("PLAY", 2, ("write", "fast"), "Ends a pause.", "topic"),
    _topic(
        "REBALANCE", 2, ("write",),
        "Spreads the slots and their backlog evenly. Replies with how many moved.",
        "topic",
    ),
    _topic(
        "REPLAY", -4, _WRITE,
        "Delivers messages once more, from start to before end. Replies with a number, the first "
        "offset and the one after the last.",
        "topic OFFSET|TIME start [end]",
    ),
    _topic(
        "CONFIG", -2, ("write",),
        "Sets those limits of the log of all messages that are named, 0 is none; or shows them.",
        "topic [MAXLEN count] [MAXBYTES bytes] [MAXAGE milliseconds]",
    ),
    _topic("DEL", 2, ("write",), "Deletes a topic and what is in it.", "topic"),
    # -- looking
    _topic("LS", -1, _READ, "Lists the topics whose names match.", "[pattern]", NO_KEYS),
    _topic("INFO", 2, _READ, "Shows the settings of a topic.", "topic"),
    _topic("STATS", 2, _READ, "Counts what became of messages.", "topic"),
    _topic("CONSUMERS", 2, _READ, "Lists live and draining consumers.", "topic"),
    _topic("SHARDS", 2, _READ, "Lists shards with their counts.", "topic"),
    _topic(
        "ERRORS", -2, _READ,
        "Lists messages whose handler failed, by offset and replay; fewer than count where they "
        "are large, none at the end alone.",
        "topic [start [count [replay]]]",
    ),
)  # fmt: skip
