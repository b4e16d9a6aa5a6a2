"""Reading at a checkpoint in a process that has no broker and no event loop.

Contract     `read_at(location, checkpoint_id, make)` opens the store for itself, drives the batches
             that `make` gives for it, and closes it at the end, also when it is left early: a plain
             generator. Its event loop runs only while a batch is asked for; meanwhile the engine
             reads ahead. `ask_at` is the same for one answer.
Danger       Not for a thread whose event loop runs: there, await the batches themselves. A store
             does not survive a fork: nobody forks while one of these is under way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import uvloop

from penstock.store.port import Reader
from penstock.store.reader import open_reader

R = TypeVar("R")


def read_at(
    location: str, checkpoint_id: str, make: Callable[[Reader], AsyncIterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    with _opened(location, checkpoint_id) as (reader, run):
        batches = make(reader)
        try:
            while (batch := run(_next(batches))) is not None:
                yield batch
        finally:
            # From the outside in: what it holds open is closed by itself, or by the loop's end.
            if isinstance(batches, AsyncGenerator):
                run(batches.aclose())


def ask_at(location: str, checkpoint_id: str, ask: Callable[[Reader], Awaitable[R]]) -> R:
    """One answer."""
    with _opened(location, checkpoint_id) as (reader, run):
        answer: R = run(ask(reader))
        return answer


@contextmanager
def _opened(
    location: str, checkpoint_id: str
) -> Iterator[tuple[Reader, Callable[[Awaitable[Any]], Any]]]:
    loop = uvloop.new_event_loop()
    run = loop.run_until_complete
    try:
        reader = run(open_reader(location, checkpoint_id))
        try:
            yield reader, run
        finally:
            run(loop.shutdown_asyncgens())
            run(reader.close())
    finally:
        loop.close()


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)
