from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest

from penstock.codec.group import PAGE_SLOTS, GroupOperation, Offsets, decode_page, encode_page
from penstock.codec.scalars import NEVER_MS
from penstock.stream.pending import (
    DELIVERIES_MAX,
    NO_PAGES,
    Index,
    Page,
    applied,
    empty_page,
    line_of,
    page_of,
    row_of,
    touched,
)


def offsets(*found: int) -> Offsets:
    return np.array(found, np.int64)


def operation(
    *,
    removed: tuple[int, ...] = (),
    again: tuple[int, ...] = (),
    fresh: tuple[int, ...] = (),
    retry_ms: int = 0,
    expire_ms: int = 0,
) -> GroupOperation:
    lists = {"removed": offsets(*removed), "again": offsets(*again), "fresh": offsets(*fresh)}
    return GroupOperation(0, 0, 0, retry_ms, expire_ms, **lists)


def page(number: int, *entries: tuple[int, int, int]) -> Page:
    """A page with entries of (offset, retry time, expiry time)."""
    made = empty_page(number, 1)
    for offset, retry_ms, expire_ms in entries:
        fresh = operation(fresh=(offset,), retry_ms=retry_ms, expire_ms=expire_ms)
        made = applied(made, fresh, 1)
    return made


def lines(found: Page) -> list[tuple[int, int, int, int]]:
    """(offset, retry time, expiry time, deliveries) of what is pending."""
    return [
        (
            found.first + slot,
            int(found.retry[slot]),
            int(found.expire[slot]),
            int(found.deliveries[slot]),
        )
        for slot in found.slots().tolist()
    ]


def columns(index: Index) -> list[tuple[int, ...]]:
    found = (index.numbers, index.counts, index.lowest, index.retry, index.expire)
    return list(zip(*(column.tolist() for column in found), strict=True))


TWO = 2 * PAGE_SLOTS


def test_an_operation_touches_the_pages_of_all_its_lists() -> None:
    mixed = operation(removed=(5, 3000), again=(1023,), fresh=(1024, 1025, 9000))
    assert touched(mixed) == [0, 1, 2, 8]
    assert touched(operation()) == []


def test_a_page_takes_only_its_own_part_of_an_operation() -> None:
    fresh = operation(fresh=(TWO - 1, TWO, TWO + 1023, TWO + 1024), retry_ms=7, expire_ms=9)
    found = applied(empty_page(2, 0), fresh, 4)
    assert found.sequence == 4
    assert lines(found) == [(TWO, 7, 9, 1), (TWO + 1023, 7, 9, 1)]


def test_again_keeps_the_expiry_and_counts_the_delivery() -> None:
    found = applied(page(0, (5, 10, 100), (6, 10, 100)), operation(again=(5,), retry_ms=50), 2)
    assert lines(found) == [(5, 50, 100, 2), (6, 10, 100, 1)]


def test_fresh_on_a_slot_that_was_in_use_starts_from_the_beginning() -> None:
    found = applied(page(0, (5, 10, 100)), operation(again=(5,), retry_ms=50), 2)
    found = applied(found, operation(removed=(5,)), 3)
    assert lines(found) == []
    found = applied(found, operation(fresh=(5,), retry_ms=60, expire_ms=NEVER_MS), 4)
    assert lines(found) == [(5, 60, NEVER_MS, 1)]


def test_deliveries_stop_at_their_largest_number() -> None:
    found = page(0, (0, 1, 1))
    found.deliveries[0] = DELIVERIES_MAX - 1
    for sequence in (2, 3, 4):
        found = applied(found, operation(again=(0,), retry_ms=1), sequence)
    assert int(found.deliveries[0]) == DELIVERIES_MAX


def test_a_page_is_replaced_and_never_changed() -> None:
    before = page(0, (1, 10, 20), (2, 10, 20))
    shown = lines(before)
    change = operation(removed=(1,), again=(2,), fresh=(3,), retry_ms=99, expire_ms=100)
    after = applied(before, change, 2)
    assert lines(before) == shown
    assert before.sequence == 1
    assert lines(after) == [(2, 99, 20, 2), (3, 99, 100, 1)]


