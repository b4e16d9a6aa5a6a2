from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.codec.keys import KeyType, log_key, node_key, prefix, prefix_end
from penstock.codec.node import SIGNATURE_TAGS_MAX, decode_header, node_value, tag_signature
from penstock.errors import CorruptError, NotFoundError
from penstock.log import columns as columns_file
from penstock.log.batch import build_bodies
from penstock.log.check import check_log
from penstock.log.columns import Counts, column_schema, columns
from penstock.log.evict import delete_step, evict_step
from penstock.log.fold import plan_fold
from penstock.log.holes import plan_holes
from penstock.log.joint import join_parts
from penstock.log.link import link_step
from penstock.log.staging import begin_step, stage_step
from penstock.log.state import LogRange, LogState
from unit.log.driver import LogDriver, stream
from unit.log.test_read import Interrupted

S = stream("s")
END = 1 << 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def shown(driver: LogDriver) -> LogState:
    state = await driver.state(S)
    assert state is not None
    return state


async def gathered(
    driver: LogDriver, low: int = 0, high: int = END, *, store: Any = None, **options: Any
) -> tuple[list[pa.RecordBatch], Counts]:
    count = Counts()
    state = options.pop("state", None) or await shown(driver)
    found = columns(store or driver.store, state, low, high, count=count, **options)
    batches = [batch async for batch in found]
    for batch in batches:
        batch.validate(full=True)
    return batches, count


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


async def punch(driver: LogDriver, dead: list[int]) -> None:
    step, left = await plan_holes(driver.store, await shown(driver), dead)
    assert left == []
    assert step is not None
    await driver.do(step)


async def test_entries_come_with_the_types_that_spark_takes() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [("a", b"x", b"m"), ("ü", b"", None)])
    driver.clock.ms += 1
    await driver.append(S, [b"plain"])
    batches, count = await gathered(driver, meta=True)
    (batch,) = batches
    assert batch.schema == column_schema(meta=True)
    assert str(batch.schema.field("time").type) == "timestamp[us, tz=UTC]"
    time = EPOCH + timedelta(milliseconds=1_000_000)
    later = time + timedelta(milliseconds=1)
    assert batch.to_pylist() == [
        {"offset": 0, "time": time, "tag": "a", "data": b"x", "meta": b"m"},
        {"offset": 1, "time": time, "tag": "ü", "data": b"", "meta": None},
        {"offset": 2, "time": later, "tag": "", "data": b"plain", "meta": None},
    ]
    assert count == Counts(nodes=2, rows=3, bytes=6, end=END)
    (plain,), _ = await gathered(driver)
    assert plain.schema == column_schema()
    assert plain == batch.drop_columns("meta")


async def test_tags_come_as_their_bytes_where_that_is_wanted() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [(b"a\xffb", b"1"), ("grün", b"2"), (b"", b"3")])
    (batch,), _ = await gathered(driver, meta=True, text=False)
    assert batch.schema == column_schema(meta=True, text=False)
    assert batch.column("tag").to_pylist() == [b"a\xffb", "grün".encode(), b""]


@pytest.mark.parametrize("names", [["data"], ["tag", "offset"], ["time"], ["meta"]])
async def test_only_the_columns_that_are_named_are_made(names: list[str]) -> None:
    driver = await LogDriver.open()
    for at in range(3):
        await driver.append(S, [(f"t{i % 2}", b"%d" % i, b"m") for i in range(10)])
        driver.clock.ms += at + 1
    low_ms, high_ms = 1_000_001, 1_000_003
    for choice in ({}, {"tags": [b"t1"]}, {"time_low_ms": low_ms, "time_high_ms": high_ms}):
        (whole,), all_counts = await gathered(driver, meta=True, **choice)
        (batch,), count = await gathered(driver, meta=True, names=names, **choice)
        assert batch.equals(whole.select([name for name in whole.schema.names if name in names]))
        assert batch.num_rows == whole.num_rows
        size = all_counts.bytes if "data" in names else 0
        assert count == msgspec.structs.replace(all_counts, bytes=size)


