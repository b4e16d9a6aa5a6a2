"""The log against a list: every rule is done to both, and the store is checked after each."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.codec.keys import Kind
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName
from penstock.log.check import check_log
from penstock.log.chores import plan_chore
from penstock.log.evict import delete_step, evict_step, trim_step
from penstock.log.fold import plan_fold
from penstock.log.hold import hold_step
from penstock.log.holes import plan_holes
from penstock.log.link import link_step
from penstock.log.merge import plan_merge
from penstock.log.read import read, to_arrow
from penstock.log.staging import begin_step, revoke_step, stage_step
from penstock.log.state import LogState, read_log
from penstock.store.memory import MemoryDisk
from unit.log.driver import LogDriver

T = TypeVar("T")

NAMES = [LogName(Kind.STREAM, b"a"), LogName(Kind.STREAM, b"b")]

names = st.sampled_from(NAMES)
sizes = st.one_of(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3000))
widths = st.sampled_from([0, 1, 10, 100, 100, 3000])


class ModelLog:
    """The naive list: an entry is (tag, data, meta, time), or None where it is gone."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes, bytes | None, int] | None] = []
        self.first = 0

    def evict(self, first: int) -> int:
        first = max(self.first, min(first, len(self.entries)))
        for i in range(self.first, first):
            self.entries[i] = None
        moved = first - self.first
        self.first = first
        return moved


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.logs: dict[LogName, ModelLog] = {}
        self.holds: dict[LogName, int] = {}
        self.stagings: dict[int, dict[int, list[tuple[bytes, bytes]]]] = {}
        self.linked: dict[int, tuple[Any, tuple[range, ...]]] = {}
        self.nodes: dict[tuple[int, int], int] = {}
        self.late: list[tuple[Any, LogName | None, int, list[int]]] = []
        self.written = 0
        self.cache = NodeCache(1 << 16)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def do(self, step: Any) -> Any:
        reply = self.run(self.driver.do(step))
        self.cache.forget(self.driver.written[-1])
        return reply

    def state(self, name: LogName) -> LogState | None:
        return self.run(self.driver.state(name))

    def make(self, count: int, width: int, tagged: bool) -> list[tuple[bytes, bytes]]:
        found = [
            (b"t%d" % (n % 7) if tagged else b"", (b"%d " % n) * (width // 4 + 1))
            for n in range(self.written, self.written + count)
        ]
        self.written += count
        return found

    def grow(self, name: LogName, entries: list[tuple[bytes, bytes]], time_ms: int) -> range:
        log = self.logs.setdefault(name, ModelLog())
        start = len(log.entries)
        log.entries += [(tag, data, None, time_ms) for tag, data in entries]
        return range(start, len(log.entries))

    @initialize()
    def open(self) -> None:
        self.driver = self.run(LogDriver.open(MemoryDisk()))

    @rule(
        name=names,
        count=sizes,
        width=widths,
        tagged=st.booleans(),
        arrow=st.booleans(),
        backlog=st.none() | st.integers(0, 4000),
    )
    def append(
        self, name: LogName, count: int, width: int, tagged: bool, arrow: bool, backlog: int | None
    ) -> None:
        self.driver.clock.ms += 1
        entries = self.make(count, width, tagged)
        given: Any = entries
        if arrow:
            columns = {"tag": [t for t, _ in entries], "data": [d for _, d in entries]}
            given = pa.RecordBatch.from_pydict(columns)
        reply = self.do(append_step(name, build_bodies(given), backlog=backlog))
        assert reply == self.grow(name, entries, self.driver.clock.ms)
        log = self.logs[name]
        state = self.state(name)
        assert state is not None
        if backlog is None:
            assert state.first == log.first
        else:
            limit = min(self.holds.get(name, len(log.entries)), len(log.entries) - backlog)
            assert log.first <= state.first <= max(log.first, limit)
            assert max(log.first, limit) - state.first < 1000
            log.evict(state.first)

    @rule(name=names, count=st.integers(1, 30))
    def append_one_by_one(self, name: LogName, count: int) -> None:
        for _ in range(count):
            self.append(name, 1, 10, True, False, None)

    @rule(name=names, at=st.floats(0, 1), keep=st.booleans())
    def evict(self, name: LogName, at: float, keep: bool) -> None:
        log = self.logs.get(name)
        length = 0 if log is None else len(log.entries)
        offset = int(at * length)
        step = evict_step(name, keep=offset) if keep else evict_step(name, up_to=offset)
        moved = self.do(step)
        edge = length - offset if keep else offset + 1
        assert moved == (0 if log is None else log.evict(edge))

    @rule(name=names, count=st.integers(0, 3000))
    def trim(self, name: LogName, count: int) -> None:
        moved = self.do(trim_step(name, count=count))
        log = self.logs.get(name)
        if log is not None:
            held = self.holds.get(name, len(log.entries))
            assert moved == log.evict(min(len(log.entries) - count, held))

    @rule(name=names, at=st.none() | st.floats(0, 1))
    def hold(self, name: LogName, at: float | None) -> None:
        state = self.state(name)
        if state is None:
            return
        offset = None if at is None else int(at * state.next)
        self.do(hold_step(state.log_id, b"holder", offset))
        if offset is None:
            self.holds.pop(name, None)
        else:
            self.holds[name] = offset

    @rule(name=names, active=st.booleans())
    def merge(self, name: LogName, active: bool) -> None:
        state = self.state(name)
        while state is not None:
            step = self.run(plan_merge(self.driver.store, state, active=active))
            if step is None:
                break
            assert self.do(step) is True
            state = self.state(name)

    @rule()
    def collect(self) -> None:
        self.run(self.driver.chore(("collect", None)))
        self.cache = NodeCache(1 << 16)

    @rule(name=names, data=st.data(), whole=st.booleans())
    def punch(self, name: LogName, data: st.DataObject, whole: bool) -> None:
        log, state = self.logs.get(name), self.state(name)
        if log is None or state is None or not log.entries:
            return
        low = data.draw(st.integers(0, len(log.entries) - 1))
        step = 1 if whole else data.draw(st.integers(1, 50))
        offsets = list(range(low, min(low + 1500, len(log.entries)), step))
        left = offsets
        while left:
            plan, left = self.run(plan_holes(self.driver.store, state, left))
            if plan is not None:
                assert self.do(plan) == ()
        for offset in offsets:
            log.entries[offset] = None

    @rule(
        name=names, kind=st.sampled_from(["merge", "collect", "fold", "punch"]), at=st.floats(0, 1)
    )
    def plan_for_later(self, name: LogName, kind: str, at: float) -> None:
        """Plans are made outside the one writer, so anything may happen before they are decided."""
        state, store = self.state(name), self.driver.store
        offsets: list[int] = []
        step = None
        if kind == "collect":
            step = self.run(plan_chore(store, ("collect", None)))
        elif kind == "fold" and self.linked:
            step = self.run(plan_fold(store, max(self.linked)))
        elif state is not None and kind == "merge":
            step = self.run(plan_merge(store, state, active=True))
        elif state is not None and kind == "punch" and state.length:
            first = state.first + int(at * (state.length - 1))
            offsets = list(range(first, min(first + 20, state.next), 3))
            step, left = self.run(plan_holes(store, state, offsets))
            offsets = offsets[: len(offsets) - len(left)]
        if step is not None:
            self.late.append((step, name, 0 if state is None else state.log_id, offsets))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def decide_late(self, data: st.DataObject) -> None:
        step, name, log_id, offsets = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        reply = self.do(step)
        state = None if name is None else self.state(name)
        if name is not None and state is not None and state.log_id == log_id and offsets:
            for offset in set(offsets) - set(reply):
                self.logs[name].entries[offset] = None

    @rule()
    def begin(self) -> None:
        if len(self.stagings) < 3:
            self.stagings[self.do(begin_step(lease_ms=1000))] = {}

    @precondition(lambda self: self.stagings)
    @rule(data=st.data(), writer=st.integers(0, 2), count=sizes, again=st.booleans())
    def stage(self, data: st.DataObject, writer: int, count: int, again: bool) -> None:
        staging_id = data.draw(st.sampled_from(sorted(self.stagings)))
        entries = self.make(count, 10, True)
        bodies = build_bodies(entries)
        n = self.nodes.get((staging_id, writer), 0)
        self.nodes[staging_id, writer] = n + len(bodies)
        assert self.do(stage_step(staging_id, writer, n, bodies)) == n + len(bodies)
        if again:
            assert self.do(stage_step(staging_id, writer, n, bodies)) == n + len(bodies)
        self.stagings[staging_id].setdefault(writer, []).extend(entries)

    @precondition(lambda self: any(self.stagings.values()))
    @rule(data=st.data(), name=names, both=st.booleans())
    def link(self, data: st.DataObject, name: LogName, both: bool) -> None:
        self.driver.clock.ms += 1
        ready = sorted(key for key, writers in self.stagings.items() if writers)
        staging_id = data.draw(st.sampled_from(ready))
        writers = self.stagings.pop(staging_id)
        winners = data.draw(st.lists(st.sampled_from(sorted(writers)), unique=True, min_size=1))
        parts: list[tuple[LogName, list[int]]] = [(name, winners)]
        if both:
            parts = [(NAMES[0], winners[:1]), (NAMES[1], winners[1:])]
        expected = tuple(
            self.grow(
                target, [e for writer in chosen for e in writers[writer]], self.driver.clock.ms
            )
            for target, chosen in parts
        )
        step = link_step(staging_id, parts)
        assert self.do(step) == expected
        self.linked[staging_id] = step, expected

    @precondition(lambda self: self.linked)
    @rule(data=st.data())
    def link_again(self, data: st.DataObject) -> None:
        step, expected = self.linked[data.draw(st.sampled_from(sorted(self.linked)))]
        assert self.do(step) == expected
        assert self.driver.written[-1] == {}

    @precondition(lambda self: self.linked)
    @rule(data=st.data())
    def fold(self, data: st.DataObject) -> None:
        staging_id = data.draw(st.sampled_from(sorted(self.linked)))
        self.run(self.driver.chore(("staging", staging_id)))
        self.cache = NodeCache(1 << 16)

    @precondition(lambda self: self.stagings)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        staging_id = data.draw(st.sampled_from(sorted(self.stagings)))
        self.driver.clock.ms += 1000
        assert self.do(revoke_step(staging_id)) is True
        del self.stagings[staging_id]

    @rule(name=names)
    def delete(self, name: LogName) -> None:
        assert self.do(delete_step(name)) is (name in self.logs)
        self.logs.pop(name, None)
        self.holds.pop(name, None)

    @rule()
    def restart(self) -> None:
        before = [self.state(name) for name in self.logs]
        self.driver.forget()
        for state in before:
            assert state is not None
            again = self.run(read_log(self.driver.store, state.log_id))
            assert again is not None
            assert _numbers(again) == _numbers(state)

    @rule(name=names, at=st.floats(0, 1), count=st.integers(0, 2500), reverse=st.booleans())
    def read(self, name: LogName, at: float, count: int, reverse: bool) -> None:
        log, state = self.logs.get(name), self.state(name)
        if log is None or state is None:
            assert log is None
            assert state is None
            return
        offset = int(at * (len(log.entries) + 2))
        low, high = offset, offset + count
        if reverse:
            high = min(offset + 1, len(log.entries))
            low = max(0, high - count)
        expected = [
            None if entry is None else (i, *entry)
            for i, entry in list(enumerate(log.entries))[low:high]
        ]
        if reverse:
            expected.reverse()
        for cache in (None, self.cache):
            found = self.run(
                read(self.driver.store, state, offset, count, reverse=reverse, cache=cache)
            )
            assert [
                m and (m.offset, m.tag.encode(), m.data, m.meta, m.time_ms) for m in found
            ] == expected

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        for name, log in self.logs.items():
            state = self.state(name)
            assert state is not None
            assert (state.first, state.next) == (log.first, len(log.entries))
            table = self.run(to_arrow(self.driver.store, state, 0, state.next))
            assert table["offset"].to_pylist() == list(range(log.first, len(log.entries)))
            alive = log.entries[log.first :]
            assert table["data"].to_pylist() == [entry and entry[1] for entry in alive]
            assert table["tag"].to_pylist() == [entry and entry[0] for entry in alive]

    @invariant()
    def is_clean(self) -> None:
        assert self.run(check_log(self.driver.store)) == []

    def teardown(self) -> None:
        self.loop.close()


def _numbers(state: LogState) -> tuple[object, ...]:
    """Without the runs: how fragments are grouped may differ once some of them are evicted."""
    pieces = [f.first for run in (*state.closed, state.run) for f in run.fragments]
    return (
        state.log_id,
        state.first,
        state.lowest,
        state.next,
        state.settled,
        state.stored_bytes,
        state.unsettled_bytes,
        state.unsettled_rows,
        state.holds,
        pieces,
    )


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
