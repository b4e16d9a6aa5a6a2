"""Claiming messages, and settling what was claimed.

Contract     `claim_step` leases the next messages: by priority, then visible at, then id; none that
             is not visible yet, none whose retention is over. `ack_step`, `fail_step`,
             `release_step` and `extend_step` settle leases; each replies with one truth per lease,
             False where it is stale.
Rules        L1  a lease whose deadline is reached is over: whatever its holder says is stale
             L2  a lease that ended is a failed attempt; so is a report
             L3  a failed message waits (backoff), or is failed for good after the last attempt
             L4  a message whose retention ended while it was in flight may be acknowledged; in
                 every other case it leaves, counted as expired
             L5  attempts count claims; a release takes its own one back
Not here     receipts (receipt.py), who waits (broker/queues.py), reading messages (message.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from penstock.codec.attempts import Attempt, Ending, decode_attempts, encode_attempts
from penstock.codec.keys import attempts_key
from penstock.codec.queueoperation import Keys, PageKind, copy_of, join, pick
from penstock.codec.queuestate import AVAILABLE, DONE, FAILED, HISTORY, IN_FLIGHT, Entries
from penstock.codec.scalars import NEVER_MS, U16_MAX
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.queue.config import LEASE_MS_MIN, Settings
from penstock.queue.draft import Draft, draft_step
from penstock.queue.page import FLIGHT_LEASES
from penstock.queue.place import append, insert
from penstock.queue.receipt import LEASE, Leases
from penstock.queue.state import Change, next_ms

#: How many messages one request claims at most.
CLAIM_MAX = 10_000
#: Pages with ended leases that a request clears on its way; the others wait for the next one.
ENDED_PAGES = 16
#: Pages with nothing but expired messages that one claim clears.
TAKE_PAGES = 64
#: Attempts that are remembered of a message, the newest ones.
HISTORY_MAX = 1000
HISTORY_BYTES = 32 << 10
CONSUMER_BYTES_MAX = 255
REASON_BYTES_MAX = 4096

Truths = npt.NDArray[np.bool_]


class Claimed(msgspec.Struct, frozen=True, eq=False):
    queue: int  # its incarnation, for receipts
    entries: Entries  # of IN_FLIGHT
    more: bool = False  # nothing was found yet, but not everything was looked at: ask again
    next_ms: int = NEVER_MS  # when something may become claimable


# ---- claiming ---------------------------------------------------------------------------------


def claim_step(name: LogName, count: int, *, consumer: str, lease_ms: int | None = None) -> Step:
    """-> Claimed"""
    if count < 0:
        raise InvalidError(f"count {count} is negative")
    _check_text("a consumer's name", consumer, 1, CONSUMER_BYTES_MAX)

    async def body(draft: Draft) -> Claimed:
        change = await draft.queue(name)
        await end_leases(draft, change)
        deadline_ms = draft.now_ms + check_lease(change.settings, lease_ms)
        wanted = 0 if change.settings.paused else min(count, CLAIM_MAX)
        taken, more = await take(draft, change, wanted)
        entries = await _lease(draft, change, taken, consumer, deadline_ms)
        due_ms = NEVER_MS if change.settings.paused else next_ms(change.lines)
        return Claimed(change.before.id, entries, more, due_ms)

    return draft_step(body)


def _check_text(what: str, text: str, low: int, high: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidError(f"{what} is not valid text: {text[:64]!r}") from None
    if not low <= size <= high:
        raise InvalidError(f"{what} is {size} bytes long; {low} to {high} are allowed")


def check_lease(settings: Settings, wanted_ms: int | None) -> int:
    """How long a lease is that somebody asks for; None: as the queue says."""
    if wanted_ms is None:
        return settings.lease_ms
    if not LEASE_MS_MIN <= wanted_ms <= settings.max_lease_ms:
        raise InvalidError(
            f"a lease of {wanted_ms} ms; {LEASE_MS_MIN} to {settings.max_lease_ms} ms are allowed",
            hint="alter the queue's max_lease for longer ones",
        )
    return wanted_ms


async def _lease(
    draft: Draft, change: Change, taken: Entries, consumer: str, deadline_ms: int
) -> Entries:
    if not len(taken):
        return np.zeros(0, IN_FLIGHT)
    first = change.head.next_lease
    change.set(next_lease=first + len(taken))
    entries = np.zeros(len(taken), IN_FLIGHT)
    for field in ("message_id", "priority", "retention_deadline_ms", "visible_at_ms", "offset"):
        entries[field] = taken[field]
    entries["flags"] = taken["flags"]
    entries["attempts"] = np.minimum(taken["attempts"].astype(np.int64) + 1, U16_MAX)
    entries["claimed_at_ms"] = draft.now_ms
    entries["lease_deadline_ms"] = deadline_ms
    entries["lease_number"] = np.arange(first, first + len(taken), dtype=np.uint64)
    entries["consumer"] = change.consumer(consumer)
    await _put_in_flight(change, entries)
    return entries


async def _put_in_flight(change: Change, entries: Entries) -> None:
    for number, group in _by_page(entries):
        await change.page(PageKind.IN_FLIGHT, number)
        change.do(PageKind.IN_FLIGHT, number, put=group)


def _by_page(entries: Entries) -> Iterator[tuple[int, Entries]]:
    """Entries in flight, in the order of their lease numbers, as the pages have them."""
    numbers = entries["lease_number"]
    low = 0
    while low < len(entries):
        page = int(numbers[low]) // FLIGHT_LEASES
        high = int(numbers.searchsorted(np.uint64((page + 1) * FLIGHT_LEASES)))
        yield page, entries[low:high]
        low = high


async def take(draft: Draft, change: Change, count: int) -> tuple[Entries, bool]:
    """Remove the next messages from the available ones; what expired leaves on the way, and so does
    what had its attempts already, where their maximum was lowered since. -> also whether the search
    ended early, with nothing but those"""
    now_ms = draft.now_ms
    limit = change.settings.max_attempts or U16_MAX + 1
    lines = await change.lines_below(
        PageKind.AVAILABLE, "first_visible_ms", now_ms + 1, TAKE_PAGES + 1
    )
    parts: list[Entries] = []
    wanted = count
    for looked, line in enumerate(lines):
        if not wanted:
            break
        if looked >= TAKE_PAGES:
            return join(AVAILABLE, parts), wanted == count
        number, priority = int(line["page"]), int(line["priority"])
        page = await change.page(PageKind.AVAILABLE, number, priority)
        visible = page.entries[: page.entries["visible_at_ms"].searchsorted(now_ms, "right")]
        good = visible[:wanted]
        if good["retention_deadline_ms"].min() >= now_ms and good["attempts"].max() < limit:
            change.do(PageKind.AVAILABLE, number, removed=good["message_id"])  # nearly always
        else:
            expired = visible["retention_deadline_ms"] < now_ms
            worn = visible["attempts"] >= limit
            good = await _pick(draft, change, number, visible, expired, worn & ~expired, wanted)
        parts.append(good)
        wanted -= len(good)
    return join(AVAILABLE, parts), False


async def _pick(
    draft: Draft,
    change: Change,
    number: int,
    visible: Entries,
    expired: Truths,
    worn: Truths,
    wanted: int,
) -> Entries:
    """The good ones of a page; the others go as far as we looked."""
    good = np.flatnonzero(~expired & ~worn)[:wanted]
    end = len(visible) if len(good) < wanted else int(good[-1]) + 1
    change.do(PageKind.AVAILABLE, number, removed=visible["message_id"][:end])
    await drop(draft, change, visible[:end][expired[:end]])
    await _fail(draft, change, visible[:end][worn[:end]])
    return pick(visible, good)


async def drop(draft: Draft, change: Change, expired: Entries) -> None:
    """These leave by their retention; their payload and metadata go by it too (reclaim.py)."""
    if not len(expired):
        return
    change.set(expired=change.head.expired + len(expired))
    forget_history(draft, change, expired)


def forget_history(draft: Draft, change: Change, entries: Entries) -> None:
    for message_id in entries["message_id"][entries["flags"] & HISTORY != 0].tolist():
        draft.rows[attempts_key(change.before.queue_id, message_id)] = None


# ---- settling ---------------------------------------------------------------------------------


def ack_step(name: LogName, leases: Leases) -> Step:
    async def body(draft: Draft) -> list[bool]:
        change, found, truths = await _find(draft, name, leases)
        await finish(draft, change, found)
        return truths

    return draft_step(body)


async def finish(draft: Draft, change: Change, found: Entries) -> None:
    """These are done: out of flight, into the list."""
    if not len(found):
        return
    await _remove_in_flight(change, found)
    done = np.zeros(len(found), DONE)
    for field in ("message_id", "attempts", "flags"):
        done[field] = found[field]
    done["done_at_ms"] = draft.now_ms
    await append(change, PageKind.DONE, done)
    change.set(done=change.head.done + len(found))
    await draft.taken.release(found["offset"].astype(np.uint64))


def fail_step(
    name: LogName,
    leases: Leases,
    *,
    delay_ms: int | None = None,
    reason: str = "",
) -> Step:
    """`delay_ms` None: by the queue's backoff."""
    if delay_ms is not None and delay_ms < 0:
        raise InvalidError(f"a delay of {delay_ms} ms is negative")
    _check_text("a reason", reason, 0, REASON_BYTES_MAX)

    async def body(draft: Draft) -> list[bool]:
        change, found, truths = await _find(draft, name, leases)
        names = await _names(change, found)
        await give_back(draft, change, found, names, Ending.FAILED, reason, delay_ms)
        return truths

    return draft_step(body)


