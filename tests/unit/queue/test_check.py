"""Each invariant of queue/check.py, broken once by hand, is found and named."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.codec.keys import (
    KeyType,
    attempts_key,
    expiry_key,
    head_key,
    ids_key,
    operations_key,
    page_key,
    payload_key,
    prefix,
    prefix_end,
)
from penstock.codec.queueoperation import (
    LINES,
    PageKind,
    SheetRow,
    decode_head_row,
    decode_sheet,
    encode_head_row,
    encode_sheet,
)
from penstock.codec.queuestate import HISTORY
from penstock.codec.taken import GONE, TakenPage, decode_taken_page, encode_taken_page
from penstock.log.catalogue import Ids, lookup
from penstock.log.decision import Decision, Step
from penstock.log.holes import plan_holes
from penstock.log.state import read_log
from penstock.queue.check import check_queues
from penstock.queue.flush import head_step
from penstock.queue.item import Item
from penstock.queue.lines import sheet_of
from penstock.queue.page import encode_page
from penstock.queue.state import page_row_key, read_lines, sheet_key
from penstock.queue.taken import METADATA
from penstock.stream.check import check_groups
from unit.queue.driver import QueueDriver, messages, small_pages

AVAILABLE, IN_FLIGHT, DONE, FAILED = PageKind


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)


async def sample() -> QueueDriver:
    """Something in every list, all of it in rows and no operation left."""
    driver = await QueueDriver.start(max_attempts=2)
    await driver.publish(*messages(10), Item(b"r", retention_s=1000), Item(b"alone"))
    first, second, third, *_ = await driver.claim(6)
    await driver.ack(first)
    await driver.fail(second, third)
    (again, *_) = await driver.claim(1)
    await driver.fail(again)
    await driver.flush()
    low = prefix(KeyType.OPERATIONS)
    found = driver.store.scan(low, prefix_end(low))
    await write(driver, dict.fromkeys([key async for rows in found for key, _ in rows]))
    driver = await driver.restarted()
    await driver.clean()
    assert await check_groups(driver.store) == []
    return driver


async def write(driver: QueueDriver, writes: dict[bytes, bytes | None]) -> None:
    await driver.do(Step(lambda view, now: Decision(writes=writes)))


async def findings(driver: QueueDriver) -> str:
    return " | ".join(f"{f.where}: {f.what}" for f in await check_queues(driver.store))


async def change_page(driver: QueueDriver, kind: PageKind, nth: int, **fields: Any) -> None:
    """Give the entries of a page other fields, behind the queue's back."""
    page = (await driver.pages(kind))[nth]
    entries = page.entries.copy()
    for field, value in fields.items():
        entries[field] = value(entries[field]) if callable(value) else value
    changed = msgspec.structs.replace(page, entries=entries)
    identifier = (await driver.queue()).queue_id
    key = page_row_key(identifier, kind, page.number, page.priority)
    await write(driver, {key: encode_page(changed)})


