"""Reading what messages hold, for requests of queues.

Contract     `parts` reads the messages of entries a few at a time: from what was published lately,
             from caches, from the store. What lies in an object of ours `whole` fetches, one at a
             time, as they are large. One that is gone or damaged does not keep the others back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from penstock.broker.commit import Committer, Shown
from penstock.codec.keys import payload_key
from penstock.codec.queuestate import Entries
from penstock.errors import CorruptError
from penstock.log.cache import NodeCache
from penstock.queue.message import Content, Fresh, Payloads, read_ahead, read_contents
from penstock.queue.publish import check_spilled, spilled_id
from penstock.store.objects import Objects

#: Messages are read so many at a time.
READ_COUNT = 128

#: What reading a message came to.
Found = Content | CorruptError | None


class Reading:
    def __init__(self, committer: Committer, cache: NodeCache, objects: Objects) -> None:
        self._committer = committer
        self._cache = cache
        self._objects = objects
        self.fresh = Fresh()
        self._payloads = Payloads()

    def clear(self) -> None:
        """After a reopening."""
        self.fresh.clear()
        self._payloads.clear()

    async def parts(self, entries: Entries) -> AsyncIterator[list[Content | None]]:
        """What these messages hold, some at a time, in order; None where one is gone."""
        for at in range(0, len(entries), READ_COUNT):
            yield await self._contents(entries[at : at + READ_COUNT])

    async def _contents(self, entries: Entries) -> list[Content | None]:
        ids, offsets = entries["message_id"].tolist(), entries["offset"].tolist()
        found = self.fresh.find(ids, offsets)
        cold = [i for i, content in enumerate(found) if content is None]
        if cold:

            async def query(view: Shown) -> list[Content | None]:
                return await read_contents(
                    view,
                    [ids[i] for i in cold],
                    [offsets[i] for i in cold],
                    self._cache,
                    self._payloads,
                )

            for i, content in zip(cold, await self._committer.read(query), strict=True):
                found[i] = content
        return found

    def are_fresh(self, entries: Entries) -> bool:
        """Whether nothing is read for the last of these."""
        return self.fresh.has(int(entries["offset"][-1]))

    async def ahead(self, view: Shown, entries: Entries) -> int:
        """Into the caches. -> how many of these are there now, from the first on"""
        ids, offsets = entries["message_id"].tolist(), entries["offset"].tolist()
        return await read_ahead(view, ids, offsets, self._cache, self._payloads)

    async def whole(self, content: Content) -> Found:
        """With the payload, where it is an object of ours; None: the message was removed meanwhile;
        an error where it is damaged."""
        number = None if content.uri is None else spilled_id(content.uri)
        if number is None or content.uri is None:
            return content
        try:
            payload = await self._objects.get(number)
            check_spilled(content.uri, payload)
        except CorruptError as error:
            # An object goes after its row, and memory may know neither.
            row = await self._committer.read(lambda view: view.store.get(payload_key(number)))
            return None if row is None else error
        return msgspec.structs.replace(content, payload=payload, uri=None)
