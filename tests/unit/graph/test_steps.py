"""What each request decides: holds, evictions, narrowing, counts, and what is refused."""

from __future__ import annotations

from hashlib import shake_128
from typing import Any

import msgspec
import pytest

from penstock.codec.node import build_body, node_value
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.graph.machine import Ask, Idle, Outcome, Run, plan_ranges, processor_steps
from penstock.graph.outputs import decode_position, encode_position, pack
from penstock.graph.requests import (
    AT_MOST_ONCE_MAX,
    ChooseInput,
    CommitStep,
    Committed,
    DropProcessor,
    Graphs,
    Look,
    Looked,
    NarrowStep,
    Output,
    ProcessorStatus,
    Range,
    RenameProcessor,
    Request,
    ResetProcessor,
    ShowGraphs,
    Start,
    Started,
    Tailer,
    Taken,
    TakeSnapshot,
    Topology,
)
from penstock.log.batch import column
from penstock.log.evict import evict_step, trim_step
from unit.graph.driver import Died, GraphDriver, function_of, topology, with_inputs
from unit.log.driver import stream

HASH = bytes(range(16))


async def started(driver: GraphDriver, declared: Topology) -> Started:
    found = await driver.raw(Start(declared))
    assert isinstance(found, Started)
    return found


async def status(driver: GraphDriver) -> ProcessorStatus:
    found = await driver.raw(ShowGraphs())
    assert isinstance(found, Graphs)
    return found.graphs[0].processors[0]


async def taken(driver: GraphDriver, request: Request) -> Taken:
    found = await driver.raw(request)
    assert isinstance(found, Taken), found
    return found


def spans(ranges: list[Range]) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in ranges]


async def test_a_source_is_idle_when_it_says_so_and_not_when_a_step_has_nothing() -> None:
    driver = await with_inputs()
    steps = processor_steps(topology("source"), step_max=2)
    effect = next(steps)
    assert isinstance(effect, Ask)
    assert isinstance(steps.send(await driver.raw(effect.request)), Run)
    effect = steps.send(Outcome(nil=5))
    assert isinstance(effect, Ask)
    assert isinstance(steps.send(await driver.raw(effect.request)), Run)
    assert isinstance(steps.send(Outcome(exhausted=True)), Idle)
    assert (await status(driver)).nil == 5


# ---- holds and eviction ------------------------------------------------------------------------


async def test_inputs_are_held_at_the_committed_position_from_the_first_start_on() -> None:
    driver = await with_inputs(left=6)
    await started(driver, topology("pipe"))
    assert await driver.do(trim_step(stream("left"), count=0)) == 0
    await driver.run(topology("pipe"), function_of("pipe"), step_max=4)
    # Both steps are committed: nothing holds what they read.
    assert await driver.do(trim_step(stream("left"), count=1)) == 5
    await driver.check()
    await driver.write("left", b"l-7")
    assert await driver.do(trim_step(stream("left"), count=0)) == 1
    await driver.raw(DropProcessor("g", "p"))
    assert await driver.do(trim_step(stream("left"), count=0)) == 1
    await driver.check()


async def test_a_step_that_is_under_way_keeps_its_entries() -> None:
    driver = await with_inputs(left=6)
    found = await started(driver, topology("pipe"))
    await driver.raw(TakeSnapshot(found.processor, found.epoch, 0, [Range("left", 0, 4)]))
    assert await driver.do(trim_step(stream("left"), count=0)) == 0


async def test_what_was_evicted_unread_stops_the_processor_with_a_clear_error() -> None:
    driver = await with_inputs(left=6)
    found = await started(driver, topology("pipe"))
    await driver.do(evict_step(stream("left"), up_to=3))
    head = driver.store.head()
    words = "entries 0 to 3 of stream 'left' were evicted before it read them.*on_evicted='skip'"
    for request in (
        Look(found.processor, found.epoch),
        TakeSnapshot(found.processor, found.epoch, 0, [Range("left", 0, 6)]),
    ):
        with pytest.raises(NotFoundError, match=words):
            await driver.raw(request)
    assert driver.store.head() == head


