"""What a queue holds, as columns: the pages of its states, one after the other.

Contract     `state_columns` gives batches of `state_schema` over available, in-flight, done and
             failed messages. Pages come through the loader of the broker (state.py), so operations
             that are not in them yet are applied; a few are in memory at once, however long the
             queue is. `queue_ranges` cuts the pages into ranges for several readers: at one
             checkpoint always the same ones, and together every message once.
             All of it is for a store that stands still: where messages move meanwhile, one may show
             in two states, or in none.
States       A message that is delayed or backing off is available, with `visible_at` in the future.
             A lease that ended stays in flight until the broker looks (broker/pagekeeping.py,
             `flush_queue`, does, so that a checkpoint behind it says what stats say).
Not here     headers, payloads and reasons, which stand elsewhere (statejoin.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.codec.queueoperation import LINES, PageKind, join
from penstock.codec.queuestate import Entries
from penstock.errors import CorruptError, InvalidError
from penstock.log.columns import Counts
from penstock.log.decision import StateKey
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.queue.arrays import HEADERS, INSTANT, Truths, deadlines, instants, whole
from penstock.queue.messagecolumns import BATCH_ROWS
from penstock.queue.page import Page
from penstock.queue.state import (
    QueueState,
    load_page,
    load_queue,
    page_row_key,
    queue_name,
    read_lines,
)
from penstock.queue.statejoin import Contents, last_words
from penstock.store.objects import Objects
from penstock.store.port import Reader

STATES = {
    "available": PageKind.AVAILABLE,
    "in_flight": PageKind.IN_FLIGHT,
    "done": PageKind.DONE,
    "failed": PageKind.FAILED,
}
_NAMES = {kind: name for name, kind in STATES.items()}
#: Rows of a scan that are in memory at once.
SCAN_ROWS = 32
#: Pages whose numbers lie further apart are read by themselves.
GAP_PAGES = 16
#: Messages of one range, about.
RANGE_ROWS = 100_000


#: Number and priority of a page.
Place = tuple[int, int]


class PageRange(msgspec.Struct, frozen=True):
    """Some pages of one state; plain values, so that it travels."""

    state: str
    pages: tuple[Place, ...]
    rows: int  # messages on them


def state_schema(*, headers: bool = False, payload: bool = False) -> pa.Schema:
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("priority", pa.int32()),  # null: done
        pa.field("attempts", pa.int32(), nullable=False),  # claims so far
        pa.field("visible_at", INSTANT),  # null: done, failed
        pa.field("lease_deadline", INSTANT),  # of those in flight
        pa.field("consumer", pa.string()),  # in flight: who holds it; failed: who had it last
        pa.field("claimed_at", INSTANT),  # of those in flight
        pa.field("finished_at", INSTANT),  # of done and failed ones
        pa.field("retention_deadline", INSTANT),  # null: for ever, or done
        pa.field("offset", pa.int64()),  # in the metadata log; null: done
        pa.field("reason", pa.string()),  # of failed ones: what was said last
    ]
    if headers:
        fields.append(pa.field("headers", HEADERS))
    if payload:
        fields += [pa.field("payload", pa.binary()), pa.field("uri", pa.string())]
    return pa.schema(fields)


class _Ahead:
    """A reader that has some rows already: a scan is many times faster than a lookup for each."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._rows: dict[bytes, bytes | None] = {}
        self.floor, self.scan, self.close = store.floor, store.scan, store.close

    async def get(self, key: bytes) -> bytes | None:
        return self._rows.pop(key) if key in self._rows else await self._store.get(key)

    async def read(self, keys: Sequence[bytes]) -> None:
        """These, and nobody asks for earlier ones any more; from the lowest to the highest."""
        self._rows = dict.fromkeys(keys)
        async for rows in self._store.scan(min(keys), max(keys) + b"\0", batch_rows=SCAN_ROWS):
            self._rows.update(row for row in rows if row[0] in self._rows)