@pytest.mark.parametrize(
    ("kind", "nth", "fields", "finding"),
    [
        (AVAILABLE, 0, {"priority": 7}, "not those of priority 128"),
        (AVAILABLE, 1, {"message_id": lambda ids: ids[::-1].copy()}, "not in order"),
        (AVAILABLE, 1, {"visible_at_ms": 5}, "its line is"),
        (AVAILABLE, 1, {"visible_at_ms": 5}, "does not follow"),
        (IN_FLIGHT, 0, {"lease_number": lambda n: n + 40}, "leases of another page"),
        (IN_FLIGHT, 0, {"lease_deadline_ms": 1}, "its line is"),
        (IN_FLIGHT, 0, {"message_id": 1}, "message 1 is in"),
        (FAILED, 0, {"message_id": 5}, "message 5 is in"),
        (AVAILABLE, 1, {"attempts": 1}, "1 attempts and no history"),
        (AVAILABLE, 1, {"flags": HISTORY}, "its attempts record is gone"),
        (FAILED, 0, {"flags": 0}, "which has none"),
        (FAILED, 0, {"attempts": 9}, "9 attempts, 2 in history"),
        (AVAILABLE, 1, {"offset": 999}, "the log does not reach there"),
        (AVAILABLE, 1, {"offset": lambda o: o[::-1].copy()}, "holds message"),
        (AVAILABLE, 1, {"retention_deadline_ms": lambda d: d - 1}, "its deadline is another one"),
    ],
)
async def test_a_page_that_was_tampered_with_is_found(
    kind: PageKind, nth: int, fields: dict[str, Any], finding: str
) -> None:
    driver = await sample()
    await change_page(driver, kind, nth, **fields)
    assert finding in await findings(driver)


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"next_lease": 1}, "of 1"),
        ({"next_available": 1}, "available page"),
        ({"next_failed": 0}, "failed page 0 of 0"),
        ({"routed": 13}, "13 messages came, but there are"),
        ({"done": 2}, "but there are"),
        ({"expired": 1}, "1 expired"),
        ({"purged": 1}, "1 purged"),
        ({"failed": 0}, "than ever were"),
    ],
)
async def test_numbers_that_do_not_add_up_are_found(fields: dict[str, int], finding: str) -> None:
    driver = await sample()
    key = head_key((await driver.queue()).id)
    value = await driver.store.get(key)
    assert value is not None
    row = decode_head_row(value, "head")
    head = msgspec.structs.replace(row.head, **fields)
    await write(driver, {key: encode_head_row(msgspec.structs.replace(row, head=head))})
    assert finding in await findings(driver)


async def test_a_line_that_is_missing_is_found() -> None:
    driver = await sample()
    key = head_key((await driver.queue()).id)
    value = await driver.store.get(key)
    assert value is not None
    row = decode_head_row(value, "head")
    sheets = row.sheets | {AVAILABLE: row.sheets[AVAILABLE][1:]}
    await write(driver, {key: encode_head_row(msgspec.structs.replace(row, sheets=sheets))})
    told = await findings(driver)
    assert "and has no line" in told
    assert "the row of a sheet that nothing tells of" in told


@pytest.mark.parametrize("kind", PageKind)
async def test_a_line_of_a_page_that_only_operations_know_is_found(kind: PageKind) -> None:
    """Its row is not written yet, but the head is: it and its sheet tell of one page less."""
    driver = await sample()
    await driver.publish(*messages(9, headers={"priority": "0"}))
    leases = [] if kind is AVAILABLE else await driver.claim(9)
    if kind is DONE:
        await driver.ack(*leases)
    if kind is FAILED:
        await driver.fail(*leases)
        await driver.fail(*await driver.claim(9))
    state = await driver.queue()
    await driver.do(head_step(state.id))
    value = await driver.store.get(head_key(state.id))
    assert value is not None
    lines, row = (await driver.queue()).lines[kind], decode_head_row(value, "head")
    view = await driver.rows_alone()
    known = [part async for part in read_lines(view, await driver.queue(), kind)]
    places = [
        (i, at)
        for i, part in enumerate(known)
        for at, line in enumerate(part)
        if not await driver.store.get(
            page_row_key(
                state.queue_id,
                kind,
                int(line["page"]),
                int(line["priority"]) if kind is AVAILABLE else 0,
            )
        )
    ]
    assert places, "a page that only operations know"
    i, at = places[-1]
    number, left = int(lines.sheets["sheet"][i]), np.delete(known[i], at)
    sheets = {each: table.copy() for each, table in row.sheets.items()}
    if len(left):
        sheets[kind][i] = sheet_of(kind, number, row.sequence, left)[0]
    else:
        sheets[kind] = np.delete(sheets[kind], i)
    sheet = encode_sheet(SheetRow(kind, row.sequence, left)) if len(left) else None
    told = encode_head_row(msgspec.structs.replace(row, sheets=sheets))
    await write(driver, {head_key(state.id): told, sheet_key(state.id, kind, number): sheet})
    number = int(known[i]["page"][at])
    what = f"{kind.name.lower().replace('_', ' ')} page {number} holds"
    assert what in await findings(driver)


