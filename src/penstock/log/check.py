"""The invariants of the log, looked at row by row: for tests, the simulator and `penstock check`.

Contract     `check_log(store)` reads every row of the log layer and returns what is wrong; an empty
             list is a clean store. It never raises for stored bytes, whatever they are.
Invariants   L1  the nodes of a log lie without gap or overlap from its lowest row to its end; its
                 edges are in order
             L2  every node decodes: checksums, lengths, tables; a link names a staged node of the
                 same count, of a staging that is linked
             L3  no living fragment lies below `settled`; the settled bytes are those of the rows
             L4  every row belongs to something: nodes, holds and producers to a log, staged nodes
                 to a staging that counted them, names to a log; or it lies in a garbage range,
                 as every evicted node does
             L5  ids in use were reserved
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from penstock.codec.catalogue import decode_catalogue_row
from penstock.codec.garbage import decode_garbage
from penstock.codec.idblock import decode_id_block
from penstock.codec.keys import (
    KeyType,
    Kind,
    Scope,
    decode_node_key,
    ids_key,
    open_key,
    prefix,
    prefix_end,
    staged_key,
)
from penstock.codec.logrow import LogRow, decode_log
from penstock.codec.node import (
    FRAGMENT,
    LINK,
    Header,
    decode_header,
    decode_link,
    decode_linked,
    decode_node,
    tag_signature,
)
from penstock.codec.once import decode_hold, decode_once
from penstock.codec.staging import Phase, StagingRow, decode_staging
from penstock.errors import CorruptError
from penstock.log.catalogue import Ids, decode_name_key
from penstock.log.fold import decode_staged_key
from penstock.store.port import Store


class Finding(msgspec.Struct, frozen=True):
    where: str
    what: str


class Summary(msgspec.Struct):
    """What was looked at."""

    logs: int = 0
    nodes: int = 0
    entries: int = 0
    stored_bytes: int = 0


class _Walk:
    """The cursor over the nodes of one log."""

    def __init__(self, row: LogRow) -> None:
        self.row = row
        self.expected = row.lowest
        self.started = False
        self.settled_bytes = 0


class Checker:
    """One pass over the store; findings and summary grow as it goes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.findings: list[Finding] = []
        self.summary = Summary()
        self.looked = 0  # rows so far: whether it goes on
        self._garbage: list[tuple[bytes, bytes]] = []
        self._logs: dict[int, _Walk] = {}
        self._stagings: dict[int, StagingRow] = {}
        self._named: set[int] = set()
        self._staged: set[tuple[int, int, int]] = set()

    async def run(self) -> None:
        await self._each(KeyType.GARBAGE, self._garbage_row)
        await self._each(KeyType.LOG, self._log_row)
        await self._each(KeyType.STAGING, self._staging_row)
        async for key, value in self._rows(KeyType.NODE):
            try:
                await self._node(key, value)
            except CorruptError as error:
                self._find(key, str(error))
        for log_id, walk in self._logs.items():
            self._end_of_log(log_id, walk)
        await self._each(KeyType.STAGED, self._staged_row)
        self._counted_nodes()
        await self._each(KeyType.HOLD, self._hold_row)
        await self._each(KeyType.ONCE, self._once_row)
        await self._each(KeyType.NAME, self._name_row)
        for log_id in sorted(self._logs.keys() - self._named):
            self._find(f"log {log_id}", "no name leads to it")
        await self._ids()

    async def _rows(self, kind: KeyType) -> AsyncIterator[tuple[bytes, bytes]]:
        low = prefix(kind)
        async for rows in self._store.scan(low, prefix_end(low), batch_rows=64):
            for row in rows:
                self.look()
                yield row

    def look(self) -> None:
        self.looked += 1

    async def _each(self, kind: KeyType, look: Callable[[bytes, bytes], None]) -> None:
        async for key, value in self._rows(kind):
            try:
                look(key, value)
            except CorruptError as error:
                self._find(key, str(error))

    def _find(self, key: bytes | str, what: str) -> None:
        self.findings.append(Finding(key if isinstance(key, str) else key.hex(), what))

    def _is_garbage(self, key: bytes) -> bool:
        return any(low <= key < high for low, high in self._garbage)

    # -- rows that others refer to

    def _garbage_row(self, key: bytes, value: bytes) -> None:
        self._garbage.append(decode_garbage(key, value))

    def _log_row(self, key: bytes, value: bytes) -> None:
        log_id = open_key(key, KeyType.LOG).u64_key("log id")
        self._logs[log_id] = _Walk(decode_log(value, log_id))
        self.summary.logs += 1

    def _staging_row(self, key: bytes, value: bytes) -> None:
        staging_id = open_key(key, KeyType.STAGING).u64_key("staging id")
        row = self._stagings[staging_id] = decode_staging(value, staging_id)
        missing = {part.writer for part in row.parts} - dict(row.writers).keys()
        if missing:
            self._find(key, f"parts of writers that staged nothing: {sorted(missing)}")

    # -- nodes

    async def _node(self, key: bytes, value: bytes) -> None:
        log_id, first = decode_node_key(key)
        what = f"log {log_id} node {first}"
        header = decode_header(value, what)
        if header.first != first:
            self._find(key, f"{what}: first offset is {header.first}")
        walk = self._logs.get(log_id)
        if walk is None:
            if not self._is_garbage(key):
                self._find(key, f"{what}: there is no such log")
            return
        if first != walk.expected:
            kind = "overlaps" if first < walk.expected else "leaves a gap"
            self._find(key, f"{what} {kind}: the one before ends at {walk.expected}")
        walk.expected = max(walk.expected, first + header.count)
        if first < walk.row.settled:
            walk.settled_bytes += len(value)
            if header.end > walk.row.settled:
                self._find(key, f"{what} reaches over the settled offset {walk.row.settled}")
            if header.flags & FRAGMENT and header.end > walk.row.first:
                self._find(key, f"{what}: a fragment below the settled offset {walk.row.settled}")
        evicted = header.end <= walk.row.first
        if evicted and not self._is_garbage(key):
            self._find(key, f"{what} is evicted, and nothing will collect it")
        self.summary.nodes += 1
        self.summary.entries += header.count
        self.summary.stored_bytes += len(value)
        await self._columns(header, value, what, evicted=evicted)

    async def _columns(self, header: Header, value: bytes, what: str, *, evicted: bool) -> None:
        if not header.flags & LINK:
            node = decode_node(value, what)
            # Who reads by tag would not open it.
            if (
                node.signature
                and tag_signature(set(node.tag_list(0, node.count))) & ~node.signature
            ):
                raise CorruptError(f"{what}: has tags that its signature leaves out")
            return
        staged = decode_link(header, value, what)
        row = self._stagings.get(staged.staging_id)
        columns = await self._store.get(staged_key(staged.staging_id, staged.writer, staged.n))
        if evicted:
            return
        if row is None or row.phase is not Phase.LINKED or columns is None:
            raise CorruptError(f"{what}: its staged node is missing: {staged}")
        decode_linked(header, columns, what)

    def _end_of_log(self, log_id: int, walk: _Walk) -> None:
        where, row = f"log {log_id}", walk.row
        if max(row.first, row.settled) > walk.expected:
            self._find(
                where,
                f"ends at {walk.expected}, below its edge {row.first} or settled {row.settled}",
            )
        if walk.settled_bytes != row.settled_bytes:
            self._find(
                where,
                f"{walk.settled_bytes} bytes lie below the settled offset, the row says "
                f"{row.settled_bytes}",
            )

    # -- rows that refer to others

    def _staged_row(self, key: bytes, value: bytes) -> None:
        staged = decode_staged_key(key)
        what = f"staged node {staged}"
        node = decode_node(value, what)
        if self._is_garbage(key):
            return
        self._staged.add((staged.staging_id, staged.writer, staged.n))
        row = self._stagings.get(staged.staging_id)
        counts = () if row is None else dict(row.writers).get(staged.writer, ())
        if staged.n >= len(counts):
            self._find(key, f"{what}: no staging counts it")
        elif counts[staged.n] != node.count:
            self._find(key, f"{what}: {node.count} entries, its staging says {counts[staged.n]}")

    def _counted_nodes(self) -> None:
        """Every node that an open staging counts is there: it may still be linked."""
        for staging_id, row in self._stagings.items():
            for writer, counts in row.writers if row.phase is Phase.OPEN else ():
                for n in range(len(counts)):
                    if (staging_id, writer, n) not in self._staged:
                        self._find(
                            f"staging {staging_id}", f"node {n} of writer {writer} is missing"
                        )

    def _hold_row(self, key: bytes, value: bytes) -> None:
        reader = open_key(key, KeyType.HOLD)
        log_id = reader.u64_key("log id")
        reader.terminated("holder")
        reader.end()
        decode_hold(value)
        if log_id not in self._logs and not self._is_garbage(key):
            self._find(key, f"a hold on log {log_id}, which does not exist")

    def _once_row(self, key: bytes, value: bytes) -> None:
        reader = open_key(key, KeyType.ONCE)
        scope, owner = reader.u8("scope"), reader.u64_key("owner")
        reader.terminated("id")
        reader.end()
        decode_once(value)
        if scope == Scope.PRODUCER and owner not in self._logs and not self._is_garbage(key):
            self._find(key, f"a producer of log {owner}, which does not exist")

    def _name_row(self, key: bytes, value: bytes) -> None:
        kind, name = decode_name_key(key)
        row = decode_catalogue_row(value)
        self._named.add(row.id)
        if kind in (Kind.STREAM, Kind.INTERNAL) and row.id not in self._logs:
            self._find(key, f"{kind.name.lower()} {name!r}: log {row.id} does not exist")

    async def _ids(self) -> None:
        used = {
            Ids.NAMED: max(self._logs, default=0),
            Ids.STAGING: max(self._stagings, default=0),
        }
        for space, highest in used.items():
            value = await self._store.get(ids_key(space))
            try:
                reserved = 0 if value is None else decode_id_block(value).next_id
            except CorruptError as error:
                self._find(ids_key(space), str(error))
                continue
            if highest and highest >= reserved:
                self._find(ids_key(space), f"id {highest} is in use, only {reserved} are reserved")


async def check_log(store: Store) -> list[Finding]:
    checker = Checker(store)
    await checker.run()
    return checker.findings
