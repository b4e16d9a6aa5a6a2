"""kill -9: a real writing process dies at a random moment, again and again, in one location."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import penstock
from integration.children import Child
from integration.ledger import Ledger
from integration.seeds import fresh_seed
from penstock.clock import SystemClock
from penstock.log.check import check_log
from penstock.store.location import open_store


async def check_rows(location: str, *, closes: bool) -> None:
    """Every row of the store is in order. Without a close the next one has to recover again."""
    store = await open_store(location, clock=SystemClock())
    assert await check_log(store) == []
    await (store.close() if closes else store.abandon())


def kill_again_and_again(location: str, *, kills: int, seed: int) -> Ledger:
    """Some kills hit the opening, most the writing; some openings follow a kill directly."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    ledger = Ledger()

    def start() -> Child:
        return Child("crash_writer", location, rng.randrange(1 << 30))

    child = start()
    for run in range(kills):
        successor = start()  # loads its modules meanwhile
        with child:
            child.tell(f"{run} {ledger.sequence}")
            while run == 0 and ledger.acks <= kills:  # however slow the machine is
                ledger.note(child.hear_until("ack"))
            if run == 0 or rng.random() < 0.15:
                ledger.note(child.drain(rng.uniform(0, 0.15)))
            else:
                ledger.note(child.hear_until("open"))
                ledger.note(child.drain(rng.uniform(0, 0.25)))
            ledger.note(child.kill())
        child = successor
        if rng.random() < 0.3:
            asyncio.run(check_rows(location, closes=rng.random() < 0.5))
        if rng.random() < 0.5 or run == kills - 1:
            with penstock.open(location) as db:
                ledger.verify(db, seed=run)
    asyncio.run(check_rows(location, closes=True))
    with child:
        child.kill()
    assert ledger.acks > kills, "hardly anything was written: this proves nothing"
    return ledger


def test_twenty_kills_lose_tear_and_move_nothing(tmp_path: Path) -> None:
    kill_again_and_again(str(tmp_path / "data"), kills=20, seed=fresh_seed())


def test_five_kills_over_a_bucket_lose_tear_and_move_nothing(bucket: str) -> None:
    kill_again_and_again(bucket, kills=5, seed=fresh_seed())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_kills_lose_tear_and_move_nothing(tmp_path: Path, part: int) -> None:
    kill_again_and_again(str(tmp_path / "data"), kills=20, seed=fresh_seed() + part)
