"""What a shard is known by. Pure.

Contract     `shard_id(uri, version)` of one file is the same text whoever announced it, however. A
             version is given where the source's identity is "version", and only then. Ids of
             different kinds never meet: a file's begins with its scheme (messages.py sees to it).
"""

from __future__ import annotations

_ANNOUNCEMENT = "announcement:"
_INLINE = "inline:"
#: No file's URI begins so.
RESERVED_SCHEMES = ("announcement", "inline")


def shard_id(uri: str, version: str | None = None) -> str:
    """`version`: the store's etag or version of the object; of a local file its size and time."""
    return uri if version is None else f"{uri}#{version}"


def local_version(size: int, modified_ns: int) -> str:
    return f"{size}-{modified_ns}"


def inline_id(message_id: str, dedup_id: str | None) -> str:
    """Of a message that is the data itself. A producer's own id is worth more than the queue's: who
    publishes twice gets two messages."""
    return f"{_INLINE}id:{message_id}" if dedup_id is None else f"{_INLINE}dedup:{dedup_id}"


def announcement_id(digest: str) -> str:
    """Of a message that could not be read."""
    return _ANNOUNCEMENT + digest


def is_announcement(identity: str) -> bool:
    return identity.startswith(_ANNOUNCEMENT)
