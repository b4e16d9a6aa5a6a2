"""The invariants of groups, looked at row by row: for tests, the simulator and `penstock check`.

Contract     `check_groups(store)` reads every row of groups, pages and operations and returns what
             is wrong; an empty list is a clean store. It never raises for stored bytes.
Invariants   G1  a group belongs to a log that exists and has a head that names it; the index counts
                 the slots in use
             G2  pending offsets lie below the group's next one, and below the end of its log
             G4  every page belongs to a group, a queue or the takers, or lies in a garbage range
             G5  an owner's operations are dense, and follow what its head contains
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.garbage import decode_garbage
from penstock.codec.group import OFFSET_MAX, decode_head
from penstock.codec.keys import KeyType, Kind, head_key, open_key, prefix, prefix_end
from penstock.errors import CorruptError
from penstock.log.catalogue import list_names
from penstock.log.check import Finding
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.log.state import read_log
from penstock.store.port import Store
from penstock.stream.group import load_group, load_page, owner_of


async def check_groups(store: Store, look: Callable[[], None] = lambda: None) -> list[Finding]:
    """`look` is called for every row: whether it goes on."""
    findings: list[Finding] = []
    tail = Tail()
    try:
        await tail.load(store)
    except CorruptError as error:
        return [Finding("operations", str(error))]
    known: set[int] = set()
    low = prefix(KeyType.GROUP)
    async for rows in store.scan(low, prefix_end(low)):
        for key, _ in rows:
            look()
            try:
                group_id, wrong = await _check_group(store, tail, key)
            except CorruptError as error:
                findings.append(Finding(f"group {key.hex()}", str(error)))
                continue
            if group_id is not None:
                known.add(group_id)
            findings += [Finding(f"group {key.hex()}", what) for what in wrong]
    try:
        # Queues and the metadata log keep pages too (queue/check.py).
        for kind in (Kind.QUEUE, Kind.INTERNAL):
            known |= {row.id async for _, row in list_names(store, kind)}
    except CorruptError as error:
        return [*findings, Finding("names", str(error))]
    findings += await _check_owned(store, known, look)
    return findings


async def _check_group(store: Store, tail: Tail, key: bytes) -> tuple[int | None, list[str]]:
    reader = open_key(key, KeyType.GROUP)
    log_id, name = reader.u64_key("log id"), reader.terminated("name")
    reader.end()
    log = await read_log(store, log_id)
    if log is None:
        if await _is_garbage(store, key):
            return None, []
        return None, [f"log {log_id} does not exist"]
    view = RowView(store, tail)
    state = await load_group(view, log_id, name)
    assert state is not None, "its row is there"
    wrong: list[str] = []
    head = state.head
    if (head.log_id, head.name.encode()) != (log_id, name):
        wrong.append(f"its head names group {head.name!r} of log {head.log_id}")
    operations = tail.of(owner_of(state.id))
    if (
        operations
        and operations[0].sequence > _stored_sequence(await store.get(head_key(state.id))) + 1
    ):
        wrong.append(f"operations before {operations[0].sequence} are missing")
    for number, count in zip(
        state.index.numbers.tolist(), state.index.counts.tolist(), strict=True
    ):
        page = await load_page(view, state.id, number)
        if len(page.slots()) != count:
            wrong.append(f"page {number} holds {len(page.slots())} entries, not {count}")
        beyond = page.between(min(head.next, log.next), OFFSET_MAX)
        if len(beyond):
            wrong.append(f"offset {int(beyond[0])} is pending, but the next one is {head.next}")
    return state.id, wrong


def _stored_sequence(value: bytes | None) -> int:
    return 0 if value is None else decode_head(value, "head").sequence


async def _check_owned(store: Store, known: set[int], look: Callable[[], None]) -> list[Finding]:
    findings: list[Finding] = []
    strays: set[int] = set()
    low = prefix(KeyType.PAGE)
    async for rows in store.scan(low, prefix_end(low)):
        for key, _ in rows:
            look()
            owner = open_key(key, KeyType.PAGE).u64_key("owner id")
            if owner not in known and owner not in strays and not await _is_garbage(store, key):
                strays.add(owner)
                findings.append(Finding(f"page {key.hex()}", f"there is no group {owner}"))
    return findings


async def _is_garbage(store: Store, key: bytes) -> bool:
    low = prefix(KeyType.GARBAGE)
    async for rows in store.scan(low, prefix_end(low)):
        for garbage, value in rows:
            first, end = decode_garbage(garbage, value)
            if first <= key < end:
                return True
    return False
