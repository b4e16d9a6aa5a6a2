"""The process that serves a folder: what its callers hear when another one takes over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.lock import FolderLock
from penstock.client.backend import Backend
from penstock.client.link import Link
from penstock.client.places import Folder
from penstock.clock import SystemClock
from penstock.errors import FencedError
from penstock.log.catalogue import stream_name


async def test_calls_under_way_at_a_host_that_lost_its_lock_go_on_or_hear_that_it_is_fenced(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    place = Folder(tmp_path, clock=clock, durability="power", deadline=20.0, outside=False)
    link = Link(place, clock=clock, deadline=20.0)
    await link.open()
    old = link.broker
    go_on = asyncio.Event()

    async def names(broker: Backend, _: int | None) -> list[str]:
        await go_on.wait()
        return await broker.names()

    async def delete(broker: Backend, _: int | None) -> bool:
        await go_on.wait()
        return await broker.delete(stream_name("nothing"))

    reading = asyncio.ensure_future(link.run(names, again=True))
    writing = asyncio.ensure_future(link.run(delete, again=False))
    await asyncio.sleep(0)
    FolderLock(tmp_path, over=1, serves=True).release()  # a newcomer that dies at once
    while link.broker is old:
        await clock.sleep(0.01)
    go_on.set()
    assert await reading == []
    with pytest.raises(FencedError):
        await writing
    await link.close()


async def test_an_idle_handle_that_never_serves_looks_for_no_broker(tmp_path: Path) -> None:
    """It would start a process that nobody needs: a worker of Spark that waits for its next task
    must not bring a broker back to a location that everybody has closed."""
    clock = SystemClock()

    def link(outside: bool) -> Link:
        place = Folder(tmp_path, clock=clock, durability="power", deadline=20.0, outside=outside)
        return Link(place, clock=clock, deadline=20.0)

    serving, idle = link(False), link(True)
    await serving.open()
    await idle.open()
    assert serving.broker is not None
    await serving.close()
    while idle._seat is not None:
        await clock.sleep(0.01)
    assert idle._finding is None or idle._finding.done()
    again = link(False)
    await again.open()
    assert again.broker is not None  # nobody else was there
    assert await idle.run(lambda broker, _: broker.names(), again=True) == []
    await idle.close()
    await again.close()
