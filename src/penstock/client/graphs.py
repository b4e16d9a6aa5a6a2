"""Requests about graphs, for their runners and for those who look after them: `database.graphs`.

Contract     `ask(request)` answers with what the request's type names (graph/requests.py). All of
             them may be asked again after a lost broker, and are. A runner whose processor was
             started elsewhere, dropped, renamed or reset gets a FencedError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from penstock.client.blocking import Blocking
from penstock.client.graphbackend import GraphBackend
from penstock.client.handles import AsyncHandle
from penstock.client.thread import LoopThread, Work
from penstock.errors import FencedError, InvalidError, NotFoundError
from penstock.graph.requests import (
    Asks,
    Changed,
    DropProcessor,
    Fenced,
    Look,
    RenameProcessor,
    Reply,
    Request,
    ShowGraphs,
)
from penstock.graph.requests import Graphs as FoundGraphs

if TYPE_CHECKING:
    from penstock.client.api import AsyncDatabase

R = TypeVar("R")


class AsyncGraphs(AsyncHandle):
    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._closed = False

    @overload
    def ask(self, request: Asks[R]) -> Work[R]: ...
    @overload
    def ask(self, request: Request) -> Work[Reply]: ...
    def ask(self, request: Any) -> Work[Any]:
        if not isinstance(request, Request):
            raise InvalidError(f"{type(request).__name__} is no request about graphs")
        asked: Request = request
        block_ms = asked.block_ms if isinstance(asked, Look) else 0
        if block_ms < 0:
            raise InvalidError(f"a look cannot wait {block_ms} ms")

        sent = False

        async def errand(graphs: GraphBackend, left_ms: int | None) -> Reply:
            nonlocal sent
            again, sent = sent, True
            if isinstance(asked, Look):
                return await graphs.ask(msgspec.structs.replace(asked, block_ms=left_ms or 0))
            try:
                return await graphs.ask(asked)
            except NotFoundError:
                if again and await _is_done(graphs, asked):
                    return Changed()
                raise

        return _unless_fenced(self._database._run_graphs(errand, block_ms))

    async def close(self) -> None:
        self._closed = True


async def _is_done(graphs: GraphBackend, request: Request) -> bool:
    """What was sent again, and is not found any more: whether the first one did it."""
    match request:
        case DropProcessor():
            return True
        case RenameProcessor(graph, _, to):
            found = await graphs.ask(ShowGraphs(graph))
            assert isinstance(found, FoundGraphs), "the status of graphs"
            return any(each.processor == to for each in found.graphs[0].processors)
        case _:
            return False


async def _unless_fenced(work: Work[Reply]) -> Reply:
    """Outside of the errand: there a FencedError says that the broker lost its location."""
    reply = await work
    if isinstance(reply, Fenced):
        raise FencedError(reply.text, hint="another runner has it: end this one")
    return reply


class Graphs(Blocking[AsyncGraphs]):
    def __init__(self, inner: AsyncGraphs, thread: LoopThread) -> None:
        super().__init__(inner, thread)

    @overload
    def ask(self, request: Asks[R]) -> R: ...
    @overload
    def ask(self, request: Request) -> Reply: ...
    def ask(self, request: Any) -> Any:
        return self._thread.call(self._inner.ask(request))
