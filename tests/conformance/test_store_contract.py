"""What every store promises (store/port.py), run over all of them.

Keys carry the prefix of macro nodes: some stores keep chain rows of their own under another one.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.factories import Place
from penstock.codec.chain import NO_HASH, chain_hash, encode_batch
from penstock.codec.keys import KeyType, prefix, prefix_end
from penstock.errors import FencedError, InvalidError, NotFoundError
from penstock.store.port import Head, Row, Store, Writes

P = prefix(KeyType.NODE)
END = prefix_end(P)


async def commit(store: Store, *writes: tuple[bytes, bytes | None], time_ms: int = 1) -> None:
    await store.commit(store.head().n + 1, writes, time_ms=time_ms, epoch=store.epoch)


async def rows_of(scan: AsyncIterator[list[Row]]) -> list[Row]:
    return [row async for rows in scan for row in rows]


async def everything(store: Store) -> list[Row]:
    return await rows_of(store.scan(P, END))


def numbered(*numbers: int) -> list[tuple[bytes, bytes]]:
    return [(P + b"%03d" % number, b"value %d" % number) for number in numbers]


def follows(before: Head, after: Head) -> bool:
    """`after` is what an opening found: `before`, or one empty commit behind it that the opening
    made to prove its epoch. Nothing else may have moved the head."""
    n, time_ms = before.n + 1, before.time_ms
    digest = chain_hash(before.hash, n, time_ms, encode_batch([]))
    return after in (before, Head(n=n, hash=digest, time_ms=time_ms))


EMPTY = Head(n=0, hash=NO_HASH, time_ms=0)


# What is done while a commit is on its way


async def test_what_there_is_to_do_meanwhile_is_done_at_most_once_before_the_commit_returns(
    store: Store,
) -> None:
    heard: list[str] = []
    for n in range(1, 4):
        await store.commit(
            store.head().n + 1,
            [(P + b"%d" % n, b"value")],
            time_ms=1,
            epoch=store.epoch,
            meanwhile=lambda n=n: heard.append(f"meanwhile {n}"),  # type: ignore[misc]
        )
        heard.append(f"committed {n}")
    # Never, where there is nothing to wait for.
    for n in range(1, 4):
        here = [each for each in heard if each.endswith(str(n))]
        assert here in ([f"meanwhile {n}", f"committed {n}"], [f"committed {n}"])
    assert heard == sorted(heard, key=lambda each: each[-1])


# Rows


async def test_a_key_that_was_never_written_is_none(store: Store) -> None:
    assert await store.get(P + b"a") is None
    await commit(store, (P + b"ab", b"1"))
    assert await store.get(P + b"a") is None
    assert await store.get(P + b"abc") is None


async def test_a_commit_puts_overwrites_and_deletes(store: Store) -> None:
    await commit(store, (P + b"a", b"1"), (P + b"b", b"2"), (P + b"c", b"3"))
    await commit(store, (P + b"a", b"4"), (P + b"b", None))
    assert await store.get(P + b"a") == b"4"
    assert await store.get(P + b"b") is None
    assert await everything(store) == [(P + b"a", b"4"), (P + b"c", b"3")]


async def test_a_batch_is_seen_as_a_whole_in_whatever_order_it_is_written(store: Store) -> None:
    await commit(store, *numbered(5, 1, 9))
    await commit(store, (P + b"009", None), *numbered(7), (P + b"001", b"new"))
    assert await everything(store) == [(P + b"001", b"new"), *numbered(5, 7)]


async def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    await commit(store, *numbered(1))
    await commit(store, (P + b"000", None))
    assert await everything(store) == numbered(1)


async def test_a_deleted_key_can_be_put_again(store: Store) -> None:
    key = P + b"a"
    for value in (b"1", None, b"2", None, None, b"3"):
        await commit(store, (key, value))
        assert await store.get(key) == value
        assert await everything(store) == ([] if value is None else [(key, value)])


@pytest.mark.parametrize("size", [0, 1, 110_000, 5_000_000])
async def test_values_of_every_size_come_back(place: Place, size: int) -> None:
    # Noise from a seed: a swapped or repeated block shows.
    value = Random(size).randbytes(size)
    store = await place.open()
    await commit(store, (P + b"before", b"b"), (P + b"x", value), (P + b"y", b"a"))
    assert await store.get(P + b"x") == value
    assert await everything(store) == [(P + b"before", b"b"), (P + b"x", value), (P + b"y", b"a")]
    await store.close()
    assert await (await place.open()).get(P + b"x") == value


@pytest.mark.parametrize("size", [1, 100, 400])
async def test_long_keys_come_back_in_order(store: Store, size: int) -> None:
    low, middle, high = (P + bytes((first,)) * size for first in (0x00, 0x7F, 0xFF))
    await commit(store, (high, b"3"), (low, b"1"), (middle, b"2"))
    assert await everything(store) == [(low, b"1"), (middle, b"2"), (high, b"3")]
    assert await store.get(low[:-1]) is None
    assert await store.get(middle) == b"2"


# Floor


async def test_floor_finds_the_key_itself_or_the_next_one_below(store: Store) -> None:
    await commit(store, *numbered(10, 20, 30))
    assert await store.floor(P + b"020", low=P) == numbered(20)[0]
    assert await store.floor(P + b"029", low=P) == numbered(20)[0]
    assert await store.floor(P + b"020\x00", low=P) == numbered(20)[0]
    assert await store.floor(END, low=P) == numbered(30)[0]
    assert await store.floor(P + b"009", low=P) is None


async def test_floor_never_goes_below_its_bound(store: Store) -> None:
    await commit(store, *numbered(10, 20))
    assert await store.floor(P + b"025", low=P + b"020") == numbered(20)[0]
    assert await store.floor(P + b"025", low=P + b"020\x00") is None
    assert await store.floor(P + b"020", low=P + b"020") == numbered(20)[0]
    assert await store.floor(P + b"020", low=P + b"021") is None


async def test_floor_of_nothing_is_none(store: Store) -> None:
    assert await store.floor(P + b"a", low=P) is None
    await commit(store, *numbered(10))
    await commit(store, (P + b"010", None))
    assert await store.floor(P + b"010", low=P) is None


async def test_floor_passes_over_deleted_keys(store: Store) -> None:
    await commit(store, *numbered(10, 20, 30))
    await commit(store, (P + b"020", None), (P + b"030", None))
    assert await store.floor(P + b"035", low=P) == numbered(10)[0]


# Scan


async def test_a_scan_starts_at_its_low_bound_and_ends_before_its_high_one(store: Store) -> None:
    await commit(store, *numbered(10, 20, 30, 40))
    assert await rows_of(store.scan(P + b"020", P + b"040")) == numbered(20, 30)
    assert await rows_of(store.scan(P + b"020\x00", P + b"040\x00")) == numbered(30, 40)
    assert await rows_of(store.scan(P + b"041", END)) == []
    assert await rows_of(store.scan(P, P + b"010")) == []
    assert await rows_of(store.scan(P + b"020", P + b"020")) == []
    assert await rows_of(store.scan(P + b"040", P + b"010")) == []


async def test_a_reverse_scan_has_the_same_bounds_and_the_other_order(store: Store) -> None:
    await commit(store, *numbered(10, 20, 30, 40))
    assert await rows_of(store.scan(P + b"020", P + b"040", reverse=True)) == numbered(30, 20)
    assert await rows_of(store.scan(P, END, reverse=True)) == numbered(40, 30, 20, 10)
    assert await rows_of(store.scan(P + b"040", P + b"010", reverse=True)) == []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 6, 7])
async def test_lists_of_a_scan_are_bounded_and_never_empty(
    store: Store, rows: int, reverse: bool
) -> None:
    if rows:
        await commit(store, *numbered(*range(rows)))
    lists = [rows async for rows in store.scan(P, END, reverse=reverse, batch_rows=3)]
    assert all(0 < len(one) <= 3 for one in lists)
    expected = numbered(*range(rows))
    assert [row for one in lists for row in one] == (expected[::-1] if reverse else expected)


async def test_a_scan_does_not_mix_in_what_is_committed_while_it_runs(store: Store) -> None:
    await commit(store, *numbered(*range(0, 100, 2)))
    scan = store.scan(P, END, batch_rows=4)
    seen = await anext(scan)
    changed = [(key, b"changed") for key, _ in numbered(*range(20, 60))]
    deleted = [(key, None) for key, _ in numbered(*range(60, 100))]
    await commit(store, *changed, *deleted)
    assert seen + await rows_of(scan) == numbered(*range(0, 100, 2))
    assert dict(await everything(store))[P + b"020"] == b"changed"


_examples = itertools.count()
_raw_keys = st.binary(min_size=0, max_size=5) | st.text("\x00\x01\xfe\xff", max_size=4).map(
    lambda text: text.encode("latin-1")
)
_batches = st.lists(
    st.dictionaries(_raw_keys, st.none() | st.binary(max_size=3), min_size=1, max_size=6),
    min_size=1,
    max_size=3,
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=_batches, low=_raw_keys, high=_raw_keys)
async def test_any_history_of_batches_reads_like_a_sorted_dict(
    store: Store, batches: list[dict[bytes, bytes | None]], low: bytes, high: bytes
) -> None:
    # One store for all examples, since opening one costs more than they do; a prefix for each.
    base = P + b"%08d" % next(_examples)
    model: dict[bytes, bytes] = {}
    for batch in batches:
        await commit(store, *((base + key, value) for key, value in batch.items()))
        for key, value in batch.items():
            model.pop(base + key, None)
            if value is not None:
                model[base + key] = value
    expected = sorted(model.items())
    inside = [row for row in expected if base + low <= row[0] < base + high]
    below = [row for row in expected if base + low <= row[0] <= base + high]
    assert await rows_of(store.scan(base, prefix_end(base), batch_rows=2)) == expected
    assert await rows_of(store.scan(base + low, base + high)) == inside
    assert await rows_of(store.scan(base + low, base + high, reverse=True)) == inside[::-1]
    floor = await store.floor(base + high, low=base + low)
    assert floor == (below[-1] if below else None)
    for key in {low, high, *(key for batch in batches for key in batch)}:
        assert await store.get(base + key) == model.get(base + key)


# The chain


async def test_an_empty_location_has_an_empty_head(store: Store) -> None:
    assert follows(EMPTY, store.head())
    assert await everything(store) == []


async def test_each_commit_moves_the_head_along_the_chain(store: Store) -> None:
    # Whole values against the codec: two stores with the same commits have the same head.
    batches: list[Writes] = [numbered(1), numbered(1), [(P + b"001", None)], numbered(2, 3)]
    digest = store.head().hash
    for n, writes in enumerate(batches, start=store.head().n + 1):
        await store.commit(n, writes, time_ms=1000 + n, epoch=store.epoch)
        digest = chain_hash(digest, n, 1000 + n, encode_batch(writes))
        assert store.head() == Head(n=n, hash=digest, time_ms=1000 + n)


@pytest.mark.parametrize("step", [-2, -1, 0, 2])
async def test_a_commit_number_that_does_not_follow_is_refused(store: Store, step: int) -> None:
    await commit(store, *numbered(1))
    await commit(store, *numbered(2))
    head = store.head()
    with pytest.raises(InvalidError):
        await store.commit(head.n + step, numbered(9), time_ms=2, epoch=store.epoch)
    assert store.head() == head
    await commit(store, *numbered(3))
    assert await everything(store) == numbered(1, 2, 3)


@pytest.mark.parametrize("difference", [-1, 1])
async def test_a_commit_for_another_epoch_writes_nothing(place: Place, difference: int) -> None:
    store = await place.open()
    head, n = store.head(), store.head().n + 1
    with pytest.raises(FencedError):
        await store.commit(n, numbered(1), time_ms=1, epoch=store.epoch + difference)
    again = await place.open()
    assert follows(head, again.head())
    assert await everything(again) == []


# Opening again


async def _filled(place: Place, commits: int) -> tuple[Store, Head]:
    store = await place.open()
    for number in range(commits):
        await commit(store, *numbered(number), time_ms=5000 + number)
    return store, store.head()


async def test_all_commits_and_the_head_are_there_after_a_clean_close(place: Place) -> None:
    store, head = await _filled(place, 20)
    await store.close()
    again = await place.open()
    assert follows(head, again.head())
    assert head.time_ms == 5019
    assert await everything(again) == numbered(*range(20))


async def test_all_commits_and_the_head_are_there_after_an_abandon(place: Place) -> None:
    store, head = await _filled(place, 20)
    await store.abandon()
    again = await place.open()
    assert follows(head, again.head())
    assert await everything(again) == numbered(*range(20))


async def test_numbers_and_hashes_go_on_after_opening_again(place: Place) -> None:
    store, _ = await _filled(place, 3)
    await store.close()
    second = await place.open()
    n = second.head().n + 1
    await commit(second, (P + b"001", None), time_ms=6000)
    head = second.head()
    assert (head.n, head.time_ms) == (n, 6000)
    await second.abandon()
    third = await place.open()
    assert follows(head, third.head())
    assert await everything(third) == numbered(0, 2)


async def test_closing_an_unused_location_leaves_it_empty(place: Place) -> None:
    head = EMPTY
    for _ in range(3):
        store = await place.open()
        assert follows(head, store.head())
        assert await everything(store) == []
        head = store.head()
        await store.close()


# Fencing


async def test_every_opening_has_a_higher_epoch(place: Place) -> None:
    first = await place.open()
    second = await place.open()
    await second.close()
    third = await place.open()
    assert first.epoch < second.epoch < third.epoch


async def test_a_second_opening_fences_the_first_for_commits(place: Place) -> None:
    first, head = await _filled(place, 2)
    second = await place.open()
    with pytest.raises(FencedError):
        await commit(first, *numbered(7))
    # For good: trying again does not help.
    with pytest.raises(FencedError):
        await first.commit(head.n + 1, numbered(8), time_ms=9000, epoch=first.epoch)
    assert follows(head, second.head())
    assert await everything(second) == numbered(0, 1)
    await commit(second, *numbered(2))
    await second.close()
    # Nor may a later recovery find what the fenced handle left behind.
    third = await place.open()
    assert await everything(third) == numbered(0, 1, 2)


async def test_a_second_opening_fences_the_first_for_reads(place: Place) -> None:
    first, _ = await _filled(place, 2)
    await first.verify()
    second = await place.open()
    # On a bucket an epoch that was read less than a second ago still counts.
    place.clock.ahead_seconds += 1.5
    with pytest.raises(FencedError):
        await first.verify()
    with pytest.raises(FencedError):
        await first.verify()
    await second.verify()


async def test_a_second_opening_sees_every_acknowledged_commit_of_the_first(place: Place) -> None:
    first, head = await _filled(place, 10)
    second = await place.open()
    assert follows(head, second.head())
    assert await everything(second) == numbered(*range(10))
    await first.abandon()
    await commit(second, *numbered(10))
    assert await everything(second) == numbered(*range(11))


# Checkpoints


async def test_a_checkpoint_can_be_made_renewed_and_dropped_once(store: Store) -> None:
    await commit(store, *numbered(1))
    kept = await store.checkpoint(lifetime_ms=60_000)
    dropped = await store.checkpoint(lifetime_ms=60_000)
    assert kept != dropped
    await store.renew_checkpoint(dropped, lifetime_ms=120_000)
    await store.drop_checkpoint(dropped)
    with pytest.raises(NotFoundError):
        await store.drop_checkpoint(dropped)
    with pytest.raises(NotFoundError):
        await store.renew_checkpoint(dropped, lifetime_ms=60_000)
    await store.renew_checkpoint(kept, lifetime_ms=60_000)
    await store.drop_checkpoint(kept)


@pytest.mark.parametrize("name", ["", "no such checkpoint", "0" * 32])
async def test_an_unknown_checkpoint_is_not_found(store: Store, name: str) -> None:
    with pytest.raises(NotFoundError):
        await store.renew_checkpoint(name, lifetime_ms=60_000)
    with pytest.raises(NotFoundError):
        await store.drop_checkpoint(name)


async def test_commits_go_on_beside_a_checkpoint(store: Store) -> None:
    await commit(store, *numbered(1))
    checkpoint_id = await store.checkpoint(lifetime_ms=60_000)
    await commit(store, *numbered(2))
    await store.drop_checkpoint(checkpoint_id)
    assert await everything(store) == numbered(1, 2)


async def test_a_checkpoint_outlives_the_handle_that_made_it(place: Place) -> None:
    store, _ = await _filled(place, 1)
    checkpoint_id = await store.checkpoint(lifetime_ms=60_000)
    await store.close()
    again = await place.open()
    await again.renew_checkpoint(checkpoint_id, lifetime_ms=60_000)
    await again.drop_checkpoint(checkpoint_id)


# Released handles

_writes: Writes = [(P + b"x", b"1")]
_calls: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get": lambda store: store.get(P + b"000"),
    "floor": lambda store: store.floor(P + b"000", low=P),
    "scan": lambda store: rows_of(store.scan(P, END)),
    "commit": lambda store: store.commit(2, _writes, time_ms=1, epoch=store.epoch),
    "verify": lambda store: store.verify(),
    "checkpoint": lambda store: store.checkpoint(lifetime_ms=60_000),
    "renew_checkpoint": lambda store: store.renew_checkpoint("x", lifetime_ms=60_000),
    "drop_checkpoint": lambda store: store.drop_checkpoint("x"),
}


async def _check_every_call_is_invalid(store: Store) -> None:
    for name, call in _calls.items():
        try:
            await call(store)
        except InvalidError:
            continue
        pytest.fail(f"{name} works on a released handle")


async def test_every_use_of_a_closed_handle_is_invalid(place: Place) -> None:
    store, head = await _filled(place, 1)
    await store.close()
    await _check_every_call_is_invalid(store)
    again = await place.open()
    assert follows(head, again.head())


async def test_every_use_of_an_abandoned_handle_is_invalid(place: Place) -> None:
    store, head = await _filled(place, 1)
    await store.abandon()
    await _check_every_call_is_invalid(store)
    again = await place.open()
    assert follows(head, again.head())


async def test_abandoning_never_raises(place: Place) -> None:
    first = await place.open()
    second = await place.open()
    place.clock.ahead_seconds += 1.5
    with pytest.raises(FencedError):
        await first.verify()
    await first.abandon()
    await first.abandon()
    await second.close()
    await second.abandon()
