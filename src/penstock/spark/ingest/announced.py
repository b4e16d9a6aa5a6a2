"""Messages into shards: what each names, which version it is, and what cannot be read.

Contract     `read(messages)` asks the stores for versions where the source's identity wants them,
             and never trusts a message for that. Nothing is written here.
Unresolved   A file whose version cannot be asked for (it is missing, or its store is away) is known
             by its message until it can be: a failure must be counted somewhere. Such a shard never
             has rows; it ends when the file was found, which then has a shard of its own. Who is
             killed before that leaves it to whoever gets the message next.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import msgspec

from penstock.errors import PenstockError
from penstock.source.identity import inline_id, shard_id
from penstock.source.messages import digest, read_announcement
from penstock.source.queueport import Received
from penstock.source.requests import BadAnnouncement, Identity, Shard, ShardOpen
from penstock.source.words import ID_BYTES_MAX
from penstock.spark.ingest.files import stat

#: How much of a message that could not be read is kept for people.
_TEXT_BYTES = 4000
_UNRESOLVED = "unresolved:"
#: What is left of a shard's id when a version, or a message's id, comes behind it.
_URI_BYTES_MAX = ID_BYTES_MAX - 512


class Named(msgspec.Struct, frozen=True):
    """A message, and the shards that it names; none: there is nothing to do for it."""

    received: Received
    shards: list[ShardOpen]


class Announced(msgspec.Struct, frozen=True):
    named: list[Named]
    bad: list[BadAnnouncement]
    inline: dict[str, bytes]  # by shard


def read_messages(
    messages: Sequence[Received], *, identity: Identity, inline: bool, pool: Executor
) -> Announced:
    named, bad = [], []
    data: dict[str, bytes] = {}
    uris: list[list[str]] = []
    for each in messages:
        if inline:
            shard = inline_id(each.id, each.dedup_id)
            if not _can_be_kept(shard):
                shard = inline_id(digest(shard.encode(errors="backslashreplace")), None)
            data.setdefault(shard, each.body)
            named.append(Named(each, [ShardOpen(shard, shard, None, each.id, "inline")]))
            continue
        found = read_announcement(each.body, each.uri)
        good = [uri for uri in found.files if _can_be_kept(uri)]
        uris.append(good)
        named.append(Named(each, []))
        error = found.error
        if error is None and len(good) < len(found.files):
            error = f"it names a file by more than {_URI_BYTES_MAX:,} bytes of UTF-8"
        if error is not None:
            text = each.body[:_TEXT_BYTES].decode(errors="backslashreplace")
            bad.append(BadAnnouncement(digest(each.body), text, error, each.id))
    if inline:
        return Announced(named, bad, data)
    versions = dict[str, str | None]()
    if identity == "version":
        distinct = list(dict.fromkeys(uri for each in uris for uri in each))
        versions = dict(zip(distinct, pool.map(version_of, distinct), strict=True))
    for message, files in zip(named, uris, strict=True):
        message.shards.extend(
            open_shard(uri, versions.get(uri), message.received.id, identity) for uri in files
        )
    return Announced(named, bad, data)


def _can_be_kept(uri: str) -> bool:
    try:
        return len(uri.encode()) <= _URI_BYTES_MAX
    except UnicodeEncodeError:
        return False


def open_shard(uri: str, version: str | None, message: str, identity: Identity) -> ShardOpen:
    """`version`: None where it is not part of the identity, or could not be asked for."""
    if identity == "version" and version is None:
        return ShardOpen(shard_id(uri, f"{_UNRESOLVED}{message}"), uri, None, message)
    return ShardOpen(shard_id(uri, version), uri, version, message)


def unresolved(message: Named) -> list[ShardOpen]:
    """What its files would have been known by while they had no version."""
    return [
        open_shard(each.uri, None, message.received.id, "version")
        for each in message.shards
        if each.etag is not None
    ]


def is_unresolved(shard: Shard) -> bool:
    return shard.etag is None and shard.id.startswith(f"{shard.uri}#{_UNRESOLVED}")


def version_of(uri: str) -> str | None:
    """None: it cannot be asked for now; reading it will tell why."""
    try:
        return stat(uri).version
    except PenstockError:
        return None
