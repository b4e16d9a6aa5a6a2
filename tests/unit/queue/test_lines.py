"""Lines on sheets: what a change copies does not grow with the queue, and every way of asking says
what one long list of lines would say."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.codec.keys import KeyType, garbage_key, head_key, pages_prefix
from penstock.codec.queueoperation import (
    FORMS,
    LINES,
    PageKind,
    decode_head_row,
)
from penstock.codec.scalars import U64_MAX
from penstock.errors import CorruptError
from penstock.log.rowview import RowView
from penstock.queue.admin import delete_step
from penstock.queue.flush import head_step, pages_step, plan_flush
from penstock.queue.lease import ack_step
from penstock.queue.lines import Lines, cut_into_sheets, key_of, key_of_line, no_lines, sheet_of
from penstock.queue.lists import list_page, redrive_step
from penstock.queue.page import Page, line_of
from penstock.queue.receipt import LEASE
from penstock.queue.state import (
    load_page,
    load_queue,
    owner_of,
    page_row_key,
    read_lines,
    sheet_key,
)
from unit.log.driver import FlushedBehind
from unit.queue.driver import Q, QueueDriver, messages, small_pages

AVAILABLE, IN_FLIGHT, DONE, FAILED = PageKind

# ---- what a change costs -----------------------------------------------------------------------


def arrays(value: Any) -> dict[int, int]:
    """All arrays in a state: by identity, with their bytes."""
    match value:
        case np.ndarray():
            return {id(value): value.nbytes}
        case dict():
            parts = list(value.values())
        case tuple() | list():
            parts = list(value)
        case msgspec.Struct():
            parts = [getattr(value, name) for name in value.__struct_fields__]
        case _:
            parts = []
    found: dict[int, int] = {}
    for part in parts:
        found |= arrays(part)
    return found


async def costs(pages: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """Of a queue with so many available pages and so many done ones: bytes that a claim and an ack
    make anew in its state, and bytes of its head row."""
    small_pages(monkeypatch, entries=1)
    monkeypatch.setattr("penstock.queue.lines.SHEET_LINES", 100, raising=False)
    driver = await QueueDriver.start()
    for _ in range(2 * pages // 250):
        await driver.publish(*messages(250))
    while (await driver.stats()).done < pages:
        await driver.ack(*await driver.claim(250))
    await driver.flush()
    key = ("queue", (await driver.queue()).id)
    made: list[int] = []
    for _ in range(2):
        before = driver.states[key]
        leases = await driver.claim(1)
        claimed = driver.states[key]
        await driver.ack(*leases)
        for old, new in ((before, claimed), (claimed, driver.states[key])):
            known = arrays(old)
            made.append(sum(size for at, size in arrays(new).items() if at not in known))
    value = await driver.store.get(head_key(key[1]))
    assert value is not None
    return made, len(value)


async def test_a_claim_and_an_ack_copy_as_much_however_many_pages_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, few_head = await costs(250, monkeypatch)
    many, many_head = await costs(2500, monkeypatch)
    assert max(many) < 2 * max(few), (few, many)
    assert many_head - few_head < 2 * 2250, "2,250 more pages of two kinds"


# ---- sheets in the store -----------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def some(driver: QueueDriver) -> None:
    """Many pages of each kind."""
    await driver.publish(*messages(60), *messages(20, headers={"priority": "7"}))
    await driver.ack(*await driver.claim(17))
    await driver.fail(*await driver.claim(15))
    await driver.claim(13)


async def all_lines(driver: QueueDriver) -> dict[PageKind, list[Any]]:
    view = await driver.rows_alone()
    state = await driver.queue()
    return {
        kind: [line.item() async for part in read_lines(view, state, kind) for line in part]
        for kind in PageKind
    }


async def sheets(driver: QueueDriver) -> dict[bytes, bytes | None]:
    low = pages_prefix((await driver.queue()).id)
    return {
        key: await driver.store.get(key)
        for key in await driver.keys(KeyType.PAGE)
        if key.startswith(low) and key != low
    }


@pytest.mark.usefixtures("small")
async def test_only_sheets_that_changed_are_written_and_none_stays_behind() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    await driver.flush()
    assert len(await sheets(driver)) >= 8
    await driver.publish(b"one more")
    (lease,) = await driver.claim(1)
    await driver.ack(lease)
    driver.written.clear()
    await driver.flush()
    queue = pages_prefix(lease.queue)
    written = {key for rows in driver.written for key in rows if key.startswith(queue)}
    written.discard(queue)
    kinds = sorted(key[len(queue)] for key in written)
    assert kinds in ([AVAILABLE, IN_FLIGHT, DONE], [AVAILABLE, AVAILABLE, IN_FLIGHT, DONE])
    await driver.clean()
    await driver.purge()
    await driver.flush()
    assert {key[len(queue)] for key in await sheets(driver)} == {DONE, FAILED}
    await driver.clean()
    assert await driver.delete()
    rows = [key for written in driver.written for key in written]
    assert garbage_key(queue) in rows, "the sheets go with the queue"


@pytest.mark.usefixtures("small")
async def test_sheets_of_lists_are_in_memory_only_until_they_are_written() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    key = ("queue", (await driver.queue()).id)
    held = driver.states[key].lines
    assert all(part is not None for kind in (DONE, FAILED) for part in held[kind].parts)
    await driver.flush()
    # Who comes behind the flush in its very tick could not read what that writes.
    held = driver.states[key].lines
    assert all(part is not None for kind in (DONE, FAILED) for part in held[kind].parts)
    await driver.do(head_step(key[1]))
    held = driver.states[key].lines
    assert all(part is None for kind in (DONE, FAILED) for part in held[kind].parts)
    assert held[DONE].nbytes == held[FAILED].nbytes == 0
    assert held[AVAILABLE].nbytes == sum(part.nbytes for part in held[AVAILABLE].parts) > 0
    # What is needed of them comes back: the end to append, each to be listed.
    await driver.ack(*await driver.claim(3))
    parts = driver.states[key].lines[DONE].parts
    assert parts[-1] is not None
    assert parts[0] is None
    assert len(await driver.ids(DONE)) == 20
    await driver.clean()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("heads", [1, 2])
async def test_a_request_behind_a_flush_in_one_tick_finds_the_sheets(heads: int) -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    number = (await driver.queue()).id
    leases = await driver.claim(4)
    for part in plan_flush(driver.tail.of(owner_of(number))).parts():
        await driver.do(pages_step(number, part))
    steps = [head_step(number) for _ in range(heads)]
    *_, truths = await driver.submit(*steps, ack_step(Q, np.array(leases, LEASE)))
    assert truths == [True] * 4
    await driver.clean()


@pytest.mark.usefixtures("small")
async def test_a_sheet_that_goes_between_two_flushes_of_one_tick_leaves_no_row() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(4))
    number = (await driver.queue()).id
    leases = await driver.claim(4)
    steps = [head_step(number), ack_step(Q, np.array(leases, LEASE)), head_step(number)]
    *_, truths, _ = await driver.submit(*steps)
    assert truths == [True] * 4
    assert {key[len(pages_prefix(number))] for key in await sheets(driver)} == {DONE}
    await driver.clean()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_head_row_of_version_1_is_read_and_written_as_version_2(flushed: bool) -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    await driver.flush()
    before, stats = await all_lines(driver), await driver.stats()
    await put_version_1(driver)
    driver = await driver.restarted()
    assert await all_lines(driver) == before
    assert await driver.stats() == stats
    await driver.ack(*await driver.claim(5))
    await driver.publish(b"one more")
    await driver.clean()
    known = await all_lines(driver)
    if flushed:
        await driver.flush()
        value = await driver.store.get(head_key((await driver.queue()).id))
        assert value is not None
        assert value[0] == 2
    driver = await driver.restarted()
    assert await all_lines(driver) == known
    await driver.clean()


async def put_version_1(driver: QueueDriver) -> None:
    """As a flush of an older version left it."""
    state, lines = await driver.queue(), await all_lines(driver)
    value = await driver.store.get(head_key(state.id))
    assert value is not None
    row = decode_head_row(value, "head")
    name = row.name.encode()
    parts = [
        struct.pack("<BQH", 1, row.sequence, len(name)) + name,
        struct.pack("<12Q", *msgspec.structs.astuple(row.head)),
    ]
    for kind in PageKind:
        table = np.array(lines[kind], LINES[kind])
        parts += [struct.pack("<I", len(table)), table.tobytes()]
    rows: dict[bytes, bytes | None] = dict.fromkeys(await sheets(driver))
    rows[head_key(state.id)] = b"".join(parts)
    head = driver.store.head()
    epoch = driver.store.epoch
    await driver.store.commit(head.n + 1, list(rows.items()), time_ms=driver.clock.ms, epoch=epoch)
    # Operations that the rows contain are gone in such a store.
    operations = dict.fromkeys(await driver.keys(KeyType.OPERATIONS))
    await driver.store.commit(
        head.n + 2, list(operations.items()), time_ms=driver.clock.ms, epoch=epoch
    )


@pytest.mark.usefixtures("small")
async def test_a_read_that_was_overtaken_by_a_flush_begins_again() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    await driver.flush()
    await driver.ack(*await driver.claim(3))
    old = driver.states["queue", (await driver.queue()).id]
    await driver.flush()

    class Overtaken:
        """A view that shows the old state first."""

        shown = 0
        now_ms = 0
        store = driver.store

        def state(self, key: Any) -> Any:
            if key[0] == "queue":
                self.shown += 1
                return old if self.shown == 1 else driver.states[key]
            return driver.states.get(key)

        def committed(self, key: Any) -> Any:
            return driver.states.get(key)

        def operations(self, owner: Any) -> Any:
            return driver.tail.of(owner)

        def keep(self, key: Any, state: Any) -> None: ...

    # The sheet that was in memory then stands in the store by now, as it is since.
    old = msgspec.structs.replace(old, lines={k: v.let_go(v.sheets) for k, v in old.lines.items()})
    await driver.publish(b"x")
    await driver.ack(*await driver.claim(9))
    await driver.flush()
    view: Any = Overtaken()
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        listed = await list_page(view, Q, DONE, after)
        found += listed.entries["message_id"].tolist()
        after = listed.next
    assert found == await driver.ids(DONE)
    assert view.shown > 1


class Unaware(RowView):
    """A read's view: memory still has what the read found, as the commit whose rows are there has
    not been heard of yet."""


class Kept(RowView):
    """A read's view: the queue is no longer in memory, but the read has it as it found it."""

    asked = 0

    def committed(self, key: Any) -> Any:
        self.asked += 1
        assert self.asked < 10, "it would never end"
        return None


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind_of_view", [Kept, Unaware])
async def test_a_read_that_was_overtaken_ends_whatever_memory_has(
    kind_of_view: type[RowView],
) -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    await driver.flush()
    view = kind_of_view(driver.store, driver.tail)
    await load_queue(view, Q)
    await driver.ack(*await driver.claim(9))
    await driver.flush()
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        listed = await list_page(view, Q, DONE, after)
        found += listed.entries["message_id"].tolist()
        after = listed.next
    assert found == await driver.ids(DONE)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("kind_of_view", [Kept, Unaware])
