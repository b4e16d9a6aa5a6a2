"""The bucket store: openings that fail half-way, and rows that must not pile up."""

from __future__ import annotations

import pytest

from penstock.clock import SystemClock
from penstock.codec.chain import ChainRecord
from penstock.codec.keys import CHAIN_HEAD, chain_key, prefix_end
from penstock.errors import FencedError, NotFoundError, UnavailableError
from penstock.store import bucket
from penstock.store.bucket import BucketStore
from penstock.store.location import open_store
from penstock.store.slate import SlateRows


async def test_an_opening_that_failed_after_it_raised_the_epoch_does_not_fence_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = "memory://bucket-owner"
    first = await open_store(location, clock=SystemClock(), owner=b"me")

    async def lost(rows: SlateRows, head: ChainRecord) -> None:
        raise UnavailableError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "_verify_chain", lost)
        with pytest.raises(UnavailableError):
            await open_store(location, clock=SystemClock(), after=first.epoch, owner=b"me")
    with pytest.raises(FencedError):
        await open_store(location, clock=SystemClock(), after=first.epoch, owner=b"other")
    again = await open_store(location, clock=SystemClock(), after=first.epoch, owner=b"me")
    other = await open_store(location, clock=SystemClock())
    with pytest.raises(FencedError):
        await open_store(location, clock=SystemClock(), after=again.epoch, owner=b"me")
    for store in (first, again, other):
        await store.close()


async def test_a_location_that_must_exist_is_not_made() -> None:
    with pytest.raises(NotFoundError):
        await open_store("memory://bucket-none", clock=SystemClock(), create=False)
    with pytest.raises(NotFoundError):
        await open_store("memory://bucket-none", clock=SystemClock(), create=False)


async def test_chain_rows_are_pruned_by_writing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "EPOCH_SECONDS", 0.0)
    store = await open_store("memory://bucket-prune", clock=SystemClock())
    assert isinstance(store, BucketStore)
    for n in range(1, 41):
        await store.commit(n, [(b"\x01\x0bk", b"v")], time_ms=n, epoch=store.epoch)
        if n % 10 == 0:
            await store._rows.flush_memtable()
    low, high = chain_key(1), prefix_end(CHAIN_HEAD)
    left = [key async for rows in store.scan(low, high) for key, _ in rows]
    assert len(left) <= 15
    assert len(store._rows_of) <= 15
    await store.close()
    again = await open_store("memory://bucket-prune", clock=SystemClock())
    assert again.head().n == 40
    await again.close()
