"""Upkeep of topics: consumers that fell silent, references that are due.

Contract     Chores for upkeep.py, by the first part of a timer's key:
                 ("topic beat", name)   a consumer may have been silent for too long
                 ("topic feed", name)   messages have no references yet, or a replay goes on
             With None in the place of the name each looks at all topics, as after an opening.
             `changed` is told of every commit.
Silence      Where the upkeep itself comes late (the process was stopped, the loop was busy), nobody
             may have been heard meanwhile: then whoever is due has half of his time once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.commit import Committer, Shown
from penstock.broker.topicsigns import Signs
from penstock.codec.keys import Kind
from penstock.errors import NotFoundError
from penstock.log.catalogue import LogName, NameState, list_names
from penstock.log.decision import StateKey, Timer
from penstock.log.state import LogState
from penstock.topic.feed import feed_step, is_hungry
from penstock.topic.look import look_step
from penstock.topic.members import holds, leave_step, token_of
from penstock.topic.state import TopicState, topic_state_key
from penstock.topic.timers import beat_due, feed_due

#: A look that comes so much later than it was asked for was kept from it.
LATE_MS = 1000


class TopicKeeping:
    def __init__(
        self, committer: Committer, signs: Signs, remind: Callable[[list[Timer]], None]
    ) -> None:
        self._committer = committer
        self._signs = signs
        self._remind = remind
        self._names: dict[int, str] = {}
        self.chores = {"topic beat": self._beat, "topic feed": self._feed}

    def changed(self, states: dict[StateKey, Any]) -> None:
        """After every commit."""
        for key, state in states.items():
            match key:
                case ("name", (Kind.TOPIC, bytes(text))) if isinstance(state, NameState):
                    if state.row is not None:
                        self._names[state.row.id] = text.decode()
                        self._remind([feed_due(text.decode(), 0)])
                case ("topic", int(topic_id)) if isinstance(state, TopicState):
                    self._names[topic_id] = state.name
                    if state.replays and is_hungry(state, state.live.fed):
                        self._remind([feed_due(state.name, 0)])
                case ("topic", int(topic_id)) if state is None:
                    self._names.pop(topic_id, None)
                    self._signs.forget(topic_id)
                case ("log", int(log_id)) if log_id in self._names and state is not None:
                    self._grown(log_id, state)

    def _grown(self, topic_id: int, log: LogState) -> None:
        known: TopicState | None = self._committer.states.get(topic_state_key(topic_id))
        if known is None or known.live.fed < log.next:
            self._remind([feed_due(self._names[topic_id], 0)])

    async def _beat(self, committer: Committer, what: StateKey) -> None:
        names = await self._all(committer) if what[1] is None else [str(what[1])]
        for name in names:
            await self._look(committer, name)

    async def _look(self, committer: Committer, name: str) -> None:
        """Whoever was silent for his whole time is a zombie."""
        topic = LogName(Kind.TOPIC, name.encode())
        try:
            ((state, _),) = await committer.submit(look_step(topic))
        except NotFoundError:
            return  # it was deleted meanwhile
        now_ms = committer.now_ms()
        live = {token_of(state.id, each.number): each for each in state.consumers}
        self._signs.forget(state.id, live.keys())
        next_ms: int | None = None
        for token, consumer in live.items():
            if self._signs.waits(state.id, token) and not holds(state, consumer.number):
                self._signs.heard(state.id, token, now_ms)
            last_ms = self._signs.last_ms(state.id, token, now_ms)
            deadline_ms = last_ms + consumer.heartbeat_ms
            if now_ms - deadline_ms > LATE_MS:
                # There was a timer for its deadline, or for an earlier one: we are late.
                last_ms = now_ms - consumer.heartbeat_ms // 2
                if self._signs.excuse(state.id, token, last_ms):
                    deadline_ms = last_ms + consumer.heartbeat_ms
            if deadline_ms <= now_ms:
                await committer.submit(leave_step(topic, consumer.name, token))
            else:
                next_ms = deadline_ms if next_ms is None else min(next_ms, deadline_ms)
        if next_ms is not None:
            self._remind([beat_due(name, next_ms)])

    async def _feed(self, committer: Committer, what: StateKey) -> None:
        names = await self._all(committer) if what[1] is None else [str(what[1])]
        for name in names:
            more = True
            while more:
                try:
                    (more,) = await committer.submit(feed_step(LogName(Kind.TOPIC, name.encode())))
                except NotFoundError:
                    break  # it was deleted meanwhile

    async def _all(self, committer: Committer) -> list[str]:
        async def query(view: Shown) -> dict[int, str]:
            return {row.id: name async for name, row in list_names(view.store, Kind.TOPIC)}

        self._names |= await committer.read(query)
        return list(self._names.values())
