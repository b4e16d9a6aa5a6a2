"""Bytes through the binding: the fast path serves, and gives the bytes that the stock one gives."""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys
from typing import Any

import slatedb.uniffi as engine
from hypothesis import given
from hypothesis import strategies as st

from penstock.store import fastbytes


def content(buffer: Any) -> bytes:
    raw = ctypes.string_at(buffer.data, buffer.len)
    buffer.free()
    return raw


def test_the_fast_path_serves_with_the_pinned_binding() -> None:
    assert fastbytes.install()
    assert fastbytes.agrees()


@given(st.binary(max_size=6000))
def test_both_paths_lower_the_same_bytes(data: bytes) -> None:
    assert content(fastbytes.lower_bytes(data)) == content(fastbytes._stock_lower(data))


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300), st.booleans())))
def test_both_paths_lift_the_same_rows(rows: list[tuple[bytes, bytes, bool]]) -> None:
    def lowered() -> Any:
        return fastbytes._stock_rows(
            [
                engine.KeyValue(key=k, value=v, seq=1, create_ts=2, expire_ts=3 if e else None)
                for k, v, e in rows
            ]
        )

    stock = [(row.key, row.value) for row in fastbytes._stock_lift_rows(lowered())]
    assert fastbytes.lift_rows(lowered()) == stock == [(k, v) for k, v, _ in rows]


def test_a_binding_that_differs_is_left_as_it_is() -> None:
    # In a process of its own: the check runs when the store is first imported.
    script = """
import asyncio
import slatedb.uniffi._slatedb_uniffi.slatedb as binding
stock = binding._uniffi_rust_call_async
rows = binding._UniffiFfiConverterSequenceTypeKeyValue
rows.lower, lower = staticmethod(lambda value: lower(value[1:])), rows.lower
import penstock.store.fastbytes as fastbytes
assert binding._uniffi_rust_call_async is stock and not fastbytes.INSTALLED
from penstock.clock import SystemClock
from penstock.store.location import open_store
async def main():
    store = await open_store("memory://stock", clock=SystemClock())
    await store.commit(1, [(b"k", b"v" * 5000)], time_ms=1, epoch=store.epoch)
    assert await store.get(b"k") == b"v" * 5000
    assert [row async for rows in store.scan(b"a", b"z") for row in rows] == [(b"k", b"v" * 5000)]
    await store.close()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    objects = engine.ObjectStore.resolve("memory:///")
    db = await engine.DbBuilder("x", objects).build()
    before = len(fastbytes._waiters)
    handle = await db.put(b"k", b"v")
    waiting = asyncio.ensure_future(handle.await_durable())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await db.get(b"k") == b"v"
    await db.shutdown()
    assert len(fastbytes._waiters) <= before + 1
