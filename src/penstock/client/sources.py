"""Requests about sources, for their runners: `database.sources`.

Contract     `ask(request)` answers with what the request's type names (source/requests.py). All of
             them may be asked again after a lost broker, and are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.client.blocking import Blocking
from penstock.client.handles import AsyncHandle
from penstock.client.thread import LoopThread, Work
from penstock.source.requests import Ask

if TYPE_CHECKING:
    from penstock.client.api import AsyncDatabase

R = TypeVar("R")


class AsyncSources(AsyncHandle):
    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._closed = False

    def ask(self, request: Ask[R]) -> Work[R]:
        return self._database._run_sources(lambda sources, _: sources.ask(request))

    async def close(self) -> None:
        self._closed = True


class Sources(Blocking[AsyncSources]):
    def __init__(self, inner: AsyncSources, thread: LoopThread) -> None:
        super().__init__(inner, thread)

    def ask(self, request: Ask[R]) -> R:
        return self._thread.call(self._inner.ask(request))
