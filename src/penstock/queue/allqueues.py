"""Every queue there is: what the router asks for each message.

Contract     A state like others: rebuilt from the catalogue and the config records, replaced by
             whatever creates, alters or deletes a queue. The matcher is made when it is first asked
             for.
"""

from __future__ import annotations

from functools import cached_property

from penstock.codec.keys import Kind, config_key
from penstock.codec.queueconfig import decode_queue_config
from penstock.errors import CorruptError
from penstock.log.catalogue import list_names, lookup
from penstock.log.decision import StateKey, View
from penstock.queue.config import Settings, settings_of
from penstock.queue.filter import Filter
from penstock.queue.matcher import Matcher
from penstock.queue.state import queue_id, queue_name

ALL_QUEUES: StateKey = ("queues", None)


class AllQueues:
    def __init__(self, names: dict[int, str], filters: dict[int, Filter | None]) -> None:
        self.names = names  # by incarnation
        self._filters = filters

    @cached_property
    def matcher(self) -> Matcher[int]:
        return Matcher(self._filters)

    @property
    def memory_bytes(self) -> int:
        return 2000 * len(self.names)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in self.names.items()}

    def find(self, name: str) -> int | None:
        return self._numbers.get(name)

    def added(self, incarnation: int, name: str, settings: Settings) -> AllQueues:
        return AllQueues(
            self.names | {incarnation: name}, self._filters | {incarnation: settings.filter}
        )

    def removed(self, incarnation: int) -> AllQueues:
        names, filters = dict(self.names), dict(self._filters)
        del names[incarnation], filters[incarnation]
        return AllQueues(names, filters)


async def load_all_queues(view: View) -> AllQueues:
    known: AllQueues | None = view.state(ALL_QUEUES)
    if known is None:
        names: dict[int, str] = {}
        filters: dict[int, Filter | None] = {}
        async for name, row in list_names(view.store, Kind.QUEUE):
            value = await view.store.get(config_key(queue_id(name, row.id)))
            if value is None:
                if await lookup(view.store, queue_name(name)) == row:
                    raise CorruptError(f"queue {name!r}: its config is gone")
                continue  # a read, and it was deleted meanwhile
            names[row.id] = name
            filters[row.id] = settings_of(decode_queue_config(value)).filter
        known = AllQueues(names, filters)
        view.keep(ALL_QUEUES, known)
    return known
