"""The loop of a consumer: leases, acknowledgements, and what becomes of messages at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import penstock
from penstock.broker.queueanswers import QueueMessage
from penstock.client.consume import LEFT, Holding, Manner, reason_of
from penstock.client.link import Link
from penstock.client.queue import ClaimedFields
from penstock.client.thread import LoopThread
from penstock.clock import Clock
from penstock.errors import NotFoundError, UnavailableError
from penstock.queue.lease import REASON_BYTES_MAX
from penstock.queue.state import queue_name

Q = queue_name("q")
LEASE_MS = 9000


class ManualClock:
    """Time stands still until a test lets it pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def entropy(self, size: int) -> bytes:
        return bytes(size)

    async def sleep(self, seconds: float) -> None:
        done = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, done))
        await done

    async def pass_(self, seconds: float) -> None:
        """Let time pass, and everybody whose time has come do what they do."""
        end = self.now + seconds
        while True:
            await settle()
            due = sorted(each for each in self._sleepers if each[0] <= end and not each[1].done())
            if not due:
                break
            self.now = due[0][0]
            self._sleepers.remove(due[0])
            due[0][1].set_result(None)
        self.now = end

    def jump(self, seconds: float) -> None:
        """As if the process had been stopped: nobody does anything."""
        self.now += seconds


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class FakeQueues:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.ready: list[QueueMessage] = []
        self.stale: set[str] = set()
        self.trouble: Exception | None = None
        self.hold_acks: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.gives_at_last = False  # finds something in the moment it is cancelled

    def publish(self, *numbers: int) -> None:
        at = 1_000_000
        self.ready += [
            QueueMessage(n, b"%d" % n, None, {}, 128, 1, at, at, at, at, at + LEASE_MS, f"r{n}")
            for n in numbers
        ]
        self.arrived.set()

    def said(self, verb: str) -> list[tuple[Any, ...]]:
        return [each[1:] for each in self.calls if each[0] == verb]

    async def claim(self, name: Any, count: int, **options: Any) -> list[QueueMessage]:
        self.calls.append(("claim", count, options["wait_ms"]))
        if options["wait_ms"] != 0:
            self.arrived.clear()
            try:
                while not self.ready:
                    await self.arrived.wait()
            except asyncio.CancelledError:
                if not self.gives_at_last:
                    raise
                cast(Any, asyncio.current_task()).uncancel()
                self.publish(99)
        found, self.ready = self.ready[:count], self.ready[count:]
        return found

    def _truths(self, verb: str, receipts: list[str], *rest: Any) -> list[bool]:
        self.calls.append((verb, list(receipts), *rest))
        if self.trouble is not None:
            raise self.trouble
        return [receipt not in self.stale for receipt in receipts]

    async def extend(self, name: Any, receipts: list[str], lease_ms: int) -> list[bool]:
        return self._truths("extend", receipts, lease_ms)

    async def ack(self, name: Any, receipts: list[str]) -> list[bool]:
        truths = self._truths("ack", receipts)
        if self.hold_acks is not None:
            await self.hold_acks.wait()
        return truths

    async def fail(self, name: Any, receipts: list[str], *, reason: str) -> list[bool]:
        return self._truths("fail", receipts, reason)

    async def release(self, name: Any, receipts: list[str]) -> list[bool]:
        return self._truths("release", receipts)


class FakeLink:
    def __init__(self, queues: FakeQueues) -> None:
        self._queues = queues

    async def run_queues(self, errand: Any, *, again: bool, block_ms: int | None = 0) -> Any:
        assert again, "a consumer goes on at the next broker"
        return await errand(self._queues, block_ms)