def test_a_page_and_its_row_say_the_same() -> None:
    found = page(3, (3072, 1, 2), (3500, 3, NEVER_MS), (4095, NEVER_MS, 5))
    found = applied(found, operation(again=(3500,), retry_ms=4), 8)
    again = page_of(3, decode_page(encode_page(row_of(found)), "page"))
    assert again.sequence == 8
    assert lines(again) == lines(found)
    # A slot that is free has nothing in the row, whatever was in it before.
    left = applied(found, operation(removed=(3072, 4095)), 9)
    assert row_of(left).slots.tolist() == [3500 - 3072]


@pytest.mark.parametrize(
    ("now_ms", "due", "expired"),
    [(9, [], []), (10, [5], []), (20, [5, 7], [6]), (NEVER_MS, [5, 6, 7], [5, 6, 7])],
)
def test_due_and_expired_are_at_their_very_millisecond(
    now_ms: int, due: list[int], expired: list[int]
) -> None:
    found = page(0, (5, 10, NEVER_MS), (6, 30, 20), (7, 20, 21))
    found = applied(found, operation(fresh=(8,), retry_ms=1, expire_ms=1), 2)
    found = applied(found, operation(removed=(8,)), 3)
    assert found.due(now_ms).tolist() == due
    assert found.expired(now_ms).tolist() == expired


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, TWO, []),
        (0, TWO + 1, [TWO]),
        (TWO, TWO + 5, [TWO]),
        (TWO + 1, TWO + 6, [TWO + 5]),
        (TWO + 6, TWO + 1023, []),
        (TWO + 6, 10**9, [TWO + 1023]),
        (0, 10**9, [TWO, TWO + 5, TWO + 1023]),
        (TWO + 1024, 10**9, []),
        (TWO + 5, TWO + 5, []),
        (TWO + 6, TWO + 5, []),
    ],
)
def test_between_is_exact_at_both_ends(low: int, high: int, expected: list[int]) -> None:
    found = page(2, *((offset, 1, 1) for offset in (TWO, TWO + 5, TWO + 1023)))
    assert found.between(low, high).tolist() == expected


def test_the_index_has_a_line_per_page_in_use() -> None:
    pages = {
        7: page(7, (7168, 30, 400), (7170, 10, NEVER_MS)),
        2: page(2, (TWO + 9, 20, 300)),
        5: empty_page(5, 3),
    }
    index = NO_PAGES.replaced(pages)
    assert columns(index) == [(2, 1, TWO + 9, 20, 300), (7, 2, 7168, 10, 400)]
    assert (index.pending, index.first_pending()) == (3, TWO + 9)
    assert (index.next_retry_ms, index.next_expire_ms) == (10, 300)


def test_an_empty_index_has_nothing_and_never() -> None:
    assert columns(NO_PAGES.replaced({})) == []
    assert (NO_PAGES.pending, NO_PAGES.first_pending()) == (0, None)
    assert (NO_PAGES.next_retry_ms, NO_PAGES.next_expire_ms) == (NEVER_MS, NEVER_MS)
    assert NO_PAGES.due(NEVER_MS) == NO_PAGES.expired(NEVER_MS) == NO_PAGES.between(0, 10**9) == []


def test_replacing_lines_leaves_the_others_and_takes_empty_pages_out() -> None:
    index = NO_PAGES.replaced({n: page(n, (n * PAGE_SLOTS + n, n + 1, n + 2)) for n in (1, 2, 3)})
    before = columns(index)
    after = index.replaced({2: empty_page(2, 9), 0: page(0, (4, 5, 6)), 9: empty_page(9, 1)})
    assert columns(after) == [(0, 1, 4, 5, 6), (1, 1, 1025, 2, 3), (3, 1, 3075, 4, 5)]
    assert columns(index) == before