async def test_nodes_are_glued_to_batches_of_at_least_so_many_rows() -> None:
    driver = await LogDriver.open()
    for at in range(0, 3500, 700):
        await driver.append(S, [(f"t{i % 3}", b"%d" % i) for i in range(at, at + 700)])
    batches, count = await gathered(driver, batch_rows=1000)
    assert [batch.num_rows for batch in batches] == [1400, 1400, 700]
    assert [int(row["data"]) for row in rows(batches)] == list(range(3500))
    assert offsets(batches) == list(range(3500))
    assert [row["tag"] for row in rows(batches)] == [f"t{i % 3}" for i in range(3500)]
    assert (count.nodes, count.rows) == (5, 3500)
    assert count.bytes == sum(len(b"%d" % i) for i in range(3500))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (699, 701), (350, 1750), (1399, 1400), (5, 5)])
async def test_a_range_begins_and_ends_where_it_says(low: int, high: int) -> None:
    driver = await LogDriver.open()
    for at in range(0, 2100, 700):
        await driver.append(S, [("t", b"%d" % i, b"m%d" % i) for i in range(at, at + 700)])
    batches, count = await gathered(driver, low, high, meta=True)
    assert offsets(batches) == list(range(low, high))
    assert [row["data"] for row in rows(batches)] == [b"%d" % i for i in range(low, high)]
    assert [row["meta"] for row in rows(batches)] == [b"m%d" % i for i in range(low, high)]
    assert count.evicted == 0


async def test_a_full_batch_is_one_of_many_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = await LogDriver.open()
    for _ in range(6):
        await driver.append(S, [bytes([i]) * 1000 for i in range(250)])
    monkeypatch.setattr(columns_file, "BATCH_BYTES", 500_000)
    batches, _ = await gathered(driver)
    assert [batch.num_rows for batch in batches] == [500, 500, 500]
    # What would not fit into one column is not glued to what waits.
    monkeypatch.setattr(columns_file, "_GLUED_BYTES_MAX", 400_000)
    batches, _ = await gathered(driver)
    assert [batch.num_rows for batch in batches] == [250] * 6
    assert offsets(batches) == list(range(1500))


async def test_dead_entries_are_left_out() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [(f"t{i % 2}", b"%d" % i, b"m") for i in range(1000)])
    await driver.append(S, [b"%d" % i for i in range(1000, 2000)])
    await driver.append(S, [b"%d" % i for i in range(2000, 2010)])
    dead = [*range(3, 900), *range(1000, 2000), 2005]
    await punch(driver, dead)
    alive = [i for i in range(2010) if i not in dead]
    batches, count = await gathered(driver, meta=True)
    assert offsets(batches) == alive
    assert [int(row["data"]) for row in rows(batches)] == alive
    size = sum(len(b"%d" % i) for i in alive)
    assert count == Counts(nodes=3, rows=len(alive), bytes=size, end=END)
    batches, _ = await gathered(driver, 2, 901)
    assert offsets(batches) == [2, 900]


async def test_tags_that_are_not_utf8_show_the_sign_for_that() -> None:
    driver = await LogDriver.open()
    await driver.append(S, [(b"ok", b"1"), (b"a\xffb", b"2"), ("grün", b"3"), (b"", b"4")])
    batches, _ = await gathered(driver)
    assert [row["tag"] for row in rows(batches)] == ["ok", "a\ufffdb", "grün", ""]
    batches, _ = await gathered(driver, tags=[b"a\xffb"])
    assert offsets(batches) == [1]


def by_tag(tag: str, count: int = 600) -> list[tuple[str, bytes]]:
    return [(tag, b"%d" % i) for i in range(count)]


async def tagged() -> LogDriver:
    """Nodes of 600: red, red and blue, without tags, blue; the tags' bits are all different."""
    assert len({tag_signature([tag]) for tag in (b"red", b"blue", b"")}) == 3
    driver = await LogDriver.open()
    await driver.append(S, by_tag("red"))
    await driver.append(S, [("red" if i % 2 else "blue", b"%d" % i) for i in range(600)])
    await driver.append(S, [b"%d" % i for i in range(600)])
    await driver.append(S, by_tag("blue"))
    return driver


@pytest.mark.parametrize(
    ("tags", "expected", "skipped"),
    [
        ([b"red"], [*range(600), *range(601, 1200, 2)], 2),
        ([b"blue"], [*range(600, 1200, 2), *range(1800, 2400)], 2),
        ([b""], [*range(1200, 1800)], 3),
        ([b"", b"red"], [*range(600), *range(601, 1200, 2), *range(1200, 1800)], 1),
        ([], [], 4),
    ],
)
async def test_nodes_without_the_tag_are_not_opened(
    tags: list[bytes], expected: list[int], skipped: int
) -> None:
    driver = await tagged()
    batches, count = await gathered(driver, tags=tags)
    assert offsets(batches) == expected
    assert (count.skipped, count.nodes) == (skipped, 4 - skipped)
    assert count.rows == len(expected)


