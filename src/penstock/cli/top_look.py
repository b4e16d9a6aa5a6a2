"""What `penstock top` knows: one look at a location, and rates from two of them.

Contract     A rate is the difference to the look before over the time between; the first look has
             none. What was deleted between two requests of one look is left out.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.broker.progress import Progress
from penstock.client.database import Database
from penstock.client.publish import time_of
from penstock.clock import Clock
from penstock.errors import NotFoundError
from penstock.graph.requests import ProcessorStatus, ShowGraphs
from penstock.source.requests import ListSources, SourceInfo


class StreamLine(msgspec.Struct, frozen=True):
    name: str
    first: int
    last: int
    length: int
    bytes: int
    groups: int
    rate: float | None = None  # entries written per second


class QueueLine(msgspec.Struct, frozen=True):
    name: str
    available: int
    delayed: int
    in_flight: int
    done: int
    failed: int
    routed: int  # ever
    acked: int  # ever
    paused: bool
    in_rate: float | None = None  # messages per second
    out_rate: float | None = None


class TopicLine(msgspec.Struct, frozen=True):
    name: str
    inserted: int  # ever, as acked and errored
    waiting: int
    running: int
    acked: int
    errored: int
    consumers: int
    paused: bool
    in_rate: float | None = None  # messages per second
    out_rate: float | None = None


class Look(msgspec.Struct, frozen=True):
    location: str
    time: datetime
    at: float  # seconds of a clock that runs evenly
    streams: list[StreamLine]
    queues: list[QueueLine]
    topics: list[TopicLine]
    sources: list[SourceInfo]
    processors: list[ProcessorStatus]  # of graphs
    spark: list[Progress]


def look(db: Database, clock: Clock, before: Look | None = None) -> Look:
    at = clock.monotonic()
    span = None if before is None else at - before.at
    streams = {line.name: line for line in before.streams} if before is not None else {}
    queues = {line.name: line for line in before.queues} if before is not None else {}
    topics = {line.name: line for line in before.topics} if before is not None else {}
    graphs = db.graphs.ask(ShowGraphs())
    return Look(
        location=db.location,
        time=time_of(clock.wall_ms()),
        at=at,
        streams=[_stream(db, name, streams.get(name), span) for name in db.streams()],
        queues=[
            queue
            for name in db.queues()
            if (queue := _queue(db, name, queues.get(name), span)) is not None
        ],
        topics=[
            topic
            for name in db.topics()
            if (topic := _topic(db, name, topics.get(name), span)) is not None
        ],
        sources=db.sources.ask(ListSources()).sources,
        processors=[each for graph in graphs.graphs for each in graph.processors],
        spark=db.bulk.progress(),
    )


def _rate(now: int, before: int | None, span: float | None) -> float | None:
    if before is None or not span:
        return None
    return max(0, now - before) / span


def _stream(db: Database, name: str, before: StreamLine | None, span: float | None) -> StreamLine:
    info = db.stream(name).info()
    rate = _rate(info.last, None if before is None else before.last, span)
    return StreamLine(name, info.first, info.last, info.length, info.bytes, info.groups, rate)


def _queue(
    db: Database, name: str, before: QueueLine | None, span: float | None
) -> QueueLine | None:
    try:
        stats = db.queue(name).stats()
    except NotFoundError:
        return None
    return QueueLine(
        name,
        stats.available,
        stats.delayed,
        stats.in_flight,
        stats.done,
        stats.failed,
        stats.routed,
        stats.acked,
        stats.paused,
        _rate(stats.routed, None if before is None else before.routed, span),
        _rate(stats.acked, None if before is None else before.acked, span),
    )


def _topic(
    db: Database, name: str, before: TopicLine | None, span: float | None
) -> TopicLine | None:
    try:
        stats = db.topic(name).stats()
    except NotFoundError:
        return None
    return TopicLine(
        name,
        stats.inserted,
        stats.waiting,
        stats.running,
        stats.acked,
        stats.errored,
        stats.consumers,
        stats.paused,
        _rate(stats.inserted, None if before is None else before.inserted, span),
        _rate(stats.acked, None if before is None else before.acked, span),
    )
