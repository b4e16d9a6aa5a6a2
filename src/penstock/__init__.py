"""Queues and streams that live in a folder or a bucket and feed Spark exactly once."""

__version__ = "0.1.0"  # before the imports: some of them show it

from penstock import aio
from penstock.client.database import Database, Group, Stream, open
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

__all__ = [
    "ConflictError",
    "CorruptError",
    "Database",
    "FencedError",
    "Group",
    "InvalidError",
    "Message",
    "NotFoundError",
    "PenstockError",
    "Stream",
    "UnavailableError",
    "aio",
    "open",
]