@pytest.mark.parametrize("kind", ["pipe", "fork", "sink", "join", "alts"])
async def test_whoever_lost_entries_is_told_to_begin_anew_only_where_that_doubles_nothing(
    kind: str,
) -> None:
    """From its first entry on, an input that lost nothing would come again, and the entries of a
    join would have other neighbours."""
    driver = await with_inputs(left=6)
    found = await started(driver, topology(kind))
    await driver.do(evict_step(stream("left"), up_to=3))
    with pytest.raises(NotFoundError, match="on_evicted='skip' goes on without them") as told:
        await driver.raw(Look(found.processor, found.epoch))
    assert ("penstock graph reset" in str(told.value)) == (kind not in ("join", "alts"))


async def test_skipping_moves_over_what_is_gone_and_counts_it() -> None:
    driver = await with_inputs(left=6)
    declared = topology("pipe", on_evicted="skip")
    found = await started(driver, declared)
    await driver.do(evict_step(stream("left"), up_to=3))
    looked = await driver.raw(Look(found.processor, found.epoch))
    assert isinstance(looked, Looked)
    assert (looked.skipped, looked.tailers[0].position) == (4, 4)
    driver.forget()
    await driver.run(declared, function_of("pipe"))
    assert [data for _, data, _ in await driver.entries("out")] == [b"l-4!", b"l-5!"]
    assert (await status(driver)).skipped == 4
    await driver.check()


async def test_a_join_that_skips_keeps_its_inputs_side_by_side() -> None:
    driver = await with_inputs(left=6, right=2)
    declared = topology("join", on_evicted="skip")
    await started(driver, declared)
    await driver.do(evict_step(stream("left"), up_to=3))
    await driver.run(declared, lambda l, r, delivery_hash: l.data + r.data)  # noqa: E741
    assert await driver.entries("out") == []  # `right` has only what belongs to the skipped ones
    await driver.write("right", *(b"r-%d" % n for n in range(2, 6)))
    await driver.run(declared, lambda l, r, delivery_hash: l.data + r.data)  # noqa: E741
    assert [data for _, data, _ in await driver.entries("out")] == [b"l-4r-4", b"l-5r-5"]
    assert (await status(driver)).skipped == 4


# ---- narrowing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "join", "alts"])
async def test_a_poison_message_ends_alone_and_the_others_get_through(kind: str) -> None:
    """Unhandled: the attempt fails whenever the message is in its range."""
    driver = await with_inputs(left=10, right=10)
    declared, function = topology(kind), function_of(kind)
    poison, attempts, sizes = b"l-6", 0, []

    async def refuse(run: Run) -> None:
        sizes.append(max(each.end - each.start for each in run.ranges))
        alias = run.ranges[0].alias
        (left,) = [each for each in run.ranges if each.alias == alias]
        found = await driver.read(stream("left"), left.start, left.end - left.start)
        if any(message is not None and message.data == poison for message in found):
            raise Died

    driver.before_run = refuse
    while attempts < 40 and sizes[-3:] != [1, 1, 1]:
        attempts += 1
        with pytest.raises(Died):
            await driver.run(declared, function, step_max=8)
        driver.forget()
    if kind == "pipe":
        # Twice as it was, then the half, which gets through; then the rest, in the same way.
        assert sizes[:6] == [8, 8, 4, 6, 6, 3]
    # Once it is alone it stays: nothing can be narrowed any more.
    assert sizes[-3:] == [1, 1, 1]
    found = await status(driver)
    assert found.pending
    assert found.tailers[0].position == 6
    driver.before_run = None
    await driver.run(declared, function, step_max=8)
    clean = await with_inputs(left=10, right=10)
    await clean.run(declared, function, step_max=8)
    assert sorted(await driver.entries("out")) == sorted(await clean.entries("out"))
    await driver.check()


async def test_what_cannot_be_narrowed_is_refused() -> None:
    driver = await with_inputs()
    found = await started(driver, topology("pipe"))
    with pytest.raises(InvalidError, match="no step is under way"):
        await driver.raw(NarrowStep(found.processor, found.epoch, 0, 1))
    await driver.raw(TakeSnapshot(found.processor, found.epoch, 0, [Range("left", 0, 2)]))
    for count, text in ((2, "do not narrow"), (0, "a step of 0 messages")):
        with pytest.raises(InvalidError, match=text):
            await driver.raw(NarrowStep(found.processor, found.epoch, 1, count))


