"""Which consumer gets which slot: evenly, with as few moves as possible."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from penstock.topic.assign import assign, even_out

EVEN = [0] * 32


def moved(before: list[int], after: list[int]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


def shares(owners: list[int]) -> list[int]:
    return sorted(owners.count(each) for each in set(owners))


def test_32_slots_over_one_to_six_consumers_and_back() -> None:
    up = [list(range(1, n + 1)) for n in range(1, 7)]
    owners = assign([0] * 32, up[0], EVEN)
    for before, after in pairwise([*up, *reversed(up[:-1])]):
        now = assign(owners, after, EVEN)
        assert max(shares(now)) - min(shares(now)) <= 1
        assert set(now) == set(after)
        # The share of whoever joined, or what whoever left had.
        least = 32 // len(after) if len(after) > len(before) else owners.count(before[-1])
        assert moved(owners, now) == least
        owners = now


def test_it_may_be_anybody_who_leaves() -> None:
    owners = assign([0] * 32, [1, 2, 3, 4, 5], EVEN)
    for gone in range(1, 6):
        left = [each for each in range(1, 6) if each != gone]
        now = assign(owners, left, EVEN)
        assert shares(now) == [8, 8, 8, 8]
        assert moved(owners, now) == owners.count(gone)


def test_nothing_moves_where_shares_are_even() -> None:
    owners = assign([0] * 32, [1, 2, 3], EVEN)
    assert assign(owners, [1, 2, 3], EVEN) == owners
    assert assign(owners, [3, 2, 1], list(range(32))) == owners


def test_nobody_owns_anything_without_consumers() -> None:
    assert assign([1, 2, 0], [], [5, 5, 5]) == [0, 0, 0]


def test_more_consumers_than_slots() -> None:
    owners = assign([0] * 3, [1, 2, 3, 4, 5], [0] * 3)
    assert shares(owners) == [1, 1, 1]
    assert assign(owners, [1, 2, 3, 4, 5], [0] * 3) == owners


def test_a_newcomer_gets_an_even_share_of_the_backlog() -> None:
    """Two slots move, whichever they are: those that even out the load do."""
    backlog = [100, 1, 1, 98]
    owners = assign([1] * 4, [1, 2], backlog)
    load = {who: sum(b for b, o in zip(backlog, owners, strict=True) if o == who) for who in (1, 2)}
    assert shares(owners) == [2, 2]
    assert load == {1: 99, 2: 101} or load == {1: 101, 2: 99}


@pytest.mark.parametrize("slots", [1, 7, 32])
def test_the_same_input_gives_the_same_plan(slots: int) -> None:
    backlog = [(slot * 7) % 5 for slot in range(slots)]
    plans = {tuple(assign([0] * slots, [3, 1, 2], backlog)) for _ in range(5)}
    assert len(plans) == 1


def load_of(owners: list[int], backlog: list[int]) -> dict[int, int]:
    found = dict.fromkeys(owners, 0)
    for owner, count in zip(owners, backlog, strict=True):
        found[owner] += count
    return found


def test_slots_change_places_until_the_backlog_is_even() -> None:
    owners = [1, 1, 2, 2]
    now = even_out(owners, [1, 2], [1000, 1000, 0, 0])
    assert load_of(now, [1000, 1000, 0, 0]) == {1: 1000, 2: 1000}
    assert shares(now) == [2, 2]
    assert moved(owners, now) == 2


def test_a_slot_goes_to_whoever_has_fewer_without_one_in_return() -> None:
    owners = [1, 1, 2]
    now = even_out(owners, [1, 2], [50, 50, 10])
    assert load_of(now, [50, 50, 10]) == {1: 50, 2: 60}
    assert moved(owners, now) == 1


@pytest.mark.parametrize(
    ("owners", "backlog"),
    [
        ([1, 1, 2, 2], [0, 0, 0, 0]),
        ([1, 1, 2, 2], [5, 5, 5, 5]),
        ([1, 2], [1000, 0]),  # the same for the other
        ([1, 1, 2, 2], [1000, 1, 0, 1]),  # it would only be taken elsewhere
        ([1, 1, 2, 2], [1000, 5, 990, 4]),  # not worth it
        ([1, 1, 1], [9, 9, 9]),
    ],
)
def test_nothing_changes_places_where_that_is_worth_nothing(
    owners: list[int], backlog: list[int]
) -> None:
    assert even_out(owners, sorted(set(owners)), backlog) == owners


def test_the_largest_backlog_is_near_the_average_with_as_many_slots_as_before() -> None:
    backlog = [(slot * 37) % 101 for slot in range(64)]
    consumers = [3, 8, 9, 20, 21]
    owners = assign([0] * 64, consumers, [0] * 64)
    now = even_out(owners, consumers, backlog)
    assert shares(now) == shares(owners)
    assert max(load_of(now, backlog).values()) <= 1.02 * sum(backlog) / 5
    assert even_out(now, consumers, backlog) == now


@pytest.mark.parametrize("slots", [32, 128, 256, 1024])
def test_a_backlog_that_one_of_two_has_is_halved_however_many_slots_there_are(slots: int) -> None:
    owners = [1, 2] * (slots // 2)
    backlog = [100, 0] * (slots // 2)
    now = even_out(owners, [1, 2], backlog)
    assert shares(now) == shares(owners)
    assert max(load_of(now, backlog).values()) <= 1.01 * sum(backlog) / 2
    assert moved(owners, now) <= slots // 2


def test_1024_slots_of_any_size_over_eight_consumers() -> None:
    sizes = random.Random(5)
    consumers = list(range(1, 9))
    owners = assign([0] * 1024, consumers, [0] * 1024)
    # The first one has most of it.
    backlog = [sizes.randrange(3000 if owner == 1 else 50) for owner in owners]
    now = even_out(owners, consumers, backlog)
    assert shares(now) == shares(owners)
    assert max(load_of(now, backlog).values()) <= 1.01 * sum(backlog) / len(consumers)


def best_exchange(owners: list[int], backlog: list[int]) -> int:
    """By trying every pair: how small the larger backlog of both can become."""
    load = load_of(owners, backlog)
    most = max(load, key=lambda each: load[each])
    held = {each: owners.count(each) for each in load}
    found = [load[most]]
    for mine in (slot for slot, owner in enumerate(owners) if owner == most):
        for taker in load.keys() - {most}:
            back = [backlog[slot] for slot, owner in enumerate(owners) if owner == taker]
            for size in back + [0] * (held[taker] < held[most]):
                change = backlog[mine] - size
                found.append(max(load[most] - change, load[taker] + change))
    return min(found)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_worth_it_is_left_undone(seed: int) -> None:
    sizes = random.Random(seed)
    owners = [1 + slot % 3 for slot in range(16)]
    backlog = [sizes.randrange(1, 1000) ** 2 for _ in owners]
    now = even_out(owners, [1, 2, 3], backlog)
    load = load_of(now, backlog)
    even = sum(backlog) / 3
    if max(load.values()) > 1.01 * even:
        assert max(load.values()) - best_exchange(now, backlog) <= 0.01 * sum(backlog) / 16
