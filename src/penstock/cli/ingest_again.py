"""`penstock ingest again`: let one file be loaded once more.

Contract     It is reopened, if it is remembered, and announced: a failed one goes on where it
             stood; one that is loaded would come twice, so that needs `--force`, and so does one
             that is not remembered any more.
By version   What is remembered of other versions is of no use for loading this one. So the file is
             looked at from here, and must be there; its version is reopened, or, if it is a new
             one, just announced. What nobody will end any more is ended: versions that were to be
             loaded have failed, announcements that had found nothing are done.
Not here     Loading (ingest.py), which source is meant (ingest_files.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from penstock.cli.ingest_files import Source, Table, find_source, list_shards
from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location
from penstock.cli.output import print_json, print_words
from penstock.client.database import Database
from penstock.clock import SystemClock
from penstock.errors import InvalidError, NotFoundError
from penstock.source.identity import shard_id
from penstock.source.messages import canonical_uri
from penstock.source.requests import (
    Failure,
    ReopenShard,
    Shard,
    ShardOpen,
    SourceInfo,
    token_text,
)
from penstock.spark.ingest.announced import is_unresolved
from penstock.spark.ingest.files import stat
from penstock.spark.ingest.shared import Shared
from penstock.spark.queueports import announcing

#: What this process takes to end it is somebody else's after this, should it be killed.
_STALE_MS = 60_000


def again(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A path or a URI.")],
    queue: Annotated[
        str, typer.Option("--queue", metavar="Q", help="Announce it here, for `penstock ingest`.")
    ],
    location: Location = LOCATION_DEFAULT,
    source: Source = None,
    table: Table = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Although it is loaded (its rows come twice) or forgotten."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Load one file again: one that failed, or with --force one that is loaded or forgotten."""
    uri = uri_of(file)
    with opened(location) as database:
        info = find_source(database, source, table)
        known = _remembered(database, info, uri)
        if not known and not force:
            raise NotFoundError(
                f"{uri} is not known to source {info.name!r}",
                hint="announce it, or use --force if it was forgotten",
            )
        wanted = uri if info.identity == "uri" else shard_id(uri, stat(uri).version)
        reopened = next((shard.id for shard in known if shard.id == wanted), None)
        with announcing(database, queue) as announce:
            if reopened is not None:
                database.sources.ask(ReopenShard(info.id, reopened, force=force))
            # Only now: an announcement of a file that is loaded would be dropped.
            announce(quote(uri, safe=":/"))
        # Only now: who waits for one of these may acknowledge the announcement that it came by.
        _end_others(database, info, [shard for shard in known if shard.id != wanted])
    if as_json:
        print_json({"file": uri, "id": reopened, "queue": queue})
    else:
        print_words(f"{uri} is announced again in {queue}")


def uri_of(file: str) -> str:
    """A path is one of this machine, wherever the command runs."""
    text = os.path.abspath(file) if "://" not in file else file
    try:
        # A path is what it says; a URI may be percent-encoded.
        return canonical_uri(quote(text) if text is not file else file)
    except ValueError as error:
        raise InvalidError(f"{file!r} names no file: {error}", hint="a path or a URI") from None


def _remembered(database: Database, source: SourceInfo, uri: str) -> list[Shard]:
    """The shard of this file; of a source that knows its files by version, those of all."""
    found = list_shards(database, source, prefix=uri)
    return [shard for shard in found if shard.kind == "file" and shard.uri == uri]


def _end_others(database: Database, source: SourceInfo, others: Sequence[Shard]) -> None:
    """What is left of other versions, and of announcements that had found no file."""
    clock = SystemClock()
    shared = Shared(
        source,
        token_text(clock.entropy(16)),
        stale_ms=_STALE_MS,
        ask=database.sources.ask,
        clock=clock,
        pause=threading.Event().wait,
    )
    for shard in others:
        if shard.phase == "failed" and is_unresolved(shard):
            database.sources.ask(ReopenShard(source.id, shard.id))
    opened = shared.open(
        ShardOpen(shard.id, shard.uri, shard.etag, shard.announced_by)
        for shard in others
        if shard.phase == "open" or is_unresolved(shard)
    )
    # What another process works on is its own.
    mine = [shard for shard in opened.values() if shard.phase == "open" and shard.mine]
    found = [shard for shard in mine if is_unresolved(shard)]
    if found:
        shared.end(found)
    gone = [shard for shard in mine if not is_unresolved(shard)]
    reason = "its file is another version now"
    shared.fail([Failure(shard.id, f"{shard.uri}: {reason}", final=True) for shard in gone])
