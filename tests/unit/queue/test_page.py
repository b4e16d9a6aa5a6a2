"""Pages: what a delta does to one, and what its line says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.codec.queueoperation import FORMS, Delta, PageKind
from penstock.codec.queuestate import Entries
from penstock.errors import CorruptError
from penstock.queue.page import (
    FLIGHT_LEASES,
    Page,
    applied,
    decode_page,
    encode_page,
    is_in,
    line_of,
    new_page,
)


def entries(kind: PageKind, *rows: dict[str, Any]) -> Entries:
    found = np.zeros(len(rows), FORMS[kind])
    for i, row in enumerate(rows):
        for field, value in row.items():
            found[field][i] = value
    return found


def available(*places: tuple[int, int]) -> Entries:
    rows = ({"visible_at_ms": ms, "message_id": i} for ms, i in places)
    return entries(PageKind.AVAILABLE, *rows)


def put(page: Page, found: Entries, consumers: tuple[str, ...] = (), **delta: Any) -> Page:
    return applied(page, Delta(page.kind, page.number, put=found, **delta), consumers, 1)


@pytest.mark.parametrize(
    "new",
    [
        [(5, 9)],
        [(5, 1)],
        [(1, 9)],
        [(9, 1), (5, 4)],
        [(5, 5), (5, 4), (5, 6)],
        [(6, 1), (6, 0)],
    ],
)
def test_available_entries_stand_by_visible_at_then_id(new: list[tuple[int, int]]) -> None:
    page = put(new_page(PageKind.AVAILABLE, 1), available((3, 7), (5, 3)))
    page = put(page, available(*new))
    found = list(zip(page.entries["visible_at_ms"], page.entries["message_id"], strict=True))
    assert found == sorted([(3, 7), (5, 3), *new])


def test_what_is_removed_and_put_in_one_delta_is_there() -> None:
    page = put(new_page(PageKind.AVAILABLE, 1), available((1, 1), (2, 2)))
    page = put(page, available((7, 1)), removed=np.array([1, 99], np.uint64))
    assert page.entries["message_id"].tolist() == [2, 1]


def test_a_lease_that_is_put_again_replaces_itself() -> None:
    page = new_page(PageKind.IN_FLIGHT, 0)
    for deadline in (5, 9):
        rows = [{"lease_number": i, "lease_deadline_ms": deadline + i} for i in (2, 1)]
        page = put(page, entries(PageKind.IN_FLIGHT, *rows), ("me",))
    assert page.entries["lease_number"].tolist() == [1, 2]
    assert page.entries["lease_deadline_ms"].tolist() == [10, 11]


def test_consumers_of_operations_keep_their_names_in_the_page() -> None:
    page = new_page(PageKind.IN_FLIGHT, 0)
    first = {"lease_number": 1, "consumer": 1}
    page = put(page, entries(PageKind.IN_FLIGHT, first), ("unused", "a"))
    rows = {"lease_number": 2, "consumer": 0}, {"lease_number": 3, "consumer": 1}
    page = put(page, entries(PageKind.IN_FLIGHT, *rows), ("b", "a"))
    assert [page.consumers[i] for i in page.entries["consumer"]] == ["a", "b", "a"]
    again = decode_page(PageKind.IN_FLIGHT, 0, 0, encode_page(page))
    assert [again.consumers[i] for i in again.entries["consumer"]] == ["a", "b", "a"]


def holders(page: Page) -> dict[int, str]:
    names = [page.consumers[i] for i in page.entries["consumer"]]
    return dict(zip(page.entries["lease_number"].tolist(), names, strict=True))


def test_a_row_may_number_consumers_otherwise_and_what_follows_means_the_same_ones() -> None:
    """The lease of the first consumer is gone: memory still has the name, the row does not."""
    page = new_page(PageKind.IN_FLIGHT, 0)
    for lease, name in ((1, "gone"), (2, "a")):
        page = put(page, entries(PageKind.IN_FLIGHT, {"lease_number": lease}), (name,))
    page = applied(page, Delta(page.kind, 0, removed=np.array([1], np.uint64)), (), 2)
    read = decode_page(PageKind.IN_FLIGHT, 0, 0, encode_page(page))
    assert (page.consumers, page.entries["consumer"].tolist()) == (("gone", "a"), [1])
    assert (read.consumers, read.entries["consumer"].tolist()) == (("a",), [0])
    # Each of these tables is the whole list of names of one of both pages, or neither's.
    for lease, table in ((3, ("gone", "a")), (4, ("a",)), (5, ("a", "gone")), (6, ("b", "a"))):
        row = {"lease_number": lease, "consumer": len(table) - 1}
        page = put(page, entries(PageKind.IN_FLIGHT, row), table)
        read = put(read, entries(PageKind.IN_FLIGHT, row), table)
        assert holders(page)[lease] == table[-1]
        assert holders(page) == holders(read)


def test_an_empty_page_has_no_line_and_no_names() -> None:
    page = put(
        new_page(PageKind.IN_FLIGHT, 0), entries(PageKind.IN_FLIGHT, {"lease_number": 1}), ("a",)
    )
    page = applied(page, Delta(page.kind, 0, removed=np.array([1], np.uint64)), (), 2)
    assert page.consumers == ()
    assert len(line_of(page)) == 0


def test_a_line_says_what_its_page_holds() -> None:
    found = available((1, 8), (4, 2))
    found["retention_deadline_ms"] = [9, 7]
    page = put(new_page(PageKind.AVAILABLE, 6, 5), found)
    assert line_of(page).tolist() == [(6, 2, 5, 1, 8, 4, 7)]
    rows = [{"lease_number": i, "lease_deadline_ms": 9 - i} for i in range(3)]
    flight = put(new_page(PageKind.IN_FLIGHT, 0), entries(PageKind.IN_FLIGHT, *rows), ("a",))
    assert line_of(flight).tolist() == [(0, 3, 7)]
    rows = [{"message_id": i, "done_at_ms": i} for i in (3, 4)]
    done = put(new_page(PageKind.DONE, 2), entries(PageKind.DONE, *rows))
    assert line_of(done).tolist() == [(2, 2, 3, 4)]


def test_a_row_of_another_priority_or_of_other_leases_is_corrupt() -> None:
    page = put(new_page(PageKind.AVAILABLE, 1, 0), available((1, 1)))
    with pytest.raises(CorruptError, match="priority"):
        decode_page(PageKind.AVAILABLE, 1, 9, encode_page(page))
    lease = entries(PageKind.IN_FLIGHT, {"lease_number": FLIGHT_LEASES})
    flight = put(new_page(PageKind.IN_FLIGHT, 1), lease, ("a",))
    with pytest.raises(CorruptError, match="another page"):
        decode_page(PageKind.IN_FLIGHT, 0, 0, encode_page(flight))


def test_is_in_asks_for_exact_keys() -> None:
    keys = np.array([1, 5, 9], np.uint64)
    assert is_in(keys, np.array([5, 7], np.uint64)).tolist() == [False, True, False]
    assert is_in(keys, keys[:0]).tolist() == [False] * 3
