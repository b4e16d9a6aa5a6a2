"""The Python API for asyncio: `db = await penstock.aio.open(location)`.

The same names as in `penstock`, to be awaited. The broker has a thread of its own here too: an
event loop that is busy for a while must not make everybody else wait.
"""

from __future__ import annotations

from pathlib import Path

from penstock.client.api import AsyncDatabase
from penstock.client.queue import AsyncClaimedMessage, AsyncConsumer, AsyncQueue
from penstock.client.session import DEADLINE_SECONDS, Serving, prepare
from penstock.client.stream import AsyncGroup, AsyncStream
from penstock.client.topic import AsyncTopic
from penstock.client.topicconsumer import AsyncTopicConsumer
from penstock.store.folder import Durability

__all__ = [
    "AsyncClaimedMessage",
    "AsyncConsumer",
    "AsyncDatabase",
    "AsyncGroup",
    "AsyncQueue",
    "AsyncStream",
    "AsyncTopic",
    "AsyncTopicConsumer",
    "open",
]


async def open(  # the public name; the builtin is not used in this file
    location: str | Path,
    *,
    durability: Durability = "power",
    deadline: float = DEADLINE_SECONDS,
    broker: Serving = "auto",
) -> AsyncDatabase:
    """Open a location; see `penstock.open`."""
    session = prepare(location, durability=durability, deadline=deadline, broker=broker)
    try:
        await session.thread.hop(session.link.open())
    except BaseException:
        session.thread.stop()
        raise
    session.opened()
    return AsyncDatabase(session, session.thread.hop)
