"""The options of the data source, checked: `.format("penstock").option(name, value)`. Pure.

Contract     Names in any case, as in Spark. What is wrong is an InvalidError before anything is
             read or written: an unknown name too, for a misspelt option would be a silent default.
Names        Those that Kafka's source has mean the same here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from penstock.errors import InvalidError
from penstock.log.catalogue import LogName, stream_name
from penstock.queue.state import queue_name
from penstock.queue.statecolumns import STATES
from penstock.spark.handles import shared_place
from penstock.topic.state import topic_name

#: Where a read begins or ends: an offset, a time in milliseconds, or one of the words.
Edge = int | datetime | Literal["earliest", "latest"]

#: A task costs some 80 ms besides its rows: measured with 10 million rows on two cores, 500,000
#: each gave 3.2 million rows/s, 2,500,000 gave 4.4.
ROWS_PER_PARTITION = 2_500_000
#: Spark hands these to sources and sinks, whether they want them or not.
_SPARKS_OWN = {"path", "checkpointlocation", "queryname", "outputmode"}

_COMMON = {"location"}
_READ = {
    "stream", "topic", "messages", "queue", "state", "startingoffsets", "endingoffsets",
    "maxmessagespertrigger", "failondataloss", "includeheaders", "includepayload",
    "minpartitions", "rowsperpartition", "pushfilters",
}  # fmt: skip
_WRITE = {"stream", "topic", "messages", "queue", "producer", "sequence"}
#: What somebody who comes from elsewhere may write.
_MEANT = {
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "startingoffsetsbytimestamp": "startingOffsets with a time, such as 2026-01-31T12:00:00Z",
    "endingoffsetsbytimestamp": "endingOffsets with a time, such as 2026-01-31T12:00:00Z",
    "startingtimestamp": "startingOffsets with a time, such as 2026-01-31T12:00:00Z",
    "endingtimestamp": "endingOffsets with a time, such as 2026-01-31T12:00:00Z",
    "subscribe": "stream or topic",
    "subscribepattern": "stream or topic, with one name",
    "assign": "stream or topic; offsets are those of the whole, there are no partitions",
    "kafka.bootstrap.servers": "location",
    "path": "location",
}


class Source(msgspec.Struct, frozen=True):
    """What is read or written."""

    kind: Literal["stream", "topic", "messages", "queue"]
    name: str = ""

    @property
    def log(self) -> LogName | None:
        """The log of a stream or a topic; None for messages."""
        if self.kind == "topic":
            return topic_name(self.name)
        return stream_name(self.name) if self.kind == "stream" else None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class ReadOptions(msgspec.Struct, frozen=True):
    location: str
    source: Source
    states: tuple[str, ...]
    starting: Edge | None  # None: the usual one, which is another for streaming
    ending: Edge
    max_per_trigger: int | None
    fail_on_data_loss: bool
    headers: bool
    payload: bool
    min_partitions: int | None
    rows_per_partition: int
    push_filters: bool
    #: Only these, in this order, and whether Spark takes them for null; None: all (schema.py).
    columns: tuple[tuple[str, bool], ...] | None = None


class WriteOptions(msgspec.Struct, frozen=True):
    location: str
    source: Source
    producer: str | None
    sequence: int | None


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    options = _known(given, _READ)
    source = _source(options)
    _only(options, source, {"queue": {"state"}})
    if source.kind == "queue":
        if streaming:
            raise InvalidError(
                "the state of a queue is not a stream of rows", hint="read it with spark.read"
            )
        for name in ("startingoffsets", "endingoffsets"):
            if name in options:
                raise InvalidError(f"{name} is for streams and messages; a queue's state has none")
        for name in ("minpartitions", "pushfilters"):
            if name in options:
                raise InvalidError(f"{name} is for streams, topics and messages, not for a queue")
    if source.kind == "topic" and "includeheaders" in options:
        raise InvalidError("messages of a topic have no headers")
    if source.kind in ("stream", "topic") and "includepayload" in options:
        raise InvalidError("includePayload is for messages and queues", hint="select columns")
    if source.kind in ("messages", "queue") and "failondataloss" in options:
        raise InvalidError(
            "failOnDataLoss is for streams and topics", hint="messages leave when they are done"
        )
    if streaming and "pushfilters" in options:
        raise InvalidError("pushFilters is for batch reads")
    if not streaming and "maxmessagespertrigger" in options:
        raise InvalidError("maxMessagesPerTrigger is for streaming reads")
    if streaming and "endingoffsets" in options:
        raise InvalidError("endingOffsets is for batch reads; a streaming one has no end")
    starting = options.get("startingoffsets")
    return ReadOptions(
        location=_location(options),
        source=source,
        states=_states(options.get("state")),
        starting=None if starting is None else _edge("startingOffsets", starting),
        ending=_edge("endingOffsets", options.get("endingoffsets", "latest")),
        max_per_trigger=_optional_count(options, "maxMessagesPerTrigger"),
        fail_on_data_loss=_truth(options, "failOnDataLoss", True),
        headers=_truth(options, "includeHeaders", source.kind == "messages"),
        payload=_truth(options, "includePayload", source.kind != "queue"),
        min_partitions=_optional_count(options, "minPartitions"),
        rows_per_partition=_optional_count(options, "rowsPerPartition") or ROWS_PER_PARTITION,
        push_filters=_truth(options, "pushFilters", False),
    )


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    options = _known(given, _WRITE)
    source = _source(options)
    producer, sequence = options.get("producer"), options.get("sequence")
    if (producer is None) != (sequence is None):
        raise InvalidError("producer and sequence go together")
    if producer is not None and streaming:
        raise InvalidError("producer and sequence are for batch writes; a query has its own")
    if producer is not None:
        try:
            size = len(producer.encode())
        except UnicodeEncodeError:
            raise InvalidError(f"producer {producer!r} is no valid text") from None
        if not 0 < size <= 255:
            raise InvalidError("producer has 1 to 255 bytes")
    return WriteOptions(
        _location(options),
        source,
        producer,
        None if sequence is None else _number("sequence", sequence, low=0),
    )


def _known(given: Mapping[str, str], names: set[str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    for name in options.keys() - names - _COMMON - _SPARKS_OWN:
        hint = f"did you mean {_MEANT[name]}?" if name in _MEANT else "see docs/spark.md"
        raise InvalidError(f"{name!r} is not an option of penstock here", hint=hint)
    return options


def _location(options: Mapping[str, str]) -> str:
    given = [options[name] for name in ("location", "path") if options.get(name)]
    if not given:
        raise InvalidError("which location?", hint='.option("location", "./data")')
    # Relative to where the driver's JVM was started; executors have folders of their own.
    location, *others = map(shared_place, given)
    if others not in ([], [location]):
        raise InvalidError(
            f"location is {location}, and the path is {others[0]}",
            hint="give one of them; load(path), save(path) and start(path) name a location too",
        )
    return location


def _source(options: Mapping[str, str]) -> Source:
    found = [kind for kind in ("stream", "topic", "messages", "queue") if kind in options]
    if len(found) != 1:
        said = "none" if not found else " and ".join(found)
        raise InvalidError(
            f"one of stream, topic, messages and queue is needed; given is {said}",
            hint='.option("stream", "clicks") or .option("messages", "true")',
        )
    match found[0]:
        case "stream":
            stream_name(options["stream"])
            return Source("stream", options["stream"])
        case "topic":
            topic_name(options["topic"])
            return Source("topic", options["topic"])
        case "queue":
            queue_name(options["queue"])
            return Source("queue", options["queue"])
        case _:
            if not _truth(options, "messages", True):
                raise InvalidError("messages is true, or not given")
            return Source("messages")


def _only(options: Mapping[str, str], source: Source, names: Mapping[str, set[str]]) -> None:
    for kind, own in names.items():
        for name in own & options.keys():
            if source.kind != kind:
                raise InvalidError(f"{name} is for a {kind}")


def _states(value: str | None) -> tuple[str, ...]:
    if value is None:
        return tuple(STATES)
    states = tuple(word.strip().lower() for word in value.split(","))
    for state in states:
        if state not in STATES:
            raise InvalidError(f"state {state!r} is none of {', '.join(STATES)}")
    return states


def _edge(name: str, value: str) -> Edge:
    word = value.strip()
    if word.lower() in ("earliest", "latest"):
        return "earliest" if word.lower() == "earliest" else "latest"
    if word.isdigit():
        return _number(name, word, low=0)
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise InvalidError(
            f"{name} is earliest, latest, an offset or a time, not {value!r}",
            hint="a time is written as 2026-01-31T12:00:00Z",
        ) from None
    if time.tzinfo is None:
        raise InvalidError(f"{name}: {value!r} has no time zone", hint=f"{word}Z is UTC")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise InvalidError(f"{name}: {value!r} is beyond all times") from None


def _number(name: str, value: str, *, low: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InvalidError(f"{name} is a whole number, not {value!r}") from None
    if not low <= number < 1 << 63:
        raise InvalidError(f"{name} is {number}; it must be at least {low} and below 2^63")
    return number


def _optional_count(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    return None if value is None else _number(name, value, low=1)


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    if value.strip().lower() not in ("true", "false"):
        raise InvalidError(f"{name} is true or false, not {value!r}")
    return value.strip().lower() == "true"
