"""The truth about groups: a naive pending list per group, fed with every operation as it commits.

Contract     `committed` looks at each commit, after the rows and before the logs grow. Each
             operation is judged by the list as it was; then it is applied. `delivered` and `acked`
             compare what a caller was told with what some commit during its call did.
Invariants   G1  only entries whose retry time has come are delivered again, none that expired
             G2  new entries are delivered in order, once, and none that was not durable before
             G3  no living entry is passed over
             G4  a full list takes nothing new
             G5  an entry leaves the list once: acknowledged, expired, evicted or compacted; counts
                 say which
             G6  what expired is in the dead stream, if there is one, in the same commit
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from penstock.codec.group import (
    GroupOperation,
    decode_group,
    decode_group_operation,
    decode_head,
)
from penstock.codec.keys import KeyType, head_key, key_type, open_key
from penstock.codec.operations import PagedView, decode_operations
from penstock.sim.history import History, Log
from penstock.sim.trace import Trace
from penstock.store.port import Writes

#: A caller wanted a group at the first or the next entry, wherever that was then.
ANYWHERE = -1


class Waiting(msgspec.Struct):
    """A pending entry."""

    retry_ms: int
    expire_ms: int
    deliveries: int
    due: float  # in virtual seconds: wall clocks jump
    gone: float  # the same, of the end


class Effect(msgspec.Struct):
    """What one operation did."""

    n: int
    group_id: int
    again: list[int]
    fresh: list[int]
    removed: list[int]
    passed: range  # new to the group before, not any more
    living: list[int]  # of those, after the commit
    retried: bool  # deliveries are pending now
    acks: bool  # nothing was delivered
    told: bool = False  # some caller was told


class Group:
    def __init__(self, group_id: int, log_id: int, name: str) -> None:
        self.id = group_id
        self.log_id = log_id
        self.name = name
        self.max_pending = 0
        self.dead = ""
        self.next = 0
        self.sequence = 0
        self.expired = 0
        self.skipped = 0
        self.pending: dict[int, Waiting] = {}

    @property
    def ack_offset(self) -> int:
        return min(min(self.pending, default=self.next), self.next)


class GroupLog:
    def __init__(self, history: History, trace: Trace) -> None:
        self._history = history
        self._trace = trace
        self.groups: dict[int, Group] = {}
        self._names: dict[tuple[int, str], int] = {}
        self._effects: list[Effect] = []
        #: Where callers wanted groups to be moved to: (stream, group) -> offsets.
        self.moves: dict[tuple[str, str], set[int]] = {}

    def group(self, log: Log | None, name: str) -> Group | None:
        group_id = None if log is None else self._names.get((log.id, name))
        return None if group_id is None else self.groups[group_id]

    def living(self) -> list[Group]:
        """Groups of streams that exist."""
        found = [self.groups[group_id] for group_id in self._names.values()]
        return [group for group in found if self._exists(group.log_id)]

    def _exists(self, log_id: int) -> bool:
        log = self._history.logs.get(log_id)
        return log is not None and self._history.log(log.name) is log

    # -- commits

    def made(self, writes: Writes) -> None:
        """Before the logs look: groups that this commit makes and forgets."""
        rows = dict(writes)
        for key, value in writes:
            if key_type(key) is not KeyType.GROUP:
                continue
            reader = open_key(key, KeyType.GROUP)
            place = reader.u64_key("log id"), reader.terminated("name").decode()
            if value is None:
                self._names.pop(place, None)
                continue
            row = decode_group(value, "group")
            if row.id in self.groups:
                continue
            head = rows.get(head_key(row.id))
            if head is None:
                self._trace.fail(f"group {place} is made without a head")
                continue
            group = self.groups[row.id] = Group(row.id, *place)
            group.max_pending, group.dead = row.max_pending, row.dead
            group.next = decode_head(head, "head").next
            self._names[place] = row.id

    def committed(self, n: int, writes: Writes, time_ms: int, now: float) -> None:
        """After the logs looked; `now` is virtual."""
        rows = dict(writes)
        for key, value in writes:
            if key_type(key) is not KeyType.OPERATIONS or value is None:
                continue
            for operation in decode_operations(value):
                if operation.owner.view is not PagedView.GROUP:
                    continue
                group = self._owner(operation.owner.id, rows)
                if group is None:
                    self._trace.fail(f"commit {n}: there is no group {operation.owner.id}")
                    continue
                body = decode_group_operation(operation.body)
                if operation.sequence != group.sequence + 1:
                    self._wrong(
                        group, n, f"operation {operation.sequence} follows {group.sequence}"
                    )
                group.sequence = operation.sequence
                self._operate(n, group, body, time_ms, now)

    def _owner(self, group_id: int, rows: dict[bytes, bytes | None]) -> Group | None:
        head = rows.get(head_key(group_id))
        if group_id not in self.groups and head is not None:
            # Made and destroyed in this very commit, which shows nothing of it but its head.
            made = decode_head(head, "head")
            group = self.groups[group_id] = Group(group_id, made.log_id, made.name)
            group.max_pending, group.next = 1 << 62, made.next
        return self.groups.get(group_id)

    def _wrong(self, group: Group, n: int, text: str) -> None:
        name = self._history.logs[group.log_id].name
        self._trace.fail(f"group {name}/{group.name}, commit {n}: {text}")

    def _operate(
        self, n: int, group: Group, body: GroupOperation, time_ms: int, now: float
    ) -> None:
        log = self._history.logs[group.log_id]
        removed, again = body.removed.tolist(), body.again.tolist()
        fresh, passed = body.fresh.tolist(), range(group.next, body.next)
        living = [offset for offset in passed if log.alive(offset)]
        self._trace.add(
            f"  {log.name}/{group.name} #{group.sequence} next {body.next} removed {removed}"
            f" again {again} fresh {fresh}"
        )
        lost = [offset for offset in removed if offset not in group.pending]
        if lost:
            self._wrong(group, n, f"{lost} leave the list, and were not on it")
        expired = [
            offset
            for offset in removed
            if offset in group.pending and group.pending[offset].expire_ms <= time_ms
        ]
        self._counted(n, group, body, log, removed, expired, passed)
        for offset in removed:
            group.pending.pop(offset, None)
        retry = (body.retry_ms - time_ms) / 1000
        expire = (body.expire_ms - time_ms) / 1000
        for offset in again:
            waiting = group.pending.get(offset)
            if waiting is None:
                self._wrong(group, n, f"{offset} comes again, and is not pending")
            elif waiting.retry_ms > time_ms or waiting.expire_ms <= time_ms:
                self._wrong(group, n, f"{offset} comes again at {time_ms}: {waiting}")
            else:
                waiting.retry_ms, waiting.due = body.retry_ms, now + retry
                waiting.deliveries += 1
        self._delivered_new(n, group, body, log, passed, living)
        for offset in fresh:
            group.pending[offset] = Waiting(
                body.retry_ms, body.expire_ms, 1, now + retry, now + expire
            )
        if fresh and len(group.pending) > group.max_pending:
            self._wrong(group, n, f"{len(group.pending)} are pending, of {group.max_pending}")
        # A delivery sets times, if only "never"; an acknowledgement sets none.
        acks = body.expire_ms == 0
        group.next, group.expired, group.skipped = body.next, body.expired, body.skipped
        self._effects.append(
            Effect(n, group.id, again, fresh, removed, passed, living, bool(body.retry_ms), acks)
        )

    def _moved(self, log: Log, group: Group, body: GroupOperation) -> bool:
        """Whether a caller asked for this place, and nothing else happened."""
        still = not len(body.again) and not len(body.fresh)
        still &= (body.expired, body.skipped) == (group.expired, group.skipped)
        wanted = self.moves.get((log.name, group.name), set())
        return still and (body.next in wanted or ANYWHERE in wanted)

    def _delivered_new(
        self,
        n: int,
        group: Group,
        body: GroupOperation,
        log: Log,
        passed: range,
        living: list[int],
    ) -> None:
        if self._moved(log, group, body):
            return
        if body.next < group.next:
            self._wrong(group, n, f"went back from {group.next} to {body.next}")
        # What was written and evicted in this very commit may be passed: nobody will ever read it.
        if body.next > max(group.next, log.end_at(n - 1), log.first):
            self._wrong(group, n, f"passes {body.next - 1}, which was not durable before")
        fresh = body.fresh.tolist()
        if any(offset not in passed for offset in fresh):
            self._wrong(group, n, f"{fresh} are not new: {passed}")
        over = sorted(set(living) - set(fresh)) if body.retry_ms else []
        if over:
            self._wrong(group, n, f"passes over {over}")

    def _counted(
        self,
        n: int,
        group: Group,
        body: GroupOperation,
        log: Log,
        removed: list[int],
        expired: list[int],
        passed: range,
    ) -> None:
        gone = body.expired - group.expired
        if gone and gone != len(expired):
            self._wrong(group, n, f"counts {gone} as expired; they are {expired}")
        skipped = body.skipped - group.skipped
        most = len(passed) - len(body.fresh) + len(removed) - gone
        # Without a retry time the list of deliveries is not in the operation.
        if not (most if body.retry_ms else 0) <= skipped <= most:
            self._wrong(group, n, f"counts {skipped} as skipped, of {most}")
        dead = self._history.log(group.dead) if group.dead else None
        if gone and group.dead:
            fresh = [] if dead is None else dead.entries[dead.end_at(n - 1) :]
            buried = [entry.data for entry in fresh]
            missing = [
                offset
                for offset in expired
                if log.alive(offset) and log.entries[offset].data not in buried
            ]
            if missing:
                self._wrong(group, n, f"{missing} expired, and are not in {group.dead}")

    # -- what callers were told

    def _since(self, n: int) -> list[Effect]:
        """Effects of later commits, the oldest first: answers leave in the order of commits."""
        return self._effects[bisect_right(self._effects, n, key=lambda effect: effect.n) :]

    def delivered(
        self, log: Log, name: str, n: int, offsets: list[int], *, retried: bool
    ) -> str | None:
        """A read of this group, begun after commit n, was answered with these entries."""
        for effect in self._since(n):
            group = self.groups[effect.group_id]
            if effect.told or (group.log_id, group.name) != (log.id, name):
                continue
            if retried:
                match = effect.retried and effect.again + effect.fresh == offsets
            else:
                may = {*effect.removed, *effect.passed}
                match = not effect.retried and set(effect.living) <= set(offsets) <= may
            if match:
                effect.told = True
                return None
        return f"{log.name}/{name}: {offsets} were delivered, and no commit since {n} says so"

    def acked(self, log: Log, name: str, n: int, wanted: set[int], count: int) -> str | None:
        """An acknowledgement, begun after commit n, was answered with a count."""
        for effect in self._since(n):
            group = self.groups[effect.group_id]
            if effect.told or (group.log_id, group.name) != (log.id, name) or not effect.acks:
                continue
            if len(effect.removed) == count and wanted.issuperset(effect.removed):
                effect.told = True
                return None
        return f"{log.name}/{name}: {count} were acknowledged, and no commit since {n} says so"