async def test_what_is_chosen_from_many_nodes_is_glued_too() -> None:
    driver = await LogDriver.open()
    for _ in range(20):
        await driver.append(S, [("rare" if i == 7 else "often", b"x") for i in range(1000)])
    batches, count = await gathered(driver, tags=[b"rare"], batch_rows=5)
    assert [batch.num_rows for batch in batches] == [5, 5, 5, 5]
    batches, count = await gathered(driver, tags=[b"rare"])
    assert [batch.num_rows for batch in batches] == [20]
    assert (count.rows, count.bytes, count.nodes) == (20, 20, 20)


async def signatures(driver: LogDriver) -> list[int]:
    scan = driver.store.scan(prefix(KeyType.NODE), prefix_end(prefix(KeyType.NODE)))
    return [decode_header(value, "node").signature async for part in scan for _, value in part]


async def test_merging_and_punching_give_a_node_the_signature_of_what_lives() -> None:
    driver = await LogDriver.open()
    for i in range(10):
        await driver.append(S, [(f"t{i % 2}", b"x")] * 100)
    assert set(await signatures(driver)) == {0}  # small, and merged soon
    await driver.chore(("merge", (await shown(driver)).log_id))
    assert await signatures(driver) == [tag_signature([b"t0", b"t1"])]
    await punch(driver, [i for i in range(1000) if i // 100 % 2])
    # A dead entry has no tag, which counts as an empty one.
    assert await signatures(driver) == [tag_signature([b"t0", b""])]
    assert await check_log(driver.store) == []
    _, count = await gathered(driver, tags=[b"t1"])
    assert (count.nodes, count.skipped) == (0, 1)


async def test_a_signature_that_leaves_a_tag_out_is_found_by_the_check() -> None:
    driver = await LogDriver.open()
    await driver.append(S, by_tag("red"))
    state = await shown(driver)
    (body,) = build_bodies(by_tag("red"))
    wrong = msgspec.structs.replace(body, signature=tag_signature([b"blue"]))
    key, value = node_key(state.log_id, 0), node_value(wrong, 0, driver.clock.ms)
    n = driver.store.head().n + 1
    await driver.store.commit(n, [(key, value)], time_ms=0, epoch=driver.store.epoch)
    found = await check_log(driver.store)
    assert len(found) == 1
    assert "its signature leaves out" in str(found[0])


async def timed() -> LogDriver:
    """Times 1,000,000 + 10 * i: nodes of one time, then one with times of its own."""
    driver = await LogDriver.open()
    for _ in range(3):
        await driver.append(S, [b"x"] * 600)
        driver.clock.ms += 10
    for _ in range(4):
        await driver.append(S, [b"x"] * 100)
        driver.clock.ms += 10
    await driver.append(S, [b"x"] * 1000)
    await driver.chore(("merge", (await shown(driver)).log_id))
    return driver


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "expected", "nodes", "skipped"),
    [
        (None, None, (0, 3200), 5, 0),
        (5, None, (600, 3200), 4, 1),
        (10, 20, (600, 1200), 1, 2),
        (11, None, (1200, 3200), 3, 2),
        (40, 50, (1900, 2000), 1, 4),
        (60, None, (2100, 3200), 2, 3),
        (None, 0, (0, 0), 0, 1),
        (None, 30, (0, 1800), 4, 1),
        (None, 31, (0, 1900), 4, 1),
        (1000, None, (0, 0), 0, 5),
        (50, 20, (0, 0), 0, 3),
    ],
)
async def test_nodes_of_another_time_are_not_opened(
    low_ms: int | None,
    high_ms: int | None,
    expected: tuple[int, int],
    nodes: int,
    skipped: int,
) -> None:
    driver = await timed()
    batches, count = await gathered(
        driver,
        time_low_ms=None if low_ms is None else 1_000_000 + low_ms,
        time_high_ms=None if high_ms is None else 1_000_000 + high_ms,
    )
    assert offsets(batches) == list(range(*expected))
    assert count.nodes == nodes
    assert count.skipped == skipped
    assert count.evicted == 0


