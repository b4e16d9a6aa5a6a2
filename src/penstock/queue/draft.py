"""A draft: what one request does to queues, takers and rows, put together before it is decided.

Contract     `draft_step(body)` makes a step of a coroutine. The body runs in `load`, so it may read
             pages as it needs them; it changes nothing but the draft. `decide` hands the draft over
             as a decision: load and decide of a step run back to back within their tick, so that
             what the body saw is what it is decided on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.codec.operations import Operation
from penstock.log.catalogue import LogName, States
from penstock.log.decision import Decision, Now, StateKey, Step, Timer, View
from penstock.log.place import Rows
from penstock.queue.state import Change, QueueState, load_queue
from penstock.queue.taken import Taken
from penstock.queue.timers import queue_timers


class Draft:
    def __init__(self, view: View) -> None:
        self.view = view
        self.now_ms = view.now_ms
        self.rows: Rows = {}
        self.states: States = {}
        self.timers: list[Timer] = []
        self.taken = Taken(view)
        self._changes: dict[int, Change] = {}

    async def queue(self, name: LogName) -> Change:
        return self.change(await load_queue(self.view, name))

    def change(self, state: QueueState) -> Change:
        return self._changes.setdefault(state.id, Change(self.view, state))

    def discard(self, change: Change) -> None:
        """The queue is deleted: what was changed of it is void."""
        del self._changes[change.before.id]

    def state(self, key: StateKey) -> Any | None:
        """As this draft made it, else as its view shows it."""
        return self.states.get(key) or self.view.state(key)

    async def row(self, key: bytes) -> bytes | None:
        if key in self.rows:
            return self.rows[key]
        await self.view.fetch(key)
        return self.view.row(key)

    def decision(self, reply: Any) -> Decision:
        operations: list[Operation] = []
        states = dict(self.states)
        timers = list(self.timers)
        for change in self._changes.values():
            done, after = change.finish()
            operations += done
            states |= after
            if done:
                timers += queue_timers(change.before, change.lines)
        done, after = self.taken.finish()
        operations += done
        states |= after
        timers += self.taken.timers
        return Decision(reply, self.rows, states, tuple(timers), tuple(operations))


Body = Callable[[Draft], Awaitable[Any]]


def draft_step(body: Body, size: int = 0) -> Step:
    drafts: list[tuple[Draft, Any]] = []

    async def load(view: View) -> None:
        draft = Draft(view)
        drafts[:] = [(draft, await body(draft))]

    def decide(view: View, now: Now) -> Decision:
        draft, reply = drafts[0]
        assert draft.now_ms == now.ms, "decided in the tick that loaded it"
        return draft.decision(reply)

    return Step(decide, load, size)