class _Rows(RowView):
    """Pages are read once and let go: a long queue must not stay in memory."""

    def __init__(self, store: Reader, tail: Tail) -> None:
        self.ahead = _Ahead(store)
        super().__init__(self.ahead, tail)

    def keep(self, key: StateKey, state: Any) -> None:
        if key[0] != "queue page":
            super().keep(key, state)


async def _open(store: Reader, name: str) -> tuple[_Rows, QueueState]:
    tail = Tail()
    await tail.load(store)
    view = _Rows(store, tail)
    return view, await load_queue(view, queue_name(name))


async def queue_ranges(
    store: Reader,
    name: str,
    states: Collection[str] = tuple(STATES),
    *,
    range_rows: int = RANGE_ROWS,
) -> list[PageRange]:
    """Available ones in the order of claims, the others from the oldest on."""
    view, queue = await _open(store, name)
    return await _ranges(view, queue, states, range_rows)


async def _ranges(
    view: _Rows, queue: QueueState, states: Collection[str], range_rows: int
) -> list[PageRange]:
    found: list[PageRange] = []
    for state in sorted(_checked(states), key=lambda state: STATES[state]):
        sheets = [lines async for lines in read_lines(view, queue, STATES[state])]
        lines = join(LINES[STATES[state]], sheets)
        priorities = lines["priority"] if STATES[state] is PageKind.AVAILABLE else lines["page"] * 0
        pages = list(zip(lines["page"].tolist(), priorities.tolist(), strict=True))
        which = (np.cumsum(lines["count"], dtype=np.int64) - 1) // range_rows
        edges = (np.flatnonzero(np.diff(which)) + 1).tolist()
        for low, high in zip([0, *edges], [*edges, len(pages)], strict=True):
            if low < high:
                rows = int(lines["count"][low:high].sum())
                found.append(PageRange(state, tuple(pages[low:high]), rows))
    return found


def _checked(states: Collection[str]) -> Collection[str]:
    unknown = set(states) - STATES.keys()
    if unknown:
        raise InvalidError(
            f"{sorted(unknown)[0]!r} is no state of a queue", hint=f"one of {', '.join(STATES)}"
        )
    return set(states)


async def state_columns(
    store: Reader,
    name: str,
    states: Collection[str] = tuple(STATES),
    *,
    ranges: Sequence[PageRange] | None = None,
    now_ms: int | None = None,
    history: bool = True,
    headers: bool = False,
    payload: bool = False,
    objects: Objects | None = None,
    batch_rows: int = BATCH_ROWS,
    count: Counts,
) -> AsyncIterator[pa.RecordBatch]:
    """Of these states, or of these ranges of `queue_ranges`. With `now_ms`, what time took away by
    then is left out: available messages past their retention, done ones past that of the queue;
    and the payload of a failed one past its retention is null, as in `failed()`. `history` gives
    reason and consumer of failed ones, each of which has a row for them."""
    view, queue = await _open(store, name)
    if ranges is None:
        ranges = await _ranges(view, queue, states, RANGE_ROWS)
    _checked({each.state for each in ranges})
    contents = await Contents.open(store, headers=headers, payload=payload, objects=objects)
    form = state_schema(headers=headers, payload=payload)
    for each in ranges:
        there = 0
        async for pages in _gathered(view, queue, each, batch_rows, count):
            entries, consumers = _entries(pages)
            there += len(entries)
            chosen = _present(queue, pages[0].kind, entries, now_ms)
            if not chosen.any():
                continue
            entries, consumers = entries[chosen], consumers.filter(pa.array(chosen))
            reasons = pa.nulls(len(entries), pa.string())
            if history and pages[0].kind is PageKind.FAILED:
                consumers, reasons = await last_words(store, queue.queue_id, entries)
            columns = _columns(pages[0].kind, entries, consumers, reasons)
            async for part in contents.joined(columns, entries, now_ms):
                count.rows += len(part[0])
                count.bytes += sum(column.nbytes for column in part)
                yield pa.RecordBatch.from_arrays(part, schema=form)
        if there != each.rows:
            raise CorruptError(
                f"queue {name!r}: pages of {each.state.replace('_', ' ')} messages have {there} of"
                f" them, and their lines say {each.rows}"
            )


