"""The recovery component, case by case, also from stores that no commit of ours leaves behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.codec.backing import (
    AttemptRow,
    ChoiceRow,
    RangeRow,
    SnapshotRow,
    WrittenRow,
    encode_backing,
)
from penstock.codec.keys import backing_key, processor_key
from penstock.codec.processor import (
    OnEvicted,
    ProcessorKind,
    ProcessorRow,
    Semantics,
    encode_processor,
)
from penstock.errors import ConflictError, NotFoundError
from penstock.graph.commit import commit_step
from penstock.graph.hashes import message_hash
from penstock.graph.machine import Ask, Run, processor_steps
from penstock.graph.recovery import Seen, Verdict, judge
from penstock.graph.requests import (
    CommitStep,
    Input,
    Look,
    Range,
    RenameProcessor,
    ResetProcessor,
    Start,
    Started,
    TakeSnapshot,
    Topology,
)
from penstock.graph.start import start_step
from penstock.graph.state import (
    ProcessorState,
    pending_of,
    processor_state_key,
    read_processor,
)
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.evict import evict_step
from penstock.stream.delete import delete_step
from unit.graph.driver import Died, GraphDriver, function_of, topology, with_inputs
from unit.log.driver import stream


async def dead_before_the_commit(kind: str, **options: Any) -> GraphDriver:
    """Its first attempt ran, and nothing of it was committed."""
    driver = await with_inputs(left=4, right=4)
    steps = {"alts": 8}.get(kind, 6)  # start, snapshot, [choice,] and the function: two points each
    driver.dies_at = steps
    with pytest.raises(Died):
        await driver.run(topology(kind, **options), function_of(kind))
    driver.forget()
    driver.dies_at = 0
    return driver


async def stored(driver: GraphDriver) -> ProcessorState:
    found = [key for key in (processor_key(n) for n in range(1, 10)) if await driver.store.get(key)]
    processor_id = int.from_bytes(found[0][2:], "big")
    state = await read_processor(driver.store, processor_id)
    assert state is not None
    return state


async def write_by_hand(driver: GraphDriver, writes: dict[bytes, bytes | None]) -> None:
    def decide(view: View, now: Now) -> Decision:
        return Decision(writes=writes)

    await driver.do(Step(decide))
    driver.forget()


async def claim(driver: GraphDriver, **fields: Any) -> ProcessorState:
    """The attempt of what is under way, with positions moved and outputs never written."""
    state = await stored(driver)
    pending = driver.runs[-1]
    ends = {each.alias: each.end for each in pending.ranges}
    attempt = AttemptRow(1, state.row.step, pending.step_hash, **fields)
    row = msgspec.structs.replace(
        state.row,
        tail=state.row.tail + 1,
        step=state.row.step + 1,
        tries=0,
        inputs=tuple(
            msgspec.structs.replace(each, position=ends[each.alias]) for each in state.row.inputs
        ),
    )
    await write_by_hand(
        driver,
        {
            backing_key(state.id, state.row.tail): encode_backing(attempt),
            processor_key(state.id): encode_processor(row),
        },
    )
    return state


async def out_of_a_clean_run(kind: str) -> list[Any]:
    clean = await with_inputs(left=4, right=4)
    await clean.run(topology(kind), function_of(kind))
    return await clean.entries("out")


@pytest.mark.parametrize("kind", ["pipe", "join", "alts", "fork"])
async def test_an_attempt_that_was_written_without_its_output_is_made_again(kind: str) -> None:
    driver = await dead_before_the_commit(kind)
    first = driver.runs[-1]
    meta = message_hash("g/p", [(1, 0)])
    await claim(driver, outputs=(WrittenRow("out", 3, 0, 3, meta),))
    # The stream was made by somebody else meanwhile, and holds other entries at those places.
    await driver.write("out", b"x", b"y", b"z")
    log = await driver.state(stream("out"))
    assert log is not None
    await claim_log(driver, log.log_id)
    started = await driver.raw(Start(topology(kind)))
    assert isinstance(started, Started)
    assert started.pending is not None
    assert started.pending.ranges == first.ranges
    assert started.pending.step_hash == first.step_hash
    if kind == "alts":
        assert started.pending.chosen == "left"
    assert [each.position for each in started.tailers] == [each.start for each in first.ranges]
    driver.forget()
    again = await driver.raw(Start(topology(kind)))
    assert isinstance(again, Started)
    assert again.pending == started.pending  # from the records alone
    driver.forget()
    await driver.run(topology(kind), function_of(kind))
    # Started three times, its range was halved: below an alts that changes the mixture.
    found, expected = (await driver.entries("out"))[3:], await out_of_a_clean_run(kind)
    assert sorted(found) == sorted(expected) if kind == "alts" else found == expected
    await driver.check()


async def claim_log(driver: GraphDriver, log_id: int) -> None:
    """The attempt names this log."""
    state = await stored(driver)
    n, attempt = state.records[-1]
    assert isinstance(attempt, AttemptRow)
    (written,) = attempt.outputs
    moved = msgspec.structs.replace(
        attempt, outputs=(msgspec.structs.replace(written, log_id=log_id),)
    )
    await write_by_hand(driver, {backing_key(state.id, n): encode_backing(moved)})


async def test_an_error_attempt_whose_entry_is_missing_is_made_again() -> None:
    driver = await dead_before_the_commit("pipe")
    await driver.write("errors", b"of another processor")
    log = await driver.state(stream("errors"))
    assert log is not None
    await claim(driver, errors=WrittenRow("errors", log.log_id, 1, 2, bytes(16)))
    started = await driver.raw(Start(topology("pipe")))
    assert isinstance(started, Started)
    assert started.pending is not None


async def test_a_nil_attempt_counts_only_with_the_hash_of_the_snapshot() -> None:
    driver = await dead_before_the_commit("pipe")
    first = driver.runs[-1]
    await claim(driver, nil=2)
    started = await driver.raw(Start(topology("pipe")))
    assert isinstance(started, Started)
    assert started.pending is None  # 3a: the same hash
    assert started.tailers[0].position == 2

    driver = await dead_before_the_commit("pipe")
    state = await claim(driver, nil=2)
    other = AttemptRow(1, 0, bytes(16), nil=2)
    await write_by_hand(driver, {backing_key(state.id, state.row.tail): encode_backing(other)})
    started = await driver.raw(Start(topology("pipe")))
    assert isinstance(started, Started)
    assert started.pending is not None  # 3b
    assert started.pending.ranges == first.ranges
    assert started.tailers[0].position == 0


async def test_outputs_that_were_evicted_or_deleted_since_were_delivered() -> None:
    for gone in (evict_step(stream("out"), keep=0), delete_step(stream("out"))):
        driver = await with_inputs()
        await driver.run(topology("pipe"), function_of("pipe"))
        await driver.do(gone)
        driver.forget()
        started = await driver.raw(Start(topology("pipe")))
        assert isinstance(started, Started)
        assert started.pending is None


async def test_recovery_may_be_repeated_and_gives_the_same_step() -> None:
    driver = await dead_before_the_commit("alts")
    answers = []
    for _ in range(3):
        driver.forget()
        started = await driver.raw(Start(topology("alts")))
        assert isinstance(started, Started)
        answers.append((started.pending, started.tail, started.step, started.tailers))
        assert started.epoch == len(answers) + 1
        assert started.tries == len(answers) + 1
    assert answers[0] == answers[1] == answers[2]


async def test_a_tick_that_commits_and_starts_again_sees_the_output_of_the_same_tick() -> None:
    """The commit of one runner and the start of the next, decided together."""
    driver = await with_inputs()
    declared = topology("pipe")
    steps = processor_steps(declared, step_max=2)
    effect = next(steps)
    while not (isinstance(effect, Ask) and isinstance(effect.request, CommitStep)):
        if isinstance(effect, Run):
            effect = steps.send(await driver.execute(declared, effect, function_of("pipe")))
        else:
            assert isinstance(effect, Ask)
            effect = steps.send(await driver.ask(effect.request))
    _, started = await driver.submit(commit_step(effect.request), start_step(declared))
    assert started.pending is None
    assert started.tailers[0].position == 2
    await driver.check()


def test_judging_follows_the_specification_case_by_case() -> None:
    row = ProcessorRow(
        "g/p", ProcessorKind.ALTS, Semantics.EXACTLY_ONCE, OnEvicted.STOP, bytes(16), (), ()
    )
    snapshot = SnapshotRow(1, "g/p", 0, (RangeRow("a", 7, 5, 5), RangeRow("b", 8, 9, 9)))
    choice = ChoiceRow(1, 1, 12)
    pending = pending_of(snapshot, choice)
    assert [(each.start, each.end) for each in pending.ranges] == [(5, 5), (9, 12)]
    assert pending.chosen == "b"
    output = WrittenRow("out", 3, 0, 2, b"h" * 16)
    good = AttemptRow(1, 0, pending.step_hash, (output,))
    nil = AttemptRow(1, 0, pending.step_hash, nil=3)

    def state(*records: Any) -> ProcessorState:
        return ProcessorState(1, row, tuple(enumerate(records)))

    assert judge(state(), {}) == Verdict()  # 1a
    assert judge(state(snapshot), {}) == Verdict(pending_of(snapshot, None))  # 1b
    assert judge(state(snapshot, choice), {}) == Verdict(pending)  # 1c
    assert judge(state(snapshot, choice, good), {output: Seen.SAME}) == Verdict()  # 1d, 3a
    assert judge(state(snapshot, choice, good), {output: Seen.GONE}) == Verdict()
    failed = Verdict(pending, denied=True)
    assert judge(state(snapshot, choice, good), {output: Seen.OTHER}) == failed  # 1d, 3b
    error = msgspec.structs.replace(good, outputs=(), errors=output)
    assert judge(state(snapshot, choice, error), {output: Seen.OTHER}) == failed  # 1e
    assert judge(state(snapshot, choice, nil), {}) == Verdict()  # 1f, 3a
    other = msgspec.structs.replace(nil, step_hash=bytes(16))
    assert judge(state(snapshot, choice, other), {}) == failed  # 1f, 3b
    # The step of before is behind a snapshot that came later.
    assert judge(state(snapshot, choice, nil, snapshot), {}) == Verdict(pending_of(snapshot, None))


# ---- other topologies --------------------------------------------------------------------------


async def test_another_kind_or_other_inputs_are_refused_until_it_is_reset() -> None:
    driver = await with_inputs()
    await driver.run(topology("pipe"), function_of("pipe"))
    epoch = (await stored(driver)).row.epoch
    fork = topology("fork")
    moved = Topology("g", "p", "pipe", [Input("right", "right")], ["out"], "errors")
    for changed in (fork, moved):
        head = driver.store.head()
        with pytest.raises(ConflictError, match=r"g/p .* now; .* penstock graph reset g p"):
            await driver.raw(Start(changed))
        assert driver.store.head() == head
    assert (await stored(driver)).row.epoch == epoch
    await driver.raw(ResetProcessor("g", "p"))
    started = await driver.raw(Start(moved))
    assert isinstance(started, Started)
    assert [(each.stream, each.position) for each in started.tailers] == [("right", 0)]
    await driver.check()  # the hold on `left` is gone


async def test_other_outputs_errors_and_semantics_are_taken_over() -> None:
    driver = await with_inputs()
    await driver.run(topology("pipe"), function_of("pipe"))
    declared = Topology(
        "g", "p", "pipe", [Input("left", "left")], ["elsewhere"], None, "at_least_once", "skip"
    )
    await driver.write("left", b"l-9")
    await driver.run(declared, function_of("pipe"))
    assert [data for _, data, _ in await driver.entries("elsewhere")] == [b"l-9!"]
    # And back again: the attempts of at_least_once have no snapshot, and stand for themselves.
    driver.forget()
    await driver.write("left", b"l-14")
    await driver.run(topology("pipe"), function_of("pipe"))
    found = [data for _, data, _ in await driver.entries("out")]
    assert found == [b"l-0!", b"l-1.0", b"l-1.1", b"l-4!", b"l-14!"]
    assert len(await driver.entries("elsewhere")) == 1
    await driver.check()


async def test_a_stream_that_was_deleted_and_made_again_is_another_one() -> None:
    driver = await with_inputs()
    await driver.run(topology("pipe"), function_of("pipe"))
    found = await driver.raw(Start(topology("pipe")))
    assert isinstance(found, Started)
    await driver.do(delete_step(stream("left")))
    await driver.write("left", b"l-0")
    ranges = [Range("left", 5, 6)]
    for request in (
        Look(found.processor, found.epoch),
        TakeSnapshot(found.processor, found.epoch, found.tail, ranges),
        Start(topology("pipe")),
    ):
        with pytest.raises(ConflictError, match=r"'left' that was deleted; .*graph reset g p"):
            await driver.raw(request)
    await driver.raw(ResetProcessor("g", "p"))
    await driver.run(topology("pipe"), function_of("pipe"))
    assert [data for _, data, _ in await driver.entries("out")][-1] == b"l-0!"
    await driver.check()


async def test_a_step_begun_under_an_older_name_is_finished_with_its_hashes() -> None:
    driver = await dead_before_the_commit("pipe")
    await driver.raw(RenameProcessor("g", "p", "q"))
    declared = msgspec.structs.replace(topology("pipe"), processor="q")
    await driver.run(declared, function_of("pipe"))
    clean = await with_inputs(left=4)
    await clean.run(topology("pipe"), function_of("pipe"))
    found, expected = await driver.entries("out"), await clean.entries("out")
    assert [data for _, data, _ in found] == [data for _, data, _ in expected]
    assert found == expected  # of the two messages that were under way
    (failed,), (before,) = await driver.entries("errors"), await clean.entries("errors")
    assert failed[1] == before[1]
    assert failed[2] != before[2]  # the next ones are another processor's
    await driver.check()


async def test_a_pending_step_whose_entries_are_gone_is_told() -> None:
    driver = await dead_before_the_commit("pipe")
    await driver.do(evict_step(stream("left"), keep=1))
    with pytest.raises(NotFoundError, match="entries 0 to 2 of stream 'left' were evicted"):
        await driver.raw(Start(topology("pipe")))
    driver.forget()
    started = await driver.raw(Start(topology("pipe", on_evicted="skip")))
    assert isinstance(started, Started)
    assert started.pending is not None


async def test_memory_and_rows_say_the_same_after_every_request() -> None:
    driver = await with_inputs()
    await driver.run(topology("alts"), function_of("alts"))
    state = await stored(driver)
    assert driver.states[processor_state_key(state.id)] == state
