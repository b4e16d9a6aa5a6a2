"""What is kept in memory of an open log: small numbers, and the fragments that are not merged yet.

Contract     `LogState` is derivable from rows at any time: the log row, then the nodes from its
             `settled` offset on (a few dozen at most). There is no row for the tail: the next
             offset is the end of the last node. `None` for a log means that it is deleted or was
             never made.
Words        A *run* is a row of neighbouring fragments that will become one node. The active run
             still grows; closed ones wait for the merge.
Invariants   S1  lowest <= first <= next, and settled <= next                         (check.py)
             S2  every fragment at or above `first` is in a run; none of them lies below `settled`
             S3  `stored_bytes` is the sum of the sizes of the log's node rows        (check.py)
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.codec.keys import (
    KeyType,
    decode_node_key,
    holds_prefix,
    log_key,
    node_key,
    nodes_prefix,
    open_key,
    prefix_end,
)
from penstock.codec.logrow import LogRow, decode_log, encode_log
from penstock.codec.node import FRAGMENT, HEADER_BYTES, Body, Header, decode_header
from penstock.codec.once import decode_hold
from penstock.errors import ConflictError, CorruptError, NotFoundError
from penstock.log.batch import NODE_BYTES, NODE_ENTRIES
from penstock.log.decision import StateKey, View
from penstock.store.port import Reader

#: How many rows, or bytes of them, an opening may have to read besides the fragments.
SETTLE_ROWS = 32
SETTLE_BYTES = 4 << 20
#: What a fragment costs in memory besides its body.
FRAGMENT_OVERHEAD = 256
#: How often a log that changes meanwhile is looked at again.
LOOKS = 16


class Fragment(msgspec.Struct, frozen=True, gc=False):
    first: int
    count: int
    raw_bytes: int  # of the body, before compression: what counts towards a full node
    stored_bytes: int  # of the whole value
    checksum: int  # of the body: tells whether the row is still the same
    time_ms: int
    body: Body | None = None  # spares the merge a read; None after a restart

    @property
    def end(self) -> int:
        return self.first + self.count

    def same(self, other: Fragment) -> bool:
        return (self.first, self.count, self.checksum) == (
            other.first,
            other.count,
            other.checksum,
        )


class Run(msgspec.Struct, frozen=True):
    """Neighbouring fragments, in order."""

    fragments: tuple[Fragment, ...] = ()
    entries: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    @property
    def first(self) -> int:
        return self.fragments[0].first

    @property
    def full(self) -> bool:
        return self.entries >= NODE_ENTRIES or self.raw_bytes >= NODE_BYTES

    def fits(self, count: int, raw_bytes: int) -> bool:
        return self.entries + count <= NODE_ENTRIES and self.raw_bytes + raw_bytes <= NODE_BYTES

    def with_fragment(self, fragment: Fragment) -> Run:
        assert not self.fragments or self.fragments[-1].end == fragment.first, "neighbours only"
        return Run(
            (*self.fragments, fragment),
            self.entries + fragment.count,
            self.raw_bytes + fragment.raw_bytes,
            self.stored_bytes + fragment.stored_bytes,
        )

    def same(self, other: Run) -> bool:
        return len(self.fragments) == len(other.fragments) and all(
            map(Fragment.same, self.fragments, other.fragments)
        )


NO_RUN = Run()


def make_run(fragments: Iterable[Fragment]) -> Run:
    kept = tuple(fragments)
    return Run(
        kept,
        sum(f.count for f in kept),
        sum(f.raw_bytes for f in kept),
        sum(f.stored_bytes for f in kept),
    )


class LogState(msgspec.Struct, frozen=True):
    log_id: int
    first: int = 0  # the exact eviction edge
    lowest: int = 0  # node rows below this are gone
    next: int = 0  # the offset that the next entry gets
    settled: int = 0  # an opening reads nodes from here on
    stored_bytes: int = 0  # of all node rows
    unsettled_bytes: int = 0  # of those at or above `settled`
    unsettled_rows: int = 0
    run: Run = NO_RUN  # the active one
    closed: tuple[Run, ...] = ()  # wait for the merge, oldest first
    holds: tuple[tuple[bytes, int], ...] = ()  # holder, offset

    @property
    def length(self) -> int:
        return self.next - self.first

    @property
    def memory_bytes(self) -> int:
        """About what it keeps alive; who keeps states may drop large ones and load them again."""
        run = self.run
        size = run.stored_bytes + FRAGMENT_OVERHEAD * len(run.fragments)
        for run in self.closed:
            size += run.stored_bytes + FRAGMENT_OVERHEAD * len(run.fragments)
        return size


class LogRange(msgspec.Struct, frozen=True):
    """What it takes to read a log, for processes that have no state of it."""

    log_id: int
    first: int  # what is below is evicted
    next: int


#: A log that can be read.
Readable = LogState | LogRange


def state_key(log_id: int) -> StateKey:
    return ("log", log_id)


def shown_log(view: View, log_id: int) -> LogState:
    """The log as this tick sees it; its `load` must have called `load_log`."""
    state: LogState | None = view.state(state_key(log_id))
    if state is None:
        raise NotFoundError(f"log {log_id} does not exist")
    return state


def log_row(state: LogState) -> bytes:
    return encode_log(
        LogRow(state.first, state.lowest, state.settled, state.stored_bytes - state.unsettled_bytes)
    )


def settle(state: LogState) -> LogState:
    """Move `settled` up to the active run once an opening would have to read too much below it.

    The caller writes the log row if the offset moved. While closed runs wait nothing moves, so that
    an opening finds them.
    """
    if state.closed:
        return state
    run = state.run
    if (
        state.unsettled_rows - len(run.fragments) < SETTLE_ROWS
        and state.unsettled_bytes - run.stored_bytes < SETTLE_BYTES
    ):
        return state
    return msgspec.structs.replace(
        state,
        settled=run.first if run.fragments else state.next,
        unsettled_bytes=run.stored_bytes,
        unsettled_rows=len(run.fragments),
    )


def resized(state: LogState, offset: int, delta_bytes: int) -> LogState:
    """A row at this offset was rewritten and grew. Below `settled` the log row is due."""
    unsettled = state.unsettled_bytes + (delta_bytes if offset >= state.settled else 0)
    return msgspec.structs.replace(
        state, stored_bytes=state.stored_bytes + delta_bytes, unsettled_bytes=unsettled
    )


def fragment_of(header: Header) -> Fragment:
    return Fragment(
        header.first,
        header.count,
        header.raw_bytes,
        HEADER_BYTES + header.stored_bytes,
        header.checksum,
        header.time_ms,
    )


async def load_log(view: View, log_id: int) -> LogState | None:
    """For `load`: have the log in memory, if it exists."""
    state: LogState | None = view.state(state_key(log_id))
    if state is None:
        state = await read_log(view.store, log_id)
        if state is not None:
            view.keep(state_key(log_id), state)
    return state


async def read_log(store: Reader, log_id: int) -> LogState | None:
    """The state from rows alone."""
    holds: list[tuple[bytes, int]] = []
    low = holds_prefix(log_id)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            reader = open_key(key, KeyType.HOLD)
            reader.u64_key("log id")
            holds.append((reader.terminated("holder"), decode_hold(value)))
    # A reader outside the one writer may see the log row of one commit and the nodes of a later
    # one, from which evicted rows are gone. What lies under a row that is still the same is true.
    found = await store.get(log_key(log_id))
    for _ in range(LOOKS):
        if found is None:
            return None
        row = decode_log(found, log_id)
        headers, gap = await _read_headers(store, log_id, max(row.settled, row.lowest))
        before, found = found, await store.get(log_key(log_id))
        if found == before:
            if gap:
                raise CorruptError(gap)
            return _rebuild(log_id, row, headers, tuple(holds))
    raise ConflictError(f"log {log_id} changes faster than it can be read")


async def _read_headers(store: Reader, log_id: int, low: int) -> tuple[list[Header], str]:
    """Headers of the nodes from `low` on; and what is wrong, if there is a gap."""
    headers: list[Header] = []
    end_key = prefix_end(nodes_prefix(log_id))
    async for rows in store.scan(node_key(log_id, low), end_key, batch_rows=64):
        for key, value in rows:
            header = decode_header(value, f"log {log_id} node {decode_node_key(key)[1]}")
            if header.first != low or decode_node_key(key)[1] != low:
                return headers, f"log {log_id}: node {header.first} follows offset {low}"
            headers.append(header)
            low = header.end
    return headers, ""


def _rebuild(
    log_id: int, row: LogRow, headers: list[Header], holds: tuple[tuple[bytes, int], ...]
) -> LogState:
    closed: list[Run] = []
    run = NO_RUN
    for header in headers:
        if not header.flags & FRAGMENT:
            closed += (run,) if run.fragments else ()
            run = NO_RUN
        elif header.end > row.first:
            fragment = fragment_of(header)
            if run.fragments and not run.fits(fragment.count, fragment.raw_bytes):
                closed.append(run)
                run = NO_RUN
            run = run.with_fragment(fragment)
            if run.full:
                closed.append(run)
                run = NO_RUN
    unsettled_bytes = sum(HEADER_BYTES + header.stored_bytes for header in headers)
    end = headers[-1].end if headers else 0
    return LogState(
        log_id,
        first=row.first,
        lowest=row.lowest,
        next=max(row.first, row.settled, end),
        settled=max(row.settled, row.lowest),
        stored_bytes=row.settled_bytes + unsettled_bytes,
        unsettled_bytes=unsettled_bytes,
        unsettled_rows=len(headers),
        run=run,
        closed=tuple(closed),
        holds=holds,
    )
