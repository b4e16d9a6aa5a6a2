"""What waits for a commit is bounded, in requests and in bytes."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker import commit
from penstock.broker.commit import Committer
from penstock.errors import UnavailableError
from penstock.log.decision import Decision, Step
from penstock.store.memory import Fault, Faults, MemoryDisk, MemoryStore, Stall
from unit.log.driver import StillClock

KEY = b"\x01\x0akey"


def write(size: int) -> Step:
    return Step(lambda view, now: Decision(writes={KEY: b"x"}), size=size)


@pytest.mark.parametrize(("limit", "size"), [("WAITING_MAX", 0), ("WAITING_BYTES_MAX", 100)])
async def test_more_than_so_much_is_turned_away_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, limit: str, size: int
) -> None:
    monkeypatch.setattr(commit, limit, 3 * (size or 1))
    clock, faults, stall = StillClock(), Faults(), Stall()

    async def opener(after: int | None) -> MemoryStore:
        return await MemoryStore.open(MemoryDisk(), clock=clock, faults=faults)

    committer = Committer(opener, clock)
    await committer.open()
    faults.next("commit", Fault(before=[stall]))
    first = asyncio.create_task(committer.submit(write(size)))
    await stall.reached.wait()  # the tick has taken it in
    waiting = [asyncio.create_task(committer.submit(write(size))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="3 requests"):
        await committer.submit(write(size))
    stall.release()
    await asyncio.gather(first, *waiting)
    await committer.submit(write(size))  # there is room again
    await committer.close()
