"""The invariants of queues, looked at row by row: for tests, the simulator and `penstock check`.

Contract     `check_queues(store)` reads every row of queues, messages and takers, with the
             operations behind them, and returns what is wrong; an empty list is a clean store. It
             never raises for stored bytes. One page and one node are in memory at a time, and a few
             numbers for each message.
Invariants   Q1  an available page has one priority, and its entries are in order
             Q2  the page of a lease is its number divided by FLIGHT_LEASES
             Q3  a line says what its page holds, and a page without a line is empty
             Q4  available pages follow each other in the order in which they are claimed
             Q5  a message is in one of available, in flight, done and failed, and there once
             Q6  lease and page numbers in use are below the next ones
             Q7  routed = available + in flight + done + failed + expired + purged
             Q8  attempts count claims: whoever failed has an attempts record, and nobody else has
                 one; it is as long as the claims that failed since the last redrive
             Q9  every row is of a queue that exists, or lies in a garbage range; an owner's
                 operations are dense and follow what its head contains
             Q10 the head says what each sheet's lines come to, they stand in order, and there is no
                 other sheet (lines.py)
             Messages: check_messages.py
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.codec.attempts import decode_attempts
from penstock.codec.garbage import decode_garbage
from penstock.codec.keys import (
    KeyType,
    Kind,
    head_key,
    open_key,
    prefix,
    prefix_end,
    queue_prefix,
)
from penstock.codec.queueoperation import LINES, PageKind, decode_head_row, join
from penstock.codec.queuestate import HISTORY, Entries
from penstock.codec.scalars import U16_MAX
from penstock.errors import CorruptError
from penstock.log.catalogue import list_names
from penstock.log.check import Finding
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.queue.check_messages import Held, check_messages
from penstock.queue.lease import HISTORY_MAX
from penstock.queue.lines import Key, key_of_line, sheet_of
from penstock.queue.page import FLIGHT_LEASES, Page, line_of
from penstock.queue.state import (
    QueueState,
    load_page,
    load_queue_by_id,
    owner_of,
    page_place,
    pages_of,
    queue_id,
    read_lines,
    sheet_key,
)
from penstock.store.port import Store

Look = Callable[[], None]
_FLIGHT_BUCKETS = 1 << 63
_OWNED = (KeyType.ACTIVE, KeyType.DONE, KeyType.FAILED, KeyType.ATTEMPTS, KeyType.CONFIG)


async def check_queues(store: Store, look: Look = lambda: None) -> list[Finding]:
    """`look` is called for every page and row: whether it goes on."""
    findings: list[Finding] = []
    held = Held()
    try:
        tail = Tail()
        await tail.load(store)
        names = [(name, row.id) async for name, row in list_names(store, Kind.QUEUE)]
    except CorruptError as error:
        return [Finding("queues", str(error))]
    for name, incarnation in names:
        check = _Check(store, tail, name, incarnation, look)
        try:
            await check.run()
        except CorruptError as error:
            check.wrong.append(str(error))
        findings += [Finding(f"queue {name!r}", what) for what in check.wrong]
        held.add(check.held)
    findings += await _check_rows(store, {queue_id(*each) for each in names}, look)
    try:
        wrong = await check_messages(store, tail, held, look)
    except CorruptError as error:
        wrong = [str(error)]
    return findings + [Finding("messages", what) for what in wrong]


class _Check:
    """One queue."""

    def __init__(self, store: Store, tail: Tail, name: str, incarnation: int, look: Look) -> None:
        self._store = store
        self._tail = tail
        self._name = name
        self._incarnation = incarnation
        self._look = look
        self._view = RowView(store, tail)
        self.wrong: list[str] = []
        self.held = Held()  # by this queue
        self._kept: dict[PageKind, Entries] = {}  # all lines
        self._ids: dict[PageKind, list[Entries]] = {kind: [] for kind in PageKind}
        self._histories: dict[int, int] = {}  # how many attempts are remembered of a message
        self._with_history: set[int] = set()

    async def run(self) -> None:
        state = await load_queue_by_id(self._view, self._incarnation, self._name)
        await self._operations(state)
        await self._attempts_records()
        for kind in PageKind:
            before: Page | None = None
            for line in await self._lines(state, kind):
                page = await self._load(state, kind, int(line["page"]), line)
                self._page(page, line, state)
                if kind is PageKind.AVAILABLE and before is not None:
                    self._follows(before, page)
                before = page
                self._history(page)
        await self._sheets_without_mention()
        await self._pages_without_line(state)
        self._once()
        self._numbers(state)
        for message_id in sorted(self._histories.keys() - self._with_history):
            self.wrong.append(f"an attempts record of message {message_id}, which has none")

    async def _load(self, state: QueueState, kind: PageKind, number: int, line: np.void) -> Page:
        self._look()
        priority = int(line["priority"]) if kind is PageKind.AVAILABLE else 0
        # A view of its own: pages that were looked at need not stay in memory.
        view = RowView(self._store, self._tail)
        return await load_page(view, state, kind, number, priority)

    async def _operations(self, state: QueueState) -> None:
        operations = self._tail.of(owner_of(state.id))
        value = await self._store.get(head_key(state.id))
        assert value is not None, "its state came from it"
        row = decode_head_row(value, "head")
        if row.name != state.name:
            self.wrong.append(f"its head names {row.name!r}")
        if operations and operations[0].sequence > row.sequence + 1:
            self.wrong.append(f"operations before {operations[0].sequence} are missing")

    async def _lines(self, state: QueueState, kind: PageKind) -> Entries:
        """All lines, of sheets that are looked at."""
        lines, what = state.lines[kind], kind.name.lower().replace("_", " ")
        parts = [part async for part in read_lines(self._view, state, kind)]
        before: Key | None = None
        for sheet, part in zip(lines.sheets, parts, strict=True):
            number, sequence = int(sheet["sheet"]), int(sheet["sequence"])
            if not len(part) or sheet_of(kind, number, sequence, part)[0] != sheet:
                self.wrong.append(f"sheet {number} of {what} pages: it is not as {sheet} says")
            for line in part:
                key = key_of_line(kind, line.item())
                if before is not None and key <= before:
                    self.wrong.append(f"sheet {number} of {what} pages: lines are not in order")
                    break
                before = key
        if len(set(lines.sheets["sheet"].tolist())) < len(parts):
            self.wrong.append(f"a sheet of {what} pages is there twice")
        self._kept[kind] = join(LINES[kind], parts)
        return self._kept[kind]

    async def _sheets_without_mention(self) -> None:
        """Rows of sheets that the head row does not tell of."""
        key = head_key(self._incarnation)
        value = await self._store.get(key)
        assert value is not None, "its state came from it"
        row = decode_head_row(value, "head")
        told = {
            sheet_key(self._incarnation, kind, number)
            for kind in PageKind
            for number in row.sheets[kind]["sheet"].tolist()
        }
        async for rows in self._store.scan(key + b"\0", prefix_end(key), batch_rows=16):
            for found, _ in rows:
                if found not in told:
                    self.wrong.append(f"the row of a sheet that nothing tells of: {found.hex()}")

    def _page(self, page: Page, line: np.void, state: QueueState) -> None:
        kind, entries, what = page.kind, page.entries, _named(page)
        if not len(entries) or line_of(page)[0] != line:
            self.wrong.append(f"{what}: its line is {line}, not {line_of(page)}")
        if kind is PageKind.AVAILABLE:
            if (entries["priority"] != page.priority).any():
                self.wrong.append(f"{what}: an entry has another priority than {page.priority}")
            order = np.lexsort((entries["message_id"], entries["visible_at_ms"]))
            if (order != np.arange(len(entries))).any():
                self.wrong.append(f"{what}: entries are not in order")
        if kind is PageKind.IN_FLIGHT:
            leases = entries["lease_number"]
            if (leases // np.uint64(FLIGHT_LEASES) != page.number).any():
                self.wrong.append(f"{what}: leases of another page")
            if (leases[1:] <= leases[:-1]).any():
                self.wrong.append(f"{what}: leases do not rise")
            if len(leases) and int(leases.max()) >= state.head.next_lease:
                self.wrong.append(f"{what}: lease {leases.max()} of {state.head.next_lease}")
        if kind is not PageKind.DONE:
            self.held.put(entries)
        self._ids[kind].append(entries["message_id"].copy())

    def _follows(self, before: Page, page: Page) -> None:
        if not len(before.entries) or not len(page.entries):
            return
        last, first = before.entries[-1], page.entries[0]
        if _order(before, last) >= _order(page, first):
            self.wrong.append(f"{_named(page)} does not follow {_named(before)}")

    async def _pages_without_line(self, state: QueueState) -> None:
        """Those that have a row or an operation."""
        lines = {kind: set(self._kept[kind]["page"].tolist()) for kind in PageKind}
        others: set[tuple[PageKind, int, int]] = set()
        for operation in self._tail.of(owner_of(state.id)):
            for code in pages_of(operation):
                kind, number, priority = page_place(code)
                if number not in lines[kind]:
                    others.add((kind, number, priority))
        for key_type in (KeyType.ACTIVE, KeyType.DONE, KeyType.FAILED):
            low = queue_prefix(key_type, state.queue_id)
            async for rows in self._store.scan(low, prefix_end(low), batch_rows=16):
                for key, _ in rows:
                    kind, number, priority = _place(key_type, key)
                    if number not in lines[kind]:
                        others.add((kind, number, priority))
        for kind, number, priority in sorted(others):
            self._look()
            page = await load_page(RowView(self._store, self._tail), state, kind, number, priority)
            if len(page.entries):
                self.wrong.append(f"{_named(page)} holds {len(page.entries)} and has no line")

    def _once(self) -> None:
        parts = [part for kind in PageKind for part in self._ids[kind]]
        ids, times = np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]), return_counts=True)
        for message_id in ids[times > 1].tolist():
            places = [
                kind.name.lower()
                for kind in PageKind
                for part in self._ids[kind]
                for _ in range(int((part == message_id).sum()))
            ]
            self.wrong.append(f"message {message_id} is in {' and '.join(places)}")

    def _numbers(self, state: QueueState) -> None:
        head = state.head
        for kind, following in (
            (PageKind.AVAILABLE, head.next_available),
            (PageKind.DONE, head.next_done),
            (PageKind.FAILED, head.next_failed),
        ):
            numbers = self._kept[kind]["page"]
            if len(numbers) and int(numbers.max()) >= following:
                self.wrong.append(f"{kind.name.lower()} page {numbers.max()} of {following}")
        parts = {
            "available": state.count(PageKind.AVAILABLE),
            "in flight": state.count(PageKind.IN_FLIGHT),
            "done": head.done,
            "failed": state.count(PageKind.FAILED),
            "expired": head.expired,
            "purged": head.purged,
        }
        if head.routed != sum(parts.values()):
            told = ", ".join(f"{count} {what}" for what, count in parts.items())
            self.wrong.append(f"{head.routed} messages came, but there are {told}")
        if state.count(PageKind.DONE) > head.done or state.count(PageKind.FAILED) > head.failed:
            self.wrong.append("more are listed as done or failed than ever were")

    def _history(self, page: Page) -> None:
        """Claims that did not fail: the one of now, or the one that was acknowledged."""
        good = 1 if page.kind in (PageKind.IN_FLIGHT, PageKind.DONE) else 0
        for entry in page.entries:
            message_id, attempts = int(entry["message_id"]), int(entry["attempts"])
            failed = attempts - good
            if not int(entry["flags"]) & HISTORY:
                if failed and attempts != U16_MAX:
                    self.wrong.append(f"message {message_id}: {attempts} attempts and no history")
                continue
            self._with_history.add(message_id)
            known = self._histories.get(message_id)
            if known is None:
                self.wrong.append(f"message {message_id}: its attempts record is gone")
            elif failed < 0 or (failed > known and known < HISTORY_MAX):
                self.wrong.append(f"message {message_id}: {attempts} attempts, {known} in history")

    async def _attempts_records(self) -> None:
        low = queue_prefix(KeyType.ATTEMPTS, queue_id(self._name, self._incarnation))
        async for rows in self._store.scan(low, prefix_end(low)):
            for key, value in rows:
                self._look()
                reader = open_key(key, KeyType.ATTEMPTS)
                reader.terminated("queue id")
                self._histories[reader.u64_key("message id")] = len(decode_attempts(value))


def _named(page: Page) -> str:
    return f"{page.kind.name.lower().replace('_', ' ')} page {page.number}"


def _order(page: Page, entry: np.void) -> tuple[int, int, int]:
    return page.priority, int(entry["visible_at_ms"]), int(entry["message_id"])


def _place(key_type: KeyType, key: bytes) -> tuple[PageKind, int, int]:
    reader = open_key(key, key_type)
    reader.terminated("queue id")
    priority = reader.u8("priority") if key_type is KeyType.ACTIVE else 0
    bucket = reader.u64_key("bucket")
    reader.end()
    match key_type:
        case KeyType.ACTIVE if bucket & _FLIGHT_BUCKETS:
            return PageKind.IN_FLIGHT, bucket & ~_FLIGHT_BUCKETS, 0
        case KeyType.ACTIVE:
            return PageKind.AVAILABLE, bucket, priority
        case KeyType.DONE:
            return PageKind.DONE, bucket, 0
        case _:
            return PageKind.FAILED, bucket, 0


async def _check_rows(store: Store, known: set[bytes], look: Look) -> list[Finding]:
    """Q9: rows of no queue."""
    findings: list[Finding] = []
    garbage: list[tuple[bytes, bytes]] = []
    low = prefix(KeyType.GARBAGE)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            try:
                garbage.append(decode_garbage(key, value))
            except CorruptError:
                continue  # log/check.py says so
    for key_type in _OWNED:
        low = prefix(key_type)
        async for rows in store.scan(low, prefix_end(low), batch_rows=64):
            for key, _ in rows:
                look()
                try:
                    owner = open_key(key, key_type).terminated("queue id")
                except CorruptError as error:
                    findings.append(Finding(key.hex(), str(error)))
                    continue
                if owner not in known and not any(a <= key < b for a, b in garbage):
                    findings.append(Finding(key.hex(), f"there is no queue {owner!r}"))
    return findings
