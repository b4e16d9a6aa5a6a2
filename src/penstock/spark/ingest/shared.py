"""The table of shards, as one process of a source uses it: the shared state of the specification.

Contract     Requests are repeated while the broker is away, for all of them may be; after twice the
             commit timeout others may have what is in hand here, so that is the end of it
             (UnavailableError). Signs of life and releasing are tried once.
Not here     What an answer means for a message (source/local.py, coordinator.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import UnavailableError
from penstock.source.coordinate import takeovers
from penstock.source.requests import (
    EOF,
    AcquireShards,
    Ask,
    BadAnnouncement,
    Beat,
    Beaten,
    FailAnnouncements,
    FailShards,
    Failure,
    GetSchema,
    GetSource,
    ListPublishes,
    MarkExported,
    Move,
    OpenShards,
    Publish,
    PublishRow,
    Refused,
    ReleaseShards,
    Shard,
    ShardOpen,
    SourceInfo,
    Takeover,
)

#: Shards that one request names.
_REQUEST_MAX = 5000
_PAUSE_SECONDS = 0.5

R = TypeVar("R")
T = TypeVar("T")


class Shared:
    def __init__(
        self,
        source: SourceInfo,
        token: str,
        *,
        stale_ms: int,
        ask: Callable[[Ask[Any]], Any],
        clock: Clock,
        pause: Callable[[float], object],
    ) -> None:
        self._source = source.id
        self._name = source.name
        self._token = token
        self._stale_ms = stale_ms
        self._asked = ask
        self._clock = clock
        self._pause = pause
        #: Up to which publish the table is known to have everything.
        self.exported = source.exported

    def ask(self, request: Ask[R]) -> R:
        until = self._clock.monotonic() + self._stale_ms / 1000
        while True:
            try:
                return self._asked(request)  # type: ignore[no-any-return]
            except UnavailableError:
                if self._clock.monotonic() >= until:
                    raise
                self._pause(_PAUSE_SECONDS)

    # -- shards

    def open(self, wanted: Iterable[ShardOpen]) -> dict[str, Shard]:
        """Each under its id, as it is after opening and, where its owner is gone, acquiring."""
        distinct = list({each.id: each for each in wanted}.values())
        shards: dict[str, Shard] = {}
        for part in _parts(distinct):
            opened = self.ask(OpenShards(self._source, self._token, self._stale_ms, part))
            shards |= {each.id: each for each in opened.shards}
        for taken in _parts(takeovers(shards.values())):
            acquired = self.ask(AcquireShards(self._source, self._token, self._stale_ms, taken))
            shards |= {each.id: each for each in acquired.shards}
        return shards

    def known(self, ids: Sequence[str]) -> list[Shard]:
        """Those of them that there are; none is opened."""
        shards: list[Shard] = []
        for part in _parts([Takeover(each, self._token) for each in ids]):
            # Taken from nobody but this process, that is: not taken.
            asked = AcquireShards(self._source, self._token, self._stale_ms, part)
            shards += self.ask(asked).shards
        return shards

    def fail(self, failures: Sequence[Failure]) -> list[Shard]:
        """Count them. -> how each shard is now"""
        told: list[Shard] = []
        for part in _parts(failures):
            told += self.ask(FailShards(self._source, self._token, part)).shards
        return told

    def fail_announcements(self, bad: Sequence[BadAnnouncement]) -> None:
        for part in _parts(bad):
            self.ask(FailAnnouncements(self._source, part))

    def end(self, shards: Sequence[Shard]) -> bool:
        """They have no rows, and are done. -> whether they still were this process' own"""
        moves = [Move(shard.id, shard.position, EOF, 0) for shard in shards]
        while True:
            version = self.ask(GetSchema(self._source)).version
            key = self._clock.entropy(16).hex()
            answer = self.ask(Publish(self._source, self._token, key, None, version, [], moves))
            if not isinstance(answer, Refused):
                return True
            if answer.reason != "schema":
                return False

    def beat(self, shards: list[str], stagings: list[int]) -> Beaten:
        lost: list[str] = []
        beaten = Beaten([], [])
        for part in _parts(shards) or [[]]:
            beaten = self._asked(Beat(self._source, self._token, part, stagings))
            lost += beaten.lost
        return Beaten(lost, beaten.lost_stagings)

    def release(self, shards: Sequence[str], reasons: Mapping[str, str]) -> None:
        """Others need not wait until they are stale."""
        for part in _parts(shards):
            told = {each: reasons[each] for each in part if each in reasons}
            self._asked(ReleaseShards(self._source, self._token, part, told))

    # -- what the export asks

    def publishes(self, after: int, limit: int) -> list[PublishRow]:
        return self.ask(ListPublishes(self._source, after, limit)).rows

    def schema(self) -> str:
        return self.ask(GetSchema(self._source)).schema

    def behind(self) -> bool:
        """Whether there are publishes that the table is not known to have."""
        source = self.ask(GetSource(self._name))
        return source.exported < source.published

    def mark(self, sequence: int) -> None:
        if sequence > self.exported:
            self.ask(MarkExported(self._source, sequence))
            self.exported = sequence


def _parts(items: Sequence[T]) -> list[list[T]]:
    return [list(items[at : at + _REQUEST_MAX]) for at in range(0, len(items), _REQUEST_MAX)]
