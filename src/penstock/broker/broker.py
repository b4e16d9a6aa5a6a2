"""The broker of one location: the committer, the readers' cache, and the upkeep behind them.

Contract     All of it runs on one event loop. Each method is one request: appends and evictions
             go through the one commit, reads see durable commits only.
Not here     Threads and blocking callers (client/), wire protocols (server/), what a request
             decides (log/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.broker.commit import Committer, Shown
from penstock.broker.lock import FolderLock
from penstock.broker.upkeep import Upkeep
from penstock.clock import Clock, SystemClock
from penstock.codec.node import Body
from penstock.errors import ConflictError
from penstock.log.append import append_step
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, open_target
from penstock.log.evict import evict_step, trim_step
from penstock.log.link import link_step
from penstock.log.producer import Produced, answer_step, check_produced, produce_step
from penstock.log.read import Message, read, read_range, to_arrow
from penstock.log.staging import STAGE_BYTES_MAX, begin_step, stage_step
from penstock.log.state import LogState
from penstock.store.folder import Durability
from penstock.store.location import folder_of, open_store
from penstock.store.port import Store


class StreamInfo(msgspec.Struct, frozen=True):
    first: int  # the lowest offset that can be read
    last: int  # the highest; first - 1 when there is none
    length: int  # how many there are
    bytes: int  # as stored, in whole nodes


NO_STREAM = StreamInfo(first=0, last=-1, length=0, bytes=0)


class Broker:
    def __init__(self, committer: Committer, cache: NodeCache, lock: FolderLock | None) -> None:
        self.committer = committer
        self._cache = cache
        self._lock = lock
        self._upkeep: Upkeep | None = None

    @classmethod
    async def open(
        cls,
        location: str,
        *,
        durability: Durability = "power",
        deadline: float,
        clock: Clock | None = None,
    ) -> Broker:
        clock = clock or SystemClock()
        folder = folder_of(location)
        if folder is not None:
            location = str(folder)  # absolute: the process may change its directory
        lock = FolderLock(folder) if folder is not None else None
        owner = clock.entropy(16)

        async def opener(after: int | None) -> Store:
            return await open_store(
                location, clock=clock, durability=durability, after=after, owner=owner
            )

        cache = NodeCache()
        upkeep = Upkeep(clock)

        def opened() -> None:
            cache.clear()
            upkeep.look_again()

        committer = Committer(
            opener,
            clock,
            deadline=deadline,
            on_commit=cache.forget,
            on_timers=upkeep.remind,
            on_open=opened,
        )
        broker = cls(committer, cache, lock)
        try:
            await committer.open()
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        broker._upkeep = upkeep
        upkeep.start(committer)
        return broker

    # -- writes

    async def append(
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
            return await self._append_staged(name, bodies, backlog=backlog, produced=produced)
        step = append_step(name, bodies, producer=producer, sequence=sequence, backlog=backlog)
        (offsets,) = await self.committer.submit(step)
        return offsets  # type: ignore[no-any-return]

    async def _append_staged(
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
        (staging_id,) = await self.committer.submit(begin_step())
        n = 0
        while n < len(bodies):
            part = list(bodies[n : n + 1])
            size = len(part[0].stored)
            while n + len(part) < len(bodies):
                size += len(bodies[n + len(part)].stored)
                if size > STAGE_BYTES_MAX:
                    break
                part.append(bodies[n + len(part)])
            await self.committer.submit(stage_step(staging_id, 0, n, part))
            n += len(part)
        steps = [link_step(staging_id, [(name, [0])])]
        if produced is not None:
            steps.append(produce_step(name, produced, sum(body.count for body in bodies)))
        if backlog is not None:
            steps.append(trim_step(name, count=backlog))
        try:
            ((offsets,), *_) = await self.committer.submit(*steps)
        except ConflictError:
            # A repetition was faster: it has the answer.
            if produced is None or (known := await self._answered(name, produced)) is None:
                raise
            return known
        return offsets  # type: ignore[no-any-return]

    async def _answered(self, name: LogName, produced: Produced) -> range | None:
        (known,) = await self.committer.submit(answer_step(name, produced))
        return known  # type: ignore[no-any-return]

    async def evict(
        self, name: LogName, *, up_to: int | None = None, keep: int | None = None
    ) -> int:
        (count,) = await self.committer.submit(evict_step(name, up_to=up_to, keep=keep))
        return count  # type: ignore[no-any-return]

    # -- reads

    async def read(
        self, name: LogName, offset: int, count: int, *, reverse: bool = False
    ) -> list[Message | None]:
        async def query(view: Shown) -> list[Message | None]:
            state = await open_target(view, name) or LogState(0)
            return await read(view.store, state, offset, count, reverse=reverse, cache=self._cache)

        return await self.committer.read(query)

    async def to_arrow(self, name: LogName, offset: int, count: int | None) -> pa.Table:
        async def query(view: Shown) -> Any:
            state = await open_target(view, name) or LogState(0)
            low, high = read_range(
                state, offset, state.next if count is None else count, reverse=False
            )
            return await to_arrow(view.store, state, low, high)

        return await self.committer.read(query)

    async def info(self, name: LogName) -> StreamInfo:
        async def query(view: Shown) -> StreamInfo:
            state = await open_target(view, name)
            if state is None:
                return NO_STREAM
            return StreamInfo(state.first, state.next - 1, state.length, state.stored_bytes)

        return await self.committer.read(query)

    # -- the end

    async def close(self) -> None:
        if self._upkeep is not None:
            await self._upkeep.stop()
        try:
            await self.committer.close()
        finally:
            if self._lock is not None:
                self._lock.release()
