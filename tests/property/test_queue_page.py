"""Pages of leases: for all operations, whoever applies them knows who holds which lease.

Memory applies every operation once. Another process begins with a row, which holds names and no
numbers, and applies those that came after it. Both must say what a plain dict says.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.queueoperation import FORMS, Delta, PageKind
from penstock.queue.page import FLIGHT_LEASES, Page, applied, decode_page, encode_page, new_page

KIND = PageKind.IN_FLIGHT
NAMES = ("x", "y", "z", "w")
leases = st.integers(0, 7)
#: A change names some consumers, which need not hold anything; then come its deltas for the page.
tables = st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4).map(tuple)
deltas = st.tuples(
    st.sets(leases, max_size=3),  # removed
    st.dictionaries(leases, st.integers(0, 3), max_size=3),  # lease -> its place in the table
)
operations = st.tuples(tables, st.lists(deltas, min_size=1, max_size=2))


def holders(page: Page) -> dict[int, str]:
    numbers = page.entries["lease_number"].tolist()
    assert numbers == sorted(set(numbers))
    names = [page.consumers[i] for i in page.entries["consumer"].tolist()]
    return dict(zip(numbers, names, strict=True))


def delta_of(removed: set[int], put: dict[int, int]) -> Delta:
    entries = np.zeros(len(put), FORMS[KIND])
    entries["lease_number"] = list(put)
    entries["consumer"] = list(put.values())
    keys = np.array(sorted(removed), np.uint64)
    return Delta(KIND, 0, removed=keys, put=entries if put else None)


@given(st.lists(st.tuples(operations, st.booleans()), max_size=12))
def test_who_holds_a_lease_is_the_same_in_memory_behind_a_row_and_in_a_dict(
    history: list[tuple[tuple[tuple[str, ...], list[tuple[set[int], dict[int, int]]]], bool]],
) -> None:
    assert FLIGHT_LEASES > 8, "one page holds these leases"
    memory = behind = new_page(KIND, 0)
    known: dict[int, str] = {}
    for sequence, ((table, changes), written) in enumerate(history, 1):
        for removed, places in changes:
            put = {lease: place % len(table) for lease, place in places.items()}
            delta = delta_of(removed, put)
            memory = applied(memory, delta, table, sequence)
            behind = applied(behind, delta, table, sequence, ordered=False)
            for lease in removed:
                known.pop(lease, None)
            known |= {lease: table[place] for lease, place in put.items()}
        if written:
            # By whoever has it in memory: the other one is another process that reads it.
            behind = decode_page(KIND, 0, 0, encode_page(memory))
        assert holders(memory) == holders(behind) == dict(sorted(known.items()))
