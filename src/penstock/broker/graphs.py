"""Graph requests: what runners, and those who look after graphs, ask of a broker.

Contract     `ask(request)` -> the reply that the request names; all of it runs on the broker's
             loop. A runner that was overtaken is answered with `Fenced`, which is no error here:
             FencedError is for brokers. `Look` waits until its processor has something to do, its
             time is over, or its runner was overtaken.
Not here     What a request decides (graph/), wire formats (server/).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, assert_never

from penstock.broker.commit import Committer, Shown
from penstock.broker.waiters import Waiters
from penstock.clock import give_way
from penstock.codec.keys import Kind
from penstock.codec.processor import OnEvicted, ProcessorKind
from penstock.errors import NotFoundError, PenstockError
from penstock.graph.admin import check_graph, drop_step, rename_step, reset_step, show_processor
from penstock.graph.commit import commit_step
from penstock.graph.guard import overtaken
from penstock.graph.inputs import evicted, require_streams
from penstock.graph.notes import failure_step, skip_step
from penstock.graph.requests import (
    ChooseInput,
    CommitStep,
    DropProcessor,
    Fenced,
    Graphs,
    GraphStatus,
    Look,
    Looked,
    NarrowStep,
    NoteFailure,
    OpenGraph,
    ProcessorStatus,
    RenameProcessor,
    Reply,
    Request,
    ResetProcessor,
    ShowGraphs,
    Start,
    Started,
    Tailer,
    TakeSnapshot,
)
from penstock.graph.rules import checked_name
from penstock.graph.snapshot import choose_step, narrow_step, snapshot_step
from penstock.graph.start import start_step
from penstock.graph.state import (
    ProcessorState,
    load_processor,
    processor_state_key,
    show_tailers,
)
from penstock.log.catalogue import list_names
from penstock.log.decision import StateKey, Step
from penstock.log.state import state_key

#: A look waits so long at most.
LOOK_MS_MAX = 3_600_000
#: While a runner waits, how often its broker makes sure that it is the broker still.
VERIFY_SECONDS = 0.5


class GraphRequests:
    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiters = Waiters()
        #: When the runner of a processor last asked something.
        self._seen: dict[StateKey, int] = {}

    async def ask(self, request: Request) -> Reply:
        match request:
            case OpenGraph():
                return await self._open(request)
            case Start(topology, known):
                reply = await self._decide(start_step(topology, known))
                assert isinstance(reply, Started)
                self._see(reply.processor)
                return reply
            case Look():
                return await self._look(request)
            case TakeSnapshot():
                return await self._decide_seen(request.processor, snapshot_step(request))
            case ChooseInput():
                return await self._decide_seen(request.processor, choose_step(request))
            case NarrowStep():
                return await self._decide_seen(request.processor, narrow_step(request))
            case CommitStep():
                return await self._decide_seen(request.processor, commit_step(request))
            case NoteFailure():
                return await self._decide(failure_step(request))
            case ShowGraphs(graph):
                if graph is not None:
                    checked_name("graph", graph)
                return await self._show(graph)
            case DropProcessor(graph, processor):
                return await self._decide(drop_step(graph, processor))
            case RenameProcessor(graph, processor, to):
                return await self._decide(rename_step(graph, processor, to))
            case ResetProcessor(graph, processor, start):
                return await self._decide(reset_step(graph, processor, start))
            case _:
                assert_never(request)

    async def _decide(self, step: Step) -> Reply:
        (reply,) = await self._committer.submit(step)
        return reply  # type: ignore[no-any-return]

    async def _decide_seen(self, processor_id: int, step: Step) -> Reply:
        reply = await self._decide(step)
        if not isinstance(reply, Fenced):
            self._see(processor_id)
        return reply

    def _see(self, processor_id: int) -> None:
        """That there is: whoever asks for others leaves nothing behind."""
        self._seen[processor_state_key(processor_id)] = self._committer.now_ms()

    # -- looking

    async def _open(self, request: OpenGraph) -> Reply:
        async def query(view: Shown) -> Reply:
            stored = [state async for state in _stored(view, request.graph)]
            return check_graph(request.graph, stored, request.processors)

        return await self._committer.read(query)

    async def _show(self, graph: str | None) -> Reply:
        async def query(view: Shown) -> Reply:
            found: dict[str, list[ProcessorStatus]] = {}
            async for state in _stored(view, graph):
                status = show_processor(view, state, self._seen.get(processor_state_key(state.id)))
                found.setdefault(status.graph, []).append(status)
            if graph is not None and not found:
                raise NotFoundError(f"there is no graph {graph!r}", hint="run it once")
            return Graphs([GraphStatus(*pair) for pair in found.items()])

        return await self._committer.read(query)

    # -- waiting

    async def _look(self, request: Look) -> Reply:
        loop = asyncio.get_running_loop()
        end = loop.time() + min(request.block_ms, LOOK_MS_MAX) / 1000
        while True:
            n = self._committer.applied_n
            found = await self._committer.read(lambda view: _stand(view, request))
            if isinstance(found, Fenced):
                return found
            self._see(request.processor)
            state, tailers = found
            gone = next((each for each in tailers if each.position < each.first), None)
            if gone is not None and state.row.on_evicted is OnEvicted.SKIP and not state.under_way:
                return await self._decide(skip_step(request.processor, request.epoch))
            if gone is not None and state.row.on_evicted is OnEvicted.STOP:
                raise evicted(state.row, gone.alias, gone.position, gone.first)
            left = end - loop.time()
            if has_work(state.row.kind, tailers) or left <= 0:
                return Looked(tailers)
            await self._wait(request.processor, tailers, n, min(left, VERIFY_SECONDS))

    async def _wait(self, processor_id: int, tailers: list[Tailer], n: int, seconds: float) -> None:
        """Until one of the inputs grows, the processor changes hands, or it is time; not at all
        where something was committed since commit n, when it was looked."""
        loop = asyncio.get_running_loop()
        waits = [
            loop.create_task(self._waiters.wait(state_key(each.stream_id), each.next))
            for each in tailers
        ]
        waits.append(loop.create_task(self._waiters.wait(processor_state_key(processor_id), 0)))
        try:
            await give_way()  # they stand in their lines now
            if n != self._committer.applied_n:
                return
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                if task.done():
                    task.result()  # the broker ended: whoever waits hears why
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    # -- what commits tell

    def changed(self, states: dict[StateKey, Any]) -> None:
        for key, state in states.items():
            if key[0] == "log":
                self._waiters.grown(key, None if state is None else state.next)
            elif key[0] == "processor":
                self._waiters.grown(key, None)
                if state is None:
                    self._seen.pop(key, None)

    def finished(self, error: PenstockError) -> None:
        self._waiters.end(error)

    def reopened(self) -> None:
        self._waiters.wake_all()


def has_work(kind: ProcessorKind, tailers: list[Tailer]) -> bool:
    each = [tailer.available > 0 for tailer in tailers]
    return all(each) if kind is ProcessorKind.JOIN else any(each)


async def _stand(view: Shown, request: Look) -> Fenced | tuple[ProcessorState, list[Tailer]]:
    state = await load_processor(view, request.processor)
    if state is None:
        return Fenced(f"processor {request.processor} was dropped")
    fenced = overtaken(state, request.epoch)
    if fenced is not None:
        return fenced
    require_streams(view, state.row)
    return state, show_tailers(view, state.row)


async def _stored(view: Shown, graph: str | None) -> AsyncIterator[ProcessorState]:
    """Processors of one graph, or of all, in the order of their names."""
    async for name, row in list_names(view.store, Kind.GRAPH):
        if graph is None or name.split("/", 1)[0] == graph:
            state = await load_processor(view, row.id)
            if state is not None:
                yield state
