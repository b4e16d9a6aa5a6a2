"""The truth about logs: every entry, as it was in the commit that made it durable.

Contract     `committed` looks at each commit as it becomes durable, whoever wrote it and whether or
             not anybody will be told. So there is no "unknown outcome" in here: what a caller was
             told is compared with what happened.
Invariants   H1  offsets are dense, unique and never given again, also when everything was evicted
             H2  a batch is there as a whole, in order, in one commit; no entry is there twice
             H3  an entry never changes; it dies only below the edge or by compaction, and then for
                 good; what compaction takes has a successor of the same tag
             H4  time never falls, and is that of the commit
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from penstock.codec.catalogue import decode_catalogue_row
from penstock.codec.keys import KeyType, Kind, decode_node_key, key_type, open_key
from penstock.codec.node import decode_header
from penstock.errors import PenstockError
from penstock.log.catalogue import decode_name_key
from penstock.log.read import Message, read
from penstock.log.state import LogState, read_log
from penstock.sim.clock import SimClock
from penstock.sim.peek import at_once, peek
from penstock.sim.process import SimDisk
from penstock.sim.trace import Trace
from penstock.store.memory import MemoryStore
from penstock.store.port import Writes


class Log:
    """One log, from its first commit to its last."""

    def __init__(self, log_id: int, name: str) -> None:
        self.id = log_id
        self.name = name
        self.entries: list[Message] = []
        self.first = 0
        self.deleted = False
        #: Offset -> the commit that made a hole of it.
        self.holes: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = [(0, 0)]  # commit, end
        self._firsts: list[tuple[int, int]] = [(0, 0)]
        self.last_of_tag: dict[str, int] = {}

    @property
    def end(self) -> int:
        return len(self.entries)

    def alive(self, offset: int) -> bool:
        there = self.first <= offset < self.end and not self.deleted
        return there and offset not in self.holes

    def end_at(self, n: int) -> int:
        """Where it ended after commit n."""
        return self._ends[bisect_right(self._ends, (n, 1 << 62)) - 1][1]

    def first_at(self, n: int) -> int:
        return self._firsts[bisect_right(self._firsts, (n, 1 << 62)) - 1][1]

    def dead_at(self, offset: int, n: int) -> bool:
        return offset < self.first_at(n) or self.holes.get(offset, n + 1) <= n

    def grow(self, n: int, entries: Iterable[Message]) -> None:
        for entry in entries:
            self.last_of_tag[entry.tag] = len(self.entries)
            self.entries.append(entry)
        self._ends.append((n, self.end))

    def move(self, n: int, first: int) -> None:
        self.first = first
        self._firsts.append((n, first))


class History:
    def __init__(self, disk: SimDisk, clock: SimClock, trace: Trace) -> None:
        self._disk = disk
        self._clock = clock
        self._trace = trace
        self._time_ms = 0
        self.logs: dict[int, Log] = {}
        #: Name -> which log it meant from which commit on; None: there was none.
        self._names: dict[str, list[tuple[int, int | None]]] = {}
        #: Where each entry is: data is unique in a log, but for what is moved to a dead stream. A
        #: log that was deleted has forgotten its producers: they may repeat themselves in the next.
        self._places: dict[tuple[int, bytes], int] = {}
        self.dead_names: set[str] = set()
        self.compacted_names: set[str] = set()

    def log(self, name: str) -> Log | None:
        """What the name means now."""
        _, log_id = self._names.get(name, [(0, None)])[-1]
        return None if log_id is None else self.logs[log_id]

    def since(self, name: str, n: int) -> list[Log]:
        """What the name meant at some time since commit n, the oldest first."""
        versions = self._names.get(name, [])
        start = max(bisect_right(versions, n, key=lambda version: version[0]) - 1, 0)
        return [self.logs[log_id] for _, log_id in versions[start:] if log_id is not None]

    def replaced_since(self, name: str, n: int) -> bool:
        """Whether the name began to mean something else after commit n."""
        versions = self._names.get(name, [])
        return not versions or versions[-1][0] > n

    def committed(self, n: int, writes: Writes, time_ms: int) -> None:
        if time_ms < self._time_ms:
            self._trace.fail(f"commit {n}: time falls from {self._time_ms} to {time_ms}")
        self._time_ms = time_ms
        store = peek(self._disk, self._clock)
        touched: dict[int, list[tuple[int, int]]] = {}
        for key, value in writes:
            kind = key_type(key)
            if kind is KeyType.NAME:
                self._named(n, key, value)
            elif kind is KeyType.LOG:
                touched.setdefault(open_key(key, KeyType.LOG).u64_key("log id"), [])
            elif kind is KeyType.NODE:
                log_id, first = decode_node_key(key)
                nodes = touched.setdefault(log_id, [])
                if value is not None:
                    nodes.append((first, decode_header(value, "node").count))
        for log_id, nodes in touched.items():
            try:
                self._look(store, n, log_id, nodes, time_ms)
            except PenstockError as error:
                self._trace.fail(f"commit {n}: log {log_id} cannot be read: {error!r}")

    def _named(self, n: int, key: bytes, value: bytes | None) -> None:
        kind, name = decode_name_key(key)
        if kind is not Kind.STREAM:
            return
        versions = self._names.setdefault(name, [])
        log_id = None if value is None else decode_catalogue_row(value).id
        if log_id is not None and versions and versions[-1][1] == log_id:
            return  # only its options changed
        if log_id is not None:
            if log_id in self.logs:
                self._trace.fail(f"commit {n}: log {log_id} is used again, for {name}")
            self.logs[log_id] = Log(log_id, name)
        versions.append((n, log_id))

    def _look(
        self,
        store: MemoryStore,
        n: int,
        log_id: int,
        nodes: list[tuple[int, int]],
        time_ms: int,
    ) -> None:
        log = self.logs.get(log_id)
        state = at_once(read_log(store, log_id))
        if log is None:
            return  # made and deleted in one commit
        if state is None:
            log.deleted = True
            return
        self._grown(store, log, state, n, time_ms)
        if state.first < log.first:
            self._trace.fail(f"{log.name}: its edge went back from {log.first} to {state.first}")
        if state.first != log.first:
            log.move(n, state.first)
        for first, count in nodes:
            self._same(store, log, state, n, first, count)

    def _grown(self, store: MemoryStore, log: Log, state: LogState, n: int, time_ms: int) -> None:
        if state.next < log.end:
            self._trace.fail(f"{log.name}: ended at {log.end}, and now at {state.next}")
        if state.next <= log.end:
            return
        # Below its edge nothing can be read: what was evicted in the commit that wrote it.
        whole = LogState(**{f: getattr(state, f) for f in state.__struct_fields__} | {"first": 0})
        found = at_once(read(store, whole, log.end, state.next - log.end))
        entries = [entry for entry in found if entry is not None]
        if len(entries) != len(found):
            self._trace.fail(f"{log.name}: grew by {len(found)} entries, {len(entries)} are there")
            return
        self._trace.add(f"  {log.name} [{log.id}] grows {log.end}-{state.next - 1} in commit {n}")
        if log.name not in self.dead_names:
            self._whole_batches(log, entries)
        for entry in entries:
            if entry.time_ms != time_ms:
                self._trace.fail(f"{log.name} {entry.offset}: time {entry.time_ms}, not {time_ms}")
        log.grow(n, entries)

    def _whole_batches(self, log: Log, entries: list[Message]) -> None:
        expected: list[bytes] = []
        for entry in entries:
            if not expected:
                batch, index, count = entry.data.rsplit(b".", 2)
                expected = [b"%s.%d.%s" % (batch, i, count) for i in range(int(count))]
                if int(index) != 0:
                    self._trace.fail(
                        f"{log.name} {entry.offset}: the batch begins with {entry.data!r}"
                    )
                    return
            if entry.data != expected.pop(0):
                self._trace.fail(f"{log.name} {entry.offset}: {entry.data!r} is out of order")
                return
            known = self._places.setdefault((log.id, entry.data), entry.offset)
            if known != entry.offset:
                self._trace.fail(f"{log.name} {entry.offset}: {entry.data!r} is also at {known}")
        if expected:
            self._trace.fail(f"{log.name}: a batch ends before {expected[0]!r}")

    def _same(
        self, store: MemoryStore, log: Log, state: LogState, n: int, first: int, count: int
    ) -> None:
        """A row that was written shows what was always there, or a hole that may be."""
        found = at_once(read(store, state, first, count))
        for offset, entry in enumerate(found, first):
            if offset < state.first:
                continue
            if entry is not None:
                if entry != log.entries[offset]:
                    self._trace.fail(f"{log.name} {offset}: {log.entries[offset]} became {entry}")
                if offset in log.holes:
                    self._trace.fail(f"{log.name} {offset}: a hole came to life again")
                continue
            if offset in log.holes:
                continue
            log.holes[offset] = n
            tag = log.entries[offset].tag
            allowed = log.name in self.compacted_names and tag
            if not allowed or log.last_of_tag[tag] <= offset:
                self._trace.fail(f"{log.name} {offset}: compacted, though its tag {tag!r} stays")