@pytest.mark.parametrize("kind", PageKind)
async def test_a_sheet_that_is_gone_or_another_one_is_found(kind: PageKind) -> None:
    driver = await sample()
    state = await driver.queue()
    key = sheet_key(state.id, kind, int(state.lines[kind].sheets["sheet"][0]))
    value = await driver.store.get(key)
    assert value is not None
    await write(driver, {key: None})
    assert f"of {kind.name.lower()} pages is gone" in await findings(driver)
    row = decode_sheet(value, "sheet")
    other_kind = FAILED if kind is DONE else DONE
    for other in (
        msgspec.structs.replace(row, sequence=row.sequence + 1),
        msgspec.structs.replace(row, lines=row.lines[:0]),
        SheetRow(other_kind, row.sequence, np.zeros(len(row.lines), LINES[other_kind])),
    ):
        await write(driver, {key: encode_sheet(other)})
        assert "is not the one that its head tells of" in await findings(driver)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (AVAILABLE, "count"),
        (AVAILABLE, "first_visible_ms"),
        (AVAILABLE, "last_visible_ms"),
        (AVAILABLE, "retention_ms"),
        (AVAILABLE, "key_id"),
        (IN_FLIGHT, "deadline_ms"),
        (DONE, "first_ms"),
        (FAILED, "key_page"),
    ],
)
async def test_a_head_that_tells_other_things_of_a_sheet_is_found(
    kind: PageKind, field: str
) -> None:
    driver = await sample()
    key = head_key((await driver.queue()).id)
    value = await driver.store.get(key)
    assert value is not None
    row = decode_head_row(value, "head")
    sheets = {each: table.copy() for each, table in row.sheets.items()}
    sheets[kind][field][0] += 1
    await write(driver, {key: encode_head_row(msgspec.structs.replace(row, sheets=sheets))})
    assert "it is not as" in await findings(driver)


async def test_a_sheet_that_a_head_names_twice_is_found() -> None:
    driver = await sample()
    key = head_key((await driver.queue()).id)
    value = await driver.store.get(key)
    assert value is not None
    row = decode_head_row(value, "head")
    sheets = row.sheets | {DONE: np.repeat(row.sheets[DONE], 2)}
    await write(driver, {key: encode_head_row(msgspec.structs.replace(row, sheets=sheets))})
    assert "a sheet of done pages is there twice" in await findings(driver)


async def test_lines_out_of_order_are_found() -> None:
    driver = await sample()
    state = await driver.queue()
    lines = state.lines[AVAILABLE]
    key = sheet_key(state.id, AVAILABLE, int(lines.sheets["sheet"][0]))
    value = await driver.store.get(key)
    assert value is not None
    row = decode_sheet(value, "sheet")
    assert len(row.lines) > 1
    turned = msgspec.structs.replace(row, lines=row.lines[::-1].copy())
    await write(driver, {key: encode_sheet(turned)})
    assert "lines are not in order" in await findings(driver)


async def test_rows_of_no_queue_are_found() -> None:
    driver = await sample()
    await write(driver, {attempts_key(b"ghost", 1): b""})
    assert "there is no queue b'ghost'" in await findings(driver)


async def test_a_lost_head_and_a_lost_operation_are_found() -> None:
    driver = await sample()
    await driver.publish(b"1")
    await driver.publish(b"2")
    (first, *_) = await driver.keys(KeyType.OPERATIONS)
    await write(driver, {first: None})
    assert "operations before" in await findings(driver)
    await write(driver, {head_key((await driver.queue()).id): None})
    assert "its head is gone" in await findings(driver)