# ---- at most once ------------------------------------------------------------------------------


async def test_at_most_once_moves_on_before_the_function_and_is_bounded() -> None:
    driver = await GraphDriver.fresh()
    await driver.write("left", *(b"l-%d" % n for n in range(AT_MOST_ONCE_MAX + 5)))
    declared = topology("pipe", semantics="at_most_once")
    found = await started(driver, declared)
    beyond = [Range("left", 0, AT_MOST_ONCE_MAX + 1)]
    with pytest.raises(InvalidError, match="at most 1,000 messages"):
        await driver.raw(TakeSnapshot(found.processor, found.epoch, 0, beyond))
    await driver.raw(
        TakeSnapshot(found.processor, found.epoch, 0, [Range("left", 0, AT_MOST_ONCE_MAX)])
    )
    assert (await status(driver)).tailers[0].position == AT_MOST_ONCE_MAX
    again = await started(driver, declared)
    assert again.pending is None
    assert (again.step, again.tailers[0].position) == (1, AT_MOST_ONCE_MAX)
    assert (await status(driver)).lost == AT_MOST_ONCE_MAX
    await driver.run(declared, function_of("pipe"), step_max=10_000)
    assert (await status(driver)).delivered == 5
    await driver.check()


# ---- what is refused ---------------------------------------------------------------------------


async def refused(driver: GraphDriver, request: Request, text: str) -> None:
    head = driver.store.head()
    with pytest.raises((InvalidError, NotFoundError, ConflictError), match=text):
        await driver.raw(request)
    assert driver.store.head() == head


async def test_snapshots_that_do_not_fit_are_refused_and_write_nothing() -> None:
    driver = await with_inputs(left=5, right=4)
    for kind, ranges, text in (
        ("pipe", [Range("left", 1, 3)], "reads from 0"),
        ("pipe", [Range("left", 0, 6)], "ends at 5"),
        ("pipe", [Range("left", 0, 0)], "a step of no messages"),
        ("pipe", [Range("right", 0, 1)], "names all inputs"),
        ("pipe", [], "names all inputs"),
        ("join", [Range("l", 0, 2), Range("r", 0, 1)], "as many of each"),
        ("alts", [Range("left", 0, 2), Range("right", 0, 0)], "starts only"),
    ):
        declared = msgspec.structs.replace(topology(kind), processor=f"{kind}{text[:6]}")
        found = await started(driver, declared)
        await refused(driver, TakeSnapshot(found.processor, found.epoch, 0, ranges), text)


async def test_choices_that_do_not_fit_are_refused_and_write_nothing() -> None:
    driver = await with_inputs()
    found = await started(driver, topology("alts"))
    ids = found.processor, found.epoch
    await refused(driver, ChooseInput(*ids, 0, "left", 1), "follows a snapshot")
    starts = [Range("left", 0, 0), Range("right", 0, 0)]
    await driver.raw(TakeSnapshot(*ids, 0, starts))
    await refused(driver, TakeSnapshot(*ids, 1, starts), "under way already")
    await refused(driver, ChooseInput(*ids, 1, "middle", 1), "no input 'middle'")
    await refused(driver, ChooseInput(*ids, 1, "left", 0), "no messages")
    await refused(driver, ChooseInput(*ids, 1, "left", 99), "ends at 5")
    pipe = await started(driver, msgspec.structs.replace(topology("pipe"), processor="q"))
    await refused(driver, ChooseInput(pipe.processor, pipe.epoch, 0, "left", 1), "is no alts")


