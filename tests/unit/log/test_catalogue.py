from __future__ import annotations

import pytest

from penstock.codec.keys import Kind
from penstock.errors import CorruptError, InvalidError
from penstock.log.catalogue import (
    LogName,
    decode_name_key,
    list_names,
    lookup,
    open_target,
    stream_name,
)
from unit.log.driver import LogDriver, TickView, data_of, stream


async def test_names_are_listed_in_order_and_per_kind() -> None:
    driver = await LogDriver.open()
    for name in ("b", "a", "ä", "a\x00b"):
        await driver.append(stream(name), [b"x"])
    await driver.append(LogName(Kind.INTERNAL, b"hidden"), [b"x"])
    found = [name async for name, _ in list_names(driver.store, Kind.STREAM)]
    assert found == ["a", "a\x00b", "b", "ä"]


async def test_a_name_with_nul_never_meets_another_one() -> None:
    driver = await LogDriver.open()
    names = ["a", "a\x00", "a\x00b", "a\x01b", "ab"]
    for name in names:
        await driver.append(stream_name(name), [name.encode()])
    driver.forget()
    assert [await data_of(driver, stream_name(name)) for name in names] == [
        [name.encode()] for name in names
    ]


async def test_the_same_name_of_two_kinds_is_two_logs() -> None:
    driver = await LogDriver.open()
    stream_log, internal = stream("x"), LogName(Kind.INTERNAL, b"x")
    await driver.append(stream_log, [b"stream"])
    await driver.append(internal, [b"internal"])
    rows = [await lookup(driver.store, name) for name in (stream_log, internal)]
    assert [row and row.id for row in rows] == [1, 2]
    assert await data_of(driver, internal) == [b"internal"]


async def test_a_read_that_cannot_keep_what_it_loaded_still_sees_it() -> None:
    driver = await LogDriver.open()
    await driver.append(stream("s"), [b"x"])
    driver.forget()

    class Forgetful(TickView):
        def keep(self, key: object, state: object) -> None:
            """As when a commit went by: what was loaded may be old, so it is not kept."""

    state = await open_target(Forgetful(driver), stream("s"))
    assert state is not None
    assert state.next == 1
    assert driver.states == {}


def test_bad_names_are_invalid_and_bad_name_keys_corrupt() -> None:
    with pytest.raises(InvalidError):
        stream_name("")
    with pytest.raises(CorruptError):
        decode_name_key(b"\x01\x09\x09a\x00")
    with pytest.raises(CorruptError):
        decode_name_key(b"\x01\x09\x01\xff\x00")
