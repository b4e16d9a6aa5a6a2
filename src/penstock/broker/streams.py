"""Stream requests: what the doors may ask of a broker, one method each.

Contract     All of it runs on the broker's loop. Durations are milliseconds; `block_ms` is 0 to
             not wait, None to wait for ever. Writes answer when they are durable, reads show
             durable commits only. A call that is cancelled while it waits changes nothing.
Not here     What a request decides (log/, stream/), wire formats (server/), who calls (client/).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from penstock.broker.commit import Committer, Shown
from penstock.broker.waiters import Waiters
from penstock.codec.node import Body, Node
from penstock.errors import ConflictError, UnavailableError
from penstock.log.append import append_step
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, load_name, name_state_key, open_target
from penstock.log.decision import StateKey
from penstock.log.evict import evict_step, trim_step
from penstock.log.link import link_step
from penstock.log.producer import Produced, answer_step, check_produced, produce_step
from penstock.log.read import Message, messages, read_nodes, read_range, to_arrow
from penstock.log.staging import STAGE_BYTES_MAX, begin_step, stage_step
from penstock.log.state import LogState, state_key

R = TypeVar("R")


class StreamInfo(msgspec.Struct, frozen=True):
    first: int  # the lowest offset that can be read
    last: int  # the highest; first - 1 when there is none
    length: int  # how many there are
    bytes: int  # as stored, in whole nodes
    created_ms: int | None = None  # None: never written


NO_STREAM = StreamInfo(first=0, last=-1, length=0, bytes=0)


class Found(msgspec.Struct, frozen=True):
    """An answer to a read, and the stream as it was then."""

    info: StreamInfo
    messages: list[Message | None]


class FoundNodes(msgspec.Struct, frozen=True):
    info: StreamInfo
    low: int  # the offsets that the answer stands for; what no piece covers is evicted
    high: int
    pieces: list[tuple[Node, int, int]]  # a node, and which of its entries, the end exclusive


class Streams:
    def __init__(self, committer: Committer, cache: NodeCache, waiters: Waiters) -> None:
        self._committer = committer
        self._cache = cache
        self._waiters = waiters

    # -- writes

    async def write(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None = None,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range:
        size = sum(len(body.stored) for body in bodies)
        if size > STAGE_BYTES_MAX and len(bodies) > 1:
            produced = check_produced(producer, sequence)
            try:
                async with asyncio.timeout(self._committer.deadline):
                    return await self._write_staged(
                        name, bodies, backlog=backlog, produced=produced
                    )
            except TimeoutError:
                raise UnavailableError(
                    f"a batch of {size:,} bytes was not written in time", hint="write smaller ones"
                ) from None
        step = append_step(name, bodies, producer=producer, sequence=sequence, backlog=backlog)
        (offsets,) = await self._committer.submit(step)
        return offsets  # type: ignore[no-any-return]

    async def _write_staged(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None,
        produced: Produced | None,
    ) -> range:
        """A large batch in commits that hold nobody up; the last, small one makes it visible."""
        if produced is not None and (known := await self._answered(name, produced)) is not None:
            return known
        (staging_id,) = await self._committer.submit(begin_step())
        n = 0
        while n < len(bodies):
            part = list(bodies[n : n + 1])
            size = len(part[0].stored)
            while n + len(part) < len(bodies):
                size += len(bodies[n + len(part)].stored)
                if size > STAGE_BYTES_MAX:
                    break
                part.append(bodies[n + len(part)])
            await self._committer.submit(stage_step(staging_id, 0, n, part))
            n += len(part)
        steps = [link_step(staging_id, [(name, [0])])]
        if produced is not None:
            steps.append(produce_step(name, produced, sum(body.count for body in bodies)))
        if backlog is not None:
            steps.append(trim_step(name, count=backlog))
        try:
            ((offsets,), *_) = await self._committer.submit(*steps)
        except ConflictError:
            # A repetition was faster: it has the answer.
            if produced is None or (known := await self._answered(name, produced)) is None:
                raise
            return known
        return offsets  # type: ignore[no-any-return]

    async def _answered(self, name: LogName, produced: Produced) -> range | None:
        (known,) = await self._committer.submit(answer_step(name, produced))
        return known  # type: ignore[no-any-return]

    async def evict(
        self, name: LogName, *, up_to: int | None = None, keep: int | None = None
    ) -> int:
        (count,) = await self._committer.submit(evict_step(name, up_to=up_to, keep=keep))
        return count  # type: ignore[no-any-return]

    # -- reads

    async def read(
        self,
        name: LogName,
        offset: int,
        count: int,
        *,
        reverse: bool = False,
        block_ms: int | None = 0,
    ) -> Found:
        found = await self.read_nodes(name, offset, count, reverse=reverse, block_ms=block_ms)
        entries: list[Message | None] = []
        for node, start, stop in found.pieces:
            # What is missing before this node was evicted, before the read or during it.
            entries += [None] * (node.first + start - found.low - len(entries))
            entries += messages(node, start, stop)
        entries += [None] * (found.high - found.low - len(entries))
        if reverse:
            entries.reverse()
        return Found(found.info, entries)

    async def read_nodes(
        self,
        name: LogName,
        offset: int,
        count: int | None,
        *,
        reverse: bool = False,
        block_ms: int | None = 0,
    ) -> FoundNodes:
        async def query(view: Shown) -> tuple[FoundNodes, StateKey]:
            info, state, key = await self._open(view, name)
            low, high = read_range(
                state, offset, state.next if count is None else count, reverse=reverse
            )
            pieces = [
                piece async for piece in read_nodes(view.store, state, low, high, cache=self._cache)
            ]
            return FoundNodes(info, low, high, pieces), key

        def waits(found: FoundNodes) -> bool:
            return not reverse and count != 0 and found.info.last < offset

        return await self._until(query, waits, offset, block_ms)

    async def to_arrow(self, name: LogName, offset: int, count: int | None) -> pa.Table:
        async def query(view: Shown) -> pa.Table:
            _, state, _ = await self._open(view, name)
            low, high = read_range(
                state, offset, state.next if count is None else count, reverse=False
            )
            return await to_arrow(view.store, state, low, high)

        return await self._committer.read(query)

    async def info(self, name: LogName) -> StreamInfo:
        async def query(view: Shown) -> StreamInfo:
            return (await self._open(view, name))[0]

        return await self._committer.read(query)

    async def _open(self, view: Shown, name: LogName) -> tuple[StreamInfo, LogState, StateKey]:
        """The stream as a read sees it, and the key under which its growth is told."""
        row = (await load_name(view, name)).row
        state = None if row is None else await open_target(view, row.id)
        if row is None or state is None:
            return NO_STREAM, LogState(0), name_state_key(name)
        info = StreamInfo(
            state.first, state.next - 1, state.length, state.stored_bytes, row.created_at_ms
        )
        return info, state, state_key(row.id)

    async def _until(
        self,
        query: Callable[[Shown], Awaitable[tuple[R, StateKey]]],
        waits: Callable[[R], bool],
        offset: int,
        block_ms: int | None,
    ) -> R:
        """Ask again whenever the log grew beyond the offset, until there is something to say."""
        end = None if block_ms is None else asyncio.get_running_loop().time() + block_ms / 1000
        while True:
            n = self._committer.applied_n
            result, key = await self._committer.read(query)
            if block_ms == 0 or not waits(result):
                return result
            if n != self._committer.applied_n:
                continue  # something came by meanwhile
            try:
                async with asyncio.timeout_at(end):
                    await self._waiters.wait(key, offset)
            except TimeoutError:
                return result

    # -- what commits tell

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit: wake whom it can serve."""
        for key, state in states.items():
            if key[0] == "log":
                self._waiters.grown(key, None if state is None else state.next)
            elif key[0] == "name":
                self._waiters.grown(key, None)
