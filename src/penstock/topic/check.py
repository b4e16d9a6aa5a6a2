"""The invariants of topics, looked at row by row: for tests, the simulator and `penstock check`.

Contract     `check_topics(store)` reads every row of topics, with the operations behind them, and
             returns what is wrong; an empty list is a clean store. It never raises for stored
             bytes. One page and one node are in memory at a time.
Invariants   T1  per shard inserted >= routed >= emitted >= acked + errored + running; a closed one
                 has all its messages routed, and some that are not done
             T2  the references of a shard are its messages that are neither acked nor errored
             T3  a message runs if its epoch is that of its slot, and as many as `running` and
                 `replaying` say do; nothing that waits lies below its slot's hint
             T4  references lie in their space, above the all-log's edge and the topic's hold
             T5  a reference's slot is that of its shard key in the all-log
             T6  every owner and heir is a live consumer, of closed shards also a zombie; where
                 there are live ones every slot has an owner, and shares differ by one at most
             T7  routed <= fed <= the end of the log; every message below `fed` was counted once
             T8  every row is of a topic that exists, or lies in a garbage range; operations are
                 dense and follow what the head contains
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.codec.garbage import decode_garbage
from penstock.codec.keys import KeyType, Kind, open_key, prefix, prefix_end, topic_key
from penstock.codec.topic import OPEN_END, decode_topic
from penstock.codec.topicerror import decode_error
from penstock.errors import CorruptError
from penstock.log.catalogue import LogName, list_names
from penstock.log.check import Finding
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.log.state import LogState, read_log
from penstock.store.port import Store
from penstock.topic.draft import HOLDER
from penstock.topic.feed import read_slots
from penstock.topic.look import members
from penstock.topic.page import Page
from penstock.topic.shards import epochs_of, open_rows, rows_of
from penstock.topic.state import LIVE, TopicState, load_page, load_topic, owner_of

Look = Callable[[], None]
_Counts = npt.NDArray[np.int64]
_OWNED = (KeyType.TOPIC, KeyType.TOPIC_PAGE, KeyType.ERROR)


async def check_topics(store: Store, look: Look = lambda: None) -> list[Finding]:
    """`look` is called for every page and row: whether it goes on."""
    findings: list[Finding] = []
    try:
        tail = Tail()
        await tail.load(store)
        names = [(name, row.id) async for name, row in list_names(store, Kind.TOPIC)]
    except CorruptError as error:
        return [Finding("topics", str(error))]
    for name, _ in names:
        check = _Check(store, tail, name, look)
        try:
            await check.run()
        except CorruptError as error:
            check.wrong.append(str(error))
        findings += [Finding(f"topic {name!r}", what) for what in check.wrong]
    return findings + await _check_owned(store, {topic_id for _, topic_id in names}, look)


class _Check:
    """One topic."""

    def __init__(self, store: Store, tail: Tail, name: str, look: Look) -> None:
        self._store = store
        self._tail = tail
        self._view = RowView(store, tail)
        self._name = LogName(Kind.TOPIC, name.encode())
        self._look = look
        self.wrong: list[str] = []

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    async def run(self) -> None:
        state = await load_topic(self._view, self._name)
        log = await read_log(self._store, state.id)
        if log is None:
            self.wrong.append(f"log {state.id} does not exist")
            return
        await self._operations(state)
        self._counters(state, log)
        self._owners(state)
        counts = _Tally(state)
        for space in state.head.spaces:
            index = state.references(space.id)
            for number, count in index.lines.tolist():
                self._look()
                page = await load_page(self._view, state.id, (space.id, number))
                self._expect(page.count == count, f"page {number} holds {page.count}, not {count}")
                await self._page(state, log, space.id, page, counts)
        self._tallied(state, counts)

    async def _operations(self, state: TopicState) -> None:
        operations = self._tail.of(owner_of(state.id))
        value = await self._store.get(topic_key(state.id))
        stored = 0 if value is None else decode_topic(value, "head").sequence
        if operations and operations[0].sequence > stored + 1:
            self.wrong.append(f"operations before {operations[0].sequence} are missing")

    def _counters(self, state: TopicState, log: LogState) -> None:
        shards, head = state.head.shards, state.head
        settled = shards["acked"] + shards["errored"] + shards["running"]
        closed = shards["end"] != OPEN_END
        for row in shards[
            (shards["inserted"] < shards["routed"])
            | (shards["routed"] < shards["emitted"])
            | (shards["emitted"] < settled)
            | (shards["running"] < 0)
            | (closed & (shards["inserted"] != shards["routed"]))
            | (closed & (shards["routed"] == shards["acked"] + shards["errored"]))
        ]:
            self.wrong.append(f"shard {row['slot']}/{row['generation']}: its counters cannot be")
        fed = state.live.fed
        self._expect(head.routed <= fed <= log.next, f"{head.routed} routed, {fed} fed")
        inserted = int(shards["inserted"].sum()) + head.folded[0]
        self._expect(inserted <= fed, f"{inserted} messages were inserted, of {fed}")
        hold = dict(log.holds).get(HOLDER)
        self._expect(not fed or hold is not None, "nothing holds its all-log")
        unfed = min(space.fed for space in state.head.spaces if space.fed < space.end)
        self._expect((hold or 0) <= unfed, f"held from {hold}, to be fed from {unfed}")

    def _owners(self, state: TopicState) -> None:
        shards, rows = state.head.shards, open_rows(state.head.shards)
        live = {each.number for each in state.consumers}
        known = {each.number for each in state.head.consumers}
        owners, heirs = set(shards["owner"][rows].tolist()), set(shards["heir"][rows].tolist())
        self._expect(owners | heirs <= live | {0}, f"slots are owned by {owners | heirs}")
        self._expect(not live or 0 not in owners, "a slot has no owner")
        opened = set(shards["owner"].tolist()) - {0}
        self._expect(opened <= known, f"shards of {opened - known}, who is not there")
        names = [each.name for each in state.consumers]
        self._expect(len(set(names)) == len(names), f"consumers {names}")
        shares = [len(each.slots) for each in members(state) if not each.zombie] or [0]
        self._expect(max(shares) - min(shares) <= 1, f"shares of {shares} slots")

    async def _page(
        self, state: TopicState, log: LogState, space: int, page: Page, counts: _Tally
    ) -> None:
        offsets = page.offsets()
        slots = page.slots[offsets - page.first]
        epochs = page.epochs[offsets - page.first]
        bounds = next(each for each in state.head.spaces if each.id == space)
        low, high = int(offsets[0]), int(offsets[-1])
        held = dict(log.holds).get(HOLDER, 0)
        if low < max(bounds.first, log.first, held) or high >= min(bounds.fed, log.next):
            self.wrong.append(f"space {space}: references {low} to {high} are outside of it")
            return
        if int(slots.max()) >= state.slots:
            self.wrong.append(f"page {page.number}: slot {int(slots.max())} is too high")
            return
        keyed = await read_slots(self._view, log, low, high + 1, state.slots)
        differs = offsets[keyed[offsets - low] != slots]
        if len(differs):
            self.wrong.append(f"message {int(differs[0])} is in a slot that its key is not of")
        counts.add(state, space, offsets, slots, epochs)

    def _tallied(self, state: TopicState, counts: _Tally) -> None:
        shards = state.head.shards
        left = shards["inserted"] - shards["acked"] - shards["errored"]
        found = ("references", left, counts.left), ("running", shards["running"], counts.running)
        replaying = np.zeros(len(shards), np.int64)
        replaying[open_rows(shards)] = counts.replaying
        for what, said, counted in (*found, ("replaying", shards["replaying"], replaying)):
            for row in np.flatnonzero(said != counted).tolist():
                slot, generation = int(shards["slot"][row]), int(shards["generation"][row])
                self.wrong.append(
                    f"shard {slot}/{generation}: {int(said[row])} {what}, {int(counted[row])} found"
                )
        if counts.missed is not None:
            self.wrong.append(f"message {counts.missed} waits below the hint of its slot")


class _Tally:
    """What references say of shards and slots."""

    def __init__(self, state: TopicState) -> None:
        self.left: _Counts = np.zeros(len(state.head.shards), np.int64)
        self.running: _Counts = np.zeros(len(state.head.shards), np.int64)
        self.replaying: _Counts = np.zeros(state.slots, np.int64)
        self.missed: int | None = None

    def add(
        self,
        state: TopicState,
        space: int,
        offsets: npt.NDArray[np.int64],
        slots: npt.NDArray[np.uint16],
        epochs: npt.NDArray[np.uint32],
    ) -> None:
        shards = state.head.shards
        runs = epochs == epochs_of(shards)[slots]
        if space != LIVE:
            self.replaying += np.bincount(slots[runs], minlength=state.slots)
            return
        rows = rows_of(shards, slots, offsets)
        self.left += np.bincount(rows, minlength=len(shards))
        self.running += np.bincount(rows[runs], minlength=len(shards))
        hints = shards["hint"][open_rows(shards)]
        missed = offsets[~runs & (offsets < hints[slots])]
        if len(missed) and self.missed is None:
            self.missed = int(missed[0])


async def _check_owned(store: Store, known: set[int], look: Look) -> list[Finding]:
    findings: list[Finding] = []
    strays: set[int] = set()
    for kind in _OWNED:
        low = prefix(kind)
        async for rows in store.scan(low, prefix_end(low)):
            for key, value in rows:
                look()
                try:
                    owner = open_key(key, kind).u64_key("topic id")
                    if kind == KeyType.ERROR:
                        decode_error(value)
                except CorruptError as error:
                    findings.append(Finding(f"{kind.name.lower()} {key.hex()}", str(error)))
                    continue
                if owner in known or owner in strays or await _is_garbage(store, key):
                    continue
                strays.add(owner)
                findings.append(Finding(f"{kind.name.lower()} {key.hex()}", f"no topic {owner}"))
    return findings


async def _is_garbage(store: Store, key: bytes) -> bool:
    low = prefix(KeyType.GARBAGE)
    async for rows in store.scan(low, prefix_end(low)):
        for garbage, value in rows:
            first, end = decode_garbage(garbage, value)
            if first <= key < end:
                return True
    return False
