"""Topics against lists: every rule is done to both, and all that can be seen is compared.

After each rule the topic is also rebuilt from nothing but rows, as after a crash at any point, and
its invariants are checked. Consumers keep everything they were ever handed, so that what is stale
is acknowledged too: by zombies, after rebalances, twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import numpy as np
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

from penstock.errors import ConflictError, NotFoundError
from penstock.log.append import append_step
from penstock.log.batch import build_columns
from penstock.log.check import check_log
from penstock.log.evict import trim_step
from penstock.log.pages import trim_step as trim_operations_step
from penstock.log.rowview import RowView
from penstock.log.state import LogState, read_log
from penstock.topic.ack import Failed, ack_step
from penstock.topic.check import check_topics
from penstock.topic.feed import feed_step
from penstock.topic.flush import head_step, pages_step, plan_flush
from penstock.topic.given import StaleError, given
from penstock.topic.item import prepare_push
from penstock.topic.look import members, topic_counters
from penstock.topic.members import join_step, leave_step, pause_step, rebalance_step, token_of
from penstock.topic.poll import give_back_step, poll_step
from penstock.topic.push import push_step
from penstock.topic.read import read_messages
from penstock.topic.replay import replay_step
from penstock.topic.state import TopicState, load_topic, owner_of, topic_name, topic_state_key
from property.topic_model import Message, Model
from unit.log.driver import LogDriver, stream

T = TypeVar("T")

TOPIC, OUT = topic_name("t"), stream("out")
SLOTS = 5
NAMES = ["a", "b", "c"]
LENGTH_MAX = 400
#: So small that a topic of a few hundred messages has many pages and feeds.
SMALL = {
    "PAGE_OFFSETS": 16,
    "FEED_COUNT": 20,
    "FEED_LOW": 20,
    "FLUSH_PAGES": 2,
    "LOOKED_PAGES": 3,
    "ERRORS_PART": 2,
    "CLOSED_MAX": 2,
}

names = st.sampled_from(NAMES)
keys = st.sampled_from([b"", b"k0", b"k1", b"k2", b"k3", b"k4", b"k5", b"k6", b"k7"])
batches = st.lists(keys, min_size=1, max_size=30)
counts = st.integers(1, 25)


class Batch(msgspec.Struct, eq=False):
    """What a consumer was handed by one poll, of one space."""

    consumer: str
    token: int
    space: int
    offsets: list[int]
    epochs: list[int]


class TopicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.restore: list[tuple[Any, str, int]] = []
        for module in [m for name, m in sys.modules.items() if name.startswith("penstock.")]:
            for name, value in SMALL.items():
                if name in vars(module) and ".topic" in module.__name__:
                    self.restore.append((module, name, vars(module)[name]))
                    setattr(module, name, value)
        self.batches: list[Batch] = []
        self.written = 0
        self.effects = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def do(self, step: Any) -> Any:
        return self.run(self.driver.do(step))

    @initialize(first=batches, polled=st.integers(0, 20))
    def open(self, first: list[bytes], polled: int) -> None:
        """Often with a consumer at work: that is when it matters who comes and goes."""
        self.driver = self.run(LogDriver.open())
        self.model = Model(SLOTS)
        self.push(first)
        if polled:
            self.join("a")
            self.hand_out("a", polled)

    @property
    def state(self) -> TopicState:
        return self.run(load_topic(self.view(), TOPIC))

    def view(self) -> RowView:
        return RowView(self.driver.store, self.driver.tail)

    # -- producing

    @precondition(lambda self: len(self.model.log) < LENGTH_MAX)
    @rule(batch=batches)
    def push(self, batch: list[bytes]) -> None:
        data = [b"%d" % n for n in range(self.written, self.written + len(batch))]
        self.written += len(batch)
        expected = self.model.push(batch)
        pushed = self.do(push_step(TOPIC, prepare_push(data, batch), slots=SLOTS))
        assert pushed.offsets == expected

    @precondition(lambda self: len(self.model.log) < LENGTH_MAX)
    @rule(batch=batches)
    def append_as_a_link_does(self, batch: list[bytes]) -> None:
        """Messages come into the all-log, and nobody made references for them."""
        data = [b"%d" % n for n in range(self.written, self.written + len(batch))]
        self.written += len(batch)
        expected = self.model.push(batch, fed=False)
        assert self.do(append_step(TOPIC, build_columns(data, tags=batch))) == expected

    @rule()
    def feed(self) -> None:
        before = self.state
        more = True
        while more:
            more = self.do(feed_step(TOPIC))
        self.model.feed()
        after = self.state
        for space in after.replays:
            self.model.replays[space.id].fed = space.fed - space.first
            assert space.fed == space.end or after.references(space.id).count >= SMALL["FEED_LOW"]
        assert {space.id for space in before.replays} >= {space.id for space in after.replays}
        self.model.end_replays()

    # -- consumers

    def plan(self) -> dict[int, int]:
        found = members(self.state)
        plan = {
            slot: token_of(self.state.id, each.number)
            for each in found
            if not each.zombie
            for slot in each.slots
        }
        return {slot: plan.get(slot, 0) for slot in range(SLOTS)}

    @rule(name=names)
    def join(self, name: str) -> None:
        joined = self.do(join_step(TOPIC, name))
        self.model.consumers[name] = joined.token
        self.model.adopt(self.plan())
        assert joined.slots == [s for s, slot in self.plan().items() if slot == joined.token]

    @rule(name=names, stale=st.booleans())
    def leave(self, name: str, stale: bool) -> None:
        token = self.model.consumers.get(name)
        if token is None or stale:
            assert not self.do(leave_step(TOPIC, name, (token or 1000) - 1))
            return
        assert self.do(leave_step(TOPIC, name, token))
        del self.model.consumers[name]
        self.model.adopt(self.plan())

    @rule()
    def rebalance(self) -> None:
        moved = self.do(rebalance_step(TOPIC))
        assert moved == self.model.adopt(self.plan(), fence=True)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.do(pause_step(TOPIC, paused=paused))
        self.model.paused = paused
        self.model.route()

    @rule(low=st.floats(0, 1), high=st.floats(0, 1) | st.none())
    def replay(self, low: float, high: float | None) -> None:
        size = len(self.model.log)
        start, end = int(low * size), None if high is None else int(high * size)
        if end is not None and end < start:
            start, end = end, start
        log = self.run(read_log(self.driver.store, self.state.id))
        assert log is not None
        begun = self.do(replay_step(TOPIC, start, end))
        stop = size if end is None else end
        assert (begun.first, begun.end) == (min(max(start, log.first), stop), stop)
        if begun.id:
            self.model.replay(begun.id, begun.first, begun.end)
        else:
            assert begun.first == begun.end

    # -- tailing

    @precondition(lambda self: self.model.consumers)
    @rule(
        data=st.data(),
        count=counts,
        lost=st.sampled_from([0, 0, 1, 5]),
    )
    def poll(self, data: st.DataObject, count: int, lost: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.consumers)))
        self.hand_out(name, count, lost=lost)

    def hand_out(self, name: str, count: int, *, lost: int = 0) -> None:
        token = self.model.consumers[name]
        found = self.do(poll_step(TOPIC, name, token, count))
        for _ in range(1000):
            if not found.more:
                break
            found = self.do(poll_step(TOPIC, name, token, count))
        if self.model.paused:
            assert found.paused
            assert not found.parts
            return
        could = {space: len(self.model.waiting(space, token)) for space in (0, *self.model.replays)}
        for part in found.parts:
            waiting = self.model.waiting(part.space, token)
            taken = waiting[: len(part.offsets)]
            # The first ones that wait, in order: FIFO per slot, and so per key.
            assert part.offsets.tolist() == [message.offset for message in taken]
            assert part.slots.tolist() == [message.slot for message in taken]
            epochs = [self.model.slots[message.slot].epoch for message in taken]
            assert part.epochs.tolist() == epochs
            assert part.fresh.tolist() == [not message.emitted for message in taken]
            assert part.attempts == {m.offset: m.attempts for m in taken if m.attempts}
            self.keys_are_in_order(part.space, taken, (token, 0))
            self.model.emit(part.space, taken, token)
            if lost:
                self.lose(name, token, part, taken[-lost:])
            self.batches.append(Batch(name, token, part.space, part.offsets.tolist(), epochs))
        given_out = sum(len(part.offsets) for part in found.parts)
        assert given_out <= count
        # One that found some need not look through more than LOOKED_PAGES pages of a space.
        all_seen = len(self.model.log) <= SMALL["LOOKED_PAGES"] * SMALL["PAGE_OFFSETS"]
        replays = sum(could[job] for job in could if job)
        if not could[0] or not replays:
            whole = min(count, could[0] + replays)
            assert given_out == whole or (given_out and not all_seen)
        elif count == 1:
            assert given_out == 1
        elif all_seen:
            assert {bool(part.space) for part in found.parts} == {True, False}, "both get a share"

    def lose(self, name: str, token: int, part: Any, messages: list[Message]) -> None:
        """They were not answered with: as if they had not been handed out."""
        n = len(messages)
        named = given(part.offsets[-n:], part.epochs[-n:], part.space)
        fresh = part.fresh[-n:]
        taken = self.do(give_back_step(TOPIC, name, token, [named], [fresh]))
        assert taken == [True] * n
        for message, was_fresh in zip(messages, fresh.tolist(), strict=True):
            message.run = None
            if not was_fresh:
                self.model.redelivered -= 1
                continue
            message.emitted = False
            self.model.replayed -= bool(part.space)
        self.model.hand_over()

    def keys_are_in_order(self, space: int, taken: list[Message], run: tuple[int, int]) -> None:
        """Whatever came before under the same key is done, or with the same consumer."""
        offsets = {message.offset for message in taken}
        for message in taken:
            for other in self.model.space(space):
                if other.key == message.key and message.key and other.offset < message.offset:
                    assert (
                        other.ended
                        or other.offset in offsets
                        or (other.run is not None and other.run[0] == run[0])
                    )

    @rule(name=names, number=st.integers(-1, 30), younger=st.integers(-1, 1))
    def poll_of_a_stranger(self, name: str, number: int, younger: int) -> None:
        token = token_of(self.state.id + younger, number)  # of this topic, or another
        if self.model.consumers.get(name) == token:
            return
        with pytest.raises((NotFoundError, ConflictError)):
            self.do(poll_step(TOPIC, name, token, 5))

    def drawn(self, data: st.DataObject) -> tuple[Batch, list[int]]:
        """Some of what one poll handed out, whether it is stale by now or not."""
        newest = st.integers(max(0, len(self.batches) - 4), len(self.batches) - 1)
        batch = self.batches[data.draw(newest | st.integers(0, len(self.batches) - 1))]
        places = st.integers(0, len(batch.offsets) - 1)
        everything = st.just(list(range(len(batch.offsets))))
        return batch, data.draw(everything | st.lists(places, min_size=1, max_size=8))

    def runs(self, batch: Batch, i: int) -> Message | None:
        if self.model.consumers.get(batch.consumer) != batch.token:
            return None
        return self.model.find(batch.space, batch.offsets[i], (batch.token, batch.epochs[i]))

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), strict=st.booleans(), foreign=st.sampled_from([False, False, True]))
    def ack(self, data: st.DataObject, strict: bool, foreign: bool) -> None:
        batch, places = self.drawn(data)
        if foreign and self.model.consumers:
            # Somebody names what another was handed.
            name = data.draw(st.sampled_from(sorted(self.model.consumers)))
            token = self.model.consumers[name]
            batch = msgspec.structs.replace(batch, consumer=name, token=token)
        named = given(
            [batch.offsets[i] for i in places], [batch.epochs[i] for i in places], batch.space
        )
        step = ack_step(TOPIC, batch.consumer, batch.token, [named], strict=strict)
        seen: set[int] = set()
        fresh = []
        for i in places:
            fresh.append(i not in seen and self.runs(batch, i) is not None)
            seen.add(i)
        if strict:
            effect = append_step(OUT, build_columns([b"done"]))
            if not all(fresh):
                with pytest.raises(StaleError):
                    self.run(self.driver.submit(step, effect))
                return
            settled, _ = self.run(self.driver.submit(step, effect))
            self.effects += 1
        else:
            settled = self.do(step)
        assert settled.taken == fresh
        assert settled.paused == self.model.paused
        for i, taken in zip(places, fresh, strict=True):
            message = self.runs(batch, i) if taken else None
            if message is not None:
                self.model.end(message, "acked")
        self.model.hand_over()

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), most=st.integers(1, 3))
    def fail(self, data: st.DataObject, most: int) -> None:
        batch, (i, *_) = self.drawn(data)
        failure = Failed(batch.offsets[i], batch.epochs[i], "it broke", batch.space)
        step = ack_step(TOPIC, batch.consumer, batch.token, failures=[failure], max_attempts=most)
        message = self.runs(batch, i)
        (outcome,) = self.do(step).failed
        if message is None:
            assert outcome == "stale"
            return
        message.attempts += 1
        final = message.attempts >= most
        self.model.errors[message.offset, batch.space] = message.attempts, final
        assert outcome == ("errored" if final else "again")
        if final:
            self.model.end(message, "errored")
        self.model.hand_over()

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        batch, places = self.drawn(data)
        places = sorted(set(places))
        named = given(
            [batch.offsets[i] for i in places], [batch.epochs[i] for i in places], batch.space
        )
        expected = [self.runs(batch, i) for i in places]
        taken = self.do(give_back_step(TOPIC, batch.consumer, batch.token, [named]))
        assert taken == [message is not None for message in expected]
        for message in expected:
            if message is not None:
                message.run = None
        self.model.hand_over()

    # -- the rows

    @rule(stop=st.sampled_from(["pages", "head", "flushed", "trimmed"]))
    def flush(self, stop: str) -> None:
        owner = owner_of(self.state.id)
        tail = self.driver.tail
        operations = tail.of(owner)
        if not operations:
            return
        plan = plan_flush(operations)
        for part in plan.parts():
            self.do(pages_step(owner.id, part))
            if stop == "pages":
                return
        assert self.do(head_step(owner.id))
        if stop == "head":
            return
        tail.flushed(owner, plan.sequence)
        if stop == "trimmed":
            numbers = tail.unneeded()
            self.do(trim_operations_step(numbers))
            tail.trimmed(numbers)

    @rule(keep=st.integers(0, 50))
    def trim(self, keep: int) -> None:
        """Retention takes nothing that somebody needs."""
        self.do(trim_step(TOPIC, count=keep))
        log = self.run(read_log(self.driver.store, self.state.id))
        assert log is not None
        needed = [message.offset for message in self.model.log if not message.ended]
        for replay in self.model.replays.values():
            needed += [message.offset for message in replay.messages if not message.ended]
        assert all(offset >= log.first for offset in needed)

    @rule()
    def forget(self) -> None:
        self.driver.forget()

    # -- always

    @invariant()
    def everything_agrees(self) -> None:
        """With what the rows say: that is looked up once, it takes most of the time."""
        state = self.state
        log = self.run(read_log(self.driver.store, state.id))
        assert log is not None
        self.counters_agree(state, log)
        self.memory_is_what_rows_say(state)
        self.zombies_are_listed_until_they_are_drained(state)
        assert [space.id for space in state.replays] == list(self.model.replays)
        self.messages_can_be_read(state, log)
        assert self.run(check_topics(self.driver.store)) == []
        assert self.run(check_log(self.driver.store)) == []

    def counters_agree(self, state: TopicState, log: LogState) -> None:
        counters = msgspec.structs.asdict(topic_counters(state, log))
        assert counters == self.model.counters()
        assert (
            counters["acked"] + counters["errored"] + counters["waiting"] + counters["running"]
            == counters["inserted"]
        )

    def memory_is_what_rows_say(self, state: TopicState) -> None:
        known: TopicState | None = self.driver.states.get(topic_state_key(state.id))
        if known is None:
            return
        assert (known.head.shards == state.head.shards).all()
        fields = ("sequence", "routed", "number", "paused", "consumers", "folded", "spaces")
        for field in (*fields, "attempts"):
            assert getattr(known.head, field) == getattr(state.head, field), field
        assert known.index.keys() | {0} == state.index.keys() | {0}
        for space in state.head.spaces:
            mine, other = known.references(space.id).lines, state.references(space.id).lines
            assert mine.tolist() == other.tolist()

    def zombies_are_listed_until_they_are_drained(self, state: TopicState) -> None:
        live = {
            each.name: token_of(state.id, each.number) for each in members(state) if not each.zombie
        }
        assert live == self.model.consumers
        for each in members(state):
            assert not each.zombie or each.slots

    def messages_can_be_read(self, state: TopicState, log: LogState) -> None:
        for space in state.head.spaces:
            waiting = [m for m in self.model.space(space.id) if not m.ended]
            if not waiting:
                continue
            offsets = np.array([message.offset for message in waiting], np.int64)
            found = self.run(read_messages(self.driver.store, log, offsets))
            assert found.data == [b"%d" % message.offset for message in waiting]
            assert found.keys == [message.key for message in waiting]

    def teardown(self) -> None:
        for module, name, value in self.restore:
            setattr(module, name, value)
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestTopics = TopicMachine.TestCase
TestTopics.settings = _settings(40, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_topics_for_longer() -> None:
    run_state_machine_as_test(TopicMachine, settings=_settings(200, 60))