async def test_commits_that_do_not_fit_are_refused_and_write_nothing() -> None:
    driver = await with_inputs()
    found = await started(driver, topology("pipe"))
    ids = found.processor, found.epoch
    ranges = [Range("left", 0, 2)]
    await refused(driver, CommitStep(*ids, 0, ranges, HASH), "no step is under way")
    step = await taken(driver, TakeSnapshot(*ids, 0, ranges))
    good: dict[str, Any] = {
        "processor": found.processor, "epoch": found.epoch, "tail": step.tail,
        "ranges": ranges, "step_hash": step.step_hash,
    }  # fmt: skip
    out = pack("out", [("", b"x", HASH)])
    node = out.nodes[0]
    for changed, text in (
        ({"step_hash": HASH}, "not what is under way"),
        ({"ranges": [Range("left", 0, 1)]}, "not what is under way"),
        ({"position": b"1"}, "is no source"),
        ({"outputs": [pack("elsewhere", [("", b"x", HASH)])]}, "no output 'elsewhere'"),
        ({"errors": pack("out", [("", b"x", HASH)])}, "no error stream 'out'"),
        ({"outputs": [out, out]}, "named twice"),
        ({"outputs": [pack("out", [("", b"x")])]}, "without its hash"),
        ({"outputs": [pack("out", [("", b"x", b"short")])]}, "without its hash"),
        ({"outputs": [pack("out", [("", b"x", HASH), ("", b"y", b"")])]}, "without its hash"),
        ({"outputs": [Output("out", [node[:-1]])]}, "node 0"),
        ({"outputs": [Output("out", [b""])]}, "node 0"),
        ({"outputs": [Output("out", [_dead(HASH)])]}, "evicted"),
        ({"outputs": [Output("out", [node], [1])]}, "come with the commit, or staged"),
        ({"outputs": [Output("out", writers=[1])]}, "go together"),
        ({"staging": 1}, "go together"),
        ({"outputs": [Output("out", writers=[1])], "staging": 77}, "staging 77 does not exist"),
        ({"outputs": [Output("", [node])]}, "stream name"),
        ({"nil": -1}, "not negative"),
    ):
        await refused(driver, CommitStep(**(good | changed)), text)
    done = await driver.raw(CommitStep(**good, outputs=[out]))
    assert isinstance(done, Committed)
    assert len(await driver.entries("out")) == 1


async def test_large_outputs_are_to_be_staged() -> None:
    driver = await with_inputs()
    found = await started(driver, topology("pipe"))
    # Noise, which no compression makes small.
    noise = pack("out", [("", _noise(3 << 20, seed), HASH) for seed in range(2)])
    await refused(
        driver,
        CommitStep(found.processor, found.epoch, 0, [], b"", [noise]),
        "at most 4,194,304 are allowed",
    )


def _dead(meta: bytes) -> bytes:
    """A node whose one entry is said to be gone."""
    columns = column([b"x"], "data"), column([meta], "meta")
    return node_value(build_body(1, columns[0], meta=columns[1], validity=b"\0"), 0, 0)


def _noise(size: int, seed: int) -> bytes:
    return shake_128(seed.to_bytes(8, "little")).digest(size)


async def test_what_does_not_exist_cannot_be_changed() -> None:
    driver = await with_inputs()
    for request in (
        DropProcessor("g", "p"),
        RenameProcessor("g", "p", "q"),
        ResetProcessor("g", "p"),
    ):
        await refused(driver, request, "no processor g/p")
    await started(driver, topology("pipe"))
    await refused(driver, RenameProcessor("g", "p", "a/b"), "has a '/'")


# ---- counts ------------------------------------------------------------------------------------


async def test_every_message_is_counted_once_by_what_became_of_it() -> None:
    driver = await with_inputs(left=10)
    await driver.run(topology("pipe"), function_of("pipe"), step_max=3)
    found = await status(driver)
    # Of ten: 0 4 5 9 one output, 1 6 two, 2 7 an error, 3 8 nothing.
    assert (found.delivered, found.written, found.failed, found.nil) == (10, 8, 2, 2)
    assert (found.step, found.tries, found.lost, found.skipped) == (4, 0, 0, 0)
    without = await with_inputs(left=10)
    await without.run(topology("pipe", errors=None), function_of("pipe"), step_max=3)
    found = await status(without)
    assert (found.written, found.failed, found.nil) == (8, 0, 4)
    assert await without.entries("errors") == []


