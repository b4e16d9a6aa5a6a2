"""Groups against dicts: every rule is done to both, and all that can be seen is compared.

After each rule the groups are also rebuilt from nothing but rows: a process may die at any point,
between two commits of a flush, behind its head, before the trim. What the driver itself has in
memory is what its rules left there: the comparison loads nothing into it.
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
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.codec.operations import Owner
from penstock.codec.scalars import NEVER_MS
from penstock.errors import NotFoundError
from penstock.log.append import append_step
from penstock.log.batch import build_bodies
from penstock.log.catalogue import LogName
from penstock.log.check import check_log
from penstock.log.decision import Step
from penstock.log.evict import evict_step
from penstock.log.holes import plan_holes
from penstock.log.merge import plan_merge
from penstock.log.pages import trim_step
from penstock.stream.ack import ack_step
from penstock.stream.check import check_groups
from penstock.stream.delete import delete_step
from penstock.stream.deliver import MAX_PENDING, deliver_step
from penstock.stream.flush import head_step, pages_step, plan_flush
from penstock.stream.groups import (
    GroupInfo,
    Pending,
    create_step,
    destroy_step,
    info_of,
    info_step,
    pending_step,
    set_step,
)
from penstock.stream.pending import NO_PAGES
from unit.log.driver import LogDriver, stream

T = TypeVar("T")

S, DEAD = stream("s"), stream("dead")
#: Groups that come and go; the dead stream has readers too.
GROUPS = [(S, b"a"), (S, b"b"), (DEAD, b"a")]
#: So short that one read clears all that is gone, in at most 16 pages.
LENGTH_MAX = 6000
EVERYTHING = 1 << 30

groups = st.sampled_from(GROUPS)
streams = st.sampled_from([S, S, S, DEAD])
sizes = st.one_of(st.integers(1, 5), st.integers(1, 5), st.integers(1, 1500))
counts = st.one_of(st.integers(0, 5), st.integers(0, 40), st.integers(0, 900))
retries = st.none() | st.sampled_from([1, 5, 50, 5000])
expiries = st.none() | st.sampled_from([3, 20, 100])
limits = st.sampled_from([3, 50, 3000])
places = st.floats(0, 1)
starts = st.sampled_from(["first", "new"]) | places


class ModelStream:
    """Entries by offset; None where one was evicted or compacted."""

    def __init__(self) -> None:
        self.entries: list[bytes | None] = []
        self.first = 0

    def evict(self, first: int) -> None:
        self.first = max(self.first, min(first, len(self.entries)))
        self.entries[: self.first] = [None] * self.first


class ModelPending(msgspec.Struct):
    retry_ms: int
    expire_ms: int | None
    deliveries: int


class ModelGroup(msgspec.Struct):
    next: int
    max_pending: int
    dead: LogName | None
    expired: int = 0
    skipped: int = 0
    pending: dict[int, ModelPending] = {}

    def drop(self, offsets: list[int]) -> int:
        for offset in offsets:
            del self.pending[offset]
        return len(offsets)


class Model:
    def __init__(self) -> None:
        self.streams: dict[LogName, ModelStream] = {}
        self.groups: dict[tuple[LogName, bytes], ModelGroup] = {}

    def stream(self, name: LogName) -> ModelStream:
        return self.streams.setdefault(name, ModelStream())

    def start(self, name: LogName, start: Any) -> int:
        log = self.streams.get(name, ModelStream())
        found: int = {"first": log.first, "new": len(log.entries)}.get(start, start)
        return found

    def read(
        self,
        key: tuple[LogName, bytes],
        count: int,
        retry_ms: int | None,
        expire_ms: int | None,
        start: Any,
        *,
        now_ms: int,
        end: int,
    ) -> tuple[list[tuple[int, bytes]], bool]:
        """-> what is delivered, and whether the group moved for nothing. `end`: what is durable."""
        log = self.streams.get(key[0])
        if log is None:
            return [], False
        group = self.groups.get(key)
        if group is None:
            group = ModelGroup(self.start(key[0], start), MAX_PENDING, None)
            self.groups[key] = group
        before, waited = group.next, len(group.pending)
        late = sorted(
            offset
            for offset, entry in group.pending.items()
            if entry.expire_ms is not None and entry.expire_ms <= now_ms
        )
        group.expired += group.drop(late)
        if group.dead is not None:
            buried = [data for offset in late if (data := log.entries[offset]) is not None]
            if buried:
                self.stream(group.dead).entries += buried
        group.skipped += group.drop([o for o in group.pending if o < log.first])
        due = sorted(o for o, entry in group.pending.items() if entry.retry_ms <= now_ms)[:count]
        group.skipped += group.drop([o for o in due if log.entries[o] is None])
        found = [(o, data) for o in due if (data := log.entries[o]) is not None]
        for offset, _ in found:
            if retry_ms is None:
                del group.pending[offset]
            else:
                group.pending[offset].retry_ms = now_ms + retry_ms
                group.pending[offset].deliveries += 1
        moved = len(group.pending) != waited
        room, free = count - len(found), group.max_pending - len(group.pending)
        # A full list stops every reader; one that acknowledges nothing does not fill it.
        room = min(room, free) if retry_ms is not None or free <= 0 else room
        if room > 0 and group.next < log.first:
            group.skipped += log.first - group.next
            group.next = log.first
        while room > 0 and group.next < end:
            offset, data = group.next, log.entries[group.next]
            group.next += 1
            if data is None:
                group.skipped += 1
                continue
            room -= 1
            found.append((offset, data))
            if retry_ms is not None:
                expiry = None if expire_ms is None else now_ms + expire_ms
                group.pending[offset] = ModelPending(now_ms + retry_ms, expiry, 1)
        return found, not found and (moved or group.next != before)

    def info(self, key: tuple[LogName, bytes]) -> GroupInfo:
        group = self.groups[key]
        return GroupInfo(
            name=key[1].decode(),
            last_offset=group.next - 1,
            ack_offset=min([*group.pending, group.next]),
            pending=len(group.pending),
            expired=group.expired,
            skipped=group.skipped,
            max_pending=group.max_pending,
            dead=None if group.dead is None else group.dead.name.decode(),
        )

    def pending(self, key: tuple[LogName, bytes]) -> list[Pending]:
        return [
            Pending(offset, entry.retry_ms, entry.expire_ms, entry.deliveries)
            for offset, entry in sorted(self.groups[key].pending.items())
        ]


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.written = 0
        #: A flush under way: whose, up to which sequence, and the pages that are left.
        self.flushing: tuple[Owner, int, list[int]] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def do(self, step: Step) -> Any:
        return self.run(self.driver.do(step))

    def at(self, name: LogName, place: Any) -> Any:
        """An offset from a share of the stream; words stay."""
        if isinstance(place, str):
            return place
        log = self.model.streams.get(name)
        return int(place * len(log.entries)) if log else 0

    @initialize(count=sizes, limits=st.tuples(limits, limits), bury=st.booleans())
    def open(self, count: int, limits: tuple[int, int], bury: bool) -> None:
        self.driver = self.run(LogDriver.open())
        self.write(S, count)
        for key, max_pending in zip(GROUPS, limits, strict=False):
            self.create(key, "first", max_pending, bury)
            self.read_and_keep(key, count, 100)

    # The steps, each with what the model does: a rule submits one of them, or several as one tick.

    def append(self, name: LogName, count: int) -> tuple[Step, Any]:
        log = self.model.stream(name)
        count = max(1, min(count, LENGTH_MAX - len(log.entries)))
        entries = [b"%d" % n for n in range(self.written, self.written + count)]
        self.written += count
        first = len(log.entries)
        log.entries += entries
        return append_step(name, build_bodies(entries)), range(first, first + count)

    def deliver(
        self,
        key: tuple[LogName, bytes],
        count: int,
        retry_ms: int | None,
        expire_ms: int | None,
        start: Any,
        ends: dict[LogName, int] | None = None,
    ) -> tuple[Step, Any]:
        if retry_ms is None:
            expire_ms = None
        log = self.model.streams.get(key[0])
        end = len(log.entries) if log is not None and ends is None else (ends or {}).get(key[0], 0)
        start = self.at(key[0], start)
        step = deliver_step(
            key[0], key[1], count, retry_ms=retry_ms, expire_ms=expire_ms, start=start
        )
        now_ms = self.driver.clock.ms
        return step, self.model.read(key, count, retry_ms, expire_ms, start, now_ms=now_ms, end=end)

    def acks(self, key: tuple[LogName, bytes], pairs: list[tuple[int, int]]) -> tuple[Step, Any]:
        group = self.model.groups.get(key)
        acked = [
            offset
            for offset in ([] if group is None else group.pending)
            if any(low <= offset <= high for low, high in pairs)
        ]
        if group is not None:
            group.drop(acked)
        return ack_step(*key, pairs), len(acked)

    def drawn_offset(self, data: st.DataObject, key: tuple[LogName, bytes], other: Any) -> Any:
        """One that is pending, where there is one."""
        group = self.model.groups.get(key)
        if group is None or not group.pending:
            return other
        return data.draw(st.sampled_from(sorted(group.pending)))

    def drawn_pairs(self, data: st.DataObject, key: tuple[LogName, bytes]) -> list[tuple[int, int]]:
        group = self.model.groups.get(key)
        known = sorted(group.pending) if group is not None else []
        lows = st.integers(0, LENGTH_MAX + 10)
        if known:
            lows = st.sampled_from(known) | lows
        lengths = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 3000))
        pairs = data.draw(st.lists(st.tuples(lows, lengths), max_size=5))
        return [(low, low + length) for low, length in pairs]

    def check(self, reply: Any, expected: Any) -> None:
        if hasattr(reply, "messages"):
            reply = [(m.offset, m.data) for m in reply.messages], reply.moved
        assert reply == expected

    @rule(name=streams, count=sizes)
    def write(self, name: LogName, count: int) -> None:
        step, expected = self.append(name, count)
        self.check(self.do(step), expected)

    @rule(key=groups, count=counts, retry_ms=retries, expire_ms=expiries, start=starts)
    def read(
        self,
        key: tuple[LogName, bytes],
        count: int,
        retry_ms: int | None,
        expire_ms: int | None,
        start: Any,
    ) -> None:
        self.ask(key, count, retry_ms, expire_ms, start)

    def ask(
        self,
        key: tuple[LogName, bytes],
        count: int,
        retry_ms: int | None,
        expire_ms: int | None,
        start: Any,
    ) -> None:
        """As the broker does: one that moved without finding anything is asked again. It may clear
        pages of dead entries first, where the model goes on at once."""
        step, expected = self.deliver(key, count, retry_ms, expire_ms, start)
        reply = self.do(step)
        for _ in range(20):
            if not reply.moved or not expected[0]:
                break
            again = None if retry_ms is None else expire_ms
            reply = self.do(deliver_step(*key, count, retry_ms=retry_ms, expire_ms=again))
        self.check(reply, expected)

    @rule(key=groups, count=counts, expire_ms=expiries)
    def read_and_keep(self, key: tuple[LogName, bytes], count: int, expire_ms: int | None) -> None:
        """More often than chance would: lists become long."""
        self.ask(key, count, 50, expire_ms, "first")

    @rule(key=groups, data=st.data())
    def ack(self, key: tuple[LogName, bytes], data: st.DataObject) -> None:
        step, expected = self.acks(key, self.drawn_pairs(data, key))
        self.check(self.do(step), expected)

    @rule(name=streams, data=st.data())
    def busy_tick(self, name: LogName, data: st.DataObject) -> None:
        """Several steps share a commit; nothing that it writes is delivered by it."""
        ends = {name: len(log.entries) for name, log in self.model.streams.items()}
        steps: list[Step] = []
        expected: list[Any] = []
        for kind in data.draw(st.lists(st.sampled_from("rrrrraaawwexd"), min_size=2, max_size=6)):
            key = data.draw(groups)
            match kind:
                case "w":
                    done = self.append(name, data.draw(sizes))
                case "r":
                    options = data.draw(counts), data.draw(retries), data.draw(expiries)
                    done = self.deliver(key, *options, "first", ends)
                case "a":
                    done = self.acks(key, self.drawn_pairs(data, key))
                case "x":
                    done = self.destroyed(key)
                case "d":
                    done = self.deleted(name)
                    ends.pop(name, None)
                case _:
                    done = self.evicted(name, data.draw(places))
            steps.append(done[0])
            expected.append(done[1])
        for reply, wanted in zip(self.run(self.driver.submit(*steps)), expected, strict=True):
            self.check(reply, wanted)

    @rule(key=groups, start=starts, data=st.data())
    def move(self, key: tuple[LogName, bytes], start: Any, data: st.DataObject) -> None:
        to = self.at(key[0], start)
        if data.draw(st.booleans()):
            to = self.drawn_offset(data, key, to)
        step = set_step(*key, to)
        group = self.model.groups.get(key)
        if group is None:
            with pytest.raises(NotFoundError):
                self.do(step)
            return
        assert self.do(step) is None
        group.next = self.model.start(key[0], to)
        group.drop([offset for offset in group.pending if offset >= group.next])

    @rule(key=groups, start=starts, max_pending=limits, bury=st.booleans())
    def create(self, key: tuple[LogName, bytes], start: Any, max_pending: int, bury: bool) -> None:
        if key in self.model.groups:
            return
        dead = DEAD if bury and key[0] != DEAD else None
        start = self.at(key[0], start)
        self.do(create_step(*key, start=start, max_pending=max_pending, dead=dead))
        self.model.stream(key[0])
        group = ModelGroup(self.model.start(key[0], start), max_pending, dead)
        self.model.groups[key] = group

    # Rarely: what is destroyed cannot be looked at any more.
    @rule(key=groups, sure=st.integers(0, 3))
    def destroy(self, key: tuple[LogName, bytes], sure: int) -> None:
        if not sure:
            step, expected = self.destroyed(key)
            self.check(self.do(step), expected)

    @rule(name=streams, sure=st.integers(0, 5))
    def delete(self, name: LogName, sure: int) -> None:
        if not sure:
            step, expected = self.deleted(name)
            self.check(self.do(step), expected)

    def destroyed(self, key: tuple[LogName, bytes]) -> tuple[Step, Any]:
        return destroy_step(*key), self.model.groups.pop(key, None) is not None

    def deleted(self, name: LogName) -> tuple[Step, Any]:
        for key in [key for key in self.model.groups if key[0] == name]:
            del self.model.groups[key]
        return delete_step(name), self.model.streams.pop(name, None) is not None

    def evicted(self, name: LogName, place: float) -> tuple[Step, Any]:
        up_to = self.at(name, place)
        log = self.model.streams.get(name)
        before = 0 if log is None else log.first
        if log is not None:
            log.evict(up_to + 1)
        return evict_step(name, up_to=up_to), 0 if log is None else log.first - before

    @rule(name=streams, place=places)
    def evict(self, name: LogName, place: float) -> None:
        step, expected = self.evicted(name, place)
        self.check(self.do(step), expected)

    @rule(
        key=groups,
        place=places,
        stride=st.integers(1, 50),
        count=st.integers(1, 1500),
        data=st.data(),
    )
    def compact(
        self,
        key: tuple[LogName, bytes],
        place: float,
        stride: int,
        count: int,
        data: st.DataObject,
    ) -> None:
        name, low = key[0], self.drawn_offset(data, key, self.at(key[0], place))
        log, state = self.model.streams.get(name), self.run(self.driver.state(name))
        if log is None or state is None:
            return
        left = list(range(low, min(low + count, len(log.entries)), stride))
        for offset in left:
            log.entries[offset] = None
        while left:
            step, left = self.run(plan_holes(self.driver.store, state, left))
            if step is not None:
                assert self.do(step) == ()
            state = self.run(self.driver.state(name))
            assert state is not None

    @rule(name=streams)
    def merge(self, name: LogName) -> None:
        state = self.run(self.driver.state(name))
        while state is not None:
            step = self.run(plan_merge(self.driver.store, state, active=True))
            if step is None:
                break
            assert self.do(step) is True
            state = self.run(self.driver.state(name))

    @rule(ms=st.one_of(st.integers(1, 5), st.integers(1, 60)))
    def time_passes(self, ms: int) -> None:
        self.driver.clock.ms += ms

    @precondition(lambda self: any(group.pending for group in self.model.groups.values()))
    @rule(data=st.data(), early=st.booleans(), count=counts, retry_ms=retries)
    def time_comes(
        self, data: st.DataObject, early: bool, count: int, retry_ms: int | None
    ) -> None:
        """A read in the very millisecond at which an entry is due or expires, or one before."""
        key = data.draw(st.sampled_from([key for key in GROUPS if self.waiting(key)]))
        column = data.draw(st.sampled_from(["retry_ms", "expire_ms"]))
        times = {getattr(entry, column) for entry in self.waiting(key)} - {None}
        coming = sorted(ms for ms in times if ms > self.driver.clock.ms)
        if coming:
            self.driver.clock.ms = data.draw(st.sampled_from(coming)) - early
        self.read(key, count, retry_ms, 20, "first")

    def waiting(self, key: tuple[LogName, bytes]) -> list[ModelPending]:
        group = self.model.groups.get(key)
        return [] if group is None else list(group.pending.values())

    # A flush, one commit at a time: anything may happen between two of them.

    @precondition(lambda self: self.flushing is None and self.driver.tail.owners())
    @rule(data=st.data())
    def flush_begins(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.driver.tail.owners()))
        plan = plan_flush(self.driver.tail.of(owner))
        self.flushing = owner, plan.sequence, list(plan.pages)

    @precondition(lambda self: self.driver.tail.owners())
    @rule(data=st.data(), key=groups)
    def flush_with_work_between(self, data: st.DataObject, key: tuple[LogName, bytes]) -> None:
        """A whole flush, and after each of its commits something else or nothing."""
        self.driver.clock.ms += 50
        self.read_and_keep(key, data.draw(counts), data.draw(expiries))
        if self.flushing is None:
            self.flush_begins(data)
        while self.flushing is not None:
            self.flush_goes_on(data)
            match data.draw(st.sampled_from("rrao")):
                case "r":
                    # What waits since long is due, and comes again.
                    self.driver.clock.ms += data.draw(st.sampled_from([0, 50]))
                    self.read_and_keep(key, data.draw(counts), data.draw(expiries))
                case "a":
                    self.ack(key, data)
            self.rows_say_what_the_model_says()
        if data.draw(st.booleans()):
            self.trim()

    @precondition(lambda self: self.flushing is not None)
    @rule(data=st.data())
    def flush_goes_on(self, data: st.DataObject) -> None:
        assert self.flushing is not None
        owner, sequence, pages = self.flushing
        if pages:
            part = pages[: data.draw(st.integers(1, len(pages)))]
            self.do(pages_step(owner.id, part))
            del pages[: len(part)]
            return
        exists = self.do(head_step(owner.id))
        self.driver.tail.flushed(owner, sequence if exists else None)
        self.flushing = None

    @rule()
    def flush_all(self) -> None:
        self.flushing = None
        for owner in self.driver.tail.owners():
            plan = plan_flush(self.driver.tail.of(owner))
            for part in plan.parts():
                self.do(pages_step(owner.id, part))
            exists = self.do(head_step(owner.id))
            self.driver.tail.flushed(owner, plan.sequence if exists else None)
        self.trim()
        assert self.driver.tail.unneeded() == []
        assert self.driver.tail.owners() == ()

    @rule()
    def trim(self) -> None:
        numbers = self.driver.tail.unneeded()
        assert self.do(trim_step(numbers)) == len(numbers)
        self.driver.tail.trimmed(numbers)

    @rule()
    def collect(self) -> None:
        self.run(self.driver.chore(("collect", None)))
        assert self.run(check_log(self.driver.store)) == []

    # Memory is bounded, and processes die.

    @rule()
    def forget(self) -> None:
        self.driver.forget()

    @rule(data=st.data())
    def forget_some(self, data: st.DataObject) -> None:
        kinds = data.draw(
            st.sets(st.sampled_from(["group", "group name", "groups", "page", "log", "name"]))
        )
        for key in list(self.driver.states):
            if key[0] in kinds:
                del self.driver.states[key]

    @rule()
    def crash(self) -> None:
        ms = self.driver.clock.ms
        self.driver = self.run(LogDriver.open(self.driver.disk))
        self.driver.clock.ms = ms
        self.run(self.driver.tail.load(self.driver.store))
        self.flushing = None

    @rule(key=groups)
    def look(self, key: tuple[LogName, bytes]) -> None:
        """Through the driver's own memory, whatever is in it."""
        if key not in self.model.groups:
            for step in (info_step(*key), pending_step(*key, 0, 1)):
                with pytest.raises(NotFoundError):
                    self.do(step)
            return
        assert self.do(info_step(*key)) == self.model.info(key)
        assert self.do(pending_step(*key, 0, EVERYTHING)) == self.model.pending(key)

    @invariant()
    def rows_say_what_the_model_says(self) -> None:
        rebuilt = LogDriver(self.driver.disk, self.driver.clock, self.driver.store)
        self.run(rebuilt.tail.load(rebuilt.store))
        for key in GROUPS:
            if key not in self.model.groups:
                with pytest.raises(NotFoundError):
                    self.run(rebuilt.do(info_step(*key)))
                continue
            assert self.run(rebuilt.do(info_step(*key))) == self.model.info(key)
            found = self.run(rebuilt.do(pending_step(*key, 0, EVERYTHING)))
            assert found == self.model.pending(key)
        assert all(writes == {} for writes in rebuilt.written)
        for state_key, state in self.driver.states.items():
            other = rebuilt.states.get(state_key)
            if state_key[0] == "group" and other is not None:
                assert info_of(state) == info_of(other)
                assert state.head == other.head
                assert _lines(state.index) == _lines(other.index)
            if state_key[0] == "page" and other is not None:
                assert (state.retry == other.retry).all()

    @invariant()
    def the_index_counts_the_pages(self) -> None:
        states: dict[Any, Any] = self.driver.states
        pages: dict[int, dict[int, Any]] = {}
        for kind, where in states:
            if kind == "page":
                group_id, number = where
                pages.setdefault(group_id, {})[number] = states[kind, where]
        for group_id, known in pages.items():
            group = states.get(("group", group_id))
            lines = {} if group is None else dict(_lines(group.index))
            if group is not None:
                index = group.index
                assert index.pending == sum(line[0] for line in lines.values())
                retries, expiries = ({line[i] for line in lines.values()} for i in (2, 3))
                assert index.next_retry_ms == min(retries, default=NEVER_MS)
                assert index.next_expire_ms == min(expiries, default=NEVER_MS)
            for number, line in _lines(NO_PAGES.replaced(known)) if group else ():
                assert lines[number] == line

    @invariant()
    def is_clean(self) -> None:
        assert self.run(check_groups(self.driver.store)) == []

    def teardown(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()


def _lines(index: Any) -> list[tuple[int, tuple[int, ...]]]:
    columns = (index.numbers, index.counts, index.lowest, index.retry, index.expire)
    return [
        (line[0], line[1:]) for line in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestGroups = GroupMachine.TestCase
TestGroups.settings = _settings(75, 40)


@pytest.mark.slow
def test_groups_for_longer() -> None:
    run_state_machine_as_test(GroupMachine, settings=_settings(400, 60))
