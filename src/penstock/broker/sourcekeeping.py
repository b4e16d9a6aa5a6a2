"""Upkeep of sources: their dedup windows move on, in commits of their own."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.commit import Committer, Shown
from penstock.broker.upkeep import Chore
from penstock.codec.keys import Kind
from penstock.log.catalogue import list_names
from penstock.log.decision import StateKey, Timer
from penstock.source.draft import prune_key
from penstock.source.pruning import Pruned, prune_step


class SourceKeeping:
    def __init__(self, remind: Callable[[list[Timer]], None]) -> None:
        self._remind = remind
        self.chores: dict[str, Chore] = {"prune": self._prune}

    async def _prune(self, committer: Committer, what: StateKey) -> None:
        source_id = what[1]
        if source_id is None:
            return await self._find(committer)
        assert isinstance(source_id, int)
        pruned: Pruned
        (pruned,) = await committer.submit(prune_step(source_id))
        if pruned.next_ms is not None:
            self._remind([Timer(pruned.next_ms, what)])

    async def _find(self, committer: Committer) -> None:
        async def query(view: Shown) -> list[int]:
            return [row.id async for _, row in list_names(view.store, Kind.SOURCE)]

        found = await committer.read(query)
        self._remind([Timer(0, prune_key(source_id)) for source_id in found])