def release_step(name: LogName, leases: Leases) -> Step:
    async def body(draft: Draft) -> list[bool]:
        change, found, truths = await _find(draft, name, leases)
        await _remove_in_flight(change, found)
        found = await _drop_old(draft, change, found)
        back = _available(found)
        back["attempts"] -= 1
        await insert(change, back)
        return truths

    return draft_step(body)


def extend_step(name: LogName, leases: Leases, lease_ms: int) -> Step:
    """The leases end so long after now."""

    async def body(draft: Draft) -> list[bool]:
        change, found, truths = await _find(draft, name, leases)
        deadline_ms = draft.now_ms + check_lease(change.settings, lease_ms)
        found = copy_of(found)
        names = await _names(change, found)
        for i, consumer in enumerate(names):
            found["consumer"][i] = change.consumer(consumer)
        found["lease_deadline_ms"] = deadline_ms
        await _put_in_flight(change, found)
        return truths

    return draft_step(body)


async def _find(draft: Draft, name: LogName, leases: Leases) -> tuple[Change, Entries, list[bool]]:
    """The entries of leases that are alive, each once, in the order of their numbers; and which of
    the given ones those are. A lease that is named twice is found the first time."""
    change = await draft.queue(name)
    await end_leases(draft, change)
    # Not those of other queues, nor of a deleted one of this name.
    ours = (leases["queue"] == change.before.id).nonzero()[0]
    order = ours[leases["number"][ours].argsort(kind="stable")]
    numbers, ids = leases["number"][order], leases["message_id"][order]
    pages = numbers // np.uint64(FLIGHT_LEASES)
    truths = np.zeros(len(leases), np.bool_)
    parts: list[Entries] = []
    for number in _those_there(change, pages):
        here = slice(*pages.searchsorted(np.array([number, number + 1], np.uint64)).tolist())
        entries = (await change.page(PageKind.IN_FLIGHT, number)).entries
        held = entries["lease_number"]
        at = np.minimum(held.searchsorted(numbers[here]), len(held) - 1)
        good = (held[at] == numbers[here]) & (entries["message_id"][at] == ids[here])
        good &= entries["lease_deadline_ms"][at] > draft.now_ms  # L1
        best = good.nonzero()[0]
        good[best[1:][at[best][1:] == at[best][:-1]]] = False  # each once
        truths[order[here][good]] = True
        parts.append(pick(entries, at[good]))
    return change, join(IN_FLIGHT, parts), truths.tolist()