class FakeThread:
    def post(self, callback: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(callback)


class World:
    def __init__(self, **manner: Any) -> None:
        self.clock = ManualClock()
        self.queues = FakeQueues()
        wanted: dict[str, Any] = {
            "consumer": "w", "prefetch": 3, "lease_ms": None, "heartbeat": None, "idle_ms": None,
            **manner,
        }  # fmt: skip
        self.holding = Holding(
            Q,
            Manner(**wanted),
            cast(Link, FakeLink(self.queues)),
            cast(LoopThread, FakeThread()),
            cast(Clock, self.clock),
        )

    async def begin(self) -> str:
        while (found := self.holding.begin()) is None:
            assert await self.holding.refill()
        return found.receipt


async def test_everything_that_is_held_is_extended_at_a_third_of_its_lease() -> None:
    world = World()
    world.queues.publish(1, 2, 3)
    assert await world.begin() == "r1"
    await world.clock.pass_(2.9)
    assert world.queues.said("extend") == []
    await world.clock.pass_(0.1)
    assert world.queues.said("extend") == [(["r1", "r2", "r3"], LEASE_MS)]
    world.holding.finish("r1")
    world.holding.forget("r2")
    await world.clock.pass_(3)
    assert world.queues.said("extend")[1:] == [(["r3"], LEASE_MS)]
    await world.holding.close()


@pytest.mark.parametrize(("heartbeat", "beats"), [(1.0, 6), (0, 0)])
async def test_the_heartbeat_is_chosen_or_turned_off(heartbeat: float, beats: int) -> None:
    world = World(heartbeat=heartbeat)
    world.queues.publish(1)
    await world.begin()
    await world.clock.pass_(6)
    assert len(world.queues.said("extend")) == beats
    await world.holding.close()


async def test_a_lost_lease_is_neither_handed_out_nor_acknowledged_but_counted() -> None:
    world = World()
    world.queues.publish(1, 2, 3)
    assert await world.begin() == "r1"
    world.queues.stale = {"r1", "r2"}
    await world.clock.pass_(3)
    assert world.holding.lost == 2
    world.holding.finish("r1")
    assert await world.begin() == "r3"
    world.holding.finish("r3")
    await world.holding.close()
    assert world.queues.said("ack") == [(["r3"],)]
    assert world.queues.said("release") == []


async def test_a_message_that_is_settled_by_hand_has_no_heartbeat() -> None:
    world = World()
    world.queues.publish(1)
    assert await world.holding.refill()
    found = world.holding.begin()
    assert found is not None
    ClaimedFields(found, world.holding)._settle()
    world.queues.stale = {"r1"}
    await world.clock.pass_(3)
    assert world.holding.lost == 0
    await world.holding.close()


async def test_a_lease_that_may_have_ended_unseen_is_extended_first() -> None:
    world = World()
    world.queues.publish(1, 2, 3)
    assert await world.begin() == "r1"
    world.clock.jump(10)
    world.queues.stale = {"r2"}
    assert world.holding.begin() is None
    assert await world.begin() == "r3"
    assert world.queues.said("extend")[0] == (["r1", "r2", "r3"], LEASE_MS)
    assert world.holding.lost == 1
    await world.holding.close()


async def test_a_lease_that_may_have_ended_before_it_was_heard_of_is_extended_first() -> None:
    """The process was stopped while its claim waited, and the answer lay there."""
    world = World()
    waiting = asyncio.create_task(world.holding.refill())
    await settle()
    world.clock.jump(10)
    world.queues.stale = {"r1"}
    world.queues.publish(1, 2)
    assert await waiting
    assert await world.begin() == "r2"
    assert world.queues.said("extend") == [(["r1", "r2"], LEASE_MS)]
    assert world.holding.lost == 1
    await world.holding.close()


async def test_a_queue_that_is_gone_has_no_leases() -> None:
    world = World()
    world.queues.publish(1, 2)
    await world.begin()
    world.queues.trouble = NotFoundError("no such queue")
    await world.clock.pass_(3)
    assert world.holding.lost == 2
    assert world.holding.begin() is None
    await world.holding.close()


async def test_a_heartbeat_that_failed_comes_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.queues.publish(1)
    await world.begin()
    world.queues.trouble = UnavailableError("no broker")
    await world.clock.pass_(3)
    world.queues.trouble = None
    await world.clock.pass_(1)
    assert len(world.queues.said("extend")) == 2
    assert world.holding.lost == 0
    assert "leases were not extended: no broker" in caplog.text
    await world.holding.close()


async def test_acknowledgements_gather_while_others_are_on_their_way() -> None:
    world = World()
    world.queues.publish(1, 2, 3)
    world.queues.hold_acks = asyncio.Event()
    for _ in range(3):
        world.holding.finish(await world.begin())
        await settle()
    assert world.queues.said("ack") == [(["r1"],)]
    world.queues.hold_acks.set()
    await settle()
    assert world.queues.said("ack") == [(["r1"],), (["r2", "r3"],)]
    await world.holding.close()


async def test_acknowledgements_are_sent_before_a_claim_waits() -> None:
    world = World()
    world.queues.publish(1)
    world.holding.finish(await world.begin())
    world.queues.hold_acks = asyncio.Event()
    waiting = asyncio.create_task(world.begin())
    await settle()
    assert world.queues.said("ack") == [(["r1"],)]
    assert world.queues.said("claim") == [(3, 0), (3, 0)]
    world.queues.hold_acks.set()
    await settle()
    assert world.queues.said("claim") == [(3, 0), (3, 0), (3, None)]
    world.queues.publish(2)
    assert await waiting == "r2"
    await world.holding.close()


async def test_a_close_sends_what_is_finished_and_releases_what_was_not_begun() -> None:
    world = World()
    world.queues.publish(1, 2, 3)
    world.holding.finish(await world.begin())
    await world.holding.close()
    assert world.queues.said("ack") == [(["r1"],)]
    assert world.queues.said("release") == [(["r2", "r3"],)]
    assert world.holding.begin() is None
    assert await world.holding.refill() is False
    before = len(world.queues.calls)
    await world.clock.pass_(100)
    assert len(world.queues.calls) == before, "no heart beats"


async def test_an_idle_loop_ends() -> None:
    world = World(idle_ms=5)

    async def nothing(name: Any, count: int, **options: Any) -> list[QueueMessage]:
        return []

    world.queues.claim = nothing  # type: ignore[method-assign]
    assert await world.holding.refill() is False


async def test_a_stop_ends_a_claim_that_waits() -> None:
    world = World()
    waiting = asyncio.create_task(world.holding.refill())
    await settle()
    world.holding.stop()
    assert await waiting is False


async def test_a_stop_between_two_claims_ends_the_loop_too() -> None:
    world = World()
    world.queues.publish(1)
    world.holding.finish(await world.begin())
    world.queues.hold_acks = asyncio.Event()
    waiting = asyncio.create_task(world.holding.refill())
    await settle()  # it has claimed without waiting, and waits for the acknowledgement
    world.holding.stop()
    await settle()
    world.queues.hold_acks.set()
    assert await waiting is False


async def test_after_a_stop_the_last_message_is_kept_until_it_is_finished() -> None:
    world = World()
    world.queues.publish(1, 2)
    assert await world.begin() == "r1"
    world.holding.stop()
    await world.clock.pass_(3)
    assert "r1" in world.queues.said("extend")[0][0]
    world.holding.finish("r1")
    assert await world.holding.refill() is False
    assert world.queues.said("release") == [(["r2"],)]
    assert world.queues.said("ack") == [(["r1"],)]
    await world.holding.close()


async def test_what_was_claimed_for_a_caller_who_gave_up_is_released() -> None:
    world = World()
    world.queues.gives_at_last = True
    waiting = asyncio.create_task(world.holding.refill())
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await world.holding.close()
    assert world.queues.said("release") == [(["r99"],)]


async def test_a_caller_who_gave_up_leaves_no_claim_waiting() -> None:
    world = World()
    waiting = asyncio.create_task(world.holding.refill())
    await settle()
    waiting.cancel()
    await settle()
    world.queues.publish(1)
    await settle()
    assert world.holding.begin() is None
    assert await world.begin() == "r1", "asked for again, it is there"
    await world.holding.close()


async def test_a_location_that_is_closed_ends_a_claim_that_waits() -> None:
    world = World()
    waiting = asyncio.create_task(world.holding.refill())
    await settle()
    claiming = world.holding._claiming
    assert claiming is not None
    claiming.cancel()  # as the line does when it closes
    with pytest.raises(penstock.InvalidError, match="closed"):
        await waiting


async def test_a_reason_is_cut_to_what_can_be_stored() -> None:
    world = World()
    world.queues.publish(1, 2)
    receipt = await world.begin()
    await world.holding.settle(receipt, "fail", "ü\udcff" * REASON_BYTES_MAX)
    ((_, reason),) = world.queues.said("fail")
    assert len(reason.encode()) <= REASON_BYTES_MAX
    assert reason.startswith("ü\\udcff")
    await world.holding.settle(receipt, "fail", "twice")
    assert len(world.queues.said("fail")) == 1
    await world.holding.close()


def test_a_reason_names_the_exception() -> None:
    assert reason_of(ValueError("boom")) == "ValueError: boom"
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(OSError("no file caf\udce9")) == "OSError: no file caf\\udce9"


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("of all things")


def test_an_exception_without_a_text_is_told_all_the_same() -> None:
    assert reason_of(MuteError()) == "MuteError: its text cannot be had (RuntimeError)"


# With a broker: inside this process, and over the socket of another one.


@pytest.fixture(params=["inside", "socket"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with penstock.open(tmp_path) as inside:
        if request.param == "inside":
            yield inside
            return
        with penstock.open(tmp_path) as database:
            assert database._session.link.broker is None
            yield database


def counts(queue: penstock.Queue) -> tuple[int, int, int]:
    stats = queue.stats()
    return stats.available + stats.delayed, stats.in_flight, stats.done


def test_a_message_is_acknowledged_when_the_next_one_is_asked_for(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    numbers = db.publish_many([b"%d" % n for n in range(25)])
    seen = [message.id for message in queue.consume(prefetch=10, idle=0.01)]
    assert seen == numbers
    assert counts(queue) == (0, 0, 25)


def test_a_loop_that_is_left_has_failed_at_its_last_message(db: penstock.Database) -> None:
    queue = db.create_queue("q", backoff=0)
    db.publish_many([b"%d" % n for n in range(9)])
    for n, _ in enumerate(queue.consume(consumer="w1", prefetch=5), 1):
        if n == 3:
            break
    assert counts(queue) == (7, 0, 2)
    (attempt,) = queue.attempts(3)
    assert (attempt.consumer, attempt.reason) == ("w1", LEFT)

    def work() -> None:
        for _ in queue.consume(prefetch=5):
            raise ValueError("unseen")

    with pytest.raises(ValueError, match="unseen"):
        work()
    assert counts(queue) == (7, 0, 2)


def test_a_message_that_was_settled_by_hand_is_left_alone(db: penstock.Database) -> None:
    queue = db.create_queue("q", backoff=0)
    db.publish_many([b"0", b"1", b"2"])
    with queue.consume(idle=0.01, prefetch=10) as messages:
        for message in messages:
            if message.payload == b"0":
                message.ack()
            elif message.payload == b"1" and message.attempts == 1:
                queue.fail([message], reason="by hand")
            elif message.payload == b"2":
                message.ack()
                break
    assert messages.lost == 0
    assert [each.reason for each in queue.attempts(2)] == ["by hand"]
    assert counts(queue) == (1, 0, 2)


def test_with_tells_an_exception_from_an_end(db: penstock.Database) -> None:
    queue = db.create_queue("q", backoff=0)
    db.publish_many([b"%d" % n for n in range(4)])
    with queue.consume(prefetch=10) as messages:
        for _ in messages:
            break
    assert counts(queue) == (3, 0, 1)

    def work(error: BaseException) -> None:
        with queue.consume(prefetch=10) as messages:
            for _ in messages:
                raise error

    with pytest.raises(ValueError, match="boom"):
        work(ValueError("boom"))
    assert [each.reason for each in queue.attempts(2)] == ["ValueError: boom"]
    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt())
    assert counts(queue) == (3, 0, 1)
    assert sum(len(queue.attempts(n)) for n in (1, 2, 3, 4)) == 1, "an interruption counts nothing"


def test_a_handler_acknowledges_by_returning_and_fails_by_raising(db: penstock.Database) -> None:
    queue = db.create_queue("q", max_attempts=2, backoff=0)
    db.publish_many([b"good", b"bad"])

    def handle(message: penstock.ClaimedMessage) -> None:
        if message.payload == b"bad":
            raise RuntimeError(f"attempt {message.attempts}")

    queue.consume(handle, idle=0.05, consumer="h")
    assert counts(queue) == (0, 0, 1)
    (failed,) = queue.failed()
    assert [each.reason for each in failed.history] == [
        "RuntimeError: attempt 1",
        "RuntimeError: attempt 2",
    ]


def test_a_message_that_was_lost_is_counted(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    db.publish(b"x")
    with queue.consume(idle=0.01) as messages:
        for _ in messages:
            queue.purge()
    assert messages.lost == 1
    assert counts(queue) == (0, 0, 0)


def test_another_thread_ends_a_loop_that_waits(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    db.publish(b"x")
    messages = queue.consume()
    begun = threading.Event()

    def work() -> int:
        count = 0
        for _ in messages:
            count += 1
            begun.set()
        return count

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert begun.wait(60)
        messages.stop()
        assert working.result(60) == 1
    assert counts(queue) == (0, 0, 1)
    assert list(messages) == []


def test_leases_last_as_long_as_the_work(db: penstock.Database) -> None:
    queue = db.create_queue("q", lease=1.5)
    db.publish_many([b"worked on", b"claimed ahead"])
    for _ in queue.consume(idle=0.01):
        assert queue.claim(5, wait=2) == [], "nobody else gets them"
    assert counts(queue) == (0, 0, 2)


def test_a_close_of_the_location_gives_back_what_was_claimed_ahead(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as other:
        db = penstock.open(tmp_path)
        queue = db.create_queue("q")
        db.publish_many([b"0", b"1", b"2"])
        messages = queue.consume()
        next(messages)
        db.close()
        assert other.queue("q").stats().available == 2
        with pytest.raises(penstock.InvalidError, match="closed"):
            next(messages)
        del messages


async def test_the_asynchronous_loop_does_the_same(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path) as db:
        queue = await db.create_queue("q", backoff=0, max_attempts=1)
        await db.publish_many([b"%d" % n for n in range(6)])
        async with queue.consume(prefetch=4) as messages:
            async for message in messages:
                if message.id == 2:
                    break
        assert (await queue.stats()).done == 2

        async def work() -> None:
            async with queue.consume(prefetch=4) as messages:
                async for _ in messages:
                    raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            await work()
        (failed,) = [each async for each in queue.failed()]
        assert failed.history[0].reason == "ValueError: boom"

        async def handle(message: penstock.aio.AsyncClaimedMessage) -> None:
            if message.id == 6:
                raise RuntimeError("no")

        await queue.consume(handle, idle=0.01)
        stats = await queue.stats()
        assert (stats.available, stats.in_flight, stats.done, stats.failed) == (0, 0, 4, 2)
        waiting = asyncio.create_task(anext(queue.consume()))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await db.publish(b"late")
        (message,) = await queue.claim(wait=5)
        assert message.attempts == 1, "nobody else got it"


async def test_an_asynchronous_loop_that_is_dropped_gives_back_soon(tmp_path: Path) -> None:
    async with await penstock.aio.open(tmp_path) as db:
        queue = await db.create_queue("q", backoff=0)
        await db.publish_many([b"0", b"1", b"2"])
        async for _ in queue.consume():
            break
        found: list[Any] = []
        while len(found) < 3:
            found += await queue.claim(3, wait=60)
        assert sorted(message.attempts for message in found) == [1, 1, 2]
