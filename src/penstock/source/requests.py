"""What is asked of a broker about sources, and what it answers. Plain data, the same on the wire.

Contract     A request is a tagged struct whose type names its answer: `ask(OpenShards(…))` is
             `Shards`. Every one of them may be sent again after a lost answer: opening, acquiring,
             beating and publishing twice is doing it once.
Time         is the broker's, in milliseconds. Nobody sends a time; durations only.
Tokens       128 random bits of one process incarnation, as 32 hex digits (`token_text`). An owner
             says how long it may be silent (`stale_ms`), so that runners with different commit
             timeouts do not steal from each other.
Positions    "BOF", "EOF", or 20 digits (`position_text`): how far a shard is loaded for good. Only
             equality counts; the order is for display and for refusing a move that goes back.
Not here     What a request does (shards.py, ended.py, publish.py, staging.py, admin.py, lists.py),
             stored rows (codec/).
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

R = TypeVar("R")

BOF = "BOF"
EOF = "EOF"

#: What a shard is known by: where its bytes are, or that together with their version.
Identity = Literal["uri", "version"]
#: `open` is all that is not terminal: being read, or waiting for somebody to read it.
Phase = Literal["open", "eof", "failed"]
#: What a shard's bytes are: a file, the announcement itself, or nothing (it could not be read).
ShardKind = Literal["file", "inline", "announcement"]


def position_text(offset: int) -> str:
    """A byte offset or a row group, so that texts have the order of numbers."""
    return f"{offset:020d}"


def token_text(entropy: bytes) -> str:
    assert len(entropy) == 16, "a token has 128 bits"
    return entropy.hex()


class Answer(msgspec.Struct, frozen=True, tag_field="answer", tag=True):
    pass


class Ask(msgspec.Struct, Generic[R], frozen=True, tag_field="ask", forbid_unknown_fields=True):
    """A request; R is what answers it."""


# -- sources


class SourceInfo(Answer, frozen=True):
    id: int
    name: str
    table: str
    identity: Identity
    created_ms: int
    prune_age_ms: int
    prune_count: int
    horizon_ms: int
    max_failures: int
    schema_version: int  # 0: none yet
    schema: str
    published: int  # the newest publish sequence; 0: none
    exported: int  # a hint; the table decides
    first_publish: int  # older ones were pruned after their export
    done: int  # shards at EOF that are remembered
    failed: int
    #: What an operator should hear: a window shorter than the queue may deliver again.
    warning: str = ""
    format: str = ""  # of its files, in the words of its runners; empty: nobody told it yet


class Sources(Answer, frozen=True):
    sources: list[SourceInfo]


class OpenSource(Ask[SourceInfo], frozen=True, tag="open-source"):
    """Make it, or find it. The table and the identity are for ever, and so is the format once
    something is published: others are a ConflictError. The other settings become those of whoever
    opened it last."""

    name: str
    table: str
    identity: Identity = "uri"
    prune_age_ms: int = 30 * 24 * 3600 * 1000  # terminal shards are remembered for so long
    prune_count: int = 1_000_000  # and at most so many
    #: How late the queue may still deliver an announcement; younger shards outlive `prune_count`.
    horizon_ms: int = 14 * 24 * 3600 * 1000
    max_failures: int = 5  # 0: no limit
    #: What a position within a file counts: bytes, row groups. Empty: as it is remembered.
    format: str = ""


class GetSource(Ask[SourceInfo], frozen=True, tag="get-source"):
    """By its name; NotFoundError where there is none."""

    name: str


class ListSources(Ask[Sources], frozen=True, tag="list-sources"):
    pass


# -- shards


class Shard(msgspec.Struct, frozen=True):
    id: str
    uri: str
    kind: ShardKind
    phase: Phase
    position: str
    token: str  # of its owner; empty: released, whoever opens it next has it
    mine: bool  # the token is the one that asked
    stale: bool  # open, and its owner was silent for too long
    rows: int  # published so far
    failures: int
    #: Why it could not be loaded when somebody last tried, or why an announcement not be read.
    error: str
    etag: str | None  # of the file, as its opener saw it, or who published a part of it
    announced_by: str
    text: str  # an announcement that could not be read, its beginning
    opened_ms: int
    updated_ms: int


class Shards(Answer, frozen=True):
    shards: list[Shard]  # in the order that was asked for, without those that nobody remembers
    after: str | None = None  # of a list: where to go on; None: that was all


class ShardOpen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str  # identity.py: shard_id
    uri: str
    etag: str | None = None
    announced_by: str = ""  # the message, for people
    kind: Literal["file", "inline"] = "file"


class OpenShards(Ask[Shards], frozen=True, tag="open-shards"):
    """Who comes first owns it; the others are told whose it is. Own ones are refreshed, and one
    that was released is taken."""

    source: int
    token: str
    stale_ms: int  # own silence after which others may take it: twice the commit timeout
    shards: list[ShardOpen]


class Takeover(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    old_token: str


class AcquireShards(Ask[Shards], frozen=True, tag="acquire-shards"):
    """Take over stale shards, each only if its token still is the old one and it still is stale.
    A loser sees in the answer who has it."""

    source: int
    token: str
    stale_ms: int
    shards: list[Takeover]


class Beaten(Answer, frozen=True):
    lost: list[str]  # shards that are not open under this token any more
    lost_stagings: list[int]


class Beat(Ask[Beaten], frozen=True, tag="beat"):
    """I live, and work on these."""

    source: int
    token: str
    shards: list[str]
    stagings: list[int] = []


class ReleaseShards(Ask[Shards], frozen=True, tag="release-shards"):
    """Not mine any more, nothing was wrong with them: whoever opens them next has them at once."""

    source: int
    token: str
    shards: list[str]
    #: Why they are not loaded, where that is known; for people, and until they are.
    reasons: dict[str, str] = {}


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    error: str
    final: bool = False  # trying again cannot help


class FailShards(Ask[Shards], frozen=True, tag="fail-shards"):
    """Count a failure of each that is still owned, and release it; after the source's
    `max_failures` it is failed for good."""

    source: int
    token: str
    failures: list[Failure]


class BadAnnouncement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str  # of the whole message
    text: str  # what of it is kept for people
    error: str
    announced_by: str = ""


class FailAnnouncements(Ask[Shards], frozen=True, tag="fail-announcements"):
    """Messages that name nothing that could be read: failed rows, keyed by their digest."""

    source: int
    announcements: list[BadAnnouncement]


class ListFiles(Ask[Shards], frozen=True, tag="list-files"):
    """In the order of ids, from behind `after` on; those whose id starts with `prefix`. Ask again
    with the answer's `after` until it is None: an answer may be short, even empty, before that."""

    source: int
    phase: Phase | None = None
    after: str = ""
    limit: int = 1000
    prefix: str = ""