async def _gathered(
    view: _Rows, queue: QueueState, each: PageRange, batch_rows: int, count: Counts
) -> AsyncIterator[list[Page]]:
    kind = STATES[each.state]
    pages: list[Page] = []
    rows = 0
    for stretch in _stretches(each.pages):
        await view.ahead.read([page_row_key(queue.queue_id, kind, *place) for place in stretch])
        for number, priority in stretch:
            page = await load_page(view, queue, kind, number, priority)
            count.nodes += 1
            if len(page.entries):
                pages.append(page)
                rows += len(page.entries)
            if rows >= batch_rows:
                yield pages
                pages, rows = [], 0
    if pages:
        yield pages


def _stretches(pages: Sequence[Place]) -> Iterator[Sequence[Place]]:
    """Neighbours, for one scan each: those that stand side by side in the store, nearly."""
    begin = 0
    for i, (number, priority) in enumerate(pages):
        before, same = pages[i - 1] if i else (number, priority)
        apart = abs(number - before) > GAP_PAGES or priority != same
        if apart or i - begin >= SCAN_ROWS:
            yield pages[begin:i]
            begin = i
    if pages:
        yield pages[begin:]


def _entries(pages: Sequence[Page]) -> tuple[Entries, pa.Array]:
    """Of pages of one kind; and who holds the leases, null where they hold none."""
    entries = join(pages[0].entries.dtype, [page.entries for page in pages])
    if pages[0].kind is not PageKind.IN_FLIGHT:
        return entries, pa.nulls(len(entries), pa.string())
    consumers = [
        pa.array(page.consumers, pa.string()).take(pa.array(page.entries["consumer"]))
        for page in pages
    ]
    return entries, pa.concat_arrays(consumers)


def _present(queue: QueueState, kind: PageKind, entries: Entries, now_ms: int | None) -> Truths:
    """What is not gone by its time, as requests of the queue see it."""
    there: Truths = np.ones(len(entries), np.bool_)
    if now_ms is None:
        return there
    if kind is PageKind.AVAILABLE:
        there = entries["retention_deadline_ms"] >= now_ms
    elif kind is PageKind.DONE and queue.settings.done_retention_s:
        there = entries["done_at_ms"] >= now_ms - 1000 * queue.settings.done_retention_s
    return there


def _columns(
    kind: PageKind, entries: Entries, consumers: pa.Array, reasons: pa.Array
) -> list[pa.Array]:
    """The columns of `state_schema`, as far as pages hold them."""
    count = len(entries)
    no_time, no_int = pa.nulls(count, INSTANT), pa.nulls(count, pa.int32())
    done = kind is PageKind.DONE
    active = kind in (PageKind.AVAILABLE, PageKind.IN_FLIGHT)
    leased = kind is PageKind.IN_FLIGHT
    finished = {PageKind.DONE: "done_at_ms", PageKind.FAILED: "failed_at_ms"}
    return [
        whole(entries["message_id"], "message id"),
        pa.repeat(pa.scalar(_NAMES[kind]), count),
        no_int if done else pa.array(entries["priority"].astype(np.int32)),
        pa.array(entries["attempts"].astype(np.int32)),
        instants(entries["visible_at_ms"]) if active else no_time,
        instants(entries["lease_deadline_ms"]) if leased else no_time,
        consumers,
        instants(entries["claimed_at_ms"]) if leased else no_time,
        no_time if active else instants(entries[finished[kind]]),
        no_time if done else deadlines(entries["retention_deadline_ms"]),
        pa.nulls(count, pa.int64()) if done else whole(entries["offset"], "offset"),
        reasons,
    ]
