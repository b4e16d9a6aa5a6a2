"""The bucket store: openings that fail half-way, rows that must not pile up, tables cut short."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

import boto3
import msgspec
import pytest

from conformance.factories import BUCKET, bucket_server
from penstock.clock import SystemClock
from penstock.codec.chain import NO_HASH, ChainRecord, encode_chain
from penstock.codec.keys import CHAIN_HEAD, chain_key, prefix_end
from penstock.errors import CorruptError, FencedError, NotFoundError, UnavailableError
from penstock.store import bucket, slate, tables
from penstock.store.bucket import BucketStore
from penstock.store.location import open_store
from penstock.store.port import Row
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


async def test_chain_rows_stay_as_long_as_only_the_wal_has_their_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them, a WAL object that is missing in the middle would not be missed."""
    monkeypatch.setattr(bucket, "EPOCH_SECONDS", 0.0)
    store = await open_store("memory://bucket-kept", clock=SystemClock())
    for n in range(1, 21):
        await store.commit(n, [(b"\x01\x0bk", b"v")], time_ms=n, epoch=store.epoch)
    low, high = chain_key(1), prefix_end(CHAIN_HEAD)
    assert len([key async for rows in store.scan(low, high) for key, _ in rows]) == 20
    await store.close()


async def test_reads_show_a_commit_only_when_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(slate.COMMON, "flush_interval", "1000s")  # nothing goes by itself
    store = await open_store("memory://bucket-seen", clock=SystemClock())
    assert isinstance(store, BucketStore)
    flush = SlateRows.flush_wal
    seen: list[bytes | None] = []

    async def late(rows: SlateRows) -> None:
        for _ in range(2):
            seen.append(await store.get(b"\x01\x0bk"))
            seen.extend(
                [value async for part in store.scan(b"\x01\x0b", b"\x01\x0c") for _, value in part]
            )
        await flush(rows)
        seen.append(await store.get(b"\x01\x0bk"))

    monkeypatch.setattr(SlateRows, "flush_wal", late)
    await store.commit(1, [(b"\x01\x0bk", b"v")], time_ms=1, epoch=store.epoch)
    assert seen == [None, None, b"v"]
    await store.close()


async def lost(*_args: object, **_options: object) -> None:
    raise UnavailableError("the network is gone")


async def attempt(location: str, after: int, patch: pytest.MonkeyPatch, *, raises: bool) -> None:
    """An opening of ours that fails, after or before it raised the epoch."""
    with patch.context() as inner:
        if raises:
            inner.setattr(bucket, "_verify_chain", lost)
        else:
            inner.setattr(SlateRows, "open", lost)
        with pytest.raises(UnavailableError):
            await open_store(location, clock=SystemClock(), after=after, owner=b"me")


