"""One database, three ways to it: in this process, over the socket of another one, with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock
from integration.children import Child
from penstock.aio import AsyncClaimedMessage, AsyncConsumer
from penstock.client.handles import AsyncHandle

WAYS = ("inside", "socket", "aio")
_numbers = itertools.count(1)


class Awaited:
    """An asynchronous handle with the manners of a synchronous one: every coroutine is run."""

    def __init__(self, handle: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = handle
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._handle, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._shown(found(*map(_bare, args), **kwargs))

        return call

    def _shown(self, result: Any) -> Any:
        if inspect.iscoroutine(result):
            result = asyncio.run_coroutine_threadsafe(result, self._loop).result()
        if isinstance(result, list):
            return [self._shown(each) for each in result]
        kinds = (AsyncHandle, AsyncClaimedMessage, AsyncConsumer, AsyncIterator)
        return Awaited(result, self._loop) if isinstance(result, kinds) else result

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._shown(self._handle.__anext__())
            except StopAsyncIteration:
                return

    def __reduce__(self) -> Any:
        return self._handle.__reduce__()


def _bare(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_bare(each) for each in argument]
    return argument._handle if isinstance(argument, Awaited) else argument


@pytest.fixture(scope="session")
def holder() -> Iterator[Child]:
    with Child("holder") as child:
        yield child


@contextlib.contextmanager
def opened(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    match kind:
        case "inside":
            with penstock.open(f"memory://client-{datetime.now(UTC).timestamp()}") as database:
                yield database
        case "socket":
            child: Child = request.getfixturevalue("holder")
            child.tell(f"open {folder}")
            assert child.hear() == "done"
            with penstock.open(folder) as database:
                assert database._session.link.broker is None, "the other process serves"
                yield database
            child.tell(f"close {folder}")
            assert child.hear() == "done"
        case _:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever)
            thread.start()
            opening = asyncio.run_coroutine_threadsafe(penstock.aio.open(folder), loop)
            awaited = Awaited(opening.result(), loop)
            yield awaited
            awaited.close()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@pytest.fixture(params=WAYS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with opened(request.param, tmp_path / "d", request) as database:
        yield database


@pytest.fixture(scope="module", params=WAYS)
def shared_db(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One database for all tests of a file that ask for it: each uses a `name` of its own."""
    with opened(request.param, tmp_path_factory.mktemp("shared") / "d", request) as database:
        yield database


@pytest.fixture
def name() -> str:
    """A stream or queue that nobody else uses."""
    return f"n{next(_numbers)}"
