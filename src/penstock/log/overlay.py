"""What one decision has done so far, over what it was shown: for decisions about several logs."""

from __future__ import annotations

from typing import Any

from penstock.log.catalogue import Shows
from penstock.log.decision import StateKey
from penstock.log.place import Rows


class Overlay:
    def __init__(self, view: Shows) -> None:
        self._view = view
        self.rows: Rows = {}
        self.states: dict[StateKey, Any] = {}

    def state(self, key: StateKey) -> Any | None:
        return self.states[key] if key in self.states else self._view.state(key)