async def test_bytes_that_are_no_record_are_found_and_raise_nothing() -> None:
    driver = await sample()
    for kind in (KeyType.ACTIVE, KeyType.CONFIG, KeyType.PAYLOAD, KeyType.ATTEMPTS):
        await write(driver, {(await driver.keys(kind))[-1]: b"\xff\xff"})
        assert await findings(driver)
    await write(driver, {operations_key(1): b"\xff"})
    assert await findings(driver)


# ---- messages ------------------------------------------------------------------------------------


async def takers(driver: QueueDriver, change: Any) -> None:
    """Change the takers of the first page."""
    row = await lookup(driver.store, METADATA)
    assert row is not None
    key = page_key(row.id, 0)
    value = await driver.store.get(key)
    assert value is not None
    page = decode_taken_page(0, value)
    slots = page.slots.copy()
    change(slots)
    await write(driver, {key: encode_taken_page(TakenPage(0, page.sequence, slots))})


async def test_takers_that_are_too_few_or_too_many_are_found() -> None:
    driver = await sample()
    await takers(driver, lambda slots: slots.__setitem__(9, 0))
    assert "offset 9: 0 takers, but 1 queues hold it" in await findings(driver)
    driver = await sample()
    await takers(driver, lambda slots: slots.__setitem__(9, 2))
    assert "offset 9: 2 takers, but 1 queues hold it" in await findings(driver)


async def test_a_payload_that_is_missing_and_one_that_nobody_has_are_found() -> None:
    driver = await sample()
    (key, *_) = await driver.keys(KeyType.PAYLOAD)
    value = await driver.store.get(key)
    await write(driver, {key: None, payload_key(500): value})
    found = await findings(driver)
    assert "its payload is gone" in found
    assert "payloads 500 to 511: all their messages went" in found


async def test_two_payloads_of_one_message_are_found() -> None:
    driver = await sample()
    await write(driver, {payload_key(3): b"\x01\x00\x00"})
    assert "two payload records" in await findings(driver)


async def test_metadata_that_is_gone_too_early_is_found() -> None:
    driver = await sample()
    row = await lookup(driver.store, METADATA)
    assert row is not None
    log = await read_log(driver.store, row.id)
    assert log is not None
    step, _ = await plan_holes(driver.store, log, [9])
    assert step is not None
    await driver.do(step)
    found = await findings(driver)
    assert "offset 9: its metadata is gone, but it was not dead" in found
    assert "message 10 is in a queue, and its metadata is gone" in found
    await takers(driver, lambda slots: slots.__setitem__(9, GONE))
    assert "offset 9: its metadata is gone" not in await findings(driver)


async def test_metadata_of_a_message_that_is_gone_is_found() -> None:
    driver = await sample()
    await takers(driver, lambda slots: slots.__setitem__(9, GONE))
    assert "offset 9: it is gone, but its metadata is there" in await findings(driver)


async def test_a_retention_that_nothing_reminds_of_is_found() -> None:
    driver = await sample()
    await write(driver, {(await driver.keys(KeyType.EXPIRY))[0]: None})
    assert "offset 10: nothing says when its retention ends" in await findings(driver)
    await write(driver, {expiry_key(7, 10): b"\x01\x01\x00\x00\x00"})
    assert "offset 10: nothing says" in await findings(driver), "at another time"


async def test_takers_beyond_the_log_and_ids_that_were_not_reserved_are_found() -> None:
    driver = await sample()
    row = await lookup(driver.store, METADATA)
    assert row is not None
    page = TakenPage(7, 0, np.zeros(1024, np.uint16))
    await write(
        driver,
        {page_key(row.id, 7): encode_taken_page(page), ids_key(Ids.MESSAGE): b"\x05" + bytes(7)},
    )
    found = await findings(driver)
    assert "takers of page 7: the log has no such offsets" in found
    assert "message 12 exists, only 5 ids are reserved" in found
