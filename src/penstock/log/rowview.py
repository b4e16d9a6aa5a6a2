"""A view over nothing but rows and operations: for checks, which decide nothing.

Contract     States that `load` functions rebuild stay here and reach no memory of a broker.
"""

from __future__ import annotations

from typing import Any

from penstock.codec.operations import Operation, Owner
from penstock.log.decision import StateKey
from penstock.log.pages import Tail
from penstock.store.port import Reader


class RowView:
    now_ms = 0

    def __init__(self, store: Reader, tail: Tail) -> None:
        self.store = store
        self._tail = tail
        self._states: dict[StateKey, Any] = {}

    def state(self, key: StateKey) -> Any | None:
        return self._states.get(key)

    def committed(self, key: StateKey) -> Any | None:
        return self._states.get(key)

    def keep(self, key: StateKey, state: Any) -> None:
        self._states[key] = state

    def operations(self, owner: Owner) -> list[Operation]:
        return self._tail.of(owner)

    def row(self, key: bytes) -> bytes | None:
        raise AssertionError("nothing is decided here")

    async def fetch(self, *keys: bytes) -> None:
        raise AssertionError("nothing is decided here")
