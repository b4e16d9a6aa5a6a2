"""Pages of a queue: sorted entries, and one line of summary for each. Pure.

Contract     A `Page` holds entries of one kind. Available ones stand in the order in which they are
             claimed within their priority: visible at, then id. Those in flight stand in the order
             of their lease numbers, done and failed ones as they came. Pages are replaced, never
             changed: `applied` gives the page after a delta, and is the only place that makes one.
             `line_of` is what memory keeps of a page. A consumer's number means something only
             beside the names of its own page: memory numbers them as they come and keeps those
             whose leases are gone, a row holds the names of its entries alone, and whoever reads
             it numbers them anew.
Invariants   Q1  an available page has one priority, and its entries are in order      (check.py)
             Q2  the page of a lease is its number divided by FLIGHT_LEASES            (check.py)
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.queueoperation import (
    FORMS,
    KEY_FIELD,
    LINES,
    Delta,
    Keys,
    PageKind,
    copy_of,
    join,
    pick,
)
from penstock.codec.queuestate import (
    ActiveBucket,
    Entries,
    ListBucket,
    decode_active,
    decode_done,
    decode_failed,
    encode_active,
    encode_done,
    encode_failed,
)
from penstock.errors import CorruptError

#: How many entries a page has when it is full; one that grows beyond twice that is cut.
PAGE_ENTRIES = 1000
#: Leases of one page of those in flight.
FLIGHT_LEASES = 1000

Truths = npt.NDArray[np.bool_]


class Page(msgspec.Struct, frozen=True, eq=False):
    kind: PageKind
    number: int
    sequence: int  # of the last operation it contains
    entries: Entries
    priority: int = 0  # of an available page
    consumers: tuple[str, ...] = ()  # of one in flight; entries["consumer"] counts in here

    @property
    def memory_bytes(self) -> int:
        return self.entries.nbytes + 500

    @property
    def keys(self) -> Keys:
        keys: Keys = self.entries[KEY_FIELD[self.kind]]
        return keys

    def holding(self, keys: Keys) -> Truths:
        """Which entries have one of these keys (rising)."""
        return is_in(self.keys, keys)


def is_in(keys: Keys, among: Keys) -> Truths:
    """Which of `keys` are among those, which rise."""
    if not len(among):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(among.searchsorted(keys), len(among) - 1)
    found: Truths = among[at] == keys
    return found


def first_leases(numbers: Keys) -> Keys:
    """The first lease that pages of those in flight could hold."""
    return numbers * np.uint64(FLIGHT_LEASES)


def new_page(kind: PageKind, number: int, priority: int = 0) -> Page:
    return Page(kind, number, 0, np.zeros(0, FORMS[kind]), priority)


def applied(
    page: Page,
    delta: Delta,
    consumers: tuple[str, ...],
    sequence: int,
    *,
    ordered: bool = True,
) -> Page:
    """The page after this delta; `consumers` are those of its operation. Who applies many deltas
    may order available entries once, at the end: no delta depends on their order."""
    entries, names = page.entries, page.consumers
    if len(delta.removed):
        entries = _without(entries, page.keys, delta.removed)
    put = delta.put
    if put is not None:
        if page.kind is PageKind.IN_FLIGHT:
            leases = entries["lease_number"]
            if len(leases) and put["lease_number"].min() <= leases[-1]:  # else they are new
                entries = pick(entries, ~is_in(leases, np.sort(put["lease_number"])))
            put, names = _renamed(put, consumers, names)
        entries = join(FORMS[page.kind], (entries, put)) if len(entries) else put
        if ordered or page.kind is not PageKind.AVAILABLE:
            entries = _ordered(page.kind, entries, len(put))
    if not len(entries):
        names = ()
    return Page(page.kind, page.number, sequence, entries, page.priority, names)


def in_claim_order(page: Page) -> Page:
    """After deltas that were applied without ordering."""
    if page.kind is not PageKind.AVAILABLE:
        return page
    return msgspec.structs.replace(page, entries=in_order(page.entries))


def _without(entries: Entries, keys: Keys, removed: Keys) -> Entries:
    """Nearly always the first ones go."""
    count = len(removed)
    if count <= len(keys) and (keys[:count] == removed).all():
        return entries[count:]
    return pick(entries, ~is_in(keys, removed))


def _renamed(
    put: Entries, consumers: tuple[str, ...], names: tuple[str, ...]
) -> tuple[Entries, tuple[str, ...]]:
    """Entries whose consumers count in the page's names instead of the operation's."""
    if consumers == names:
        return put, names
    places = {name: i for i, name in enumerate(names)}
    used = [0] if len(consumers) == 1 else np.unique(put["consumer"]).tolist()
    table = np.zeros(len(consumers), np.uint16)
    for i in used:
        table[i] = places.setdefault(consumers[i], len(places))
    put = copy_of(put)
    put["consumer"] = table[put["consumer"]]
    return put, tuple(places)


def _ordered(kind: PageKind, entries: Entries, new: int) -> Entries:
    """In order; nearly always what is new belongs to the end."""
    if kind is PageKind.AVAILABLE:
        if not is_in_order(entries[max(len(entries) - new - 1, 0) :]):
            entries = in_order(entries)
    elif kind is PageKind.IN_FLIGHT:
        leases = entries["lease_number"]
        if (leases[1:] < leases[:-1]).any():
            entries = pick(entries, np.argsort(leases))
    return entries


def is_in_order(entries: Entries) -> bool:
    """Whether available messages stand in the order in which they are claimed."""
    visible, ids = entries["visible_at_ms"], entries["message_id"]
    if len(entries) < 2:
        return True
    if visible[0] == visible[-1] and (visible == visible[0]).all():  # published together
        return bool((ids[1:] > ids[:-1]).all())
    if (visible[1:] > visible[:-1]).all():
        return True
    same = visible[1:] == visible[:-1]
    return bool((visible[1:] >= visible[:-1]).all() and (ids[1:][same] > ids[:-1][same]).all())


def in_order(entries: Entries) -> Entries:
    if is_in_order(entries):
        return entries
    return pick(entries, np.lexsort((entries["message_id"], entries["visible_at_ms"])))


def line_of(page: Page) -> Entries:
    """One line, or none where the page is empty."""
    form = LINES[page.kind]
    # Field by field takes three times as long.
    return np.array([line_fields(page)], form) if len(page.entries) else np.zeros(0, form)


def line_fields(page: Page) -> tuple[int, ...]:
    """The line of a page that is not empty, as plain numbers."""
    entries = page.entries
    line = page.number, len(entries)
    match page.kind:
        case PageKind.AVAILABLE:
            first, last = entries[0], entries[-1]
            visible = int(first["visible_at_ms"]), int(first["message_id"])
            times = int(last["visible_at_ms"]), int(entries["retention_deadline_ms"].min())
            return *line, page.priority, *visible, *times
        case PageKind.IN_FLIGHT:
            return *line, int(entries["lease_deadline_ms"].min())
        case PageKind.DONE:
            return *line, int(entries["done_at_ms"][0]), int(entries["done_at_ms"][-1])
        case PageKind.FAILED:
            return line


# ---- rows ------------------------------------------------------------------------------------


def encode_page(page: Page) -> bytes:
    match page.kind:
        case PageKind.AVAILABLE:
            none = np.zeros(0, FORMS[PageKind.IN_FLIGHT])
            return encode_active(ActiveBucket(page.entries, none, (), page.sequence))
        case PageKind.IN_FLIGHT:
            none = np.zeros(0, FORMS[PageKind.AVAILABLE])
            return encode_active(ActiveBucket(none, page.entries, page.consumers, page.sequence))
        case PageKind.DONE:
            return encode_done(ListBucket(page.entries, page.sequence))
        case PageKind.FAILED:
            return encode_failed(ListBucket(page.entries, page.sequence))


def decode_page(kind: PageKind, number: int, priority: int, data: bytes) -> Page:
    match kind:
        case PageKind.AVAILABLE:
            bucket = decode_active(data)
            if len(bucket.in_flight) or (bucket.available["priority"] != priority).any():
                raise CorruptError(f"active messages {number}: not those of priority {priority}")
            return Page(kind, number, bucket.operation, bucket.available, priority)
        case PageKind.IN_FLIGHT:
            bucket = decode_active(data)
            pages = bucket.in_flight["lease_number"] // np.uint64(FLIGHT_LEASES)
            if len(bucket.available) or (pages != number).any():
                raise CorruptError(f"active messages {number}: leases of another page")
            return Page(kind, number, bucket.operation, bucket.in_flight, 0, bucket.consumers)
        case PageKind.DONE:
            found = decode_done(data)
            return Page(kind, number, found.operation, found.entries)
        case PageKind.FAILED:
            found = decode_failed(data)
            return Page(kind, number, found.operation, found.entries)
