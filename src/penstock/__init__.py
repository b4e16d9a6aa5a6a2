"""Queues and streams that live in a folder or a bucket and feed Spark exactly once."""

__version__ = "0.1.0"  # before the imports: some of them show it

from penstock import aio
from penstock.client.blockingqueue import ClaimedMessage, Consumer, Queue
from penstock.client.blockingtopic import Topic, TopicConsumer
from penstock.client.database import Database, Group, Stream, open
from penstock.client.publish import URI, Publish
from penstock.client.topicshapes import TopicMessage
from penstock.client.tx import Tx
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.log.read import Message
from penstock.queue.backoff import Backoff

__all__ = [
    "URI",
    "Backoff",
    "ClaimedMessage",
    "ConflictError",
    "Consumer",
    "CorruptError",
    "Database",
    "FencedError",
    "Group",
    "InvalidError",
    "Message",
    "NotFoundError",
    "PenstockError",
    "Publish",
    "Queue",
    "Stream",
    "Topic",
    "TopicConsumer",
    "TopicMessage",
    "Tx",
    "UnavailableError",
    "aio",
    "open",
]