def _those_there(change: Change, pages: Keys) -> list[int]:
    """Which of these pages of leases (rising) there are."""
    if not len(pages):
        return []
    one = pages[0] == pages[-1]  # nearly always
    wanted: list[int] = (pages[:1] if one else np.unique(pages)).tolist()
    lines = change.lines[PageKind.IN_FLIGHT]
    return [page for page in wanted if lines.has(page)]


async def _names(change: Change, entries: Entries) -> list[str]:
    """Who holds these leases."""
    names: list[str] = []
    for number, consumer in zip(
        (entries["lease_number"] // np.uint64(FLIGHT_LEASES)).tolist(),
        entries["consumer"].tolist(),
        strict=True,
    ):
        names.append((await change.page(PageKind.IN_FLIGHT, number)).consumers[consumer])
    return names


async def _remove_in_flight(change: Change, found: Entries) -> None:
    for number, group in _by_page(found):
        await change.page(PageKind.IN_FLIGHT, number)
        change.do(PageKind.IN_FLIGHT, number, removed=group["lease_number"])


async def end_leases(draft: Draft, change: Change) -> bool:
    """L2, for the leases whose time is over. -> whether there are more than one request clears"""
    lines = await change.lines_below(
        PageKind.IN_FLIGHT, "deadline_ms", draft.now_ms + 1, ENDED_PAGES + 1
    )
    due: list[int] = lines["page"].tolist()
    for number in due[:ENDED_PAGES]:
        page = await change.page(PageKind.IN_FLIGHT, number)
        ended = page.entries[page.entries["lease_deadline_ms"] <= draft.now_ms]
        names = [page.consumers[i] for i in ended["consumer"].tolist()]
        await give_back(draft, change, ended, names, Ending.EXPIRED, "", None)
    return len(due) > ENDED_PAGES


async def give_back(
    draft: Draft,
    change: Change,
    ended: Entries,
    consumers: Sequence[str],
    ending: Ending,
    reason: str,
    delay_ms: int | None,
) -> None:
    """L3: attempts that failed."""
    if not len(ended):
        return
    await _remove_in_flight(change, ended)
    old = ended["retention_deadline_ms"] < draft.now_ms
    for i in np.flatnonzero(~old).tolist():
        attempt = Attempt(consumers[i], draft.now_ms, ending, reason)
        await _remember(draft, change, ended[i], attempt)
    left = await _drop_old(draft, change, ended)
    limit = change.settings.max_attempts
    last = left["attempts"] >= limit if limit else np.zeros(len(left), np.bool_)
    await _fail(draft, change, left[last])
    back = _available(left[~last])
    back["flags"] |= HISTORY
    back["visible_at_ms"] = [
        min(draft.now_ms + _wait_ms(change, entry, delay_ms), NEVER_MS) for entry in back
    ]
    await insert(change, back)


def _wait_ms(change: Change, entry: np.void, delay_ms: int | None) -> int:
    if delay_ms is not None:
        return delay_ms
    # The same for the same attempt, whoever decides it; different for each message.
    words = np.array([change.before.id, entry["message_id"], entry["attempts"]], "<u8").tobytes()
    chance = xxhash.xxh3_64_intdigest(words) / 2**64
    return change.settings.backoff.wait_ms(int(entry["attempts"]), chance)


async def _drop_old(draft: Draft, change: Change, entries: Entries) -> Entries:
    """L4. -> those that are not over"""
    old = entries["retention_deadline_ms"] < draft.now_ms
    await drop(draft, change, entries[old])
    return pick(entries, ~old)


async def _fail(draft: Draft, change: Change, entries: Entries) -> None:
    if not len(entries):
        return
    failed = np.zeros(len(entries), FAILED)
    for field in ("message_id", "attempts", "priority", "retention_deadline_ms", "offset"):
        failed[field] = entries[field]
    failed["flags"] = entries["flags"] | HISTORY
    failed["failed_at_ms"] = draft.now_ms
    await append(change, PageKind.FAILED, failed)
    change.set(failed=change.head.failed + len(entries))


async def _remember(draft: Draft, change: Change, entry: np.void, attempt: Attempt) -> None:
    key = attempts_key(change.before.queue_id, int(entry["message_id"]))
    value = await draft.row(key) if int(entry["flags"]) & HISTORY else None
    known = decode_attempts(value) if value is not None else ()
    draft.rows[key] = encode_attempts(_newest((*known, attempt)))


def _newest(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """As many as a row may hold, which is written with every failure; the last one always."""
    size = 0
    for kept, attempt in enumerate(reversed(attempts)):
        size += len(attempt.reason) + len(attempt.consumer)
        if kept and (kept >= HISTORY_MAX or size > HISTORY_BYTES):
            return attempts[-kept:]
    return attempts


def _available(entries: Entries) -> Entries:
    """As available messages again, as they were before they were claimed."""
    back = np.zeros(len(entries), AVAILABLE)
    fields = ("message_id", "priority", "visible_at_ms", "retention_deadline_ms", "attempts")
    for field in (*fields, "offset", "flags"):
        back[field] = entries[field]
    return back


def leases_of(incarnation: int, entries: Entries) -> Leases:
    """Of messages in flight."""
    leases = np.zeros(len(entries), LEASE)
    leases["queue"] = incarnation
    leases["message_id"] = entries["message_id"]
    leases["number"] = entries["lease_number"]
    return leases
