"""A writer is stopped, another takes over, the first one wakes up: it is harmless, and knows it.

All of this is below the folder's lock, at the store port: only the epoch keeps the two apart.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from integration.children import Child
from integration.port_writer import POINTS, row
from integration.seeds import fresh_seed
from penstock.clock import SystemClock
from penstock.store.location import open_store
from penstock.store.port import Row, Store


async def all_rows(store: Store) -> list[Row]:
    return [found async for rows in store.scan(b"\xf0", b"\xf1") for found in rows]


async def commit_more(store: Store, expected: list[Row]) -> None:
    n = store.head().n + 1
    await store.commit(n, [row(n, "new")], time_ms=n, epoch=store.epoch)
    expected.append(row(n, "new"))


def commits(lines: list[str]) -> list[int]:
    return [int(line.split(" ")[1]) for line in lines if line.startswith("ack ")]


async def take_over_from(
    old: Child, location: str, *, closes: bool, late_max: int = 1, bucket: bool = False
) -> None:
    """`old` is stopped. Take over, wake it up, and see that it does nothing."""
    acked = commits(old.drain())
    new = await open_store(location, clock=SystemClock())
    found = new.head().n
    expected = await all_rows(new)
    assert expected == [row(n, "old") for n in range(1, found + 1)]
    assert not acked or acked[-1] <= found, "an acknowledged commit is missing"
    for _ in range(3):
        await commit_more(new, expected)

    old.resume()
    *late, last = old.hear_until("fenced")
    assert last == "fenced"
    # What returned before the stop may be reported after it: at most one call, of a commit that the
    # newcomer has; none where the stop was in the middle of a call.
    if bucket:  # reads may trust an epoch that was looked up less than a second ago
        late = [line for line in late if line.startswith("ack ")]
    assert len(late) <= late_max, f"acknowledged after it was fenced: {late}"
    assert all(int(line.split(" ")[1]) <= found for line in late), f"{late}, but {found} was found"

    await commit_more(new, expected)  # while the old one tries again
    assert old.hear_until("end") == ["fenced", "fenced", "end"]
    assert old.finish() == 0, old.errors()
    await commit_more(new, expected)
    assert await all_rows(new) == expected
    await (new.close() if closes else new.abandon())

    third = await open_store(location, clock=SystemClock())
    assert await all_rows(third) == expected
    await third.close()


async def stop_somewhere(location: str, rng: random.Random, *, bucket: bool = False) -> None:
    size = rng.choice(["", "-small"])
    with Child("port_writer", location, rng.choice(["close", "abandon"]) + size) as old:
        old.hear_until("ack")
        heard = old.drain(rng.uniform(0, 0.2))
        old.stop()
        heard += old.drain()
        await take_over_from(old, location, closes=rng.random() < 0.5, bucket=bucket)


@pytest.mark.parametrize("part", range(10))
async def test_a_stopped_writer_never_acknowledges_again(tmp_path: Path, part: int) -> None:
    seed = fresh_seed() + part
    print(f"seed {seed}")
    await stop_somewhere(str(tmp_path), random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
async def test_a_stopped_writer_never_acknowledges_again_often(tmp_path: Path, part: int) -> None:
    seed = fresh_seed() + part
    print(f"seed {seed}")
    await stop_somewhere(str(tmp_path), random.Random(seed))


async def test_a_stopped_writer_of_a_bucket_never_acknowledges_again(bucket: str) -> None:
    await stop_somewhere(bucket, random.Random(fresh_seed()), bucket=True)


@pytest.mark.parametrize("point", [name for name in POINTS if name != "after-epoch-check"])
async def test_a_commit_that_was_stopped_before_the_epoch_check_is_not_acknowledged(
    tmp_path: Path, point: str
) -> None:
    location = str(tmp_path)
    # The journal turns over often enough that a cover and a new head come soon after commit 40.
    with Child("port_writer", location, "close-small", point, 40) as old:
        old.await_stop()
        heard = old.drain()
        in_commit = POINTS[point][1] in ("_write", "fdatasync", "check")
        assert not in_commit or commits(heard)[-1] == 39
        await take_over_from(old, location, closes=False, late_max=0 if in_commit else 1)


async def test_a_commit_that_passed_the_epoch_check_is_there_for_the_next_one(
    tmp_path: Path,
) -> None:
    location = str(tmp_path)
    with Child("port_writer", location, "close", "after-epoch-check", 40) as old:
        old.await_stop()
        new = await open_store(location, clock=SystemClock())
        assert await all_rows(new) == [row(n, "old") for n in range(1, 41)]
        await new.close()