def test_many_lines_at_once_are_the_same_as_one_by_one() -> None:
    index = NO_PAGES.replaced({n: page(n, (n * PAGE_SLOTS, n + 1, n + 2)) for n in (1, 5, 30, 77)})
    change = {n: page(n, (n * PAGE_SLOTS + 7, n + 3, n + 4)) for n in range(40, 0, -2)}
    change |= {5: empty_page(5, 2), 6: empty_page(6, 2)}
    assert len(change) > 16
    one_by_one = index
    for number, found in change.items():
        one_by_one = one_by_one.replaced({number: found})
    at_once = index.replaced(change)
    assert columns(at_once) == columns(one_by_one)
    expected = sorted({1, 30, 77} | set(range(40, 0, -2)) - {6})
    assert at_once.numbers.tolist() == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1024, [0]),
        (0, 1025, [0, 1]),
        (1023, 1024, [0]),
        (1024, 2048, [1]),
        (2048, 4096, []),
        (2048, 4097, [4]),
        (0, 1 << 62, [0, 1, 4]),
        (5120, 1 << 62, []),
        (0, 0, []),
    ],
)
def test_the_index_names_the_pages_of_a_range(low: int, high: int, expected: list[int]) -> None:
    index = NO_PAGES.replaced({n: page(n, (n * PAGE_SLOTS, 1, 1)) for n in (0, 1, 4)})
    assert index.between(low, high) == expected


def test_due_and_expired_pages_come_in_the_order_of_offsets() -> None:
    index = NO_PAGES.replaced(
        {
            1: page(1, (1024, 30, 40), (1025, 31, 41)),
            2: page(2, (2048, 10, 50)),
            3: page(3, (3072, 20, 20)),
        }
    )
    assert [index.due(ms) for ms in (9, 10, 20, 30)] == [[], [2], [2, 3], [1, 2, 3]]
    assert [index.expired(ms) for ms in (19, 20, 40, 50)] == [[], [3], [1, 3], [1, 2, 3]]


def test_what_every_request_asks_an_index_for_is_kept_up_with_each_change() -> None:
    """One page at a time, in any order: the same as when all lines are looked through."""
    rng = Random(7)
    index, pages = NO_PAGES, dict[int, Page]()
    for _ in range(500):
        number = rng.randrange(6)
        first = number * PAGE_SLOTS
        slots = sorted(rng.sample(range(8), rng.choice((0, 0, 1, 3))))
        times = [(first + slot, rng.randrange(1, 9), rng.randrange(1, 9)) for slot in slots]
        changed = {number: page(number, *times)}
        index, pages = index.replaced(changed), pages | changed
        lines = columns(index)
        assert lines == columns(NO_PAGES.replaced(pages))
        assert index.pending == sum(line[1] for line in lines)
        assert index.first_pending() == (lines[0][2] if lines else None)
        assert index.next_retry_ms == min((line[3] for line in lines), default=NEVER_MS)
        assert index.next_expire_ms == min((line[4] for line in lines), default=NEVER_MS)


def test_a_line_that_is_told_from_the_one_before_is_what_a_look_at_all_slots_finds() -> None:
    rng = Random(11)
    told = 0
    for _ in range(200):
        found = empty_page(3, 0)
        for sequence in range(1, 12):
            lists: list[tuple[int, ...]] = []
            for _ in range(3):
                low = rng.randrange(3060, 3080)
                run = range(low, low + rng.choice((0, 0, 1, 4)))
                lists.append(tuple(run) if rng.random() < 0.7 else tuple(run)[::2])
            free = [offset for offset in lists[2] if offset not in lists[1]]
            change = operation(
                removed=lists[0],
                again=lists[1],
                fresh=tuple(free),
                retry_ms=rng.randrange(1, 9),
                expire_ms=rng.randrange(1, 9),
            )
            found = applied(found, change, sequence)
            told += found.line is not None
            looked_up = line_of(msgspec.structs.replace(found, line=None))
            assert line_of(found) == looked_up
    assert told > 200
