"""Queues and streams that live in a folder or a bucket and feed Spark exactly once."""

from penstock.client.database import Database, Stream, open
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

__version__ = "0.1.0"

__all__ = [
    "ConflictError",
    "CorruptError",
    "Database",
    "FencedError",
    "InvalidError",
    "Message",
    "NotFoundError",
    "PenstockError",
    "Stream",
    "UnavailableError",
    "open",
]