class ReopenShard(Ask[Shards], frozen=True, tag="reopen-shard"):
    """Let it be loaded again. A failed one goes on where it stood, in the file as it is now, unless
    its version is its identity. One at EOF begins at BOF and its rows come twice, so it needs
    `force`; so does one that is not remembered (any more), which is answered with no shard. One
    that somebody works on is a ConflictError."""

    source: int
    id: str
    force: bool = False


# -- staging


class Staging(msgspec.Struct, frozen=True):
    id: int
    token: str
    began_ms: int
    updated_ms: int


class Stagings(Answer, frozen=True):
    stagings: list[Staging]


class BeginStaging(Ask[Stagings], frozen=True, tag="begin-staging"):
    """Before the first split is written. -> one, live until it is published or revoked; the same
    `key` again (random, of the caller's) is the same staging"""

    source: int
    token: str
    stale_ms: int
    key: str


class RevokeStagings(Ask[Stagings], frozen=True, tag="revoke-stagings"):
    """Those named, if this token began them, else all whose owner was silent for too long. -> every
    revoked one that is not finished: delete its files, then finish it"""

    source: int
    token: str
    ids: list[int] | None = None


class FinishStagings(Ask[Stagings], frozen=True, tag="finish-stagings"):
    """The files of these revoked ones are gone. -> those of them that were there"""

    source: int
    ids: list[int]


# -- publishing


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str  # inside the table
    rows: int
    bytes: int
    stats: str = ""  # JSON, for the table's log


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    start: str
    end: str  # EOF: it is loaded
    rows: int
    #: Of the file whose part this is: the rest must be of the same. None: what is known stays.
    version: str | None = None


#: `schema`, `staging`: of the whole publish; `shards`: those named lost their owner or moved on.
Reason = Literal["schema", "staging", "shards"]


class Published(Answer, frozen=True):
    sequence: int  # of a publish without splits: the newest one there was


class Refused(Answer, frozen=True):
    """Nothing was published, and the staging is revoked: discard the splits, read again."""

    reason: Reason
    losers: list[str]


class Publish(Ask[Published | Refused], frozen=True, tag="publish"):
    """All of it in one commit or nothing: every shard open under this token, every start equal to
    the stored position, the staging live, the schema the newest. It ends the staging. The same
    `publish_id` again (random, of the caller's) gets the first answer."""

    source: int
    token: str
    publish_id: str
    staging: int | None  # None: there are no splits
    schema_version: int
    splits: list[Split]
    moves: list[Move]


class PublishRow(msgspec.Struct, frozen=True):
    sequence: int
    schema_version: int
    time_ms: int
    splits: list[Split]


class PublishRows(Answer, frozen=True):
    rows: list[PublishRow]  # without gaps, from after + 1 on; go on until `published` is reached
    published: int


class ListPublishes(Ask[PublishRows], frozen=True, tag="list-publishes"):
    """NotFoundError where after + 1 was pruned: the table is older than what is remembered."""

    source: int
    after: int
    limit: int = 1000


class MarkExported(Ask[SourceInfo], frozen=True, tag="mark-exported"):
    """The table has all up to this one. Only raises."""

    source: int
    sequence: int


# -- the schema


class SchemaInfo(Answer, frozen=True):
    version: int
    schema: str
    written: bool = False  # by this request


class GetSchema(Ask[SchemaInfo], frozen=True, tag="get-schema"):
    source: int


class PutSchema(Ask[SchemaInfo], frozen=True, tag="put-schema"):
    """The next version, if `expected_version` is the newest. -> what is stored now; `written` tells
    whether it is this one (the same text again is written, too)"""

    source: int
    expected_version: int
    schema: str


SourceRequest = (
    OpenSource
    | GetSource
    | ListSources
    | OpenShards
    | AcquireShards
    | Beat
    | ReleaseShards
    | FailShards
    | FailAnnouncements
    | ListFiles
    | ReopenShard
    | BeginStaging
    | RevokeStagings
    | FinishStagings
    | Publish
    | ListPublishes
    | MarkExported
    | GetSchema
    | PutSchema
)

SourceAnswer = (
    SourceInfo
    | Sources
    | Shards
    | Beaten
    | Stagings
    | Published
    | Refused
    | PublishRows
    | SchemaInfo
)
