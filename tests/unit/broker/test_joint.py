"""Small writes that share a tick: one row, each with the offsets it would have got alone."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker import commit
from penstock.broker.joint import PART_BYTES
from penstock.codec.keys import nodes_prefix
from penstock.codec.node import Body, decode_node, node_value
from penstock.errors import UnavailableError
from penstock.log.batch import build_bodies
from penstock.log.catalogue import stream_name
from penstock.log.joint import JOIN_BYTES, JOIN_ENTRIES, Lone, join_parts, may_join
from penstock.log.read import messages
from penstock.store.memory import Fault, Lose, Stall
from unit.broker.driver import BrokerWorld
from unit.broker.test_upkeep import rows_of

S, T = stream_name("s"), stream_name("t")


def decoded(body: Body) -> list[tuple[str, bytes, bytes | None]]:
    node = decode_node(node_value(body, 0, 5), "joined")
    found = messages(node, 0, node.count)
    return [(m.tag, m.data, m.meta) for m in found if m is not None]


def test_joined_bodies_hold_the_same_entries_in_the_same_order() -> None:
    lists = [
        [b"plain"],
        [("tag", b"tagged"), ("", b"")],
        [("t", b"with meta", b"m"), ("", b"without", None)],
        [b"x" * 9, b"y"],
    ]
    bodies = [body for entries in lists for body in build_bodies(entries)]
    alone = [entry for body in bodies for entry in decoded(body)]
    assert decoded(join_parts(bodies)) == alone
    lone: list[Body | Lone] = [(b"t", b"1"), *bodies, (b"", b"2")]
    assert decoded(join_parts(lone)) == [("t", b"1", None), *alone, ("", b"2", None)]
    assert decoded(join_parts(lone[:1])) == [("t", b"1", None)]
    assert join_parts(bodies[:1]) is bodies[0]


def test_large_and_compressed_bodies_stay_alone() -> None:
    assert may_join(build_bodies([b"x"] * JOIN_ENTRIES))
    assert not may_join(build_bodies([b"x"] * (JOIN_ENTRIES + 1)))
    assert not may_join(build_bodies([b"x" * JOIN_BYTES]))
    assert not may_join(build_bodies([b"a" * 100] * 1000))
    assert not may_join([])
    assert not may_join([*build_bodies([b"x"]), *build_bodies([b"y"])])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> BrokerWorld:
    return BrokerWorld(monkeypatch)


def hang_next_commit(world: BrokerWorld, *effects: object) -> Stall:
    """A write of another stream hangs in its commit; what follows waits for the next tick."""
    stall = Stall()
    world.faults.next("commit", Fault(before=[stall, *effects]))  # type: ignore[list-item]
    return stall


async def test_writes_that_wait_together_make_one_row(world: BrokerWorld) -> None:
    broker = await world.open()
    stall = hang_next_commit(world)
    first = asyncio.create_task(broker.streams.write(T, build_bodies([b"first"])))
    await stall.reached.wait()
    writes = [
        asyncio.create_task(broker.streams.write(S, build_bodies([b"%d" % n] * (n % 3 + 1))))
        for n in range(40)
    ]
    await world.settle()
    stall.release()
    await first
    offsets = [await write for write in writes]
    at = 0
    for n, found in enumerate(offsets):
        assert found == range(at, at + n % 3 + 1)
        at = found.stop
    read = (await broker.streams.read(S, 0, 1000)).messages
    assert [m and m.data for m in read] == [b"%d" % n for n in range(40) for _ in range(n % 3 + 1)]
    assert await rows_of(broker, nodes_prefix(2)) == 1
    await broker.close()


async def test_a_write_that_is_given_up_does_not_take_the_others_along(world: BrokerWorld) -> None:
    broker = await world.open()
    stall = hang_next_commit(world)
    first = asyncio.create_task(broker.streams.write(T, build_bodies([b"first"])))
    await stall.reached.wait()
    writes = [
        asyncio.create_task(broker.streams.write(S, build_bodies([b"%d" % n]))) for n in range(3)
    ]
    await world.settle()
    writes[0].cancel()
    stall.release()
    assert await writes[2] == range(2, 3), "it was in the joint, so it is written"
    await first
    await broker.close()


async def test_all_of_a_joint_hear_that_the_outcome_is_unknown(world: BrokerWorld) -> None:
    broker = await world.open()
    await broker.streams.write(S, build_bodies([b"0"]))
    stall = hang_next_commit(world, Lose())
    writes = [
        asyncio.create_task(broker.streams.write(S, build_bodies([b"%d" % n]))) for n in range(3)
    ]
    await stall.reached.wait()
    stall.release()
    for write in writes:
        with pytest.raises(UnavailableError):
            await write
    await world.settle()
    assert await broker.streams.write(S, build_bodies([b"again"])) == range(1, 2)
    await broker.close()


async def test_other_requests_keep_their_place_among_joined_writes(world: BrokerWorld) -> None:
    broker = await world.open()
    stall = hang_next_commit(world)
    first = asyncio.create_task(broker.streams.write(T, build_bodies([b"first"])))
    await stall.reached.wait()
    one = asyncio.create_task(broker.streams.write(S, build_bodies([b"one"])))
    keyed = asyncio.create_task(
        broker.streams.write(S, build_bodies([b"keyed"]), producer=b"p", sequence=1)
    )
    await world.settle()
    two = asyncio.create_task(broker.streams.write(S, build_bodies([b"two"])))
    large = asyncio.create_task(broker.streams.write(S, build_bodies([b"x" * JOIN_BYTES])))
    await world.settle()
    three = asyncio.create_task(broker.streams.write(S, build_bodies([b"three"])))
    await world.settle()
    stall.release()
    await first
    offsets = [(await task).start for task in (one, keyed, two, large, three)]
    assert offsets == [0, 1, 2, 3, 4]
    await broker.close()


async def test_small_writes_to_very_many_streams_wait_as_what_they_are(world: BrokerWorld) -> None:
    """The thousandth was turned away: each stream counted for a quarter of a megabyte."""
    broker = await world.open()
    stall = hang_next_commit(world)
    first = asyncio.create_task(broker.streams.write(T, build_bodies([b"first"])))
    await stall.reached.wait()
    waiting = [broker.streams.post(stream_name(f"s{i}"), b"", b"x") for i in range(2000)]
    stall.release()
    assert await asyncio.gather(*waiting) == [[range(1)]] * 2000
    await first
    await broker.close()


async def test_what_joins_others_counts_for_what_waits(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await world.open()
    stall = hang_next_commit(world)
    first = asyncio.create_task(broker.streams.write(T, build_bodies([b"first"])))
    await stall.reached.wait()
    monkeypatch.setattr(commit, "WAITING_BYTES_MAX", 10 * (PART_BYTES + 1000))
    waiting = [broker.streams.post(S, b"", b"x" * 1000) for _ in range(10)]
    for name in (S, T):
        with pytest.raises(UnavailableError, match="1 requests"):
            broker.streams.post(name, b"", b"x")
    stall.release()
    assert await asyncio.gather(*waiting) == [[range(i, i + 1)] for i in range(10)]
    await first
    assert await broker.streams.post(S, b"", b"x") == [range(10, 11)], "there is room again"
    assert not broker.committer._waiting_bytes
    await broker.close()


async def test_what_joins_others_while_these_are_looked_up_waits_for_no_tick(
    world: BrokerWorld,
) -> None:
    """Counted as if it did, it would be so for good, and in the end all is turned away."""
    broker = await world.open()
    stall = Stall()
    world.faults.next("get", Fault(before=[stall]))
    first = broker.streams.post(S, b"", b"1")
    await stall.reached.wait()
    second = broker.streams.post(S, b"", b"2")
    stall.release()
    assert [await first, await second] == [[range(1)], [range(1, 2)]]
    assert not broker.committer._waiting_bytes
    await broker.close()


async def test_as_many_requests_wait_as_may_and_others_join_these(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await world.open()
    stall = hang_next_commit(world)
    first = asyncio.create_task(broker.streams.write(T, build_bodies([b"first"])))
    await stall.reached.wait()
    monkeypatch.setattr(commit, "WAITING_MAX", 3)
    waiting = [broker.streams.post(stream_name(f"s{i}"), b"", b"x") for i in range(3)]
    with pytest.raises(UnavailableError, match="3 requests"):
        broker.streams.post(S, b"", b"x")
    waiting.append(broker.streams.post(stream_name("s0"), b"", b"y"))
    stall.release()
    assert await asyncio.gather(*waiting) == [*[[range(1)]] * 3, [range(1, 2)]]
    await first
    await broker.close()
