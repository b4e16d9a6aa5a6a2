"""For all requests, however wrong: a reply or a clear error, and rows that hold together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.graph.outputs import pack
from penstock.graph.requests import (
    ChooseInput,
    CommitStep,
    DropProcessor,
    Input,
    Look,
    NarrowStep,
    NoteFailure,
    OpenGraph,
    Output,
    Range,
    RenameProcessor,
    Request,
    ResetProcessor,
    ShowGraphs,
    Start,
    Started,
    TakeSnapshot,
    Topology,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from unit.graph.driver import topology, with_inputs

KINDS = ("source", "pipe", "join", "alts", "fork", "sink")
SEMANTICS = ("exactly_once", "at_least_once", "at_most_once")

numbers = st.one_of(
    st.integers(0, 7), st.sampled_from([-1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**400])
)
#: Mostly the one that is there, so that a request gets past the guard.
ids = st.sampled_from([3, 3, 3, 3, 3, 4, 0, -1, 1 << 64])
epochs = st.sampled_from([1, 1, 1, 1, 1, 2, 2, 3, 0, -1, 1 << 64])
tails = st.sampled_from([0, 0, 0, 1, 1, 2, 3, -1, 1 << 64])
names = st.sampled_from(["left", "right", "out", "l", "r", "", "a/b", "\x00", "x" * 300])
ranges = st.one_of(
    st.lists(st.builds(Range, names, numbers, numbers), max_size=3),
    st.builds(lambda end: [Range("left", 0, end)], numbers),
    st.builds(lambda end: [Range("l", 0, end), Range("r", 0, end)], numbers),
    st.builds(lambda end: [Range("left", 0, end), Range("right", 0, 0)], st.integers(0, 2)),
)
hashes = st.sampled_from([b"", bytes(16), b"short"])
node = pack("out", [("", b"x", bytes(16))]).nodes[0]
nodes = st.lists(st.sampled_from([node, node[:-1], b"", b"\xff" * 40]), max_size=2)
outputs = st.builds(Output, names, nodes, st.lists(numbers, max_size=2))
topologies = st.one_of(
    st.builds(
        topology,
        st.sampled_from(KINDS),
        semantics=st.sampled_from(SEMANTICS),
        on_evicted=st.sampled_from(["stop", "skip"]),
    ),
    st.builds(
        Topology,
        names,
        names,
        st.sampled_from(KINDS),
        st.lists(st.builds(Input, names, names), max_size=3),
        st.lists(names, max_size=3),
        st.none() | names,
    ),
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(Start, topologies),
    st.builds(OpenGraph, st.sampled_from(["g", "h", ""]), st.lists(topologies, max_size=2)),
    st.builds(Look, ids, epochs),
    st.builds(TakeSnapshot, ids, epochs, tails, ranges),
    st.builds(ChooseInput, ids, epochs, tails, names, numbers),
    st.builds(NarrowStep, ids, epochs, tails, numbers),
    st.builds(
        CommitStep,
        ids,
        epochs,
        tails,
        ranges,
        hashes,
        st.lists(outputs, max_size=2),
        st.none() | outputs,
        numbers,
        st.none() | numbers,
        st.none() | st.binary(max_size=9),
        numbers,
    ),
    st.builds(NoteFailure, ids, epochs, st.text(max_size=9), st.none() | numbers),
    st.builds(ShowGraphs, st.none() | names),
    st.builds(DropProcessor, st.just("g"), st.sampled_from(["p", "q", ""])),
    st.builds(RenameProcessor, st.just("g"), st.sampled_from(["p", "q"]), names),
    st.builds(ResetProcessor, st.just("g"), st.sampled_from(["p", "q"]), st.just("keep")),
)


@given(st.sampled_from(KINDS), st.lists(requests, max_size=12))
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_request_is_answered_or_refused_and_the_rows_hold_together(
    kind: str, asked: list[Request]
) -> None:
    async def world() -> None:
        driver = await with_inputs(left=3, right=2)
        started = await driver.raw(Start(topology(kind)))
        assert isinstance(started, Started)
        assert started.processor == 3
        for request in asked:
            head = driver.store.head()
            try:
                reply = await driver.raw(request)
            except (InvalidError, NotFoundError, ConflictError):
                assert driver.store.head() == head
            else:
                assert decode_reply(encode_reply(reply)) == reply
        driver.forget()
        await driver.check()

    asyncio.run(world())


@given(requests)
def test_a_request_is_the_same_after_the_wire(request: Request) -> None:
    try:
        assert decode_request(encode_request(request)) == request
    except InvalidError:
        assert _is_huge(request)


def _is_huge(value: Any) -> bool:
    return "0" * 300 in repr(value) or str(1 << 64) in repr(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_invalid(data: bytes) -> None:
    with contextlib.suppress(InvalidError):
        decode_request(data)
