"""Group requests: reading in turn, acknowledging, setting up. The part of `Streams` about groups.

Contract     As in streams.py. A reader that may wait stands in the queue of its group (turns.py)
             from the start, so that nobody overtakes it; it is asked again when the stream grows,
             when acknowledgements make room, when a retry falls due.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from penstock.broker.answers import Found, FoundByGroup, StreamInfo, stream_info
from penstock.broker.commit import Committer, Meanwhile, Shown
from penstock.broker.turns import Turns
from penstock.codec.keys import Kind
from penstock.codec.scalars import NEVER_MS
from penstock.errors import InvalidError, PenstockError, UnavailableError
from penstock.log.cache import NodeCache
from penstock.log.catalogue import LogName, NameState, load_name, name_state_key
from penstock.log.decision import StateKey, Step
from penstock.log.read import STEP_ENTRIES, living_in_steps
from penstock.log.state import LogState, state_key
from penstock.stream.ack import Named, ack_step
from penstock.stream.deliver import MAX_PENDING, Delivered, Start, deliver_step
from penstock.stream.group import (
    GroupNameState,
    GroupState,
    group_name_key,
    group_state_key,
    load_groups,
)
from penstock.stream.groups import (
    GroupInfo,
    Pending,
    create_step,
    destroy_step,
    info_step,
    infos_step,
    pending_step,
    set_step,
)

R = TypeVar("R")

#: How many groups one request looks at: each may have to be loaded, within one tick.
GROUPS_PART = 100

#: Which group's readers: the stream's name and the group's.
GroupKey = tuple[LogName, bytes]


class GroupRequests(ABC):
    def __init__(self, committer: Committer, cache: NodeCache) -> None:
        self._committer = committer
        self._cache = cache
        self._turns = Turns(self._available, self._set_alarm)
        #: Streams that somebody waits on, by the id that commits speak of, as far as it is known.
        self._names: dict[int, LogName] = {}
        #: When something of a group is due: told by answers and commits, for memory may drop it.
        self._due_ms: dict[GroupKey, int] = {}
        self._alarms: dict[GroupKey, asyncio.TimerHandle] = {}

    # -- requests

    async def read_group(
        self,
        name: LogName,
        group: bytes,
        count: int,
        *,
        block_ms: int | None = 0,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
        start: Start = "first",
    ) -> Found:
        found = await self.read_group_nodes(
            name,
            group,
            count,
            block_ms=block_ms,
            retry_ms=retry_ms,
            expire_ms=expire_ms,
            start=start,
        )
        making = living_in_steps(found.pieces)
        # A few are made in one go, where nobody can give up in between.
        made = await (making if found.count <= STEP_ENTRIES else _to_its_end(making))
        return Found(found.info, [*made])

    def post_read_group(
        self,
        name: LogName,
        group: bytes,
        count: int,
        *,
        retry_ms: int | None,
        expire_ms: int | None,
        start: Start,
        meanwhile: Meanwhile,
    ) -> asyncio.Future[list[Delivered]]:
        """A look that does not wait, without a task of its own: for doors that answer by callback.
        `found_at_once` tells what was found, or that one must ask again."""
        step = self._look(name, group, count, retry_ms, expire_ms, start, makes_stream=True)
        return self._committer.request(step, meanwhile=meanwhile)

    def _look(
        self,
        name: LogName,
        group: bytes,
        count: int,
        retry_ms: int | None,
        expire_ms: int | None,
        start: Start,
        *,
        makes_stream: bool,
    ) -> Step:
        return deliver_step(
            name,
            group,
            count,
            retry_ms=retry_ms,
            expire_ms=expire_ms,
            start=start,
            cache=self._cache,
            makes_stream=makes_stream,
        )

    async def read_group_nodes(
        self,
        name: LogName,
        group: bytes,
        count: int,
        *,
        block_ms: int | None = 0,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
        start: Start = "first",
    ) -> FoundByGroup:
        begin = start
        #: Once: a stream that is deleted while somebody waits stays deleted.
        makes_stream = True
        key: GroupKey = (name, group)
        waits = block_ms != 0 and count != 0
        delivered: Delivered = Delivered()

        async def ask() -> int:
            nonlocal begin, delivered, makes_stream
            while True:
                step = self._look(
                    name, group, count, retry_ms, expire_ms, begin, makes_stream=makes_stream
                )
                (delivered,) = await self._committer.submit(step)
                makes_stream = False
                if delivered.log is None:
                    begin = _start_of_nothing(start)
                elif begin == "new" and not delivered.log.next:
                    begin = 0  # whatever comes is new, also if it comes to another stream
                if delivered.log is not None and waits:
                    self._names[delivered.log.log_id] = name
                    self._due_ms[key] = min(delivered.retry_ms, delivered.expire_ms)
                if delivered.count or not delivered.moved:
                    return delivered.count

        if not waits:
            await ask()
            return _found(delivered)
        if self._is_missing(name):
            if start == "new":
                await self._committer.submit(
                    deliver_step(name, group, 0, start=start, makes_stream=True)
                )
                makes_stream = False
            begin = _start_of_nothing(start)
        seconds = None if block_ms is None else block_ms / 1000
        self._watch()
        try:
            await self._turns.wait(key, ask, count, seconds)
        finally:
            self._left(key)
        if not delivered.count:  # the stream as it is now, not as it was when it was asked
            return FoundByGroup(await self.info(name), [])
        return _found(delivered)

    def _left(self, key: GroupKey) -> None:
        """A reader does not wait any more: forget what nobody else needs."""
        if key in self._turns:
            return
        self._drop_alarm(key)
        self._due_ms.pop(key, None)
        if all(other[0] != key[0] for other in self._turns.waiting()):
            self._forget_id(key[0])

    def _forget_id(self, name: LogName) -> None:
        self._names = {i: known for i, known in self._names.items() if known != name}

    @abstractmethod
    async def info(self, name: LogName) -> StreamInfo: ...

    @abstractmethod
    def _watch(self) -> None: ...

    def _is_missing(self, name: LogName) -> bool:
        """Whether there is surely no such stream."""
        known: NameState | None = self._committer.states.get(name_state_key(name))
        return known is not None and known.row is None

    def post_ack(
        self, name: LogName, group: bytes, named: Sequence[Named]
    ) -> asyncio.Future[list[int]]:
        """The same as `ack` for doors that answer by callback."""
        return self._committer.request(ack_step(name, group, named))

    async def ack(self, name: LogName, group: bytes, named: Sequence[Named]) -> int:
        (count,) = await self.post_ack(name, group, named)
        return count

    async def group_create(
        self,
        name: LogName,
        group: bytes,
        *,
        start: Start = "first",
        max_pending: int = MAX_PENDING,
        dead: LogName | None = None,
    ) -> None:
        await self._committer.submit(
            create_step(name, group, start=start, max_pending=max_pending, dead=dead)
        )

    async def group_set(self, name: LogName, group: bytes, offset: Start) -> None:
        await self._committer.submit(set_step(name, group, offset))

    async def group_info(self, name: LogName, group: bytes) -> GroupInfo:
        (info,) = await self._committer.submit(info_step(name, group))
        return info  # type: ignore[no-any-return]

    async def groups(self, name: LogName) -> list[GroupInfo]:
        async def query(view: Shown) -> list[bytes]:
            row = (await load_name(view, name)).row
            return [] if row is None else sorted((await load_groups(view, row.id)).rows)

        found: list[GroupInfo] = []
        try:
            async with asyncio.timeout(self._committer.deadline):
                names = await self._committer.read(query)
                for i in range(0, len(names), GROUPS_PART):
                    step = infos_step(name, names[i : i + GROUPS_PART])
                    (part,) = await self._committer.submit(step)
                    found += part
        except TimeoutError:
            raise UnavailableError("the groups were not listed in time") from None
        return found

    async def group_pending(
        self, name: LogName, group: bytes, start: int = 0, count: int = 100
    ) -> list[Pending]:
        (found,) = await self._committer.submit(pending_step(name, group, start, count))
        return found  # type: ignore[no-any-return]

    async def group_destroy(self, name: LogName, group: bytes) -> bool:
        (existed,) = await self._committer.submit(destroy_step(name, group))
        return existed  # type: ignore[no-any-return]

    # -- what commits tell

    def _stir_changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit: stir the groups that it may serve."""
        if not len(self._turns):
            return
        for key, state in states.items():
            match key:
                case ("log", int(log_id)):
                    self._stir_log(log_id)
                case ("group", int()) if isinstance(state, GroupState):
                    name = self._names.get(state.head.log_id)
                    if name is None:
                        self._turns.stir_served()
                    else:
                        group = (name, state.head.name.encode())
                        if group in self._turns:
                            self._note_due(group, state)
                            self._turns.stir(group)
                case ("group name", (int(log_id), bytes(text))):
                    # Destroyed: who waits makes it anew, as the next reader would.
                    name = self._names.get(log_id)
                    if name is not None:
                        self._turns.stir((name, text))
                case ("name", (Kind() as kind, bytes(text))):
                    # Made, deleted, or both: its id is another one, or will be.
                    self._forget_id(LogName(kind, text))
                    self._stir_name(LogName(kind, text))

    def _stir_log(self, log_id: int) -> None:
        name = self._names.get(log_id)
        if name is not None:
            self._stir_name(name)
            return
        # A reader's ask that is under way may be about this log, before what changed it.
        self._turns.stir_served()

    def _stir_name(self, name: LogName) -> None:
        for key in self._turns.waiting():
            if key[0] == name:
                self._turns.stir(key)

    def _end_turns(self, error: PenstockError) -> None:
        """Nobody will be served here any more."""
        self._turns.end(error)

    def _stir_all(self) -> None:
        for key in self._turns.waiting():
            self._turns.stir(key)

    def _states(self, key: GroupKey) -> tuple[LogState | None, GroupState | None, bool]:
        """Log and group as far as memory has them; and whether "none" is certain."""
        states = self._committer.states
        name: NameState | None = states.get(name_state_key(key[0]))
        if name is None or name.row is None:
            return None, None, name is not None
        self._names[name.row.id] = key[0]
        log: LogState | None = states.get(state_key(name.row.id))
        known: GroupNameState | None = states.get(group_name_key(name.row.id, key[1]))
        if known is None or known.row is None:
            return log, None, False
        return log, states.get(group_state_key(known.row.id)), False

    def _available(self, key: GroupKey) -> int:
        log, group, certain = self._states(key)
        if log is None or group is None:
            return 0 if certain else 1
        index = group.index
        new = log.next - max(group.head.next, log.first)
        if (index.first_pending() or 0) >= log.first:
            new = min(new, group.row.max_pending - group.pending)
        # else some of those that are pending were evicted, and leave the list when it is asked
        self._note_due(key, group)
        if self._due_ms[key] <= self._committer.now_ms():
            return max(new, 0) + group.pending
        return max(new, 0)

    def _note_due(self, key: GroupKey, group: GroupState) -> None:
        index = group.index
        self._due_ms[key] = min(index.next_retry_ms, index.next_expire_ms)

    def _set_alarm(self, key: GroupKey) -> None:
        """Wake up for the next entry that falls due."""
        self._drop_alarm(key)
        at_ms = self._due_ms.get(key, NEVER_MS)
        if at_ms == NEVER_MS:
            return
        seconds = max(at_ms - self._committer.now_ms(), 0) / 1000 + 0.001
        # Far ones are looked at again in between: a call this far ahead is no use to anybody.
        self._alarms[key] = asyncio.get_running_loop().call_later(
            min(seconds, 3600.0), self._turns.stir, key
        )

    def _drop_alarm(self, key: GroupKey) -> None:
        alarm = self._alarms.pop(key, None)
        if alarm is not None:
            alarm.cancel()


def _start_of_nothing(start: Start) -> int:
    """Where a group of a stream that does not exist begins: whatever comes is its first entry, and
    is new."""
    if start not in ("first", "new", 0):
        raise InvalidError(f"offset {start} lies behind the end of the stream, 0")
    return 0


async def _to_its_end(making: Coroutine[Any, Any, R]) -> R:
    """What was delivered is its reader's, also where that one gives up in this moment: without
    retry it would be lost."""
    task = asyncio.ensure_future(making)
    cancelled = 0
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled += 1
    current = asyncio.current_task()
    assert current is not None
    for _ in range(cancelled):
        current.uncancel()
    return task.result()


def found_at_once(delivered: Delivered, start: Start) -> FoundByGroup | None:
    """What `post_read_group` found, asked to `start` there; None where it made progress without
    finding anything."""
    if delivered.log is None:
        _start_of_nothing(start)
    return None if delivered.moved else _found(delivered)


def _found(delivered: Delivered) -> FoundByGroup:
    return FoundByGroup(stream_info(delivered.log), [*delivered.due, *delivered.new])
