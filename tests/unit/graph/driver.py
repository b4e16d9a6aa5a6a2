"""A driver of graphs for tests: the memory store, the broker's door, functions that run in the
test, and a death at any point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from penstock.broker.commit import Committer
from penstock.broker.graphs import GraphRequests
from penstock.graph.check import check_graphs
from penstock.graph.hashes import message_hash, source_hash
from penstock.graph.machine import Ask, Idle, Outcome, Run, processor_steps
from penstock.graph.message import Message
from penstock.graph.outputs import decode_position, encode_position, pack
from penstock.graph.requests import Fenced, Input, Output, Range, Reply, Request, Topology
from penstock.log.batch import build_bodies
from penstock.log.check import check_log
from penstock.log.staging import begin_step, stage_step
from penstock.store.memory import MemoryDisk, MemoryStore
from unit.log.driver import LogDriver, StillClock, TickView, stream

#: tag, data, hash
Entry = tuple[str, bytes, bytes | None]


class Died(BaseException):
    """The runner's process, and the broker's: nothing is left but rows."""


class OvertakenError(Exception):
    pass


class Door:
    """What of a Committer the requests use, over a LogDriver."""

    def __init__(self, driver: LogDriver) -> None:
        self._driver = driver

    async def submit(self, *steps: Any) -> list[Any]:
        return await self._driver.submit(*steps)

    async def read(self, query: Callable[[Any], Any]) -> Any:
        return await query(TickView(self._driver))

    def now_ms(self) -> int:
        return self._driver.clock.ms

    @property
    def applied_n(self) -> int:
        return self._driver.store.head().n


class GraphDriver(LogDriver):
    def __init__(self, disk: MemoryDisk, clock: StillClock, store: MemoryStore) -> None:
        super().__init__(disk, clock, store)
        self.door = GraphRequests(cast(Committer, Door(self)))
        self.points = 0  # where it may die
        self.dies_at = 0
        self.effects: list[tuple[str, bytes]] = []  # of sinks: hash and data, for ever
        self.runs: list[Run] = []
        #: Called before a function runs.
        self.before_run: Callable[[Run], Any] | None = None

    @classmethod
    async def on(cls, disk: MemoryDisk) -> GraphDriver:
        clock = StillClock()
        return cls(disk, clock, await MemoryStore.open(disk, clock=clock))

    @classmethod
    async def fresh(cls) -> GraphDriver:
        return await cls.on(MemoryDisk())

    def point(self) -> None:
        self.points += 1
        if self.points == self.dies_at:
            raise Died

    async def ask(self, request: Request) -> Any:
        """Dies before it, nothing being done, or after it, without the answer."""
        self.point()
        reply = await self.door.ask(request)
        self.point()
        if isinstance(reply, Fenced):
            raise OvertakenError(reply.text)
        return reply

    async def raw(self, request: Request) -> Reply:
        return await self.door.ask(request)

    async def write(self, name: str, *data: bytes) -> None:
        await self.append(stream(name), [("", each) for each in data])

    async def entries(self, name: str) -> list[Entry]:
        if await self.state(stream(name)) is None:
            return []
        state = await self.state(stream(name))
        assert state is not None
        found = await self.read(stream(name), state.first, state.next - state.first)
        return [(each.tag, each.data, each.meta) for each in found if each is not None]

    async def check(self) -> None:
        assert await check_log(self.store) == []
        assert await check_graphs(self.store) == []

    # -- a runner

    async def run(
        self,
        topology: Topology,
        function: Callable[..., Any],
        *,
        step_max: int = 2,
        staged: bool = False,
    ) -> None:
        """Until it is idle."""
        steps = processor_steps(topology, step_max=step_max)
        effect = next(steps)
        while True:
            match effect:
                case Ask(request):
                    answer = await self.ask(request)
                case Run():
                    if self.before_run is not None:
                        await self.before_run(effect)
                    self.point()
                    answer = await self.execute(topology, effect, function, staged=staged)
                    self.point()
                case Idle():
                    return
            effect = steps.send(answer)

    async def execute(
        self, topology: Topology, run: Run, function: Callable[..., Any], *, staged: bool = False
    ) -> Outcome:
        """The function, message by message, the plain way."""
        self.runs.append(run)
        if topology.kind == "source":
            return await self._feed(topology, run, function, staged=staged)
        outputs: dict[str, list[Entry]] = {}
        errors: list[Entry] = []
        nil = 0
        for inputs, messages in await self._messages(topology, run.ranges):
            digest = message_hash(run.processor_id, inputs)
            try:
                given = function(**messages, delivery_hash=digest.hex())
            except ValueError as error:
                if topology.errors is None:
                    nil += 1
                else:
                    errors.append((topology.processor, str(error).encode(), digest))
                continue
            if topology.kind == "sink":
                self.effects.append((digest.hex(), given))
                nil += 1
                continue
            made = _entries(topology, given, partial(message_hash, run.processor_id, inputs))
            nil += not made
            for name, entries in made.items():
                outputs.setdefault(name, []).extend(entries)
        return await self._outcome(topology, outputs, errors, nil, staged=staged)

    async def _messages(
        self, topology: Topology, ranges: Sequence[Range]
    ) -> list[tuple[list[tuple[int, int]], dict[str, Message]]]:
        streams = {each.alias: each.stream for each in topology.inputs}
        columns: list[list[tuple[str, int, Message]]] = []
        for each in ranges:
            state = await self.state(stream(streams[each.alias]))
            assert state is not None
            found = await self.read(stream(streams[each.alias]), each.start, each.end - each.start)
            columns.append(
                [
                    (each.alias, state.log_id, _message(streams[each.alias], entry))
                    for entry in found
                    if entry is not None
                ]
            )
        if topology.kind == "join":
            rows = list(zip(*columns, strict=True))
        else:
            rows = [(cell,) for column in columns for cell in column]
        return [
            (
                [(log_id, message.offset) for _, log_id, message in row],
                {
                    alias if topology.kind == "join" else "message": message
                    for alias, _, message in row
                },
            )
            for row in rows
        ]

    async def _feed(
        self, topology: Topology, run: Run, function: Callable[..., Any], *, staged: bool
    ) -> Outcome:
        outputs: dict[str, list[Entry]] = {}
        position = None
        for given, at in function(decode_position(run.position)):
            position = encode_position(at)
            made = _entries(topology, given, partial(source_hash, run.processor_id, position))
            for name, entries in made.items():
                outputs.setdefault(name, []).extend(entries)
            if sum(map(len, outputs.values())) >= 2:
                break
        outcome = await self._outcome(topology, outputs, [], 0, staged=staged)
        return msgspec.structs.replace(outcome, position=position, exhausted=position is None)

    async def _outcome(
        self,
        topology: Topology,
        outputs: dict[str, list[Entry]],
        errors: list[Entry],
        nil: int,
        *,
        staged: bool,
    ) -> Outcome:
        if not staged:
            failed = pack(topology.errors, errors) if topology.errors and errors else None
            packed = [pack(name, entries) for name, entries in outputs.items()]
            return Outcome(packed, failed, nil)
        parts = [*outputs.items()]
        if topology.errors and errors:
            parts.append((topology.errors, errors))
        if not parts:
            return Outcome(nil=nil)
        self.point()
        staging = await self.do(begin_step())
        for writer, (_, entries) in enumerate(parts):
            self.point()
            await self.do(stage_step(staging, writer, 0, build_bodies(entries)))
        written = [Output(name, writers=[writer]) for writer, (name, _) in enumerate(parts)]
        failed = written.pop() if errors and topology.errors else None
        return Outcome(written, failed, nil, staging)


def _message(name: str, entry: Any) -> Message:
    return Message(entry.data, entry.tag, name, entry.offset, entry.time_ms, entry.meta)


def _entries(
    topology: Topology, given: Any, hashed: Callable[[int | None], bytes]
) -> dict[str, list[Entry]]:
    if given is None:
        return {}
    by_stream = given if topology.kind == "fork" else {topology.outputs[0]: given}
    made: dict[str, list[Entry]] = {}
    for name, output in by_stream.items():
        if isinstance(output, list):
            made[name] = [("", each, hashed(k)) for k, each in enumerate(output)]
        else:
            made[name] = [("", output, hashed(None))]
    return {name: entries for name, entries in made.items() if entries}


def copied(disk: MemoryDisk) -> MemoryDisk:
    """Another disk with the same rows: they are shared and never modified."""
    other = MemoryDisk()
    other.rows, other.head, other.epoch = disk.rows, disk.head, disk.epoch
    return other


# ---- processors to test with -------------------------------------------------------------------


def topology(kind: str, **options: Any) -> Topology:
    inputs = {
        "source": [],
        "join": [Input("l", "left"), Input("r", "right")],
        "alts": [Input("left", "left"), Input("right", "right")],
    }.get(kind, [Input("left", "left")])
    outputs = {"sink": [], "fork": ["out", "side"]}.get(kind, ["out"])
    fields = {"errors": "errors"} | options
    return Topology("g", "p", cast(Any, kind), inputs, outputs, **fields)


def function_of(kind: str) -> Callable[..., Any]:
    """Of each message something else: an output, a list of them, nothing, an error."""

    def work(data: bytes) -> Any:
        n = int(data.rsplit(b"-", 1)[1])
        match n % 5:
            case 1:
                return [b"%s.%d" % (data, k) for k in range(2)]
            case 2:
                raise ValueError(f"no {n}")
            case 3:
                return None
            case _:
                return b"%s!" % data

    def join(l: Message, r: Message, delivery_hash: str) -> Any:  # noqa: E741
        work(l.data)  # may refuse
        return l.data + b"|" + r.data

    def fork(message: Message, delivery_hash: str) -> Any:
        given = work(message.data)
        return None if given is None else {"out": given, "side": [message.data, b"x"]}

    def sink(message: Message, delivery_hash: str) -> Any:
        return message.data

    def one(message: Message, delivery_hash: str) -> Any:
        return work(message.data)

    def source(position: int | None) -> Any:
        for n in range(0 if position is None else position + 1, 5):
            yield ([b"a-%d" % n, b"b-%d" % n] if n == 2 else b"s-%d" % n), n

    kinds = {"join": join, "fork": fork, "sink": sink, "source": source}
    return cast(Callable[..., Any], kinds.get(kind, one))


async def with_inputs(left: int = 5, right: int = 4) -> GraphDriver:
    driver = await GraphDriver.fresh()
    await driver.write("left", *(b"l-%d" % n for n in range(left)))
    await driver.write("right", *(b"r-%d" % n for n in range(right)))
    return driver
