"""What one decision does to a processor, and beside it: one commit.

Contract     A step's `decide` makes a `Change`, which is also the view of the steps within it
             (appends, links, holds): each sees what the ones before it did. `finish` gives the
             decision: outputs, errors, attempt, positions and holds go together or not at all.
Invariants   P1  positions move in the commit that writes the attempt (at_most_once: the range)
             P2  each input is held at the processor's position                      (check.py)
             P3  the backing queue keeps the last snapshot and what follows it, and until the next
                 attempt also what was before                                        (check.py)
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.codec.backing import BackingRow, encode_backing
from penstock.codec.keys import backing_key, processor_key
from penstock.codec.operations import Operation, Owner
from penstock.codec.processor import ProcessorRow, TailerRow, encode_processor
from penstock.graph.state import (
    ProcessorState,
    holder,
    last_snapshot,
    processor_state_key,
)
from penstock.log.decision import Decision, Now, StateKey, Step, Timer, View
from penstock.log.hold import hold_step
from penstock.log.place import Rows
from penstock.log.state import LogState, state_key
from penstock.store.port import Reader


class Change:
    def __init__(self, view: View, now: Now, processor: ProcessorState) -> None:
        self._view = view
        self.now = now
        self.processor = processor
        self.writes: Rows = {}
        self.states: dict[StateKey, Any] = {}
        self._timers: list[Timer] = []
        self._operations: list[Operation] = []

    # -- what the steps within are shown

    @property
    def store(self) -> Reader:
        return self._view.store

    @property
    def now_ms(self) -> int:
        return self._view.now_ms

    def committed(self, key: StateKey) -> Any | None:
        return self._view.committed(key)

    def state(self, key: StateKey) -> Any | None:
        return self.states[key] if key in self.states else self._view.state(key)

    def row(self, key: bytes) -> bytes | None:
        return self.writes[key] if key in self.writes else self._view.row(key)

    def operations(self, owner: Owner) -> list[Operation]:
        return self._view.operations(owner)

    async def fetch(self, *keys: bytes) -> None:
        raise AssertionError("what is decided was loaded before")

    def keep(self, key: StateKey, state: Any) -> None:
        raise AssertionError("what is decided was loaded before")

    # -- what is done

    def decide(self, step: Step) -> Any:
        """Decide another step within this one; it was loaded before. -> its reply"""
        decision = step.decide(self, self.now)
        self.writes |= decision.writes
        self.states |= decision.states
        self._timers += decision.timers
        self._operations += decision.operations
        return decision.reply

    @property
    def of(self) -> ProcessorRow:
        """The row, as it is by now."""
        return self.processor.row

    def set(self, **fields: Any) -> None:
        row = msgspec.structs.replace(self.processor.row, **fields)
        self.processor = msgspec.structs.replace(self.processor, row=row)

    def append(self, record: BackingRow) -> None:
        n = self.of.tail
        self.writes[backing_key(self.processor.id, n)] = encode_backing(record)
        records = (*self.processor.records, (n, record))
        self.processor = msgspec.structs.replace(self.processor, records=records)
        self.set(tail=n + 1)

    def trim(self) -> None:
        """Forget what lies before the last snapshot, or (there being none) the last record."""
        found = last_snapshot(self.processor)
        self.forget_before(max(self.of.tail - 1, 0) if found is None else found[0])

    def forget_before(self, head: int) -> None:
        for n, _ in self.processor.records:
            if n < head:
                self.writes[backing_key(self.processor.id, n)] = None
        kept = tuple((n, record) for n, record in self.processor.records if n >= head)
        self.processor = msgspec.structs.replace(self.processor, records=kept)
        self.set(head=max(head, self.of.head))

    def move(self, positions: dict[str, int]) -> None:
        """Other positions, by alias; the holds go with them."""
        inputs: list[TailerRow] = []
        for each in self.of.inputs:
            position = positions.get(each.alias, each.position)
            inputs.append(msgspec.structs.replace(each, position=position))
            if position != each.position:
                self.hold(each.stream_id, position)
        self.set(inputs=tuple(inputs))

    def hold(self, log_id: int, offset: int | None) -> None:
        log: LogState | None = self.state(state_key(log_id))
        if log is not None:  # else the stream was deleted, and its holds with it
            self.decide(hold_step(log_id, holder(self.processor.id), offset))

    def finish(self, reply: Any) -> Decision:
        self.writes[processor_key(self.processor.id)] = encode_processor(self.of)
        self.states[processor_state_key(self.processor.id)] = self.processor
        return Decision(
            reply, self.writes, self.states, tuple(self._timers), tuple(self._operations)
        )
