"""The thread behind a handle: what must have ended before it has."""

from __future__ import annotations

import asyncio
import threading

from penstock.client.thread import LoopThread


def test_what_a_cancelled_call_begins_has_ended_when_the_thread_has() -> None:
    """As a store that was opened in vain: its engine calls back when it has ended, and a call into
    a Python that is ending aborts the process."""
    thread = LoopThread("test")
    begun, ended = threading.Event(), threading.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def end() -> None:
        await asyncio.sleep(0.2)
        ended.set()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            tasks.add(asyncio.ensure_future(end()))

    thread.post(lambda: tasks.add(asyncio.ensure_future(work())))
    assert begun.wait(30)
    thread.stop()
    assert ended.is_set()