async def test_no_entry_is_older_than_the_node_before() -> None:
    driver = await LogDriver.open()
    for _ in range(30):
        await driver.append(S, [b"x"] * 100)
        driver.clock.ms += 10
    await driver.chore(("merge", (await shown(driver)).log_id))
    batches, count = await gathered(driver, time_high_ms=1_000_050)
    assert offsets(batches) == list(range(500))
    # The second one has times of its own, of which the header tells only the newest.
    assert (count.nodes, count.skipped) == (1, 1)
    batches, count = await gathered(driver, time_high_ms=1_000_101)
    assert offsets(batches) == list(range(1100))
    assert (count.nodes, count.skipped) == (2, 1)


async def test_what_is_evicted_is_counted() -> None:
    driver = await LogDriver.open()
    for at in range(0, 3000, 600):
        await driver.append(S, [b"%d" % i for i in range(at, at + 600)])
    before = await shown(driver)
    await driver.do(evict_step(S, up_to=1249))
    batches, count = await gathered(driver, 100, 2000)
    assert (offsets(batches), count.evicted) == (list(range(1250, 2000)), 1150)
    assert (await gathered(driver, 100, 600))[1] == Counts(evicted=500, end=600)
    assert (await gathered(driver, 1300, 9000))[1].evicted == 0
    assert (await gathered(driver, 5000, 9000))[1] == Counts(end=9000)
    # Collected, and known from a state that is older.
    await driver.chore(("collect", None))
    old = LogRange(before.log_id, before.first, before.next)
    batches, count = await gathered(driver, 100, 2000, state=old)
    assert offsets(batches) == list(range(1250, 2000))
    assert count.evicted == 1150
    await driver.do(evict_step(S, up_to=2999))
    await driver.chore(("collect", None))
    assert await gathered(driver, 100, 2000, state=old) == ([], Counts(evicted=1900, end=2000))


async def test_entries_evicted_and_collected_in_the_middle_are_counted() -> None:
    driver = await LogDriver.open()
    for at in range(0, 300, 10):
        await driver.append(S, [b"%d" % i for i in range(at, at + 10)])
    state = await shown(driver)

    async def evict() -> None:
        await driver.do(evict_step(S, up_to=149))
        await driver.chore(("collect", None))

    batches, count = await gathered(driver, state=state, store=Interrupted(driver, evict))
    assert offsets(batches) == [*range(10), *range(150, 300)]
    assert count.evicted == 140


async def test_a_log_deleted_in_the_middle_is_not_found_and_a_missing_node_is_corruption() -> None:
    driver = await LogDriver.open()
    for at in range(0, 3000, 600):
        await driver.append(S, [b"%d" % i for i in range(at, at + 600)])
    state = await shown(driver)
    n = driver.store.head().n + 1
    await driver.store.commit(
        n, [(node_key(state.log_id, 1200), None)], time_ms=0, epoch=driver.store.epoch
    )
    with pytest.raises(CorruptError, match="the node of offset 1200 is missing"):
        await gathered(driver, state=state)
    await driver.do(delete_step(S))
    await driver.chore(("collect", None))
    with pytest.raises(NotFoundError):
        await gathered(driver, state=state)
    assert await driver.store.get(log_key(state.log_id)) is None


async def linked(driver: LogDriver) -> int:
    """Two staged nodes, red and blue, linked behind 600 red entries."""
    await driver.append(S, by_tag("red"))
    driver.clock.ms += 10
    staging_id: int = await driver.do(begin_step())
    bodies = [*build_bodies(by_tag("red")), *build_bodies(by_tag("blue"))]
    await driver.do(stage_step(staging_id, 7, 0, bodies))
    await driver.do(link_step(staging_id, [(S, [7])]))
    return staging_id


async def test_linked_nodes_have_the_signature_of_their_columns_and_the_time_of_the_link() -> None:
    driver = await LogDriver.open()
    await linked(driver)
    batches, count = await gathered(driver, tags=[b"blue"])
    assert (offsets(batches), count.skipped) == (list(range(1200, 1800)), 2)
    batches, count = await gathered(driver, tags=[b"red"], time_low_ms=1_000_001)
    assert (offsets(batches), count.skipped) == (list(range(600, 1200)), 2)
    assert {row["time"] for row in rows(batches)} == {EPOCH + timedelta(milliseconds=1_000_010)}
    batches, count = await gathered(driver, time_high_ms=1_000_010)
    assert (offsets(batches), count.skipped) == (list(range(600)), 1)