async def test_the_backing_queue_keeps_two_steps_at_most() -> None:
    driver = await with_inputs(left=40, right=40)
    declared = topology("alts")
    steps = processor_steps(declared, step_max=2)
    effect = next(steps)
    while not isinstance(effect, Idle):
        if isinstance(effect, Ask):
            answer = await driver.ask(effect.request)
        else:
            answer = await driver.execute(declared, effect, function_of("alts"))
        effect = steps.send(answer)
        rows = [
            key async for found in driver.store.scan(b"\x01\x1d", b"\x01\x1e") for key, _ in found
        ]
        assert len(rows) <= 5  # snapshot, choice, attempt, snapshot, choice


# ---- which range -------------------------------------------------------------------------------


def tailers(*available: int) -> list[Tailer]:
    names = "abc"
    return [Tailer(names[i], names[i], i, 10, 0, 10 + n) for i, n in enumerate(available)]


def test_ranges_are_what_is_there_up_to_the_bound() -> None:
    assert spans(plan_ranges("pipe", tailers(5), 3, None)) == [(10, 13)]
    assert spans(plan_ranges("pipe", tailers(2), 3, None)) == [(10, 12)]
    assert spans(plan_ranges("join", tailers(5, 2), 3, None)) == [(10, 12), (10, 12)]
    assert spans(plan_ranges("join", tailers(5, 0), 3, None)) == [(10, 10), (10, 10)]


def test_ranges_are_bounded_by_what_entries_take() -> None:
    small, large = (
        msgspec.structs.replace(each, stored_bytes=size * each.next)
        for each, size in zip(tailers(5, 5), (1, 100), strict=True)
    )
    assert spans(plan_ranges("pipe", [small], 9, None, 250)) == [(10, 15)]
    assert spans(plan_ranges("pipe", [large], 9, None, 250)) == [(10, 12)]
    assert spans(plan_ranges("pipe", [large], 9, None, 7)) == [(10, 11)]
    assert spans(plan_ranges("pipe", [large], 1, None, 250)) == [(10, 11)]
    assert spans(plan_ranges("join", [small, large], 9, None, 250)) == [(10, 12), (10, 12)]
    assert spans(plan_ranges("alts", [small, large], 9, "a", 250)) == [(10, 10), (10, 12)]


def test_an_alts_takes_the_next_input_that_has_something_round_robin() -> None:
    for last, available, expected in (
        (None, (1, 1, 1), "a"),
        ("a", (1, 1, 1), "b"),
        ("c", (1, 1, 1), "a"),
        ("a", (1, 0, 1), "c"),
        ("a", (1, 0, 0), "a"),
        ("gone", (0, 1, 1), "b"),
    ):
        ranges = plan_ranges("alts", tailers(*available), 3, last)
        assert [each.alias for each in ranges if each.end > each.start] == [expected]
    assert {each.end for each in plan_ranges("alts", tailers(0, 0, 0), 3, None)} == {10}


async def test_round_robin_goes_on_after_a_restart() -> None:
    driver = await with_inputs(left=1, right=0)
    await driver.run(topology("alts"), function_of("alts"))
    await driver.write("left", b"l-4")
    await driver.write("right", b"r-4")
    driver.forget()
    found = await started(driver, topology("alts"))
    assert found.last_chosen == "left"
    await driver.run(topology("alts"), function_of("alts"))
    assert [data for _, data, _ in await driver.entries("out")] == [b"l-0!", b"r-4!", b"l-4!"]


# ---- positions of sources ----------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, "x", 1.5, True, ["a", 1], {"b": 1, "a": [None]}])
def test_a_position_comes_back_as_it_was(position: Any) -> None:
    assert decode_position(encode_position(position)) == position


def test_a_position_has_one_encoding() -> None:
    assert (
        encode_position({"b": 1, "a": 2}) == encode_position({"a": 2, "b": 1}) == b'{"a":2,"b":1}'
    )
    assert decode_position(None) is None


@pytest.mark.parametrize("position", [None, (1, 2), b"x", {1, 2}, object(), {1: 2}, "x" * 70_000])
def test_what_is_no_position_is_invalid(position: Any) -> None:
    with pytest.raises(InvalidError, match="position"):
        encode_position(position)
