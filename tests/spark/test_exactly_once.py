"""Exactly once, with kill -9: whoever dies when, the output is what an undisturbed run gives."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from integration.seeds import fresh_seed
from penstock.cli.check import inspect
from penstock.log.staging import STAGE_BYTES_MAX
from penstock.spark.planning import DIRECT_BYTES
from spark.cluster import Cluster
from spark.once_driver import PARTITIONS
from spark.once_world import (
    LOCAL,
    PATIENCE_SECONDS,
    Driver,
    Victim,
    World,
    end_brokers,
    open_stagings,
)

ROWS = 40_000


def shuffled(seed: int, kills: dict[Victim, int]) -> list[Victim]:
    victims = [victim for victim, count in kills.items() for _ in range(count)]
    random.Random(seed).shuffle(victims)
    return victims


@pytest.mark.timeout(1200)
def test_a_killed_driver_worker_and_broker_neither_lose_nor_repeat_an_entry(
    tmp_path: Path,
) -> None:
    with World(tmp_path, fresh_seed()) as world:
        world.disturb("broker")
        world.disturb("worker", "any")
        world.disturb("driver", "link")
        world.finish()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_thirty_killed_drivers_and_twenty_others_neither_lose_nor_repeat_an_entry(
    tmp_path: Path, part: int
) -> None:
    seed = fresh_seed() + part
    with World(tmp_path, seed) as world:
        for victim in shuffled(seed, {"driver": 3, "worker": 1, "broker": 1}):
            world.disturb(victim)
        world.finish()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_while_tasks_read_the_store_themselves_and_stage_in_pieces(tmp_path: Path) -> None:
    seed = fresh_seed()
    with World(tmp_path, seed, rows=900, width=40_000, ahead=3) as world:
        for victim in shuffled(seed, {"driver": 2, "worker": 2, "broker": 2}):
            world.disturb(victim)
        mean_bytes = world.size("in").mean_bytes
        assert mean_bytes * world.rows > DIRECT_BYTES, "else the broker reads it for the tasks"
        # Three tasks have at least as many rows each, and what they stage is not smaller.
        assert mean_bytes * world.rows / 3 > STAGE_BYTES_MAX, "else it is one piece"
        world.finish()


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_on_a_cluster_each_entry_comes_once(cluster: Cluster, tmp_path: Path) -> None:
    with World(tmp_path, fresh_seed(), cluster=cluster) as world:
        world.await_batches(3)
        world.finish()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(2))
def test_kills_on_a_cluster_neither_lose_nor_repeat_an_entry(
    cluster: Cluster, tmp_path: Path, part: int
) -> None:
    seed = fresh_seed() + part
    with World(tmp_path, seed, cluster=cluster) as world:
        for victim in shuffled(seed, {"driver": 2, "worker": 1, "executor": 1, "broker": 1}):
            world.disturb(victim)
        world.finish()


# ---- batch writes -----------------------------------------------------------------------------


@pytest.fixture
def db(tmp_path: Path) -> Iterator[penstock.Database]:
    """Served by a process of its own, as Spark's processes do it."""
    place = tmp_path / "data"
    with penstock.open(place, broker="outside", deadline=PATIENCE_SECONDS) as db:
        db.stream("out").write(b"before")
        yield db
    end_brokers(place)


@pytest.fixture
def start(tmp_path: Path, db: penstock.Database) -> Iterator[Callable[[], Driver]]:
    drivers: list[Driver] = []

    def start() -> Driver:
        log = tmp_path / f"driver-{len(drivers)}.log"
        drivers.append(Driver(log, "batch", LOCAL, db.location, tmp_path, ROWS))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.kill()


def data_of(db: penstock.Database) -> list[bytes]:
    table = db.stream("out").to_arrow()
    return [bytes(data) for data in table.column("data").to_pylist()]


def await_(true: Callable[[], bool], driver: Driver) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert not driver.ended(), driver.said()
        assert time.monotonic() < until, f"nothing goes on:\n{driver.said()}"
        time.sleep(0.002)


def run(driver: Driver) -> None:
    code = driver.process.wait(PATIENCE_SECONDS)
    assert code == 0, driver.said()


@pytest.mark.timeout(1200)
def test_a_batch_write_killed_in_the_middle_leaves_nothing_to_be_seen(
    db: penstock.Database, start: Callable[[], Driver], tmp_path: Path
) -> None:
    driver = start()
    await_((tmp_path / "held").exists, driver)
    driver.kill()
    assert data_of(db) == [b"before"]
    # What its tasks had staged is there, hidden, until its lease ends.
    db.close()
    end_brokers(Path(db.location))
    (staging,) = asyncio.run(open_stagings(Path(db.location)))
    assert len(staging.writers) >= PARTITIONS - 2
    assert asyncio.run(inspect(db.location)).findings == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_named_batch_write_killed_when_it_is_linked_is_not_written_again(
    db: penstock.Database, start: Callable[[], Driver], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    driver = start()
    await_(lambda: db.stream("out").info().length > 1, driver)
    driver.kill()
    written = [b"before", *(b"%d" % i for i in range(ROWS))]
    assert data_of(db) == written
    run(start())
    assert data_of(db) == written
