"""Clients of queues: they publish, claim, settle, set up, pause, purge and redrive.

Contract     `draw_queues` draws a cast from the seed; half of the worlds have one (run.py). Every
             client checks each answer against the truth as it gets it (queuetold.py). Payloads are
             unique, so a message says where it comes from: `client.batch.index`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from penstock.broker.queues import Queues
from penstock.codec.queueoperation import PageKind
from penstock.errors import ConflictError, NotFoundError
from penstock.log.catalogue import LogName
from penstock.queue.backoff import Backoff
from penstock.queue.item import Item
from penstock.queue.state import queue_name
from penstock.sim import queuetold as told
from penstock.sim.client import Actor, Lost
from penstock.sim.queuemoves import Move
from penstock.sim.world import Blocked, World

FILTERS = (
    None,
    None,
    "false",
    "region = 'eu'",
    "region IN ('eu', 'us') AND amount > 100",
    "amount BETWEEN 1 AND 100 OR region IS NULL",
    "NOT region LIKE 'e%'",
    "_retention = 0 AND _visible_at <= _received_at",
)
PRIORITIES = (None, None, "CASE WHEN vip = 'yes' THEN 1 ELSE 5 END", "amount / 50")
BACKOFFS: tuple[Any, ...] = (None, 0, 0, 0.05, 1, Backoff(0.01, 3.0, 2.0, 1.0))
LEASES_MS = (30, 300, 2000, 20_000)
#: A claim commits, reads the key of receipts once, and what the messages hold.
CLAIM_CALLS = 3
#: What goes on part by part takes as long as it takes.
PARTS = 100
#: More than there are.
ALL = 10_000


async def everything(queues: Queues, target: LogName, kind: PageKind) -> list[Any]:
    """All pages of the done or failed ones."""
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        read = queues.done if kind is PageKind.DONE else queues.failed
        page = await read(target, after)
        found += page.messages
        after = page.next
    return found


#: A message in a commit besides its payload, with all its headers and in a hundred queues.
LARGEST_BYTES = 4000


class QueuePlan(msgspec.Struct):
    """One queue, and what may be done to it."""

    name: str
    options: dict[str, Any]
    start: str
    altered: bool
    purged: bool
    paused: bool
    mortal: bool


class QueueCast(msgspec.Struct):
    plans: list[QueuePlan]
    clients: list[Actor]


class QueueClient(Actor):
    def __init__(self, world: World, name: str, plan: QueuePlan) -> None:
        super().__init__(world, name)
        self.plan = plan
        self.target = queue_name(plan.name)
        self.truth = world.queues

    def judge(self, wrong: str | None) -> None:
        if wrong is not None:
            self.fail(f"{self.plan.name}: {wrong}")


class Publisher(Actor):
    """Publishes to everybody; what has dedup ids is repeated until the answer is known."""

    def __init__(self, world: World, name: str, plans: list[QueuePlan]) -> None:
        super().__init__(world, name)
        self._plans = plans
        self._batch = 0
        self._dedups: list[str] = []
        self._careful = self.random.random() < 0.5

    async def step(self) -> None:
        random = self.random
        self._batch += 1
        dedup = self._careful and random.random() < 0.7
        count = random.choice((1, 1, 2, 3, 8, 20))
        items = [self._item(i, dedup=dedup or random.random() < 0.1) for i in range(count)]
        limits = self.world.limits
        sizes = [len(item.payload) for item in items]
        # Surely one commit, whatever its headers are and however many queues there are.
        small = sum(sizes) + LARGEST_BYTES * count <= limits["PART_BYTES"]
        whole = small and max(sizes) <= limits["INLINE_BYTES"]
        self.world.queues.messages.send(items, whole=whole)
        repeats = random.choice((1, 1, 2)) if dedup else 1  # also when nothing went wrong
        with suppress(NotFoundError):  # addressed to a queue that is not there
            for _ in range(repeats):
                await self._publish(items, whole=whole, again=dedup)

    def _item(self, i: int, *, dedup: bool) -> Item:
        random = self.random
        payload = f"{self.name}.{self._batch}.{i}".encode()
        if random.random() < 0.15:
            payload += b"." + b"x" * random.choice((20, 60, 200))
        headers: dict[str, str] = {}
        if random.random() < 0.8:
            headers["region"] = random.choice(("eu", "us", "asia"))
        if random.random() < 0.6:
            headers["amount"] = random.choice(("5", "50", "150", "many"))
        if random.random() < 0.2:
            headers["vip"] = random.choice(("yes", "no"))
        if random.random() < 0.3:
            headers["priority"] = random.choice(("0", "1", "7", "200", "255", "256", "x"))
        dedup_id = None
        if dedup:
            dedup_id = f"{self.name}-{self._batch}-{i}"
            if self._dedups and random.random() < 0.1:
                dedup_id = random.choice(self._dedups)
            self._dedups.append(dedup_id)
        return Item(
            payload,
            headers=headers,
            to=random.choice(self._plans).name if random.random() < 0.12 else None,
            delay_ms=random.choice((0, 0, 0, 0, 0, 20, 20, 500, 5000, 15_000)),
            visible_at_ms=random.choice((None,) * 9 + (1_700_000_000_000,)),
            retention_s=random.choice((0, 0, 0, 0, 0, 1, 3, 20, 100_000)),
            dedup_id=dedup_id,
        )

    async def _publish(self, items: list[Item], *, whole: bool, again: bool) -> None:
        # A large batch has a commit for each part, and one for each object.
        calls = 1 if whole else 2 * len(items)
        what = f"publish {[item.payload[:24].decode() for item in items]}"
        while True:
            try:
                ids = await self.ask_queues(what, lambda queues: queues.publish(items), calls=calls)
            except Lost:
                if not again:
                    raise
                await asyncio.sleep(0.02 + self.random.random() * 0.2)
            else:
                wrong = told.published(self.world.queues, items, ids)
                if wrong is not None:
                    self.fail(wrong)
                return


class Consumer(QueueClient):
    """Claims; acknowledges, reports, gives back and extends: sooner, later, twice, or never."""

    def __init__(self, world: World, name: str, plan: QueuePlan) -> None:
        super().__init__(world, name, plan)
        self._held: list[str] = []
        self._old: list[str] = []
        self._patient = self.random.random() < 0.5

    async def step(self) -> None:
        random = self.random
        try:
            if random.random() < (0.6 if self._held else 0.1 if self._old else 0):
                await self._settle()
            else:
                await self._claim()
        except NotFoundError:
            await asyncio.sleep(0.05)  # nobody made it yet, or somebody deleted it

    async def _claim(self) -> None:
        random = self.random
        count = random.choice((1, 1, 2, 5, 20, ALL))
        wait_ms = random.choice((1, 300, 5000, None)) if self._patient else 0
        lease_ms = random.choice((None, *LEASES_MS))
        consumer = self.name if random.random() < 0.7 else None
        found = await self.ask_queues(
            f"claim {self.plan.name} {count} wait {wait_ms} lease {lease_ms}",
            lambda queues: queues.claim(
                self.target, count, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer
            ),
            calls=CLAIM_CALLS,
            block=None if wait_ms is None else wait_ms / 1000,
            blocked=None if wait_ms == 0 else Blocked(self.plan.name, claims=True),
        )
        if len(found) > count:
            self.fail(f"{len(found)} messages, {count} were asked for")
        if found:
            self.judge(told.claimed(self.truth, self.plan.name, self.n, found))
            self._held += [message.receipt for message in found]
        elif wait_ms == 0:
            self.judge(told.nothing(self.truth, self.plan.name, self.n, self.ended_ms))

    async def _settle(self) -> None:
        random = self.random
        some = random.sample(
            self._held, random.randrange(min(len(self._held), 1), len(self._held) + 1)
        )
        if self._old and (not some or random.random() < 0.3):
            some += random.sample(self._old, min(len(self._old), 2))
        if some and random.random() < 0.1:
            some.append(some[0])
        what = random.choice(("ack", "ack", "ack", "fail", "fail", "release", "extend", "forget"))
        if what != "extend":
            self._held = [receipt for receipt in self._held if receipt not in some]
            self._old = (self._old + some)[-20:]
        await self._do(what, some)

    async def _do(self, what: str, some: list[str]) -> None:
        random, target = self.random, self.target
        text = f"{what} {self.plan.name} {[told.read_receipt(each).lease for each in some]}"
        moves: tuple[Move, ...] = told.ACKED
        match what:
            case "ack":
                truths = await self.ask_queues(text, lambda queues: queues.ack(target, some))
            case "fail":
                moves, delay = told.FAILED, random.choice((None, None, 0, 50, 3000))
                truths = await self.ask_queues(
                    f"{text} delay {delay}",
                    lambda queues: queues.fail(target, some, delay_ms=delay, reason="so"),
                )
            case "release":
                moves = told.RELEASED
                truths = await self.ask_queues(text, lambda queues: queues.release(target, some))
            case "extend":
                moves, lease_ms = told.EXTENDED, random.choice(LEASES_MS)
                truths = await self.ask_queues(
                    f"{text} {lease_ms}",
                    lambda queues: queues.extend(target, some, lease_ms),
                )
            case _:
                return  # it comes again
        name, n, now_ms = self.plan.name, self.n, self.ended_ms
        self.judge(told.settled(self.truth, name, n, now_ms, moves, some, truths))


class QueueKeeper(QueueClient):
    """Makes its queue, and sees to it; some queues are altered, paused, purged, deleted."""

    async def step(self) -> None:
        random, plan = self.random, self.plan
        if self.truth.queue(plan.name) is None:
            if random.random() < 0.7:
                await self._create()
            return
        may = ["look", "look", "list", "redrive", "create", "play"]
        may += ["alter"] * plan.altered + ["pause"] * plan.paused
        may += ["purge"] * plan.purged + ["delete"] * plan.mortal
        with suppress(NotFoundError):
            await self._see_to(random.choice(may))

    async def _create(self) -> None:
        start, options = self.plan.start, self.plan.options
        with suppress(ConflictError):
            await self.insist_queues(
                f"create {self.plan.name} from {start} {options}",
                lambda queues: queues.create(self.target, start=start, **options),  # type: ignore[arg-type]
            )

    async def _see_to(self, what: str) -> None:
        name, target = self.plan.name, self.target
        text = f"{what} {name}"
        match what:
            case "create":
                await self._create()
            case "look":
                await self._look()
            case "list":
                await self._list()
            case "redrive":
                await self.ask_queues(text, lambda queues: queues.redrive(target), calls=PARTS)
            case "alter":
                await self._alter()
            case "pause":
                await self.ask_queues(text, lambda queues: queues.pause(target))
            case "play":
                await self.ask_queues(text, lambda queues: queues.play(target))
            case "purge":
                self.truth.purge_asked.add(name)
                await self.ask_queues(text, lambda queues: queues.purge(target), calls=PARTS)
            case "delete":
                self.truth.delete_asked.add(name)
                await self.ask_queues(text, lambda queues: queues.delete(target), calls=PARTS)

    async def _list(self) -> None:
        kind = self.random.choice((PageKind.AVAILABLE, PageKind.DONE, PageKind.FAILED))

        async def ids(queues: Queues) -> list[int]:
            if kind is PageKind.AVAILABLE:
                return [message.id for message in await queues.peek(self.target, ALL)]
            return [message.id for message in await everything(queues, self.target, kind)]

        found = await self.ask_queues(f"list {self.plan.name} {kind!r}", ids, calls=PARTS)
        name, n, now_ms = self.plan.name, self.n, self.ended_ms
        self.judge(told.listed(self.truth, name, n, now_ms, kind, found))

    async def _look(self) -> None:
        stats = await self.ask_queues(
            f"stats {self.plan.name}", lambda queues: queues.stats(self.target), calls=PARTS
        )
        here = stats.available + stats.delayed + stats.in_flight + stats.failed
        if stats.routed != here + stats.acked + stats.expired + stats.purged:
            self.fail(f"{self.plan.name}: {stats} do not add up")

    async def _alter(self) -> None:
        random = self.random
        options = random.choice(
            (
                {"max_attempts": random.choice((0, 1, 3))},
                {"filter": random.choice(FILTERS)},
                {"priority": random.choice(PRIORITIES)},
                {"lease_ms": random.choice(LEASES_MS), "backoff": random.choice(BACKOFFS)},
                {"done_retention_s": random.choice((0, 1, 604_800))},
            )
        )
        self.plan.options |= options
        await self.insist_queues(
            f"alter {self.plan.name} {options}",
            lambda queues: queues.alter(self.target, **options),
        )


class Policy(Actor):
    """Changes when payloads go, now and then."""

    async def step(self) -> None:
        policy = self.random.choice(("done", "done", "retention"))

        def ask(queues: Queues) -> Any:
            return queues.configure(reclaim=policy)  # type: ignore[arg-type]

        await self.ask_queues(f"configure {policy}", ask)
        await asyncio.sleep(self.random.random() * 5)


def draw_queues(world: World) -> QueueCast:
    random = world.random("queue cast")
    plans = [_draw_queue(world, i) for i in range(random.choice((1, 2, 3)))]
    clients: list[Actor] = []
    for i in range(random.choice((1, 2, 3))):
        clients.append(Publisher(world, f"p{i}", plans))
    for plan in plans:
        for i in range(random.choice((1, 2, 3))):
            clients.append(Consumer(world, f"{plan.name}c{i}", plan))
        clients.append(QueueKeeper(world, f"{plan.name}k", plan))
    if random.random() < 0.2:
        clients.append(Policy(world, "policy"))
    return QueueCast(plans, clients)


def _draw_queue(world: World, number: int) -> QueuePlan:
    random = world.random(f"queue {number}")
    options: dict[str, Any] = {
        "filter": random.choice(FILTERS),
        "priority": random.choice(PRIORITIES),
        "lease_ms": random.choice(LEASES_MS),
        "max_attempts": random.choice((0, 1, 2, 5)),
        "backoff": random.choice(BACKOFFS),
        "done_retention_s": random.choice((0, 1, 604_800)),
    }
    return QueuePlan(
        f"q{number}",
        options,
        start=random.choice(("first", "new")),
        altered=random.random() < 0.3,
        purged=random.random() < 0.25,
        paused=random.random() < 0.3,
        mortal=random.random() < 0.2,
    )
