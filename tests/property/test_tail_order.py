"""However the requests of consumers and their answers cross each other, keys stay in order.

Method: real consumers (client/tail.py) against a broker of plain dicts, on one loop where seeded
chance says how long everything takes; meanwhile the topic is paused and played, consumers come and
go, handlers fail, effects are refused, and brokers are lost (tail_world.py).
"""

from __future__ import annotations

import pytest

from property.tail_world import World


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.settle.FLUSH_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("lossy", "fenced"), [(False, False), (True, False), (False, True)],
    ids=["calm", "lossy", "fenced"],
)  # fmt: skip
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("manner", ["tx", "plain", "once"])
@pytest.mark.parametrize(
    "seeds", [range(5), pytest.param(range(5, 60), marks=pytest.mark.slow)], ids=["some", "many"]
)
async def test_keys_stay_in_order(
    seeds: range, manner: str, workers: int, lossy: bool, fenced: bool
) -> None:
    for seed in seeds:
        world = World(
            seed,
            count=200,
            ack=manner != "once",
            tx=manner == "tx",
            workers=workers,
            lossy=lossy,
            fenced=fenced,
        )
        await world.run()
        assert not world.errors, f"seed {seed}: {world.errors[0]}"
        assert all(each.ended for each in world.broker.messages), f"seed {seed}: some are left"
        effects = world.broker.effects
        assert len(set(effects)) == len(effects), f"seed {seed}: an effect happened twice"
