"""Sources against dicts: every rule is done to both, and all that can be seen is compared.

Three runners share a handful of shards of five pieces each. They open, acquire, beat, fail, publish
with positions that may be wrong and owners that may be others by now, repeat old requests, and are
silent for a while; somebody prunes and reopens. What counts in the end is in the model as a list of
loaded pieces: none twice, unless somebody asked for it by force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import PenstockError
from penstock.source.requests import (
    BOF,
    EOF,
    AcquireShards,
    Beat,
    BeginStaging,
    FailShards,
    Failure,
    FinishStagings,
    Move,
    OpenShards,
    Publish,
    Published,
    Refused,
    ReleaseShards,
    ReopenShard,
    RevokeStagings,
    ShardOpen,
    Split,
    Takeover,
    position_text,
)
from unit.source.driver import ANNA, BERT, CARL, SourceDriver

T = TypeVar("T")

IDS = ["s3://b/a", "s3://b/a\x00b", "s3://b/ü", "s3://c/a"]
PLACES = [BOF, *(position_text(n) for n in (7, 70, 700)), EOF]
LAST = len(PLACES) - 1
#: Each runner has its own patience.
STALE = {ANNA: 100, BERT: 100, CARL: 30}
AGE_MS, COUNT, HORIZON_MS, MAX_FAILURES = 400, 2, 150, 3

runners = st.sampled_from([ANNA, BERT, CARL])
some_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True)


class ModelShard(msgspec.Struct):
    owner: str | None
    stale_ms: int
    updated_ms: int
    place: int = 0
    phase: str = "open"
    failures: int = 0
    rows: int = 0

    def stale(self, now_ms: int) -> bool:
        silent = now_ms - self.updated_ms >= self.stale_ms
        return self.phase == "open" and self.owner is not None and silent


class ModelStaging(msgspec.Struct):
    owner: str
    updated_ms: int
    live: bool = True


class SourceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = self.run(
            SourceDriver.open(
                prune_age_ms=AGE_MS,
                prune_count=COUNT,
                horizon_ms=HORIZON_MS,
                max_failures=MAX_FAILURES,
            )
        )
        self.shards: dict[str, ModelShard] = {}
        self.stagings: dict[int, ModelStaging] = {}
        self.splits: list[list[str]] = []
        #: Of each shard, the pieces that were loaded since it was opened or reopened.
        self.loaded: dict[str, list[tuple[int, int]]] = {}
        self.sent: list[tuple[Publish, Published | Refused]] = []
        self.numbers = 0

    def teardown(self) -> None:
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def ask(self, request: Any) -> Any:
        return self.run(self.world.ask(request))

    @property
    def now_ms(self) -> int:
        return self.world.clock.ms

    @property
    def source(self) -> int:
        return self.world.source

    def owned(self, shard: str, who: str) -> bool:
        found = self.shards.get(shard)
        return found is not None and found.phase == "open" and found.owner == who

    def take(self, shard: str, who: str) -> None:
        found = self.shards[shard]
        found.owner, found.stale_ms, found.updated_ms = who, STALE[who], self.now_ms

    # -- time

    @rule(ms=st.sampled_from([1, 29, 30, 31, 99, 100, 101, 500]))
    def pass_time(self, ms: int) -> None:
        self.world.clock.ms += ms

    @rule()
    def restart(self) -> None:
        self.world.log.forget()

    # -- shards

    @rule(who=runners, shards=some_ids)
    def open(self, who: str, shards: list[str]) -> None:
        for shard in shards:
            if shard not in self.shards:
                self.shards[shard] = ModelShard(who, STALE[who], self.now_ms)
                self.loaded[shard] = []
            elif self.shards[shard].phase == "open" and self.shards[shard].owner in (who, None):
                self.take(shard, who)
        found = self.ask(
            OpenShards(self.source, who, STALE[who], [ShardOpen(each, each) for each in shards])
        )
        self.compare_told(found.shards, shards, who)

    @rule(who=runners, shards=some_ids, data=st.data())
    def acquire(self, who: str, shards: list[str], data: st.DataObject) -> None:
        """From the owner that is there, or from one that was seen earlier."""
        wanted = []
        for shard in shards:
            row = self.shards.get(shard)
            owner = None if row is None else row.owner
            old = data.draw(st.sampled_from([owner or ANNA, owner or BERT, CARL]))
            wanted.append(Takeover(shard, old))
            if row is None:
                continue
            if (row.owner == old and row.stale(self.now_ms)) or self.owned(shard, who):
                self.take(shard, who)
        found = self.ask(AcquireShards(self.source, who, STALE[who], wanted))
        self.compare_told(found.shards, [each for each in shards if each in self.shards], who)

    @rule(who=runners, shards=some_ids)
    def beat(self, who: str, shards: list[str]) -> None:
        lost = [each for each in shards if not self.owned(each, who)]
        for shard in set(shards) - set(lost):
            self.shards[shard].updated_ms = self.now_ms
        gone = []
        for number, staging in self.stagings.items():
            if staging.live and staging.owner == who:
                staging.updated_ms = self.now_ms
            else:
                gone.append(number)
        found = self.ask(Beat(self.source, who, shards, list(self.stagings)))
        assert (found.lost, found.lost_stagings) == (lost, gone)

    @rule(who=runners, shards=some_ids)
    def release(self, who: str, shards: list[str]) -> None:
        for shard in shards:
            if self.owned(shard, who):
                self.shards[shard].owner, self.shards[shard].updated_ms = None, self.now_ms
        found = self.ask(ReleaseShards(self.source, who, shards))
        self.compare_told(found.shards, [each for each in shards if each in self.shards], who)

    @rule(who=runners, shards=some_ids, final=st.booleans())
    def fail(self, who: str, shards: list[str], final: bool) -> None:
        for shard in shards:
            if self.owned(shard, who):
                row = self.shards[shard]
                row.failures, row.owner, row.updated_ms = row.failures + 1, None, self.now_ms
                if final or row.failures >= MAX_FAILURES:
                    row.phase = "failed"
        failures = [Failure(each, "no", final) for each in shards]
        found = self.ask(FailShards(self.source, who, failures))
        self.compare_told(found.shards, [each for each in shards if each in self.shards], who)

    def compare_told(self, told: Any, shards: list[str], who: str) -> None:
        assert [each.id for each in told] == shards
        for each in told:
            row = self.shards[each.id]
            assert each.mine == (row.owner == who), each
            assert each.stale == row.stale(self.now_ms), each

    @rule(shard=st.sampled_from(IDS), force=st.booleans())
    def reopen(self, shard: str, force: bool) -> None:
        row = self.shards.get(shard)
        held = row is not None and row.phase == "open" and row.owner is not None
        refused = (
            (row is None and not force)
            or (row is not None and held and not row.stale(self.now_ms))
            or (row is not None and row.phase == "eof" and not force)
        )
        try:
            self.ask(ReopenShard(self.source, shard, force))
        except PenstockError:
            assert refused
            return
        assert not refused
        if row is None:
            return
        if row.phase == "eof":
            row.place, row.rows, self.loaded[shard] = 0, 0, []
        row.phase, row.owner, row.failures, row.updated_ms = "open", None, 0, self.now_ms

    # -- publishing

    @rule(who=runners)
    def begin(self, who: str) -> None:
        self.numbers += 1
        key = f"key {self.numbers}"
        (made,) = self.ask(BeginStaging(self.source, who, STALE[who], key)).stagings
        (again,) = self.ask(BeginStaging(self.source, who, STALE[who], key)).stagings
        assert made.id == again.id
        assert made.id not in self.stagings
        self.stagings[made.id] = ModelStaging(who, self.now_ms)

    @precondition(lambda self: self.stagings)
    @rule(who=runners, shards=some_ids, data=st.data())
    def publish(self, who: str, shards: list[str], data: st.DataObject) -> None:
        moves, right = [], []
        for shard in shards:
            row = self.shards.get(shard)
            place = 0 if row is None else min(row.place, LAST - 1)
            start = data.draw(st.sampled_from([place, place, place, 0, LAST - 1]), "start")
            end = data.draw(st.integers(start + 1, LAST), "end")
            moves.append((shard, start, end))
            right.append(self.owned(shard, who) and row is not None and row.place == start)
        mine = [number for number, each in self.stagings.items() if each.owner == who]
        number = data.draw(st.sampled_from([*mine[-2:], *self.stagings]), "staging")
        self.numbers += 1
        request = Publish(
            self.source,
            who,
            f"publish {self.numbers}",
            number,
            0,
            [Split(f"{self.numbers}.parquet", 1, 1)],
            [Move(shard, PLACES[start], PLACES[end], 1) for shard, start, end in moves],
        )
        staging = self.stagings[number]
        answer = self.ask(request)
        self.sent.append((request, answer))
        if not (staging.live and staging.owner == who):
            assert answer == Refused("staging", [])
            return
        if not all(right):
            losers = [shard for shard, ok in zip(shards, right, strict=True) if not ok]
            assert answer == Refused("shards", losers)
            staging.live = False
            return
        self.splits.append([f"{self.numbers}.parquet"])
        assert answer == Published(len(self.splits))
        del self.stagings[number]
        for shard, start, end in moves:
            row = self.shards[shard]
            row.place, row.rows, row.failures = end, row.rows + 1, 0
            row.updated_ms = self.now_ms
            self.loaded[shard].append((start, end))
            if end == LAST:
                row.phase = "eof"

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        request, answer = data.draw(st.sampled_from(self.sent))
        assert self.ask(request) == answer

    @rule(who=runners)
    def clean(self, who: str) -> None:
        for staging in self.stagings.values():
            if self.now_ms - staging.updated_ms >= STALE[staging.owner]:
                staging.live = False
        revoked = {number for number, each in self.stagings.items() if not each.live}
        found = self.ask(RevokeStagings(self.source, who)).stagings
        assert {each.id for each in found} == revoked
        finished = self.ask(FinishStagings(self.source, [*self.stagings])).stagings
        assert {each.id for each in finished} == revoked
        self.stagings = {n: each for n, each in self.stagings.items() if each.live}

    # -- forgetting

    @rule()
    def prune(self) -> None:
        ended = sorted(
            (row.updated_ms, shard.encode(), shard)
            for shard, row in self.shards.items()
            if row.phase != "open"
        )
        excess = len(ended) - COUNT
        for older, (ended_ms, _, shard) in enumerate(ended):
            age_ms = self.now_ms - ended_ms
            if age_ms >= AGE_MS or (older < excess and age_ms >= HORIZON_MS):
                del self.shards[shard], self.loaded[shard]
        self.run(self.world.prune())

    # -- what holds

    @invariant()
    def rows_are_sound_and_as_in_the_model(self) -> None:
        self.run(self.world.sound())
        found = {each.id: each for each in self.run(self.world.files())}
        assert found.keys() == self.shards.keys()
        for shard, row in self.shards.items():
            told = found[shard]
            assert (told.phase, told.position, told.failures, told.rows, told.updated_ms) == (
                row.phase,
                PLACES[row.place],
                row.failures,
                row.rows,
                row.updated_ms,
            )
            assert told.token == (row.owner or "")
        rows = self.run(self.world.published())
        assert [[split.path for split in row.splits] for row in rows] == self.splits

    @invariant()
    def every_piece_is_loaded_once_and_in_order(self) -> None:
        for shard, pieces in self.loaded.items():
            at = 0
            for start, end in pieces:
                assert start == at
                at = end
            assert at == self.shards[shard].place


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        SourceMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_sources_do_what_dicts_do() -> None:
    _run(40, 40)


@pytest.mark.slow
def test_sources_do_what_dicts_do_for_longer() -> None:
    _run(1000, 80)
