"""`penstock ingest files | sources`: what became of announced files.

Contract     Listing changes nothing and makes no location.
Which source `--source NAME`, or `--table T`, or the only one there is.
Not here     Loading (ingest.py), loading again (ingest_again.py), what a shard is
             (source/requests.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from penstock.cli.opening import opened
from penstock.cli.options import LOCATION_DEFAULT, Json, Location
from penstock.cli.output import print_json, result_console
from penstock.cli.rendering import print_table
from penstock.client.database import Database
from penstock.errors import InvalidError, NotFoundError
from penstock.source.requests import (
    GetSource,
    ListFiles,
    ListSources,
    Phase,
    Shard,
    SourceInfo,
)
from penstock.spark.ingest.tablefolder import table_uri

#: Read from the broker at a time.
_PAGE = 1_000
#: Shown unless more are asked for.
_SHOWN = 1_000

State = Literal["open", "done", "failed"]
PHASES: dict[State, Phase] = {"open": "open", "done": "eof", "failed": "failed"}
_STATES: dict[Phase, State] = {phase: state for state, phase in PHASES.items()}

Source = Annotated[
    str | None, typer.Option("--source", metavar="S", help="By its name, if it has one.")
]
Table = Annotated[
    str | None, typer.Option("--table", metavar="T", help="The source of this table.")
]


class FileState(msgspec.Struct, frozen=True):
    """A line of `files`, and what `--json` prints of it."""

    file: str
    state: State
    position: str
    rows: int
    failures: int
    error: str
    kind: str  # file, inline: the message was the data, announcement: it could not be read
    id: str
    version: str | None
    announced_by: str
    text: str  # of an announcement that could not be read
    opened_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, shard: Shard) -> FileState:
        return cls(
            file=shard.uri,
            state=_STATES[shard.phase],
            position=shard.position,
            rows=shard.rows,
            failures=shard.failures,
            error=shard.error,
            kind=shard.kind,
            id=shard.id,
            version=shard.etag,
            announced_by=shard.announced_by,
            text=shard.text,
            opened_at=_time(shard.opened_ms),
            updated_at=_time(shard.updated_ms),
        )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def files(
    location: Location = LOCATION_DEFAULT,
    source: Source = None,
    table: Table = None,
    state: Annotated[State | None, typer.Option("--state", help="Only files that are so.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Show at most so many.")
    ] = _SHOWN,
    as_json: Json = False,
) -> None:
    """What became of every announced file, with the errors of those that failed."""
    with opened(location) as database:
        info = find_source(database, source, table)
        found: list[FileState] = []
        for shard in list_shards(database, info, None if state is None else PHASES[state]):
            if len(found) == limit:
                more = True
                break
            found.append(FileState.of(shard))
        else:
            more = False
    if as_json:
        print_json(found)
        return
    print_table(
        ["file", "state", "rows", "position", "failures", "error", "updated"],
        [
            (
                each.text or each.file.removeprefix("file://"),
                *(each.state, each.rows, each.position, each.failures, each.error),
                each.updated_at,
            )
            for each in found
        ],
        title=info.name,
        empty="no such files" if state else "no file was announced yet",
        left=["position"],
        counts=["rows"],
        minor=["position", "updated", "failures"],
    )
    if more:
        result_console().print(f"the first {limit:,}; --limit shows more", markup=False)


def list_shards(
    database: Database, source: SourceInfo, phase: Phase | None = None, prefix: str = ""
) -> Iterator[Shard]:
    after: str | None = ""
    # An answer may be short, even empty, before the end: files that are otherwise come between.
    while after is not None:
        page = database.sources.ask(
            ListFiles(source.id, phase=phase, after=after, limit=_PAGE, prefix=prefix)
        )
        yield from page.shards
        after = page.after


def sources(location: Location = LOCATION_DEFAULT, as_json: Json = False) -> None:
    """The sources of a location, and how far they are."""
    with opened(location) as database:
        found = database.sources.ask(ListSources()).sources
    if as_json:
        print_json(found)
        return
    print_table(
        ["source", "table", "identity", "loaded", "failed", "published", "exported"],
        [
            (
                *(each.name, each.table, each.identity),
                *(each.done, each.failed, each.published, each.exported),
            )
            for each in found
        ],
        empty="no source yet",
        counts=["loaded", "failed", "published", "exported"],
        minor=["identity", "exported", "published", "table"],
    )


def find_source(database: Database, name: str | None, table: str | None) -> SourceInfo:
    if name is not None:
        return database.sources.ask(GetSource(name))
    found = database.sources.ask(ListSources()).sources
    if table is not None:
        wanted = table_uri(Path(table) if "://" not in table else table)
        found = [each for each in found if each.table == wanted]
    match found:
        case []:
            what = "there is no source" if table is None else f"no source loads into {table}"
            raise NotFoundError(what, hint="penstock ingest makes one")
        case [only]:
            return only
    names = ", ".join(repr(each.name) for each in found)
    raise InvalidError(f"there are several sources: {names}", hint="say which with --source")
