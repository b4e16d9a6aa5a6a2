"""Source requests: what the runners of sources ask of a broker.

Contract     All of it runs on the broker's loop. `ask` takes any request of source/requests.py and
             answers with what its type names, after its commit; a refused or wrong one changes
             nothing. Requests of several runners are decided one after the other.
Not here     What a request decides (source/), pruning (sourcekeeping.py), the wire (server/).
"""

from __future__ import annotations

from typing import Any, TypeVar, assert_never, cast

from penstock.broker.commit import Committer
from penstock.log.decision import Step
from penstock.source.admin import mark_exported_step, open_source_step, put_schema_step
from penstock.source.ended import fail_announcements_step, reopen_shard_step
from penstock.source.lists import describe, files, list_sources, publishes, read_schema
from penstock.source.publish import publish_step
from penstock.source.requests import (
    AcquireShards,
    Ask,
    Beat,
    BeginStaging,
    FailAnnouncements,
    FailShards,
    FinishStagings,
    GetSchema,
    GetSource,
    ListFiles,
    ListPublishes,
    ListSources,
    MarkExported,
    OpenShards,
    OpenSource,
    Publish,
    PutSchema,
    ReleaseShards,
    ReopenShard,
    RevokeStagings,
    SourceRequest,
)
from penstock.source.shards import (
    acquire_shards_step,
    beat_step,
    fail_shards_step,
    open_shards_step,
    release_shards_step,
)
from penstock.source.staging import (
    begin_staging_step,
    finish_stagings_step,
    revoke_stagings_step,
)

R = TypeVar("R")


class Sources:
    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    async def ask(self, request: Ask[R]) -> R:
        return cast(R, await self._answer(cast(SourceRequest, request)))

    async def _answer(self, request: SourceRequest) -> Any:
        match request:
            case GetSource(name):
                return await self._committer.read(lambda view: describe(view, name))
            case ListSources():
                return await self._committer.read(list_sources)
            case ListFiles():
                return await self._committer.read(lambda view: files(view, request))
            case ListPublishes():
                return await self._committer.read(lambda view: publishes(view, request))
            case GetSchema(source):
                return await self._committer.read(lambda view: read_schema(view.store, source))
            case _:
                (answer,) = await self._committer.submit(source_step(request))
                return answer


SourceWrite = (
    OpenSource
    | OpenShards
    | AcquireShards
    | Beat
    | ReleaseShards
    | FailShards
    | FailAnnouncements
    | ReopenShard
    | BeginStaging
    | RevokeStagings
    | FinishStagings
    | Publish
    | MarkExported
    | PutSchema
)


def source_step(request: SourceWrite) -> Step:
    """The decision of a request that changes something."""
    match request:
        case OpenSource():
            return open_source_step(request)
        case OpenShards():
            return open_shards_step(request)
        case AcquireShards():
            return acquire_shards_step(request)
        case Beat():
            return beat_step(request)
        case ReleaseShards():
            return release_shards_step(request)
        case FailShards():
            return fail_shards_step(request)
        case FailAnnouncements():
            return fail_announcements_step(request)
        case ReopenShard():
            return reopen_shard_step(request)
        case BeginStaging():
            return begin_staging_step(request)
        case RevokeStagings():
            return revoke_stagings_step(request)
        case FinishStagings():
            return finish_stagings_step(request)
        case Publish():
            return publish_step(request)
        case MarkExported():
            return mark_exported_step(request)
        case PutSchema():
            return put_schema_step(request)
        case _:
            assert_never(request)