class Unfolded:
    """The store of before a link was folded, for reads of its rows only."""

    def __init__(self, driver: LogDriver, links: list[Any]) -> None:
        self._store = driver.store
        self._links = links

    async def get(self, key: bytes) -> bytes | None:
        return await self._store.get(key)

    async def floor(self, key: bytes, *, low: bytes) -> Any:
        return max(row for row in self._links if row[0] <= key)

    async def scan(self, low: bytes, high: bytes, **_: Any) -> AsyncIterator[Any]:
        yield [row for row in self._links if low <= row[0] < high]


async def test_links_folded_in_the_middle_are_judged_by_what_they_became() -> None:
    driver = await LogDriver.open()
    staging_id = await linked(driver)
    scan = driver.store.scan(prefix(KeyType.NODE), prefix_end(prefix(KeyType.NODE)))
    links = [row async for part in scan for row in part]
    step = await plan_fold(driver.store, staging_id)
    assert step is not None
    await driver.do(step)
    batches, count = await gathered(driver, store=Unfolded(driver, links), tags=[b"blue"])
    assert (offsets(batches), count.nodes, count.skipped) == (list(range(1200, 1800)), 1, 2)


async def test_more_tags_than_a_signature_tells_apart_open_every_node_with_tags() -> None:
    driver = await tagged()
    many = [b"none-%d" % i for i in range(SIGNATURE_TAGS_MAX + 1)]
    assert (await gathered(driver, tags=many))[1] == Counts(nodes=3, skipped=1, end=END)


@pytest.mark.parametrize("tags", [None, [b"blue"], [b""]])
async def test_who_reads_may_go_on_from_where_a_read_came_to(tags: list[bytes] | None) -> None:
    driver = await tagged()
    await driver.do(evict_step(S, up_to=99))
    state = await shown(driver)
    whole, count = await gathered(driver, tags=tags, batch_rows=600)
    assert (count.end, count.evicted) == (END, 100)
    for stopped in range(1, len(whole) + 1):
        count = Counts()
        read = columns(driver.store, state, 0, END, count=count, tags=tags, batch_rows=600)
        found = [await anext(read) for _ in range(stopped)]
        more, rest = await gathered(driver, count.end, tags=tags, batch_rows=600)
        assert offsets(found + more) == offsets(whole)
        assert (count.evicted, rest.evicted) == (100, 0)


@pytest.mark.parametrize("tags", [None, [b"rare"], [b"none"]])
async def test_a_read_that_looked_through_enough_ends_and_says_where(
    tags: list[bytes] | None,
) -> None:
    driver = await LogDriver.open()
    for i in range(20):
        await driver.append(S, [("rare" if i == 13 else "often", b"x", None)])
    await driver.do(evict_step(S, up_to=1))
    whole, _ = await gathered(driver, tags=tags)
    total, found, looks = Counts(), list[pa.RecordBatch](), 0
    while total.end < 20:
        parts, count = await gathered(driver, total.end, 20, tags=tags, look_bytes=3 * 4096)
        assert count.nodes + count.skipped <= 3
        assert count.end > total.end
        found += parts
        looks += count.nodes + count.skipped
        total.end, total.evicted = count.end, total.evicted + count.evicted
    assert rows(found) == rows(whole)
    assert (looks, total.evicted) == (18, 2)


async def test_what_was_skipped_or_is_gone_is_behind_before_anything_was_given() -> None:
    driver = await tagged()
    await driver.do(evict_step(S, up_to=99))
    n, gone = driver.store.head().n + 1, node_key((await shown(driver)).log_id, 1800)
    await driver.store.commit(n, [(gone, None)], time_ms=0, epoch=driver.store.epoch)
    count = Counts()
    read = columns(driver.store, await shown(driver), 0, END, count=count, tags=[b"none"])
    with pytest.raises(CorruptError):
        await anext(read)
    assert count.end == 1800


def test_small_writes_that_are_joined_have_a_signature_only_where_they_are_large() -> None:
    small = join_parts([(b"a", b"x"), (b"b", b"y")])
    assert small.signature == 0
    large = join_parts([(b"t%d" % (i % 3), b"x") for i in range(600)])
    assert large.signature == tag_signature([b"t0", b"t1", b"t2"])
    assert join_parts([(b"", b"x")] * 600).signature == 0
