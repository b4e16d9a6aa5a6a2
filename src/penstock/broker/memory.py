"""States in memory: bounded, because each can be rebuilt from rows."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from penstock.log.decision import StateKey

STATES_MAX = 4096
STATES_BYTES_MAX = 64 << 20


class States:
    """The most recently used states. A state may say how large it is with `memory_bytes`."""

    def __init__(self) -> None:
        self._states: OrderedDict[StateKey, Any] = OrderedDict()
        self._sizes: dict[StateKey, int] = {}
        self._bytes = 0

    def get(self, key: StateKey) -> Any | None:
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: StateKey, state: Any | None) -> None:
        self._states.pop(key, None)
        self._bytes -= self._sizes.pop(key, 0)
        if state is None:
            return
        self._states[key] = state
        size = self._sizes[key] = int(getattr(state, "memory_bytes", 0))
        self._bytes += size
        # The newest one stays, however large it is: its request is being answered.
        while len(self._states) > 1 and (
            len(self._states) > STATES_MAX or self._bytes > STATES_BYTES_MAX
        ):
            dropped, _ = self._states.popitem(last=False)
            self._bytes -= self._sizes.pop(dropped)

    def clear(self) -> None:
        self._states.clear()
        self._sizes.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._states)