async def test_a_sheet_that_is_gone_is_damage_whatever_memory_has(
    kind_of_view: type[RowView], changed: bool
) -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    await driver.flush()
    if changed:  # another sheet is newer in memory than in the store
        await driver.ack(*await driver.claim(1))
    queue = (await driver.queue()).id
    head = driver.store.head()
    gone: dict[bytes, bytes | None] = {sheet_key(queue, DONE, 0): None}
    await driver.store.commit(
        head.n + 1, list(gone.items()), time_ms=driver.clock.ms, epoch=driver.store.epoch
    )
    with pytest.raises(CorruptError, match="sheet 0 of done pages is gone"):
        await list_page(kind_of_view(driver.store, driver.tail), Q, DONE)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind_of_view", [Kept, Unaware])
async def test_a_page_of_a_list_that_changed_since_is_no_damage(
    kind_of_view: type[RowView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that became empty has no row any more, and its line was read before that."""
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    view = kind_of_view(driver.store, driver.tail)
    keep = view.keep
    monkeypatch.setattr(view, "keep", lambda key, state: key[0] == "queue" and keep(key, state))
    state = await load_queue(view, Q)
    assert all(part is not None for part in state.lines[FAILED].parts)
    _, gone, changed, *_ = await driver.pages(FAILED)
    await driver.do(redrive_step(Q, [*gone.keys.tolist(), int(changed.keys[0])]))
    await driver.flush()
    for owner in driver.tail.owners():
        driver.tail.flushed(owner, driver.tail.of(owner)[-1].sequence)
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        listed = await list_page(view, Q, FAILED, after)
        found += listed.entries["message_id"].tolist()
        after = listed.next
    assert found == await driver.ids(FAILED)


@pytest.mark.usefixtures("small")
async def test_a_queue_that_is_read_while_it_is_flushed_has_no_gap() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    store: Any = FlushedBehind(driver, driver.flush, row=head_key((await driver.queue()).id))
    state = await load_queue(RowView(store, driver.tail), Q)
    assert store.flushed
    assert [state.count(kind) for kind in PageKind] == [
        len(await driver.ids(kind)) for kind in PageKind
    ]


@pytest.mark.usefixtures("small")
async def test_a_queue_whose_sheets_are_written_anew_while_it_is_read_is_no_damage() -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    await driver.flush()
    await driver.publish(b"one more")
    await driver.claim(1)
    store: Any = FlushedBehind(driver, driver.flush, row=head_key((await driver.queue()).id))
    state = await load_queue(RowView(store, driver.tail), Q)
    assert store.flushed
    assert [state.count(kind) for kind in PageKind] == [
        len(await driver.ids(kind)) for kind in PageKind
    ]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", PageKind)
async def test_a_page_that_is_read_while_it_is_flushed_has_no_gap(kind: PageKind) -> None:
    driver = await QueueDriver.start(max_attempts=1)
    await some(driver)
    queue, known = await driver.queue(), (await driver.pages(kind))[-1]
    store: Any = FlushedBehind(
        driver,
        driver.flush,
        row=page_row_key(queue.queue_id, kind, known.number, known.priority),
    )
    view = RowView(store, driver.tail)
    page = await load_page(view, queue, kind, known.number, known.priority)
    assert store.flushed
    assert page.keys.tolist() == known.keys.tolist()


@pytest.mark.usefixtures("small")
async def test_a_flush_behind_the_deletion_in_one_tick_does_not_bring_the_queue_back() -> None:
    driver = await QueueDriver.start()
    number = (await driver.queue()).id
    await driver.publish(b"a")
    key = page_row_key((await driver.queue()).queue_id, AVAILABLE, 1, 128)
    steps = [delete_step(Q), pages_step(number, [(AVAILABLE, 1, 128)]), head_step(number)]
    replies = await driver.submit(*steps)
    assert replies == [True, None, False]
    assert await driver.store.get(head_key(number)) is None
    assert await driver.store.get(key) is None
    assert ("queue", number) not in driver.states


# ---- against one long list ----------------------------------------------------------------------


def page_of(kind: PageKind, number: int, size: int, first: int, priority: int) -> Page:
    entries = np.zeros(size, FORMS[kind])
    entries["message_id"] = np.arange(number * 1000, number * 1000 + size)
    for field in ("visible_at_ms", "lease_deadline_ms", "done_at_ms", "retention_deadline_ms"):
        if field in (FORMS[kind].names or ()):
            entries[field] = first + np.arange(size)
    return Page(kind, number, 0, entries, priority if kind is AVAILABLE else 0)


def naive(pages: dict[int, Page], kind: PageKind) -> list[Any]:
    known = [(key_of(page), line_of(page)[0].item()) for page in pages.values()]
    return [line for _, line in sorted(known)]


@pytest.mark.parametrize("kind", PageKind)
@pytest.mark.parametrize("seed", range(3))
def test_any_changes_of_pages_leave_what_one_list_would_have(
    kind: PageKind, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.lines.SHEET_LINES", 8)
    rng = random.Random(seed)
    lines, pages, following = no_lines(kind), dict[int, Page](), 0
    for sequence in range(1, 250):
        changes: list[tuple[Page | None, Page]] = []
        for _ in range(rng.choice([1, 1, 1, 3, 12])):
            changed = {page.number for _, page in changes}
            free = sorted(pages.keys() - changed)
            if free and rng.random() < (0.45 if sequence < 150 else 0.7):
                number = rng.choice(free)
            else:
                number, following = following, following + 1
            before = pages.get(number)
            size = 0 if rng.random() < 0.3 else rng.randint(1, 9)
            priority = before.priority if before is not None else rng.choice([1, 5])
            page = page_of(kind, number, size, rng.randint(0, 500), priority)
            changes.append((before, page))
        known = lines
        if rng.random() < 0.8:
            lines = lines.replaced(changes, sequence)
        else:
            lines = lines.found_anew([page for _, page in changes], sequence)
        for _, page in changes:
            pages.pop(page.number, None)
            if len(page.entries):
                pages[page.number] = page
        check(lines, naive(pages, kind))
        if kind is AVAILABLE:
            check_available(lines, pages)
        for i, part in enumerate(lines.parts):  # P: what did not change is shared
            if int(lines.sheets["sequence"][i]) < sequence:
                assert any(part is other for other in known.parts)
    again = cut_into_sheets(kind, lines.here(), 7)
    check(again, naive(pages, kind))


def check(lines: Lines, wanted: list[Any]) -> None:
    assert [line.item() for line in lines.here()] == wanted
    assert lines.count == sum(line[1] for line in wanted)
    assert lines.nbytes == sum(part.nbytes for part in lines.parts if part is not None)
    numbers = lines.sheets["sheet"].tolist()
    assert len(set(numbers)) == len(numbers) == len(lines.parts)
    for i, sheet in enumerate(lines.sheets):
        part = lines.part(i)
        assert 0 < len(part) <= 16
        assert sheet_of(lines.kind, sheet["sheet"], sheet["sequence"], part)[0] == sheet
        for line in part:
            assert lines.at(key_of_line(lines.kind, line.item())) == i
    for field in (lines.kind is AVAILABLE and ("first_visible_ms", "retention_ms")) or ():
        at = LINES[lines.kind].names.index(field)  # type: ignore[union-attr]
        assert lines.least(field, -1) == min((line[at] for line in wanted), default=-1)


def check_available(lines: Lines, pages: dict[int, Page]) -> None:
    """What is asked of their order says what one list would say."""
    wanted = naive(pages, AVAILABLE)
    for priority in (0, 1, 3, 5, 255):
        of_it = [line for line in wanted if line[2] == priority]
        last = lines.last_of(priority)
        assert (None if last is None else last.item()) == (of_it[-1] if of_it else None)
        assert not of_it or lines.of_priority(priority).tolist() == of_it
    for line, following in pairwise([*wanted, None]):
        behind = lines.behind(pages[line[0]])
        assert (None if behind is None else behind.item()) == following


def test_sheets_that_became_short_are_put_together_and_no_longer_than_half_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.queue.lines.SHEET_LINES", 8)
    pages = [page_of(IN_FLIGHT, number, 1, 5, 0) for number in range(160)]
    lines = no_lines(IN_FLIGHT).replaced([(None, page) for page in pages], 1)
    assert len(lines.parts) == 20
    for sequence, page in enumerate(reversed(pages), 2):
        if page.number % 8:
            empty = page_of(IN_FLIGHT, page.number, 0, 5, 0)
            lines = lines.replaced([(page, empty)], sequence)
    assert lines.here()["page"].tolist() == list(range(0, 160, 8))
    assert lines.sheets["lines"].tolist() in ([4] * 5, [2, *[4] * 4, 2], [1, *[4] * 4, 3])


def test_a_list_that_grows_fills_its_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.lines.SHEET_LINES", 8)
    lines = no_lines(DONE)
    for number in range(80):
        lines = lines.replaced([(None, page_of(DONE, number, 3, number, 0))], number + 1)
    assert lines.sheets["lines"].tolist() == [8] * 10


def test_a_sheet_without_lines_is_no_sheet_and_its_number_may_come_again() -> None:
    page = page_of(DONE, 3, 2, 5, 0)
    lines = no_lines(DONE).replaced([(None, page)], 1)
    gone = lines.replaced([(page, page_of(DONE, 3, 0, 0, 0))], 2)
    assert gone.parts == ()
    assert gone.at((U64_MAX,)) == 0
    back = gone.replaced([(None, page)], 3)
    assert lines.unwritten(no_lines(DONE).sheets) == ([0], [])
    assert gone.unwritten(lines.sheets) == ([], [0])
    assert back.unwritten(lines.sheets) == ([0], [])
    assert back.unwritten(back.sheets) == ([], [])