@pytest.mark.parametrize("pattern", ["+-", "-+", "++", "+-+", "--"])
async def test_whatever_our_openings_failed_at_the_next_one_succeeds(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    location = f"memory://bucket-again{pattern}"
    store = await open_store(location, clock=SystemClock(), owner=b"me")
    await store.commit(1, [(b"\x01\x0bk", b"v")], time_ms=1, epoch=store.epoch)
    for sign in pattern:
        await attempt(location, store.epoch, monkeypatch, raises=sign == "+")
    again = await open_store(location, clock=SystemClock(), after=store.epoch, owner=b"me")
    assert again.epoch == store.epoch + pattern.count("+") + 1
    assert again.head().n == 1
    for handle in (store, again):
        await handle.close()


@pytest.mark.parametrize("pattern", ["-", "+", "-+"])
async def test_a_failed_opening_of_ours_takes_nothing_from_who_opened_since(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    location = f"memory://bucket-rightful{pattern}"
    store = await open_store(location, clock=SystemClock(), owner=b"me")
    for sign in pattern:
        await attempt(location, store.epoch, monkeypatch, raises=sign == "+")
    other = await open_store(location, clock=SystemClock(), owner=b"other")
    await other.commit(1, [(b"\x01\x0bk", b"v")], time_ms=1, epoch=other.epoch)
    with pytest.raises(FencedError):
        await open_store(location, clock=SystemClock(), after=store.epoch, owner=b"me")
    await other.commit(2, [(b"\x01\x0bk", b"w")], time_ms=2, epoch=other.epoch)
    await other.verify()
    for handle in (store, other):
        await handle.close()


async def test_who_finishes_an_opening_in_the_middle_of_ours_makes_us_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = "memory://bucket-between"
    store = await open_store(location, clock=SystemClock(), owner=b"me")
    real = SlateRows.open

    async def after_another(*args: Any, **options: Any) -> SlateRows:
        monkeypatch.setattr(SlateRows, "open", real)
        other = await open_store(location, clock=SystemClock(), owner=b"other")
        await other.abandon()
        return await real(*args, **options)

    monkeypatch.setattr(SlateRows, "open", after_another)
    with pytest.raises(FencedError):
        await open_store(location, clock=SystemClock(), after=store.epoch, owner=b"me")
    await store.close()


async def test_an_opening_that_nobody_finished_takes_nothing_from_the_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that died while it opened owns nothing, though it raised the epoch."""
    location = "memory://bucket-died"
    store = await open_store(location, clock=SystemClock(), owner=b"me")
    with monkeypatch.context() as patch:
        patch.setattr(bucket, "_verify_chain", lost)
        with pytest.raises(UnavailableError):
            await open_store(location, clock=SystemClock(), owner=b"other")
    again = await open_store(location, clock=SystemClock(), after=store.epoch, owner=b"me")
    with pytest.raises(FencedError):
        await open_store(location, clock=SystemClock(), after=store.epoch)
    for handle in (store, again):
        await handle.close()


def chain_of(count: int, *, oldest: int = 1) -> list[ChainRecord]:
    records: list[ChainRecord] = []
    previous = NO_HASH
    for n in range(1, count + 1):
        records.append(ChainRecord(n, n, previous, bytes([n]) * 16, oldest))
        previous = records[-1].hash
    return records[oldest - 1 :]


class ChainRows:
    def __init__(self, records: list[ChainRecord]) -> None:
        self._records = records

    async def scan(self, low: bytes, high: bytes) -> AsyncIterator[list[Row]]:
        rows = [(chain_key(record.n), encode_chain(record)) for record in self._records]
        yield [row for row in rows if low <= row[0] < high]


NONE = ChainRecord(0, 0, NO_HASH, NO_HASH)
FOUR = chain_of(4)
OTHER = msgspec.structs.replace(FOUR[3], hash=b"x" * 16)


@pytest.mark.parametrize(
    ("rows", "head"),
    [
        (FOUR[:3], FOUR[3]),
        (FOUR, FOUR[2]),
        (FOUR[1:], FOUR[3]),
        (FOUR[:1] + FOUR[2:], FOUR[3]),
        ([FOUR[0], msgspec.structs.replace(FOUR[1], previous=b"x" * 16), *FOUR[2:]], FOUR[3]),
        ([*FOUR[:3], OTHER], FOUR[3]),
        ([], FOUR[3]),
        (FOUR[:1], NONE),
    ],
    ids=["tail", "head", "front", "middle", "link", "other", "all", "no head"],
)
async def test_a_chain_that_is_not_whole_up_to_the_head_is_damage(
    rows: list[ChainRecord], head: ChainRecord
) -> None:
    with pytest.raises(CorruptError):
        await bucket._verify_chain(ChainRows(rows), head)  # type: ignore[arg-type]


async def test_a_chain_that_is_whole_is_believed_also_when_it_was_pruned() -> None:
    pruned = chain_of(9, oldest=4)
    for rows, head in (([], NONE), (FOUR, FOUR[3]), (pruned, pruned[-1])):
        await bucket._verify_chain(ChainRows(rows), head)  # type: ignore[arg-type]


# -- tables that are not what was written


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with bucket_server():
        yield


def tables_below(prefix: str) -> list[Any]:
    found = boto3.resource("s3", endpoint_url=os.environ["AWS_ENDPOINT"]).Bucket(BUCKET)
    return list(found.objects.filter(Prefix=f"{prefix}/store/compacted/"))


async def with_a_table(location: str) -> None:
    store = await open_store(location, clock=SystemClock())
    assert isinstance(store, BucketStore)
    await store.commit(1, [(b"\x01\x0bk", b"v")], time_ms=1, epoch=store.epoch)
    await store._rows.flush_memtable()
    await store.close()


@pytest.mark.parametrize(
    "prefix", ["", "plain/deep", "/lead", "with space", "ünï", "per%20cent", "a#b?c", "br{a}ce~*"]
)
async def test_tables_are_found_whatever_the_prefix_is(server: None, prefix: str) -> None:
    location = f"s3://{BUCKET}/{prefix}".rstrip("/")
    await with_a_table(location)
    again = await open_store(location, clock=SystemClock())
    assert await again.get(b"\x01\x0bk") == b"v"
    await again.close()


@pytest.mark.parametrize("kind", ["half", "empty", "missing"])
async def test_a_table_that_was_cut_is_corrupt_and_not_a_slow_bucket(
    server: None, kind: str
) -> None:
    location = f"s3://{BUCKET}/cut-{kind}"
    await with_a_table(location)
    (table,) = tables_below(f"cut-{kind}")
    data = table.get()["Body"].read()
    if kind == "missing":
        table.delete()
    else:
        table.put(Body=data[: len(data) // 2] if kind == "half" else b"")
    with pytest.raises(CorruptError, match="is missing" if kind == "missing" else "at least"):
        await open_store(location, clock=SystemClock())
    table.put(Body=data)
    again = await open_store(location, clock=SystemClock())
    assert await again.get(b"\x01\x0bk") == b"v"
    await again.close()


async def test_a_table_that_a_compaction_took_meanwhile_is_no_damage() -> None:
    """The manifest was read before, and the place looked at behind the collector."""
    manifests = [{"old": 10}, {"new": 20}, {"new": 20}]
    asked: list[list[str]] = []

    async def named() -> dict[str, int]:
        return manifests.pop(0)

    async def look(names: Collection[str]) -> dict[str, int]:
        asked.append(list(names))
        return {"new": 20}

    await tables._require("here", named, look)
    assert asked == [["old"], ["new"]]
    manifests[:] = [{"old": 10}, {"old": 10}]
    with pytest.raises(CorruptError, match=r"here/compacted/old\.sst: a table"):
        await tables._require("here", named, look)


async def test_a_table_that_is_missing_is_damage_though_others_come_and_go() -> None:
    """Whoever had the location may still write: its manifest need not stand still."""
    manifests = [{"cut": 10, f"level-{n}": 5} for n in range(4)]

    async def named() -> dict[str, int]:
        return manifests.pop(0)

    async def look(names: Collection[str]) -> dict[str, int]:
        return {name: 5 for name in names}

    with pytest.raises(CorruptError, match=r"here/compacted/cut\.sst: 5 bytes long, at least 10"):
        await tables._require("here", named, look)
    assert len(manifests) == 2
