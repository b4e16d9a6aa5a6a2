"""Reading a log: one floor lookup and arithmetic to seek, then a scan.

Contract     `read` gives one element per offset, in either direction: a Message, or None where the
             entry is evicted, compacted or expired; those count. It never gives more than the log
             in `state` holds. `read_nodes` gives the nodes of a range, `to_arrow` its columns with
             a row for every offset that is not evicted. With `wanted`, which judges headers, a node
             that is not wanted is not opened: its header comes in its place.
Races        Nodes may be merged, folded or collected while they are read. What a merge moved is
             found by a second floor lookup; what was evicted is told by the log row. A node that
             is missing after that is corruption.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import overload

import msgspec
import pyarrow as pa

from penstock.clock import give_way
from penstock.codec.keys import decode_node_key, log_key, node_key, nodes_prefix, staged_key
from penstock.codec.logrow import decode_log
from penstock.codec.node import (
    LINK,
    Header,
    Node,
    decode_columns,
    decode_header,
    decode_link,
    decode_linked,
    linked_header,
)
from penstock.errors import CorruptError, InvalidError, NotFoundError
from penstock.log.arrow import SCHEMA, to_batch
from penstock.log.batch import NODE_ENTRIES
from penstock.log.cache import NodeCache, Place
from penstock.log.state import LogState, Readable
from penstock.store.port import Reader, Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Rows of a scan that are in memory at once; every one of them is needed.
_SCAN_ROWS = 32
#: Who reads on behind a small node in the cache gets up to so many more with one look, until they
#: are as large together as that many small ones.
AHEAD_NODES = 8
AHEAD_NODE_BYTES = 256 << 10
#: Rows of such a look that are in memory at once: nobody knows how large those behind are.
_AHEAD_ROWS = 2
#: How many messages are made before others have their turn.
STEP_ENTRIES = 1000


#: Entries low <= i < high of a node, counted within it.
Piece = tuple[Node, int, int]
#: The same of a node that was not wanted.
Skipped = tuple[Header, int, int]
#: Whether a node must be opened. A link row is asked about first, then what it links to, which has
#: place and time of its link.
Wanted = Callable[[Header], bool]


class Message(msgspec.Struct, frozen=True, gc=False):
    """An entry of a stream."""

    offset: int
    tag: str  # bytes that are not UTF-8 are shown as surrogates
    data: bytes
    time_ms: int
    meta: bytes | None = None

    @property
    def time(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=self.time_ms)


async def read(
    store: Reader,
    state: LogState,
    offset: int,
    count: int,
    *,
    reverse: bool = False,
    cache: NodeCache | None = None,
) -> list[Message | None]:
    """Up to `count` entries from `offset` on; `reverse` goes down, from the last at the highest."""
    low, high = read_range(state, offset, count, reverse=reverse)
    pieces = [piece async for piece in read_nodes(store, state, low, high, cache=cache)]
    return entries_of(pieces, low, high, reverse=reverse)


def entries_of(
    pieces: Iterable[tuple[Node, int, int]], low: int, high: int, *, reverse: bool = False
) -> list[Message | None]:
    """One element per offset low <= offset < high, from pieces of nodes in order."""
    found: list[Message | None] = []
    for node, start, stop in pieces:
        # What is missing before this node was evicted, before the read or during it.
        found += [None] * (node.first + start - low - len(found))
        found += messages(node, start, stop)
    found += [None] * (high - low - len(found))
    if reverse:
        found.reverse()
    return found


async def entries_in_steps(
    pieces: Iterable[tuple[Node, int, int]], low: int, high: int, *, reverse: bool = False
) -> list[Message | None]:
    """The same for a loop that others share: they have their turn between two steps."""
    found: list[Message | None] = []
    shared = 0
    for node, start, stop in pieces:
        found += entries_of([(node, start, stop)], low + len(found), node.first + stop)
        if len(found) - shared >= STEP_ENTRIES:
            shared = len(found)
            await give_way()
    found += [None] * (high - low - len(found))
    if reverse:
        found.reverse()
    return found


async def living_in_steps(pieces: Iterable[Piece]) -> list[Message]:
    """The entries of these pieces that are alive, in such steps."""
    found: list[Message] = []
    shared = 0
    for piece in pieces:
        if len(found) - shared >= STEP_ENTRIES:
            shared = len(found)
            await give_way()
        found += [message for message in messages(*piece) if message is not None]
    return found


def read_range(state: LogState, offset: int, count: int, *, reverse: bool) -> tuple[int, int]:
    """-> low, high: the offsets that a read of these arguments answers with."""
    if offset < 0:
        raise InvalidError(f"offset {offset} is negative")
    if count < 0:
        raise InvalidError(f"count {count} is negative")
    if reverse:
        high = min(offset + 1, state.next)
        return max(high - count, 0), high
    low = min(offset, state.next)
    return low, min(low + count, state.next)


def messages(node: Node, low: int, high: int) -> list[Message | None]:
    """The entries low <= i < high, counted within the node."""
    first = node.first
    found: list[Message | None] = [
        Message(first + i, tag.decode("utf-8", "surrogateescape") if tag else "", data, time, meta)
        for i, tag, data, time, meta in zip(
            range(low, high),
            node.tag_list(low, high),
            node.data_list(low, high),
            node.time_list(low, high),
            node.meta_list(low, high),
            strict=True,
        )
    ]
    alive = node.alive()
    if alive is not None:
        for i in (~alive[low:high]).nonzero()[0].tolist():
            found[i] = None
    return found


async def to_arrow(store: Reader, state: LogState, low: int, high: int) -> pa.Table:
    """Columns of the entries low <= offset < high that are not evicted."""
    batches = [to_batch(*piece) async for piece in read_nodes(store, state, low, high)]
    return pa.Table.from_batches(batches, SCHEMA)


@overload
def read_nodes(
    store: Reader, state: Readable, low: int, high: int, *, cache: NodeCache | None = None
) -> AsyncGenerator[Piece, None]: ...


@overload
def read_nodes(
    store: Reader, state: Readable, low: int, high: int, *, wanted: Wanted
) -> AsyncGenerator[Piece | Skipped, None]: ...


async def read_nodes(
    store: Reader,
    state: Readable,
    low: int,
    high: int,
    *,
    cache: NodeCache | None = None,
    wanted: Wanted | None = None,
) -> AsyncGenerator[Piece | Skipped, None]:
    """The nodes that hold low <= offset < high, in order, and which of their entries are meant.

    Those are counted within the node, the end exclusive. No offset comes twice, though a merge may
    make two nodes overlap; a gap between two of them was evicted while they were read.
    """
    log_id = state.log_id
    expected, high = max(low, state.first), min(high, state.next)
    missing = None
    while expected < high:
        node = cache.find(log_id, expected) if cache else None
        if node is not None:
            start, expected = expected, min(node.end, high)
            yield node, start - node.first, expected - node.first
            continue
        ahead = _ahead(state, expected, cache)
        reading = cache.reading() if cache else nullcontext(set[Place]())
        with reading as forgotten:
            async for found in _walk(
                store, log_id, expected, high, ahead, cache, forgotten, wanted
            ):
                start, expected = expected, min(found.end, high)
                yield found, start - found.first, expected - found.first  # type: ignore[misc]
        if expected < high:
            row = await store.get(log_key(log_id))
            if row is None:
                raise NotFoundError(f"log {log_id} was deleted while it was read")
            first = decode_log(row, log_id).first
            if first <= expected and missing == expected:
                raise CorruptError(f"log {log_id}: the node of offset {expected} is missing")
            missing = expected = max(expected, first)


def _ahead(state: Readable, expected: int, cache: NodeCache | None) -> int:
    """Up to which offset a look brings nodes into the cache; 0: the look is not for a neighbour."""
    before = cache.find(state.log_id, expected - 1) if cache and expected else None
    if before is None or before.end != expected or before.memory_bytes > AHEAD_NODE_BYTES:
        return 0
    return min(expected + AHEAD_NODES * (before.end - before.first), state.next)


async def _walk(
    store: Reader,
    log_id: int,
    expected: int,
    high: int,
    ahead: int,
    cache: NodeCache | None,
    forgotten: set[Place],
    wanted: Wanted | None,
) -> AsyncIterator[Node | Header]:
    """Neighbouring nodes from the one that holds `expected`; ends early where one is missing."""
    nodes: list[Node | Header] = []
    if ahead:
        size = 0
        # All of them before the first is used: many who ask for the rest of a log take one node.
        with suppress(CorruptError):  # who gets there hears of it
            async for found in _neighbours(
                store, log_id, expected, ahead, cache, forgotten, wanted, _AHEAD_ROWS
            ):
                nodes.append(found)
                size += found.memory_bytes if isinstance(found, Node) else 0
                if len(nodes) >= AHEAD_NODES or size >= AHEAD_NODES * AHEAD_NODE_BYTES:
                    break
    if not nodes:  # or a merge moved it into a node that begins before
        row = await floor_node(store, log_id, expected)
        if row is None:
            return
        node = await _open(store, log_id, *row, wanted)
        if node is None or node.end <= expected:
            return
        if cache and isinstance(node, Node):
            cache.keep(log_id, node, forgotten)
        nodes.append(node)
    for node in nodes:
        yield node
        expected = node.end
        if expected >= high:
            return
    async for node in _neighbours(store, log_id, expected, high, cache, forgotten, wanted):
        yield node


async def _neighbours(
    store: Reader,
    log_id: int,
    expected: int,
    high: int,
    cache: NodeCache | None,
    forgotten: set[Place],
    wanted: Wanted | None,
    batch_rows: int = _SCAN_ROWS,
) -> AsyncIterator[Node | Header]:
    """The nodes from the one that begins with `expected`, while each begins where one ended."""
    scan = store.scan(node_key(log_id, expected), node_key(log_id, high), batch_rows=batch_rows)
    async for rows in scan:
        for key, value in rows:
            if decode_node_key(key)[1] != expected:
                return
            node = await _open(store, log_id, key, value, wanted)
            if node is None:
                return
            if cache and isinstance(node, Node):
                cache.keep(log_id, node, forgotten)
            yield node
            expected = node.end


async def open_node(store: Reader, log_id: int, key: bytes, value: bytes) -> Node | None:
    """The node of a row, through its link if it is one; None where it is gone meanwhile."""
    node = await _open(store, log_id, key, value, None)
    assert not isinstance(node, Header), "everything is wanted"
    return node


async def _open(
    store: Reader, log_id: int, key: bytes, value: bytes, wanted: Wanted | None
) -> Node | Header | None:
    header = node_header(log_id, key, value)
    if wanted and not wanted(header):
        return header
    what = f"log {log_id} node {header.first}"
    if not header.flags & LINK:
        return decode_columns(header, value, what)
    staged = decode_link(header, value, what)
    columns = await store.get(staged_key(staged.staging_id, staged.writer, staged.n))
    if columns is not None:
        what = f"{what}, staged as {staged}"
        if wanted:
            linked = linked_header(header, columns, what)
            if not wanted(linked):
                return linked
        return decode_linked(header, columns, what)
    # Folded between the two reads: then the row is the node itself now.
    again = await store.get(key)
    if again is None:
        return None
    if again != value:
        return await _open(store, log_id, key, again, wanted)
    # Evicted or deleted before it was folded: then only its staged row went, and the link waits
    # to be collected.
    row = await store.get(log_key(log_id))
    if row is None or header.end <= decode_log(row, log_id).first:
        return None
    raise CorruptError(f"{what}: its staged node is missing: {staged}")


async def floor_node(store: Reader, log_id: int, offset: int) -> Row | None:
    """The row of the last node that begins at or below this offset.

    Looked for first where the node of the offset can begin: the engine opens every table that may
    hold a part of the range, which from the beginning of the log on is nearly every one. Seeks took
    a fifth to a third less of the processor, into ten and into a hundred million entries.
    """
    key, low = node_key(log_id, offset), node_key(log_id, max(offset - NODE_ENTRIES + 1, 0))
    return await store.floor(key, low=low) or await store.floor(key, low=nodes_prefix(log_id))


def node_header(log_id: int, key: bytes, value: bytes) -> Header:
    """The header of a node's row, verified against its key."""
    first = decode_node_key(key)[1]
    header = decode_header(value, f"log {log_id} node {first}")
    if header.first != first:
        raise CorruptError(f"log {log_id} node {first}: first offset is {header.first}")
    return header
