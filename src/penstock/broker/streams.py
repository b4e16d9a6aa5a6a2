"""Stream requests: what the doors may ask of a broker, one method each.

Contract     All of it runs on the broker's loop. Durations are milliseconds; `block_ms` is 0 to
             not wait, None to wait for ever. Writes answer when they are durable, reads show
             durable commits only. A call that is cancelled while it waits changes nothing.
Not here     What a request decides (log/, stream/), wire formats (server/), who calls (client/).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from penstock.broker.answers import Found, FoundNodes, StreamInfo, stream_info
from penstock.broker.commit import Committer, Shown
from penstock.broker.groups import GroupRequests
from penstock.broker.joint import Joints
from penstock.broker.staged import must_stage, stage_bodies
from penstock.broker.waiters import Waiters
from penstock.clock import Clock
from penstock.codec.keys import Kind
from penstock.codec.node import Body, Node
from penstock.errors import ConflictError, PenstockError, UnavailableError
from penstock.log.append import append_step
from penstock.log.batch import NODE_ENTRIES
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, list_names, load_name, name_state_key, open_target
from penstock.log.decision import StateKey
from penstock.log.evict import evict_step, trim_step
from penstock.log.joint import may_join
from penstock.log.link import link_step
from penstock.log.producer import Produced, answer_step, check_produced
from penstock.log.read import entries_in_steps, read_nodes, read_range, to_arrow
from penstock.log.state import LogState, state_key
from penstock.stream.config import configure_step
from penstock.stream.delete import delete_step
from penstock.stream.glob import compile_glob
from penstock.stream.group import load_groups

R = TypeVar("R")

#: Nodes of one answer stop here: who wants more asks again from where it ended.
READ_BYTES_MAX = 128 << 20


#: How often an overtaken broker is looked for while readers wait.
WATCH_SECONDS = 0.5


class Streams(GroupRequests):
    def __init__(
        self, committer: Committer, cache: NodeCache, waiters: Waiters, clock: Clock
    ) -> None:
        super().__init__(committer, cache)
        self._clock = clock
        self._watcher: asyncio.Task[None] | None = None
        self._waiters = waiters
        self._joints = Joints(committer)

    # -- writes

    def post(self, name: LogName, tag: bytes, data: bytes) -> asyncio.Future[list[range]]:
        """One small entry (`may_post`), as `post_write`."""
        return self._joints.post(name, tag, data)

    def post_write(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None = None,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> asyncio.Future[list[range]] | Coroutine[Any, Any, list[range]]:
        """Begin a write. -> the replies of its commit, which are one: a future, for its place in
        the order is taken; or, for what takes several commits, what does them."""
        if backlog is None and producer is None and sequence is None and may_join(bodies):
            return self._joints.write(name, bodies[0])
        self._joints.close(name)
        if must_stage(bodies):
            produced = check_produced(producer, sequence)
            return self._write_staged_in_time(name, bodies, backlog=backlog, produced=produced)
        step = append_step(name, bodies, producer=producer, sequence=sequence, backlog=backlog)
        return self._committer.request(step)

    async def write(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None = None,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range:
        (offsets,) = await self.post_write(
            name, bodies, backlog=backlog, producer=producer, sequence=sequence
        )
        return offsets

    async def _write_staged_in_time(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None,
        produced: Produced | None,
    ) -> list[range]:
        try:
            async with asyncio.timeout(self._committer.deadline):
                return [await self._write_staged(name, bodies, backlog=backlog, produced=produced)]
        except TimeoutError:
            size = sum(len(body.stored) for body in bodies)
            raise UnavailableError(
                f"a batch of {size:,} bytes was not written in time", hint="write smaller ones"
            ) from None

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
        staging_id = await stage_bodies(self._committer, bodies)
        steps = [link_step(staging_id, [(name, [0])], produced=produced)]
        if backlog is not None:
            steps.append(trim_step(name, count=backlog))
        ((offsets,), *_) = await self._committer.submit(*steps)
        return offsets  # type: ignore[no-any-return]

    async def _answered(self, name: LogName, produced: Produced) -> range | None:
        (known,) = await self._committer.submit(answer_step(name, produced))
        return known  # type: ignore[no-any-return]

    async def evict(
        self, name: LogName, *, up_to: int | None = None, keep: int | None = None
    ) -> int:
        self._joints.close(name)
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
        entries = await entries_in_steps(found.pieces, found.low, found.high, reverse=reverse)
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
            low, high, pieces = await self._pieces(view, state, low, high, reverse=reverse)
            return FoundNodes(info, low, high, pieces), key

        def waits(found: FoundNodes) -> bool:
            return not reverse and count != 0 and found.info.last < offset

        return await self._until(query, waits, offset, block_ms)

    async def _pieces(
        self, view: Shown, state: LogState, low: int, high: int, *, reverse: bool
    ) -> tuple[int, int, list[tuple[Node, int, int]]]:
        """Nodes of a range, as many as one answer may hold, from the end the reader begins at."""
        pieces: list[tuple[Node, int, int]] = []
        size = 0
        # What was evicted has no nodes: however much it is, there is nothing to look for.
        begin, end = max(low, min(state.first, high)), high
        while begin < end and size <= READ_BYTES_MAX:
            # Downwards in windows: a scan goes up, and what lies lowest is wanted last.
            window = (max(begin, end - NODE_ENTRIES), end) if reverse else (begin, end)
            part: list[tuple[Node, int, int]] = []
            async for piece in read_nodes(view.store, state, *window, cache=self._cache):
                part.append(piece)
                size += piece[0].memory_bytes
                if size > READ_BYTES_MAX and not reverse:
                    high = piece[0].first + piece[2]
                    return low, high, part
            pieces[:0] = part
            if not reverse:
                break
            end = window[0]
        if reverse and begin < end:
            low = end
        return low, high, pieces

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
            info, state, _ = await self._open(view, name)
            groups = (await load_groups(view, state.log_id)).rows if state.log_id else {}
            return msgspec.structs.replace(info, groups=len(groups))

        return await self._committer.read(query)

    async def names(self, pattern: str = "*") -> list[str]:
        """Names of streams, in the order of their bytes; the pattern is a glob as in Redis."""
        matches = compile_glob(pattern)

        async def query(view: Shown) -> list[str]:
            return [name async for name, _ in list_names(view.store, Kind.STREAM) if matches(name)]

        return await self._committer.read(query)

    # -- setting up

    async def configure(
        self,
        name: LogName,
        *,
        max_count: int | UnsetType | None = UNSET,
        max_bytes: int | UnsetType | None = UNSET,
        max_age_ms: int | UnsetType | None = UNSET,
        compact: bool | UnsetType = UNSET,
    ) -> None:
        """None is no limit; what is not given stays as it is."""
        await self._committer.submit(
            configure_step(
                name,
                max_count=max_count,
                max_bytes=max_bytes,
                max_age_ms=max_age_ms,
                compact=compact,
            )
        )

    async def delete(self, name: LogName) -> bool:
        self._joints.close(name)
        (existed,) = await self._committer.submit(delete_step(name))
        return existed  # type: ignore[no-any-return]

    async def _open(self, view: Shown, name: LogName) -> tuple[StreamInfo, LogState, StateKey]:
        """The stream as a read sees it, and the key under which its growth is told."""
        row = (await load_name(view, name)).row
        state = None if row is None else await open_target(view, row.id)
        if row is None or state is None:
            return stream_info(None), LogState(0), name_state_key(name)
        return stream_info(state, row), state, state_key(row.id)

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
            if n != self._committer.applied_n and (
                end is None or asyncio.get_running_loop().time() < end
            ):
                continue  # something came by meanwhile
            self._watch()
            try:
                async with asyncio.timeout_at(end):
                    await self._waiters.wait(key, offset)
            except TimeoutError:
                return (await self._committer.read(query))[0]

    # -- what commits tell

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit: wake whom it can serve."""
        for key, state in states.items():
            if key[0] == "log":
                self._waiters.grown(key, None if state is None else state.next)
            elif key[0] == "name":
                self._waiters.grown(key, None)
        self._stir_changed(states)

    def _watch(self) -> None:
        """A process that was stopped and overtaken must not keep readers waiting that nobody will
        serve: while any wait, it asks now and then, and so right after it wakes up."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.get_running_loop().create_task(self._ask_while_waiting())

    async def _ask_while_waiting(self) -> None:
        await self._clock.sleep(WATCH_SECONDS)
        while self.waiting:
            try:
                await self._committer.verify()
            except (UnavailableError, ConflictError):
                pass  # that heals by itself
            except PenstockError:
                return  # everybody who waits was told (`finished`)
            await self._clock.sleep(WATCH_SECONDS)

    def stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    @property
    def waiting(self) -> int:
        """How many readers wait."""
        return len(self._waiters) + len(self._turns)

    def finished(self, error: PenstockError) -> None:
        """The broker answers nothing any more: those who wait hear of it too."""
        self._waiters.end(error)
        self._end_turns(error)

    def reopened(self) -> None:
        """Whatever memory knew is gone: everybody who waits looks again."""
        self._waiters.wake_all()
        self._stir_all()
